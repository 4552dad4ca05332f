package client_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"eventhub"
	"eventhub/client"
	"eventhub/hub"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must come.
const patience = 30 * time.Second

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

func earliest(topic, group string) eventhub.SubscribeOptions {
	return eventhub.SubscribeOptions{Topic: topic, Group: group, Start: eventhub.Start{Kind: eventhub.StartEarliest}}
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

// proxy passes bytes between clients and a hub and cuts connections.
type proxy struct {
	tb       testing.TB
	listener net.Listener
	wg       sync.WaitGroup
	dropping atomic.Bool // what the hub says is lost, over connections of before
	dropped  chan struct{}
	spoke    chan struct{} // a token for what a client says
	down     atomic.Int64  // bytes that the hub sent
	stall    sync.RWMutex  // nothing is passed on while it is locked

	mu     sync.Mutex
	target string
	open   map[net.Conn]net.Conn
	cuts   int
	taken  int
	over   bool
	heard  sync.Once
}

func startProxy(tb testing.TB, target string) *proxy {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := &proxy{tb: tb, listener: l, target: target, open: make(map[net.Conn]net.Conn), dropped: make(chan struct{}), spoke: make(chan struct{}, 1<<10)}
	p.wg.Go(p.accept)
	tb.Cleanup(p.stop)
	return p
}

func (p *proxy) addr() string { return p.listener.Addr().String() }

// aim sends connections that come elsewhere.
func (p *proxy) aim(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

func (p *proxy) accept() {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		target := p.target
		p.mu.Unlock()
		out, err := net.Dial("tcp", target)
		p.mu.Lock()
		if err != nil || p.over {
			in.Close()
			if err == nil {
				out.Close()
			}
			p.mu.Unlock()
			continue
		}
		p.open[in] = out
		p.taken++
		p.mu.Unlock()
		p.wg.Go(func() { p.pipe(out, in, true, nil) })
		dropping := &p.dropping
		if dropping.Load() {
			dropping = nil // only what was there before
		}
		p.wg.Go(func() { p.pipe(in, out, false, dropping) })
	}
}

// pipe passes bytes on; up is the way to the hub.
func (p *proxy) pipe(to, from net.Conn, up bool, dropping *atomic.Bool) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if up {
			select {
			case p.spoke <- struct{}{}:
			default:
			}
		}
		if !up {
			p.down.Add(int64(n))
		}
		if dropping != nil && dropping.Load() && n > 0 {
			p.heard.Do(func() { close(p.dropped) })
			continue
		}
		p.awaitFlow()
		if _, werr := to.Write(buf[:n]); err != nil || werr != nil {
			return
		}
	}
}

// awaitFlow waits while the proxy is stalled.
func (p *proxy) awaitFlow() {
	p.stall.RLock()
	defer p.stall.RUnlock()
}

// accepted is how many connections came.
func (p *proxy) accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken
}

// cut ends all connections, or each with the given probability.
func (p *proxy) cut(probability float64, r *rand.Rand) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for in, out := range p.open {
		if r == nil || r.Float64() < probability {
			in.Close()
			out.Close()
			delete(p.open, in)
			p.cuts++
		}
	}
}

func (p *proxy) stop() {
	p.mu.Lock()
	p.over = true
	p.mu.Unlock()
	p.listener.Close()
	p.cut(1, nil)
	p.wg.Wait()
}
