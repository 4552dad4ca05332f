package bus

import (
	"context"
	"sort"
	"sync"

	"eventhub"
	"eventhub/bus/internal/sched"
	"eventhub/store"
)

// Live tails that keep up are served many at a time. Those of a topic stand in
// shards, and a shard is what a commit wakes: its turn reads the new events once
// and gives the same deliveries to each of its parts. So a commit costs the
// committer one wake-up for shardSize tails, and the cache one read.
//
// A part whose tail did not take all that it should have been given is behind. The shard passes
// it by, and the tail serves it in turns of its own (tail.go) until it has all there
// is and is kept up again. These turns are slow tasks, so that those that keep up
// wait for at most one of them.
//
// Why nobody misses an event: next, where a shard's turn begins to read, is never
// above the topic's head + 1, and a part is kept up only if it is at next or above.
// It begins so, or comes back so, when its place is above the head; of events that
// come later the committer tells the head first and the shard then. Either the turn
// that this brings comes behind the part's return, and serves it, or before, and the
// head that the returning part looks at has the events: it is still behind.

// shardSize is how many tails a shard has at most.
const shardSize = 256

type shard struct {
	sched.State
	bus   *Bus
	log   *topicLog
	parts []*part // guarded by log.mu
	next  uint64  // the turn's own: events below it were read for all that kept up
}

// feed is what a turn reads, and the memory for it.
type feed struct {
	parts      []*part
	items      []store.Item
	deliveries []eventhub.Delivery // items as tails get them
	passed     []eventhub.Delivery // of these, what one tail wants
	due        []*pendingEvent     // of a tail that conflates
	batch      store.Batch
}

var feeds = sync.Pool{New: func() any { return new(feed) }}

// release lets go of the events and keeps the memory.
func (f *feed) release() {
	clear(f.parts)
	clear(f.passed)
	clear(f.due)
	f.parts, f.passed, f.due = f.parts[:0], f.passed[:0], f.due[:0]
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
}

// cached reads events from the tail cache and reports whether that could tell.
func (f *feed) cached(log *topicLog, from uint64, limit int) (ok bool) {
	f.reset()
	f.items, ok = log.read(f.items, from, limit)
	return ok
}

// stored reads events from the store.
func (f *feed) stored(b *Bus, log *topicLog, from uint64, limit int) error {
	f.reset()
	err := b.store.Read(context.Background(), log.name, from, limit, roundBytes, &f.batch)
	if err != nil {
		b.log.Error("cannot read events for live tails", "topic", log.name, "error", err)
		return err
	}
	f.items = append(f.items, f.batch.Items...)
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

// Turn serves the parts that keep up. Only one runs at a time for a shard.
func (s *shard) Turn() {
	f := feeds.Get().(*feed)
	defer f.release()
	for range turnRounds {
		if !s.round(f) {
			return
		}
	}
	s.bus.sched.Schedule(s)
}

// round reports whether another one may find more to do.
func (s *shard) round(f *feed) bool {
	var head uint64
	if f.parts, head = s.log.keptUp(s, f.parts[:0]); s.next > head {
		return false
	}
	if !f.cached(s.log, s.next, roundEvents) {
		if !anyAwaits(f.parts, head) {
			s.next = head + 1
			return true
		}
		if f.stored(s.bus, s.log, s.next, roundEvents) != nil {
			s.bus.sched.ScheduleAt(s, s.bus.clock.After(readAgain))
			return false
		}
	}
	// The store may know what the committer has not told us yet.
	items := f.items[:search(f.items, head+1)]
	if len(items) == 0 {
		s.next = head + 1 // a gap
		return true
	}
	deliveries := f.prepare(s.log.name, items)
	for _, p := range f.parts {
		p.tail.keepUp(p, deliveries, f)
	}
	s.next = items[len(items)-1].Offset + 1
	return true
}

// anyAwaits reports whether there is a part to read for.
func anyAwaits(parts []*part, head uint64) (some bool) {
	for _, p := range parts {
		some = p.tail.awaits(p, head) || some
	}
	return some
}

// search returns the index of the first item at or above offset.
func search(items []store.Item, offset uint64) int {
	return sort.Search(len(items), func(i int) bool { return items[i].Offset >= offset })
}

// since returns the deliveries at or above offset.
func since(ds []eventhub.Delivery, offset uint64) []eventhub.Delivery {
	if len(ds) == 0 || ds[0].Offset >= offset {
		return ds
	}
	return ds[sort.Search(len(ds), func(i int) bool { return ds[i].Offset >= offset }):]
}
