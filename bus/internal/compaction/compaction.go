// Package compaction keeps the newest event of each key, where the settings of a topic say so:
// it moves the marks of the topic up and has the store remove what they leave over.
//
// It owns for each compacted topic when it is looked at next. The settings are the bus's, the
// marks and how far their work is done are the store's.
//
// # Where the mark is
//
// An event goes only if a newer one of its key is at or below the mark, so the state by key is
// exact at every offset at or above it. The mark is
//
//   - at most the last offset;
//   - before the events that are younger than MinAge;
//   - at most the cursor of each group, except for a group whose oldest open event is older than
//     Hold: it is overtaken.
//
// A tombstone, an event with the payload null, goes Grace after its commit.
//
// # Invariants
//
//   - The mark is durable before anything is removed.
//   - A pass does the work of the events that came since the one before (store.Retention.Compact).
//     A topic has at most one pass in Options.Every.
//   - Only a topic whose keys are indexed is compacted. Whoever has them indexed calls Look.
//   - Where nothing is due nothing runs: a topic is looked at again when events were added, when a
//     group has moved, or when an event becomes old enough.
//
// # Goroutines and locks
//
// One goroutine, from Start to Stop, with one timer. Committed runs on the committer's goroutine
// or its syncer; where no topic is compacted it reads one atomic value. Runtime.mu is a leaf.
//
// The bus calls it. It reads the store and submits jobs to the committer.
package compaction

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/commit"
	"eventhub/store"
)

const (
	// Every is the least time between two passes over a topic, where Options say nothing else.
	Every = 10 * time.Second
	// retryAfter is the rest after a pass that failed.
	retryAfter = time.Minute
	// longestSleep is how long a topic waits at most for an age: the wall clock may be set
	// meanwhile.
	longestSleep = time.Hour
	// politeRest is for how many times the length of a step the goroutine rests after it while
	// others commit, at most for longestRest.
	politeRest  = 4
	longestRest = time.Second

	never = math.MaxInt64
)

// Policies say which topics are compacted.
type Policies interface {
	// AnyCompaction reports whether some topic, there or not, is compacted.
	AnyCompaction() bool
	// Compaction returns how a topic is compacted, nil where it is not.
	Compaction(topic string) *admin.Compaction
}

// Store is what the runtime reads.
type Store interface {
	store.Log
	store.Topics
	store.Groups
	store.Retention
}

// Options configure a Runtime. All are required but Every.
type Options struct {
	Store     Store
	Committer *commit.Committer
	Logger    *slog.Logger
	Policies  Policies
	// Wall is the wall clock, and Commits counts the commits so far.
	Wall    func() time.Time
	Commits func() uint64
	// Every is the least time between two passes over a topic. Default: the constant.
	Every time.Duration
}

// Runtime compacts topics.
type Runtime struct {
	opts   Options
	ctx    context.Context // ends with Stop
	cancel context.CancelFunc
	wake   chan struct{}
	done   chan struct{} // closed when the goroutine has ended
	began  time.Time     // times of the runtime are the time since then
	on     atomic.Bool   // some topic is compacted

	overtaken map[overtaken]uint64 // the goroutine's: the event that each stood before

	mu      sync.Mutex
	topics  map[string]*entry // nil: one that is not compacted
	changed map[string]bool   // names of settings that were changed
	stats   map[string]Stats
}

// entry is a topic that is compacted.
type entry struct {
	next, last time.Duration
}

// overtaken is a group that keeps nothing any more.
type overtaken struct{ topic, group string }

// Stats say what was removed of a topic since the start, and what holds the rest.
type Stats struct {
	Events, Bytes uint64
	LastPass      int64 // epoch milliseconds
	Held          Held
	// Running: a pass is under way.
	Running bool
}

// Held says why the last pass did not move the mark to the last offset. The zero value: it did.
type Held struct {
	// From is the first event that is kept as it is: it is younger than MinAge, or, where Group is not
	// empty, open in that group.
	From  uint64
	Group string
	// Until is when that ends by itself, in epoch milliseconds: From is old enough for MinAge, or Hold.
	Until int64
}

// New returns a Runtime that does nothing before Start.
func New(opts Options) *Runtime {
	opts.Every = cmp.Or(opts.Every, Every)
	r := &Runtime{
		opts: opts, wake: make(chan struct{}, 1), done: make(chan struct{}), began: time.Now(),
		overtaken: make(map[overtaken]uint64),
		topics:    make(map[string]*entry), changed: make(map[string]bool), stats: make(map[string]Stats),
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.on.Store(opts.Policies.AnyCompaction())
	return r
}

// Start starts the goroutine, which looks at all topics that are compacted first: a pass may
// have been cut short.
func (r *Runtime) Start() { go r.run() }

// Stop ends the goroutine, which was started, and returns when it has ended. The committer
// still runs.
func (r *Runtime) Stop() {
	r.cancel()
	<-r.done
}

// Changed says that the settings of a name, a topic's or a pattern, have changed. It does not
// block.
func (r *Runtime) Changed(name string) {
	r.on.Store(r.opts.Policies.AnyCompaction())
	r.mu.Lock()
	r.changed[strings.Clone(name)] = true
	r.mu.Unlock()
	r.hint()
}

// Look has a topic looked at that could not be compacted before its keys were indexed.
func (r *Runtime) Look(topic string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.entry(topic); e != nil {
		e.last = -r.opts.Every
		r.due(e, r.now())
	}
}

// Forget forgets a topic that was deleted.
func (r *Runtime) Forget(topic string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.topics, topic)
	delete(r.stats, topic)
}

