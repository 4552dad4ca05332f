// Package client is the Go SDK: a hub at the other end of a WebSocket as an
// eventhub.Publisher and eventhub.Subscriber, with handlers, typed helpers and
// reconnection around it; and the administration of a hub, over its HTTP API, as
// an admin.Inspector and admin.Operator: see Client.Admin and NewAdmin. Programs
// that talk to a hub import it together with the root package; it knows nothing of
// the hub's inside except package wire.
//
// # What is promised over lost connections
//
// Every event has an id before it is sent for the first time. A publish whose
// answer was lost is sent again under that id as soon as there is a connection,
// until it is answered, its context ends or the client is closed; the hub knows
// the id, so the event is in the log once; events of one call stay one atomic step.
// An ack-and-publish is sent again likewise, see Client.AckAndPublish for what may stay open
// then, and Client.Transform for how that does no harm. Subscriptions are made again
// and go on from their group's cursor, a live tail after the event that came last.
// Deliveries of a lost connection come again, to this client or to another member:
// handlers must take an event twice.
//
// # Shape
//
// One goroutine owns the connection: it connects, reads, applies all answers of
// one read at once, calls receivers, and connects again. A second one per
// connection writes everything that gathered while it was writing in one call. A
// third one, once there is a callback, calls those of all answers. Where the token ends one
// more per connection renews it. A request is an exchange: frames, and a table of answers that fills
// up. Consume adds one timer for all its leases and the goroutines of its
// handlers; nothing runs per event.
//
// # Invariants
//
//   - Client.mu guards all that is shared and is never held while the network, a
//     receiver or a callback is waited for or called.
//   - An exchange is in Client.pending with every frame that is not answered,
//     connected or not; who takes the last one out, an answer, the end of a
//     context or the end of the client, completes it, once.
//   - On a new connection first come the verdicts and the ack-and-publishes that are not
//     answered, by lease, then the SUBSCRIBEs, then the publishes in the order of
//     their calls.
//   - When Close or Drain has returned, no goroutine of the client is left and
//     nothing is called back any more.
package client

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	gws "github.com/gobwas/ws"

	"eventhub"
	"eventhub/wire"
)

// goodbyeWait bounds the wait for the hub's part of the close handshake.
const goodbyeWait = time.Second

// phase is where a client is in its life. It only moves forward.
type phase uint8

const (
	open     phase = iota
	leaving        // Drain: no new subscriptions
	emptying       // Drain: and no new publishes
	closed
)

// Client is a connection to a hub that comes back when it is lost. Its methods
// are safe for concurrent use.
type Client struct {
	cfg    config
	ctx    context.Context // ends with the client
	cancel context.CancelFunc
	corr   atomic.Uint64 // the last one given out
	limit  atomic.Int64  // bytes of one frame that the hub takes
	tasks  sync.WaitGroup

	callbacks callbacks

	adminOnce sync.Once
	admin     *Admin // once it is asked for

	mu      sync.Mutex
	changed sync.Cond // on mu, broadcast while draining
	phase   phase
	cause   error // why it is closed
	info    wire.AuthInfo
	conn    *conn // nil while there is none
	pending map[uint64]slot
	subs    map[subKey]*subscription
	// partings are the subscriptions that were left and may still be sent to.
	partings map[subKey]*parting
	room     room
	numbers  numbers
	serial   uint64 // of the exchange registered last
	watch    *watch // over the context of the publish that was registered last; nil before
	// numberedFrame is memory for the frame that is being sent.
	numberedFrame []byte
}

var (
	_ eventhub.Publisher  = (*Client)(nil)
	_ eventhub.Subscriber = (*Client)(nil)
)

