// Package sched decides when the groups and tails of the bus work. It owns the workers,
// the one timer of all leases, retries and conflated tails, and the clock that they go by.
// It knows of what it runs only that it is a Task, and nothing of groups, topics or the
// store.
//
// # Invariants
//
//   - One turn of a task runs at a time, and a task waits for its turn at most once: to
//     schedule one that waits already costs a lock and nothing else.
//   - No wake-up is lost: a task that is scheduled while its turn runs gets another turn
//     after it.
//   - A task has at most one appointment, its earliest, and is scheduled when that has
//     come, not before.
//   - Nothing runs while there is nothing to do.
//
// # The heap
//
// The alarm's heap has pointers to tasks that have appointments, one for each, and can
// move or remove any of them: a tail that has ended must not stay in memory until its
// appointment. The window of a group orders its leases and retries by a heap of its own
// (appointments, in bus/internal/groupstate). That one has a value of 16 bytes for each lease, on the
// path of each delivery, and lets void ones surface instead of removing them: to find
// them it would need an index in each of a million entries, and to move it on every swap.
//
// # Goroutines and locks
//
// As many workers in each of the two lanes as New was given, and the timer's goroutine
// while it rings. alarm.mu may be held while lane.mu is taken; no other lock is taken
// under either, and Turn is called under none. So callers may hold any lock of theirs.
package sched

import "sync"

// Task is what gets turns: a group, a shard of the tails of a topic, or a tail. A task
// embeds a State.
type Task interface {
	// Turn does all that the task can do now, or so much that others do not wait too long
	// and schedules the task again. Only one runs at a time for a task.
	Turn()
	state() *State
}

// State is what the scheduler knows of a task.
type State struct {
	// Slow tasks get half of the turns while others wait, and not more. Never changes
	// once the task is scheduled.
	Slow bool
	// Evaluates: its turns evaluate expressions, which others must not wait for. Set
	// before the task is scheduled for the first time.
	Evaluates bool
	// Strained: its last turn had to stop in the middle, and so it is slow for now. It is
	// the turns' own.
	Strained bool

	turn  turnState // guarded by lane.mu
	at    int64     // of its appointment, by the clock; 0: none. Guarded by alarm.mu
	index int       // in the alarm's heap; guarded by alarm.mu
}

func (s *State) state() *State { return s }

// turnState is where a task is in the life of its turns.
type turnState uint8

const (
	idle    turnState = iota
	queued            // in the queue
	running           // a worker has its turn under way
	again             // … and it was scheduled meanwhile
)

// Scheduler gives tasks their turns, now or at a time. Tasks that evaluate expressions
// have a lane of their own: however long these take, the turns of all others go on.
type Scheduler struct {
	plain, evaluating lane
	workers           sync.WaitGroup
	alarm             alarm
}

// New starts a scheduler with n workers in each of its two lanes, whose appointments are
// times of the clock.
func New(c *Clock, n int) *Scheduler {
	s := &Scheduler{}
	for _, l := range []*lane{&s.plain, &s.evaluating} {
		l.ready.L = &l.mu
		for range n {
			s.workers.Go(l.run)
		}
	}
	s.alarm.begin(c, s.Schedule)
	return s
}

// Schedule asks for a turn of the task.
func (s *Scheduler) Schedule(t Task) {
	st := t.state()
	l := &s.plain
	if st.Evaluates {
		l = &s.evaluating
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch st.turn {
	case idle:
		if !l.stopping {
			l.enqueue(t, st)
			l.ready.Signal()
		}
	case running:
		st.turn = again
	}
}

// ScheduleAt makes sure that the task is scheduled at a time of the clock, in its epoch
// milliseconds, or before.
func (s *Scheduler) ScheduleAt(t Task, at int64) { s.alarm.set(t, at) }

// Forget cancels the appointment of a task that has ended, which would stay in memory
// until then.
func (s *Scheduler) Forget(t Task) { s.alarm.cancel(t) }

// Appointments returns how many tasks have one.
func (s *Scheduler) Appointments() int {
	s.alarm.mu.Lock()
	defer s.alarm.mu.Unlock()
	return len(s.alarm.tasks)
}

// Stop returns when the turns under way have ended. No other begins.
func (s *Scheduler) Stop() {
	s.alarm.stop()
	for _, l := range []*lane{&s.plain, &s.evaluating} {
		l.mu.Lock()
		l.stopping = true
		l.mu.Unlock()
		l.ready.Broadcast()
	}
	s.workers.Wait()
}

// lane is a queue with its workers.
type lane struct {
	mu       sync.Mutex
	ready    sync.Cond
	queue    []Task
	slow     []Task // those that are slow or strained
	slowNext bool   // the last turn was none of slow
	stopping bool
}

// enqueue and dequeue are called with l.mu held.
func (l *lane) enqueue(t Task, st *State) {
	st.turn = queued
	if st.Slow || st.Strained {
		l.slow = append(l.slow, t)
		return
	}
	l.queue = append(l.queue, t)
}

// dequeue returns the task whose turn is next, nil where there is none.
func (l *lane) dequeue() (next Task) {
	from := &l.queue
	if len(l.slow) > 0 && (l.slowNext || len(l.queue) == 0) {
		from = &l.slow
	}
	if len(*from) == 0 {
		return nil
	}
	l.slowNext = from == &l.queue
	next, (*from)[0] = (*from)[0], nil
	*from = (*from)[1:]
	return next
}

// run is a worker.
func (l *lane) run() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		t := l.dequeue()
		for t == nil && !l.stopping {
			l.ready.Wait()
			t = l.dequeue()
		}
		if l.stopping {
			return
		}
		st := t.state()
		st.turn = running
		l.mu.Unlock()
		t.Turn()
		l.mu.Lock()
		if st.turn == again {
			l.enqueue(t, st)
			continue
		}
		st.turn = idle
	}
}
