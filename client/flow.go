package client

import (
	"slices"
	"time"

	"eventhub"
	"eventhub/wire"
)

// Deliveries reach the receiver in the order in which they came. What it has no
// room for is held until Ready; delivering makes the client's goroutine and the
// one that Ready starts take turns.
//
// What is held of a group with leases is bounded by the group's max_in_flight, and
// forgotten with its connection, because it comes again. What is held without
// leases will not come again and is kept; there the hub sends what the connection
// takes, so the client says stop: above maxHeldBytes it sends UNSUBSCRIBE, and
// when that is answered and nothing is held any more, SUBSCRIBE. A group goes on
// from its cursor, a tail after the last event of each topic (see tailPosition).

// maxHeldBytes is how much of a subscription without leases waits for its
// receiver before the client says stop. What is on its way then comes on top.
const maxHeldBytes = 4 << 20

// flow is whether the hub sends.
type flow uint8

const (
	flowing  flow = iota
	stopping      // UNSUBSCRIBE is not answered
	stopped
)

// deliver hands a batch to the receiver, as far as it has room.
func (s *subscription) deliver(batch []eventhub.Delivery) {
	s.delivering.Lock()
	defer s.delivering.Unlock()
	ended := s.closed.Load()
	k, keeps := s.receiver.(*keeper)
	if ended && !keeps {
		return
	}
	s.advance(batch)
	for i := range batch {
		batch[i].Bind(s)
		if batch[i].Epoch != 0 {
			s.epochs.note(&batch[i])
		}
		if batch[i].Gap != nil && s.position != nil {
			s.logGap(*batch[i].Gap)
		}
	}
	if ended {
		k.retain(batch)
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
		s.heldBytes += len(d.Record)
	}
	if s.opts.AutoAck && s.heldBytes > maxHeldBytes {
		s.stop()
	}
}

// advance notes how far a tail is. s.delivering is held.
func (s *subscription) advance(batch []eventhub.Delivery) {
	if s.position != nil {
		s.position.advance(batch)
	}
}

// tailBegins gives a tail what the answer to its SUBSCRIBE says, before what comes after
// it is delivered.
func (c *Client) tailBegins(f *wire.HubFrame) {
	sub := c.subscribes(f)
	if sub == nil {
		return
	}
	sub.know(f.Known)
	for _, g := range f.Gaps {
		sub.tellGap(g)
	}
}

// subscribes returns the subscription whose SUBSCRIBE a frame answers; nil: it is no such answer, or nobody waits for
// it any more. The exchange is read with c.mu held, for whoever gives up gives it back, and then it is another's.
func (c *Client) subscribes(f *wire.HubFrame) *subscription {
	corr, _ := f.CorrNumber()
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.pending[corr].of; e != nil {
		return e.sub
	}
	return nil
}

// groupBegins tells what the answer to the SUBSCRIBE of a group says: that the group had ended.
func (c *Client) groupBegins(f *wire.HubFrame) {
	sub := c.subscribes(f)
	if sub == nil {
		return
	}
	for _, g := range f.Ended {
		if on := sub.opts.OnEnded; on != nil {
			on(g)
			continue
		}
		c.cfg.logger.Warn("a group had ended because nobody used it; it begins anew, where the subscription says",
			"subscription", sub.key(), "topic", g.Topic, "ended", time.UnixMilli(g.TS), "cursor", g.Cursor)
	}
}

// know keeps for the next SUBSCRIBE of a tail what the hub wants to have back then.
func (s *subscription) know(known string) {
	s.delivering.Lock()
	defer s.delivering.Unlock()
	if s.position != nil {
		s.position.known = known
	}
}

// tellGap notifies the receiver of a gap that is known when a tail begins.
func (s *subscription) tellGap(g eventhub.Gap) {
	s.logGap(g)
	s.delivering.Lock()
	defer s.delivering.Unlock()
	if r, ok := s.receiver.(eventhub.Gapped); ok && !s.closed.Load() {
		r.Gap(g)
	}
}

func (s *subscription) logGap(g eventhub.Gap) {
	switch {
	case g.First == 0:
		s.c.cfg.logger.Warn("a live tail goes on with what was committed later: the hub does not have what it has seen",
			"subscription", s.key(), "topic", g.Topic, "after", g.After)
	case g.Compacted > 0:
		s.c.cfg.logger.Warn("a topic was compacted before a live tail had its events: those after one offset and before first are gone, later ones may be",
			"subscription", s.key(), "topic", g.Topic, "after", g.After, "first", g.First, "compacted", g.Compacted, "tombstones", g.Tombstones)
	default:
		s.c.cfg.logger.Warn("events that a live tail has not seen were removed", "subscription", s.key(), "topic", g.Topic, "after", g.After, "first", g.First)
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
	s.letGo(s.receiver.Deliver(s.held))
	if len(s.held) == 0 {
		s.starved.Store(false)
		s.goOn()
	}
}

// letGo takes the first n off what is held. s.delivering is held.
func (s *subscription) letGo(n int) {
	for i := range s.held[:n] {
		s.heldBytes -= len(s.held[i].Record)
		s.held[i] = eventhub.Delivery{}
	}
	if s.held = s.held[n:]; len(s.held) == 0 {
		s.held = nil
	}
}

// lost deals with the end of the connection over which deliveries came.
func (s *subscription) lost() {
	s.delivering.Lock()
	defer s.delivering.Unlock()
	if s.opts.AutoAck {
		s.c.mu.Lock()
		defer s.c.mu.Unlock()
		s.follow()
		return
	}
	s.epochs.owe(s.held)
	s.letGo(len(s.held))
	if f, ok := s.receiver.(eventhub.Forgetter); ok {
		f.Forget()
	}
}

// follow makes the next SUBSCRIBE of a tail begin where its position says. s.delivering
// and c.mu are held.
func (s *subscription) follow() {
	if s.position != nil {
		s.start, s.known, s.snapshot, s.places = s.position.resume()
	}
}

// stop makes the hub stop sending. s.delivering is held.
func (s *subscription) stop() {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.flow != flowing || c.conn == nil || c.phase == closed || c.subs[s.key()] != s {
		return
	}
	s.flow = stopping
	e := newExchange(unsubscribe)
	e.done = func(e *exchange) {
		e.recycle()
		s.delivering.Lock()
		defer s.delivering.Unlock()
		s.halted()
	}
	e.number(c, 1)
	e.add(wire.AppendUnsubscribe(e.frames, e.next(), s.opts.Topic, s.opts.Group), 0)
	c.register(e)
}

// halted notes that the hub has stopped sending. s.delivering is held.
func (s *subscription) halted() {
	s.c.mu.Lock()
	s.flow = stopped
	s.c.mu.Unlock()
	if len(s.held) == 0 {
		s.goOn()
	}
}

// goOn has the hub send again, if it had been stopped. Nothing is held, and
// s.delivering is.
func (s *subscription) goOn() {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.flow == stopped {
		s.flow = flowing
		s.follow()
		s.rejoin()
	}
}

// rejoin subscribes again on the present connection; without one, attach will.
// c.mu is held.
func (s *subscription) rejoin() {
	c := s.c
	if c.conn != nil && c.phase != closed && c.subs[s.key()] == s {
		c.register(s.again())
	}
}
