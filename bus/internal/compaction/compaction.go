// Package compaction keeps the newest event of each key, where the settings of a topic say so:
// it moves the marks of the topic up and has the store remove what they leave over.
//
// It owns what a pass over a compacted topic does, and when there is more to do. The settings are the
// bus's, the marks and how far their work is done are the store's.
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
// One goroutine, from Start to Stop (package rounds). Committed runs on the committer's goroutine
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
	"strings"
	"sync"
	"time"

	"eventhub/admin"
	"eventhub/bus/internal/commit"
	"eventhub/bus/internal/rounds"
	"eventhub/store"
)

// Every is the least time between two passes over a topic, where Options say nothing else.
const Every = 10 * time.Second

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

// Ages is the wall clock, held back where that has jumped ahead.
type Ages interface {
	// Now returns how late it is for an age.
	Now(age time.Duration) time.Time
	// Until returns after how long what was committed then, in epoch milliseconds, is older than an age.
	Until(committed int64, age time.Duration) time.Duration
}

// Options configure a Runtime. All are required but Every.
type Options struct {
	Store     Store
	Committer *commit.Committer
	Logger    *slog.Logger
	Policies  Policies
	// Ages is the clock of ages.
	Ages Ages
	// Wall is the wall clock, and Commits counts the commits so far.
	Wall    func() time.Time
	Commits func() uint64
	// Room refuses to write more where the disk is nearly full.
	Room func() error
	// Every is the least time between two passes over a topic. Default: the constant.
	Every time.Duration
}

// Runtime compacts topics.
type Runtime struct {
	opts   Options
	rounds *rounds.Runtime

	mu        sync.Mutex
	stats     map[string]Stats
	overtaken map[overtaken]uint64 // the event that each stood before
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
	r := &Runtime{opts: opts, stats: make(map[string]Stats), overtaken: make(map[overtaken]uint64)}
	r.rounds = rounds.New(rounds.Options{
		Store: opts.Store, Logger: opts.Logger, What: "compact", Every: opts.Every,
		Any: opts.Policies.AnyCompaction, Has: r.isCompacted, Pass: r.pass,
	})
	return r
}

func (r *Runtime) isCompacted(topic string) bool {
	return r.opts.Policies.Compaction(topic) != nil && !strings.HasPrefix(topic, "system.")
}

// Start starts the goroutine, which looks at all topics that are compacted first: a pass may
// have been cut short.
func (r *Runtime) Start() { r.rounds.Start() }

// Stop ends the goroutine, which was started, and returns when it has ended. The committer
// still runs.
func (r *Runtime) Stop() { r.rounds.Stop() }

// Changed says that the settings of a name, a topic's or a pattern, have changed. It does not
// block.
func (r *Runtime) Changed(name string) { r.rounds.Changed(name) }

// Look has a topic looked at that could not be compacted before its keys were indexed.
func (r *Runtime) Look(topic string) { r.rounds.Look(topic) }

// Forget forgets a topic that was deleted.
func (r *Runtime) Forget(topic string) {
	r.rounds.Forget(topic)
	r.forget(topic)
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
	if !r.rounds.On() {
		return
	}
	last := ""
	moved := func(topic string) {
		if topic != last {
			last = topic
			r.rounds.Touch(topic)
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

// pass compacts a topic as far as it may be now.
func (r *Runtime) pass(ctx context.Context, topic string) (again time.Duration, err error) {
	policy := r.opts.Policies.Compaction(topic)
	if policy == nil {
		return 0, nil
	}
	r.note(topic, func(s *Stats) { s.Running = true })
	again, err = r.compact(ctx, topic, policy)
	r.note(topic, func(s *Stats) { s.Running = false })
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrGone) {
		r.forget(topic)
	}
	return again, err
}

func (r *Runtime) forget(topic string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.stats, topic)
	maps.DeleteFunc(r.overtaken, func(g overtaken, _ uint64) bool { return g.topic == topic })
}
