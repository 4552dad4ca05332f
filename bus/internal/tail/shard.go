package tail

import (
	"sync/atomic"

	"eventhub/bus/internal/past"
	"eventhub/bus/internal/sched"
	"eventhub/bus/internal/topiclog"
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
// above the head; of events that come later the committer notifies the head first and then the
// shard. Either the turn that this brings comes after the part's return, and serves
// it, or before, and the head that the returning part looks at has the events: it is still
// behind.

// shardSize is how many tails a shard has at most.
const shardSize = 256

type shard struct {
	sched.State
	tails *Tails
	topic *sharedTopic
	log   *topiclog.Log           // of the topic
	parts atomic.Pointer[[]*part] // what it points to never changes; replaced under topic.mu
	next  uint64                  // the turn's own: events below it were read for all that kept up
}

// Wake implements topiclog.Watcher.
func (s *shard) Wake() { s.tails.sched.Schedule(s) }

func (s *shard) setParts(parts []*part) { s.parts.Store(&parts) }

// Turn serves the parts that keep up. Only one runs at a time for a shard.
func (s *shard) Turn() {
	f := feeds.Get().(*feed)
	defer f.release()
	for range turnRounds {
		if !s.round(f) {
			return
		}
	}
	s.tails.sched.Schedule(s)
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
		if f.stored(s.tails, s.log, s.next, roundEvents) != nil {
			s.tails.sched.ScheduleAt(s, s.tails.clock.After(readAgain))
			return false
		}
	}
	// The store may know what the committer has not reported yet.
	items := f.items[:past.Search(f.items, head+1)]
	horizon := min(f.horizon, head+1)
	if len(items) > 0 || horizon > s.next || f.marks.Compacted >= s.next {
		deliveries := f.prepare(s.log.Topic(), items)
		for _, p := range parts {
			p.tail.keepUp(p, deliveries, horizon, f)
		}
	}
	if len(items) == 0 {
		s.next = head + 1 // nothing is there any more
		return true
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
