package topiclog

import (
	"sync"
	"sync/atomic"

	"eventhub/bus/internal/commit"
)

// Logs are the logs of the topics that are read.
type Logs struct {
	mu   sync.RWMutex
	logs map[string]*Log

	cache  cache
	cached atomic.Int64 // cache.bytes after the last commit
}

// New returns logs that hold at most cacheBytes of records together.
func New(cacheBytes int) *Logs {
	return &Logs{logs: make(map[string]*Log), cache: cache{limit: cacheBytes}}
}

// Use returns the log of a topic, made on first use. The caller leaves it.
func (ls *Logs) Use(topic string) *Log {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := ls.logs[topic]
	if l == nil {
		l = &Log{topic: topic}
		ls.logs[topic] = l
	}
	l.users++
	return l
}

// Leave undoes Use; the log goes with its last user.
func (ls *Logs) Leave(l *Log) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if l.users--; l.users == 0 {
		delete(ls.logs, l.topic)
	}
}

// find returns the log of a topic, or nil where nobody uses it.
func (ls *Logs) find(topic string) *Log {
	ls.mu.RLock()
	defer ls.mu.RUnlock()
	return ls.logs[topic]
}

// Forget releases the cached events of a topic that was deleted. Its offsets go on.
func (ls *Logs) Forget(topic string) {
	if l := ls.find(topic); l != nil {
		l.forget(l.Head())
		l.removals.Add(1)
		l.erasures.Add(1)
	}
}

// Erasing says that a commit is being built that erases single events of a topic: what is built after it, for the same commit
// too, comes after the erasure. Committed counts that again once the events are gone.
func (ls *Logs) Erasing(topic string) {
	if l := ls.find(topic); l != nil {
		l.erasures.Add(1)
	}
}

// CachedBytes returns how many bytes of records counted against the bound after the last
// commit.
func (ls *Logs) CachedBytes() int { return int(ls.cached.Load()) }

// Holds goes through all logs and returns how many there are and how many bytes of
// records they hold, which is never more than CachedBytes.
func (ls *Logs) Holds() (topics, bytes int) {
	ls.mu.RLock()
	defer ls.mu.RUnlock()
	for _, l := range ls.logs {
		bytes += l.held()
	}
	return len(ls.logs), bytes
}

// Committed hands the events of a commit to the topics that are read, wakes who watches
// them, and releases what the commit has removed. It notes in each job whether its records are kept.
func (ls *Logs) Committed(jobs []*commit.Request) {
	find := finder{logs: ls}
	for _, job := range jobs {
		ls.fanOut(job, &find)
	}
	ls.cached.Store(int64(ls.cache.bytes))
}

// fanOut hands over one job in runs of one topic.
func (ls *Logs) fanOut(job *commit.Request, find *finder) {
	// A large buffer must not stay in memory for a small part of it.
	own := 2*find.readBytes(job) < max(job.Bytes, cap(job.Records))
	for i := range job.Units {
		if job.Units[i].Err != nil {
			continue
		}
		for appends := job.Units[i].Appends; len(appends) > 0; {
			n := 1
			for n < len(appends) && appends[n].Topic == appends[0].Topic {
				n++
			}
			if l := find.log(appends[0].Topic); l != nil {
				kept, last, watchers := l.add(appends[:n], own)
				if kept > 0 {
					job.Kept = job.Kept || !own
					ls.cache.add(cachePart{l, last, kept})
				}
				for _, w := range watchers {
					w.Wake()
				}
			}
			appends = appends[n:]
		}
		for j := range job.Units[i].Topics {
			if ch := &job.Units[i].Topics[j]; ch.Removes() && find.log(ch.Topic) != nil {
				find.found.remove(max(ch.Horizon, ch.Compacted+1), ch.Erase)
			}
		}
	}
}

// finder remembers the last look-up: events of one topic come in runs, also over units.
// It is for one commit: logs that are made later learn their head from the store, where
// this commit is.
type finder struct {
	logs    *Logs
	topic   string
	found   *Log
	watched bool // found has somebody to wake; a guess that may be outdated
}

func (f *finder) log(topic string) *Log {
	if f.topic != topic {
		f.topic, f.found = topic, f.logs.find(topic)
		f.watched = f.found != nil && f.found.watched()
	}
	return f.found
}

// readBytes returns how many bytes of a job's records somebody reads.
func (f *finder) readBytes(job *commit.Request) (n int) {
	for i := range job.Units {
		u := &job.Units[i]
		for j := range u.Appends {
			a := &u.Appends[j]
			if u.Err != nil || a.Duplicate {
				continue
			}
			if f.log(a.Topic); f.watched {
				n += len(a.Record)
			}
		}
	}
	return n
}

// cache bounds the bytes of all logs together: what came first goes first.
type cache struct {
	limit, bytes int
	parts        []cachePart // in the order of commits
}

// cachePart is what one commit added to one topic.
type cachePart struct {
	log   *Log
	last  uint64
	bytes int
}

func (c *cache) add(part cachePart) {
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
