// Package tail serves live tails: subscriptions without a group, which get the events of
// their topics in order and leave no trace. It owns the tails, the places that they have in
// topics, the shards that serve many of them at a time, and what is pending of those that
// conflate.
//
// What a receiver takes is done, so there are no leases and no window. A tail that keeps up
// is served by the shards of its topics (shard.go), one that lags by turns of its own
// (tail.go). Where a tail begins: at its start, at the places that it had, and in topics
// that it does not know from the first event on (places.go, known.go). Topics that are
// created join by themselves (TopicsCreated).
//
// # Invariants
//
//   - A tail is given the events of a topic in order, each at most once, and none after it
//     has left. It misses none that its filter wants from its place on, except those that
//     conflation replaces.
//   - A part is kept up by its shard, or it is behind and in its tail's list, never both.
//   - A shard's next is never above the head of its topic's log + 1.
//
// # Goroutines and locks
//
// Shards and tails are tasks of bus/internal/sched; the loads of states (load.go) have a
// goroutine each, which ends with the load. A tail is
// touched by its owner, the shards of its topics and its turn, under Tail.mu. Locks are taken
// in the order Tail.mu, sharedTopic.mu, those of topiclog; and Tails.mu before
// sharedTopic.mu and those of topiclog, never together with Tail.mu. The scheduler's come
// last. Receivers are called under Tail.mu and must not block or call back. Filters are
// asked, and the store is read, under no lock.
//
// The bus calls it: to open a tail, when topics were created or deleted, and at its end. It
// imports the topic logs, the scheduler, reading the past and the store's contract, and knows
// nothing of groups.
package tail

import (
	"context"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"eventhub"
	"eventhub/bus/internal/past"
	"eventhub/bus/internal/sched"
	"eventhub/bus/internal/topiclog"
	"eventhub/internal/budget"
	"eventhub/internal/measure"
	"eventhub/store"
)

const (
	// turnRounds bounds a turn, so that a tail with much to do lets others in.
	turnRounds = 8
	// roundEvents and roundBytes bound what one round reads.
	roundEvents = 1024
	roundBytes  = 1 << 20
	// readAgain is the wait after the store failed a read.
	readAgain = time.Second
)

// Wants decides whether a tail wants an event. It is called under no lock, by more than one
// goroutine.
type Wants = func(r eventhub.Record, offset uint64) bool

// Options configure Tails. All are required.
type Options struct {
	Store     store.Store
	Logger    *slog.Logger
	Logs      *topiclog.Logs
	Scheduler *sched.Scheduler
	Clock     *sched.Clock
	// Filter returns what decides for a filter, nil where all events are wanted, and whether
	// that evaluates expressions, which may take long.
	Filter func(*eventhub.Filter) (wants Wants, evaluates bool, err error)
	// EvaluationTime is after how long a turn that evaluates expressions lets others in. It
	// is looked at after each event; what was read and not judged is read again.
	EvaluationTime time.Duration
	// State calls visit with the events of the state of a topic at an offset, see
	// past.History.WalkState.
	State func(ctx context.Context, topic string, at uint64, visit func([]store.Item) error) (Walked, error)
	// Indexed returns when State has not to wait for an index, see past.History.AwaitIndex.
	Indexed func(ctx context.Context, topic string) error
	// StateKeys is how many keys a state may have that a tail begins with, and StateBytes bounds
	// the memory for the offsets of all states that are being sent.
	StateKeys, StateBytes int
}

// Walked is what State says.
type Walked = past.Walked

// Tails are the live tails of a bus.
type Tails struct {
	opts  Options
	store store.Store
	log   *slog.Logger
	logs  *topiclog.Logs
	sched *sched.Scheduler
	clock *sched.Clock
	begun int64 // by the wall clock, epoch ms: no commit of this run is before it, unless that is set back
	given given

	mu     sync.RWMutex
	closed error // why no tail is opened any more
	tails  map[*Tail]struct{}
	// byPattern are the tails by each pattern that may name more topics.
	byPattern map[string]*patternTails
	// topics are those that have tails, or had some that were handed an event.
	topics map[string]*sharedTopic
	// revisions counts the erasures in topics that there are, in this run of the hub, which run
	// names.
	revisions map[string]uint64
	run       uint64

	loads   sync.WaitGroup // of states
	loading chan struct{}  // has room for those that may be read at once
	states  *budget.Budget // of the offsets of states
}

