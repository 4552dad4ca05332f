// Package hub makes a running hub out of a configuration. It is the only room
// that wires: it opens the store, starts the engine over it, puts the gateways
// before the engine and opens the listeners; and it takes all of that down in
// the opposite order, so that what was acknowledged is on disk when it is done.
// The command and end-to-end tests use it alike.
package hub

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"eventhub"
	"eventhub/auth"
	"eventhub/auth/audit"
	"eventhub/auth/limits"
	"eventhub/bus"
	"eventhub/gateway/rest"
	"eventhub/gateway/ws"
	"eventhub/internal/budget"
	"eventhub/internal/livefile"
	"eventhub/internal/measure"
	"eventhub/ops"
	"eventhub/store"
	"eventhub/store/memory"
	"eventhub/store/pebble"
	"eventhub/wire"
)

// Hub is a running hub.
type Hub struct {
	cfg      Config
	log      *slog.Logger
	store    store.Store
	bus      *bus.Bus
	gateway  *ws.Gateway
	api      *rest.API
	verifier *auth.Kinds
	refusals *auth.Refusals
	audit    *audit.Log

	cert    *certificate      // nil: no listener speaks TLS
	outbox  *outboxDrain      // nil: there is none
	cluster *cluster          // nil: the hub shares no journal
	limits  *limits.Limits    // nil: there is no file of them
	files   []*livefile.Files // that are read again, but those of auth
	endTask context.CancelFunc
	tasks   sync.WaitGroup // end with endTask

	operations *ops.Ops
	watched    *http.ServeMux // what the operations listener answers, the page at / apart
	// consoleAPI is the HTTP API for the console, once it is open; consoleCalls is held by its requests.
	consoleAPI   atomic.Pointer[http.Handler]
	consoleCalls sync.RWMutex

	doors  []*door // one for each distinct address, in the order of listen
	guests *strangers

	pressure  *pressure
	opened    atomic.Bool
	suspended atomic.Pointer[time.Time] // since when; nil where the hub serves whoever comes
	serving   sync.WaitGroup

	stopping atomic.Bool
	failed   chan error            // the first reason for which the hub can not go on
	broken   atomic.Pointer[error] // the same

	storeLost     chan struct{} // closed when the store is broken
	loseStoreOnce sync.Once
}

// Start opens everything and serves. On an error nothing is left running or
// open. The hub runs until Stop; Failed reports that it cannot go on by itself.
func Start(cfg Config) (*Hub, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	h := &Hub{cfg: cfg, log: cfg.Logger, failed: make(chan error, 1), storeLost: make(chan struct{}), refusals: auth.NewRefusals(cfg.Logger, transportWS, transportHTTP, transportOps), audit: audit.New(cfg.Logger)}
	h.guests, h.pressure = newStrangers(cfg.MaxUnauthenticated), newPressure(int64(cfg.MemoryLimit)<<20)
	if cfg.shares() {
		h.cluster = newCluster()
	}
	var running context.Context
	running, h.endTask = context.WithCancel(context.Background())
	// Listeners first: a port in use is found before a store is touched, and opening a
	// store, which may take its time after a crash, can be watched.
	err := h.openFiles(running)
	if err == nil {
		err = h.listen()
	}
	if err == nil {
		h.verifier, err = auth.New(context.Background(), cfg.auth())
		if _, ok := errors.AsType[*auth.KeysError](err); ok {
			err = fmt.Errorf("%w%s", err, cfg.from("jwt_jwks_url"))
		}
	}
	if err == nil {
		err = h.watch()
	}
	switch {
	case err != nil:
	case h.cluster != nil:
		err = h.join(running)
	default:
		if err = h.open(); err == nil {
			err = h.openOutbox()
		}
	}
	if err != nil {
		return nil, errors.Join(err, h.abandon())
	}
	h.serve()
	return h, nil
}

