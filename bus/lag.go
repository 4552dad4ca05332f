package bus

import (
	"context"
	"errors"

	"eventhub/bus/internal/groupstate"
	"eventhub/store"
)

// The lag of a group counts events that are there: nothing below the horizon of the topic, and
// no offsets between events. Metrics, which are asked often and of all groups, count offsets
// from the horizon on.

// unread returns how many events a topic has from an offset up to its head that are not done.
// Where the store would have to read much to count them, the rest counts by offsets.
func (b *Bus) unread(ctx context.Context, topic string, from, head uint64, done groupstate.AckedRuns) (uint64, error) {
	if from > head {
		return 0, nil
	}
	u, next, all, err := b.store.Measure(ctx, topic, from, store.Usage{})
	if err != nil {
		return 0, storeError(err, "count the events of topic %q", topic)
	}
	n := u.Events
	if !all && next <= head {
		n += head + 1 - next
	}
	n = min(n, head+1-from)
	acked := done.From(from)
	if n < head+1-from && acked > 0 { // of the offsets without an event some are among those that are done
		if acked, err = b.ackedEvents(ctx, topic, from, done); err != nil {
			return 0, err
		}
	}
	return n - min(n, acked), nil
}

// ackedEvents reads how many events a topic has from an offset on that are done. Where it
// reads no further each offset counts as an event.
func (b *Bus) ackedEvents(ctx context.Context, topic string, from uint64, done groupstate.AckedRuns) (n uint64, err error) {
	var batch store.Batch
	for read, bytes := 0, 0; ; {
		var ok bool
		if from, ok = done.Next(from); !ok {
			return n, nil
		}
		if read >= countedEvents || bytes >= countedBytes {
			return n + done.From(from), nil
		}
		batch.Reset()
		if err := b.store.Read(ctx, topic, from, roundEvents, roundBytes, &batch); err != nil {
			return 0, storeError(err, "count events of topic %q", topic)
		}
		if len(batch.Items) == 0 {
			return n, nil
		}
		for i := range batch.Items {
			if done.Has(batch.Items[i].Offset) {
				n++
			}
			bytes += len(batch.Items[i].Record)
		}
		read += len(batch.Items)
		from = batch.Items[len(batch.Items)-1].Offset + 1
	}
}

// lag returns the lag of a loaded group, up to a head.
func (g *group) lag(ctx context.Context, head, horizon uint64) (uint64, error) {
	var from, measured uint64
	for range 3 { // it may read on meanwhile
		g.mu.Lock()
		now := g.state.Unread(horizon)
		if now == from || now > head {
			defer g.mu.Unlock()
			if now > head {
				measured = 0
			}
			return g.state.OpenFrom(horizon) + measured, nil
		}
		acked := g.state.Acked()
		g.mu.Unlock()
		var err error
		if measured, err = g.bus.unread(ctx, g.log.Topic(), now, head, acked); err != nil {
			return 0, err
		}
		from = now
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.state.Lag(head, horizon), nil
}

// ends returns the head of a topic and its horizon; without the topic there is nothing.
func (b *Bus) ends(ctx context.Context, topic string) (head, horizon uint64, err error) {
	t, err := b.store.Topic(ctx, topic)
	if errors.Is(err, store.ErrNotFound) {
		return 0, 1, nil
	}
	if err != nil {
		return 0, 0, storeError(err, "look up topic %q", topic)
	}
	return t.Head, t.Horizon, nil
}
