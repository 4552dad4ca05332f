package pebble

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"eventhub/internal/testsize"
	"eventhub/store"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// afterPowerLoss returns the file system with what is synced now.
func afterPowerLoss(mem *vfs.MemFS) *vfs.MemFS { return mem.CrashClone(vfs.CrashCloneCfg{}) }

func head(t testing.TB, s *Store, topic string) uint64 {
	t.Helper()
	head, err := s.Head(context.Background(), topic)
	if err != nil {
		t.Fatal(err)
	}
	return head
}

// TestSyncCoversEarlierCommits: each kind of synced commit makes the unsynced
// ones before it durable, those that write nothing included.
func TestSyncCoversEarlierCommits(t *testing.T) {
	stale := &store.Unit{Groups: []store.GroupChange{{Topic: "t", Group: "none"}}}
	for _, tt := range []struct {
		name  string
		units []*store.Unit
	}{
		{"no units", nil},
		{"an event", []*store.Unit{{Appends: []store.Append{given("other", "x")}}}},
		{"a duplicate", []*store.Unit{{Appends: []store.Append{given("t", "2")}}}},
		{"a refused unit", []*store.Unit{stale}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			mem := vfs.NewCrashableMem()
			s := mustOpen(t, onMem(t, mem))
			defer mustClose(t, s)
			mustCommit(t, s, true, given("t", "1")) // with it the floor of t, so that the next one needs no fsync
			mustCommit(t, s, false, given("t", "2"))
			mustCommit(t, s, false, given("t", "3"))
			if err := s.Commit(context.Background(), tt.units, true); err != nil {
				t.Fatal(err)
			}
			again := mustOpen(t, onMem(t, afterPowerLoss(mem)))
			defer mustClose(t, again)
			if got := head(t, again, "t"); got != 3 {
				t.Errorf("after a power loss the head is %d; want 3", got)
			}
		})
	}
}

// TestFloor: offsets that unsynced commits gave are not given again after a
// power loss, and none are skipped when the store was closed.
func TestFloor(t *testing.T) {
	mem := vfs.NewCrashableMem()
	s := mustOpen(t, onMem(t, mem))
	var last uint64
	for i := range 10 {
		last = mustCommit(t, s, false, given("t", fmt.Sprint(i)))[0].Offset
	}
	image := afterPowerLoss(mem)
	mustClose(t, s)
	if last != 10 {
		t.Errorf("the tenth event is at offset %d", last)
	}

	s = mustOpen(t, onMem(t, image))
	lost := head(t, s, "t")
	if lost >= last {
		t.Fatalf("nothing was lost: the head is %d", lost)
	}
	offset := mustCommit(t, s, false, given("t", "a"))[0].Offset
	if offset <= last {
		t.Errorf("after the power loss an event gets offset %d; %d was given before", offset, last)
	}
	if offset > last+2*reserveAhead {
		t.Errorf("after the power loss an event gets offset %d, far above %d", offset, last)
	}
	if at, err := s.SeekTime(context.Background(), "t", 1<<42); err != nil || at != offset+1 {
		t.Errorf("SeekTime after the end over the gap = %d, %v; want %d", at, err, offset+1)
	}
	mustClose(t, s)

	for _, fsys := range []*vfs.MemFS{mem, image} {
		s = mustOpen(t, onMem(t, fsys))
		before := head(t, s, "t")
		if got := mustCommit(t, s, true, given("t", "b"))[0].Offset; got != before+1 {
			t.Errorf("after a clean close an event gets offset %d; the last one was %d", got, before)
		}
		mustClose(t, s)
	}
}

// TestCrashesSkipFewOffsets: a store that crashes again and again with a few events of
// each life skips about as many offsets as it has used, not a whole large reserve.
func TestCrashesSkipFewOffsets(t *testing.T) {
	const lives, each = 25, 3
	fsys := vfs.NewCrashableMem()
	last := uint64(0)
	for n := range lives {
		s := mustOpen(t, onMem(t, fsys))
		for i := range each {
			offset := mustCommit(t, s, false, given("t", fmt.Sprint(n, i)))[0].Offset
			if offset <= last {
				t.Fatalf("life %d: offset %d after %d", n, offset, last)
			}
			last = offset
		}
		image := afterPowerLoss(fsys)
		mustClose(t, s)
		fsys = image
	}
	if most := uint64(lives * (each + reserveFirst)); last > most {
		t.Errorf("the last of %d events in %d lives is at offset %d; want at most %d", lives*each, lives, last, most)
	}
}