// watch mounts the operations listener. Where it has an address of its own it is served
// from here to the end of Stop: somebody should see that the hub is not ready.
func (h *Hub) watch() error {
	operations, err := ops.New(ops.Config{
		Engine:       func(ctx context.Context) (measure.Engine, error) { return h.bus.Measure(ctx) },
		Glance:       func(ctx context.Context) (measure.Engine, error) { return h.bus.Glance(ctx, glanceLetters) },
		Gateway:      func() measure.Gateway { return h.gateway.Measure() },
		API:          func() measure.API { return h.api.Measure() },
		Closed:       func() bool { return !h.opened.Load() },
		WhyClosed:    h.notOpen,
		Authenticate: h.opsAccess,
		Refused:      h.refusedRequest(transportOps),
		AuthRefused:  h.refusals.Measure,
		AuditLost:    h.audit.Measure,
		Strangers:    h.guests.measure,
		Pressure:     h.pressure.measure,
		Sources:      h.sources,
		Limits:       h.measureLimits,
		Open:         !h.cfg.authenticates(),
		Origins:      h.cfg.Origins,
		Ready:        []ops.Check{{Name: "serving", Check: h.notStopping}, {Name: "store", Check: h.storeIsOpen}},
		Standby:      h.standbyChecks(),
		Cluster:      h.measureCluster,
		Level:        h.cfg.LogLevel,
		NoConsole:    h.cfg.Console == ConsoleOff,
		MaxLabels:    h.cfg.MetricsLabels, MaxHistograms: h.cfg.MetricsHistograms,
		Version: h.cfg.Version,
		Logger:  h.log,
	})
	if err != nil {
		return err
	}
	d := h.door(h.cfg.OpsAddr)
	h.operations, h.watched = operations, http.NewServeMux()
	for _, mux := range []*http.ServeMux{d.mux, h.watched} {
		operations.Register(mux)
		h.mountConsoleAPI(mux)
	}
	h.mountConsole(d)
	if h.isApart(d) {
		h.mountUnrouted(d, h.operationsHint(operations.Routes()))
		d.route(func(handler http.Handler) http.Handler { return handler })
		h.serveAt(d)
	}
	return nil
}

// isApart reports whether a door is that of the operations listener alone.
func (h *Hub) isApart(d *door) bool {
	return d.addr == h.cfg.OpsAddr && d.addr != h.cfg.WSAddr && d.addr != h.cfg.HTTPAddr
}

// open makes the store, the engine and the gateways, and mounts their routes.
func (h *Hub) open() error {
	var err error
	if h.cluster != nil {
		h.store = h.cluster.store
		if s := h.cluster.projected; s != nil {
			h.store = s
		}
	} else if h.store, err = h.openStore(); err != nil {
		return fmt.Errorf("%w%s", err, h.cfg.from("store"))
	}
	topics, err := h.cfg.topics()
	if err != nil {
		return err // the file has changed since it was checked
	}
	shares := h.cfg.memoryShares()
	if h.bus, err = bus.New(bus.Options{
		TailCacheBytes: shares.tail, QueueBytes: shares.queue, GroupBytes: shares.groups,
		Store: h.store, NoMaintenance: h.cfg.Maintenance == MaintenanceOff, CompactEvery: h.cfg.CompactEvery, Topics: topics,
		MaxProducers: h.cfg.MaxProducers, ProducersKept: h.cfg.ProducersKept,
		SyncEvery: h.syncEvery(), MostWait: h.cfg.MaxPublishWait, Logger: h.log, Fatal: h.loseStore, Answer: h.succeededAnswer(), NoRoom: h.journalRoom(),
	}); err != nil {
		return err
	}
	h.pressure.of(h.bus.Load)
	h.audit.Open(h.bus.Note)
	memory := budget.New(shares.messages)
	h.gateway, err = ws.New(ws.Config{
		Authenticate: h.wsAccess,
		Refused:      h.refused(transportWS),
		Info: wire.AuthInfo{
			Hub: "eventhub", Version: h.cfg.Version, Durability: h.durability(),
			Limits: wire.Limits{MaxFrameBytes: wire.MaxFrameBytes, MaxPayloadBytes: eventhub.MaxPayloadBytes},
		},
		Origins: h.cfg.Origins,
		Admit:   h.admit,
		Welcome: h.pressure.stranger,
		Busy:    h.pressure.busy,
		Tight:   h.pressure.tight,
		Away:    h.away,
		AuthBy:  authBy,
		Meter:   h.meter,
		Memory:  memory,
		Logger:  h.log,
	})
	if err != nil {
		return err
	}
	h.api, err = rest.New(rest.Config{
		Authenticate: h.restAccess,
		Refused:      h.refusedRequest(transportHTTP),
		Admit:        h.admitStream(),
		Open:         !h.cfg.authenticates(),
		QueryToken:   h.cfg.AuthQueryToken,
		Origins:      h.cfg.Origins,
		Scratch:      h.scratch(),
		Memory:       memory,
		Answers:      budget.New(shares.messages),
		Logger:       h.log,
	})
	if err != nil {
		return err
	}
	for i, addr := range []string{h.cfg.WSAddr, h.cfg.HTTPAddr} {
		if i == 1 && addr == h.cfg.WSAddr {
			break // one listener for both
		}
		d := h.door(addr)
		d.shared = h.api.Shared
		d.mux.Handle("GET /{$}", d.shared(h.gateway))
		d.mux.Handle("GET /ws", d.shared(h.gateway))
		h.api.Register(d.mux)
		h.mountUnrouted(d, h.apiHint)
	}
	h.openConsoleAPI()
	h.opened.Store(true)
	return nil
}

