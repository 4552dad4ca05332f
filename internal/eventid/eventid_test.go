package eventid

import (
	"encoding/binary"
	"slices"
	"sync"
	"testing"
	"time"

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

// TestNewTellsTheTime: an id has the time at which it was made. Many at once run
// ahead of the clock, since each is greater than the one before.
func TestNewTellsTheTime(t *testing.T) {
	before := time.Now()
	id, err := uuid.Parse(New())
	if err != nil {
		t.Fatal(err)
	}
	at := time.UnixMilli(int64(binary.BigEndian.Uint64(id[:8]) >> 16))
	if at.Before(before.Truncate(time.Millisecond)) || at.After(time.Now().Add(time.Second)) {
		t.Errorf("%s was made at %v; want about %v", id, at, before)
	}
}

func TestNewAllocatesTheTextAlone(t *testing.T) {
	if n := testing.AllocsPerRun(1000, func() { New() }); n > 1 {
		t.Errorf("an id costs %v allocations; want 1", n)
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
