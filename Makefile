# make help lists what there is. CGO stays off: the binary is static.
export CGO_ENABLED := 0
GO ?= go
# The source archive of a release has a file VERSION, and no git.
VERSION ?= $(shell cat VERSION 2>/dev/null || git describe --always --dirty 2>/dev/null || echo devel)

.DEFAULT_GOAL := help
# Where make install puts the files; docs/install.md lists them.
PREFIX ?= /usr/local
BINARY ?= bin/eventhub
UNITDIR ?= auto
INSTALL = PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' BINARY='$(BINARY)' UNITDIR='$(UNITDIR)' ./scripts/install

.PHONY: help build install uninstall release demo cluster quick test lint bench bench-peers soak fuzz clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build bin/eventhub
	$(GO) build -trimpath -ldflags '-X main.version=$(VERSION)' -o bin/eventhub ./cmd/eventhub

install: ## install bin/eventhub, built if it is not there, completions and the systemd unit; PREFIX=/usr/local DESTDIR=
	@[ -e bin/eventhub ] || [ '$(BINARY)' != bin/eventhub ] || $(MAKE) --no-print-directory build
	@$(INSTALL)

uninstall: ## remove what make install installed; data and settings stay
	@$(INSTALL) remove

release: ## into dist: archives for Linux and macOS, Debian packages, SBOMs, checksums; VERSION=v1.2.3
	@$(if $(filter-out undefined file,$(origin VERSION)),VERSION='$(VERSION)') ./scripts/release

demo: build ## run hub, heartbeat agent and projector, and watch this machine's processes
	./bin/eventhub demo

cluster: build ## three NATS servers and three hubs on this machine, and the one that leads is killed: ROUNDS=3
	./scripts/cluster $(ROUNDS)

quick: ## between two edits: gofmt, go vet, all Go tests at their small sizes without the race detector
	./scripts/quick

test: ## everything: lint, all tests with the race detector, the real binary end to end
	./scripts/test

lint: ## gofmt, go vet, staticcheck, govulncheck where it is installed
	./scripts/lint

bench: ## Go benchmarks of the engine, the store and the gateway
	$(GO) test -run '^$$' -bench . -benchmem ./...

bench-peers: build ## eventhub, Redis and NATS JetStream side by side: a report in bin/bench-peers; ROUNDS=5 SECONDS=5, or QUICK=1: four minutes
	QUICK=$(QUICK) ROUNDS=$(ROUNDS) BENCH_SECONDS=$(SECONDS) ./scripts/bench-peers

soak: ## the random and fault tests at full size, for hours; SOAK=10 a tenth of it
	./scripts/soak

fuzz: ## every fuzz test for a minute each; FUZZTIME=10m, FUZZPARALLEL=1
	FUZZTIME='$(FUZZTIME)' FUZZPARALLEL='$(FUZZPARALLEL)' ./scripts/fuzz

clean: ## remove what was built
	rm -rf bin dist
