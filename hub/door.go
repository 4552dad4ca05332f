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
	// maxStrangerRequests is how many requests a connection may make, one after another, without one that shows a
	// right: each begins its time anew.
	maxStrangerRequests = 32
	// maxHeaderBytes has room for a token of 8 KiB, the largest place of a stream, and the largest filter
	// in a query, each character of it escaped. Who sends so much costs some times that.
	maxHeaderBytes = 32 << 10
	// forgetWait is how long the kernel keeps what a peer does not take of a connection that was
	// closed.
	forgetWait = 5 * time.Second
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
	guests   *strangers
	shared   func(http.Handler) http.Handler // rest.API.Shared, where pages use the door; else nil
	standby  http.Handler                    // answers until route is called
	routed   atomic.Pointer[http.Handler]

	mu       sync.Mutex
	conns    map[*conn]struct{}
	stopping bool
}

func newDoor(addr string, listen func(network, addr string) (net.Listener, error), guests *strangers) (*door, error) {
	l, err := listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("can not listen on %s: %w", addr, err)
	}
	return &door{addr: addr, listener: l, guests: guests, mux: http.NewServeMux(), conns: make(map[*conn]struct{})}, nil
}

// connKey is where a request's context has its *conn.
type connKey struct{}

// open makes the server.
func (d *door) open(log *slog.Logger) {
	d.server = &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.RemoteAddr = d.proxies.origin(r)
			if c, ok := r.Context().Value(connKey{}).(*conn); ok {
				if c.asksTooOften() {
					w.Header().Set("Connection", "close")
				}
				r = c.serve(r, w.Header())
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
		MaxHeaderBytes:    maxHeaderBytes,
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
	guest := &conn{Conn: c, door: t.door, proofBy: time.Now().Add(strangerWait), stirred: make(chan struct{}, 1)}
	t.door.guests.enter(guest)
	return guest, nil
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
		c.handOver()
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
// for a step, unless somebody else has set a deadline. While it has shown no right, what it
// waits for its peer for ends strangerWait after it began, whatever the server allows.
type conn struct {
	net.Conn
	door     *door
	stranger *stranger // guarded by the mutex of strangers; nil: it has left them

	known   atomic.Bool   // it has shown a right; set with mu held
	pieces  atomic.Int32  // that it was read in before, since the last answer
	found   atomic.Int64  // bytes that a look has found, less what was read since: above 0, a read does not wait
	stirred chan struct{} // a read that waits has to look

	mu       sync.Mutex
	serving  bool // a request is being answered
	sending  bool // the peer has not sent all of its body
	stopping bool
	deadline bool        // for writes, and not ours
	asked    int         // requests before it was known
	upgraded bool        // its time is the gateway's to bound
	proofBy  time.Time   // until then, unless known
	readBy   time.Time   // the deadline of reads that the server wants
	armed    time.Time   // the one that they have
	gathers  bool        // the kernel wakes nobody for a little that comes
	answer   http.Header // of the request that is being answered; nil: none is
}

// know notes that the peer has shown a right.
func (c *conn) know() {
	c.door.guests.leave(c)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known.Swap(true) {
		return
	}
	c.gatherNoMore()
	if !c.upgraded {
		_ = c.armRead() // a dead connection shows in the read
	}
	c.stir()
}

// refuse notes that the peer has shown a token that gives no right, or none where one is needed. The answer ends the
// connection: who wants to guess again has to connect again.
func (c *conn) refuse() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.known.Load() && c.answer != nil {
		c.answer.Set("Connection", "close")
	}
}

// asksTooOften counts a request, and reports whether the connection has had its share of those that show no right.
func (c *conn) asksTooOften() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known.Load() {
		return false
	}
	c.asked++
	return c.asked >= maxStrangerRequests
}

// handOver notes that the server has done with the connection.
func (c *conn) handOver() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.upgraded, c.answer = true, nil
}

// authBy returns until when a WebSocket on the connection, which was just asked for, has to say AUTH; zero: the peer has
// shown a right before, and has all the time that the gateway gives. On a connection that had answers before, the client
// may be another one: a proxy has many on one connection. It has its time from now on.
func (c *conn) authBy() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known.Load() {
		return time.Time{}
	}
	if c.asked > 1 {
		return time.Now().Add(strangerWait)
	}
	return c.proofBy
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.door.guests.leave(c)
	if inner, ok := c.Conn.(syscall.Conn); ok {
		forgetIn(inner, forgetWait)
	}
	return c.Conn.Close()
}

// serve notes that the header of a request has come, and returns the request to be
// answered with that header. The server's own stays as it is: by its body the server sees whether the
// client still waits to be asked for it, and answers a refusal without reading it.
func (c *conn) serve(r *http.Request, answer http.Header) *http.Request {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.serving, c.answer = true, answer
	if r.ContentLength == 0 && len(r.TransferEncoding) == 0 {
		_ = c.armRead() // it waits for the hub now
		return r
	}
	c.sending = true
	if c.stopping {
		_ = c.armRead() // a dead connection shows in the read
	}
	answered := *r
	answered.Body = &body{r.Body, c}
	return &answered
}

// rest notes that the answer is sent.
func (c *conn) rest() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.serving, c.sending, c.answer = false, false, nil
	c.pieces.Store(0)
	c.gatherNoMore()
	c.proofBy = time.Now().Add(strangerWait)
}

// stop ends what the connection waits for its peer for.
func (c *conn) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopping = true
	if !c.serving {
		_ = c.Conn.Close()
		c.stir()
		return
	}
	if c.sending {
		_ = c.armRead()
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
		_ = b.conn.armRead() // it waits for the hub now
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
	c.readBy = t
	return c.armRead()
}

// armRead sets the deadline of reads: what the server wants, unless the peer has less time. c.mu
// is held.
func (c *conn) armRead() error {
	by := c.readBy
	waits := !c.serving || c.sending // for the peer
	switch {
	case c.upgraded:
	case c.stopping && c.sending:
		by = past
	case !c.known.Load() && waits && (by.IsZero() || by.After(c.proofBy)):
		by = c.proofBy
	}
	c.armed = by
	if !c.known.Load() {
		c.stir()
	}
	return c.Conn.SetReadDeadline(by)
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
	switch {
	case c.stopping:
		wait = endWait
	case !c.known.Load():
		wait = strangerWait
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
