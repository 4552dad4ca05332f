package client

import (
	"sync"
	"time"

	"eventhub"
)

// keeper stands between a subscription and the queue of eventhub.Consume. It
// knows the leases that are held, and keeps them from running out: those that came
// over the present connection and have no verdict, and those of a lost one whose
// handlers have not returned. The hub ended the latter with the connection, unless
// it does not know yet that this is lost, so their events come again: the first new
// lease of such an event is the handler's from then on.
type keeper struct {
	c    *Client
	opts eventhub.SubscribeOptions
	eventhub.Receiver

	mu      sync.Mutex
	held    map[eventhub.Lease]hold
	running map[attempt]eventhub.Lease // of lost connections, begun
	heirs   map[eventhub.Lease]eventhub.Lease

	acks []eventhub.Ref // not sent yet; guarded by Client.mu
}

// hold is a lease that is kept.
type hold struct {
	since    time.Time // the lease runs since then
	topic    string
	record   eventhub.Record // once it is begun
	redriven int
	begun    bool // a handler has it
	handed   bool // its ack-and-publish is under way, which names this lease
}

// attempt is what a handler works on. Offsets do not tell it: the next hub at the
// same address may have another event there.
type attempt struct {
	topic, id string
	redriven  int
}

// Deliver implements eventhub.Receiver.
func (k *keeper) Deliver(batch []eventhub.Delivery) int {
	fresh, at := k.note(batch, time.Now())
	taken := k.Receiver.Deliver(fresh)
	if at == nil || taken == len(fresh) {
		return taken + len(batch) - len(fresh)
	}
	return at[taken]
}

// note holds the deliveries and returns those that the receiver is to get, and, if
// these are not all, where they stand in the batch. A delivery that is offered again
// has been held since the first time.
func (k *keeper) note(batch []eventhub.Delivery, now time.Time) (fresh []eventhub.Delivery, at []int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.running) > 0 {
		batch, at = k.adopt(batch, now)
	}
	for i := range batch {
		if _, again := k.held[batch[i].Lease]; !again {
			k.held[batch[i].Lease] = hold{since: now}
		}
	}
	return batch, at
}

// adopt takes out what handlers are still at, and lets their verdicts be for the new
// leases.
func (k *keeper) adopt(batch []eventhub.Delivery, now time.Time) (fresh []eventhub.Delivery, at []int) {
	for i := range batch {
		d := &batch[i]
		if d.Sought {
			clear(k.running) // the group was moved: all of it is to be handled anew
		}
		what := attempt{d.Topic, d.ID(), d.Redriven}
		lease, ok := k.running[what]
		if !ok {
			fresh, at = append(fresh, *d), append(at, i)
			continue
		}
		delete(k.running, what)
		h := k.held[lease]
		delete(k.held, lease)
		h.since = now
		k.held[d.Lease] = h
		if k.heirs == nil {
			k.heirs = make(map[eventhub.Lease]eventhub.Lease)
		}
		k.heirs[lease] = d.Lease
	}
	return fresh, at
}

// begin reports whether a handler may have the delivery.
func (k *keeper) begin(d *eventhub.Delivery) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	h, ok := k.held[d.Lease]
	if ok {
		h.topic, h.record, h.redriven, h.begun = d.Topic, d.Record, d.Redriven, true
		k.held[d.Lease] = h
	}
	return ok
}

// present returns the lease that stands for the one that a handler was given.
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
		h := k.held[lease]
		delete(k.held, lease)
		k.stopRunning(&h, lease)
		heir, ok := k.heirs[lease]
		if !ok {
			return lease, h.begun
		}
		delete(k.heirs, lease)
		lease = heir
	}
}

// prolong notes that a lease runs for that long from now, and returns the present
// one. It reports whether that is held by a handler.
func (k *keeper) prolong(lease eventhub.Lease, by time.Duration) (_ eventhub.Lease, held bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	lease = k.present(lease)
	h := k.held[lease]
	if h.begun {
		h.since = time.Now().Add(by - k.opts.AckTimeout)
		k.held[lease] = h
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
	h, held := k.held[lease]
	if held {
		h.handed = true
		k.held[lease] = h
		k.stopRunning(&h, lease)
	}
	return lease, held
}

// Forget implements eventhub.Forgetter: it lets go of everything that no handler
// has begun, and expects the rest again.
func (k *keeper) Forget() {
	k.mu.Lock()
	for lease, h := range k.held {
		switch {
		case !h.begun:
			delete(k.held, lease)
		case !h.handed:
			if k.running == nil {
				k.running = make(map[attempt]eventhub.Lease)
			}
			k.running[attempt{h.topic, string(h.record.ID()), h.redriven}] = lease
		}
	}
	k.mu.Unlock()
	if f, ok := k.Receiver.(eventhub.Forgetter); ok {
		f.Forget()
	}
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
			k.c.tell(k.opts.Topic, k.opts.Group, &more)
		}
	}
}

// due lists the leases that are to be extended now.
func (k *keeper) due(now time.Time) []eventhub.Ref {
	k.mu.Lock()
	defer k.mu.Unlock()
	var refs []eventhub.Ref
	for lease, h := range k.held {
		if now.Sub(h.since) >= k.opts.AckTimeout/2 {
			h.since = now
			k.held[lease] = h
			refs = append(refs, eventhub.Ref{Lease: lease})
		}
	}
	return refs
}
