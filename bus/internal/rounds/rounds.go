// Package rounds has topics looked at when they are due, one at a time: the frame of what the bus
// does with topics on its own, such as compaction and snapshots.
//
// It owns which topics take part, and when each of them is looked at next. Whoever makes a Runtime
// says which topics take part (their settings do) and what a pass over one is.
//
// # Invariants
//
//   - A pass over a topic begins at least Options.Every after the one before, unless Look has it sooner.
//   - A topic whose pass has failed is looked at again after a minute, and one that does not exist is
//     forgotten until it is touched.
//   - Where nothing is due nothing runs, and where no topic takes part Touch reads one atomic value.
//
// # Goroutines and locks
//
// One goroutine, from Start to Stop, with one timer. The notices (Touch, Look, Changed, Forget) do
// not block and may be called under any lock of the bus: Runtime.mu is a leaf, and under it only
// Options.Has is called.
package rounds

import (
	"container/heap"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"eventhub"
	"eventhub/store"
)

const (
	// retryAfter is the rest of a topic after a pass that failed.
	retryAfter = time.Minute
	// longestSleep is how long a topic waits at most for a moment of the wall clock, which may be
	// set meanwhile.
	longestSleep = time.Hour
	// longestRest is how long Rest rests at most.
	longestRest = time.Second
)

// Options configure a Runtime. All are required.
type Options struct {
	Store  store.Topics
	Logger *slog.Logger
	// What is done with a topic, for the log, such as "compact".
	What string
	// Any reports whether some topic, there or not, takes part, and Has whether a topic does. Has
	// must not block.
	Any func() bool
	Has func(topic string) bool
	// Pass does what is due of a topic, and returns after how long it is to be looked at again; 0 for when it is
	// touched. It runs on the goroutine. An error that has store.ErrNotFound or store.ErrGone in its
	// chain says that the topic does not exist.
	Pass func(ctx context.Context, topic string) (again time.Duration, err error)
	// Every is the least time between two passes over a topic.
	Every time.Duration
}

// Runtime has topics looked at.
type Runtime struct {
	opts   Options
	ctx    context.Context // ends with Stop
	cancel context.CancelFunc
	wake   chan struct{}
	done   chan struct{} // closed when the goroutine has ended
	began  time.Time     // times of the runtime are the time since then
	on     atomic.Bool   // some topic takes part

	mu      sync.Mutex
	topics  map[string]*entry // nil: one that does not take part
	due     queue
	passing string          // the topic of the pass under way
	changed map[string]bool // names of settings that were changed
	since   time.Duration   // when the first of them was
}

// entry is a topic that takes part.
type entry struct {
	topic      string
	next, last time.Duration
	at         int // its place in the queue, -1 where it is not due
}

