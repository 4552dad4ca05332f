// Package bus is the engine: it takes publications, commits them in groups,
// and gives the events to the members of consumer groups under leases. It owns
// everything between the root interfaces, which it satisfies, and the store.
//
// # One event
//
// Enqueue validates the events of a publication and encodes each once, on the
// caller's goroutine (package bus/internal/publish). One committer drains all that waits into one
// store.Commit, and builds the next one while a large one is synced
// (package bus/internal/commit). Only when a commit is over do callers get their receipts, does the
// tail cache get the bytes and are the groups and tails that watch the topics woken
// (package bus/internal/topiclog).
// A group's turn (turn.go) reads what comes next, leases it to members with room and
// hands it to their receivers. Live tails have no leases and are served many at a time
// (package bus/internal/tail).
//
// # Invariants
//
//   - No receipt before the commit returned; no delivery above the durable head.
//   - cursor < every offset that is leased, waiting or being dead-lettered; the
//     cursor only moves up, except by SeekGroup, which raises the epoch and voids
//     every lease. Redriven events are outside of this (package bus/internal/groupstate, which
//     has the states of events and their transitions).
//   - An event is leased to at most one member of a group at a time.
//   - Group state reaches the store in the order in which it changed: only the
//     committer's goroutine takes snapshots of it, when it builds a commit.
//
// # Goroutines
//
// One committer with its syncer, as many workers as processors, and as many again for
// groups and tails whose filters have expressions, whatever the number of topics, groups,
// members and tails; one goroutine for topics that were created and that
// patterns match, one for what topics do not keep (package bus/internal/retention), one for
// the topics whose keys are indexed (package bus/internal/keyindex), one for producers that nobody
// uses (package bus/internal/producers), and one for what deleted topics and removed events have left; one timer for all leases, retries and conflated tails, and one for all scheduled events
// (bus/internal/delayed). Nothing runs while there is nothing to do. Workers and the timer
// of all leases are those of package bus/internal/sched.
//
// A group is touched by its members' goroutines and one worker at a time, under
// group.mu. Locks are taken in the order bus.mu, group.mu, subscription.giving,
// subscription.mu, then those of one of the packages below, which say their own order, or
// one of counts.mu and runtimes.mu. Of a tail's locks none is taken under one of the
// bus, and under them only those. Receivers are called under group.mu and
// subscription.giving, and must not block or call back.
// Filters are asked under no lock (package bus/internal/judge).
//
// Time is package time's, which tests replace by running in a testing/synctest
// bubble. What waits goes by the time that passes, what is stored by the wall clock
// (sched.Clock).
package bus

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/ackwait"
	"eventhub/bus/internal/commit"
	"eventhub/bus/internal/compaction"
	"eventhub/bus/internal/deadletter"
	"eventhub/bus/internal/delayed"
	"eventhub/bus/internal/idle"
	"eventhub/bus/internal/judge"
	"eventhub/bus/internal/keyindex"
	"eventhub/bus/internal/past"
	"eventhub/bus/internal/producers"
	"eventhub/bus/internal/publish"
	"eventhub/bus/internal/retention"
	"eventhub/bus/internal/sched"
	"eventhub/bus/internal/snapshots"
	"eventhub/bus/internal/space"
	"eventhub/bus/internal/tail"
	"eventhub/bus/internal/topiclog"
	"eventhub/bus/internal/topicset"
	"eventhub/internal/filter"
	"eventhub/store"
)

