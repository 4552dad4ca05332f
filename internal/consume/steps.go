package consume

import (
	"sync"
	"time"
)

// The pause before steps are done again, if the hub does not say how long to wait: it
// doubles from the first to the second.
const (
	minPause = 50 * time.Millisecond
	maxPause = time.Second
)

// Steps does what is added to it in order: one call at a time, with all that was added
// during the one before. Its methods are safe for concurrent use.
type Steps[T any] struct {
	do   func(steps []T) (again []T, wait time.Duration)
	over chan struct{} // closed when nothing is added any more
	done sync.WaitGroup

	mu      sync.Mutex
	changed sync.Cond
	waiting []T
	closed  bool
}

// NewSteps starts with nothing to do. do returns the steps that are to be done again,
// before any other, and after what time; 0 means after a pause that doubles from 50 ms to
// 1 s. Finish has to be called.
func NewSteps[T any](do func(steps []T) (again []T, wait time.Duration)) *Steps[T] {
	s := &Steps[T]{do: do, over: make(chan struct{})}
	s.changed.L = &s.mu
	s.done.Go(s.run)
	return s
}

// Add adds a step.
func (s *Steps[T]) Add(step T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) == 0 {
		s.changed.Signal()
	}
	s.waiting = append(s.waiting, step)
}

// Finish returns when every step was done once. Nothing is done again any more.
func (s *Steps[T]) Finish() {
	s.mu.Lock()
	s.closed = true
	s.changed.Signal()
	s.mu.Unlock()
	close(s.over)
	s.done.Wait()
}

// take waits for steps and puts those of again in front, unless it is over.
func (s *Steps[T]) take(again []T) []T {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		again = nil
	}
	for len(s.waiting)+len(again) == 0 && !s.closed {
		s.changed.Wait()
	}
	steps := append(again, s.waiting...)
	s.waiting = s.waiting[:0]
	return steps
}

func (s *Steps[T]) run() {
	pause := minPause
	var again []T
	for {
		steps := s.take(again)
		if len(steps) == 0 {
			return
		}
		var wait time.Duration
		if again, wait = s.do(steps); len(again) == 0 {
			pause = minPause
			continue
		}
		if wait == 0 {
			wait, pause = pause, min(2*pause, maxPause)
		}
		select {
		case <-time.After(wait):
		case <-s.over:
		}
	}
}
