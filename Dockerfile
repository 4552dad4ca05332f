# The hub in a container: docs/install.md says how to build and run it.
#
# The image has the program, its licences and an empty /data; no shell, no user database,
# no root. Inside it the hub listens on all addresses of its container, and therefore
# wants a token: EVENTHUB_AUTH_TOKEN, or EVENTHUB_AUTH_TOKEN_FILE.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG TARGETOS TARGETARCH
ARG VERSION=devel
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
	go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$VERSION" -o /image/eventhub ./cmd/eventhub && \
	go run ./internal/release licenses /image/eventhub >/image/THIRD_PARTY_LICENSES && \
	mkdir -m 700 /data

FROM scratch
COPY --from=build /image/ /
# A new volume gets the owner of what it covers.
COPY --from=build --chown=65532:65532 /data /data
USER 65532:65532
ENV EVENTHUB_WS=0.0.0.0:8090 \
	EVENTHUB_HTTP=0.0.0.0:8081 \
	EVENTHUB_OPS=0.0.0.0:8082 \
	EVENTHUB_STORE=/data
VOLUME /data
EXPOSE 8090 8081 8082
# A store that is opened after a crash or for an upgrade may need a while.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD ["/eventhub", "health"]
ENTRYPOINT ["/eventhub"]
CMD ["serve"]
