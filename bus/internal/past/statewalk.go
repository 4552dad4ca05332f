package past

import (
	"context"
	"errors"
	"slices"

	"eventhub/admin"
	"eventhub/store"
)

// Walked says of which state WalkState has seen all events.
type Walked struct {
	At      uint64 // its offset; 0 where the topic has no events, or is not there
	Life    uint64 // of the topic; 0 where it is not there
	Horizon uint64 // of the topic, as of the last read
}

// WalkState calls visit with the events of the state of a topic at an offset, 0 for now, in the
// order of keys and some at a time, which are valid until visit returns. CodeGone: the state at
// that offset is not known any more; compaction may have passed it on the way. store.ErrGone is in
// the chain where the topic was deleted meanwhile. Either way visit may have been called.
func (h *History) WalkState(ctx context.Context, topic string, at uint64, visit func([]store.Item) error) (w Walked, err error) {
	return h.WalkKeys(ctx, topic, nil, at, visit)
}

// WalkKeys is WalkState for some keys; nil for all.
func (h *History) WalkKeys(ctx context.Context, topic string, keys []string, at uint64, visit func([]store.Item) error) (w Walked, err error) {
	info, err := h.store.Topic(ctx, topic)
	if errors.Is(err, store.ErrNotFound) {
		return w, nil
	}
	if err != nil {
		return w, store.Failed(err, "look up topic %q", topic)
	}
	keys = slices.Compact(slices.Sorted(slices.Values(keys)))
	r := stateRead{history: h, info: &info, query: store.StateQuery{Topic: topic, Keys: keys, At: at}}
	for more := true; more; {
		r.batch.Reset()
		if more, err = r.readIndexed(ctx, admin.MaxPage); err != nil {
			return w, err
		}
		if err = visit(r.batch.Items); err != nil {
			return w, err
		}
		if err = ctx.Err(); err != nil {
			return w, err
		}
	}
	w = Walked{At: r.query.At, Life: info.Life, Horizon: r.batch.Horizon}
	return w, h.isWhole(ctx, &stretch{topic: topic, life: info.Life})
}

// AwaitIndex returns when the index of a topic is there, however long that takes. Errors are those of
// WalkState.
func (h *History) AwaitIndex(ctx context.Context, topic string) error {
	for {
		if err := h.indexed(ctx, topic); !errors.Is(err, store.ErrNotIndexed) || ctx.Err() != nil {
			return err
		}
	}
}

// readIndexed is read for who waits as long as the index of the topic takes.
func (r *stateRead) readIndexed(ctx context.Context, limit int) (more bool, err error) {
	for {
		err = r.history.withIndex(ctx, r.query.Topic, func() (err error) {
			more, err = r.read(ctx, limit)
			return err
		})
		if !errors.Is(err, store.ErrNotIndexed) || ctx.Err() != nil { // else the index is being built
			return more, err
		}
	}
}
