package hub

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"eventhub/gateway/rest"
)

const (
	// stepBytes is how much of an answer is written at once, and answerWait how long
	// a peer may take for that much, endWait where the hub stops.
	stepBytes  = 64 << 10
	answerWait = 30 * time.Second
	endWait    = time.Second
)

// past is a deadline that wakes whoever waits for the network.
var past = time.Unix(1, 0)

// door is one listener, its handlers, and the connections that came
// through it and speak HTTP. Those that become WebSockets are the gateway's.
//
// A connection waits for its peer in one of three places: in front of a request, in
// the middle of a request's body, and in the middle of an answer. When the hub stops
// the first is closed, the second is cut, so that the request is refused, and the
// third has endWait for each step. A request that waits for the hub goes on: nothing
// of it is cut, for a read that fails would end its context.
type door struct {
	addr     string // as configured
	listener net.Listener
	mux      *http.ServeMux
	server   *http.Server
	tls      *tls.Config // nil: it speaks HTTP in the clear
	proxies  proxies
	shared   func(http.Handler) http.Handler // rest.API.Shared, where pages use the door; else nil
	standby  http.Handler                    // answers until route is called
	routed   atomic.Pointer[http.Handler]

	mu       sync.Mutex
	conns    map[*conn]struct{}
	stopping bool
}

func newDoor(addr string, listen func(network, addr string) (net.Listener, error)) (*door, error) {
	l, err := listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("can not listen on %s: %w", addr, err)
	}
	return &door{addr: addr, listener: l, mux: http.NewServeMux(), conns: make(map[*conn]struct{})}, nil
}

// connKey is where a request's context has its *conn.
type connKey struct{}

// open makes the server.
func (d *door) open(log *slog.Logger) {
	d.server = &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.RemoteAddr = d.proxies.origin(r)
			if c, ok := r.Context().Value(connKey{}).(*conn); ok {
				r = c.serve(r)
			}
			if routed := d.routed.Load(); routed != nil {
				(*routed).ServeHTTP(w, r)
				return
			}
			d.standby.ServeHTTP(w, r)
		}),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       time.Minute, // upgraded connections have deadlines of their own
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          stdlog.New(&serverLog{log}, "", 0),
		Protocols:         new(http.Protocols),
		TLSConfig:         d.tls,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, connOf(c))
		},
		ConnState: func(c net.Conn, state http.ConnState) { d.note(connOf(c), state) },
	}
	d.server.Protocols.SetHTTP1(true)
}

// route has the routes of the mux answered, which are all there by now, as within has them.
func (d *door) route(within func(http.Handler) http.Handler) {
	handler := within(rest.CleanPaths(d.mux, d.shared))
	d.routed.Store(&handler)
}

// cut closes all connections that speak HTTP, also those with requests under way.
func (d *door) cut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := range d.conns {
		_ = c.Conn.Close()
	}
}

// connOf returns the door's own part of a connection that the server has.
func connOf(c net.Conn) *conn {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	return c.(*conn)
}

// serverLog has what the server logs. Anybody can cause the line of a handshake that failed, as
// often as they like, so it is for those alone who look for one.
type serverLog struct{ log *slog.Logger }

func (l *serverLog) Write(line []byte) (int, error) {
	level := slog.LevelWarn
	if bytes.Contains(line, []byte("TLS handshake error")) {
		level = slog.LevelDebug
	}
	l.log.Log(context.Background(), level, strings.TrimSuffix(string(line), "\n"))
	return len(line), nil
}

// serve accepts connections until the door is shut.
func (d *door) serve() error {
	if d.tls != nil {
		return d.server.ServeTLS(tracked{d.listener, d}, "", "")
	}
	return d.server.Serve(tracked{d.listener, d})
}

// tracked makes the listener's connections the door's.
type tracked struct {
	net.Listener
	door *door
}

func (t tracked) Accept() (net.Conn, error) {
	c, err := t.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, door: t.door}, nil
}

