// Package rest is the HTTP API: publishing (one event by one curl, or a batch as
// NDJSON or JSON; now, or at a later time), looking at topics, events, groups and
// what is scheduled, moving, pausing and deleting groups, and giving dead letters back.
// It turns requests into calls of the root Publisher, Inspector, Admin, Scheduler and
// Redriver and errors into problem details (RFC 9457) with the protocol's codes. The hub
// mounts its routes; it knows no engine and no store.
//
// Every request is on its own: who asks is decided by its bearer token, and
// a change that was answered with success is as durable as a WebSocket OK. A
// batch is atomic. Pages of foreign origins are refused before anything is read.
//
// Whatever comes in under the API's paths is answered as JSON, the path or the
// method that does not exist too.
package rest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/budget"
	"eventhub/internal/caller"
	"eventhub/internal/measure"
	"eventhub/internal/origin"
)

// Limits of a request's body, in bytes, and of a batch, in events.
const (
	// maxPayloadBody leaves room for whitespace around the largest payload.
	maxPayloadBody = eventhub.MaxPayloadBytes + 64<<10
	maxBatchBody   = 16 << 20
	// maxEventText is more than any event of a batch needs, escapes and all.
	maxEventText   = maxPayloadBody + 128<<10
	maxBatchEvents = 10_000
)

// Access is what an authenticated request may use. Every field is set, except
// Scheduler, Settings and Connections, without which their paths are not supported, and Recaller,
// without which the header Idempotency-Key is not.
type Access struct {
	Publisher   eventhub.Publisher
	Recaller    eventhub.Recaller
	Subscriber  eventhub.Subscriber
	Puller      eventhub.Puller
	Inspector   admin.Inspector
	Operator    admin.Operator
	Scheduler   admin.Scheduler
	History     admin.History
	Importer    admin.Importer
	Backuper    admin.Backuper
	Redriver    admin.Redriver
	Remover     admin.Remover
	Settings    admin.Settings
	Connections admin.Connections
	// Beginnings finds where streams begin; nil: Inspector does.
	Beginnings Beginnings
	// Rights is asked before a request gets what others then wait for, and where HEAD calls nothing;
	// nil: all is allowed. What the request calls asks again.
	Rights Rights
	// Name says who asks, and is kept with what was done; no secret.
	Name string
	// Expires is when a request that is still answered ends, as a stream is; zero: never.
	Expires time.Time
	// Revoked ends when the access is taken back before that; nil: never.
	Revoked context.Context

	body *holding // of what was read of the request's body
	page *holding // of the answer, as far as it is made
}

// Beginnings is the part of admin.Inspector that finds where a stream begins. Who may follow
// a topic may have no other right to it.
type Beginnings interface {
	admin.TopicLister
	Topic(ctx context.Context, topic string) (admin.TopicInfo, error)
	Event(ctx context.Context, topic, id string) (eventhub.Item, error)
}

// Config says how to run the API.
type Config struct {
	// Authenticate is asked for every request with its bearer token. Its errors
	// are shown to the client.
	Authenticate func(ctx context.Context, token string, given bool) (Access, error)
	// Refused, where not nil, is called for each request that Authenticate, or a header that
	// has no token, keeps out: with the address that it comes from, and why.
	Refused func(r *http.Request, err error)
	// Open says that Authenticate lets in whoever comes. Requests over loopback
	// then have to call the hub by a name that is its own; see origin.Policy.Named.
	Open bool
	// Admit counts an event stream of a principal from an address (host and port, or host) until
	// leave is called, or refuses it with CodeRateLimited or CodeOverloaded. Default: it counts
	// nothing.
	Admit func(remote, principal string) (leave func(), err error)
	// QueryToken has the event stream take its token from the query too, as access_token.
	QueryToken bool
	// Origins are the web origins whose pages may use the API besides those of
	// the hub's own host and of loopback.
	Origins []string
	// Scratch is a directory, made if need be, for the copies of the store that are
	// sent as backups; best in the same file system as the store. What an earlier
	// process left in it is removed. Default: that of the system for temporary files.
	Scratch string
	// Memory is what the bodies of requests take their bytes from, while they come and
	// until they are answered; Answers is that of pages, until they are written. It is
	// for the server's connections to bound how long that may take. Default: each has
	// one of 128 MiB.
	Memory, Answers *budget.Budget
	Logger          *slog.Logger // default: discard
}

