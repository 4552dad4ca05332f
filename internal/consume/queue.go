// Package consume is the machinery between a subscription and the handlers of a program:
// a queue of deliveries, and a queue of steps that are sent together. It knows neither
// events nor subscriptions and imports nothing of the project, so the root package can
// be built on it.
package consume

import (
	"slices"
	"sync"
)

// Queue is between a subscription, which must not wait, and the workers, which may. It is
// bounded by its limit, and not by leases alone: with AutoAck there are none. Its methods
// are safe for concurrent use.
type Queue[T any] struct {
	limit int

	mu      sync.Mutex
	changed sync.Cond
	items   []T
	refused bool // took less than it was given, and has to ask for more
	ended   bool
	cause   error
}

// NewQueue returns a queue that has room for limit items.
func NewQueue[T any](limit int) *Queue[T] {
	q := &Queue[T]{limit: limit}
	q.changed.L = &q.mu
	return q
}

// Put takes items from the front of the batch, as many as there is room for, and returns
// their number. keep is called for each before it is in the queue, to copy what the giver
// reuses.
func (q *Queue[T]) Put(batch []T, keep func(T) T) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended {
		return 0
	}
	if room := q.limit - len(q.items); len(batch) > room {
		batch, q.refused = batch[:max(room, 0)], true
	}
	for i := range batch {
		q.items = append(q.items, keep(batch[i]))
	}
	q.changed.Broadcast()
	return len(batch)
}

// Clear removes the items that nobody has taken. Those that were refused are void as well,
// so there is nothing to ask for.
func (q *Queue[T]) Clear() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.items, q.refused = nil, false
}

// Remove removes the items that nobody has taken and that are void.
func (q *Queue[T]) Remove(void func(T) bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.items = slices.DeleteFunc(q.items, void)
}

// End removes the items that nobody has taken and lets no new ones in. The first call says
// why: nil if the consumer wants no more.
func (q *Queue[T]) End(cause error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended {
		return
	}
	q.ended, q.cause = true, cause
	q.items = nil
	q.changed.Broadcast()
}

// Cause returns what the first End said, and nil before it.
func (q *Queue[T]) Cause() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.cause
}

// Next waits for an item; there is none when the queue has ended. It calls ready when
// there is room again after items were refused.
func (q *Queue[T]) Next(ready func()) (item T, ok bool) {
	item, more, ok := q.next()
	if more {
		ready()
	}
	return item, ok
}

func (q *Queue[T]) next() (item T, more, ok bool) {
	var none T
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.items) == 0 && !q.ended {
		q.changed.Wait()
	}
	if q.ended {
		return none, false, false
	}
	item = q.items[0]
	q.items[0] = none
	q.items = q.items[1:]
	if more = q.refused && len(q.items) <= q.limit/2; more {
		q.refused = false
	}
	return item, more, true
}
