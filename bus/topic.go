package bus

import (
	"bytes"
	"sort"
	"sync"

	"eventhub/store"
)

// topicLog is the runtime of a topic that groups read: the durable head as the
// committer last left it, the newest events, and the groups to wake. Topics
// that nobody reads have none, whatever is published to them.
//
// tail holds every event of the topic with an offset above gap and up to head;
// what lies at or below gap is read from the store. The committer is the only
// one who adds to and takes from it.
type topicLog struct {
	name   string
	groups int // loaded or loading; guarded by bus.mu

	mu       sync.Mutex
	head     uint64
	gap      uint64
	tail     []store.Item
	watchers []*group // with members
}

func newTopicLog(name string) *topicLog { return &topicLog{name: name} }

// watch adds a group to wake. head is the store's, read after the topicLog was
// made: commits that came earlier are in it, later ones were told to us.
func (l *topicLog) watch(g *group, head uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watchers = append(l.watchers, g)
	l.raise(head)
}

func (l *topicLog) unwatch(g *group) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, w := range l.watchers {
		if w == g {
			l.watchers = append(l.watchers[:i:i], l.watchers[i+1:]...)
			return
		}
	}
}

// raise moves the head without events for the tail. l.mu is held.
func (l *topicLog) raise(head uint64) {
	if head > l.head {
		l.head, l.gap = head, head
		l.tail = nil
	}
}

func (l *topicLog) watched() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.watchers) > 0
}

func (l *topicLog) durableHead() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.head
}

// read appends the events from offset from on, up to limit, to items. ok is
// false where the tail can not tell: it does not reach back to from, or not up
// to it. The store shows a commit before the committer has told us of it, so a
// group may know an event that is above our head, and must not take it for gone.
func (l *topicLog) read(items []store.Item, from uint64, limit int) (_ []store.Item, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if from <= l.gap || from > l.head {
		return items, false
	}
	first := l.search(from)
	return append(items, l.tail[first:min(first+limit, len(l.tail))]...), true
}

// search returns the index of the first event at or above offset. l.mu is held.
func (l *topicLog) search(offset uint64) int {
	return sort.Search(len(l.tail), func(i int) bool { return l.tail[i].Offset >= offset })
}

// add takes committed events and returns how many bytes of them it keeps, the
// last of them, and the groups to wake. Without a watcher it keeps nothing. With
// own it keeps copies.
func (l *topicLog) add(appends []store.Append, own bool) (kept int, last uint64, watchers []*group) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range appends {
		a := &appends[i]
		if a.Duplicate || a.Offset <= l.head {
			continue
		}
		if len(l.watchers) == 0 {
			l.raise(a.Offset)
			continue
		}
		l.head = a.Offset
		record := a.Record
		if own {
			record = bytes.Clone(record)
		}
		l.tail = append(l.tail, store.Item{Offset: a.Offset, Record: record})
		kept += len(a.Record)
	}
	return kept, l.head, l.watchers
}

// forget drops the tail up to and including offset.
func (l *topicLog) forget(offset uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if offset <= l.gap {
		return
	}
	n := l.search(offset + 1)
	clear(l.tail[:n])
	l.tail = l.tail[n:]
	l.gap = offset
}

// tailCache bounds the bytes of all tails together: what came first goes first.
// It belongs to the committer's goroutine.
type tailCache struct {
	limit, bytes int
	parts        []cachePart // in the order of commits
}

// cachePart is what one commit added to one topic.
type cachePart struct {
	log   *topicLog
	last  uint64
	bytes int
}

func (c *tailCache) add(part cachePart) {
	c.parts = append(c.parts, part)
	c.bytes += part.bytes
	n := 0
	for c.bytes > c.limit {
		old := c.parts[n]
		old.log.forget(old.last)
		c.bytes -= old.bytes
		n++
	}
	clear(c.parts[:n])
	c.parts = c.parts[n:]
}

// committed hands the events of a commit to the topics that are read and wakes
// their groups. It runs on the committer's goroutine, before the receipts.
func (b *Bus) committed(batch []*submission) {
	var find logFinder
	for _, s := range batch {
		b.spread(s, &find)
	}
	b.counts.cached.Store(int64(b.cache.bytes))
}

// spread hands over one submission in runs of one topic.
func (b *Bus) spread(s *submission, find *logFinder) {
	// A buffer of which little is kept must not stay for it.
	own := 2*find.readBytes(b, s) < cap(s.buf)
	for i := range s.units {
		if s.units[i].Err != nil {
			continue
		}
		if plans := s.units[i].Plans; len(plans) > 0 {
			b.mover.planned(plans)
		}
		for appends := s.units[i].Appends; len(appends) > 0; {
			n := 1
			for n < len(appends) && appends[n].Topic == appends[0].Topic {
				n++
			}
			if log := find.log(b, appends[0].Topic); log != nil {
				kept, last, watchers := log.add(appends[:n], own)
				if kept > 0 {
					s.cached = s.cached || !own
					b.cache.add(cachePart{log, last, kept})
				}
				for _, g := range watchers {
					b.workers.schedule(g)
				}
			}
			appends = appends[n:]
		}
	}
}

// logFinder remembers the last look-up: events of one topic come in runs, also
// over units. It is for one commit: runtimes that are made later read the head
// from the store, where this commit is.
type logFinder struct {
	topic   string
	found   *topicLog
	watched bool // found has somebody to wake; a guess that may be outdated
}

func (f *logFinder) log(b *Bus, topic string) *topicLog {
	if f.topic != topic {
		f.topic, f.found = topic, b.topicLog(topic)
		f.watched = f.found != nil && f.found.watched()
	}
	return f.found
}

// readBytes returns how many bytes of a submission's records somebody reads.
func (f *logFinder) readBytes(b *Bus, s *submission) (n int) {
	for i := range s.units {
		u := &s.units[i]
		for j := range u.Appends {
			a := &u.Appends[j]
			if u.Err != nil || a.Duplicate {
				continue
			}
			if f.log(b, a.Topic); f.watched {
				n += len(a.Record)
			}
		}
	}
	return n
}
