package bus

import (
	"container/heap"
	"sync"
	"time"
)

// task is what workers run turns of: a group, a shard of the tails of a topic, or
// a tail. Only one turn of it runs at a time.
type task interface {
	turn()
	task() *taskState
}

// taskState is what the workers and the alarm know of a task. Tasks embed it.
type taskState struct {
	// slow tasks get half of the turns while others wait, and not more.
	// Never changes.
	slow bool
	// judges: its turns evaluate expressions, which others must not wait for. Set before
	// it is scheduled for the first time.
	judges bool
	// strained: its last turn had to stop in the middle, and so it is slow for now. Its
	// turns' own.
	strained   bool
	turnState  turnState // guarded by lane.mu
	alarmAt    int64     // epoch ms, 0: not in the alarm; guarded by alarm.mu
	alarmIndex int       // guarded by alarm.mu
}

func (s *taskState) task() *taskState { return s }

// turnState is where a task is in the life of its turns.
type turnState uint8

const (
	idle    turnState = iota
	queued            // in the queue
	running           // a worker has its turn under way
	again             // … and it was scheduled meanwhile
)

// workers run the turns of tasks: a task is queued at most once and with one
// worker at a time, so a wake-up costs nothing while one is pending and none is
// lost. Tasks that evaluate expressions have a lane of their own: however long these
// take, the turns of all others go on.
type workers struct {
	plain, judging lane
	wg             sync.WaitGroup
}

// lane is a queue with its workers.
type lane struct {
	mu       sync.Mutex
	ready    sync.Cond
	queue    []task
	slow     []task // those whose taskState says so
	slowNext bool   // the last turn was none of slow
	stopping bool
}

// newWorkers starts n workers in each lane.
func newWorkers(n int) *workers {
	w := &workers{}
	for _, l := range []*lane{&w.plain, &w.judging} {
		l.ready.L = &l.mu
		for range n {
			w.wg.Go(l.run)
		}
	}
	return w
}

// schedule asks for a turn of the task.
func (w *workers) schedule(t task) {
	s := t.task()
	l := &w.plain
	if s.judges {
		l = &w.judging
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch s.turnState {
	case idle:
		if !l.stopping {
			l.enqueue(t, s)
			l.ready.Signal()
		}
	case running:
		s.turnState = again
	}
}

// stop ends the workers after the turns under way.
func (w *workers) stop() {
	for _, l := range []*lane{&w.plain, &w.judging} {
		l.mu.Lock()
		l.stopping = true
		l.mu.Unlock()
		l.ready.Broadcast()
	}
	w.wg.Wait()
}

// enqueue and dequeue are called with l.mu held.
func (l *lane) enqueue(t task, s *taskState) {
	s.turnState = queued
	if s.slow || s.strained {
		l.slow = append(l.slow, t)
		return
	}
	l.queue = append(l.queue, t)
}

// dequeue returns the task whose turn is next, nil where there is none.
func (l *lane) dequeue() (next task) {
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
		s := t.task()
		s.turnState = running
		l.mu.Unlock()
		t.turn()
		l.mu.Lock()
		if s.turnState == again {
			l.enqueue(t, s)
			continue
		}
		s.turnState = idle
	}
}

// alarm is the one timer of the bus: it schedules tasks, a group when the first
// of its leases ends or its first retry is due, a tail when it may be given the
// next of what it conflates. A task is in it at most once, with its earliest time.
type alarm struct {
	clock *clock
	fire  func(task)

	mu      sync.Mutex
	timer   *time.Timer
	tasks   alarmHeap
	stopped bool
}

func newAlarm(c *clock, fire func(task)) *alarm {
	a := &alarm{clock: c, fire: fire}
	a.timer = time.AfterFunc(time.Hour, a.ring)
	a.timer.Stop()
	return a
}

// set makes sure that the task is scheduled at the given time of the
// bus's clock, or before.
func (a *alarm) set(t task, at int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := t.task()
	switch {
	case a.stopped:
		return
	case s.alarmAt == 0:
		s.alarmAt = at
		heap.Push(&a.tasks, t)
	case at < s.alarmAt:
		s.alarmAt = at
		heap.Fix(&a.tasks, s.alarmIndex)
	default:
		return
	}
	if s.alarmIndex == 0 {
		a.arm()
	}
}

// cancel forgets a task that has ended, which would stay in memory otherwise.
func (a *alarm) cancel(t task) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := t.task(); s.alarmAt != 0 {
		heap.Remove(&a.tasks, s.alarmIndex)
		s.alarmAt = 0
	}
}

// arm sets the timer to the earliest task. a.mu is held.
func (a *alarm) arm() {
	a.timer.Reset(a.clock.until(a.tasks[0].task().alarmAt))
}

func (a *alarm) ring() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stopped {
		return
	}
	now := a.clock.now()
	for len(a.tasks) > 0 && a.tasks[0].task().alarmAt <= now {
		t := heap.Pop(&a.tasks).(task)
		t.task().alarmAt = 0
		a.fire(t)
	}
	if len(a.tasks) > 0 {
		a.arm()
	}
}

func (a *alarm) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stopped = true
	a.timer.Stop()
}

// alarmHeap orders tasks by alarmAt for container/heap.
type alarmHeap []task

func (h alarmHeap) Len() int           { return len(h) }
func (h alarmHeap) Less(i, j int) bool { return h[i].task().alarmAt < h[j].task().alarmAt }
func (h alarmHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].task().alarmIndex, h[j].task().alarmIndex = i, j
}
func (h *alarmHeap) Push(x any) {
	t := x.(task)
	t.task().alarmIndex = len(*h)
	*h = append(*h, t)
}
func (h *alarmHeap) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return t
}
