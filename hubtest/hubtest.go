// Package hubtest runs a real hub inside a test, for programs that publish to a
// hub or consume from one. What the test sees is what a deployed hub does: the
// same engine, store and protocol on a free port of this machine.
//
//	func TestShipping(t *testing.T) {
//		h := hubtest.Start(t)
//		c := h.Client()
//		… run the consumer under test with c, or with h.URL …
//		… publish what it is to consume …
//		h.WaitFor("order.placed", "shipping") // until it has acked everything
//		… look at what it did, e.g. at h.Events("order.shipped", 1) …
//	}
//
// The example below is a whole test.
//
// Start opens the hub and the test's end closes it, after all clients that
// Client made; a hub that does not stop in order fails the test. Nothing is
// shared between hubs, so tests with one each may run in parallel, and nothing
// is left: a leak check of the whole package (goleak.VerifyTestMain)
// finds no goroutine of a hub.
package hubtest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"syscall"
	"testing"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/client"
	"eventhub/hub"
)

// DefaultPatience is how long a call waits for what must come when WithPatience
// says nothing else.
const DefaultPatience = 30 * time.Second

// lookEvery is the time between two looks at something that notifies nobody when it
// changes: a group's lag, a port that is in use.
const lookEvery = 2 * time.Millisecond

// Hub is a running hub that belongs to a test. Its methods fail the test when
// something goes wrong, so they are for the test's own goroutine, like the test's
// Fatal. Only Restart changes a Hub; the others may be called concurrently.
type Hub struct {
	// URL is where WebSocket clients connect (ws://…), HTTPURL the base of the
	// HTTP API and OpsURL that of the operations listener (http://…, without a
	// slash at the end). They stay the same over Restart.
	URL, HTTPURL, OpsURL string

	tb       testing.TB
	config   hub.Config
	patience time.Duration
	hub      *hub.Hub // nil while there is none

	adminOnce sync.Once
	admin     *client.Admin
}

// Option changes what hub Start opens.
type Option func(*Hub)

// WithMemory keeps events in memory alone, which is the default.
func WithMemory() Option { return WithStore(hub.MemoryStore) }

// WithStore keeps events in the directory, which is made if need be and stays
// when the test is over. One hub at a time can use it.
func WithStore(dir string) Option {
	return func(h *Hub) { h.config.Store = dir }
}

// WithTempStore keeps events on disk, with an fsync before every OK, in a
// directory that goes with the test.
func WithTempStore() Option {
	return func(h *Hub) { h.config.Store = h.tb.TempDir() }
}

// WithToken makes the hub ask for the token, and the clients of Client present
// it.
func WithToken(token string) Option {
	return func(h *Hub) { h.config.AuthToken = token }
}

// WithLogger gets what hub and clients log, instead of the test's own output,
// which shows warnings and errors.
func WithLogger(logger *slog.Logger) Option {
	return func(h *Hub) { h.config.Logger = logger }
}

// WithCompactEvery has the hub compact a topic as often as every d, in place of every 10
// seconds: for tests of what a consumer is told when compaction has passed it. An event still
// has to be older than compaction.min_age, at least a second.
func WithCompactEvery(d time.Duration) Option {
	return func(h *Hub) { h.config.CompactEvery = d }
}

// WithPatience changes how long each call waits before it fails the test, and how
// long the hub may take to stop when the test is over.
func WithPatience(d time.Duration) Option {
	return func(h *Hub) { h.patience = d }
}