// openFiles reads the certificate and the limits, and has them read again until running ends.
func (h *Hub) openFiles(running context.Context) error {
	if h.cert = h.cfg.certificate(h.log); h.cert != nil {
		h.files = append(h.files, h.cert.files)
	}
	bounds := limits.New()
	if f := h.cfg.limitsFile(bounds, h.log); f != nil {
		h.limits, h.files = bounds, append(h.files, f)
	}
	for _, f := range h.files {
		if err := f.Open(); err != nil {
			return err // it has changed since it was checked
		}
		h.tasks.Go(func() { f.Run(running) })
	}
	return nil
}

// sources returns how reading again went of everything that is read again.
func (h *Hub) sources() []measure.Source {
	sources := h.verifier.Measure()
	for _, f := range h.files {
		if h.cert != nil && f == h.cert.files {
			sources = append(sources, h.cert.measure())
		} else {
			sources = append(sources, f.Measure())
		}
	}
	return sources
}

// measureLimits returns the limits, and how often they have refused something.
func (h *Hub) measureLimits() []measure.Limit {
	if h.limits == nil {
		return nil
	}
	return h.limits.Measure()
}

// closeAuth ends what keeps tokens, keys and certificate fresh, and the log of refusals.
func (h *Hub) closeAuth() {
	h.endTask()
	h.tasks.Wait()
	if h.verifier != nil {
		h.verifier.Close()
	}
	h.refusals.Close()
}

// The conditions of readiness.

func (h *Hub) notStopping(context.Context) error {
	if h.stopping.Load() {
		return eventhub.Errorf(eventhub.CodeShuttingDown, "the hub is stopping")
	}
	return nil
}

func (h *Hub) storeIsOpen(context.Context) error {
	if !h.opened.Load() {
		if c := h.cluster; c != nil {
			if err := c.leads(); err != nil {
				return err
			}
		}
		return eventhub.Errorf(eventhub.CodeOverloaded, "the store is not open")
	}
	if cause := h.broken.Load(); cause != nil {
		return h.brokenBy(*cause)
	}
	if err := h.suspendedFor(); err != nil {
		return err
	}
	return nil
}

func (h *Hub) openStore() (store.Store, error) {
	if h.cfg.OpenStore != nil {
		return h.cfg.OpenStore(h.loseStore)
	}
	if h.cfg.Store == MemoryStore {
		return memory.Open(memory.Options{MaxTopics: h.cfg.MaxTopics}), nil
	}
	if h.cfg.Journal == JournalNone {
		if err := pebble.Detach(h.storeOptions()); err != nil && !errors.Is(err, pebble.ErrAlone) {
			return nil, err
		}
	}
	s, err := pebble.Open(h.storeOptions())
	if err != nil {
		return nil, err // and not a nil *pebble.Store in a store.Store
	}
	return s, nil
}

// durability is what an OK means, as reported to clients.
func (h *Hub) durability() string {
	if h.cluster != nil {
		return string(h.cluster.seat.Load().durability)
	}
	kept := h.store.Capabilities().Durability
	if kept == store.DurabilitySync {
		return h.cfg.Durability
	}
	return kept
}

// syncEvery is the bus's option.
func (h *Hub) syncEvery() time.Duration {
	if h.durability() == DurabilityInterval {
		return SyncEvery
	}
	return 0
}

// scratch is where the copies are made that are sent as backups: in the directory of
// the store, for there, and perhaps nowhere else, a copy needs no room for what both
// have in common.
func (h *Hub) scratch() string {
	if h.cfg.OpenStore != nil || h.cfg.Store == MemoryStore {
		return ""
	}
	return filepath.Join(h.cfg.Store, "scratch")
}

// glanceLetters is how long the console waits each second for dead letters to be counted.
const glanceLetters = 200 * time.Millisecond

// The transports, as the log, the metrics and the audit name them.
const (
	transportWS   = "ws"
	transportHTTP = "http"
	transportOps  = "ops"
)

// refused returns what counts and notes the peers that one transport refuses.
func (h *Hub) refused(transport string) func(remote string, err error) {
	return func(remote string, err error) {
		h.refusals.Add(transport, remote, err)
		h.audit.Refused(transport, remote, err)
	}
}

