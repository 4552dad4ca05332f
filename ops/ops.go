// Package ops is the operations listener of a hub: what monitoring scrapes, what
// probes ask, and what a person looks at first when something is wrong. It owns
//
//   - /metrics: what the rooms of the hub have measured, in Prometheus' words,
//   - /livez, /readyz, /healthz: whether the hub lives and can take work,
//   - /cursors, /lag, /inflight: small views of groups, /latest-by-key and /snapshots of a topic,
//   - /cluster: the hubs that share this one's journal,
//   - /log-level: the level of the running hub's log,
//   - /openapi.json, /asyncapi.json: the documents of package apidoc,
//   - /console/: the page for people, of package ops/console.
//
// It changes nothing but that level, holds no state of the hub and reaches it by
// the root interfaces and by functions that hand out copies of counts. Package
// hub makes it and mounts its routes.
//
// # Invariants
//
//   - One scrape takes one snapshot of each room, so that the figures of a scrape
//     fit together.
//   - The number of series does not grow with the number of topics and groups
//     (capped.go), and a counter never goes back or moves to another series.
//   - Only the health probes, and the files of the console, which have nothing of the hub,
//     answer without asking who asks. Pages of foreign origins get nothing else.
package ops

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"eventhub"
	"eventhub/admin"
	"eventhub/apidoc"
	"eventhub/internal/caller"
	"eventhub/internal/measure"
	"eventhub/internal/origin"
	"eventhub/ops/console"
)

// Bounds of the series, which together are fewer than 7,000.
const (
	// DefaultMaxLabels is how many topics, and how many groups, have series of their
	// own.
	DefaultMaxLabels = 200
	// DefaultMaxHistograms is how many groups have histograms of their own: one has
	// more than fifty series, all else of a group fifteen.
	DefaultMaxHistograms = 20
)

// Config says what to show and to whom. Its functions are called from many
// goroutines at once.
type Config struct {
	// Engine, Gateway and API hand out what each has measured; every scrape calls
	// each once. Where Engine fails, which is logged, its part of the scrape is
	// missing. Required.
	Engine func(ctx context.Context) (measure.Engine, error)
	// Glance is Engine for the console, which asks once a second and waits for no count of dead
	// letters; nil: Engine.
	Glance  func(ctx context.Context) (measure.Engine, error)
	Gateway func() measure.Gateway
	API     func() measure.API
	// Authenticate is asked for every request but the probes, with the bearer
	// token; given distinguishes an empty token from none. A nil error lets the request
	// in; others are shown to the client. Required.
	Authenticate func(ctx context.Context, token string, given bool) (Access, error)
	// Refused, where not nil, is called for each request that Authenticate, or a header that
	// has no token, keeps out: with the address that it comes from, and why.
	Refused func(r *http.Request, err error)
	// AuthRefused hands out how many peers were refused, at all doors; nil: nobody was.
	AuthRefused func() []measure.AuthRefused
	// AuditLost hands out how many entries of the audit system.audit did not get; nil: none.
	AuditLost func() uint64
	// Strangers hands out how many connections there are, at all doors, that have shown no right,
	// and how many of them gave way to others so far; nil: nobody counts them.
	Strangers func() (now int, evicted uint64)
	// Pressure hands out how much memory the hub may have and has in use, in bytes, and how much waits to be published, in
	// percent of what may; nil: nobody knows.
	Pressure func() (limit, used int64, load int)
	// Sources hands out how reading tokens, keys and certificates again went; nil: there are none.
	Sources func() []measure.Source
	// Limits hands out the limits of publishes; nil: there are none.
	Limits func() []measure.Limit
	// Open says that Authenticate lets in whoever comes. Requests over loopback
	// then have to call the hub by a name that is its own; see origin.Policy.Named.
	Open bool
	// Origins are the web origins whose pages may look, besides those of the
	// hub's own host and of loopback; see package origin.
	Origins []string
	// Ready says what must be well for the hub to take work. The checks are made
	// in this order for every probe and every scrape, so they are to be cheap.
	Ready []Check
	// Standby says what must be well for the hub to be a standby that can take over; nil where it
	// shares no journal.
	Standby []Check
	// Cluster hands out how the hubs are doing that share this one's journal, also while Closed; it, or
	// what it returns, is nil where this hub shares none.
	Cluster func() *measure.Cluster
	// Closed, where not nil, reports whether the rooms above are not open yet, or not any
	// more. They are not asked then: views are refused, and a scrape has only what is
	// known without them.
	Closed func() bool
	// WhyClosed, where not nil, returns the error with which what needs the rooms is refused while they are closed:
	// that of a hub which does not lead. Default: CodeOverloaded, for they open soon.
	WhyClosed func() error
	// Level is the level of the hub's log. Without one there is no /log-level.
	Level *slog.LevelVar
	// NoConsole leaves out all below /console/.
	NoConsole bool
	// Version of the hub, for eventhub_build_info.
	Version string
	// MaxLabels bounds how many topics have series of their own, and how many
	// groups in a topic have. Default DefaultMaxLabels.
	MaxLabels int
	// MaxHistograms bounds how many groups in a topic have histograms of their own.
	// Default DefaultMaxHistograms.
	MaxHistograms int
	Logger        *slog.Logger // default: discard
}

