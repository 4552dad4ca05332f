// Package rest is the HTTP API for publishing: one event by one curl, or a batch
// as NDJSON or JSON. It turns requests into calls of the root Publisher and
// errors into problem details (RFC 9457) with the protocol's codes. The hub
// mounts its routes; it knows no engine and no store.
//
// Every request stands for itself: who asks is decided by its bearer token, and
// a request that was answered with 200 is as durable as a WebSocket OK. A batch
// is atomic. Pages of foreign origins are refused before anything is read.
package rest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"

	"eventhub"
	"eventhub/internal/origin"
)

// Limits of a request's body, in bytes, and of a batch, in events.
const (
	// maxPayloadBody leaves room for whitespace around the largest payload.
	maxPayloadBody = eventhub.MaxPayloadBytes + 64<<10
	maxBatchBody   = 16 << 20
	maxBatchEvents = 10_000
)

// Access is what an authenticated request may use.
type Access struct {
	Publisher eventhub.Publisher
}

// Config says how to run the API.
type Config struct {
	// Authenticate is asked for every request with its bearer token. Its errors
	// are shown to the client.
	Authenticate func(ctx context.Context, token string, given bool) (Access, error)
	// Origins are the web origins whose pages may use the API besides those of
	// the hub's own host and of loopback.
	Origins []string
	Logger  *slog.Logger // default: discard
}

// API is the HTTP API. It is safe for concurrent use.
type API struct {
	cfg     Config
	origins *origin.Policy
}

// New returns the API, or everything that is wrong with the configuration.
func New(cfg Config) (*API, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	policy, err := origin.New(cfg.Origins)
	if cfg.Authenticate == nil {
		err = errors.Join(err, errors.New("field Authenticate is missing"))
	}
	if err != nil {
		return nil, fmt.Errorf("rest: configuration: %w", err)
	}
	return &API{cfg: cfg, origins: policy}, nil
}

// Register mounts the routes.
func (a *API) Register(mux *http.ServeMux) {
	mux.HandleFunc("POST /publish/{topic}", a.guard(a.publishOne))
	mux.HandleFunc("POST /v1/publish", a.guard(a.publishBatch))
}

// handler serves a request that was let in. What it returns as an error is
// answered as a problem; otherwise it has answered.
type handler func(w http.ResponseWriter, r *http.Request, access Access) error

// guard lets requests in and answers errors.
func (a *API) guard(serve handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		err := a.admit(w, r, serve)
		if err == nil {
			return
		}
		e := problemOf(err)
		if e.Code == eventhub.CodeInternal || e.Code == eventhub.CodePublishFailed {
			a.cfg.Logger.Warn("a request failed on the hub's side", "remote", r.RemoteAddr, "route", r.Pattern, "error", err)
		}
		writeProblem(w, e)
	}
}

func (a *API) admit(w http.ResponseWriter, r *http.Request, serve handler) error {
	if !a.origins.Allowed(r) {
		return eventhub.Errorf(eventhub.CodeForbidden, "pages of the origin %q may not use this hub", r.Header.Get("Origin"))
	}
	token, given, err := bearer(r)
	if err != nil {
		return err
	}
	access, err := a.cfg.Authenticate(r.Context(), token, given)
	if err != nil {
		return err
	}
	return serve(w, r, access)
}

// bearer returns the token of the Authorization header (RFC 6750).
func bearer(r *http.Request) (token string, given bool, err error) {
	header := r.Header.Get("Authorization")
	if header == "" {
		return "", false, nil
	}
	scheme, token, ok := strings.Cut(header, " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return "", false, eventhub.Errorf(eventhub.CodeBadToken, "Authorization is not Bearer and a token")
	}
	return strings.TrimSpace(token), true, nil
}
