package client

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"eventhub"
	"eventhub/internal/eventid"
	"eventhub/wire"
)

// publishOnce is Publish without a second try.
func (c *Client) publishOnce(ctx context.Context, events []eventhub.Event) ([]eventhub.Receipt, error) {
	if len(events) == 0 {
		return nil, nil
	}
	e := newExchange(publish)
	defer e.recycle()
	e.number(c, 1)
	pubs := [...]eventhub.Publication{{Events: events}}
	e.numbered = c.numbered(pubs[:])
	if err := e.addPublish(c, &pubs[0]); err != nil {
		return nil, fmt.Errorf("client: publish: %w", err)
	}
	err := c.enter(ctx, e)
	if err == nil {
		err = c.wait(ctx, e)
	}
	if err == nil {
		err = e.answers[0].err
	}
	receipts := slices.Clone(e.receipts)
	if err != nil {
		return receipts, fmt.Errorf("client: publish: %w", err)
	}
	return receipts, nil
}

// addPublish appends the frame of a publication.
func (e *exchange) addPublish(c *Client, pub *eventhub.Publication) error {
	if err := pub.ValidateWait(); err != nil {
		return err
	}
	return e.addEvents(c, pub.Events, func(dst []byte, events []eventhub.Event) ([]byte, error) {
		switch {
		case len(pub.WaitFor) > 0:
			return wire.AppendPublishWait(dst, e.next(), events, pub.WaitFor, pub.WaitUpTo)
		case len(events) == 1:
			return wire.AppendPublish(dst, e.next(), &events[0])
		}
		return wire.AppendPublishBatch(dst, e.next(), events)
	})
}

// addEvents appends the frame that encode makes of events, which get an id if
// they have none. A frame above the hub's limit is refused. After an error the
// exchange is as before.
func (e *exchange) addEvents(c *Client, events []eventhub.Event, encode func(dst []byte, events []eventhub.Event) ([]byte, error)) error {
	n := len(e.receipts)
	frames, err := e.frames, e.takeEvents(events)
	if err == nil {
		frames, err = encode(e.frames, e.events)
	}
	if err == nil {
		err = c.fits(len(frames)-len(e.frames)+e.seqRoom(), len(events), "events")
	}
	clear(e.events)
	e.events = e.events[:0]
	if err != nil {
		e.receipts, e.made = e.receipts[:n], e.made[:n]
		return err
	}
	e.add(frames, len(events))
	return nil
}

// takeEvents copies the events to e.events, with an id each.
func (e *exchange) takeEvents(events []eventhub.Event) error {
	if len(events) > wire.MaxEvents {
		return eventhub.Errorf(eventhub.CodeBadRequest, "there are %d events; at most %d are one step", len(events), wire.MaxEvents)
	}
	for i := range events {
		event := events[i]
		// The hub's clock, not this machine's, judges times.
		if err := event.Validate(time.UnixMilli(max(event.TS, eventhub.Millis(event.DeliverAt)))); err != nil {
			return about(i, len(events), err)
		}
		made := event.ID == ""
		if made && !e.numbered {
			event.ID = eventid.New()
		}
		e.events = append(e.events, event)
		e.receipts = append(e.receipts, eventhub.Receipt{ID: event.ID})
		e.made = append(e.made, made)
	}
	return nil
}

// about names the event of a batch, as the hub does.
func about(i, n int, err error) error {
	if n == 1 {
		return err
	}
	return eventhub.AtIndex(err, "events", i)
}

// PublishAndWait is eventhub.PublishAndWait: it publishes and waits until the groups
// have acked all of the events.
func (c *Client) PublishAndWait(ctx context.Context, groups []string, wait time.Duration, events ...eventhub.Event) ([]eventhub.Receipt, error) {
	return eventhub.PublishAndWait(ctx, c, groups, wait, events...)
}

// enqueueOnce is Enqueue without a second try.
func (c *Client) enqueueOnce(ctx context.Context, pubs []eventhub.Publication, done func([]eventhub.Publication)) {
	e := newExchange(publish)
	e.number(c, len(pubs))
	e.numbered = c.numbered(pubs)
	for i := range pubs {
		pubs[i].Receipts, pubs[i].Err = pubs[i].Receipts[:0], nil
		if len(pubs[i].Events) > 0 {
			pubs[i].Err = e.addPublish(c, &pubs[i])
		}
	}
	c.start(ctx, e, func(e *exchange) {
		at := 0
		for i := range pubs {
			if pub := &pubs[i]; pub.Err == nil && len(pub.Events) > 0 {
				pub.Receipts, pub.Err = e.outcome(at, pub.Receipts)
				at++
			}
		}
	}, func() { done(pubs) })
}

