package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"eventhub"
	"eventhub/wire"
)

// subKey names a subscription as its SUBSCRIBE does.
type subKey struct{ topic, group string }

func (k subKey) String() string { return k.topic + "::" + k.group }

// subscription is one membership, made anew on every connection.
//
// It is in Client.subs from Subscribe until it is left or ends. What a receiver
// has no room for is held here, because the hub has handed it over for good; the
// group's maxInFlight bounds it. delivering makes the client's goroutine and the
// one that Ready starts take turns.
type subscription struct {
	c        *Client
	opts     eventhub.SubscribeOptions
	receiver eventhub.Receiver

	joined bool // the hub has said OK once; guarded by Client.mu

	closed  atomic.Bool // nothing is delivered any more
	starved atomic.Bool // something may be held

	delivering sync.Mutex
	held       []eventhub.Delivery
}

func (s *subscription) key() subKey { return subKey{s.opts.Topic, s.opts.Group} }

// Subscribe implements eventhub.Subscriber. A client is at most one member of a
// group in a topic (CodeAlreadySubscribed): more members need more clients. While
// there is no connection it waits for one. The membership lasts over lost
// connections: deliveries of the lost one come again, and those that r had no
// room for are dropped. Receiver.Ended is called when the client ends, and when
// the hub refuses to take the member back; like Deliver it must not wait for the
// client. [Client.Consume] is the comfortable way.
//
// Of the Subscription, Drop leaves as Unsubscribe does, without waiting: the
// attempts are given back. Verdicts that are given while there is no connection
// wait for one, and count where nobody holds the event by then.
func (c *Client) Subscribe(ctx context.Context, opts eventhub.SubscribeOptions, r eventhub.Receiver) (eventhub.Subscription, error) {
	s, err := c.join(ctx, opts, r)
	if err != nil {
		return nil, fmt.Errorf("client: subscribe to %s: %w", subKey{opts.Topic, opts.Group}, err)
	}
	return s, nil
}

func (c *Client) join(ctx context.Context, opts eventhub.SubscribeOptions, r eventhub.Receiver) (*subscription, error) {
	opts = opts.WithDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	s := &subscription{c: c, opts: opts, receiver: r}
	e := newExchange(subscribe)
	defer e.recycle()
	e.sub = s
	e.number(c, 1)
	e.add(wire.AppendSubscribe(e.frames, e.next(), &s.opts))
	if err := c.begin(s, e); err != nil {
		return nil, err
	}
	err := c.wait(ctx, e)
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
		s.Drop()
		return nil, err
	}
	return s, nil
}

// begin registers a new subscription.
func (c *Client) begin(s *subscription, e *exchange) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.phase == closed:
		return c.cause
	case c.phase != open:
		return ErrClosed
	case c.subs[s.key()] != nil:
		return eventhub.Errorf(eventhub.CodeAlreadySubscribed, "%s", s.key())
	}
	c.subs[s.key()] = s
	c.register(e)
	return nil
}

// resubscribe makes the exchanges that take all members back. c.mu is held.
func (c *Client) resubscribe() {
	for _, s := range c.subs {
		if !s.joined {
			continue // its own SUBSCRIBE is pending
		}
		e := &exchange{kind: resubscribe, sub: s, left: 1}
		e.done = func(e *exchange) {
			if err := e.answers[0].err; err != nil {
				c.lose(s, err)
			}
		}
		e.number(c, 1)
		e.add(wire.AppendSubscribe(nil, e.next(), &s.opts))
		c.pending[e.first] = slot{e, 0} // attach sends it
	}
}

// complaint deals with an ERR that answers nothing: the end of a subscription,
// or a refused verdict of Consume.
func (c *Client) complaint(err *eventhub.Error) {
	c.mu.Lock()
	var ended *subscription
	for key, s := range c.subs {
		if strings.HasPrefix(err.Message, key.String()+": ") {
			ended = s
		}
	}
	c.mu.Unlock()
	switch {
	case ended == nil:
		c.cfg.logger.Debug("the hub refused a verdict", "error", err)
	case isPassing(err):
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
		s.end(fmt.Errorf("client: subscription %s: %w", s.key(), err))
	}
}