// New returns a Runtime that does nothing before Start.
func New(opts Options) *Runtime {
	r := &Runtime{
		opts: opts, wake: make(chan struct{}, 1), done: make(chan struct{}), began: time.Now(),
		topics: make(map[string]*entry), changed: make(map[string]bool),
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.on.Store(opts.Any())
	return r
}

// Start starts the goroutine, which looks at all topics first that take part: a pass may have
// been cut short.
func (r *Runtime) Start() { go r.run() }

// Stop ends the goroutine, which was started, and returns when it has ended. The context of a pass
// that is under way ends.
func (r *Runtime) Stop() {
	r.cancel()
	<-r.done
}

// On reports whether some topic takes part.
func (r *Runtime) On() bool { return r.on.Load() }

// Changed says that the settings of a name, a topic's or a pattern, have changed.
func (r *Runtime) Changed(name string) {
	r.on.Store(r.opts.Any())
	r.mu.Lock()
	if len(r.changed) == 0 {
		r.since = r.now()
	}
	r.changed[strings.Clone(name)] = true
	r.mu.Unlock()
	r.hint()
}

// Touch has a topic looked at, where it takes part.
func (r *Runtime) Touch(topic string) {
	if !r.on.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.entry(topic); e != nil {
		r.set(e, max(r.now(), e.last+r.opts.Every))
	}
}

// Look has a topic looked at at once, whenever the last pass was.
func (r *Runtime) Look(topic string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.entry(topic); e != nil {
		r.set(e, r.now())
	}
}

// Forget forgets a topic that was deleted.
func (r *Runtime) Forget(topic string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop(topic)
}

func (r *Runtime) now() time.Duration { return time.Since(r.began) }

func (r *Runtime) hint() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// entry returns the entry of a topic, nil for one that does not take part. r.mu is held.
func (r *Runtime) entry(topic string) *entry {
	e, ok := r.topics[topic]
	if !ok {
		topic = strings.Clone(topic)
		if r.opts.Has(topic) {
			e = &entry{topic: topic, last: -r.opts.Every, at: -1}
		}
		r.topics[topic] = e
	}
	return e
}

// drop forgets a topic. r.mu is held.
func (r *Runtime) drop(topic string) {
	e, ok := r.topics[topic]
	if !ok {
		return
	}
	if e != nil && e.at >= 0 {
		heap.Remove(&r.due, e.at)
	}
	delete(r.topics, topic)
}

// set has a topic looked at at a time, at the latest. r.mu is held.
func (r *Runtime) set(e *entry, at time.Duration) {
	switch {
	case e.at < 0:
		e.next = at
		heap.Push(&r.due, e)
	case at < e.next:
		e.next = at
		heap.Fix(&r.due, e.at)
	default:
		return
	}
	if e.at == 0 {
		r.hint()
	}
}

// run is the goroutine.
func (r *Runtime) run() {
	defer close(r.done)
	if r.on.Load() {
		r.find()
	}
	timer := time.NewTimer(longestSleep)
	defer timer.Stop()
	for r.ctx.Err() == nil {
		r.takeChanges()
		e, wait := r.first()
		if e != nil && wait <= 0 {
			r.pass(e)
			continue
		}
		var rings <-chan time.Time // none where nothing is due
		if e != nil {
			timer.Reset(wait)
			rings = timer.C
		}
		select {
		case <-rings:
		case <-r.wake:
		case <-r.ctx.Done():
		}
	}
}

// find has all topics looked at that take part.
func (r *Runtime) find() {
	for t, err := range store.AllTopics(r.ctx, r.opts.Store, "") {
		if err != nil {
			if r.ctx.Err() == nil {
				r.opts.Logger.Error("cannot list the topics; an event or a change of settings has them found", "to", r.opts.What, "error", err)
			}
			return
		}
		r.Touch(t.Name)
	}
}

// takeChanges finds out again which topics take part.
func (r *Runtime) takeChanges() {
	r.mu.Lock()
	changed := len(r.changed) > 0
	wide := false
	for name := range r.changed {
		wide = wide || eventhub.IsPattern(name)
		r.drop(name)
	}
	if wide {
		for name := range r.topics {
			r.drop(name)
		}
	}
	clear(r.changed)
	r.mu.Unlock()
	if changed && r.on.Load() {
		r.find()
	}
}

// first returns the topic that is due first, and how long that takes; nil where none is.
func (r *Runtime) first() (*entry, time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.due) == 0 {
		return nil, 0
	}
	return r.due[0], r.due[0].next - r.now()
}

// pass does a pass over a topic.
func (r *Runtime) pass(e *entry) {
	r.mu.Lock()
	if e.at < 0 { // it was forgotten just now
		r.mu.Unlock()
		return
	}
	heap.Remove(&r.due, e.at)
	e.last, r.passing = r.now(), e.topic
	r.mu.Unlock()
	again, err := r.opts.Pass(r.ctx, e.topic)
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	e.last, r.passing = now, ""
	if r.topics[e.topic] != e {
		return
	}
	switch {
	case errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrGone):
		if e.at < 0 { // else it was touched meanwhile: it may be there again
			r.drop(e.topic)
		}
	case err != nil:
		if r.ctx.Err() == nil {
			r.opts.Logger.Error("cannot "+r.opts.What+" a topic; it is tried again", "topic", e.topic, "error", err)
		}
		r.set(e, now+retryAfter)
	case again > 0:
		r.set(e, now+max(min(again, longestSleep), r.opts.Every))
	}
}

// Waits returns for how long a topic other than the one of the pass under way has been due, or a change of settings has not been looked at, 0 where
// nothing waits. A Pass may call it.
func (r *Runtime) Waits() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, longest := r.now(), time.Duration(0)
	if len(r.changed) > 0 {
		longest = now - r.since
	}
	for _, e := range r.due[:min(len(r.due), 3)] { // the first one, or the one after it, which is a child of it
		if e.topic != r.passing {
			longest = max(longest, now-e.next)
		}
	}
	return longest
}

// Rest rests for some times the length of a step that began at a time, so that others get on. It ends with ctx, and returns
// its error then.
func Rest(ctx context.Context, began time.Time, times int) error {
	timer := time.NewTimer(min(time.Duration(times)*time.Since(began), longestRest))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// queue is a heap of the topics that are due, the first one in front.
type queue []*entry

func (q queue) Len() int { return len(q) }

func (q queue) Less(i, j int) bool {
	if q[i].next != q[j].next {
		return q[i].next < q[j].next
	}
	return q[i].topic < q[j].topic
}

func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].at, q[j].at = i, j
}

// Push implements heap.Interface.
func (q *queue) Push(x any) {
	e := x.(*entry)
	e.at = len(*q)
	*q = append(*q, e)
}

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	(*q)[last], e.at = nil, -1
	*q = (*q)[:last]
	return e
}
