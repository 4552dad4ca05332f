package main

import (
	"context"
	"slices"
	"sync"
	"time"

	"eventhub"
	"eventhub/cmd/eventhub/internal/output"
)

const (
	// writeBytes is about how much one write takes.
	writeBytes = 64 << 10
	// queuedTails is how many events of tails wait to be printed; those of
	// groups are bounded by their leases.
	queuedTails = 10_000

	firstLook = 20 * time.Millisecond
	lastLook  = time.Second
)

// printer stands between subscriptions, which must not be kept waiting, and the
// output, which may be as slow as whoever reads it. All that has gathered goes
// out in one write, and only then its acks, in one settlement for each topic.
//
// Invariants: an event is acked only when all its bytes were written. An event
// is taken only if it may be printed: never more than count. What is queued when
// the printer ends is neither written nor acked; leaving the groups gives it back.
type printer struct {
	out    *output.Results
	render output.AppendEvent
	taps   []*tap

	// With --until-caught-up: whether to look for the heads, and how to ask for a
	// group's cursor; nil for tails.
	untilHeads bool
	cursor     func(ctx context.Context, topic string) (uint64, error)
	passed     chan struct{} // a head was settled: a cursor may have come there

	mu      sync.Mutex
	changed sync.Cond
	queue   []queued
	writing []queued // taken off the queue, not settled
	left    int      // events that may still be taken; -1: no bound
	ended   bool
	err     error // why, if not because all was done
}

type queued struct {
	eventhub.Delivery
	tap *tap
}

// tap is one subscription's end at the printer.
type tap struct {
	p            *printer
	topic, group string
	sub          eventhub.Subscription
	head         uint64 // to be read up to; 0: nothing
	refused      bool   // it has more; guarded by printer.mu
}

func newPrinter(out *output.Results, render output.AppendEvent, count int) *printer {
	p := &printer{out: out, render: render, left: -1, passed: make(chan struct{}, 1)}
	if count > 0 {
		p.left = count
	}
	p.changed.L = &p.mu
	return p
}

func (p *printer) newTap(topic, group string) *tap {
	t := &tap{p: p, topic: topic, group: group}
	p.taps = append(p.taps, t)
	return t
}

// Deliver implements eventhub.Receiver.
func (t *tap) Deliver(batch []eventhub.Delivery) int {
	p := t.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return 0
	}
	room := len(batch)
	if p.left >= 0 {
		room = min(room, p.left)
	}
	if t.group == "" {
		room = max(0, min(room, queuedTails-len(p.queue)))
	}
	for _, d := range batch[:room] {
		d.Record = slices.Clone(d.Record)
		p.queue = append(p.queue, queued{d, t})
	}
	if p.left >= 0 {
		p.left -= room
	}
	t.refused = room < len(batch)
	p.changed.Signal()
	return room
}

// Ended implements eventhub.Receiver.
func (t *tap) Ended(err error) { t.p.end(err) }

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
// and leaves the groups.
func (p *printer) run(ctx context.Context, ackTimeout time.Duration) error {
	stop := context.AfterFunc(ctx, func() { p.end(nil) })
	defer stop()
	late, done := lingering(ctx)
	defer done()
	looking, enough := context.WithCancel(ctx)
	var beside sync.WaitGroup
	beside.Go(func() { p.extend(looking, ackTimeout) })
	if p.untilHeads && p.cursor != nil {
		beside.Go(func() { p.watchCursors(looking) })
	}
	if p.untilHeads && p.cursor == nil && p.allPassed() {
		p.end(nil)
	}
	for p.take() {
		p.print(late)
	}
	enough()
	beside.Wait()
	p.end(p.leave(late))
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// leave leaves every group; the first error counts.
func (p *printer) leave(ctx context.Context) error {
	var failed error
	for _, t := range p.taps {
		if t.sub == nil {
			continue // it never came in
		}
		if err := t.sub.Unsubscribe(ctx); err != nil && failed == nil {
			failed = err
		}
	}
	return failed
}

// take waits for events and takes those that are there. It reports false when the
// printer has ended.
func (p *printer) take() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.queue) == 0 && !p.ended && p.left != 0 {
		p.changed.Wait()
	}
	if p.ended || len(p.queue) == 0 {
		return false
	}
	p.queue, p.writing = nil, p.queue
	for _, t := range p.taps {
		if t.refused && p.left != 0 {
			t.refused = false
			t.sub.Ready() // returns at once
		}
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
			if buf, err = p.render(buf, &batch[len(ends)].Delivery); err != nil {
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

func lastOf(ends []int) int {
	if len(ends) == 0 {
		return 0
	}
	return ends[len(ends)-1]
}

// settle acks what was written and sees whether a head was among it.
func (p *printer) settle(ctx context.Context, written []queued) {
	over := false
	for _, t := range p.taps {
		ack := eventhub.Settlement{Verdict: eventhub.Ack}
		for i := range written {
			if written[i].tap != t {
				continue
			}
			if t.group != "" {
				ack.Refs = append(ack.Refs, eventhub.Ref{Lease: written[i].Lease})
			}
			if t.head > 0 && written[i].Offset >= t.head {
				over = true
				if p.cursor == nil {
					t.head = 0
				}
			}
		}
		if len(ack.Refs) > 0 {
			// An error means that the subscription is ending: Ended says so, and
			// the events come again.
			_, _ = t.sub.Settle(ctx, ack)
		}
	}
	switch {
	case !over || !p.untilHeads:
	case p.cursor != nil:
		ring(p.passed)
	case p.allPassed():
		p.end(nil)
	}
}

func (p *printer) allPassed() bool {
	return !slices.ContainsFunc(p.taps, func(t *tap) bool { return t.head > 0 })
}

// watchCursors ends the printer when every group's cursor has reached the head
// that stood at the beginning, by whichever member's acks.
func (p *printer) watchCursors(ctx context.Context) {
	behind := slices.Clone(p.taps)
	for wait := firstLook; ; wait = min(2*wait, lastLook) {
		for len(behind) > 0 {
			cursor, err := p.cursor(ctx, behind[0].topic)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				p.end(err)
				return
			}
			if cursor < behind[0].head {
				break
			}
			behind = behind[1:]
		}
		if len(behind) == 0 {
			p.end(nil)
			return
		}
		select {
		case <-time.After(wait): // others' acks are told to nobody
		case <-p.passed:
			wait = firstLook
		case <-ctx.Done():
			return
		}
	}
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
		for _, t := range p.taps {
			if refs := p.leases(t); len(refs) > 0 {
				// As with acks: an error shows elsewhere.
				_, _ = t.sub.Settle(ctx, eventhub.Settlement{Verdict: eventhub.Extend, By: ackTimeout, Refs: refs})
			}
		}
	}
}

// leases lists what a tap holds.
func (p *printer) leases(t *tap) []eventhub.Ref {
	p.mu.Lock()
	defer p.mu.Unlock()
	var refs []eventhub.Ref
	for _, list := range [][]queued{p.writing, p.queue} {
		for i := range list {
			if list[i].tap == t && t.group != "" {
				refs = append(refs, eventhub.Ref{Lease: list[i].Lease})
			}
		}
	}
	return refs
}
