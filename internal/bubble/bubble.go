// Package bubble runs tests in bubbles of testing/synctest. It owns what a bubble needs besides that package; tests
// call it in the place of synctest.Test and rapid.SyncTest.
//
// Under the race detector there is one processor for Go code while any bubble runs. Go 1.26 runs the timers of a
// bubble in one context of the detector, on whichever threads look at their channels; two threads in it at once end
// the process with a SIGSEGV, or with a failed check of the detector (https://go.dev/issue/78156). Timers that are due
// at the same moment suffice, and in a bubble most are.
package bubble

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"eventhub/internal/raced"
)

// Test is synctest.Test. Several may run at once.
func Test(t *testing.T, f func(*testing.T)) {
	t.Helper()
	if raced.Enabled {
		bubbles.enter()
		defer bubbles.leave()
	}
	synctest.Test(t, f)
}

// Check is rapid.SyncTest: one random history in a bubble. Several may run at once.
func Check(t *rapid.T, f func(*rapid.T)) {
	t.Helper()
	if raced.Enabled {
		bubbles.enter()
		defer bubbles.leave()
	}
	rapid.SyncTest(t, f)
}

// bubbles are those that run.
var bubbles processors

// processors are those that Go code had before the first bubble of those that run.
type processors struct {
	mu     sync.Mutex
	n      int // bubbles
	before int // processors
}

func (p *processors) enter() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.n++; p.n == 1 {
		p.before = runtime.GOMAXPROCS(1)
	}
}

func (p *processors) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.n--; p.n == 0 {
		runtime.GOMAXPROCS(p.before)
	}
}
