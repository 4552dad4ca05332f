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
	slow       bool
	turnState  turnState // guarded by workers.mu
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
// lost.
type workers struct {
	mu       sync.Mutex
	ready    sync.Cond
	queue    []task
	slow     []task // those whose taskState says so
	slowNext bool   // the last turn was none of slow
	stopping bool
	wg       sync.WaitGroup
}

func newWorkers(n int) *workers {
	w := &workers{}
	w.ready.L = &w.mu
	for range n {
		w.wg.Go(w.run)
	}
	return w
}

// schedule asks for a turn of the task.
func (w *workers) schedule(t task) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch s := t.task(); s.turnState {
	case idle:
		if !w.stopping {
			w.enqueue(t, s)
			w.ready.Signal()
		}
	case running:
		s.turnState = again
	}
}

// enqueue and dequeue are called with w.mu held.
func (w *workers) enqueue(t task, s *taskState) {
	s.turnState = queued
	if s.slow {
		w.slow = append(w.slow, t)
		return
	}
	w.queue = append(w.queue, t)
}

// dequeue returns the task whose turn is next, nil where there is none.
func (w *workers) dequeue() (next task) {
	from := &w.queue
	if len(w.slow) > 0 && (w.slowNext || len(w.queue) == 0) {
		from = &w.slow
	}
	if len(*from) == 0 {
		return nil
	}
	w.slowNext = from == &w.queue
	next, (*from)[0] = (*from)[0], nil
	*from = (*from)[1:]
	return next
}

// stop ends the workers after the turns under way.
func (w *workers) stop() {
	w.mu.Lock()
	w.stopping = true
	w.mu.Unlock()
	w.ready.Broadcast()
	w.wg.Wait()
}

func (w *workers) run() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		t := w.dequeue()
		for t == nil && !w.stopping {
			w.ready.Wait()
			t = w.dequeue()
		}
		if w.stopping {
			return
		}
		s := t.task()
		s.turnState = running
		w.mu.Unlock()
		t.turn()
		w.mu.Lock()
		if s.turnState == again {
			w.enqueue(t, s)
			continue
		}
		s.turnState = idle
	}
}

// alarm is the one timer of the bus: it schedules tasks, a group when the first
// of its leases ends or its first retry is due, a tail when it may be given the
// next of what it conflates. A task is in it at most once, with its earliest time.
type alarm struct {
	fire func(task)

	mu      sync.Mutex
	timer   *time.Timer
	tasks   alarmHeap
	stopped bool
}

func newAlarm(fire func(task)) *alarm {
	a := &alarm{fire: fire}
	a.timer = time.AfterFunc(time.Hour, a.ring)
	a.timer.Stop()
	return a
}

// set makes sure that the task is scheduled at the given time, in epoch
// milliseconds, or before.
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
	a.timer.Reset(time.Until(time.UnixMilli(a.tasks[0].task().alarmAt)))
}

func (a *alarm) ring() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stopped {
		return
	}
	now := time.Now().UnixMilli()
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