// Start opens a hub that is closed when the test, and all its subtests, are over.
func Start(tb testing.TB, opts ...Option) *Hub {
	tb.Helper()
	h := &Hub{tb: tb, patience: DefaultPatience}
	h.config = hub.Config{
		Store:   hub.MemoryStore,
		Version: "hubtest",
		Logger:  slog.New(slog.NewTextHandler(tb.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	for _, opt := range opts {
		opt(h)
	}
	if err := h.open("127.0.0.1:0"); err != nil {
		tb.Fatalf("hubtest: start: %v", err)
	}
	tb.Cleanup(h.close)
	return h
}

// open starts a hub with all its listeners on one address.
func (h *Hub) open(addr string) error {
	h.config.WSAddr, h.config.HTTPAddr, h.config.OpsAddr = addr, addr, addr
	running, err := hub.Start(h.config)
	if err != nil {
		return err
	}
	h.hub = running
	h.URL = "ws://" + running.WSAddr()
	h.HTTPURL = "http://" + running.HTTPAddr()
	h.OpsURL = "http://" + running.OpsAddr()
	return nil
}

// close stops the hub, if there is one, and reports what was not in order.
func (h *Hub) close() {
	h.tb.Helper()
	if h.hub == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), h.patience)
	defer cancel()
	if err := h.hub.Stop(ctx); err != nil {
		h.tb.Errorf("hubtest: the hub did not stop in order: %v", err)
	}
	select {
	case err := <-h.hub.Failed():
		h.tb.Errorf("hubtest: the hub could not go on: %v", err)
	default:
	}
	h.hub = nil
}

// Client connects a client that is closed when the test is over, before the hub.
// It presents the hub's token and reconnects fast; opts count where they say
// otherwise.
func (h *Hub) Client(opts ...client.Option) *client.Client {
	h.tb.Helper()
	defaults := []client.Option{
		client.WithReconnect(lookEvery, 50*lookEvery),
		client.WithLogger(h.config.Logger),
	}
	if h.config.AuthToken != "" {
		defaults = append(defaults, client.WithToken(h.config.AuthToken))
	}
	ctx, cancel := context.WithTimeout(context.Background(), h.patience)
	defer cancel()
	c, err := client.Dial(ctx, h.URL, append(defaults, opts...)...)
	if err != nil {
		h.tb.Fatalf("hubtest: connect a client: %v", err)
	}
	h.tb.Cleanup(func() { c.Close() })
	return c
}

// Restart stops the hub in order, as SIGTERM does, and starts it again over the
// same store and on the same port: clients lose their connections and come back
// by themselves. A hub in memory would come back empty, so it can not be
// restarted; see WithTempStore.
func (h *Hub) Restart() {
	h.tb.Helper()
	if h.config.Store == hub.MemoryStore {
		h.tb.Fatalf("hubtest: a hub in memory can not be restarted: start it WithTempStore or WithStore")
	}
	addr := h.hub.WSAddr()
	h.close()
	ctx, cancel := context.WithTimeout(context.Background(), h.patience)
	defer cancel()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		err := h.open(addr)
		if err == nil {
			return
		}
		// While nobody listens there, the system may lend the port to somebody.
		if !errors.Is(err, syscall.EADDRINUSE) || !tick(ctx, look) {
			h.tb.Fatalf("hubtest: start again: %v", err)
		}
	}
}

// tick reports whether there is time for another look.
func tick(ctx context.Context, look *time.Ticker) bool {
	select {
	case <-look.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// WaitFor waits until the group is there and has nothing left to do in the topic:
// every event that was published by now is acked or a dead letter. It fails the
// test when that takes too long, and says how far the group is.
//
// Beware of a group that is made by the first Subscribe with StartLatest: it
// never sees what was published before, and has nothing to do at once.
func (h *Hub) WaitFor(topic, group string) {
	h.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), h.patience)
	defer cancel()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		info, err := h.hub.Bus().Group(context.Background(), topic, group) // its own patience ends the wait
		missing := eventhub.ErrorCode(err) == eventhub.CodeNotSubscribed
		switch {
		case err == nil && info.Lag == 0:
			return
		case err != nil && !missing:
			h.tb.Fatalf("hubtest: look at group %s::%s: %v", topic, group, err)
		}
		if !tick(ctx, look) {
			h.tb.Fatalf("hubtest: waited %s for group %s::%s: %s", h.patience, topic, group, progress(&info, missing))
		}
	}
}

func progress(info *admin.GroupInfo, missing bool) string {
	if missing {
		return "nobody has subscribed"
	}
	return fmt.Sprintf("%d events are not done, %d in flight and %d waiting for another attempt; its cursor is %d, the head %d; it has %d members",
		info.Lag, info.InFlight, info.Waiting, info.Cursor, info.Head, len(info.Members))
}

// Events waits until the topic has n events and returns the first n, oldest
// first. It fails the test when they do not come. It leaves no trace in the hub.
func (h *Hub) Events(topic string, n int) []eventhub.Event {
	h.tb.Helper()
	if n < 1 {
		return nil
	}
	patience, giveUp := context.WithTimeout(context.Background(), h.patience)
	defer giveUp()
	var events []eventhub.Event
	for d, err := range eventhub.Events(patience, h.hub.Bus(), eventhub.TailOptions{Topic: topic, Start: eventhub.Earliest}) {
		if patience.Err() != nil {
			break
		}
		var e eventhub.Event
		if err == nil {
			e, err = d.Event()
		}
		if err != nil {
			h.tb.Fatalf("hubtest: read topic %q: %v", topic, err)
		}
		if events = append(events, e); len(events) == n {
			return events
		}
	}
	h.tb.Fatalf("hubtest: waited %s for %d events in topic %q: there are %d", h.patience, n, topic, len(events))
	return nil
}

// Admin is the administration of the hub, over its HTTP API, as Client.Admin is: topics,
// groups and their lag, events by id, dead letters, seeks. It lasts over Restart.
func (h *Hub) Admin() *client.Admin {
	h.tb.Helper()
	h.adminOnce.Do(func() {
		var opts []client.Option
		if h.config.AuthToken != "" {
			opts = append(opts, client.WithToken(h.config.AuthToken))
		}
		a, err := client.NewAdmin(h.HTTPURL, opts...)
		if err != nil {
			h.tb.Fatalf("hubtest: administration: %v", err)
		}
		h.tb.Cleanup(func() { a.Close() })
		h.admin = a
	})
	return h.admin
}