// Stats returns what was done, by topic.
func (r *Runtime) Stats() map[string]Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	stats := make(map[string]Stats, len(r.stats))
	for topic, s := range r.stats {
		stats[topic] = s
	}
	return stats
}

// Status returns what was done of one topic.
func (r *Runtime) Status(topic string) Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stats[topic]
}

// note changes what is said of a topic.
func (r *Runtime) note(topic string, change func(*Stats)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.stats[topic]
	change(&s)
	r.stats[topic] = s
}

// Committed has the topics looked at of which a commit has events or groups.
func (r *Runtime) Committed(units []*store.Unit) {
	if !r.on.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now, topic := r.now(), ""
	moved := func(name string) {
		if name == topic {
			return
		}
		topic = name
		if e := r.entry(name); e != nil {
			r.due(e, now)
		}
	}
	for _, u := range units {
		if u.Err != nil {
			continue
		}
		for i := range u.Appends {
			moved(u.Appends[i].Topic)
		}
		for i := range u.Groups {
			moved(u.Groups[i].Topic)
		}
	}
}

func (r *Runtime) now() time.Duration { return time.Since(r.began) }

func (r *Runtime) hint() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// entry returns the entry of a topic, nil for one that is not compacted. r.mu is held.
func (r *Runtime) entry(topic string) *entry {
	e, ok := r.topics[topic]
	if !ok {
		topic = strings.Clone(topic)
		if r.opts.Policies.Compaction(topic) != nil && !strings.HasPrefix(topic, "system.") {
			e = &entry{next: never, last: -r.opts.Every}
		}
		r.topics[topic] = e
	}
	return e
}

// due has a topic looked at at a time, but not within opts.Every of its last pass. r.mu is held.
func (r *Runtime) due(e *entry, at time.Duration) {
	if at = max(at, e.last+r.opts.Every); at < e.next {
		e.next = at
		r.hint()
	}
}

// run is the goroutine.
func (r *Runtime) run() {
	defer close(r.done)
	if r.on.Load() {
		r.find()
	}
	timer := time.NewTimer(longestSleep)
	defer timer.Stop()
	for r.ctx.Err() == nil {
		r.takeChanges()
		topic, wait := r.next()
		if topic != "" && wait <= 0 {
			r.pass(topic)
			continue
		}
		var rings <-chan time.Time // none where nothing is due
		if topic != "" {
			timer.Reset(wait)
			rings = timer.C
		}
		select {
		case <-rings:
		case <-r.wake:
		case <-r.ctx.Done():
		}
	}
}

// find has all topics looked at that are compacted.
func (r *Runtime) find() {
	for t, err := range store.AllTopics(r.ctx, r.opts.Store, "") {
		if err != nil {
			if r.ctx.Err() == nil {
				r.opts.Logger.Error("cannot list the topics to find those that are compacted; an event or a change of settings has them found", "error", err)
			}
			return
		}
		r.mu.Lock()
		if e := r.entry(t.Name); e != nil {
			r.due(e, r.now())
		}
		r.mu.Unlock()
	}
}

// takeChanges finds out again which topics are compacted.
func (r *Runtime) takeChanges() {
	r.mu.Lock()
	changed := len(r.changed) > 0
	wide := false
	for name := range r.changed {
		wide = wide || eventhub.IsPattern(name)
		delete(r.topics, name)
	}
	if wide {
		clear(r.topics)
	}
	clear(r.changed)
	r.mu.Unlock()
	if changed && r.on.Load() {
		r.find()
	}
}

// next returns the topic that is due first, and how long that takes; "" where none is.
func (r *Runtime) next() (topic string, wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	first := time.Duration(never)
	for name, e := range r.topics {
		if e != nil && cmp.Or(cmp.Compare(e.next, first), strings.Compare(name, topic)) < 0 && e.next != never {
			topic, first = name, e.next
		}
	}
	return topic, first - r.now()
}

// pass compacts a topic as far as it may be now.
func (r *Runtime) pass(topic string) {
	r.mu.Lock()
	e := r.topics[topic]
	if e != nil {
		e.next, e.last = never, r.now()
	}
	r.mu.Unlock()
	policy := r.opts.Policies.Compaction(topic)
	if e == nil || policy == nil {
		return
	}
	r.note(topic, func(s *Stats) { s.Running = true })
	again, err := r.compact(topic, policy)
	r.note(topic, func(s *Stats) { s.Running = false })
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	e.last = now
	switch {
	case errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrGone):
		delete(r.topics, topic)
		delete(r.stats, topic)
		maps.DeleteFunc(r.overtaken, func(g overtaken, _ uint64) bool { return g.topic == topic })
	case err != nil:
		if r.ctx.Err() == nil {
			r.opts.Logger.Error("cannot compact a topic; it is tried again", "topic", topic, "error", err)
		}
		r.due(e, now+retryAfter)
	case again > 0:
		r.due(e, now+min(again, longestSleep))
	}
}