// note follows what the server does with a connection.
func (d *door) note(c *conn, state http.ConnState) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch state {
	case http.StateNew:
		d.conns[c] = struct{}{}
		if d.stopping {
			c.stop()
		}
	case http.StateIdle:
		c.rest()
	case http.StateHijacked, http.StateClosed:
		delete(d.conns, c)
	}
}

// close lets nobody in any more. What is under way goes on.
func (d *door) close() error { return d.listener.Close() }

// shut ends all connections in order, as the comment of door says, and those that
// are left when ctx ends at once.
func (d *door) shut(ctx context.Context) error {
	d.mu.Lock()
	d.stopping = true
	for c := range d.conns {
		c.stop()
	}
	d.mu.Unlock()
	if err := d.server.Shutdown(ctx); err != nil && !errors.Is(err, net.ErrClosed) {
		_ = d.server.Close() // the best that can be done
		return fmt.Errorf("listener %s: requests were cut off: %w", d.addr, err)
	}
	return nil
}

// conn is a connection of a door. A write of it ends when the peer takes too long
// for a step, unless somebody else has set a deadline.
type conn struct {
	net.Conn
	door *door

	mu       sync.Mutex
	serving  bool // a request is being answered
	sending  bool // the peer has not sent all of its body
	stopping bool
	deadline bool // for writes, and not ours
}

// serve notes that the header of a request has come, and returns the request to be
// answered. The server's own stays as it is: by its body the server sees whether the
// client still waits to be asked for it, and answers a refusal without reading it.
func (c *conn) serve(r *http.Request) *http.Request {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.serving = true
	if r.ContentLength == 0 && len(r.TransferEncoding) == 0 {
		return r
	}
	c.sending = true
	if c.stopping {
		_ = c.Conn.SetReadDeadline(past) // a dead connection shows in the read
	}
	answered := *r
	answered.Body = &body{r.Body, c}
	return &answered
}

// rest notes that the answer is sent.
func (c *conn) rest() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.serving, c.sending = false, false
}

// stop ends what the connection waits for its peer for.
func (c *conn) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopping = true
	if !c.serving {
		_ = c.Conn.Close()
		return
	}
	if c.sending {
		_ = c.Conn.SetReadDeadline(past)
	}
	if !c.deadline {
		_ = c.Conn.SetWriteDeadline(time.Now().Add(endWait)) // for the write under way
	}
}

// body is what a peer sends with its request.
type body struct {
	io.ReadCloser
	conn *conn
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		b.conn.mu.Lock()
		b.conn.sending = false
		b.conn.mu.Unlock()
	}
	return n, err
}

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopping && c.sending {
		t = past
	}
	return c.Conn.SetReadDeadline(t)
}

// SetWriteDeadline implements net.Conn. Until it is taken back by the zero time it
// counts instead of the connection's own.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = !t.IsZero()
	return c.Conn.SetWriteDeadline(t)
}

// Write implements net.Conn.
func (c *conn) Write(b []byte) (n int, err error) {
	if !c.arm() {
		return c.Conn.Write(b)
	}
	for {
		var step int
		step, err = c.Conn.Write(b[n:min(n+stepBytes, len(b))])
		if n += step; err != nil || n == len(b) {
			return n, err
		}
		c.arm()
	}
}

// arm gives the next step its time, and reports false where that is not ours to do.
func (c *conn) arm() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.deadline {
		return false
	}
	wait := answerWait
	if c.stopping {
		wait = endWait
	}
	_ = c.Conn.SetWriteDeadline(time.Now().Add(wait)) // a dead connection shows in the write
	return true
}

// SyscallConn implements syscall.Conn, for connections without TLS.
func (c *conn) SyscallConn() (syscall.RawConn, error) {
	if inner, ok := c.Conn.(syscall.Conn); ok {
		return inner.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}

// CloseWrite notifies the peer that nothing follows.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
