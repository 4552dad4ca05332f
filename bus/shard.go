package bus

import (
	"context"
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"eventhub"
	"eventhub/bus/internal/sched"
	"eventhub/bus/internal/topiclog"
	"eventhub/internal/measure"
	"eventhub/store"
)

// Live tails that keep up are served many at a time. Those of a topic are in shards, and a
// shard is what a commit wakes: its turn reads the new events once and gives the same
// deliveries to each of its parts. So a commit costs the committer one wake-up for
// shardSize tails, and the cache one read.
//
// A part whose tail did not take all that it should have been given is behind. The shard
// passes it by, and the tail serves it in turns of its own (tail.go) until it has all there
// is and is kept up again. These turns are slow tasks, so that those that keep up wait for
// at most one of them.
//
// Why nobody misses an event: next, where a shard's turn begins to read, is never above
// the head of the topic's log + 1, and a part is kept up only if it is at next or above.
// A turn reads the head first and then the list of its parts; a part joins the list first
// and is then behind unless its place is above the head. So a turn that does not have the
// part read a head below its place. A part comes back in the same way, when its place is
// above the head; of events that come later the committer tells the head first and the
// shard then. Either the turn that this brings comes after the part's return, and serves
// it, or before, and the head that the returning part looks at has the events: it is still
// behind.

// shardSize is how many tails a shard has at most.
const shardSize = 256

type shard struct {
	sched.State
	bus   *Bus
	topic *tailTopic
	log   *topiclog.Log           // of the topic
	parts atomic.Pointer[[]*part] // what it points to never changes; replaced under topic.mu
	next  uint64                  // the turn's own: events below it were read for all that kept up
}

// Wake implements topiclog.Watcher.
func (s *shard) Wake() { s.bus.sched.Schedule(s) }

// tailTopic is what the live tails of one topic share. It goes with the last of them, but
// what they were handed stays counted as long as the topic is there.
type tailTopic struct {
	name   string
	handed atomic.Uint64 // events that tails have taken

	// Guarded by bus.mu.
	users int           // parts, and those that are about to be
	log   *topiclog.Log // while there are users
	gone  bool          // the topic was deleted; it may have been created again

	mu     sync.Mutex
	shards []*shard // none is empty
}

// useTailTopic returns what the tails of a topic share, made on first use; b.mu is held.
// The caller leaves it.
func (b *Bus) useTailTopic(name string) *tailTopic {
	t := b.tailTopics[name]
	if t == nil {
		t = &tailTopic{name: name}
		b.tailTopics[name] = t
	}
	if t.users++; t.users == 1 {
		t.log = b.logs.Use(name)
	}
	return t
}

// leaveTailTopic undoes useTailTopic; b.mu is held.
func (b *Bus) leaveTailTopic(t *tailTopic) {
	if t.users--; t.users > 0 {
		return
	}
	b.logs.Leave(t.log)
	t.log = nil
	if t.gone || t.handed.Load() == 0 {
		delete(b.tailTopics, t.name)
	}
}

// attach gives a part of a tail its shard; head is as for topiclog.Log.Learn. The part is
// behind where the topic has events for it, and is not kept up then. The tail's mu is held.
func (t *tailTopic) attach(b *Bus, p *part, head uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	next := t.log.Learn(head) + 1
	i := slices.IndexFunc(t.shards, func(s *shard) bool { return len(*s.parts.Load()) < shardSize })
	if i >= 0 {
		p.shard = t.shards[i]
		parts := *p.shard.parts.Load()
		p.shard.setParts(append(parts[:len(parts):len(parts)], p))
	} else {
		p.shard = &shard{bus: b, topic: t, log: t.log, next: next}
		p.shard.setParts([]*part{p})
		t.shards = append(t.shards, p.shard)
		t.log.Watch(p.shard)
	}
	p.behind = p.next <= t.log.Head()
}

func (t *tailTopic) detach(p *part) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := p.shard
	rest := slices.DeleteFunc(slices.Clone(*s.parts.Load()), func(other *part) bool { return other == p })
	s.setParts(rest)
	if len(rest) == 0 {
		s.log.Unwatch(s)
		t.shards = slices.DeleteFunc(t.shards, func(other *shard) bool { return other == s })
	}
}

func (s *shard) setParts(parts []*part) { s.parts.Store(&parts) }

// tails returns how many live tails the topic has.
func (t *tailTopic) tails() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.shards {
		n += len(*s.parts.Load())
	}
	return n
}

// measureTails returns the counts of the tails of each topic together, under no name: of
// topics that have tails, or had some that were handed an event.
func (b *Bus) measureTails() (tails []measure.Group) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	for _, t := range b.tailTopics {
		g := measure.NewGroup(t.name, "")
		g.Delivered, g.Members = t.handed.Load(), t.tails()
		if g.Delivered > 0 || g.Members > 0 {
			tails = append(tails, g)
		}
	}
	return tails
}

// feed is what a turn reads, and the memory for it.
type feed struct {
	items      []store.Item
	deliveries []eventhub.Delivery // items as tails get them
	passed     []eventhub.Delivery // of these, what one tail wants
	due        []*pendingEvent     // of a tail that conflates
	batch      store.Batch
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
}

// cached reads events from the tail cache and reports whether that could tell.
func (f *feed) cached(log *topiclog.Log, from uint64, limit int) (ok bool) {
	f.reset()
	f.items, ok = log.Read(f.items, from, limit)
	return ok
}

// stored reads events from the store.
func (f *feed) stored(b *Bus, log *topiclog.Log, from uint64, limit int) error {
	f.reset()
	err := b.store.Read(context.Background(), log.Topic(), from, limit, roundBytes, &f.batch)
	if err != nil {
		b.log.Error("cannot read events for live tails", "topic", log.Topic(), "error", err)
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
	head := s.log.Head() // before the parts, see above
	if s.next > head {
		return false
	}
	parts := *s.parts.Load()
	if !f.cached(s.log, s.next, roundEvents) {
		if !anyAwaits(parts, head) {
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
	deliveries := f.prepare(s.log.Topic(), items)
	for _, p := range parts {
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
