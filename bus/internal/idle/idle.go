// Package idle ends groups that nobody uses any more, where the settings of their topics say
// so (group_idle_expiry): it finds out which have been idle for so long, and keeps what the
// store has to have for that. The bus ends them.
//
// # What idle means
//
// A group is in use while it has a member, an open lease, or anything that is running on it
// (Use). All other time is idle, and begins anew with each use: also with an ack that comes late,
// a seek, a pause, or a wait that ended.
//
// A group that has a pattern is not ended in one topic alone, since the pattern would bring it
// back. The pattern ends, and with it the group in all topics that no other pattern of the
// group matches, when in each topic that it matches there is an expiry, and has passed.
//
// # Watched time
//
// Idle time is counted by a clock of its own (clock), which goes only while the hub runs: by the
// monotonic clock, and not by what a timer is late, since a hub that was frozen has seen none
// of its clients. No wall clock counts, so setting one ends nothing. The time goes on at the next
// start where it was; a crash takes back some of it, which makes groups end later. After a
// start nothing ends before the hub was up for as long as the expiry, at most for grace: clients
// come back in that time.
//
// # What the store has
//
// Notes (store.Notes), which nobody else writes:
//
//   - "idle": the watched time.
//   - "idle/…" of each group that has been idle for settle: since when, with the epoch and the cursor
//     of the group. A group that has others was used meanwhile, so an ack or a seek needs no
//     write to make the note void. A member does, and SUBSCRIBE waits for that (Sync). A group without
//     a note was in use at the last moment that the hub knows of, the start of the process.
//   - "ended/…" of each group that was ended: when, and where it was, until it is made again. At most
//     MaxEnded, for EndedKept.
//
// A note of a group is written once when it becomes idle, and that of the time seldom, so an
// ack never costs a commit.
//
// # Invariants
//
//   - A group ends only if it was idle for its whole expiry, and that is found out when the
//     commit is built that ends it (End.Confirm).
//   - What ends and what is said of it is one unit (End.Rows).
//   - Where no topic has an expiry nothing is counted, kept or written.
//
// # Goroutines and locks
//
// One goroutine, from Start to Stop, with one timer. While a group is idle whose topic has an
// expiry it fires about once in 1/256 of that (leastTick to mostTick), to see that it is not late;
// otherwise only where something is due. The notices (Used, Changed, Committed, Forget) do not block and
// may be called under any lock of the bus: Runtime.mu is a leaf, and under it only the policies
// are asked. Groups is called under no lock.
package idle

import (
	"context"
	"log/slog"
	"maps"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"eventhub/bus/internal/commit"
	"eventhub/store"
)

const (
	// every is the least time between two rounds.
	every = time.Second
	// settle is for how long a group has to be idle before the store learns of it. A group that
	// is pulled from more often than that costs no write.
	settle = time.Minute
	// grace is for how long at most the hub has to be up before a group ends.
	grace = 5 * time.Minute
	// retryAfter is the rest after what failed.
	retryAfter = time.Minute
	// tickShare, leastTick and mostTick say how often the goroutine looks at the time while a group is
	// idle; clockShare, leastSave and mostSave how often it writes it down.
	tickShare  = 256
	leastTick  = 10 * time.Second
	mostTick   = time.Hour
	clockShare = 64
	leastSave  = time.Minute
	mostSave   = time.Hour

	never = time.Duration(math.MaxInt64)
)

// MaxEnded bounds the groups of which it is kept that they were ended, the newest of them, and
// EndedKept how long it is.
const (
	MaxEnded  = 10_000
	EndedKept = 30 * 24 * time.Hour
)

// Group names a group in a topic.
type Group struct{ Topic, Name string }

// Use is how a group is used.
type Use struct {
	Exists bool
	// Busy: it has members, open leases, or something is running on it. Members: it has
	// some, and Used is called when the last one leaves.
	Busy, Members bool
	// Last is when it was used last, by Runtime.Passed; 0 where it was not since the start.
	Last time.Duration
	// Epoch and Cursor as of now, which are durable unless it is busy.
	Epoch, Cursor uint64
}