// API is the HTTP API. It is safe for concurrent use.
type API struct {
	cfg     Config
	origins *origin.Policy

	stopping context.Context // ended by Stop
	stop     context.CancelFunc

	copying   sync.Mutex    // held while a copy of the store is made
	copies    chan struct{} // holds a token for each copy that there is
	importing chan struct{} // holds a token for each import
	streams   chan struct{} // holds a token for each event stream
	once      sync.Map      // onceKey of each publish that is carried out

	mu       sync.Mutex
	requests map[answered]uint64
}

// answered is what requests are counted by.
type answered struct {
	route  string
	status int
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
	if cfg.Scratch != "" {
		err = errors.Join(err, clearScratch(cfg.Scratch))
	}
	if err != nil {
		return nil, fmt.Errorf("rest: configuration: %w", err)
	}
	if cfg.Memory == nil {
		cfg.Memory = budget.New(defaultMemory)
	}
	if cfg.Admit == nil {
		cfg.Admit = func(string, string) (func(), error) { return func() {}, nil }
	}
	if cfg.Answers == nil {
		cfg.Answers = budget.New(defaultMemory)
	}
	a := &API{cfg: cfg, origins: policy,
		copies: make(chan struct{}, maxCopies), importing: make(chan struct{}, maxImports), streams: make(chan struct{}, maxStreams), requests: make(map[answered]uint64)}
	a.stopping, a.stop = context.WithCancel(context.Background())
	return a, nil
}

// Stop ends what would keep a server from stopping in order: streams, and, with
// CodeShuttingDown, pulls that wait for deliveries and publishes that wait for
// groups, whose events are published. All other requests go on, and those that come
// from then on are refused with the same code. It returns at once, and may be called
// more than once.
func (a *API) Stop() { a.stop() }

// methods are the handlers of one path. HEAD is answered by GET's.
type methods map[string]handler

// resources are the paths of the API.
func (a *API) resources() map[string]methods {
	return map[string]methods{
		"/export":                               {"GET": a.export},
		"/replay":                               {"GET": replay},
		"/v1/backup":                            {"GET": a.backup},
		"/v1/import":                            {"POST": a.importLines},
		"/publish/{topic}":                      {"POST": a.publishOne},
		"/v1/publish":                           {"POST": a.publishBatch},
		"/v1/topics":                            {"GET": listTopics},
		"/v1/topics/{topic}":                    {"GET": showTopic, "PUT": putSettings, "DELETE": deleteTopic},
		"/v1/topics/{topic}/settings":           {"GET": showSettings, "DELETE": deleteSettings},
		"/v1/topics/{topic}/events/{id}":        {"GET": showEvent},
		"/v1/topics/{topic}/events/{id}/groups": {"GET": listEventGroups},
		"/v1/topics/{topic}/groups/{group}":     {"GET": showGroup, "DELETE": deleteGroup},
		"/v1/topics/{topic}/groups/{group}/inflight": {"GET": listInFlight},
		"/v1/topics/{topic}/groups/{group}/seek":     {"POST": seekGroup},
		"/v1/topics/{topic}/groups/{group}/pause":    {"POST": pauseGroup},
		"/v1/topics/{topic}/groups/{group}/resume":   {"POST": resumeGroup},
		"/v1/topics/{topic}/groups/{group}/pull":     {"POST": a.pull},
		"/v1/topics/{topic}/groups/{group}/ack":      {"POST": ack},
		"/v1/topics/{topic}/groups/{group}/nack":     {"POST": nack},
		"/v1/topics/{topic}/groups/{group}/modack":   {"POST": modack},
		"/v1/topics/{topic}/settings/plan":           {"POST": planSettings},
		"/v1/topics/{topic}/trim":                    {"POST": trimTopic},
		"/v1/topics/{topic}/erase":                   {"POST": eraseEvents},
		streamPath:                                   {"GET": a.stream},
		"/v1/topics/{topic}/state":                   {"GET": a.showState},
		"/v1/topics/{topic}/state/{key}":             {"GET": a.showStateKey},
		"/v1/topics/{topic}/state-diff":              {"GET": showStateDiff},
		"/v1/topics/{topic}/state-history":           {"GET": showKeyHistory},
		"/v1/topics/{topic}/scheduled/{id}":          {"DELETE": cancelScheduled},
		"/v1/connections":                            {"GET": listConnections},
		"/v1/connections/{id}":                       {"DELETE": a.closeConnection},
		"/v1/dlq":                                    {"GET": listDeadLetterTopics},
		"/v1/dlq/{topic}":                            {"GET": listDeadLetters},
		"/v1/dlq/{topic}/redrive":                    {"POST": a.redrive},
		"/v1/dlq/{topic}/{offset}":                   {"GET": showDeadLetter},
		"/v1/dlq/{topic}/{offset}/requeue":           {"POST": requeue},
		"/v1/events":                                 {"GET": listEvents},
		"/v1/events/{id}":                            {"GET": findEvent},
		"/v1/events/{id}/trace":                      {"GET": traceEvent},
		"/v1/groups":                                 {"GET": listGroups},
		"/v1/patterns":                               {"GET": listPatterns, "DELETE": deletePattern},
		"/v1/scheduled":                              {"GET": listScheduled},
		"/v1/settings":                               {"GET": listSettings},
	}
}

