package eventid

import (
	"slices"
	"sync"
	"testing"

	"github.com/google/uuid"
)

func TestNewIsMonotonicUUIDv7(t *testing.T) {
	last := ""
	for range 20_000 {
		id := New()
		if len(id) != Size || id <= last {
			t.Fatalf("id %q after %q; want a greater one of %d bytes", id, last, Size)
		}
		last = id
	}
	u, err := uuid.Parse(last)
	if err != nil || u.Version() != 7 || u.Variant() != uuid.RFC4122 {
		t.Errorf("Parse(%s) = version %d variant %v, %v; want a UUIDv7", last, u.Version(), u.Variant(), err)
	}
}

func TestNewIsUniqueAcrossGoroutines(t *testing.T) {
	const workers, each = 8, 2_000
	ids := make([][]string, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for range each {
				ids[w] = append(ids[w], New())
			}
			if !slices.IsSorted(ids[w]) {
				t.Errorf("worker %d saw ids out of order", w)
			}
		})
	}
	wg.Wait()
	all := slices.Concat(ids...)
	slices.Sort(all)
	if n := len(slices.Compact(all)); n != workers*each {
		t.Errorf("%d of %d ids are distinct", n, workers*each)
	}
}

func BenchmarkNew(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		New()
	}
}