// Dial connects to the hub at url and says AUTH. The URL is that of the WebSocket
// (ws://host:port, wss://…) or of the HTTP API (http://…, https://…), below which
// the WebSocket is /ws. It tries this and the URLs of WithURLs once each and fails
// when none takes the client: with the hub's *eventhub.Error when one denied it, with ErrUnreachable
// in the chain when none could be talked to. Where a hub has as many connections as it allows
// (CodeRateLimited) Dial waits for as long as the hub says and tries again. ctx bounds Dial
// alone.
//
// The client must be closed by Close or Drain.
func Dial(ctx context.Context, url string, opts ...Option) (*Client, error) {
	cfg := defaults(url)
	for _, opt := range opts {
		opt(&cfg)
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	c := &Client{cfg: cfg, pending: make(map[uint64]slot),
		subs: make(map[subKey]*subscription), partings: make(map[subKey]*parting)}
	c.room = room{maxEvents: cfg.maxPending, maxBytes: maxPendingBytes}
	c.changed.L = &c.mu
	c.callbacks.changed.L = &c.callbacks.mu
	c.ctx, c.cancel = context.WithCancel(context.Background())
	n, err := c.connectFirst(ctx)
	if err != nil {
		c.cancel()
		return nil, err
	}
	c.attach(n)
	c.tasks.Go(func() { c.run(n) })
	return c, nil
}

// connectFirst connects, and tries again as long as it is only too many clients that a hub has.
func (c *Client) connectFirst(ctx context.Context) (*conn, error) {
	for {
		n, err := c.connect(ctx)
		wait, again := pauseAfter(err)
		if !again {
			return n, err
		}
		c.cfg.logger.Warn("no connection to the hub yet", "error", err, "wait", wait)
		if !c.pause(ctx, wait) {
			return nil, fmt.Errorf("%w, and there was no time to try again", err)
		}
	}
}

// Info returns what the hub said of itself at the last AUTH.
func (c *Client) Info() wire.AuthInfo {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.info
}

// Close ends the client at once and returns when all its goroutines have ended.
// What is not answered fails with ErrClosed, its outcome unknown; receivers that
// are subscribed are notified by Ended; leases go back to their groups as from a
// lost connection. Closing twice is harmless. It must not be called by a
// Receiver or a callback of Enqueue, which it waits for.
func (c *Client) Close() error {
	c.mu.Lock()
	c.shut(ErrClosed)
	if c.conn != nil {
		c.conn.net.Close()
	}
	c.mu.Unlock()
	c.tasks.Wait()
	return nil
}

// shut lets nothing new in. The first cause counts. c.mu is held.
func (c *Client) shut(cause error) {
	if c.phase != closed {
		c.phase, c.cause = closed, cause
		c.cancel()
		c.changed.Broadcast()
	}
}

// Drain ends the client in good order: no new subscriptions; receivers are notified
// by Ended, handlers of Consume finish and give their verdicts, and may still
// publish meanwhile; groups are left without counting attempts; then no new
// publishes; those under way get their receipts; then the connection is closed
// as by Close. Where ctx ends before, the rest is closed at once and its error
// returned. The same callers as for Close must not call it.
func (c *Client) Drain(ctx context.Context) error {
	c.mu.Lock()
	var subs []*subscription
	if c.phase == open {
		c.phase = leaving
		subs = c.members()
	}
	c.mu.Unlock()
	for _, s := range subs {
		s.drain(ctx)
	}
	err := c.await(ctx, leaving, func() bool { return len(c.subs) == 0 })
	if err == nil {
		err = c.await(ctx, emptying, func() bool { return len(c.pending) == 0 && c.room.empty() })
	}
	if err == nil {
		c.sayGoodbye()
		c.tasks.Wait()
	}
	c.Close()
	return err
}

// await moves on to the phase and waits until what it asks for is done, or the
// client is closed.
func (c *Client) await(ctx context.Context, p phase, done func() bool) error {
	stop := context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.changed.Broadcast()
	})
	defer stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.phase = max(c.phase, p)
	for c.phase != closed && !done() {
		if ctx.Err() != nil {
			return fmt.Errorf("client: drain: %d subscriptions and %d answers are outstanding: %w",
				len(c.subs), len(c.pending), context.Cause(ctx))
		}
		c.changed.Wait()
	}
	return nil
}

// sayGoodbye ends the client with a close handshake.
func (c *Client) sayGoodbye() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil && c.phase != closed {
		c.conn.appendAcks()
		c.conn.append(gws.OpClose, gws.NewCloseFrameBody(wire.CloseNormal, ""))
		_ = c.conn.net.SetReadDeadline(time.Now().Add(goodbyeWait)) // a dead connection shows in the read
	}
	c.shut(ErrClosed)
}