// Register mounts the routes. It takes every method of all paths under /v1, /publish,
// /replay and /export for itself, so that the mux has nothing to say there; another pattern
// on the same mux must either leave these paths out or be free of a method.
func (a *API) Register(mux *http.ServeMux) {
	for path, m := range a.resources() {
		mux.Handle(path, a.Shared(a.at(path, m)))
	}
	for _, path := range []string{"/v1", "/v1/", "/publish", "/publish/", "/export/", "/replay/"} {
		mux.Handle(path, a.Shared(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			a.refuse(w, path, http.StatusNotFound,
				eventhub.Errorf(eventhub.CodeUnsupportedOp, "there is nothing at %.120q%s", r.URL.Path, a.Hint(r.URL.Path)), nil)
		})))
	}
}

// Shared has pages of allowed origins read the answers of a handler, refusals too. It is for what
// the mux of the API has besides too: a page has to be able to read why it is wrong there.
func (a *API) Shared(serve http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.origins.Share(w, r)
		serve.ServeHTTP(w, r)
	})
}

// Measure returns how many requests each route has answered with which status,
// ordered by both. Requests for what does not exist count under the path that
// they fell to, without a method: nothing that a client makes up becomes a route.
func (a *API) Measure() measure.API {
	a.mu.Lock()
	defer a.mu.Unlock()
	var m measure.API
	for by, count := range a.requests {
		m.Requests = append(m.Requests, measure.Requests{Route: by.route, Status: by.status, Count: count})
	}
	slices.SortFunc(m.Requests, func(x, y measure.Requests) int {
		return cmp.Or(cmp.Compare(x.Route, y.Route), cmp.Compare(x.Status, y.Status))
	})
	return m
}

func (a *API) count(route string, status int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests[answered{route, status}]++
}

// handler serves a request that was let in.
type handler func(w http.ResponseWriter, r *http.Request, access Access) (reply, error)

// at serves one path.
func (a *API) at(path string, m methods) http.HandlerFunc {
	allowed := slices.Sorted(maps.Keys(m))
	if m["GET"] != nil {
		allowed = append(allowed, "HEAD")
	}
	allow := strings.Join(allowed, ", ")
	return func(w http.ResponseWriter, r *http.Request) {
		if origin.IsPreflight(r) && a.origins.Allowed(r) {
			a.count("OPTIONS "+path, http.StatusNoContent)
			a.origins.Preflight(w, r, allow)
			return
		}
		method := r.Method
		if method == http.MethodHead {
			method = http.MethodGet
		}
		serve := m[method]
		if serve == nil {
			w.Header().Set("Allow", allow)
			a.refuse(w, path, http.StatusMethodNotAllowed,
				eventhub.Errorf(eventhub.CodeUnsupportedOp, "%.20q is no method of %s, which has %s", r.Method, path, allow), nil)
			return
		}
		a.answer(w, r, method+" "+path, serve)
	}
}

