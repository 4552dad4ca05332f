package cluster

import (
	"bytes"
	"net"
	"sync"
	"testing"
)

// proxy passes bytes between a hub and a server of the journal, and can be told not to.
type proxy struct {
	listener net.Listener
	target   string
	ended    sync.WaitGroup

	mu      sync.Mutex
	changed *sync.Cond
	held    bool // nothing is passed on, in either direction, and nothing is closed
	lost    bool // what the server says is thrown away; the connections have to be cut then
	over    bool
	// says, where not nil, makes of what the server says what the hub gets: whole lines of the protocol.
	says  func([]byte) []byte
	links map[*link]struct{}
}

// link is one connection through the proxy.
type link struct {
	hub, server net.Conn
	broken      bool
}

func startProxy(t *testing.T, target string) *proxy {
	t.Helper()
	return startProxyThatSays(t, target, nil)
}

func startProxyThatSays(t *testing.T, target string, says func([]byte) []byte) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, target: target, says: says, links: make(map[*link]struct{})}
	p.changed = sync.NewCond(&p.mu)
	p.ended.Go(p.accept)
	t.Cleanup(p.stop)
	return p
}

func (p *proxy) url() string { return "nats://" + p.listener.Addr().String() }

func (p *proxy) accept() {
	for {
		hub, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.ended.Go(func() { p.join(hub) })
	}
}

// join passes on what comes over one connection.
func (p *proxy) join(hub net.Conn) {
	defer hub.Close()
	p.mu.Lock()
	for p.held && !p.over {
		p.changed.Wait()
	}
	p.mu.Unlock()
	server, err := net.DialTimeout("tcp", p.target, within)
	if err != nil {
		return
	}
	defer server.Close()
	l := &link{hub: hub, server: server}
	p.mu.Lock()
	if p.over {
		p.mu.Unlock()
		return
	}
	p.links[l] = struct{}{}
	p.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { p.pass(l, hub, server, false) })
	p.pass(l, server, hub, true)
	both.Wait()
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

func (p *proxy) pass(l *link, from, to net.Conn, down bool) {
	defer p.breakLink(l)
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		chunk := buf[:n]
		if down && p.says != nil {
			whole := bytes.Clone(chunk)
			for !bytes.HasSuffix(whole, []byte("\r\n")) {
				if n, err = from.Read(buf); err != nil {
					return
				}
				whole = append(whole, buf[:n]...)
			}
			chunk = p.says(whole)
		}
		p.mu.Lock()
		for p.held && !p.over && !l.broken {
			p.changed.Wait()
		}
		drop, over := p.lost && down, p.over || l.broken
		p.mu.Unlock()
		if over {
			return
		}
		if drop {
			continue
		}
		if _, err := to.Write(chunk); err != nil {
			return
		}
	}
}

func (p *proxy) breakLink(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.broken = true
	p.changed.Broadcast()
	_ = l.hub.Close()
	_ = l.server.Close()
}

// hold has nothing passed on until it is called with false: a partition.
func (p *proxy) hold(held bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = held
	p.changed.Broadcast()
}

// loseReplies has what the server says thrown away until cut.
func (p *proxy) loseReplies() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost = true
}

// cut closes all connections, and passes everything on from then on.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost, p.held = false, false
	for l := range p.links {
		l.broken = true
		_ = l.hub.Close()
		_ = l.server.Close()
	}
	p.changed.Broadcast()
}

func (p *proxy) stop() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.over = true
	p.mu.Unlock()
	p.cut()
	p.ended.Wait()
}