// Policies say when groups end.
type Policies interface {
	// AnyGroupExpiry reports whether in some topic, there or not, groups end.
	AnyGroupExpiry() bool
	// GroupExpiry returns for how long a group of the topic may be idle; 0: for ever.
	GroupExpiry(topic string) time.Duration
}

// Groups are the groups of the engine.
type Groups interface {
	// Use returns how a group is used now.
	Use(ctx context.Context, g Group) (Use, error)
	// Patterns returns the durable patterns of a group that bring it to a topic.
	Patterns(g Group) []string
	// Brought returns the topics to which a pattern brings a group.
	Brought(ctx context.Context, name, pattern string) ([]string, error)
	// End ends groups in one durable unit, if e.Confirm is true when that is built. It
	// reports whether it did.
	End(ctx context.Context, e *End) (ended bool, err error)
}

// Store is what the runtime reads.
type Store interface {
	store.Topics
	store.Groups
	store.Notes
}

// Options configure a Runtime. All are required but NoEnds.
type Options struct {
	Store     Store
	Committer *commit.Committer
	Logger    *slog.Logger
	Policies  Policies
	Groups    Groups
	// Wall is the wall clock, for what is said to people.
	Wall func() time.Time
	// NoEnds: groups are watched, and do not end.
	NoEnds bool
}

// Runtime watches groups.
type Runtime struct {
	opts   Options
	ctx    context.Context // ends with Stop
	cancel context.CancelFunc
	wake   chan struct{} // wakeAt has changed, or settings have
	done   chan struct{} // closed when the goroutine has ended
	began  time.Time     // times of the runtime are the time since then
	on     atomic.Bool   // in some topic groups end

	mu      sync.Mutex
	entries map[Group]*entry        // of topics in which groups end
	wakeAt  time.Duration           // when the next round is due
	roundAt time.Duration           // when the last one ended
	changed map[string]bool         // names of settings that were changed
	made    map[Group]time.Duration // groups that were made since the start, and when
	clock   clock
	atStart time.Duration // watched time at the start
	saved   time.Duration // … that the store has
	rows    rows
	ended   endings
	counts  map[string]uint64 // groups that ended, by topic
}

// entry is a group that may end.
type entry struct {
	group  Group
	expiry time.Duration
	since  time.Duration // watched time: it was not used since then
	uses   int           // how often Used was called
	// counting: it was idle when it was looked at, and not used since. Then epoch and cursor
	// are its, and stamped says that its note has them and since.
	counting      bool
	stamped       bool
	epoch, cursor uint64
	kept          bool          // it would end, but for a pattern
	next          time.Duration // when it is due to be looked at
}

