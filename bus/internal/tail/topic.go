package tail

import (
	"slices"
	"sync"
	"sync/atomic"

	"eventhub/bus/internal/topiclog"
)

// sharedTopic is what the live tails of one topic share. It goes with the last of them, but
// what they were handed stays counted as long as the topic is there.
type sharedTopic struct {
	name   string
	handed atomic.Uint64 // events that tails have taken

	// Guarded by Tails.mu.
	users int           // parts, and those that are about to be
	log   *topiclog.Log // while there are users
	gone  bool          // the topic was deleted; it may have been created again

	mu     sync.Mutex
	shards []*shard // none is empty
}

// use returns what the tails of a topic share, made on first use; ts.mu is held.
// The caller leaves it.
func (ts *Tails) use(name string) *sharedTopic {
	t := ts.topics[name]
	if t == nil {
		t = &sharedTopic{name: name}
		ts.topics[name] = t
	}
	if t.users++; t.users == 1 {
		t.log = ts.logs.Use(name)
	}
	return t
}

// leave undoes use; ts.mu is held.
func (ts *Tails) leave(t *sharedTopic) {
	if t.users--; t.users > 0 {
		return
	}
	ts.logs.Leave(t.log)
	t.log = nil
	if t.gone || t.handed.Load() == 0 {
		delete(ts.topics, t.name)
	}
}

// attach gives a part of a tail its shard; head is as for topiclog.Log.Learn. The part is
// behind if the topic has events for it, and is not kept up then. The tail's mu is held.
func (t *sharedTopic) attach(ts *Tails, p *part, head uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	next := t.log.Learn(head) + 1
	i := slices.IndexFunc(t.shards, func(s *shard) bool { return len(*s.parts.Load()) < shardSize })
	if i >= 0 {
		p.shard = t.shards[i]
		parts := *p.shard.parts.Load()
		p.shard.setParts(append(parts[:len(parts):len(parts)], p))
	} else {
		p.shard = &shard{tails: ts, topic: t, log: t.log, next: next}
		p.shard.setParts([]*part{p})
		t.shards = append(t.shards, p.shard)
		t.log.Watch(p.shard)
	}
	p.behind = p.next <= t.log.Head()
}

func (t *sharedTopic) detach(p *part) {
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

// tails returns how many live tails the topic has.
func (t *sharedTopic) tails() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.shards {
		n += len(*s.parts.Load())
	}
	return n
}

// conflated returns the parts of tails that conflate.
func (t *sharedTopic) conflated() (parts []*part) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.shards {
		for _, p := range *s.parts.Load() {
			if p.tail.conflates {
				parts = append(parts, p)
			}
		}
	}
	return parts
}
