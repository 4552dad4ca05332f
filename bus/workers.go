package bus

import (
	"container/heap"
	"sync"
	"time"
)

// turnState is what the workers know of a group; workers.mu guards it.
type turnState uint8

const (
	idle    turnState = iota
	queued            // in the queue
	running           // a worker has its turn under way
	again             // … and it was scheduled meanwhile
)

// workers run the turns of groups: a group is in the queue at most once and
// with one worker at a time, so a wake-up costs nothing while one is pending
// and none is lost.
type workers struct {
	mu       sync.Mutex
	ready    sync.Cond
	queue    []*group
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

// schedule asks for a turn of the group.
func (w *workers) schedule(g *group) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch g.turnState {
	case idle:
		if !w.stopping {
			g.turnState = queued
			w.queue = append(w.queue, g)
			w.ready.Signal()
		}
	case running:
		g.turnState = again
	}
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
		for len(w.queue) == 0 && !w.stopping {
			w.ready.Wait()
		}
		if w.stopping {
			return
		}
		g := w.queue[0]
		w.queue = w.queue[1:]
		g.turnState = running
		w.mu.Unlock()
		g.turn()
		w.mu.Lock()
		if g.turnState == again {
			g.turnState = queued
			w.queue = append(w.queue, g)
			continue
		}
		g.turnState = idle
	}
}

// alarm is the one timer of the bus: it schedules groups when the first of
// their leases ends or their first retry is due. A group is in it at most once,
// with its earliest time.
type alarm struct {
	fire func(*group)

	mu      sync.Mutex
	timer   *time.Timer
	groups  alarmHeap
	stopped bool
}

func newAlarm(fire func(*group)) *alarm {
	a := &alarm{fire: fire}
	a.timer = time.AfterFunc(time.Hour, a.ring)
	a.timer.Stop()
	return a
}

// set makes sure that the group is scheduled at the given time, in epoch
// milliseconds, or before.
func (a *alarm) set(g *group, at int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.stopped:
		return
	case g.alarmAt == 0:
		g.alarmAt = at
		heap.Push(&a.groups, g)
	case at < g.alarmAt:
		g.alarmAt = at
		heap.Fix(&a.groups, g.alarmIndex)
	default:
		return
	}
	if g.alarmIndex == 0 {
		a.arm()
	}
}

// arm sets the timer to the earliest group. a.mu is held.
func (a *alarm) arm() {
	a.timer.Reset(time.Until(time.UnixMilli(a.groups[0].alarmAt)))
}

func (a *alarm) ring() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stopped {
		return
	}
	now := time.Now().UnixMilli()
	for len(a.groups) > 0 && a.groups[0].alarmAt <= now {
		g := heap.Pop(&a.groups).(*group)
		g.alarmAt = 0
		a.fire(g)
	}
	if len(a.groups) > 0 {
		a.arm()
	}
}

func (a *alarm) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stopped = true
	a.timer.Stop()
}

// alarmHeap orders groups by alarmAt for container/heap.
type alarmHeap []*group

func (h alarmHeap) Len() int           { return len(h) }
func (h alarmHeap) Less(i, j int) bool { return h[i].alarmAt < h[j].alarmAt }
func (h alarmHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].alarmIndex, h[j].alarmIndex = i, j
}
func (h *alarmHeap) Push(x any) {
	g := x.(*group)
	g.alarmIndex = len(*h)
	*h = append(*h, g)
}
func (h *alarmHeap) Pop() any {
	old := *h
	g := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return g
}
