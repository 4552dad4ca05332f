package bus

import (
	"context"
	"errors"

	"eventhub/store"
)

// The lag of a group counts events that are there: nothing below the horizon of the topic, and
// no offsets between events. Metrics, which are asked often and of all groups, count offsets
// from the horizon on.

// unread returns how many events a topic has from an offset up to its head, less those that are
// acked. Where the store would have to read much to count them, the rest counts by offsets.
func (b *Bus) unread(ctx context.Context, topic string, from, head, acked uint64) (uint64, error) {
	if from > head {
		return 0, nil
	}
	u, next, done, err := b.store.Measure(ctx, topic, from, store.Usage{})
	if err != nil {
		return 0, storeError(err, "count the events of topic %q", topic)
	}
	n := u.Events
	if !done && next <= head {
		n += head + 1 - next
	}
	n = min(n, head+1-from)
	return n - min(n, acked), nil
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
		acked := g.state.AckedFrom(now)
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
