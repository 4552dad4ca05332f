package client

import (
	"bytes"
	"maps"
	"sync"
	"time"

	"eventhub"
)

// keeper is between a subscription and the queue of eventhub.Consume. It
// knows the leases that are held, and keeps them from running out: those that came
// over the present connection and have no verdict, and those of a lost one whose
// handlers have not returned.
//
// The event of a lease comes again where the lease is over all the same: because its
// connection was lost, or because no extension got through in time. If a handler still
// has the event, the new lease is that handler's from then on; if none has begun, the new
// delivery replaces the one that waits.
type keeper struct {
	c    *Client
	opts eventhub.GroupOptions
	eventhub.Receiver

	mu      sync.Mutex
	held    map[spot]hold
	running map[attempt]eventhub.Lease // of lost connections, begun
	owed    map[string]bool            // topics whose next delivery is to say Sought
	heirs   map[eventhub.Lease]eventhub.Lease
	passed  map[eventhub.Lease]bool // given to handlers, in front of the receiver still

	acks []eventhub.Ref // not sent yet; guarded by Client.mu
}

// spot is what the leases of one event share, as long as the hub has the group loaded.
type spot struct{ runtime, offset uint64 }

func spotOf(lease eventhub.Lease) spot { return spot{lease.Runtime, lease.Offset} }

// hold is a lease that is kept.
type hold struct {
	serial   uint64    // of the lease
	since    time.Time // the lease runs since then
	topic    string
	record   eventhub.Record // once it is begun
	redriven int
	sought   bool // the delivery says it
	begun    bool // a handler has it
	handed   bool // its ack-and-publish is under way, which names this lease
}

func (h *hold) lease(at spot) eventhub.Lease {
	return eventhub.Lease{Runtime: at.runtime, Offset: at.offset, Serial: h.serial}
}

// isAt reports whether a handler is at the event of a delivery.
func (h *hold) isAt(d *eventhub.Delivery) bool {
	return h.begun && !h.handed && h.topic == d.Topic && h.redriven == d.Redriven && bytes.Equal(h.record.ID(), d.Record.ID())
}

// attempt is what a handler works on. An offset does not identify it: the next hub at the
// same address may have another event there.
type attempt struct {
	topic, id string
	redriven  int
}

// Deliver implements eventhub.Receiver.
func (k *keeper) Deliver(batch []eventhub.Delivery) int {
	fresh, at := k.note(batch, time.Now())
	taken := k.Receiver.Deliver(fresh)
	if at == nil { // all are fresh
		return taken
	}
	if taken == len(fresh) {
		taken = len(batch)
	} else {
		taken = at[taken]
	}
	k.forgetPassed(batch[:taken])
	return taken
}

// retain holds what comes while the client is drained, until the handlers are done and the group is
// left. No handler gets it: a lease that ran out meanwhile would count as an attempt that nobody made. What
// comes again because a connection was lost is for the handler that has it.
func (k *keeper) retain(batch []eventhub.Delivery) {
	k.note(batch, time.Now())
	k.forgetPassed(batch)
}

// forgetPassed forgets what is not offered again.
func (k *keeper) forgetPassed(batch []eventhub.Delivery) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range batch {
		if len(k.passed) == 0 {
			return
		}
		delete(k.passed, batch[i].Lease)
	}
}

// note holds the deliveries and returns those that the receiver is to get, and, if
// these are not all, where they are in the batch.
func (k *keeper) note(batch []eventhub.Delivery, now time.Time) (fresh []eventhub.Delivery, at []int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range batch {
		d := &batch[i]
		isFresh := k.take(d, now)
		if !isFresh && at == nil { // seldom: list those before
			fresh, at = make([]eventhub.Delivery, 0, len(batch)), make([]int, 0, len(batch))
			for j := range i {
				fresh, at = append(fresh, batch[j]), append(at, j)
			}
		} else if isFresh && at != nil {
			fresh, at = append(fresh, *d), append(at, i)
		}
	}
	if at == nil {
		return batch, nil
	}
	return fresh, at
}

// take holds a delivery. It reports false where a handler is at its event: that one's
// verdict is for the new lease. A delivery that is offered again has been held since the
// first time; if it went to a handler then, that one may have its verdict by now, or a still
// newer lease.
func (k *keeper) take(d *eventhub.Delivery, now time.Time) (isFresh bool) {
	if len(k.passed) > 0 && k.passed[d.Lease] {
		return false
	}
	if d.Sought {
		k.forgetVoid(d)
	}
	h, again := k.held[spotOf(d.Lease)]
	switch {
	case again && h.serial == d.Lease.Serial:
		return !h.begun
	case again && h.isAt(d):
		k.inherit(h.lease(spotOf(d.Lease)), d.Lease, now)
		return false
	case len(k.running) > 0:
		if lease, ok := k.running[attempt{d.Topic, d.ID(), d.Redriven}]; ok {
			k.inherit(lease, d.Lease, now)
			return false
		}
	}
	// What was to say it and is not begun any more leaves it to this one.
	if again && h.sought && !h.begun || len(k.owed) > 0 && k.owed[d.Topic] {
		d.Sought = true
		delete(k.owed, d.Topic)
	}
	k.held[spotOf(d.Lease)] = hold{serial: d.Lease.Serial, since: now, topic: d.Topic, sought: d.Sought}
	return true
}