// TestFloorIsExtended: the reserve is used up and renewed.
func TestFloorIsExtended(t *testing.T) {
	mem := vfs.NewCrashableMem()
	s := mustOpen(t, onMem(t, mem))
	defer mustClose(t, s)
	id := 0
	add := func(n int) (last uint64) {
		var appends []store.Append
		for range n {
			id++
			appends = append(appends, given("t", fmt.Sprint(id)))
		}
		return mustCommit(t, s, false, appends...)[n-1].Offset
	}
	add(1)
	for range testsize.Of(3, 2) {
		last := add(testsize.Of(reserveAhead/2, 3*reserveFirst))
		again := mustOpen(t, onMem(t, afterPowerLoss(mem)))
		if got := mustCommit(t, again, true, given("t", "new"))[0].Offset; got <= last {
			t.Errorf("after a power loss an event gets offset %d; %d was given before", got, last)
		}
		mustClose(t, again)
	}
}

// TestTopicNumbersAreNotReused: not even that of a topic whose creation failed
// half, or that is the last one.
func TestTopicNumbersAreNotReused(t *testing.T) {
	mem := vfs.NewMem()
	seen := make(map[uint32]string)
	for round := range 3 {
		s := mustOpen(t, onMem(t, mem))
		for i := range 3 {
			name := fmt.Sprint(round, i)
			mustCommit(t, s, true, given(name, "x"))
			number := s.topics.get(name).id
			if first, ok := seen[number]; ok {
				t.Errorf("topic %s has number %d, which %s had", name, number, first)
			}
			seen[number] = name
		}
		mustClose(t, s)
	}
}

// TestNewIDsCostNoRead: for ids that are new the bloom filters answer, in the
// lowest level too, so that they cost no read of the index.
func TestNewIDsCostNoRead(t *testing.T) {
	s := mustOpen(t, onMem(t, vfs.NewMem()))
	defer mustClose(t, s)
	const n = 2000
	batch := func(prefix string) (appends []store.Append) {
		for i := range n {
			appends = append(appends, given("t", fmt.Sprintf("%s%d", strings.Repeat("i", i%7), i)+prefix))
		}
		return appends
	}
	mustCommit(t, s, true, batch("old")...)
	if err := s.db.Compact(context.Background(), []byte{0}, []byte{0xff}, false); err != nil {
		t.Fatal(err)
	}
	before := s.db.Metrics()
	if before.Levels[6].TablesCount == 0 {
		t.Fatal("nothing is in the lowest level")
	}
	mustCommit(t, s, true, batch("new")...)
	after := s.db.Metrics()
	if got := after.Filter.Hits - before.Filter.Hits; got < n*9/10 {
		t.Errorf("the filters answered for %d of %d new ids", got, n)
	}
}

// TestCommitAfterPanic: a record that is none panics, as its caller deserves, and
// does no harm to others.
func TestCommitAfterPanic(t *testing.T) {
	s := mustOpen(t, onMem(t, vfs.NewMem()))
	defer mustClose(t, s)
	mustCommit(t, s, true, given("t", "1"))
	func() {
		defer func() {
			if recover() == nil {
				t.Error("a record that is none was taken")
			}
		}()
		bad := []store.Append{given("t", "2"), given("created", "3"), {Topic: "t", ID: "4", Record: []byte(`{"id":"4"}`)}}
		_ = s.Commit(context.Background(), []*store.Unit{{Appends: bad}}, true)
	}()
	mustCommit(t, s, true, given("t", "5"))
	if got := readAll(t, s, "t"); len(got) != 2 {
		t.Errorf("%d events are there; want 2", len(got))
	}
	if _, err := s.Find(context.Background(), "t", "2"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("Find of an event of the unit that panicked: %v; want store.ErrNotFound", err)
	}
	checkIndexes(t, s)
}