// refusedRequest is refused for requests of a transport, and ends the connection of one that is refused, unless that has shown
// a right before.
func (h *Hub) refusedRequest(transport string) func(r *http.Request, err error) {
	note := h.refused(transport)
	return func(r *http.Request, err error) {
		if c, ok := r.Context().Value(connKey{}).(*conn); ok {
			c.refuse()
		}
		note(r.RemoteAddr, err)
	}
}

// listen opens one listener for each distinct address.
func (h *Hub) listen() error {
	for _, at := range []struct{ name, addr string }{{"ws", h.cfg.WSAddr}, {"http", h.cfg.HTTPAddr}, {"ops", h.cfg.OpsAddr}} {
		if h.door(at.addr) != nil {
			continue
		}
		d, err := newDoor(at.addr, h.cfg.Listen, h.guests)
		if err != nil {
			return fmt.Errorf("%w%s", err, h.cfg.from(at.name))
		}
		d.proxies, _ = newProxies(h.cfg.TrustedProxies) // it was checked
		if h.cfg.TLSAt(at.addr) {
			d.tls = h.cert.config()
		}
		h.doors = append(h.doors, d)
	}
	return nil
}

// door returns the door of a configured address, or nil.
func (h *Hub) door(addr string) *door {
	for _, d := range h.doors {
		if d.addr == addr {
			return d
		}
	}
	return nil
}

// serve starts one server for each door.
func (h *Hub) serve() {
	if h.cluster == nil {
		h.route()
	}
	for _, d := range h.doors {
		if !h.isApart(d) {
			if h.cluster != nil {
				d.standby = h.standby(d)
			}
			h.serveAt(d)
		}
	}
	if h.cluster != nil {
		h.log.Info("hub follows its journal", "ws", h.WSAddr(), "http", h.HTTPAddr(), "ops", h.OpsAddr(), "store", h.cfg.Store,
			"member", h.cfg.MemberID, "lease", h.cfg.Lease, "version", h.cfg.Version, h.settings())
		h.follow()
		return
	}
	if h.cfg.Maintenance == MaintenanceOff {
		h.log.Warn("maintenance is off: what settings do not keep stays, and the disk gets nothing back")
	}
	h.log.Info("hub is up", "ws", h.WSAddr(), "http", h.HTTPAddr(), "ops", h.OpsAddr(), "store", h.cfg.Store,
		"durability", h.durability(), "version", h.cfg.Version, h.settings())
	h.drainOutbox()
}

// route opens the routes of all doors.
func (h *Hub) route() {
	for _, d := range h.doors {
		if !h.isApart(d) {
			d.route(func(handler http.Handler) http.Handler {
				if h.cluster == nil {
					return handler
				}
				return h.unlessSuspended(d, handler)
			})
		}
	}
}

// settings is the attribute of the log that says where the settings came from, empty where
// nobody knows.
func (h *Hub) settings() slog.Attr {
	if h.cfg.Sources == nil {
		return slog.Attr{}
	}
	return slog.String("settings", h.cfg.settings())
}

func (h *Hub) serveAt(d *door) {
	d.open(h.log)
	h.serving.Go(func() {
		if err := d.serve(); !h.stopping.Load() {
			h.fail(fmt.Errorf("listener %s: %w", d.listener.Addr(), err))
		}
	})
}

// fail notes the first reason why the hub can not go on.
func (h *Hub) fail(err error) {
	h.broken.CompareAndSwap(nil, &err)
	select {
	case h.failed <- err:
	default:
	}
}

// loseStore notes that the store is broken.
func (h *Hub) loseStore(err error) {
	h.fail(err)
	h.loseStoreOnce.Do(func() { close(h.storeLost) })
}

// Failed delivers the reason when the hub can not go on: its store broke or a
// listener died. The process should then end; nothing is acknowledged any more.
func (h *Hub) Failed() <-chan error { return h.failed }

// WSAddr, HTTPAddr and OpsAddr are the addresses really listened on.
func (h *Hub) WSAddr() string   { return h.door(h.cfg.WSAddr).listener.Addr().String() }
func (h *Hub) HTTPAddr() string { return h.door(h.cfg.HTTPAddr).listener.Addr().String() }
func (h *Hub) OpsAddr() string  { return h.door(h.cfg.OpsAddr).listener.Addr().String() }

// Bus is the engine, for programs that live in the hub's process.
func (h *Hub) Bus() *bus.Bus { return h.bus }