// Access is what an authenticated request may see.
type Access struct {
	// Inspector answers the views; nil while the rooms of the hub are closed.
	Inspector admin.Inspector
	// History answers /latest-by-key; nil where Inspector is.
	History admin.History
	// Tailer has live tails, and Connections those who are connected, for the console; nil where Inspector is.
	Tailer      console.Tailer
	Connections admin.Connections
	// Shows returns which topics metrics are shown of, nil for all, or why there are none at
	// all; a nil Shows shows all.
	Shows func() (topic func(name string) bool, err error)
	// Operates returns why the request may not see or change what concerns the hub itself; a
	// nil Operates, or nil, that it may.
	Operates func() error
	// LevelSet, where not nil, is called when the request has set the level of the log.
	LevelSet func()
	// Name says who asks; no secret. May says what is allowed on a topic, "" for the hub as a whole;
	// nil: everything.
	Name string
	May  func(topic string) console.Permitted
	// Expires is when an answer that goes on ends, zero: never. Revoked ends when the access is taken
	// back before that; nil: never.
	Expires time.Time
	Revoked context.Context
}

// Check is one condition of readiness.
type Check struct {
	// Name is shown to whoever asks: one word.
	Name string
	// Check returns nil when all is well. The message of an eventhub.Error is
	// shown to whoever asks, other errors to the log alone. It is given 5 seconds.
	Check func(ctx context.Context) error
}

// Ops is the operations listener. It is safe for concurrent use and has no
// goroutines of its own.
type Ops struct {
	cfg     Config
	origins *origin.Policy
	metrics http.Handler
	scrapes *prometheus.Registry
	parts   chan struct{} // holds a token for each scrape of a part of the metrics
	console *console.Console

	mu     sync.Mutex
	failed map[string]bool // the last outcome of each check, to log changes
}

// New returns the listener's routes, or everything that is wrong with the
// configuration.
func New(cfg Config) (*Ops, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Closed == nil {
		cfg.Closed = func() bool { return false }
	}
	if cfg.WhyClosed == nil {
		cfg.WhyClosed = func() error {
			return eventhub.Errorf(eventhub.CodeOverloaded, "the hub's store is not open; ask again when /readyz is ok")
		}
	}
	if cfg.Cluster == nil {
		cfg.Cluster = func() *measure.Cluster { return nil }
	}
	if cfg.MaxLabels == 0 {
		cfg.MaxLabels = DefaultMaxLabels
	}
	if cfg.MaxHistograms == 0 {
		cfg.MaxHistograms = DefaultMaxHistograms
	}
	policy, err := origin.New(cfg.Origins)
	if err := errors.Join(cfg.validate(), err); err != nil {
		return nil, fmt.Errorf("ops: configuration: %w", err)
	}
	o := &Ops{cfg: cfg, origins: policy, failed: make(map[string]bool), parts: make(chan struct{}, maxScrapes)}
	if o.scrapes, o.metrics, err = o.metricsHandler(); err != nil {
		return nil, err
	}
	if o.console, err = o.newConsole(); err != nil {
		return nil, fmt.Errorf("ops: %w", err)
	}
	return o, nil
}

// Stop ends the answers that go on, which are those to open pages of the console. It returns at
// once, and may be called more than once.
func (o *Ops) Stop() { o.console.Stop() }

// Registerer takes metrics of others, which are then on /metrics too.
func (o *Ops) Registerer() prometheus.Registerer { return o.scrapes }

