package client

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"eventhub"
	"eventhub/wire"
)

// subKey names a subscription as its SUBSCRIBE does; a live tail has no group.
type subKey struct{ topic, group string }

func (k subKey) String() string {
	if k.group == "" {
		return k.topic
	}
	return k.topic + "::" + k.group
}

// subscription is one membership or live tail, made again on every connection. It
// is in Client.subs from Subscribe until it is left or ends. See flow.go for the
// way of its deliveries.
type subscription struct {
	c        *Client
	opts     wire.SubscribeOptions
	receiver eventhub.Receiver
	batch    bool // EVENTS are asked for

	// Guarded by Client.mu.
	joined   bool // the hub has said OK once
	paused   bool // as the hub knows, or will after the next SUBSCRIBE
	start    eventhub.Start
	known    string
	places   []eventhub.Place
	snapshot string
	flow     flow

	closed  atomic.Bool // nothing is delivered any more
	starved atomic.Bool // something may be held

	delivering sync.Mutex // may be held when Client.mu is taken, not the other way round
	held       []eventhub.Delivery
	heldBytes  int
	position   *tailPosition // of a tail, for the next SUBSCRIBE
	epochs     epochs        // of a group
}

func (s *subscription) key() subKey { return subKey{s.opts.Topic, s.opts.Group} }

// Subscribe implements eventhub.Subscriber. A client is at most one member of a
// group in a topic (CodeAlreadySubscribed): more need more clients. While there is no
// connection it waits for one. The membership lasts over lost connections: deliveries
// of the lost one come again, and those of them that r had no room for are discarded.
// Receiver.Ended is called when the client ends, and when the hub refuses to take the
// member back; like Deliver it must not wait for the client. [Client.Consume] is the
// comfortable way.
//
// With AutoAck nothing but the connection bounds what a hub sends: where more than
// 4 MiB wait for r the client leaves, and subscribes again when r has taken all that
// had come.
//
// Of the Subscription, Drop leaves as Unsubscribe does, without waiting: all
// attempts are given back, whatever its argument. Subscribe under the same name then
// waits until the hub has answered that the first one is over. Pause and Resume return
// when the hub has obeyed; what it had sent before may still be delivered. A paused
// subscription stays so over lost connections: PAUSE follows its SUBSCRIBE at once,
// though a few events may come in between. Verdicts that are given while there is no
// connection wait for one, and count where nobody holds the event by then; for
// AckAndPublish see [Client.AckAndPublish].
func (c *Client) Subscribe(ctx context.Context, opts eventhub.GroupOptions, r eventhub.Receiver) (eventhub.Subscription, error) {
	opts = opts.WithDefaults()
	err := opts.Validate() // a group without a name must not become a tail
	var s *subscription
	if err == nil {
		s, err = c.join(ctx, wire.SubscribeOptions{GroupOptions: opts}, r)
	}
	if err != nil {
		return nil, fmt.Errorf("client: subscribe to %s: %w", subKey{opts.Topic, opts.Group}, err)
	}
	return s, nil
}

// Tail implements eventhub.Subscriber. A client has at most one live tail of a topic
// or pattern (CodeAlreadySubscribed). [Client.Follow] and [Client.Events] are the
// comfortable ways. What Subscribe says of connections, Ended, room (as with AutoAck)
// and the Subscription holds here too.
//
// A tail continues after the last event that came of each of its topics, so that over
// lost connections no event comes twice and none is left out
// that the log still has. Where a hub does not have that event any more, because it was
// restored or is another one, the topic goes on with what was committed after that
// event or has a higher offset. A line in the log says so, and the receiver is notified,
// if it is an [eventhub.Gapped], before what follows comes. A tail to which nothing came
// yet starts as asked; at the first event where Start is after an event that is not there
// any more.
//
// A topic that is created while there is no connection begins at its first event, also
// where an import gave that an old time: so it would be if the tail had been there. To a
// hub that is another one, and no copy, nothing is known to be new, and topics begin as
// follows.
//
// A topic without an event so far begins where the tail began, or, where that was the
// latest event, a second before the tail was made: what was published while there was no
// connection comes. Of more than 10,000 topics, or 1 MiB of their names, some come again
// from there.
func (c *Client) Tail(ctx context.Context, opts eventhub.TailOptions, r eventhub.Receiver) (eventhub.Subscription, error) {
	s, err := c.joinTail(ctx, opts, r)
	if err != nil {
		return nil, fmt.Errorf("client: tail of %s: %w", opts.Topic, err)
	}
	return s, nil
}

func (c *Client) joinTail(ctx context.Context, opts eventhub.TailOptions, r eventhub.Receiver) (*subscription, error) {
	if opts.Known != "" || opts.Snapshot != "" {
		return nil, eventhub.Errorf(eventhub.CodeUnsupportedOp, "known or snapshot are given; a client goes on from its own")
	}
	return c.join(ctx, wire.OfTail(opts), r)
}

