package tail

import (
	"context"
	"sort"
	"sync"

	"eventhub"
	"eventhub/bus/internal/topiclog"
	"eventhub/store"
)

// feed is what a turn reads, and the memory for it.
type feed struct {
	items      []store.Item
	deliveries []eventhub.Delivery // items as tails get them
	passed     []eventhub.Delivery // of these, what one tail wants
	due        []*pendingEvent     // of a tail that conflates
	batch      store.Batch
	// horizon is the first offset that the topic keeps, where the items are of the store; 0
	// where they are of the cache, which has nothing below it.
	horizon uint64
	marks   store.Marks // likewise

	removals uint64 // of the log, before it was read
}

var feeds = sync.Pool{New: func() any { return new(feed) }}

// release lets go of the events and keeps the memory.
func (f *feed) release() {
	clear(f.passed)
	clear(f.due)
	f.passed, f.due = f.passed[:0], f.due[:0]
	f.reset()
	feeds.Put(f)
}

// reset forgets what was read. The deliveries are no longer valid.
func (f *feed) reset() {
	clear(f.items)
	clear(f.deliveries)
	clear(f.batch.Items)
	f.items, f.deliveries = f.items[:0], f.deliveries[:0]
	f.batch.Reset()
	f.horizon, f.marks = 0, store.Marks{}
}

// cached reads events from the tail cache and reports whether that had them all.
func (f *feed) cached(log *topiclog.Log, from uint64, limit int) (ok bool) {
	f.reset()
	f.removals = log.Removals()
	f.items, ok = log.Read(f.items, from, limit)
	return ok
}

// stored reads events from the store.
func (f *feed) stored(ts *Tails, log *topiclog.Log, from uint64, limit int) error {
	f.reset()
	f.removals = log.Removals()
	err := ts.store.Read(context.Background(), log.Topic(), from, limit, roundBytes, &f.batch)
	if err != nil {
		ts.log.Error("cannot read events for live tails", "topic", log.Topic(), "error", err)
		return err
	}
	f.items = append(f.items, f.batch.Items...)
	f.horizon, f.marks = f.batch.Horizon, f.batch.Marks()
	return nil
}

// prepare makes deliveries of the items.
func (f *feed) prepare(topic string, items []store.Item) []eventhub.Delivery {
	for _, item := range items {
		f.deliveries = append(f.deliveries, eventhub.Delivery{
			Topic: topic, Offset: item.Offset, Record: item.Record, Attempt: 1, MaxAttempts: 1,
		})
	}
	return f.deliveries
}

// since returns the deliveries at or above offset.
func since(ds []eventhub.Delivery, offset uint64) []eventhub.Delivery {
	if len(ds) == 0 || ds[0].Offset >= offset {
		return ds
	}
	return ds[sort.Search(len(ds), func(i int) bool { return ds[i].Offset >= offset }):]
}
