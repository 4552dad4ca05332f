// Package retention removes events that the settings of their topics do not keep: it moves
// the horizons of topics up. What is below a horizon is removed from the disk later, by the
// sweeper (package bus/internal/space).
//
// It owns for each topic with a policy how much the topic keeps and when it is looked at
// next, and the clock of ages. The policies are the settings', the horizons are the store's.
//
// # What a pass removes
//
//   - By age: the events that were committed longer ago than that. A pass comes when the first
//     kept event has come of age, but not before 1/256 of the age has passed since the pass before
//     (at least Every, at most mostInterval).
//   - By bytes and by count: as many of the first events as there are above the cap. A pass comes
//     at once where that is 1/64 of the cap or more, else within settle.
//   - Of system.audit what is above a cap of its own; of system.redrive the marks before the
//     first one whose dead letter is kept.
//
// # Invariants
//
//   - Nothing is removed that the policy keeps: a trim names the life of its topic, and is
//     decided by what was counted of that life.
//   - What is stored is counted once, when a topic gets a cap or the hub starts; after that
//     commits are added and trims subtracted. Whoever else removes events has them counted again.
//   - A wall clock that jumps ahead, or is ahead of the newest event at the start, removes
//     at most the events of one hour in a minute (clock). One that goes back removes nothing.
//
// # Goroutines and locks
//
// One goroutine, from Start to Stop, with one timer, which fires only where something is due.
// It makes rounds, at most one in Every: each looks at all topics that are due and submits
// their trims together. Committed and the other notices run on the committer's goroutine or
// its syncer; where no topic has a policy Committed reads one atomic value. Runtime.mu is a
// leaf: nothing else is called under it, except the policies.
//
// The bus calls it. It reads the store and submits jobs to the committer.
package retention

import (
	"context"
	"log/slog"
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
	// Every is the least time between two rounds, and so between two passes over a topic.
	Every = time.Second
	// settle is how long a topic may be above a cap by less than 1/64 of it.
	settle = 10 * time.Second
	// mostInterval is the longest time between the moment in which an event comes of age and
	// the pass that removes it.
	mostInterval = time.Minute
	// retryAfter is the rest after a pass that failed.
	retryAfter = time.Minute
	// longestSleep is how long the goroutine waits at most for an age: the wall clock may be set
	// meanwhile.
	longestSleep = time.Hour

	never = math.MaxInt64
)

// auditCap is what system.audit keeps.
var auditCap = admin.Retention{Bytes: 64 << 20, Count: 100_000}

// Policies are what topics keep.
type Policies interface {
	// Any reports whether some topic, there or not, has a policy.
	Any() bool
	// Retention returns the policy of a topic, the zero value for one that keeps everything.
	Retention(topic string) admin.Retention
}

// Store is what the runtime reads.
type Store interface {
	store.Log
	store.Topics
	store.Retention
}

// Options configure a Runtime. All are required.
type Options struct {
	Store     Store
	Committer *commit.Committer
	Logger    *slog.Logger
	Policies  Policies
	// Wall is the wall clock.
	Wall func() time.Time
	// Marks returns the offset of the first mark of system.redrive from an offset on whose
	// dead letter is kept, or up to which it has looked: then done is false.
	Marks func(ctx context.Context, from uint64) (first uint64, done bool, err error)
}

// Runtime removes what topics do not keep.
type Runtime struct {
	opts   Options
	ctx    context.Context // ends with Stop
	cancel context.CancelFunc
	wake   chan struct{} // wakeAt has changed, or settings have
	begun  chan struct{} // closed when the clock of ages goes
	done   chan struct{} // closed when the goroutine has ended
	began  time.Time     // times of the runtime are the time since then
	on     atomic.Bool   // some topic has a policy

	mu      sync.Mutex
	entries map[string]*entry // nil: a topic without a policy
	wakeAt  time.Duration     // when the next round is due
	roundAt time.Duration     // when the last one ended
	changed map[string]bool   // names of settings that were changed
	ages    clock
	stats   Stats
	topics  map[string]*TopicStats
}