// inherit puts a new lease in the place of the one that a handler has.
func (k *keeper) inherit(lease, heir eventhub.Lease, now time.Time) {
	h := k.held[spotOf(lease)]
	delete(k.held, spotOf(lease))
	k.stopRunning(&h, lease)
	h.serial, h.since = heir.Serial, now
	k.held[spotOf(heir)] = h
	if k.heirs == nil {
		k.heirs = make(map[eventhub.Lease]eventhub.Lease)
	}
	k.heirs[lease] = heir
	if k.passed == nil {
		k.passed = make(map[eventhub.Lease]bool)
	}
	k.passed[heir] = true
}

// forgetVoid forgets all that came before the group was moved in the topic of d: every event of
// that topic is handled again. A seek gives the group another runtime.
func (k *keeper) forgetVoid(d *eventhub.Delivery) {
	maps.DeleteFunc(k.running, func(what attempt, _ eventhub.Lease) bool { return what.topic == d.Topic })
	maps.DeleteFunc(k.held, func(at spot, h hold) bool { return h.topic == d.Topic && at.runtime != d.Lease.Runtime })
}

// holds returns what is held by a lease.
func (k *keeper) holds(lease eventhub.Lease) (h hold, ok bool) {
	h, ok = k.held[spotOf(lease)]
	if !ok || h.serial != lease.Serial {
		return hold{}, false
	}
	return h, true
}

// begin reports whether a handler may have the delivery.
func (k *keeper) begin(d *eventhub.Delivery) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	h, ok := k.holds(d.Lease)
	if ok {
		h.record, h.redriven, h.begun = d.Record, d.Redriven, true
		k.held[spotOf(d.Lease)] = h
	}
	return ok
}

// present returns the lease that has replaced the one that a handler was given.
func (k *keeper) present(lease eventhub.Lease) eventhub.Lease {
	for {
		heir, ok := k.heirs[lease]
		if !ok {
			return lease
		}
		lease = heir
	}
}

// release lets go of a lease for its verdict, and returns the present one. It
// reports whether that was held by a handler.
func (k *keeper) release(lease eventhub.Lease) (_ eventhub.Lease, held bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for {
		heir, ok := k.heirs[lease]
		if !ok {
			break
		}
		delete(k.heirs, lease)
		lease = heir
	}
	h, ok := k.holds(lease)
	if ok && h.begun {
		delete(k.held, spotOf(lease))
		k.stopRunning(&h, lease)
	}
	return lease, h.begun
}

// prolong notes that a lease runs for that long from now, and returns the present
// one. It reports whether that is held by a handler.
func (k *keeper) prolong(lease eventhub.Lease, by time.Duration) (_ eventhub.Lease, held bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	lease = k.present(lease)
	h, _ := k.holds(lease)
	if h.begun {
		h.since = time.Now().Add(by - k.opts.AckTimeout)
		k.held[spotOf(lease)] = h
	}
	return lease, h.begun
}

// stopRunning keeps the event from being adopted by what is over.
func (k *keeper) stopRunning(h *hold, lease eventhub.Lease) {
	if len(k.running) == 0 || !h.begun {
		return
	}
	what := attempt{h.topic, string(h.record.ID()), h.redriven}
	if k.running[what] == lease {
		delete(k.running, what)
	}
}

// ackAndPublish returns the present lease, which an ack-and-publish names from now on, and
// reports whether it is held.
func (k *keeper) ackAndPublish(lease eventhub.Lease) (_ eventhub.Lease, held bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	lease = k.present(lease)
	h, held := k.holds(lease)
	if held {
		h.handed = true
		k.held[spotOf(lease)] = h
		k.stopRunning(&h, lease)
	}
	return lease, held
}

// Forget implements eventhub.Forgetter: it lets go of everything that no handler
// has begun, and expects the rest again.
func (k *keeper) Forget() {
	k.mu.Lock()
	for at, h := range k.held {
		switch {
		case !h.begun:
			delete(k.held, at)
			k.owe(&h)
		case !h.handed:
			if k.running == nil {
				k.running = make(map[attempt]eventhub.Lease)
			}
			k.running[attempt{h.topic, string(h.record.ID()), h.redriven}] = h.lease(at)
		}
	}
	clear(k.passed)
	k.mu.Unlock()
	if f, ok := k.Receiver.(eventhub.Forgetter); ok {
		f.Forget()
	}
}

// owe has another delivery of the topic say that the group was moved, if one that is
// forgotten was to say it.
func (k *keeper) owe(h *hold) {
	if !h.sought {
		return
	}
	if k.owed == nil {
		k.owed = make(map[string]bool)
	}
	k.owed[h.topic] = true
}

// extend keeps all held leases alive, with one timer for all of them: it looks
// four times a lease, so that each is extended between the middle of its life
// and three quarters of it.
func (k *keeper) extend(over <-chan struct{}) {
	tick := time.NewTicker(max(k.opts.AckTimeout/4, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-over:
			return
		case now := <-tick.C:
			more := eventhub.Settlement{Verdict: eventhub.Extend, By: k.opts.AckTimeout, Refs: k.due(now)}
			k.c.post(k.opts.Topic, k.opts.Group, &more)
		}
	}
}

// due lists the leases that are to be extended now.
func (k *keeper) due(now time.Time) []eventhub.Ref {
	k.mu.Lock()
	defer k.mu.Unlock()
	var refs []eventhub.Ref
	for at, h := range k.held {
		if now.Sub(h.since) >= k.opts.AckTimeout/2 {
			h.since = now
			k.held[at] = h
			refs = append(refs, eventhub.Ref{Lease: h.lease(at)})
		}
	}
	return refs
}