// Options configure a Bus.
type Options struct {
	Store  store.Store
	Logger *slog.Logger // default: discard

	// TailCacheBytes bounds the memory for events that groups at the tail read
	// without the store. Default 64 MiB.
	TailCacheBytes int
	// QueueBytes bounds what waits for the committer; publishers above it wait.
	// Default 64 MiB.
	QueueBytes int
	// MostWait is how long a publish may wait for its commit, as fast as the store is now, before others are refused with
	// CodeOverloaded; 0: nothing is refused, and publishers above QueueBytes wait.
	MostWait time.Duration
	// AckWindow is how many events a group may read ahead of its cursor.
	// Default 1,000,000.
	AckWindow uint64
	// GroupBytes is how much memory, about, groups may have for events that are not done before those that have TightWindow
	// of these read no more. Default 0: there is no such bound.
	GroupBytes int
	// EarlyBytes is how many bytes of events have to wait for a commit to be built
	// while another, which has as many, is being synced. Default 64 KiB.
	EarlyBytes int
	// SyncEvery, where not 0, lets commits not wait for the store's fsync: one comes
	// that long after the first of them. What was acknowledged since the last one may
	// be lost with the process or the machine; order and whole units are kept. Default
	// 0: nothing is acknowledged that is not durable.
	SyncEvery time.Duration
	// Topics are the settings of topics that the hub's file has, which are valid. Those that
	// the store has count besides them.
	Topics []admin.SettingsEntry
	// NoMaintenance: nothing is removed that nobody asks to be removed. What settings do not
	// keep stays, and so does on the disk what was removed.
	NoMaintenance bool
	// NoRoom says why what the store writes to besides the disk has no room for events; nil while
	// it has. It must not block. Nil: there is nothing else.
	NoRoom func() error
	// CompactEvery is the least time between two passes of compaction over a topic. Less makes
	// passes with less to do, each with a commit of its own. Default 10 s.
	CompactEvery time.Duration
	// ProducersKept is for how long a producer is kept that nobody uses, and MaxProducers how many
	// there are at most. Defaults eventhub.DefaultProducerKept and DefaultMaxProducers.
	ProducersKept time.Duration
	MaxProducers  int
	// Fatal is called once when the store failed a commit: nothing can be
	// acknowledged any more and the process should end. Default: log only.
	Fatal func(error)
	// Answer, where not nil, says what requests are answered after the store has failed a commit by
	// that cause: inDoubt to those whose outcome is not known by it, and otherwise to those of which
	// nothing was done. It may be called at any time. Where it returns nil they get CodeInternal.
	Answer func(cause error, inDoubt bool) *eventhub.Error

	// judge, where not nil, gets between a filter and who asks it.
	judge func(*filter.Program) judge.Matcher
	// clock is the wall clock: what is stored or shown has its time (sched.Clock). nil means
	// time.Now.
	clock func() time.Time
}

// TightWindow is how many events that are not done each group may have while all have Options.GroupBytes.
const TightWindow = 1000

