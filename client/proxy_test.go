package client_test

import (
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// proxy passes bytes between clients and a hub, cuts connections and stalls.
type proxy struct {
	tb       testing.TB
	listener net.Listener
	dial     func(target string) (net.Conn, error)
	wg       sync.WaitGroup
	losing   atomic.Bool // what the hub says is lost, over connections of before
	lost     chan struct{}
	spoke    chan struct{} // a token for what a client says
	down     atomic.Int64  // bytes that the hub sent
	stall    [2]gate       // nothing is passed on in a direction while it is shut

	mu     sync.Mutex
	target string
	open   map[*link]struct{}
	cuts   int
	taken  int
	over   bool
	heard  sync.Once
}

const (
	upwards   = iota // to the hub
	downwards        // to the client
)

// link is one connection through the proxy.
type link struct {
	in, out net.Conn        // the client's and the hub's
	fuse    [2]atomic.Int64 // where not 0, it breaks in front of that byte, from 1
}

func (l *link) cut() {
	l.in.Close()
	l.out.Close()
}

// pass says how many of the next n bytes go over before the link breaks.
func (l *link) pass(way, n int) (passed int, broken bool) {
	left := l.fuse[way].Load()
	switch {
	case left == 0:
		return n, false
	case int64(n) < left:
		l.fuse[way].Add(-int64(n))
		return n, false
	}
	return int(left) - 1, true
}

// gate is open until it is shut. Who waits at it is blocked durably, as a bubble has it.
type gate struct {
	mu      sync.Mutex
	changed *sync.Cond
	isShut  bool
}

func (g *gate) set(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.isShut = shut
	g.changed.Broadcast()
}

func (g *gate) await() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.isShut {
		g.changed.Wait()
	}
}

func startProxy(tb testing.TB, target string) *proxy {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := proxyBetween(tb, l, target, func(target string) (net.Conn, error) { return net.Dial("tcp", target) })
	tb.Cleanup(p.stop)
	return p
}

// proxyBetween passes on what comes to the listener. Who starts it stops it.
func proxyBetween(tb testing.TB, l net.Listener, target string, dial func(string) (net.Conn, error)) *proxy {
	p := &proxy{tb: tb, listener: l, dial: dial, target: target, open: make(map[*link]struct{}),
		lost: make(chan struct{}), spoke: make(chan struct{}, 1<<10)}
	for i := range p.stall {
		p.stall[i].changed = sync.NewCond(&p.stall[i].mu)
	}
	p.wg.Go(p.accept)
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
		out, err := p.dial(target)
		p.mu.Lock()
		if err != nil || p.over {
			in.Close()
			if err == nil {
				out.Close()
			}
			p.mu.Unlock()
			continue
		}
		l := &link{in: in, out: out}
		p.open[l] = struct{}{}
		p.taken++
		p.mu.Unlock()
		p.wg.Go(func() { p.pipe(l, upwards, nil) })
		losing := &p.losing
		if losing.Load() {
			losing = nil // only what was there before
		}
		p.wg.Go(func() { p.pipe(l, downwards, losing) })
	}
}

// pipe passes bytes on in one direction.
func (p *proxy) pipe(l *link, way int, losing *atomic.Bool) {
	defer l.cut()
	from, to := l.in, l.out
	if way == downwards {
		from, to = l.out, l.in
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if way == upwards {
			select {
			case p.spoke <- struct{}{}:
			default:
			}
		} else {
			p.down.Add(int64(n))
		}
		if losing != nil && losing.Load() && n > 0 {
			p.heard.Do(func() { close(p.lost) })
			continue
		}
		p.stall[way].await()
		n, broken := l.pass(way, n)
		if _, werr := to.Write(buf[:n]); err != nil || werr != nil || broken {
			return
		}
	}
}

// hold stalls in these directions until the function that it returns is called.
func (p *proxy) hold(ways ...int) (goOn func()) {
	for _, way := range ways {
		p.stall[way].set(true)
	}
	return func() {
		for _, way := range ways {
			p.stall[way].set(false)
		}
	}
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
	for l := range p.open {
		if r == nil || r.Float64() < probability {
			l.cut()
			delete(p.open, l)
			p.cuts++
		}
	}
}

// breakOff has each connection break after fewer than n further bytes of one direction,
// in the middle of whatever that is.
func (p *proxy) breakOff(n int, r *rand.Rand) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.open {
		l.fuse[r.IntN(2)].Store(1 + r.Int64N(int64(n)))
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
