package bubble

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"eventhub/internal/raced"
)

// TestTimersOfOneMoment: timers that are due at once, at whose channels many goroutines look, end no test. Without the
// care of this package the process crashes under the race detector, where there are two processors.
func TestTimersOfOneMoment(t *testing.T) {
	for range 200 {
		Test(t, func(*testing.T) {
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() {
					for range 200 {
						select {
						case <-time.NewTimer(0).C:
						case <-time.After(0):
						}
					}
				})
			}
			all.Wait()
		})
	}
}

// TestProcessors: bubbles that overlap leave as many processors as there were, whichever ends first.
func TestProcessors(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	var p processors
	p.enter()
	p.enter()
	p.leave()
	if n := runtime.GOMAXPROCS(0); n != 1 {
		t.Errorf("%d processors while a bubble runs", n)
	}
	p.leave()
	if n := runtime.GOMAXPROCS(0); n != before {
		t.Errorf("%d processors afterwards; there were %d", n, before)
	}
	t.Run("ends", func(t *testing.T) {
		Test(t, func(*testing.T) {
			if n := runtime.GOMAXPROCS(0); raced.Enabled && n != 1 {
				t.Errorf("%d processors in a bubble under the race detector", n)
			}
		})
	})
	if n := runtime.GOMAXPROCS(0); n != before {
		t.Errorf("%d processors after a bubble; there were %d", n, before)
	}
}