func (o Options) withDefaults() (Options, error) {
	if o.Store == nil {
		return o, errors.New("bus: Options.Store is missing")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.TailCacheBytes == 0 {
		o.TailCacheBytes = 64 << 20
	}
	if o.EarlyBytes == 0 {
		o.EarlyBytes = commit.EarlyBytes
	}
	if o.QueueBytes == 0 {
		o.QueueBytes = 64 << 20
	}
	if o.AckWindow == 0 {
		o.AckWindow = 1_000_000
	}
	if o.ProducersKept == 0 {
		o.ProducersKept = eventhub.DefaultProducerKept
	}
	if o.MaxProducers == 0 {
		o.MaxProducers = eventhub.DefaultMaxProducers
	}
	if o.clock == nil {
		o.clock = time.Now
	}
	return o, nil
}

// Bus is the engine over one store. It satisfies eventhub.Publisher and
// eventhub.Subscriber.
type Bus struct {
	*history // reading the past: admin.History, and topics and events of admin.Inspector

	opts       Options
	store      store.Store
	log        *slog.Logger
	committer  *commit.Committer
	clock      *sched.Clock
	sched      *sched.Scheduler
	mover      *delayed.Mover
	letters    *deadletter.Letters
	waits      *ackwait.Waits
	logs       *topiclog.Logs
	tails      *tail.Tails
	topics     *topicset.Set
	retention  *retention.Runtime
	compaction *compaction.Runtime
	keyIndex   *keyindex.Runtime
	idle       *idle.Runtime
	snapshots  *snapshots.Runtime
	producers  *producers.Runtime

	space        *space.Guard
	forecast     space.Forecast
	counts       counts
	known        registry
	letterCounts *deadletter.Counts
	refused      func(error) error // refuse, bound once: every publish needs it
	epochs       atomic.Uint64     // the last one given to a new group

	serials    atomic.Uint64 // of the last lease given
	groupBytes atomic.Int64  // see Options.GroupBytes
	runtimes   runtimes[*group]
	patterns   patternTable
	filters    judge.Bench

	mu     sync.RWMutex
	closed bool
	groups map[groupKey]*group // groups loaded
}

// stateBytes bounds the offsets of all states that live tails are being given: 8 million keys.
const stateBytes = 64 << 20

// history is named so that Bus does not export the field.
type history = past.History

// groupKey names a group in a topic.
type groupKey struct{ topic, group string }

// Tail implements eventhub.Subscriber.
func (b *Bus) Tail(ctx context.Context, opts eventhub.TailOptions, r eventhub.Receiver) (eventhub.Subscription, error) {
	return b.tails.Open(ctx, opts, r)
}

var (
	_ eventhub.Publisher  = (*Bus)(nil)
	_ eventhub.Producers  = (*Bus)(nil)
	_ eventhub.Subscriber = (*Bus)(nil)
	_ admin.Inspector     = (*Bus)(nil)
	_ admin.History       = (*Bus)(nil)
	_ admin.Importer      = (*Bus)(nil)
	_ admin.Backuper      = (*Bus)(nil)
	_ admin.Operator      = (*Bus)(nil)
	_ admin.Scheduler     = (*Bus)(nil)
	_ admin.Settings      = (*Bus)(nil)
)

// New starts the engine. The store stays the caller's, to be closed after the
// bus.
func New(opts Options) (*Bus, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	b := &Bus{
		opts:  opts,
		clock: sched.NewClock(opts.clock),
		store: opts.Store,
		log:   opts.Logger,
		logs:  topiclog.New(opts.TailCacheBytes),

		groups: make(map[groupKey]*group),
	}
	b.filters.Interpose = opts.judge
	b.history = past.New(b.store, b.filters.Compile, b.indexed)
	b.letters = deadletter.New(b.store, b.history, b.filters.Compile)
	b.waits = ackwait.New((*waitedGroups)(b), b.letters)
	deleted, err := b.store.DeletedEpoch(context.Background())
	if err != nil {
		return nil, storeError(err, "read the epoch of deleted groups")
	}
	b.raised(deleted) // the clock may be before it
	b.topics, err = topicset.New(topicset.Options{
		Store: b.store, Logger: b.log, File: opts.Topics, Changed: b.settingsChanged,
	})
	if err != nil {
		return nil, err
	}
	b.space = space.New(space.Options{Store: b.store, Logger: b.log, Commits: b.counts.commits, NoSweep: opts.NoMaintenance, Refuse: opts.NoRoom})
	b.counts.init()
	b.refused = b.refuse
	b.letterCounts = b.letters.NewCounts(countedLists{b})
	b.sched = sched.New(b.clock, runtime.GOMAXPROCS(0))
	b.tails = tail.New(tail.Options{
		Store: b.store, Logger: b.log, Logs: b.logs, Scheduler: b.sched, Clock: b.clock,
		Filter: b.filters.Wants, EvaluationTime: judge.TurnTime,
		State: b.history.WalkState, Indexed: b.history.AwaitIndex, StateKeys: eventhub.MaxStateKeys, StateBytes: stateBytes,
	})
	b.committer = commit.New(commit.Options{
		Store: b.store, Logger: b.log, QueueBytes: opts.QueueBytes, MostWait: opts.MostWait, EarlyBytes: opts.EarlyBytes,
		SyncEvery: opts.SyncEvery, Fatal: opts.Fatal, Answer: opts.Answer, Committed: b.committed, Observe: b.observe,
	})
	err = b.makeWorkers()
	if err == nil {
		err = b.patterns.begin(b)
	}
	if err != nil {
		b.sched.Stop()
		return nil, errors.Join(err, b.committer.Stop())
	}
	b.patterns.attend(b)
	b.startWorkers()
	return b, nil
}

// makeWorkers makes what has a goroutine of its own besides the scheduler, the committer and the patterns.
// It starts none.
func (b *Bus) makeWorkers() (err error) {
	opts := &b.opts
	b.retention = retention.New(retention.Options{
		Store: b.store, Committer: b.committer, Logger: b.log, Policies: b.topics, Wall: b.clock.Wall, Marks: b.letters.FirstNeeded,
	})
	b.compaction = compaction.New(compaction.Options{
		Store: b.store, Committer: b.committer, Logger: b.log, Policies: b.topics, Ages: b.retention, Wall: b.clock.Wall, Commits: b.counts.commits,
		Room: b.space.Check, Every: opts.CompactEvery,
	})
	b.keyIndex = keyindex.New(keyindex.Options{
		Store: b.store, Committer: b.committer, Logger: b.log, Policies: b.topics, Commits: b.counts.commits, Room: b.space.Check, Ready: b.compaction.Look,
	})
	b.mover = delayed.New(delayed.Options{
		Store: b.store, Committer: b.committer, Logger: b.log, Now: b.clock.Wall, Room: b.space.Check, Link: publish.Link,
	})
	b.idle, err = idle.New(idle.Options{
		Store: b.store, Committer: b.committer, Logger: b.log, Policies: b.topics, Groups: (*idleGroups)(b), Wall: b.clock.Wall, NoEnds: opts.NoMaintenance,
	})
	if err != nil {
		return err
	}
	b.snapshots, err = snapshots.New(snapshots.Options{
		Store: b.store, Committer: b.committer, Logger: b.log, Policies: b.topics, Logs: b.logs, Walk: b.history.WalkKeys,
		Wall: b.clock.Wall, Commits: b.counts.commits, Room: b.space.Check,
	})
	if err != nil {
		return err
	}
	b.producers, err = producers.New(producers.Options{
		Store: b.store, Committer: b.committer, Logger: b.log, Wall: b.clock.Wall, Kept: opts.ProducersKept, Most: opts.MaxProducers,
	})
	return err
}

// startWorkers starts them; stopping is Close's.
func (b *Bus) startWorkers() {
	b.mover.Start()
	b.space.Start()
	b.idle.Start()
	b.keyIndex.Start()
	b.producers.Start()
	if !b.opts.NoMaintenance {
		b.retention.Start()
		b.compaction.Start()
		b.snapshots.Start()
	}
}

// Close stops the engine: publications that come later are refused with
// CodeShuttingDown, those accepted are committed, members are notified that their
// subscription ended, and the state of all groups is made durable. It returns
// when every goroutine of the bus has ended. Closing twice is harmless.
func (b *Bus) Close() error {
	b.mu.Lock()
	first := !b.closed
	b.closed = true
	groups := make([]*group, 0, len(b.groups))
	for _, g := range b.groups {
		groups = append(groups, g)
	}
	b.mu.Unlock()
	if first {
		b.patterns.end()
		if !b.opts.NoMaintenance {
			b.snapshots.Stop()
			b.retention.Stop()
			b.compaction.Stop()
		}
		b.keyIndex.Stop()
		b.producers.Stop()
		b.idle.Stop() // what members use is used until now
		b.space.Stop()
		for _, s := range b.patterns.all() {
			s.end(errShuttingDown)
		}
		for _, g := range groups {
			g.shut(errShuttingDown)
		}
		b.tails.End(errShuttingDown)
		b.mover.Stop()
		b.sched.Stop()
	}
	err := b.committer.Stop()
	b.waits.Drain() // all of them were notified that their group has ended
	return err
}

// observe learns of each commit with all its units, those of groups too. It runs where committed does.
func (b *Bus) observe(took time.Duration, units []*store.Unit) {
	b.counts.commit(took, units)
	if !b.opts.NoMaintenance {
		b.compaction.Committed(units)
		b.snapshots.Committed(units)
	}
}

// settingsChanged notifies those who go by the settings of topics.
func (b *Bus) settingsChanged(name string) {
	b.retention.Changed(name)
	b.compaction.Changed(name)
	b.keyIndex.Changed(name)
	b.idle.Changed(name)
	b.snapshots.Changed(name)
}

var errShuttingDown = commit.ErrStopped

// committed notifies everybody of what a commit has brought: those who wait for topics that do
// not exist yet, those who read topics, and those who count. It runs on the committer's
// goroutine or, for commits that are pipelined, on the syncer's, never on both at once,
// and before the receipts.
func (b *Bus) committed(jobs []*commit.Request) {
	b.topicsCreated(jobs)
	b.logs.Committed(jobs)
	if !b.opts.NoMaintenance {
		b.retention.Committed(jobs)
	}
	for _, job := range jobs {
		for i := range job.Units {
			u := &job.Units[i]
			if u.Err != nil {
				continue
			}
			if len(u.Delays) > 0 {
				b.mover.Committed(u.Delays)
			}
			if len(u.Groups) > 0 {
				b.known.add(u.Groups)
				b.idle.Committed(u.Groups)
			}
			if len(u.Topics) > 0 {
				b.tails.Removed(u.Topics)
				b.retention.Removed(u.Topics)
				b.letterCounts.Removed(u.Topics)
				b.space.Removed()
			}
		}
	}
}

// groupError translates a failed look-up of a group.
func groupError(err error, topic, name string) error {
	if errors.Is(err, store.ErrNotFound) {
		return eventhub.Errorf(eventhub.CodeNotSubscribed, "there is no group %q in topic %q", name, topic)
	}
	return storeError(err, "load group %s::%s", topic, name)
}

// storeError is store.Failed.
func storeError(err error, format string, args ...any) error {
	return store.Failed(err, format, args...)
}

// topicsCreated notifies those who wait for topics that do not exist yet of the topics that
// a commit has created, by whatever part of it, and of each life once. It runs where
// committed does, before the events are handed on.
func (b *Bus) topicsCreated(batch []*commit.Request) {
	created := createdBy(batch)
	if len(created) == 0 {
		return
	}
	b.tails.TopicsCreated(created)
	b.patterns.topicsCreated(created)
	b.letterCounts.TopicsCreated(created)
	b.keyIndex.TopicsCreated(created)
}

// createdBy returns the topics that the batch has created.
func createdBy(batch []*commit.Request) (created []store.TopicLife) {
	for _, s := range batch {
		for i := range s.Units {
			created = append(created, s.Units[i].Created...)
		}
	}
	return created
}