// loadsAtOnce is how many states are read at once. It leaves processors to others.
const loadsAtOnce = 2

// New returns a bus's tails, of which there are none yet.
func New(o Options) *Tails {
	return &Tails{
		opts: o, store: o.Store, log: o.Logger, logs: o.Logs, sched: o.Scheduler, clock: o.Clock, begun: o.Clock.Wall().UnixMilli(),
		tails: make(map[*Tail]struct{}), byPattern: make(map[string]*patternTails), topics: make(map[string]*sharedTopic),
		revisions: make(map[string]uint64), run: rand.Uint64(),
		loading: make(chan struct{}, loadsAtOnce), states: budget.New(o.StateBytes),
	}
}

// End ends all tails and notifies their receivers why. None is opened any more.
func (ts *Tails) End(why error) {
	ts.mu.Lock()
	ts.closed = why
	tails := slices.Collect(maps.Keys(ts.tails))
	ts.mu.Unlock()
	for _, t := range tails {
		t.shut(why)
	}
	ts.loads.Wait()
}

// revision returns the number of erasures in a topic.
func (ts *Tails) revision(topic string) uint64 {
	ts.mu.RLock()
	defer ts.mu.RUnlock()
	return ts.revisions[topic]
}

// ForgetTopic forgets what was counted of a topic that is deleted, and what is pending of it. Its
// tails outlive it: what they were handed is forgotten with the last of them. It comes after
// topiclog.Logs.Forget.
func (ts *Tails) ForgetTopic(name string) {
	ts.takeBack(name, false, func(uint64) bool { return true })
	ts.mu.Lock()
	delete(ts.revisions, name) // another life has its own number
	t := ts.topics[name]
	switch {
	case t == nil:
	case t.users > 0:
		t.gone = true
	default:
		delete(ts.topics, name)
		t = nil
	}
	ts.mu.Unlock()
	if t == nil {
		return
	}
	for _, p := range t.all() {
		if p.tail.snap != nil {
			p.tail.removed(p, 0, true) // it has no state any more
		}
	}
}

// Holds returns how many tails there are, how many patterns have topics join them, and of
// how many topics something is kept.
func (ts *Tails) Holds() (tails, patterns, topics int) {
	ts.mu.RLock()
	defer ts.mu.RUnlock()
	return len(ts.tails), len(ts.byPattern), len(ts.topics)
}

// Open is Tail of eventhub.Subscriber.
func (ts *Tails) Open(ctx context.Context, opts eventhub.TailOptions, r eventhub.Receiver) (eventhub.Subscription, error) {
	opts = opts.WithDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	t := &Tail{tails: ts, receiver: r, batchSize: opts.BatchSize, reach: min(opts.BatchSize, roundEvents), allowed: opts.Allowed, opening: true}
	t.Slow = true
	if opts.Conflate != 0 {
		t.merged, t.conflates = newConflation(opts.Conflate), true
	}
	var err error
	if t.wants, t.Evaluates, err = ts.opts.Filter(opts.Filter); err != nil {
		return nil, err
	}
	if opts.Start.Kind == eventhub.StartSnapshot {
		if err := ts.withState(t, &opts); err != nil {
			return nil, err
		}
	}
	patterns, err := opts.Patterns()
	if err != nil {
		return nil, err
	}
	if opts.NoCreate {
		if err := past.MissingTopics(ctx, ts.store, patterns, opts.Allowed); err != nil {
			return nil, err
		}
	}
	if err := t.expect(patterns, opts.Start); err != nil {
		return nil, err
	}
	knows, err := ts.knows(ctx, opts.Known) // before topics that are created join it
	if err != nil {
		return nil, err
	}
	if err := ts.register(t); err != nil {
		return nil, err
	}
	t.tellKnown(knows)
	if opts.Known != "" {
		opts.Start = knows.resumed(opts.Start)
	}
	if err := t.open(ctx, patterns, knows, &opts); err != nil {
		t.leave()
		return nil, err
	}
	return t, nil
}

