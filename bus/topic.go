package bus

import (
	"bytes"
	"slices"
	"sync"
	"sync/atomic"

	"eventhub/bus/internal/commit"
	"eventhub/store"
)

// topicLog is the runtime of a topic that groups or live tails read: the durable
// head as the committer last left it, the newest events, and who is to be woken.
// Topics that nobody reads have none, whatever is published to them.
//
// tail holds every event of the topic with an offset above gap and up to head;
// what lies at or below gap is read from the store. The committer is the only
// one who adds to and takes from it.
type topicLog struct {
	name   string
	groups int // loaded or loading, and tails; guarded by bus.mu
	// gone: the topic was deleted; it may have been made again. Guarded by bus.mu.
	gone bool
	// handed counts the events handed to live tails; nil before the first.
	handed atomic.Pointer[atomic.Uint64]

	mu       sync.Mutex
	head     uint64
	gap      uint64
	tail     []store.Item
	known    bool     // head has been the store's once, so it is told of all that follows
	watchers []*group // with members
	shards   []*shard // of the live tails; none is empty
}

func newTopicLog(name string) *topicLog { return &topicLog{name: name} }

// useLog returns the runtime of a topic, made on first use; b.mu is held. The
// caller leaves it.
func (b *Bus) useLog(topic string) *topicLog {
	log := b.logs[topic]
	if log == nil {
		log = newTopicLog(topic)
		b.logs[topic] = log
	}
	log.groups++
	return log
}

// leaveLog undoes useLog; the runtime goes with its last user. b.mu is held.
func (b *Bus) leaveLog(log *topicLog) {
	log.groups--
	if log.groups == 0 {
		delete(b.logs, log.name)
		if log.gone {
			b.counts.forgetTails(log.name)
		}
	}
}

// watch adds a group to wake. head is the store's, read after the topicLog was
// made: commits that came earlier are in it, later ones were told to us.
func (l *topicLog) watch(g *group, head uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watchers = append(l.watchers, g)
	l.learn(head)
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

// learn takes over the store's head, which the committer may be about to tell us:
// only the first one counts, because what raise drops others may want to read.
// l.mu is held.
func (l *topicLog) learn(head uint64) {
	if !l.known {
		l.known = true
		l.raise(head)
	}
}

// attach gives a part of a tail its shard; head is as for watch. The part is
// behind where the topic has events for it, and is not kept up then.
func (l *topicLog) attach(b *Bus, p *part, head uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.learn(head)
	i := slices.IndexFunc(l.shards, func(s *shard) bool { return len(s.parts) < shardSize })
	if i < 0 {
		i = len(l.shards)
		l.shards = append(l.shards, &shard{bus: b, log: l, next: l.head + 1})
	}
	p.shard, p.behind = l.shards[i], p.next <= l.head
	p.at = len(p.shard.parts)
	p.shard.parts = append(p.shard.parts, p)
}

func (l *topicLog) detach(p *part) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := p.shard
	n := len(s.parts) - 1
	s.parts[p.at] = s.parts[n]
	s.parts[p.at].at = p.at
	s.parts[n] = nil
	s.parts = s.parts[:n]
	if n == 0 {
		i := slices.Index(l.shards, s)
		// A copy: the committer reads what add has returned.
		l.shards = append(l.shards[:i:i], l.shards[i+1:]...)
	}
}

// keptUp appends the parts of a shard to parts and returns the head that was there.
// A part that comes later has its place above that head, or is behind.
func (l *topicLog) keptUp(s *shard, parts []*part) ([]*part, uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append(parts, s.parts...), l.head
}

// tails returns how many live tails the topic has.
func (l *topicLog) tails() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.shards {
		n += len(s.parts)
	}
	return n
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
	return len(l.watchers)+len(l.shards) > 0
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
	return search(l.tail, offset)
}

// add takes committed events and returns how many bytes of them it keeps, the
// last of them, and the groups and shards to wake. Without any it keeps nothing.
// With own it keeps copies.
func (l *topicLog) add(appends []store.Append, own bool) (kept int, last uint64, watchers []*group, shards []*shard) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range appends {
		a := &appends[i]
		if a.Duplicate || a.Offset <= l.head {
			continue
		}
		if len(l.watchers)+len(l.shards) == 0 {
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
	return kept, l.head, l.watchers, l.shards
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
// their groups and tails. It runs on the committer's goroutine or, for commits that are
// pipelined, on the syncer's, never on both at once, and before the receipts.
func (b *Bus) committed(batch []*commit.Request) {
	b.topicsCreated(batch)
	var find logFinder
	for _, s := range batch {
		b.fanOut(s, &find)
		for i := range s.Units {
			if u := &s.Units[i]; u.Err == nil && len(u.Groups) > 0 {
				b.known.add(u.Groups)
			}
		}
	}
	b.counts.cached.Store(int64(b.cache.bytes))
}

// fanOut hands over one job in runs of one topic.
func (b *Bus) fanOut(s *commit.Request, find *logFinder) {
	// A buffer of which little is kept must not stay for it.
	own := 2*find.readBytes(b, s) < max(s.Bytes, cap(s.Records))
	for i := range s.Units {
		if s.Units[i].Err != nil {
			continue
		}
		if plans := s.Units[i].Plans; len(plans) > 0 {
			b.mover.planned(plans)
		}
		for appends := s.Units[i].Appends; len(appends) > 0; {
			n := 1
			for n < len(appends) && appends[n].Topic == appends[0].Topic {
				n++
			}
			if log := find.log(b, appends[0].Topic); log != nil {
				kept, last, watchers, shards := log.add(appends[:n], own)
				if kept > 0 {
					s.Kept = s.Kept || !own
					b.cache.add(cachePart{log, last, kept})
				}
				for _, g := range watchers {
					b.sched.Schedule(g)
				}
				for _, shard := range shards {
					b.sched.Schedule(shard)
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

// readBytes returns how many bytes of a job's records somebody reads.
func (f *logFinder) readBytes(b *Bus, s *commit.Request) (n int) {
	for i := range s.Units {
		u := &s.Units[i]
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

// countHanded counts events that a live tail has taken.
func (l *topicLog) countHanded(b *Bus, n int) {
	c := l.handed.Load()
	if c == nil {
		c = b.counts.handed(l.name)
		l.handed.Store(c)
	}
	c.Add(uint64(n))
}
