package client

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"eventhub"
	"eventhub/internal/eventid"
	"eventhub/wire"
)

// Publish sends the events and waits for their receipts. While there is no
// connection it waits for one. Until the protocol has batches the events of one
// call are single publishes, sent together and in order, and not one atomic
// step: an error may leave any part of them published. The receipts are returned
// beside an error too: those with an offset are published; of those without, a
// refusal of the hub says that the event is not, while the end of ctx, ErrClosed
// and CodeInternal leave it open. Publishing again under the receipts' ids is
// always safe.
//
// Duplicate is reported for ids given by the caller only.
func (c *Client) Publish(ctx context.Context, events ...eventhub.Event) ([]eventhub.Receipt, error) {
	if len(events) == 0 {
		return nil, nil
	}
	e := newExchange(publish)
	defer e.recycle()
	e.number(c, len(events))
	for i := range events {
		if err := e.addEvent(c, &events[i]); err != nil {
			return nil, about(i, len(events), err)
		}
	}
	err := c.enter(ctx, e)
	if err == nil {
		err = c.wait(ctx, e)
	}
	receipts := make([]eventhub.Receipt, len(events))
	for i := range receipts {
		receipts[i] = e.receipt(i)
	}
	if err != nil {
		return receipts, fmt.Errorf("client: publish: %w", err)
	}
	if i, err := e.err(); err != nil {
		return receipts, about(i, len(events), err)
	}
	return receipts, nil
}

// about names the event of a batch.
func about(i, n int, err error) error {
	if n == 1 {
		return fmt.Errorf("client: publish: %w", err)
	}
	return fmt.Errorf("client: publish: event %d of %d: %w", i+1, n, err)
}

// addEvent appends the frame of one event, which gets an id if it has none. The
// hub's clock, not this machine's, judges its ts. A frame above the hub's limit
// is refused here: it would cost the connection, and the next one too.
func (e *exchange) addEvent(c *Client, event *eventhub.Event) error {
	if err := event.Validate(time.UnixMilli(event.TS)); err != nil {
		return err
	}
	e.event = *event
	made := e.event.ID == ""
	if made {
		e.event.ID = eventid.New()
	}
	frames, err := wire.AppendPublish(e.frames, e.next(), &e.event)
	if err != nil {
		return err
	}
	if n, limit := int64(len(frames)-len(e.frames)), c.limit.Load(); limit > 0 && n > limit {
		return eventhub.Errorf(eventhub.CodeTooLarge, "the frame has %d bytes; the hub takes %d", n, limit)
	}
	e.add(frames)
	e.ids = append(e.ids, e.event.ID)
	e.made = append(e.made, made)
	e.event = eventhub.Event{}
	return nil
}

// receipt makes the receipt of one event. Where the id is ours, a duplicate is
// what an earlier try of this very publish left.
func (e *exchange) receipt(i int) eventhub.Receipt {
	a := &e.answers[i]
	return eventhub.Receipt{ID: e.ids[i], Offset: a.offset, Duplicate: a.duplicate && !e.made[i]}
}

// Enqueue implements eventhub.Publisher. A publication of several events is not
// atomic here, see Publish; its Receipts are filled beside an Err as there. done
// is called by the client's own goroutine or, where nothing was sent, before
// Enqueue returns. When ctx ends later, what is not answered fails with its
// error, its outcome unknown.
func (c *Client) Enqueue(ctx context.Context, pubs []eventhub.Publication, done func([]eventhub.Publication)) {
	total := 0
	for i := range pubs {
		total += len(pubs[i].Events)
	}
	e := newExchange(publish)
	e.number(c, total)
	for i := range pubs {
		pubs[i].Err = e.addPublication(c, &pubs[i])
	}
	if len(e.ends) == 0 {
		e.recycle()
		done(pubs)
		return
	}
	e.done = func(e *exchange) {
		e.distribute(pubs)
		if e.stop == nil || e.stop() {
			e.recycle()
		}
		done(pubs)
	}
	if err := c.enter(ctx, e); err != nil {
		e.failRest(err)
		e.done(e)
	}
}

// addPublication appends the frames of all its events, or of none.
func (e *exchange) addPublication(c *Client, pub *eventhub.Publication) error {
	frames, n := len(e.frames), len(e.ends)
	for i := range pub.Events {
		if err := e.addEvent(c, &pub.Events[i]); err != nil {
			e.frames, e.ends, e.answers = e.frames[:frames], e.ends[:n], e.answers[:n]
			e.ids, e.made = e.ids[:n], e.made[:n]
			return about(i, len(pub.Events), err)
		}
	}
	return nil
}

// distribute hands the answers out to the publications that were sent.
func (e *exchange) distribute(pubs []eventhub.Publication) {
	at := 0
	for i := range pubs {
		pub := &pubs[i]
		pub.Receipts = pub.Receipts[:0]
		if pub.Err != nil {
			continue
		}
		for k := range pub.Events {
			pub.Receipts = append(pub.Receipts, e.receipt(at))
			if err := e.answers[at].err; err != nil && pub.Err == nil {
				pub.Err = about(k, len(pub.Events), err)
			}
			at++
		}
	}
}

// failRest gives every frame without an answer this one.
func (e *exchange) failRest(err error) {
	for i := range e.answers {
		if a := &e.answers[i]; a.err == nil && a.offset == 0 {
			a.err = err
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
	if !c.room.take(len(e.ends), len(e.frames)) {
		if err := c.awaitRoom(ctx, e); err != nil {
			return err
		}
		if c.phase == closed { // the room is of no use any more
			return c.cause
		}
	}
	c.register(e)
	if e.done != nil && ctx.Done() != nil {
		e.stop = context.AfterFunc(ctx, func() { c.giveUp(e, context.Cause(ctx)) })
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

// giveUp completes an exchange whose context has ended.
func (c *Client) giveUp(e *exchange, cause error) {
	c.mu.Lock()
	if c.phase == closed || !c.abandon(e) { // who closes completes it
		c.mu.Unlock()
		return
	}
	c.tasks.Add(1) // while run is one of them
	c.mu.Unlock()
	defer c.tasks.Done()
	e.failRest(cause)
	e.done(e)
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
	w := &waiter{len(e.ends), len(e.frames), make(chan error, 1)}
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
			c.room.give(0, 0) // who stood behind may fit
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
