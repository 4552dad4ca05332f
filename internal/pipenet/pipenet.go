// Package pipenet is a network in memory, for tests in a testing/synctest bubble: who waits for
// one of its connections lets the bubble's time pass, which the kernel's do not.
package pipenet

import (
	"context"
	"fmt"
	"net"
	"sync"
	"syscall"
)

// Net has listeners by address. The zero value is an empty network, which is safe for
// concurrent use.
type Net struct {
	mu        sync.Mutex
	listeners map[string]*listener
}

// Listen has the signature of net.Listen. Each address is that of one listener.
func (n *Net) Listen(network, addr string) (net.Listener, error) {
	at, err := net.ResolveTCPAddr(network, addr)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners[addr] != nil {
		return nil, fmt.Errorf("pipenet: listen on %s: %w", addr, syscall.EADDRINUSE)
	}
	l := &listener{net: n, addr: at, conns: make(chan net.Conn), done: make(chan struct{})}
	if n.listeners == nil {
		n.listeners = make(map[string]*listener)
	}
	n.listeners[addr] = l
	return l, nil
}

// Dial has the signature of net.Dialer.DialContext.
func (n *Net) Dial(ctx context.Context, _, addr string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[addr]
	n.mu.Unlock()
	refused := fmt.Errorf("pipenet: dial %s: %w", addr, syscall.ECONNREFUSED)
	if l == nil {
		return nil, refused
	}
	ours, theirs := net.Pipe()
	select {
	case l.conns <- &conn{theirs, l.addr}:
		return &conn{ours, l.addr}, nil
	case <-l.done:
		return nil, refused
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type listener struct {
	net   *Net
	addr  net.Addr
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *listener) Addr() net.Addr { return l.addr }

func (l *listener) Close() error {
	err := net.ErrClosed
	l.once.Do(func() {
		l.net.mu.Lock()
		defer l.net.mu.Unlock()
		delete(l.net.listeners, l.addr.String())
		close(l.done)
		err = nil
	})
	return err
}

// conn has addresses that look like those of the network.
type conn struct {
	net.Conn
	addr net.Addr
}

func (c *conn) LocalAddr() net.Addr  { return c.addr }
func (c *conn) RemoteAddr() net.Addr { return c.addr }
