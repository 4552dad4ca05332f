// Package console is the web console of a hub: the page that people open to see what
// holds a group up, and to move it on. It has
//
//   - the files of the page, which are part of the binary (Files),
//   - the live stream of the page, /console/live: once a second what the hub is doing, what
//     is wrong now, worst first, and what the open page shows in detail (Live),
//   - what the token of the page allows, /console/rights, so that a button that would be
//     refused is not there (Rights),
//   - the topics as a window, /console/topics: those in sight of all that a search finds,
//   - the events of a topic as lines, /console/events: a page of them at a time, of which each has
//     the beginning of its payload alone, from any place and also backwards.
//
// Everything else that the page shows or does goes through the HTTP API, which package hub
// has at /console/api/ too, so that the page talks to one origin.
//
// # Invariants
//
//   - The files are the same for everybody and have no secret. The page may load nothing but
//     these files and call nothing but its own origin (Policy); it keeps the token in memory.
//   - What Live and Rights say is for whoever was let in, and of topics that they may see.
//   - A page that is closed costs nothing: the hub is measured by the streams that are open,
//     all of them together at most once a second. No goroutine outlives its request.
//   - A stream sends a message a second, of at most MaxMessage bytes, however many topics and
//     groups there are. Lists are windows: the hub sorts and cuts them.
//   - Text of events and clients is data. Nothing here or in the page makes markup of it.
package console

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/measure"
)

const (
	// Tick is the time between two messages of a stream.
	Tick = time.Second
	// MaxMessage bounds a message of a stream, in bytes.
	MaxMessage = 64 << 10
	// MaxStreams is how many pages are served at a time.
	MaxStreams = 64
	// patience bounds what one measurement may take.
	patience = 5 * time.Second
)

// Access is what whoever was let in may see. The functions may be called from one goroutine at a
// time.
type Access struct {
	// Name says who it is; no secret.
	Name string
	// Inspector shows the groups and topics that the access allows; nil while the store is closed.
	Inspector admin.Inspector
	// History has the events that the access allows; nil where Inspector is.
	History admin.History
	// Tailer has the live tails that the access allows; nil where Inspector is.
	Tailer Tailer
	// Connections shows who is connected, to those who may see that; nil where Inspector is, or the
	// hub does not show them.
	Connections admin.Connections
	// Shows reports whether a topic is shown; nil: all are.
	Shows func(topic string) bool
	// May says what is allowed on a topic; "" asks for the hub as a whole. nil: everything.
	May func(topic string) Permitted
	// Expires is when the access ends; zero: never. Revoked ends when it is taken back before that;
	// nil: never.
	Expires time.Time
	Revoked context.Context
}

// Tailer is the part of an eventhub.Subscriber that a live tail needs.
type Tailer interface {
	Tail(ctx context.Context, opts eventhub.TailOptions, r eventhub.Receiver) (eventhub.Subscription, error)
}

// Permitted says what is allowed on a topic, or on all of them.
type Permitted struct {
	Publish   bool `json:"publish"`
	Subscribe bool `json:"subscribe"` // as a live tail
	Read      bool `json:"read"`
	Admin     bool `json:"admin"`
}

// Check is the outcome of one check of readiness; Error is empty where all is well.
type Check struct {
	Name  string `json:"name"`
	Error string `json:"error,omitempty"`
}

// Config says what the console shows. Its functions are called from many goroutines at once.
type Config struct {
	// Engine and Gateway hand out what these have measured, as they do for metrics. Required.
	Engine  func(ctx context.Context) (measure.Engine, error)
	Gateway func() measure.Gateway
	// Closed reports whether the rooms above are closed: then they are not asked. Required.
	Closed func() bool
	// WhyClosed returns the error with which what needs the rooms is refused while they are closed. Required.
	WhyClosed func() error
	// Ready makes the checks of readiness. Required.
	Ready func(ctx context.Context) []Check
	// Cluster hands out how the hubs are doing that share a journal; it, or what it returns, is nil
	// where there is no journal.
	Cluster func() *measure.Cluster
	// Sources hands out how reading tokens, keys and certificates again went; nil: there are none.
	Sources func() []measure.Source
	// Admit lets a request in, or returns why not; Refuse answers it with that error. Required.
	Admit  func(r *http.Request) (Access, error)
	Refuse func(w http.ResponseWriter, err error)
	// Version is that of the hub.
	Version string
	Logger  *slog.Logger // default: discard
}

// Console is the console. It is safe for concurrent use and has no goroutines of its own.
type Console struct {
	cfg     Config
	sampler sampler
	names   nameList
	streams chan struct{} // holds a token for each stream
	began   time.Time

	stopping context.Context
	stop     context.CancelFunc
}

// New returns the console, or what is missing in its configuration.
func New(cfg Config) (*Console, error) {
	for name, missing := range map[string]bool{
		"Engine": cfg.Engine == nil, "Gateway": cfg.Gateway == nil, "Closed": cfg.Closed == nil, "WhyClosed": cfg.WhyClosed == nil,
		"Ready": cfg.Ready == nil, "Admit": cfg.Admit == nil, "Refuse": cfg.Refuse == nil,
	} {
		if missing {
			return nil, fmt.Errorf("console: configuration: field %s is missing", name)
		}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if files.err != nil {
		return nil, errors.Join(errors.New("console: the files of the page"), files.err)
	}
	c := &Console{cfg: cfg, streams: make(chan struct{}, MaxStreams), began: time.Now()}
	c.sampler.measure = c.measure
	c.stopping, c.stop = context.WithCancel(context.Background())
	return c, nil
}

// Stop ends all streams, which the hub calls when it stops. It returns at once, and may be called
// more than once; streams that come from then on end after their first message.
func (c *Console) Stop() { c.stop() }

// Register mounts the page below /console/. The path / is for the caller to mount, with Index.
func (c *Console) Register(mux *http.ServeMux) {
	mux.HandleFunc("GET /console/live", c.live)
	mux.HandleFunc("GET /console/rights", c.rights)
	mux.HandleFunc("GET /console/topics", c.topics)
	mux.HandleFunc("GET /console/events", c.events)
	mux.HandleFunc("/console/", c.files)
}