// New reads what the store has, and returns a Runtime that does nothing before Start.
func New(opts Options) (*Runtime, error) {
	r := &Runtime{
		opts: opts, wake: make(chan struct{}, 1), done: make(chan struct{}), began: time.Now(),
		entries: make(map[Group]*entry), changed: make(map[string]bool), wakeAt: never,
		made:   make(map[Group]time.Duration),
		counts: make(map[string]uint64),
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	if err := r.load(); err != nil {
		return nil, err
	}
	r.on.Store(opts.Policies.AnyGroupExpiry())
	return r, nil
}

// Start starts the goroutine, which looks for the groups that may end first.
func (r *Runtime) Start() { go r.run() }

// Stop ends the goroutine, which was started, writes down what was counted, and returns when
// that is over. The committer still runs.
func (r *Runtime) Stop() {
	r.cancel()
	<-r.done
	r.mu.Lock()
	for _, e := range r.entries {
		if e.counting && !e.stamped {
			r.stamp(e)
		}
	}
	counted := len(r.entries) > 0
	write := counted || r.rows.some()
	r.mu.Unlock()
	if !write {
		return
	}
	if err := r.write(context.Background(), counted); err != nil {
		r.opts.Logger.Debug("cannot write down for how long groups have been idle", "error", err)
	}
}

// Passed is the time that the runtime goes by.
func (r *Runtime) Passed() time.Duration { return time.Since(r.began) }

func (r *Runtime) hint() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Used says that a group is used, or has just been.
func (r *Runtime) Used(topic, name string) {
	if !r.on.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.entries[Group{topic, name}]; e != nil {
		now := r.Passed()
		e.since = r.clock.time(now)
		e.uses++
		r.unstamp(e)
		e.counting, e.kept = false, false
		r.due(e, now+e.settle())
	}
}

// settle is after how long it is looked at again whether a group is idle that was used.
func (e *entry) settle() time.Duration { return min(settle, e.expiry) }

// Changed says that the settings of a name, a topic's or a pattern, have changed.
func (r *Runtime) Changed(name string) {
	r.on.Store(r.opts.Policies.AnyGroupExpiry())
	r.mu.Lock()
	r.changed[strings.Clone(name)] = true
	r.mu.Unlock()
	r.hint()
}

// Committed takes note of groups that a commit has made or deleted.
func (r *Runtime) Committed(changes []store.GroupChange) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range changes {
		g := Group{changes[i].Topic, changes[i].Group}
		switch {
		case changes[i].Create:
			now := r.Passed()
			r.made[Group{strings.Clone(g.Topic), strings.Clone(g.Name)}] = now
			r.enter(g, r.clock.time(now), now)
		case changes[i].Delete:
			delete(r.made, g)
			r.leave(g)
			if r.rows.some() {
				r.wakeBy(r.Passed() + settle)
			}
		}
	}
}

// Forget forgets the groups of a topic that was deleted, also those that were ended.
func (r *Runtime) Forget(topic string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for g := range r.entries {
		if g.Topic == topic {
			r.leave(g)
		}
	}
	r.reconsider()
	maps.DeleteFunc(r.made, func(g Group, _ time.Duration) bool { return g.Topic == topic })
	for _, g := range r.ended.of(topic) {
		r.rows.drop(r.ended.remove(g))
	}
	delete(r.counts, topic)
	if r.rows.some() {
		r.wakeBy(r.Passed() + settle)
	}
}

// PatternRemoved says that a group has lost a pattern.
func (r *Runtime) PatternRemoved() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reconsider()
}

// reconsider has the groups looked at that only a pattern keeps. r.mu is held.
func (r *Runtime) reconsider() {
	for _, e := range r.entries {
		if e.kept {
			e.kept = false
			r.due(e, r.Passed())
		}
	}
}

// enter adds a group that is not there, where groups of its topic end. r.mu is held.
func (r *Runtime) enter(g Group, since, at time.Duration) {
	expiry := r.opts.Policies.GroupExpiry(g.Topic)
	if expiry == 0 || r.entries[g] != nil {
		return
	}
	g = Group{strings.Clone(g.Topic), strings.Clone(g.Name)}
	e := &entry{group: g, expiry: expiry, since: since, next: never}
	r.entries[g] = e
	r.due(e, at)
}

// leave takes a group off. r.mu is held.
func (r *Runtime) leave(g Group) {
	if e := r.entries[g]; e != nil {
		r.unstamp(e)
		delete(r.entries, g)
	}
}

// due has a group looked at at a time. r.mu is held.
func (r *Runtime) due(e *entry, at time.Duration) {
	if at < e.next {
		e.next = at
		r.wakeBy(at)
	}
}

// wakeBy has the next round come at a time, at the latest. r.mu is held.
func (r *Runtime) wakeBy(at time.Duration) {
	if at = max(at, r.roundAt+every); at < r.wakeAt {
		r.wakeAt = at
		r.hint()
	}
}
