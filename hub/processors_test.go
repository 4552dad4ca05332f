package hub

import (
	"runtime"
	"testing"
)

// TestRunAtLeast: on few processors more goroutines may run than these are, unless somebody has said how many.
func TestRunAtLeast(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, tt := range []struct {
		before int
		chosen string
		want   int
	}{{1, "", leastRunning}, {2, "", leastRunning}, {2, "2", 2}, {leastRunning + 1, "", leastRunning + 1}} {
		runtime.GOMAXPROCS(tt.before)
		RunAtLeast(tt.chosen)
		if got := runtime.GOMAXPROCS(0); got != tt.want {
			t.Errorf("of %d and %q: %d; want %d", tt.before, tt.chosen, got, tt.want)
		}
	}
}
