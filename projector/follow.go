package projector

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"eventhub"
)

// follow applies what comes to the topics, until something fails or ctx ends.
func (p *Projector) follow(ctx context.Context) error {
	opts := eventhub.TailOptions{Topic: p.p.Topics[0], Topics: p.p.Topics[1:], Start: eventhub.Earliest, BatchSize: p.o.Batch}
	for _, at := range p.places {
		opts.Places = append(opts.Places, at)
	}
	q := &queue{room: 4 * p.o.Batch, more: make(chan struct{}, 1)}
	sub, err := p.hub.Tail(ctx, opts, q)
	if err != nil {
		return fmt.Errorf("projector: following %v: %w", p.p.Topics, err)
	}
	defer sub.Drop(0)
	for {
		items, freed, err := q.take(ctx, p.o.Batch)
		if err != nil {
			return err
		}
		if freed {
			sub.Ready()
		}
		if err := p.applyAll(ctx, items); err != nil {
			return err
		}
	}
}

// applyAll applies what came in one transaction.
func (p *Projector) applyAll(ctx context.Context, items []item) error {
	c, err := p.begin(ctx)
	if err != nil {
		return err
	}
	for i := range items {
		if err := p.take(ctx, c, &items[i]); err != nil {
			return c.giveUp(err)
		}
	}
	return c.commit(ctx)
}

func (p *Projector) take(ctx context.Context, c *change, it *item) error {
	if it.gap != nil {
		if err := p.mend(ctx, c, *it.gap); err != nil {
			return err
		}
	}
	if it.record == nil {
		return nil
	}
	e, err := it.record.Event(it.offset)
	if err != nil {
		return fmt.Errorf("projector: event at offset %d of %s: %w", it.offset, it.topic, err)
	}
	return c.apply(ctx, &e)
}

// mend does what a gap asks for.
func (p *Projector) mend(ctx context.Context, c *change, g eventhub.Gap) error {
	switch lost := g.First == 0; {
	case !lost && g.First <= c.place(g.Topic).Offset+1 && g.Tombstones == 0:
		return nil // nothing is missing: compaction leaves the newest of each key
	case lost || g.Tombstones > c.place(g.Topic).Offset || p.p.OnGap == nil:
		p.o.Log.Warn("projector: events are gone that were not read", "projection", p.p.Name, "topic", g.Topic, "after", g.After, "first", g.First)
		return errRebuild
	}
	if g.First <= c.place(g.Topic).Offset+1 {
		return nil
	}
	if err := p.p.OnGap(ctx, c.tx, g); err != nil {
		return &workError{"putting a gap of " + g.Topic + " right", err}
	}
	return nil
}

// item is an event, a gap before it, or a gap alone.
type item struct {
	topic  string
	offset uint64
	record eventhub.Record
	gap    *eventhub.Gap
}

// queue is the receiver of the tail: it takes as much as it has room for.
type queue struct {
	room int
	more chan struct{} // has a token when there is something new

	mu     sync.Mutex
	items  []item
	full   bool // the hub waits for Ready
	err    error
	closed bool
}

func (q *queue) notify() {
	select {
	case q.more <- struct{}{}:
	default:
	}
}

// Deliver implements eventhub.Receiver.
func (q *queue) Deliver(batch []eventhub.Delivery) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(batch), max(0, q.room-len(q.items)))
	for i := range batch[:n] {
		d := &batch[i]
		q.items = append(q.items, item{topic: d.Topic, offset: d.Offset, record: slices.Clone(d.Record), gap: d.Gap})
	}
	q.full = n < len(batch)
	q.notify()
	return n
}

// Gap implements eventhub.Gapped.
func (q *queue) Gap(g eventhub.Gap) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.items = append(q.items, item{topic: g.Topic, gap: &g})
	q.notify()
}

// Ended implements eventhub.Receiver.
func (q *queue) Ended(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.err, q.closed = err, true
	q.notify()
}

// take waits for items, and returns up to most of them, and whether the hub waits for room.
func (q *queue) take(ctx context.Context, most int) (items []item, freed bool, err error) {
	for {
		q.mu.Lock()
		if len(q.items) > 0 {
			n := min(most, len(q.items))
			items, q.items = q.items[:n:n], q.items[n:]
			freed, q.full = q.full, false
			q.mu.Unlock()
			return items, freed, nil
		}
		ended, err := q.closed, q.err
		q.mu.Unlock()
		if ended {
			return nil, false, fmt.Errorf("projector: the tail has ended: %w", err)
		}
		select {
		case <-q.more:
		case <-ctx.Done():
			return nil, false, context.Cause(ctx)
		}
	}
}