// entry is a topic that has a policy.
type entry struct {
	topic  string
	policy admin.Retention
	marks  bool          // it is system.redrive
	next   time.Duration // when it is due
	last   time.Duration // when the last pass was
	rest   time.Duration // no pass before that: one has failed

	// measured: usage is what the topic keeps below upTo, and of what was committed since.
	// While it is counted, from is where to go on, and recent has what is committed meanwhile.
	measured  bool
	usage     store.Usage
	upTo      uint64
	counting  bool
	counted   store.Usage
	from      uint64
	recent    []sized
	outside   int    // removals by others: what was counted before does not count
	trimming  uint64 // the horizon that the runtime is committing
	isPassing bool   // the goroutine is at it
}

// sized is the place of an event and the size of its record.
type sized struct{ offset, bytes uint64 }

// New returns a Runtime that does nothing before Start.
func New(opts Options) *Runtime {
	r := &Runtime{
		opts: opts, wake: make(chan struct{}, 1), begun: make(chan struct{}), done: make(chan struct{}), began: time.Now(),
		entries: make(map[string]*entry), changed: make(map[string]bool), topics: make(map[string]*TopicStats),
		wakeAt: never,
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.on.Store(opts.Policies.Any())
	return r
}

// Start starts the goroutine, which looks at all topics that have a policy first.
func (r *Runtime) Start() { go r.run() }

// Now returns how late it is for an age, by the clock of ages. It waits for Start, and for the first look at the topics.
func (r *Runtime) Now(age time.Duration) time.Time {
	now, _ := r.aging(age)
	return now
}

// Until returns after how long what was committed then, in epoch milliseconds, is older than an age, if nobody sets the clock.
func (r *Runtime) Until(committed int64, age time.Duration) time.Duration {
	now, held := r.aging(age)
	left := time.UnixMilli(committed).Add(age).Sub(now)
	return max(left-held, left/(1+catchUp)) // what is held back is caught up
}

// aging returns how late it is for an age, and by how much the wall clock is ahead of that.
func (r *Runtime) aging(age time.Duration) (now time.Time, held time.Duration) {
	<-r.begun
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hold(r.now())
	if at := r.now() + mostInterval; r.stats.Held > 0 && at < r.wakeAt {
		r.wakeAt = at // it goes on, and is said to, also where nobody asks again
		r.hint()
	}
	now = time.UnixMilli(r.ages.cutoff(age)).Add(age)
	return now, time.UnixMilli(r.ages.wall).Sub(now)
}

// Stop ends the goroutine, which was started, and returns when it has ended. The committer
// still runs.
func (r *Runtime) Stop() {
	r.cancel()
	<-r.done
}

func (r *Runtime) now() time.Duration { return time.Since(r.began) }

func (r *Runtime) hint() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Changed says that the settings of a name, a topic's or a pattern, have changed. It does
// not block.
func (r *Runtime) Changed(name string) {
	r.on.Store(r.opts.Policies.Any())
	r.mu.Lock()
	r.changed[strings.Clone(name)] = true
	r.mu.Unlock()
	r.hint()
}

// Look has a topic looked at soon, whatever is known of it.
func (r *Runtime) Look(topic string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.look(topic)
}

// look is Look. r.mu is held.
func (r *Runtime) look(topic string) {
	if e := r.entry(topic); e != nil {
		e.recount()
		r.due(e, r.now())
	}
}

// Forget forgets a topic that was deleted.
func (r *Runtime) Forget(topic string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forget(topic)
}

// gone forgets the topic of an entry that was not found, or not in the life that was looked at. Where it was deleted and
// created again meanwhile, the entry of the new one stays.
func (r *Runtime) gone(e *entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.entries[e.topic] == e {
		r.forget(e.topic)
	}
}

// forget is Forget. r.mu is held.
func (r *Runtime) forget(topic string) {
	if e := r.entries[topic]; e != nil {
		e.recount() // the goroutine may be at it
	}
	delete(r.entries, topic)
	delete(r.topics, topic)
	r.lettersWent(topic)
}

// lettersWent has the marks of dead letters looked at where some of a topic are gone, if it has some.
// r.mu is held.
func (r *Runtime) lettersWent(topic string) {
	if eventhub.IsDeadLetterTopic(topic) {
		r.look(admin.RedriveTopic)
	}
}

// Committed takes note of what a commit has added and removed.
func (r *Runtime) Committed(jobs []*commit.Request) {
	if !r.on.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	var e *entry
	var topic string // the last one: events of one topic come in runs
	for _, job := range jobs {
		for i := range job.Units {
			u := &job.Units[i]
			if u.Err != nil {
				continue
			}
			for j := range u.Appends {
				a := &u.Appends[j]
				if a.Topic != topic {
					topic, e = a.Topic, r.entry(a.Topic)
				}
				if e != nil && !a.Duplicate {
					r.added(e, a, now)
				}
			}
		}
	}
}

// added counts an event, and has its topic looked at where it is due. r.mu is held.
func (r *Runtime) added(e *entry, a *store.Append, now time.Duration) {
	bytes := uint64(len(a.Record))
	switch {
	case e.measured && a.Offset >= e.upTo:
		e.usage.Events++
		e.usage.Bytes += bytes
		r.consider(e, now)
	case e.counting:
		e.recent = append(e.recent, sized{a.Offset, bytes})
	case !e.measured && e.next == never && e.isCapped():
		r.due(e, now)
	}
	if e.next == never && e.policy.Age != 0 {
		r.due(e, now+r.untilAged(e, a.CommitTime))
	}
}

// Removed takes note of events that were removed, by whomever.
func (r *Runtime) Removed(changes []store.TopicChange) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range changes {
		ch := &changes[i]
		r.lettersWent(ch.Topic)
		e := r.entries[ch.Topic]
		if e == nil || e.isPassing && ch.Horizon == e.trimming && len(ch.Erase) == 0 {
			continue
		}
		e.recount()
		r.due(e, r.now())
	}
}

