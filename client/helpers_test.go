package client_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"eventhub"
	"eventhub/client"
	"eventhub/hub"
	"eventhub/internal/pipenet"
	"eventhub/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must come.
const patience = 30 * time.Second

// pipedHub starts a hub for a bubble, which keeps what it has in memory and listens at a network of its own. The test stops it.
func pipedHub(t *testing.T, cfg hub.Config) (*hub.Hub, *pipenet.Net) {
	t.Helper()
	network := new(pipenet.Net)
	cfg.WSAddr, cfg.HTTPAddr, cfg.OpsAddr, cfg.Store, cfg.Listen = "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3", hub.MemoryStore, network.Listen
	h, err := hub.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return h, network
}

func startHub(tb testing.TB, cfg hub.Config) *hub.Hub {
	tb.Helper()
	if cfg.Store == "" {
		cfg.Store = hub.MemoryStore
	}
	if cfg.WSAddr == "" {
		cfg.WSAddr = "127.0.0.1:0"
	}
	cfg.HTTPAddr, cfg.OpsAddr = "127.0.0.1:0", "127.0.0.1:0"
	h, err := hub.Start(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := h.Stop(context.Background()); err != nil {
			tb.Error(err)
		}
	})
	return h
}

// dial connects with waits that suit a test.
func dial(tb testing.TB, addr string, opts ...client.Option) *client.Client {
	tb.Helper()
	opts = append([]client.Option{client.WithReconnect(time.Millisecond, 50*time.Millisecond)}, opts...)
	c, err := client.Dial(bounded(tb), "ws://"+addr, opts...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close() })
	return c
}

// bounded returns a context that makes a test that hangs fail.
func bounded(tb testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	tb.Cleanup(cancel)
	return ctx
}

func event(topic, payload string) eventhub.Event {
	return eventhub.Event{Topic: topic, Payload: []byte(payload)}
}

func earliest(topic, group string) eventhub.GroupOptions {
	return eventhub.GroupOptions{Topic: topic, Group: group, Start: eventhub.Earliest}
}

// tailFrom asks for a tail from the first event on.
func tailFrom(topic string) eventhub.TailOptions {
	return eventhub.TailOptions{Topic: topic, Start: eventhub.Earliest}
}

// join joins the group, or opens a tail where it has no name.
func join(ctx context.Context, s eventhub.Subscriber, opts wire.SubscribeOptions, r eventhub.Receiver) (eventhub.Subscription, error) {
	if opts.IsTail() {
		return s.Tail(ctx, opts.Tail(), r)
	}
	return s.Subscribe(ctx, opts.GroupOptions, r)
}

// receive consumes as a member of the group, or follows a tail where it has no name.
func receive(ctx context.Context, c *client.Client, opts wire.SubscribeOptions, h eventhub.Handler) error {
	if opts.IsTail() {
		return c.Follow(ctx, opts.Tail(), h)
	}
	return c.Consume(ctx, opts.GroupOptions, h)
}

func await[T any](tb testing.TB, what string, ch <-chan T) T {
	tb.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		tb.Fatalf("%s did not come", what)
		panic("unreachable")
	}
}

func wantCode(tb testing.TB, err error, code eventhub.Code) {
	tb.Helper()
	var e *eventhub.Error
	if !errors.As(err, &e) || e.Code != code {
		tb.Errorf("the error is %v; want code %s", err, code)
	}
}

// collector is a Receiver that takes limit deliveries until it is opened.
type collector struct {
	mu      sync.Mutex
	limit   int
	offsets []uint64
	leases  []eventhub.Lease
	refused chan struct{} // closed at the first refusal
	came    chan uint64
	ended   chan error
}

func newCollector(limit int) *collector {
	return &collector{limit: limit, refused: make(chan struct{}), came: make(chan uint64, 1<<16), ended: make(chan error, 1)}
}

func (c *collector) Deliver(batch []eventhub.Delivery) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, d := range batch {
		if len(c.offsets) == c.limit {
			close(c.refused)
			c.limit = -1
		}
		if c.limit < 0 {
			return i
		}
		c.offsets = append(c.offsets, d.Offset)
		c.leases = append(c.leases, d.Lease)
		c.came <- d.Offset
	}
	return len(batch)
}

func (c *collector) open() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit = 1 << 30
}

func (c *collector) Ended(err error) { c.ended <- err }

// atOnce returns the options with that many handlers at once.
func atOnce(n int, opts eventhub.GroupOptions) eventhub.GroupOptions {
	opts.Concurrency = n
	return opts
}