// validate names everything that is wrong at once.
func (c *Config) validate() error {
	var errs []error
	for _, f := range []struct {
		name    string
		missing bool
	}{
		{"Engine", c.Engine == nil},
		{"Gateway", c.Gateway == nil},
		{"API", c.API == nil},
		{"Authenticate", c.Authenticate == nil},
	} {
		if f.missing {
			errs = append(errs, fmt.Errorf("field %s is missing", f.name))
		}
	}
	if c.MaxLabels < 0 {
		errs = append(errs, fmt.Errorf("field MaxLabels is %d; it can not be negative", c.MaxLabels))
	}
	if c.MaxHistograms < 0 {
		errs = append(errs, fmt.Errorf("field MaxHistograms is %d; it can not be negative", c.MaxHistograms))
	}
	seen := make(map[string]bool)
	for i, check := range c.Ready {
		if check.Name == "" || check.Check == nil || seen[check.Name] {
			errs = append(errs, fmt.Errorf("field Ready[%d] %q: want a name of its own and a check", i, check.Name))
		}
		seen[check.Name] = true
	}
	return errors.Join(errs...)
}

// routes are what the listener answers, by method and path.
func (o *Ops) routes() map[string]http.HandlerFunc {
	routes := map[string]http.HandlerFunc{
		"GET /livez":         o.livez,
		"GET /readyz":        o.readyz,
		"GET /healthz":       o.readyz,
		"GET /metrics":       o.guard(o.showMetrics),
		"GET /cursors":       o.guard(o.opened(o.cursors)),
		"GET /lag":           o.guard(o.opened(o.lag)),
		"GET /inflight":      o.guard(o.opened(o.inFlight)),
		"GET /latest-by-key": o.guard(o.opened(o.latestByKey)),
		"GET /snapshots":     o.guard(o.opened(o.snapshots)),
		"GET /cluster":       o.guard(operator(o.cluster)),
		"GET /openapi.json":  o.guard(document(apidoc.OpenAPI)),
		"GET /asyncapi.json": o.guard(document(apidoc.AsyncAPI)),
	}
	if o.cfg.Level != nil {
		routes["GET /log-level"] = o.guard(operator(o.showLevel))
		routes["PUT /log-level"] = o.guard(operator(o.setLevel))
	}
	return routes
}

// Routes returns the methods and paths that there are, such as "GET /lag", in order.
// HEAD, which goes with each GET, is not among them.
func (o *Ops) Routes() []string { return slices.Sorted(maps.Keys(o.routes())) }

// Register mounts the routes, and all below /console/, which is for the page alone and changes with
// it.
func (o *Ops) Register(mux *http.ServeMux) {
	for pattern, serve := range o.routes() {
		mux.HandleFunc(pattern, serve)
	}
	if !o.cfg.NoConsole {
		o.console.Register(mux)
	}
}

// handler serves a request that was let in. What it returns as an error is
// answered as a problem; otherwise it has answered.
type handler func(w http.ResponseWriter, r *http.Request, access Access) error

// guard lets requests in and answers errors. No answer, except the
// documents, is to be kept by caches: it has changed a moment later.
func (o *Ops) guard(serve handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		access, err := o.admit(r)
		if err == nil {
			err = serve(w, r, access)
		}
		if err == nil {
			return
		}
		if eventhub.ErrorCode(err) == eventhub.CodeInternal {
			o.cfg.Logger.Warn("a request failed on the hub's side", "remote", r.RemoteAddr, "route", r.Pattern, "error", err)
		}
		refuse(w, err)
	}
}

// opened refuses what needs rooms that are closed.
func (o *Ops) opened(serve handler) handler {
	return func(w http.ResponseWriter, r *http.Request, access Access) error {
		if o.cfg.Closed() || access.Inspector == nil {
			return o.cfg.WhyClosed()
		}
		return serve(w, r, access)
	}
}

// operator refuses what concerns the hub itself to those who have not the right.
func operator(serve handler) handler {
	return func(w http.ResponseWriter, r *http.Request, access Access) error {
		if access.Operates != nil {
			if err := access.Operates(); err != nil {
				return err
			}
		}
		return serve(w, r, access)
	}
}

func (o *Ops) admit(r *http.Request) (access Access, err error) {
	if !o.origins.Allowed(r) {
		return access, eventhub.Errorf(eventhub.CodeForbidden, "%s", origin.NotAllowed(r))
	}
	if o.cfg.Open && !o.origins.Named(r) {
		return access, eventhub.Errorf(eventhub.CodeForbidden, origin.NotNamed, r.Host)
	}
	token, given, err := bearer(r)
	if err == nil {
		access, err = o.cfg.Authenticate(caller.With(r.Context(), r.RemoteAddr), token, given)
	}
	if err != nil && o.cfg.Refused != nil {
		o.cfg.Refused(r, err)
	}
	return access, err
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
