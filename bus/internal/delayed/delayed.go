// Package delayed puts delayed events into the log when they are due, cancels them, and
// lists those that wait. It owns the Mover and its timer; the events are in the store
// alone, by time and by id (store.Schedule), and cost no memory.
//
// It is below the bus, which notifies it of delayed events that were committed, and asks it
// to cancel and to list. It knows the store's contract and submits jobs to the committer,
// and nothing of groups, tails or topics.
//
// # Invariants
//
//   - An event is delayed or in the log, never both and never neither: a move is a Cancel
//     and an Append in one unit, so a cancel that comes at the same time finds one or the
//     other.
//   - A move names the delayed event by its Seq: what was delayed again under the id in the
//     meantime is another event, and the mover leaves it alone.
//   - No event is early. Due is what the wall clock says, which may be set; a page is read
//     up to now, and the commit, which comes later, writes its own time.
//   - Each event has a unit of its own: one that is refused holds up no other.
//
// # Goroutines and locks
//
// One goroutine, that of the mover's timer, and only while something is due. It waits for
// commits, so it is no task of bus/internal/sched, whose workers must not wait; and its
// times are those of the wall clock. Mover.mu is a leaf: no other lock is taken and nothing
// of the bus is called under it but the logger.
package delayed

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"sync"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/commit"
	"eventhub/store"
)

const (
	// LookEvery bounds the sleep of a Mover while events wait: a timer does not see that
	// somebody has set the clock.
	LookEvery = 10 * time.Second

	// A move takes as many events as this, or as many bytes of records.
	moveEvents = 1000
	moveBytes  = 1 << 20
	// retryAfter is how long what could not be moved waits for another try.
	retryAfter = time.Second
	// mostFailures is how often a read of what is due may fail before what comes due
	// later goes on without it.
	mostFailures = 10

	// never is after all times that an event can be due at.
	never = math.MaxInt64
)

// Options configure a Mover. All are required.
type Options struct {
	Store     store.Schedule
	Committer *commit.Committer
	Logger    *slog.Logger
	// Now is the wall clock.
	Now func() time.Time
	// Room returns why nothing may be published just now, or nil. Where its code is
	// CodeOverloaded it is asked again.
	Room func() error
	// Link gives an event that enters the log its links, which it takes from the record.
	Link func(*store.Append)
}

// Mover puts delayed events into the log when they are due. It keeps none of them: what
// is due, and when to look again, it reads from the store.
//
// It runs while something is due, one page after the other; else only the timer is set.
// Two rules keep it from missing any:
//
//   - All delayed events at or before low have been moved or cancelled, or are after
//     retry, to be tried once more.
//   - The bus reports delayed events that were committed (Committed), and low goes back
//     where one of them is before it. What it reports while a page is read and moved counts
//     after that.
//
// low also spares the store: what was moved has left tombstones, and a read from the
// beginning would step over all of them.
//
// After an error of the committer nothing is moved any more.
type Mover struct {
	opts   Options
	ctx    context.Context // ends with Stop
	cancel context.CancelFunc

	mu      sync.Mutex
	timer   *time.Timer
	busy    sync.WaitGroup // has the run under way
	running bool
	stopped bool
	next    int64 // when there is something to do, in epoch milliseconds
	looked  int64 // what the clock had at the last look whether that has come
	added   int64 // the earliest that was committed since the last look, or never
	low     place
	retry   place // all that has to be tried again is after it
	retryAt int64 // when, or never
	resume  place // where low was before it went back to retry
	failed  int   // reads, one after the other
}

// place is one in the order of delayed events.
type place struct {
	at  int64
	seq uint64
}

// beforeAll is before all delayed events.
var beforeAll = place{at: -1}

func (p place) before(q place) bool { return p.at < q.at || p.at == q.at && p.seq < q.seq }

// New returns a Mover that does nothing before Start.
func New(opts Options) *Mover {
	m := &Mover{opts: opts, added: never, low: beforeAll, resume: beforeAll, retryAt: never}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.timer = time.AfterFunc(time.Hour, m.run)
	m.timer.Stop()
	return m
}

// Start has the mover look at what the store has. Whoever has set the clock may call it
// again to have it looked at now.
func (m *Mover) Start() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.arm()
}

// Stop ends the mover and returns when it has ended. The committer still runs.
func (m *Mover) Stop() {
	m.mu.Lock()
	m.stopped = true
	m.timer.Stop()
	m.mu.Unlock()
	m.cancel()
	m.busy.Wait()
}

// Committed takes note of delayed events that are durable.
func (m *Mover) Committed(events []store.Delay) {
	at := int64(never)
	for i := range events {
		if !events[i].Duplicate {
			at = min(at, events[i].At)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.added = min(m.added, at)
	if m.added < m.next {
		m.next = m.added
		m.arm()
	}
}

// Cancel removes a delayed event, or returns an error with CodeUnknownID where there is
// none of that id.
func (m *Mover) Cancel(ctx context.Context, topic, id string) error {
	err := m.opts.Committer.Do(ctx, commit.NewWrite(store.Unit{Cancels: []store.Cancel{{Topic: topic, ID: id}}}, nil))
	if errors.Is(err, store.ErrNotDelayed) {
		return eventhub.Errorf(eventhub.CodeUnknownID, "%q is not scheduled in topic %q: it never was, or it was delivered", id, topic)
	}
	return err
}

// List returns the delayed events that a query asks for, whose Limit is not 0. Those of
// one topic have no order of their own: those of the others are read too.
func (m *Mover) List(ctx context.Context, q admin.ScheduleQuery) ([]admin.Scheduled, error) {
	var list []admin.Scheduled
	for from := (place{q.AfterAt, q.AfterSeq}); ; {
		page, err := m.opts.Store.Delayed(ctx, from.at, from.seq, never, admin.MaxPage, moveBytes)
		if err != nil || len(page) == 0 {
			return list, err
		}
		for i := range page {
			e := &page[i]
			if from = (place{e.At, e.Seq}); q.Topic != "" && e.Topic != q.Topic {
				continue
			}
			list = append(list, admin.Scheduled{Topic: e.Topic, ID: e.ID, Key: e.Key, DeliverAt: e.At, Seq: e.Seq})
			if len(list) == q.Limit {
				return list, nil
			}
		}
	}
}