// answer lets a request in, serves it, and answers with what comes of it.
func (a *API) answer(w http.ResponseWriter, r *http.Request, route string, serve handler) {
	body, page := holding{from: a.cfg.Memory}, holding{from: a.cfg.Answers}
	defer body.giveBack()
	defer page.giveBack()
	answer, err := a.admit(w, r, route, &body, &page, serve)
	if err == nil && r.Method == http.MethodGet {
		err = page.upTo(len(answer.body)) // nothing was done that the client has to know
	}
	if a.stopping.Err() != nil && errors.Is(err, os.ErrDeadlineExceeded) && doneBeside(err) == nil {
		err = errStopping // which cuts bodies
	}
	if err != nil {
		e := problemOf(err)
		if e.Code == eventhub.CodeInternal || e.Code == eventhub.CodePublishFailed {
			a.cfg.Logger.Warn("a request failed on the hub's side", "remote", r.RemoteAddr, "route", route, "error", err)
		}
		a.refuse(w, route, statusFor(err, e.Code), e, doneBeside(err))
		return
	}
	a.count(route, answer.status)
	if answer.sent {
		return
	}
	if answer.body != nil && w.Header().Get("Content-Type") == "" {
		w.Header().Set("Content-Type", "application/json")
	}
	write(w, answer)
}

// refuse answers with a problem; see writeProblem.
func (a *API) refuse(w http.ResponseWriter, route string, status int, e *eventhub.Error, done any) {
	a.count(route, status)
	writeProblem(w, status, e, done)
}

func (a *API) admit(w http.ResponseWriter, r *http.Request, route string, body, page *holding, serve handler) (reply, error) {
	if a.stopping.Err() != nil {
		return reply{}, errStopping
	}
	if !a.origins.Allowed(r) {
		return reply{}, eventhub.Errorf(eventhub.CodeForbidden, "%s", origin.NotAllowed(r))
	}
	if a.cfg.Open && !a.origins.Named(r) {
		return reply{}, eventhub.Errorf(eventhub.CodeForbidden, origin.NotNamed, r.Host)
	}
	r, token, given, err := a.token(r, route)
	var access Access
	if err == nil {
		access, err = a.cfg.Authenticate(caller.With(r.Context(), r.RemoteAddr), token, given)
	}
	if err != nil {
		if a.cfg.Refused != nil {
			a.cfg.Refused(r, err)
		}
		return reply{}, err
	}
	if !access.Expires.IsZero() {
		ctx, cancel := context.WithDeadlineCause(r.Context(), access.Expires, errExpired)
		defer cancel()
		r = r.WithContext(ctx)
	}
	if access.Revoked != nil {
		ctx, cancel := context.WithCancelCause(r.Context())
		defer cancel(nil)
		defer context.AfterFunc(access.Revoked, func() { cancel(errRevoked) })()
		r = r.WithContext(ctx)
	}
	access.body, access.page = body, page
	answer, err := serve(w, r, access)
	return answer, withoutToken(r, err)
}

// reply is an answer, whole: its size is in the header, also for HEAD.
type reply struct {
	status int
	body   []byte // JSON; nil for none
	sent   bool   // the handler has written all of it
}

// write sends an answer. Nothing of the API is kept by anybody on the way: what
// it says changes, and an event may be gone tomorrow.
func write(w http.ResponseWriter, answer reply) {
	w.Header().Set("Cache-Control", "no-store")
	if answer.body != nil {
		w.Header().Set("Content-Length", strconv.Itoa(len(answer.body)))
	}
	w.WriteHeader(answer.status)
	_, _ = w.Write(answer.body) // an error means that the client is gone
}