// withState makes a tail one with the state.
func (ts *Tails) withState(t *Tail, opts *eventhub.TailOptions) (err error) {
	if t.snap, err = newStateful(opts); err != nil || t.wants == nil {
		return err
	}
	var key Wants
	if opts.Filter.Key != "" {
		if key, _, err = ts.opts.Filter(&eventhub.Filter{Key: opts.Filter.Key}); err != nil {
			return err
		}
	}
	t.wants = passing(t.wants, key)
	return nil
}

// patternTails are the live tails of one pattern.
type patternTails struct {
	pattern eventhub.Pattern
	tails   []*Tail // in no order
}

// Removed notes what a commit has removed of topics. It comes after topiclog.Logs.Committed.
func (ts *Tails) Removed(changes []store.TopicChange) {
	for i := range changes {
		if ch := &changes[i]; ch.Horizon > 0 || len(ch.Erase) > 0 {
			ts.takeBack(ch.Topic, true, func(offset uint64) bool { return offset < ch.Horizon || slices.Contains(ch.Erase, offset) })
			ts.removed(ch.Topic, ch.Horizon, len(ch.Erase) > 0)
		}
	}
}

// TopicsCreated attaches tails to topics that are created and match their patterns, unless
// they have the topic from an earlier life: its offsets go on. The committer calls it before
// the first events of the topics are handed on.
func (ts *Tails) TopicsCreated(created []store.TopicLife) {
	type joining struct {
		tail  *Tail
		topic *sharedTopic
	}
	var joinings []joining
	ts.mu.Lock()
	for _, life := range created {
		for _, p := range ts.byPattern {
			if ts.closed != nil || !p.pattern.Match(life.Topic) {
				continue
			}
			for _, t := range p.tails {
				if !t.allowed.Allow(life.Topic) {
					continue
				}
				joinings = append(joinings, joining{t, ts.use(life.Topic)})
			}
		}
	}
	ts.mu.Unlock()
	for _, j := range joinings {
		// The log has nothing of the topic except what it is about to learn.
		j.tail.attach(j.topic, 0, beginning{})
	}
}

// register adds a tail, so that topics that are created join it, and that it ends with the
// bus.
func (ts *Tails) register(t *Tail) error {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.closed != nil {
		return ts.closed
	}
	ts.tails[t] = struct{}{}
	for _, p := range t.patterns {
		of := ts.byPattern[p.String()]
		if of == nil {
			of = &patternTails{pattern: p}
			ts.byPattern[p.String()] = of
		}
		of.tails = append(of.tails, t)
	}
	return nil
}

// forget undoes register.
func (ts *Tails) forget(t *Tail) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	delete(ts.tails, t)
	for _, p := range t.patterns {
		of := ts.byPattern[p.String()]
		if i := slices.Index(of.tails, t); i >= 0 {
			n := len(of.tails) - 1
			of.tails[i], of.tails[n] = of.tails[n], nil
			of.tails = of.tails[:n]
		}
		if len(of.tails) == 0 {
			delete(ts.byPattern, p.String())
		}
	}
}

// Measure returns the counts of the tails of each topic together, under no name: of
// topics that have tails, or had some that were handed an event.
func (ts *Tails) Measure() (tails []measure.Group) {
	ts.mu.RLock()
	defer ts.mu.RUnlock()
	for _, t := range ts.topics {
		g := measure.NewGroup(t.name, "")
		g.Delivered, g.Members = t.handed.Load(), t.tails()
		if g.Delivered > 0 || g.Members > 0 {
			tails = append(tails, g)
		}
	}
	return tails
}
