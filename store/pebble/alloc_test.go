//go:build !race

// The race detector's own memory would be counted.

package pebble

import (
	"context"
	"testing"

	"eventhub/store"

	"github.com/cockroachdb/pebble/v2/vfs"
)

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
	allocs := testing.AllocsPerRun(20, func() {
		copy(u.Appends, records)
		if err := s.Commit(context.Background(), units, true); err != nil {
			t.Fatal(err)
		}
	})
	if allocs > n/20 {
		t.Errorf("a commit of %d events makes %.0f allocations", n, allocs)
	}
}
