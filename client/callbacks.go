package client

import "sync"

// callbacks calls what users gave for the answers, on a goroutine of its own: a
// callback may wait for room, which the client's goroutine makes by reading on. They
// are called one after the other, in the order of the answers.
type callbacks struct {
	mu      sync.Mutex
	changed sync.Cond
	due     []*exchange
	spare   []*exchange // emptied, for due
	running bool
	over    bool // nothing comes any more
}

// call takes exchanges whose answers are there. Only the client's goroutine calls it.
func (b *callbacks) call(tasks *sync.WaitGroup, over []*exchange) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.due = append(b.due, over...)
	if b.running {
		b.changed.Signal()
		return
	}
	b.running = true
	tasks.Go(b.run)
}

// end has the goroutine end after the last callback.
func (b *callbacks) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = true
	b.changed.Signal()
}

func (b *callbacks) run() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		for len(b.due) == 0 {
			if b.over {
				return
			}
			b.changed.Wait()
		}
		due := b.due
		b.due = b.spare[:0]
		b.mu.Unlock()
		for _, e := range due {
			e.done(e)
		}
		clear(due)
		b.mu.Lock()
		b.spare = due[:0]
	}
}