func (c *Client) join(ctx context.Context, opts wire.SubscribeOptions, r eventhub.Receiver) (*subscription, error) {
	opts = opts.WithDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	s := &subscription{c: c, opts: opts, receiver: r, start: opts.Start}
	s.batch = c.cfg.batches && (opts.IsTail() || opts.MaxInFlight > 1)
	if opts.IsTail() {
		s.position = newTailPosition(opts.Start, opts.Places)
	}
	e := newExchange(subscribe)
	defer e.recycle()
	e.sub = s
	e.number(c, 1)
	e.add(wire.AppendSubscribe(e.frames, e.next(), &s.opts, s.batch), 0)
	err := c.begin(ctx, s, e)
	if err != nil {
		return nil, err
	}
	err = c.wait(ctx, e)
	if err == nil {
		_, err = e.err()
	}
	c.mu.Lock()
	late := err == nil && c.phase != open && c.phase != closed // it escaped Drain
	c.mu.Unlock()
	if late {
		err = ErrClosed
	}
	if err != nil {
		s.Drop(0)
		return nil, err
	}
	return s, nil
}

// begin registers a new subscription. Deliveries have no other name than that of
// their subscription, so one of the same name that was left has to be over first:
// what is on its way to it would reach the new one.
func (c *Client) begin(ctx context.Context, s *subscription, e *exchange) error {
	for {
		before, err := c.tryBegin(s, e)
		if before == nil {
			return err
		}
		select {
		case <-before.over:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// tryBegin returns the parting that has to be over before.
func (c *Client) tryBegin(s *subscription, e *exchange) (*parting, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.phase == closed:
		return nil, c.cause
	case c.phase != open:
		return nil, ErrClosed
	case c.subs[s.key()] != nil:
		return nil, eventhub.Errorf(eventhub.CodeAlreadySubscribed, "this client has a subscription %s already", s.key())
	case c.partings[s.key()] != nil:
		return c.partings[s.key()], nil
	}
	c.subs[s.key()] = s
	c.register(e)
	return nil, nil
}

// resubscribe makes the exchanges that take all members back. c.mu is held.
func (c *Client) resubscribe() {
	for _, s := range c.subs {
		if !s.joined || s.flow != flowing {
			continue // its own SUBSCRIBE is pending, or waits for the receiver
		}
		e := s.again()
		c.serial++
		e.serial = c.serial // its SUBSCRIBE and its PAUSE go one after the other
		e.left = len(e.ends)
		for i := range e.ends {
			c.pending[e.first+uint64(i)] = slot{e, i} // attach sends it
		}
	}
}

// again makes the exchange that takes the subscription back. c.mu is held.
func (s *subscription) again() *exchange {
	e := &exchange{kind: resubscribe, sub: s}
	e.done = func(e *exchange) {
		i, err := e.err()
		if i == 1 && eventhub.ErrorCode(err) == eventhub.CodeNotSubscribed {
			return // it has ended by itself again, and its end says why
		}
		if err != nil {
			s.refused(err)
		}
	}
	opts := s.opts
	opts.Start, opts.Known, opts.Snapshot, opts.Places = s.start, s.known, s.snapshot, s.places
	e.number(s.c, 2)
	e.add(wire.AppendSubscribe(nil, e.next(), &opts, s.batch), 0)
	if s.paused {
		e.add(wire.AppendPause(e.frames, e.next(), opts.Topic, opts.Group), 0)
	}
	return e
}

// refused deals with a hub that does not take the subscription back. A tail to which
// nothing came, and whose beginning is not in the log any more, begins at the first
// event: which of them come after it nobody knows.
func (s *subscription) refused(err error) {
	if s.position == nil || eventhub.ErrorCode(err) != eventhub.CodeUnknownID {
		s.c.lose(s, err)
		return
	}
	s.c.cfg.logger.Warn("a live tail begins at the first event: the place that it was at is not in the log any more", "subscription", s.key(), "error", err)
	s.delivering.Lock()
	defer s.delivering.Unlock()
	s.position.origin = eventhub.Earliest
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	s.follow()
	s.rejoin()
}

// complaint deals with an ERR that answers nothing: the end of a subscription,
// or a refused verdict of Consume.
func (c *Client) complaint(err *eventhub.Error) {
	c.mu.Lock()
	ended := c.subs[subKey{err.Topic, err.Group}] // no subscription has an empty topic
	c.mu.Unlock()
	switch {
	case ended == nil:
		c.cfg.logger.Debug("the hub refused a verdict", "error", err)
	case err.Code.Passing():
		c.cut(err) // the next connection takes the member back
	default:
		c.lose(ended, err)
	}
}

// lose ends a subscription that the hub will not take back.
func (c *Client) lose(s *subscription, err error) {
	c.mu.Lock()
	mine := c.subs[s.key()] == s
	if mine {
		delete(c.subs, s.key())
		c.settled()
	}
	c.mu.Unlock()
	if mine {
		s.end(fmt.Errorf("client: subscription %s: %w", s.key(), eventhub.Ending(err, s.opts.Topic, s.opts.Group)))
	}
}

// end notifies the receiver, once, after its last delivery.
func (s *subscription) end(err error) {
	if s.closed.Swap(true) {
		return
	}
	s.delivering.Lock()
	s.letGo(len(s.held))
	s.delivering.Unlock()
	s.receiver.Ended(err)
}

// drain ends the subscription for Drain. Consume leaves by itself when its
// handlers are done.
func (s *subscription) drain(ctx context.Context) {
	s.end(ErrClosed)
	if _, ok := s.receiver.(*keeper); !ok {
		if err := s.Unsubscribe(ctx); err != nil {
			s.c.cfg.logger.Debug("unsubscribe while draining", "subscription", s.key(), "error", err)
		}
	}
}

// Unsubscribe implements eventhub.Subscription. Without a connection there is
// nothing to leave.
func (s *subscription) Unsubscribe(ctx context.Context) error {
	p := s.leave()
	if p == nil {
		return nil
	}
	var err error
	select {
	case <-p.over:
		err = p.err
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil && eventhub.ErrorCode(err) != eventhub.CodeNotSubscribed {
		return fmt.Errorf("client: unsubscribe from %s: %w", s.key(), err)
	}
	return nil
}

// Drop implements eventhub.Subscription.
func (s *subscription) Drop(int) { s.leave() }

// Sent implements eventhub.Subscription. The hub knows nothing of queues over here.
func (s *subscription) Sent(int) {}

// Pause implements eventhub.Subscription.
func (s *subscription) Pause(ctx context.Context) error { return s.setPaused(ctx, true) }

// Resume implements eventhub.Subscription.
func (s *subscription) Resume(ctx context.Context) error { return s.setPaused(ctx, false) }

// setPaused notifies the hub whether to deliver. A hub that does not have the member at
// the moment is notified when it takes it back.
func (s *subscription) setPaused(ctx context.Context, pause bool) error {
	e, err := s.sendPaused(pause)
	if e == nil {
		return err
	}
	defer e.recycle()
	if err = s.c.wait(ctx, e); err != nil {
		return fmt.Errorf("client: pause or resume %s: %w", s.key(), err)
	}
	_, err = e.err()
	if err == nil || eventhub.ErrorCode(err) == eventhub.CodeNotSubscribed {
		return nil
	}
	s.c.mu.Lock()
	s.paused = !pause
	s.c.mu.Unlock()
	return fmt.Errorf("client: pause or resume %s: %w", s.key(), err)
}

// sendPaused sends PAUSE or RESUME, if there is a member to say it of.
func (s *subscription) sendPaused(pause bool) (*exchange, error) {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.phase == closed {
		return nil, c.cause
	}
	s.paused = pause
	if c.conn == nil || s.flow != flowing || c.subs[s.key()] != s {
		return nil, nil
	}
	say := wire.AppendResume
	if pause {
		say = wire.AppendPause
	}
	e := newExchange(pausing)
	e.number(c, 1)
	e.add(say(e.frames, e.next(), s.opts.Topic, s.opts.Group), 0)
	c.register(e)
	return e, nil
}

// parting is an UNSUBSCRIBE that is not answered. Nothing of the subscription comes
// after the answer, or over another connection.
type parting struct {
	over chan struct{}
	err  error // set before over is closed
}

// leave takes the subscription out and sends its UNSUBSCRIBE, if there is
// anything to leave. Whoever waits for the answer may give up; the parting goes on.
func (s *subscription) leave() *parting {
	s.closed.Store(true)
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.subs[s.key()] != s {
		return nil
	}
	delete(c.subs, s.key())
	c.settled()
	if c.conn == nil || c.phase == closed {
		return nil
	}
	c.conn.appendAcks() // they go before it
	p := &parting{over: make(chan struct{})}
	c.partings[s.key()] = p
	e := newExchange(unsubscribe)
	e.done = func(e *exchange) {
		_, p.err = e.err()
		e.recycle()
		c.mu.Lock()
		delete(c.partings, s.key())
		c.mu.Unlock()
		close(p.over)
	}
	e.number(c, 1)
	e.add(wire.AppendUnsubscribe(e.frames, e.next(), s.opts.Topic, s.opts.Group), 0)
	c.register(e)
	return p
}
