//go:build !race

// The race detector's own memory would be counted.

package pebble

import (
	"context"
	"testing"

	"eventhub/store"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// leastAllocs is testing.AllocsPerRun, and the least of several: that counts what all goroutines allocate, and a store
// flushes and merges meanwhile.
func leastAllocs(runs int, f func()) float64 {
	least := testing.AllocsPerRun(runs, f)
	for range 4 {
		least = min(least, testing.AllocsPerRun(runs, f))
	}
	return least
}

// TestEventsAllocateLittle: the path of the many.
func TestEventsAllocateLittle(t *testing.T) {
	const n = 1000
	s := mustOpen(t, Options{Dir: "data", FS: vfs.NewMem(), Logger: quiet})
	defer mustClose(t, s)
	u := &store.Unit{Appends: make([]store.Append, n)}
	units := []*store.Unit{u}
	records := make([]store.Append, n)
	for i := range records {
		records[i] = made("t")
	}
	allocs := leastAllocs(20, func() {
		copy(u.Appends, records)
		if err := s.Commit(context.Background(), units, true); err != nil {
			t.Fatal(err)
		}
	})
	if allocs > n/20 {
		t.Errorf("a commit of %d events makes %.0f allocations", n, allocs)
	}
}

// TestSealAllocatesNothing: the seal is written in between the commits.
func TestSealAllocatesNothing(t *testing.T) {
	s := mustOpen(t, onDisk(t, t.TempDir()))
	defer mustClose(t, s)
	for range 3 {
		mustCommit(t, s, true, made("t"))
		if _, err := s.flush(context.Background()); err != nil { // another log
			t.Fatal(err)
		}
	}
	s.seal.mu.Lock()
	defer s.seal.mu.Unlock()
	allocs := leastAllocs(100, func() {
		if err := s.seal.write(false); err != nil {
			t.Fatal(err)
		}
	})
	if allocs != 0 {
		t.Errorf("a write of the seal makes %.0f allocations", allocs)
	}
}
