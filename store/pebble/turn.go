package pebble

import "sync"

// turn is a lock that may be held for as long as the disk or a journal takes. Whoever waits for it
// waits for a condition, not for a mutex: a test in a bubble of time then sees that all are waiting. The
// zero turn is not held.
type turn struct {
	mu     sync.Mutex // held for a moment
	free   sync.Cond
	isHeld bool
}

func (t *turn) Lock() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.free.L == nil {
		t.free.L = &t.mu
	}
	for t.isHeld {
		t.free.Wait()
	}
	t.isHeld = true
}

// TryLock locks where nobody holds the turn, and reports whether it has.
func (t *turn) TryLock() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.isHeld {
		return false
	}
	t.isHeld = true
	return true
}

func (t *turn) Unlock() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.isHeld = false
	t.free.Signal()
}
