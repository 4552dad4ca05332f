package snapshots

import (
	"context"
	"maps"
	"slices"

	"eventhub"
	"eventhub/bus/internal/topiclog"
	"eventhub/internal/filter"
	"eventhub/store"
)

// fold is the state of a topic by keys that an expression has. It is in memory alone: after a start
// the log is read again.
type fold struct {
	source   string
	text     *filter.Text
	life     uint64
	log      *topiclog.Log // in use for as long as there is the fold, so that it counts all erasures
	erasures uint64        // of the log, before reading began
	next     uint64        // offset up to which the log was read
	offsets  map[string]uint64
}

// The bounds of a page of the log that is read.
const (
	foldPage      = 4096
	foldPageBytes = 4 << 20
)

// folded writes the rows of a topic whose keys an expression has.
func (w *writing) folded(ctx context.Context) error {
	f, err := w.fold()
	if err != nil {
		return err
	}
	if err := f.read(ctx, w); err != nil {
		return err
	}
	w.marker.Offset = f.next - 1
	keys := w.policy.BatchKeys
	if keys == nil {
		keys = slices.Collect(maps.Keys(f.offsets))
	}
	for _, key := range slices.Compact(slices.Sorted(slices.Values(keys))) {
		offset, ok := f.offsets[key]
		if !ok {
			continue
		}
		var batch store.Batch
		if err := w.runtime.opts.Store.Read(ctx, w.topic, offset, 1, 0, &batch); err != nil {
			return store.Failed(err, "read topic %q", w.topic)
		}
		if len(batch.Items) == 0 || batch.Items[0].Offset != offset {
			delete(f.offsets, key) // it was removed, and so was all that came before it
			continue
		}
		if err := w.add(ctx, key, &batch.Items[0]); err != nil {
			return err
		}
	}
	return nil
}

// fold returns the fold of the topic, a new one where the one that there is does not count any more.
func (w *writing) fold() (*fold, error) {
	folds := w.runtime.folds
	f := folds[w.topic]
	if f != nil && f.source == w.policy.KeySource && f.life == w.info.Life && f.erasures == w.erasures {
		return f, nil
	}
	text, err := filter.CompileText(w.policy.KeySource)
	if err != nil {
		return nil, err
	}
	log := w.runtime.opts.Logs.Use(w.topic)
	w.runtime.unfold(w.topic)
	f = &fold{source: w.policy.KeySource, text: text, life: w.info.Life, log: log, erasures: w.erasures, next: 1, offsets: make(map[string]uint64)}
	folds[w.topic] = f
	return f, nil
}

// unfold forgets the fold of a topic. The goroutine calls it, or whoever has waited for its end.
func (r *Runtime) unfold(topic string) {
	if f := r.folds[topic]; f != nil {
		r.opts.Logs.Leave(f.log)
		delete(r.folds, topic)
	}
}

// read reads on to the head that the topic had when the snapshot began.
func (f *fold) read(ctx context.Context, w *writing) error {
	var batch store.Batch
	for f.next <= w.info.Head {
		batch.Reset()
		if err := w.runtime.opts.Store.Read(ctx, w.topic, f.next, foldPage, foldPageBytes, &batch); err != nil {
			return store.Failed(err, "read topic %q", w.topic)
		}
		if len(batch.Items) == 0 {
			f.next = w.info.Head + 1
			break
		}
		for i := range batch.Items {
			if item := &batch.Items[i]; item.Offset <= w.info.Head {
				f.take(item)
			}
		}
		f.next = min(batch.Items[len(batch.Items)-1].Offset, w.info.Head) + 1
		if len(f.offsets) > eventhub.MaxStateKeys {
			w.runtime.unfold(w.topic)
			return eventhub.Errorf(eventhub.CodeOverloaded, "the key_source of topic %q has more than %d keys", w.topic, eventhub.MaxStateKeys)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// take takes one event over.
func (f *fold) take(item *store.Item) {
	key, ok := f.text.Of(item.Record, item.Offset)
	switch {
	case !ok || key == "" || len(key) > eventhub.MaxKeyBytes:
	case item.Record.IsTombstone():
		delete(f.offsets, key)
	default:
		f.offsets[key] = item.Offset
	}
}
