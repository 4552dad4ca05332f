// Package space looks after the room that the store takes. It owns the Guard, which
// refuses publishes while the disk, or what the store writes to besides, is nearly full, and its goroutine, the sweeper, which
// has the store give room back and remove what deleted topics and removed events have left.
//
// It is below the bus, which asks for room before it accepts events and says when it has
// deleted a topic or removed events. It knows the store's role for its own upkeep (store.Maintenance) and
// nothing of topics, groups or the committer but how many commits there were.
//
// # Invariants
//
//   - Only what adds events is refused. Reads, acks and what else groups write go on: they
//     free space in the end. Dead letters go on too, until the room for the rest is all there is
//     (CheckLetters): they may be as many and as large as events, and would fill the disk.
//   - The sweeper yields: it rests after each step, for as long as others commit most of
//     the time, unless much is left. So what is left stays bounded also where events are
//     removed as fast as they are published.
//   - What was left is removed in the end, also after a restart, and a disk that is full is
//     asked for room until it has some.
//
// # Goroutines and locks
//
// One goroutine with one timer, from Start to Stop; it waits where there is nothing to do, and
// the timer runs only where something is to be removed later. Guard.mu is a
// leaf: under it the store is asked for its room, and no other lock is taken.
package space

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"eventhub"
	"eventhub/store"
)

const (
	// LookEvery is how long an answer of the file system counts. What is written
	// meanwhile has to fit into what store.Space.Least leaves.
	LookEvery = 100 * time.Millisecond
	// RetryAfter is how long refused publishers are asked to wait, and how long the sweeper
	// waits before it asks again for room that the store could not give back.
	RetryAfter = 5 * time.Second
	// copyRetryAfter is that of a copy, which nobody waits for.
	copyRetryAfter = time.Minute
)

// Options configure a Guard. Store, Logger and Commits are required.
type Options struct {
	Store  store.Maintenance
	Logger *slog.Logger
	// Commits returns how many commits there were, of whatever.
	Commits func() uint64
	// NoSweep leaves what there is to sweep where it is. A disk that is full is still asked
	// for room.
	NoSweep bool
	// Refuse says why what the store writes to besides the disk has no room for events; nil while it
	// has. It is asked by each Check. It must not block. Nil: there is nothing else.
	Refuse func() error
}

// Guard refuses publishes while the disk is nearly full (store.Space.IsLow), and has the
// store give back what it can when that begins, and sweep.
type Guard struct {
	opts   Options
	ctx    context.Context // ends with Stop
	cancel context.CancelFunc
	wake   chan struct{} // there may be something for the sweeper to do
	done   chan struct{} // closed when the sweeper has ended
	isLow  atomic.Bool   // the disk has become nearly full

	retryAt time.Time // a Shrink that failed is not tried again before; the sweeper's own

	mu      sync.Mutex
	next    time.Time // when to look again
	err     error     // the refusal, nil while the disk has room
	scarce  bool      // the disk has no room for dead letters and copies either
	free    uint64    // bytes, when it was looked at
	held    bool      // a dead letter was told to wait
	refused error     // that of Options.Refuse
}

// New returns a Guard whose sweeper does nothing before Start.
func New(opts Options) *Guard {
	g := &Guard{opts: opts, wake: make(chan struct{}, 1), done: make(chan struct{})}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	return g
}

// Start starts the sweeper. There may be something left of an earlier run.
func (g *Guard) Start() { go g.sweep() }

// Stop ends the sweeper, which was started, and returns when it has ended.
func (g *Guard) Stop() {
	g.cancel()
	<-g.done
}

// Check returns why no events can be accepted, with CodeOverloaded, or nil. It costs a
// system call every LookEvery.
func (g *Guard) Check() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.check()
}

// CheckLetters returns why no dead letters can be written, or nil. It is to be asked again after
// RetryAfter.
func (g *Guard) CheckLetters() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	err := g.check()
	if err != nil && g.refused == nil && !g.scarce {
		err = nil
	}
	switch held := err != nil; {
	case held && !g.held:
		g.opts.Logger.Error("dead letters wait for room; their events stay in their groups", "error", err)
	case g.held && !held:
		g.opts.Logger.Info("dead letters go on")
	}
	g.held = err != nil
	return err
}

// CheckCopy returns why the store can not be copied beside itself, with CodeOverloaded, or nil. The copy takes the room of
// the logs, and that of tables which the store replaces meanwhile.
func (g *Guard) CheckCopy() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	_ = g.check() // only looks: what refuses publishes does not matter here
	if !g.scarce {
		return nil
	}
	return &eventhub.Error{
		Code:       eventhub.CodeOverloaded,
		Message:    fmt.Sprintf("the hub's disk is nearly full: %d MiB are free, a copy of the store needs %d", g.free>>20, store.MinFree>>20),
		RetryAfter: copyRetryAfter,
	}
}

// check is Check. g.mu is held.
func (g *Guard) check() error {
	if g.opts.Refuse != nil {
		was := g.refused
		g.refused = g.opts.Refuse()
		switch {
		case g.refused != nil && was == nil:
			g.opts.Logger.Error("publishes are refused", "error", g.refused)
		case g.refused == nil && was != nil:
			g.opts.Logger.Info("publishes go on")
		}
	}
	now := time.Now()
	if now.Before(g.next) {
		return cmp.Or(g.err, g.refused)
	}
	g.next = now.Add(LookEvery)
	space, err := g.opts.Store.Space()
	if err != nil {
		// Not a reason to refuse: a disk that is really full fails the commit.
		g.opts.Logger.Warn("cannot find out how much room the store has", "error", err)
		return cmp.Or(g.err, g.refused)
	}
	least, low := space.Least(), space.IsLow()
	switch was := g.err != nil; {
	case low && !was:
		g.opts.Logger.Error("the disk is nearly full; publishes are refused", "free_bytes", space.Free, "needed_bytes", least)
		g.isLow.Store(true)
		g.hint()
	case was && !low:
		g.opts.Logger.Info("the disk has room again; publishes go on", "free_bytes", space.Free, "needed_bytes", least)
	}
	g.err, g.scarce, g.free = nil, space.IsScarce(), space.Free
	if low {
		g.err = &eventhub.Error{
			Code: eventhub.CodeOverloaded,
			Message: fmt.Sprintf("the hub's disk is nearly full: %d MiB are free, publishing needs %d; nothing was published",
				space.Free>>20, least>>20),
			RetryAfter: RetryAfter,
		}
	}
	return cmp.Or(g.err, g.refused)
}

// Deleted says that a topic was deleted: there is something to sweep.
func (g *Guard) Deleted() { g.hint() }

// Removed says that events were removed: there is something to sweep.
func (g *Guard) Removed() { g.hint() }

func (g *Guard) hint() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}
