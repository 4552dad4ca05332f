package main

import (
	"context"
	"slices"
	"sync"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/cmd/eventhub/internal/output"
)

const (
	// writeBytes is about how much one write takes.
	writeBytes = 64 << 10
	// queuedTails is how many events of tails wait to be printed; those of
	// groups are bounded by their leases.
	queuedTails = 10_000
	queuedBytes = 16 << 20 // likewise of their bytes; one event may have more
)

// printer connects a subscription, which must not be kept waiting, with the
// output, which may be as slow as whoever reads it. All that has gathered goes
// out in one write, and only then its verdicts, in one settlement.
//
// Invariants: an event is settled only when all its bytes were written. An event
// is taken only if it may be printed: never more than count. What is queued when
// the printer ends is neither written nor acked; leaving the group gives it back.
type printer struct {
	out    *output.Results
	render output.AppendEvent
	sub    eventhub.Subscription // nil: it never came in
	leased bool                  // of a group: what is delivered has to be settled
	onGap  func(eventhub.Gap)    // is called once for each gap
	// onState is called for what is said of a state, where it is in the order of what is printed.
	onState func(*eventhub.Delivery)
	// verdict is what is said of each event that was written: done, or refused.
	verdict eventhub.Settlement

	ends       // with untilHeads: heads is guarded by mu, a group's does not change
	untilHeads bool

	mu      sync.Mutex
	changed sync.Cond
	queue   []eventhub.Delivery
	bytes   int                 // of the events in queue
	writing []eventhub.Delivery // taken off the queue, not settled
	left    int                 // events that may still be taken; -1: no bound
	told    map[eventhub.Gap]bool
	refused bool // the subscription has more
	ended   bool
	err     error // why, if not because all was done
}

func newPrinter(out *output.Results, render output.AppendEvent, leased bool, count int) *printer {
	p := &printer{out: out, render: render, leased: leased, left: -1, ends: newEnds(), told: make(map[eventhub.Gap]bool)}
	if count > 0 {
		p.left = count
	}
	p.changed.L = &p.mu
	return p
}

// Deliver implements eventhub.Receiver.
func (p *printer) Deliver(batch []eventhub.Delivery) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return 0
	}
	room := p.counted(batch)
	if !p.leased {
		room = p.roomOfTail(batch[:room])
	}
	for _, d := range batch[:room] {
		if d.Gap != nil {
			p.tell(*d.Gap)
		}
		p.bytes += len(d.Record)
		d.Record = slices.Clone(d.Record)
		p.queue = append(p.queue, d)
		if p.left > 0 && !d.State.IsMark() {
			p.left--
		}
	}
	p.refused = p.refused || room < len(batch)
	p.changed.Signal()
	return room
}

// counted returns how much of a batch may be printed. p.mu is held.
func (p *printer) counted(batch []eventhub.Delivery) int {
	left := p.left
	for i := range batch {
		if left == 0 {
			return i
		}
		if !batch[i].State.IsMark() {
			left--
		}
	}
	return len(batch)
}

// Gap implements eventhub.Gapped.
func (p *printer) Gap(g eventhub.Gap) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tell(g)
}

// tell reports a gap, once. p.mu is held.
func (p *printer) tell(g eventhub.Gap) {
	if p.onGap != nil && !p.told[g] {
		p.told[g] = true
		p.onGap(g)
	}
}

// roomOfTail returns how many events of a batch there is room for. p.mu is held.
func (p *printer) roomOfTail(batch []eventhub.Delivery) (room int) {
	bytes := p.bytes
	for room < len(batch) && len(p.queue)+room < queuedTails {
		bytes += len(batch[room].Record)
		if bytes > queuedBytes && len(p.queue)+room > 0 {
			break
		}
		room++
	}
	return room
}

// Ended implements eventhub.Receiver.
func (p *printer) Ended(err error) { p.end(err) }

// end ends the printer; the first reason counts.
func (p *printer) end(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ended {
		p.ended, p.err = true, err
		p.changed.Signal()
	}
}

// run prints until ctx ends or all is done (nil), or until something is broken,
// and leaves the group.
func (p *printer) run(ctx context.Context, ackTimeout time.Duration) error {
	stop := context.AfterFunc(ctx, func() { p.end(nil) })
	defer stop()
	late, done := lingering(ctx)
	defer done()
	looking, enough := context.WithCancel(ctx)
	var workers sync.WaitGroup
	workers.Go(func() { p.extend(looking, ackTimeout) })
	if p.untilHeads && p.cursor != nil {
		workers.Go(func() {
			if err := p.reached(looking); looking.Err() == nil {
				p.end(err)
			}
		})
	}
	if p.untilHeads && p.cursor == nil {
		workers.Go(func() { p.watchTopics(looking) })
	}
	for p.take() {
		p.print(late)
	}
	enough()
	workers.Wait()
	p.end(p.leave(late))
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// leave leaves the group.
func (p *printer) leave(ctx context.Context) error {
	if p.sub == nil {
		return nil
	}
	return p.sub.Unsubscribe(ctx)
}

// take waits for events and takes those that are there. It reports false when the
// printer has ended.
func (p *printer) take() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.queue) == 0 && !p.ended && p.left != 0 && !p.caughtUp() {
		p.changed.Wait()
	}
	if p.ended || len(p.queue) == 0 {
		return false
	}
	p.queue, p.bytes, p.writing = nil, 0, p.queue
	if p.refused && p.left != 0 {
		p.refused = false
		p.sub.Ready() // returns at once
	}
	return true
}