// entry returns the entry of a topic, nil for one without a policy. r.mu is held.
func (r *Runtime) entry(topic string) *entry {
	e, ok := r.entries[topic]
	if ok {
		return e
	}
	topic = strings.Clone(topic)
	if policy, marks := r.policy(topic); policy != (admin.Retention{}) || marks {
		e = &entry{topic: topic, policy: policy, marks: marks, next: never, last: -Every}
	}
	r.entries[topic] = e
	return e
}

// policy returns what a topic keeps; marks: it is what the marks of dead letters need.
func (r *Runtime) policy(topic string) (policy admin.Retention, marks bool) {
	switch {
	case topic == admin.AuditTopic:
		return auditCap, false
	case topic == admin.RedriveTopic:
		return admin.Retention{}, true
	case strings.HasPrefix(topic, "system."):
		return admin.Retention{}, false
	}
	return r.opts.Policies.Retention(topic), false
}

func (e *entry) isCapped() bool { return e.policy.Bytes != 0 || e.policy.Count != 0 }

// recount forgets what was counted. r.mu is held.
func (e *entry) recount() {
	e.outside++
	e.measured, e.counting, e.recent = false, false, nil
	e.counted, e.from = store.Usage{}, 0
}

// excess returns how many events and bytes are above the caps. r.mu is held.
func (e *entry) excess() (over store.Usage) {
	if most := e.policy.Count; most != 0 && e.usage.Events > most {
		over.Events = e.usage.Events - most
	}
	if most := uint64(e.policy.Bytes); most != 0 && e.usage.Bytes > most {
		over.Bytes = e.usage.Bytes - most
	}
	return over
}

// consider has a topic looked at that is above a cap. r.mu is held.
func (r *Runtime) consider(e *entry, now time.Duration) {
	over := e.excess()
	switch {
	case over == store.Usage{}:
	case over.Events > 0 && over.Events >= e.policy.Count/64, over.Bytes > 0 && over.Bytes >= uint64(e.policy.Bytes)/64:
		r.due(e, now)
	default:
		r.due(e, now+settle)
	}
}

// due has a topic looked at at a time, but not within Every of its last pass, nor in the rest after
// one that failed. r.mu is held.
func (r *Runtime) due(e *entry, at time.Duration) {
	if at = max(at, e.last+Every, e.rest); at >= e.next {
		return
	}
	e.next = at
	if at = max(at, r.roundAt+Every); at < r.wakeAt {
		r.wakeAt = at
		r.hint()
	}
}

// untilAged returns how long it takes until an event that was committed at ts is too old.
// r.mu is held.
func (r *Runtime) untilAged(e *entry, ts int64) time.Duration {
	left := ts + time.Duration(e.policy.Age).Milliseconds() + 1 - r.opts.Wall().UnixMilli()
	return min(max(time.Duration(left)*time.Millisecond, 0), longestSleep)
}

// interval is the least time between two passes for an age.
func interval(age admin.Period) time.Duration {
	return min(max(time.Duration(age)/256, Every), mostInterval)
}
