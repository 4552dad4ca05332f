package sched

import (
	"container/heap"
	"sync"
	"time"
)

// alarm is the one timer of all tasks: it schedules a group when the first of its leases
// ends or its first retry is due, a tail when it may be given the next of what it
// conflates.
type alarm struct {
	clock    *Clock
	schedule func(Task)

	mu      sync.Mutex
	timer   *time.Timer
	tasks   byTime
	stopped bool
}

func (a *alarm) begin(c *Clock, schedule func(Task)) {
	a.clock, a.schedule = c, schedule
	a.timer = time.AfterFunc(time.Hour, a.ring)
	a.timer.Stop()
}

// set makes sure that the task is scheduled at the given time, or before.
func (a *alarm) set(t Task, at int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	st := t.state()
	switch {
	case a.stopped:
		return
	case st.at == 0:
		st.at = at
		heap.Push(&a.tasks, t)
	case at < st.at:
		st.at = at
		heap.Fix(&a.tasks, st.index)
	default:
		return
	}
	if st.index == 0 {
		a.arm()
	}
}

// cancel takes a task's appointment away, if it has one.
func (a *alarm) cancel(t Task) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if st := t.state(); st.at != 0 {
		heap.Remove(&a.tasks, st.index)
		st.at = 0
	}
}

// arm sets the timer to the earliest appointment. a.mu is held.
func (a *alarm) arm() { a.timer.Reset(a.clock.until(a.tasks[0].state().at)) }

// ring is called by the timer, which may be early: what it was set for may be cancelled.
func (a *alarm) ring() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stopped {
		return
	}
	now := a.clock.Now()
	for len(a.tasks) > 0 && a.tasks[0].state().at <= now {
		t := heap.Pop(&a.tasks).(Task)
		t.state().at = 0
		a.schedule(t)
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

// byTime orders tasks by their appointments, for container/heap.
type byTime []Task

func (h byTime) Len() int           { return len(h) }
func (h byTime) Less(i, j int) bool { return h[i].state().at < h[j].state().at }
func (h byTime) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].state().index, h[j].state().index = i, j
}

func (h *byTime) Push(x any) {
	t := x.(Task)
	t.state().index = len(*h)
	*h = append(*h, t)
}

func (h *byTime) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return t
}