// print writes and settles what was taken, in pieces of about writeBytes.
func (p *printer) print(ctx context.Context) {
	batch := p.writing
	var buf []byte
	var ends []int // of each event in buf
	for len(batch) > 0 {
		buf, ends = buf[:0], ends[:0]
		for len(ends) < len(batch) && len(buf) < writeBytes {
			var err error
			d := &batch[len(ends)]
			if d.State != nil {
				if len(ends) > 0 && p.isNews(d) {
					break // what is before it goes out first
				}
				p.onState(d)
			}
			if !d.State.IsMark() {
				buf, err = p.render(buf, d)
			}
			if err != nil {
				p.end(err)
				break
			}
			ends = append(ends, len(buf))
		}
		n, err := p.out.Write(buf[:lastOf(ends)])
		whole := len(ends)
		if err != nil {
			p.end(err)
			whole, _ = slices.BinarySearch(ends, n+1)
		}
		p.settle(ctx, batch[:whole])
		p.mu.Lock()
		batch = batch[whole:]
		p.writing = batch
		stop := p.ended
		p.mu.Unlock()
		if stop {
			return
		}
	}
}

// isNews reports whether something is said of the state besides an event of it.
func (p *printer) isNews(d *eventhub.Delivery) bool {
	return d.State.IsMark() || d.State.Snapshot != ""
}

func lastOf(ends []int) int {
	if len(ends) == 0 {
		return 0
	}
	return ends[len(ends)-1]
}

// caughtUp reports whether there is no head to be passed, or no more for a tail. p.mu is
// held.
func (p *printer) caughtUp() bool { return p.untilHeads && len(p.heads) == 0 }

// settle says the verdict on what was written and sees whether a head was among it.
func (p *printer) settle(ctx context.Context, written []eventhub.Delivery) {
	over := false
	p.mu.Lock()
	said := p.verdict
	for i := range written {
		d := &written[i]
		if p.leased {
			said.Refs = append(said.Refs, eventhub.Ref{Lease: d.Lease})
		}
		if head, ok := p.heads[d.Topic]; ok && upTo(d) >= head {
			over = true
			if p.cursor == nil {
				delete(p.heads, d.Topic)
			}
		}
	}
	caughtUp := p.caughtUp()
	p.mu.Unlock()
	if len(said.Refs) > 0 {
		// An error means that the subscription is ending: Ended says so, and
		// the events come again.
		_, _ = p.sub.Settle(ctx, said)
	}
	switch {
	case caughtUp:
		p.end(nil)
	case over && p.cursor != nil:
		ring(p.passed)
	}
}

// upTo returns the offset up to which all has come with a delivery.
func upTo(d *eventhub.Delivery) uint64 {
	switch s := d.State; {
	case s == nil:
		return d.Offset
	case s.Complete:
		return s.Offset
	}
	return 0 // some of a state
}

// watchTopics forgets the heads of topics that were deleted. Where the hub does not
// answer, the subscription says whether that is for good.
func (p *printer) watchTopics(ctx context.Context) {
	for {
		select {
		case <-time.After(lastLook):
		case <-ctx.Done():
			return
		}
		there, err := p.there(ctx)
		if err != nil {
			continue
		}
		p.forgetGone(there)
	}
}

// forgetGone forgets the heads of topics that are not there any more, or have nothing up to
// there, as far as nothing that has come of them waits to be written: else the last of that
// is their head.
func (p *printer) forgetGone(there map[string]admin.TopicInfo) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refused {
		return // the client may hold some of their events; ask again
	}
	last := make(map[string]uint64)
	for _, batch := range [][]eventhub.Delivery{p.writing, p.queue} {
		for i := range batch {
			last[batch[i].Topic] = batch[i].Offset
		}
	}
	for topic, head := range p.heads {
		switch {
		case there[topic].Head >= head && there[topic].FirstOffset > 0 && there[topic].FirstOffset <= head:
		case last[topic] > 0:
			p.heads[topic] = min(head, last[topic])
		default:
			delete(p.heads, topic)
		}
	}
	p.changed.Signal()
}

// extend keeps the leases of what waits to be written alive while the output is
// slow, with one timer for all. A lease lasts an hour at most, whatever we say.
func (p *printer) extend(ctx context.Context, ackTimeout time.Duration) {
	tick := time.NewTicker(max(ackTimeout/3, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if refs := p.leases(); len(refs) > 0 {
			// As with acks: an error shows elsewhere.
			_, _ = p.sub.Settle(ctx, eventhub.Settlement{Verdict: eventhub.Extend, By: ackTimeout, Refs: refs})
		}
	}
}

// leases lists what the printer holds.
func (p *printer) leases() []eventhub.Ref {
	if !p.leased {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var refs []eventhub.Ref
	for _, list := range [][]eventhub.Delivery{p.writing, p.queue} {
		for i := range list {
			refs = append(refs, eventhub.Ref{Lease: list[i].Lease})
		}
	}
	return refs
}