// run owns the connection until the client ends.
func (c *Client) run(n *conn) {
	for attempt := 0; ; {
		since := time.Now()
		lost := c.serve(n)
		c.detach(n)
		without := time.Now()
		if without.Sub(since) > c.cfg.maxBackoff {
			attempt = 0 // it was a good one
		}
		var err error
		if n, err = c.reconnect(lost, &attempt); err != nil {
			c.end(err)
			return
		}
		c.cfg.logger.Info("connected again", "after", time.Since(without))
		c.attach(n)
	}
}

// reconnect tries until a hub takes the client, all deny it, or the client ends.
func (c *Client) reconnect(lost error, attempt *int) (*conn, error) {
	for c.ctx.Err() == nil {
		if !c.cfg.reconnect {
			return nil, fmt.Errorf("client: connection lost: %w", lost)
		}
		wait := c.cfg.backoff(*attempt)
		if least, again := pauseAfter(lost); again {
			wait = max(wait, least)
		}
		*attempt++
		c.cfg.logger.Warn("no connection to the hub", "error", lost, "attempt", *attempt, "wait", wait)
		select {
		case <-time.After(wait):
		case <-c.ctx.Done():
			continue
		}
		n, err := c.connect(c.ctx)
		if err == nil {
			return n, nil
		}
		if c.endsWith(err) {
			return nil, err
		}
		lost = err
	}
	return nil, ErrClosed
}

// attach makes n the connection and sends on it all that is not answered.
func (c *Client) attach(n *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.info = n.info
	c.limit.Store(int64(n.info.Limits.MaxFrameBytes))
	if c.phase == closed {
		n.net.Close()
	}
	c.conn = n
	over := c.opened(&n.info.Producer, true)
	c.resubscribe()
	rest := c.inOrder()
	for _, corr := range rest {
		s := c.pending[corr]
		c.sendFrame(s.of, s.at)
		s.of.resent = s.of.resent || s.of.sent
	}
	for _, s := range c.pending {
		s.of.sent = true
	}
	n.writing.Go(func() { c.write(n) })
	if _, ends := endOf(n.token); ends {
		c.tasks.Go(func() { c.renew(n) }) // which may wait for a source when the connection is lost
	}
	if len(over) > 0 {
		c.tasks.Add(1)
		go func() { // c.mu is held
			defer c.tasks.Done()
			c.complete(over)
		}()
	}
	c.cfg.logger.Debug("connected", "url", n.url, "hub", n.info.Hub, "requests", len(rest))
}

// detach takes the connection off: what ended with it is completed, all else
// waits for the next.
func (c *Client) detach(n *conn) {
	n.net.Close()
	c.mu.Lock()
	c.conn = nil
	n.ended = true
	close(n.gone)
	n.forgetAcks()
	n.wake.Broadcast()
	var over []*exchange
	for corr, s := range c.pending {
		switch s.of.kind {
		case unsubscribe, pausing, renewal: // the hub has forgotten it, or will be notified again
			over = c.answer(&answered{corr: corr}, over)
		case resubscribe:
			delete(c.pending, corr)
		}
	}
	subs := c.members()
	c.mu.Unlock()
	c.complete(over)
	n.writing.Wait()
	for _, s := range subs {
		s.lost()
	}
}

// end fails everything that is left. It is the last that the client's goroutine
// does.
func (c *Client) end(cause error) {
	c.mu.Lock()
	c.shut(cause)
	cause = c.cause
	var over []*exchange
	for corr := range c.pending {
		over = c.answer(&answered{corr: corr, err: cause}, over)
	}
	c.endWatch()
	c.room.refuse(cause)
	subs := c.members()
	clear(c.subs)
	c.changed.Broadcast()
	c.mu.Unlock()
	c.complete(over)
	for _, s := range subs {
		s.end(cause)
	}
	c.callbacks.end()
}

// members lists the subscriptions whose Subscribe has succeeded. c.mu is held.
func (c *Client) members() []*subscription {
	subs := make([]*subscription, 0, len(c.subs))
	for _, s := range c.subs {
		if s.joined {
			subs = append(subs, s)
		}
	}
	return subs
}

// cut gives up the connection: another one may serve better.
func (c *Client) cut(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil {
		c.conn.fail(why)
	}
}
