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
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"eventhub"
	"eventhub/auth"
	"eventhub/bus"
	"eventhub/gateway/ws"
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
	verifier auth.Verifier

	listeners []net.Listener
	servers   []*http.Server
	serving   sync.WaitGroup
	wsAddr    string
	opsAddr   string

	stopping atomic.Bool
	failed   chan error // the first reason for which the hub can not go on
}

// Start opens everything and serves. On an error nothing is left running or
// open. The hub runs until Stop; Failed tells if it can not go on by itself.
func Start(cfg Config) (*Hub, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	h := &Hub{cfg: cfg, log: cfg.Logger, failed: make(chan error, 1), verifier: auth.Open()}
	if cfg.AuthToken != "" {
		h.verifier = auth.Static(cfg.AuthToken)
	}
	// Listeners first: a port in use is found before a store is touched.
	muxes, err := h.listen()
	if err == nil {
		err = h.open(muxes)
	}
	if err != nil {
		return nil, errors.Join(err, h.abandon())
	}
	h.serve(muxes)
	return h, nil
}

// open makes the store, the engine and the gateways, and mounts their routes.
func (h *Hub) open(muxes map[string]*http.ServeMux) error {
	var err error
	if h.store, err = h.openStore(); err != nil {
		return err
	}
	if h.bus, err = bus.New(bus.Options{Store: h.store, Logger: h.log, Fatal: h.fail}); err != nil {
		return err
	}
	h.gateway, err = ws.New(ws.Config{
		Authenticate: h.authenticate,
		Info: wire.AuthInfo{
			Hub: "eventhub", Version: h.cfg.Version, Durability: h.store.Capabilities().Durability,
			Limits: wire.Limits{MaxFrameBytes: wire.MaxFrameBytes, MaxPayloadBytes: eventhub.MaxPayloadBytes},
		},
		Origins: h.cfg.Origins,
		Logger:  h.log,
	})
	if err != nil {
		return err
	}
	wsMux, opsMux := muxes[h.cfg.WSAddr], muxes[h.cfg.OpsAddr]
	wsMux.Handle("/{$}", h.gateway)
	wsMux.Handle("/ws", h.gateway)
	opsMux.HandleFunc("GET /livez", h.livez)
	opsMux.HandleFunc("GET /readyz", h.readyz)
	opsMux.HandleFunc("GET /healthz", h.readyz)
	return nil
}

func (h *Hub) openStore() (store.Store, error) {
	if h.cfg.Store == MemoryStore {
		return memory.Open(memory.Options{MaxTopics: h.cfg.MaxTopics}), nil
	}
	s, err := pebble.Open(pebble.Options{Dir: h.cfg.Store, MaxTopics: h.cfg.MaxTopics, Logger: h.log, Fatal: h.fail})
	if err != nil {
		return nil, err // and not a nil *pebble.Store in a store.Store
	}
	return s, nil
}

// authenticate is the gateways' door to auth.
func (h *Hub) authenticate(ctx context.Context, token string, given bool) (ws.Access, error) {
	p, err := h.verifier.Verify(ctx, token, given)
	if err != nil {
		return ws.Access{}, err
	}
	return ws.Access{Publisher: h.bus, Subscriber: h.bus, Name: p.Name}, nil
}

// listen opens one listener for each distinct address.
func (h *Hub) listen() (map[string]*http.ServeMux, error) {
	muxes := make(map[string]*http.ServeMux)
	for _, addr := range []string{h.cfg.WSAddr, h.cfg.OpsAddr} {
		if muxes[addr] != nil {
			continue
		}
		l, err := net.Listen("tcp", addr)
		if err != nil {
			return nil, fmt.Errorf("can not listen on %s: %w", addr, err)
		}
		h.listeners = append(h.listeners, l)
		muxes[addr] = http.NewServeMux()
		if addr == h.cfg.WSAddr {
			h.wsAddr = l.Addr().String()
		}
		if addr == h.cfg.OpsAddr {
			h.opsAddr = l.Addr().String()
		}
	}
	return muxes, nil
}

// serve starts one server for each listener, in the order of listen.
func (h *Hub) serve(muxes map[string]*http.ServeMux) {
	addrs := []string{h.cfg.WSAddr, h.cfg.OpsAddr}
	for i, l := range h.listeners {
		s := &http.Server{
			Handler:           muxes[addrs[i]],
			ReadHeaderTimeout: 5 * time.Second,
			IdleTimeout:       time.Minute,
			MaxHeaderBytes:    16 << 10,
			ErrorLog:          slog.NewLogLogger(h.log.Handler(), slog.LevelWarn),
		}
		h.servers = append(h.servers, s)
		h.serving.Go(func() {
			if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				h.fail(fmt.Errorf("listener %s: %w", l.Addr(), err))
			}
		})
	}
	h.log.Info("hub is up", "ws", h.wsAddr, "ops", h.opsAddr, "store", h.cfg.Store,
		"durability", h.store.Capabilities().Durability, "version", h.cfg.Version)
}

// fail notes the first reason why the hub can not go on.
func (h *Hub) fail(err error) {
	select {
	case h.failed <- err:
	default:
	}
}

// Failed delivers the reason when the hub can not go on: its store broke or a
// listener died. The process should then end; nothing is acknowledged any more.
func (h *Hub) Failed() <-chan error { return h.failed }

// WSAddr and OpsAddr are the addresses really listened on.
func (h *Hub) WSAddr() string  { return h.wsAddr }
func (h *Hub) OpsAddr() string { return h.opsAddr }

// Bus is the engine, for programs that live in the hub's process.
func (h *Hub) Bus() *bus.Bus { return h.bus }

// Stop takes the hub down within the grace period: not ready, no new
// connections, 1001 to those there are, state of all groups flushed, store
// synced and closed. It returns what could not be done in order.
func (h *Hub) Stop(ctx context.Context) error {
	if !h.stopping.CompareAndSwap(false, true) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, h.cfg.Grace)
	defer cancel()
	h.log.Info("hub is stopping", "connections", h.gateway.Connections())
	var errs []error
	for _, s := range h.servers { // closes the listeners; sessions go on
		errs = append(errs, s.Shutdown(ctx))
	}
	h.serving.Wait()
	errs = append(errs, h.gateway.Shutdown(ctx), h.bus.Close(), h.store.Close())
	if err := errors.Join(errs...); err != nil {
		h.log.Error("hub stopped, not in order", "error", err)
		return err
	}
	h.log.Info("hub stopped")
	return nil
}

// abandon takes down what Start had made when it failed.
func (h *Hub) abandon() error {
	var errs []error
	for _, l := range h.listeners {
		errs = append(errs, l.Close())
	}
	if h.bus != nil {
		errs = append(errs, h.bus.Close())
	}
	if h.store != nil {
		errs = append(errs, h.store.Close())
	}
	return errors.Join(errs...)
}

func (h *Hub) livez(w http.ResponseWriter, _ *http.Request) {
	fmt.Fprintln(w, "ok")
}

func (h *Hub) readyz(w http.ResponseWriter, _ *http.Request) {
	if h.stopping.Load() {
		http.Error(w, "stopping", http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}