// outcome is that of one frame; the receipts are appended to receipts.
func (e *exchange) outcome(at int, receipts []eventhub.Receipt) ([]eventhub.Receipt, error) {
	from, to := e.span(at)
	return append(receipts, e.receipts[from:to]...), e.answers[at].err
}

// start begins an exchange that nobody waits for. When all is answered, which may
// be before start returns, distribute hands the answers out, then done is called.
// Without a frame only done is.
func (c *Client) start(ctx context.Context, e *exchange, distribute func(*exchange), done func()) {
	if len(e.ends) == 0 {
		e.recycle()
		done()
		return
	}
	e.calls = true
	e.done = func(e *exchange) {
		distribute(e)
		e.recycle()
		done()
	}
	if err := c.enter(ctx, e); err != nil {
		e.failRest(err)
		e.done(e)
	}
}

// failRest gives every frame without an answer this one.
func (e *exchange) failRest(err error) {
	for i := range e.answers {
		if a := &e.answers[i]; !a.given {
			a.given, a.err = true, err
		}
	}
}

// enter waits for room and registers a publish. Of one with done it watches the
// context until all is answered.
func (c *Client) enter(ctx context.Context, e *exchange) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.admit(); err != nil {
		return err
	}
	if err := c.mayNumber(e); err != nil {
		return err
	}
	if !c.room.take(e.items(), len(e.frames)) {
		if err := c.awaitRoom(ctx, e); err != nil {
			return err
		}
		if c.phase == closed { // the room is of no use any more
			return c.cause
		}
		if err := c.mayNumber(e); err != nil {
			c.room.give(e.items(), len(e.frames))
			return err
		}
	}
	c.register(e)
	if e.done != nil && ctx.Done() != nil {
		c.watchOver(ctx, e)
	}
	return nil
}

// admit says why no publish can begin. c.mu is held.
func (c *Client) admit() error {
	switch c.phase {
	case emptying:
		return ErrClosed
	case closed:
		return c.cause
	}
	return nil
}

// room is what the publishes that are not answered may take: a number of events
// and bytes. Who finds none waits in line. One that asks for more than there is
// gets it when it is alone. Guarded by Client.mu.
type room struct {
	maxEvents, maxBytes int
	events, bytes       int
	waiting             []*waiter
}

type waiter struct {
	events, bytes int
	granted       chan error // one value
}

func (r *room) fits(events, bytes int) bool {
	return r.events == 0 || r.events+events <= r.maxEvents && r.bytes+bytes <= r.maxBytes
}

// empty reports whether nobody is in or waits.
func (r *room) empty() bool { return r.events == 0 && len(r.waiting) == 0 }

func (r *room) take(events, bytes int) bool {
	if len(r.waiting) > 0 || !r.fits(events, bytes) {
		return false
	}
	r.events += events
	r.bytes += bytes
	return true
}

func (r *room) give(events, bytes int) {
	r.events -= events
	r.bytes -= bytes
	for len(r.waiting) > 0 && r.fits(r.waiting[0].events, r.waiting[0].bytes) {
		w := r.waiting[0]
		r.waiting = r.waiting[1:]
		r.events += w.events
		r.bytes += w.bytes
		w.granted <- nil
	}
}

// refuse sends everybody in line away.
func (r *room) refuse(cause error) {
	for _, w := range r.waiting {
		w.granted <- cause
	}
	r.waiting = nil
}

// awaitRoom waits in line. c.mu is held, and released meanwhile.
func (c *Client) awaitRoom(ctx context.Context, e *exchange) error {
	w := &waiter{e.items(), len(e.frames), make(chan error, 1)}
	c.room.waiting = append(c.room.waiting, w)
	c.mu.Unlock()
	select {
	case err := <-w.granted:
		c.mu.Lock()
		return err
	case <-ctx.Done():
	}
	c.mu.Lock()
	for i, other := range c.room.waiting {
		if other == w {
			c.room.waiting = append(c.room.waiting[:i:i], c.room.waiting[i+1:]...)
			c.room.give(0, 0) // those that waited after it may fit
			c.settled()
			return context.Cause(ctx)
		}
	}
	if err := <-w.granted; err != nil { // it came at the same moment
		return err
	}
	c.room.give(w.events, w.bytes)
	c.settled()
	return context.Cause(ctx)
}

// PublishJSON publishes v as the payload of e, whose Payload it replaces; for
// the rest it is Publish.
func PublishJSON[T any](ctx context.Context, p eventhub.Publisher, e eventhub.Event, v T) (eventhub.Receipt, error) {
	payload, err := json.Marshal(v)
	if err != nil {
		return eventhub.Receipt{}, fmt.Errorf("client: payload of an event to %q: %w", e.Topic, err)
	}
	e.Payload = payload
	receipts, err := p.Publish(ctx, e)
	if len(receipts) == 0 {
		return eventhub.Receipt{}, err
	}
	return receipts[0], err
}