// deliver hands a batch to the receiver, as far as it has room.
func (s *subscription) deliver(batch []eventhub.Delivery) {
	s.delivering.Lock()
	defer s.delivering.Unlock()
	if s.closed.Load() {
		return
	}
	taken := 0
	if len(s.held) == 0 {
		s.starved.Store(true) // before: Ready may follow a refusal at once
		taken = s.receiver.Deliver(batch)
		s.starved.Store(taken < len(batch))
	}
	for _, d := range batch[taken:] {
		d.Record = slices.Clone(d.Record)
		s.held = append(s.held, d)
	}
}

// Ready implements eventhub.Subscription. The receiver may hold a lock that its
// Deliver needs, so another goroutine delivers.
func (s *subscription) Ready() {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.phase != closed && s.starved.Swap(false) {
		c.tasks.Go(s.deliverHeld)
	}
}

func (s *subscription) deliverHeld() {
	s.delivering.Lock()
	defer s.delivering.Unlock()
	if s.closed.Load() || len(s.held) == 0 {
		return
	}
	s.starved.Store(true)
	s.held = s.held[s.receiver.Deliver(s.held):]
	if len(s.held) == 0 {
		s.held = nil
		s.starved.Store(false)
	}
}

// lost forgets what came over a connection that is gone.
func (s *subscription) lost() {
	s.delivering.Lock()
	s.held = nil
	s.delivering.Unlock()
	if k, ok := s.receiver.(*keeper); ok {
		k.lost()
	}
}

// end tells the receiver, once, behind its last delivery.
func (s *subscription) end(err error) {
	if s.closed.Swap(true) {
		return
	}
	s.delivering.Lock()
	s.held = nil
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
	e := s.leave()
	if e == nil {
		return nil
	}
	defer e.recycle()
	err := s.c.wait(ctx, e)
	if err == nil {
		_, err = e.err()
	}
	if err != nil && eventhub.ErrorCode(err) != eventhub.CodeNotSubscribed {
		return fmt.Errorf("client: unsubscribe from %s: %w", s.key(), err)
	}
	return nil
}

// Drop implements eventhub.Subscription.
func (s *subscription) Drop() {
	if e := s.leave(); e != nil {
		s.c.mu.Lock()
		defer s.c.mu.Unlock()
		s.c.abandon(e) // nobody waits for the answer
	}
}

// leave takes the subscription out and sends its UNSUBSCRIBE, if there is
// anything to leave.
func (s *subscription) leave() *exchange {
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
	e := newExchange(unsubscribe)
	e.number(c, 1)
	e.add(wire.AppendUnsubscribe(e.frames, e.next(), s.opts.Topic, s.opts.Group))
	c.register(e)
	return e
}

// Settle implements eventhub.Subscription.
func (s *subscription) Settle(ctx context.Context, v eventhub.Settlement) ([]eventhub.Outcome, error) {
	return s.c.Settle(ctx, s.opts.Topic, s.opts.Group, v)
}

// Settle implements eventhub.Subscriber. Refs without a lease mean deliveries of
// the present connection. An error may leave a part of the refs settled.
func (c *Client) Settle(ctx context.Context, topic, group string, v eventhub.Settlement) ([]eventhub.Outcome, error) {
	if err := v.Validate(); err != nil {
		return nil, err
	}
	if len(v.Refs) == 0 {
		return nil, nil
	}
	e := newExchange(settle)
	defer e.recycle()
	e.number(c, len(v.Refs))
	for _, ref := range v.Refs {
		e.add(wire.AppendSettle(e.frames, e.next(), topic, group, &v, ref))
	}
	err := c.submit(e)
	if err == nil {
		err = c.wait(ctx, e)
	}
	if err != nil {
		return nil, fmt.Errorf("client: settle in %s: %w", subKey{topic, group}, err)
	}
	outcomes := make([]eventhub.Outcome, len(v.Refs))
	for i := range outcomes {
		if outcomes[i], err = e.outcome(i, v.Verdict); err != nil {
			return nil, fmt.Errorf("client: settle in %s: %w", subKey{topic, group}, err)
		}
	}
	return outcomes, nil
}

func (e *exchange) outcome(i int, verdict eventhub.Verdict) (eventhub.Outcome, error) {
	a := &e.answers[i]
	var refused *eventhub.Error
	switch {
	case a.stale:
		return eventhub.Stale, nil
	case verdict == eventhub.Extend && errors.As(a.err, &refused) && refused.Code == eventhub.CodeUnknownID:
		return eventhub.Unknown, nil
	}
	return eventhub.Applied, a.err
}
