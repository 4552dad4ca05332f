package pebble

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"eventhub"
	"eventhub/internal/record"
	"eventhub/internal/testsize"
	"eventhub/store"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// compactImages is how many power losses TestCompactionOfImages goes through.
var compactImages = testsize.Int("compact.images", 600, 60, "how many images TestCompactionOfImages takes")

// compactRun is a topic that is compacted, trimmed, erased from and published to, while the
// machine loses power now and then.
type compactRun struct {
	*testing.T
	rng    *rand.Rand
	mem    *vfs.MemFS
	store  *Store
	events map[uint64]compactEvent // that no mark removes
	gone   map[string]uint64       // ids of removed events
	last   uint64
	topic  store.TopicInfo
}

type compactEvent struct {
	id, key     string
	isTombstone bool
}

// TestCompactionOfImages: whatever is lost of the work of a compaction, the state by key at
// any offset from the mark on is what it was, no event that was superseded is the newest of
// its key, no offset is given twice, a late duplicate is one, and the rest of the work is done
// after the start. Nothing that compaction removes leaves an index entry.
func TestCompactionOfImages(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for n := range uint64(*compactImages) / 6 {
		mem := vfs.NewCrashableMem()
		run := &compactRun{T: t, rng: rand.New(rand.NewPCG(seed, n)), mem: mem,
			events: make(map[uint64]compactEvent), gone: make(map[string]uint64)}
		run.open()
		for range 6 {
			for range 3 + run.rng.IntN(25) {
				run.step()
			}
			run.lose()
			run.check()
		}
		run.finish()
		mustClose(t, run.store)
		if t.Failed() {
			t.Fatalf("history %d", n)
		}
	}
}

func (run *compactRun) open() {
	run.store = mustOpen(run, onMem(run, run.mem))
	run.store.compactStep = 100 + run.rng.IntN(1500)
}

// lose goes on with what a power loss leaves.
func (run *compactRun) lose() {
	image := run.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: run.rng.IntN(101), RNG: run.rng})
	mustClose(run, run.store)
	run.mem = image
	run.open()
}

func (run *compactRun) step() {
	switch k := run.rng.IntN(10); {
	case k < 4:
		run.publish()
	case k < 6:
		run.mark()
	case k < 9:
		if _, _, err := run.store.Compact(context.Background(), "t"); err != nil {
			run.Fatal(err)
		}
	default:
		if _, err := run.store.Sweep(context.Background()); err != nil {
			run.Fatal(err)
		}
	}
}

func (run *compactRun) publish() {
	u := &store.Unit{}
	for range 1 + run.rng.IntN(8) {
		e := eventhub.Event{Topic: "t", ID: fmt.Sprint("e", run.last, "-", len(u.Appends)), Key: []string{"", "a", "b", "c", "d"}[run.rng.IntN(5)],
			Payload: []byte(`"` + string(bytes.Repeat([]byte("x"), run.rng.IntN(200))) + `"`), CausedBy: []string{"cause"}}
		if run.rng.IntN(4) == 0 {
			e.Payload = []byte("null")
		}
		encoded, err := record.Append(nil, &e)
		if err != nil {
			run.Fatal(err)
		}
		u.Appends = append(u.Appends, store.Append{Topic: "t", ID: e.ID, Key: e.Key, CausedBy: e.CausedBy, Record: encoded})
	}
	if err := run.store.Commit(context.Background(), []*store.Unit{u}, true); err != nil || u.Err != nil {
		run.Fatal(err, u.Err)
	}
	for _, a := range u.Appends {
		if a.Duplicate || a.Offset <= run.last {
			run.Fatalf("offset %d after %d, duplicate %v", a.Offset, run.last, a.Duplicate)
		}
		run.last = a.Offset
		run.events[a.Offset] = compactEvent{a.ID, a.Key, bytes.HasSuffix(a.Record, []byte(`"payload":null}`))}
	}
}

// mark moves marks up, and sometimes trims or erases.
func (run *compactRun) mark() {
	if run.last == 0 {
		return
	}
	ch := store.TopicChange{Topic: "t", Compacted: uint64(run.rng.IntN(int(run.last) + 1))}
	ch.Tombstones = uint64(run.rng.IntN(int(ch.Compacted) + 1))
	if run.rng.IntN(6) == 0 {
		ch.Horizon = run.topic.Horizon + uint64(run.rng.IntN(int(run.last)/4+1))
	}
	if above := max(ch.Compacted, run.topic.Compacted); above < run.last && run.rng.IntN(6) == 0 {
		// Of those below the mark, one that is erased may or may not have hidden others.
		ch.Erase = []uint64{above + 1 + uint64(run.rng.IntN(int(run.last-above)))}
	}
	mustRemove(run, run.store, ch)
	for offset, e := range run.events {
		if offset < min(ch.Horizon, run.last+1) || len(ch.Erase) > 0 && offset == ch.Erase[0] {
			run.remove(offset, e)
		}
	}
	info, err := run.store.Topic(context.Background(), "t")
	if err != nil || info.Compacted < ch.Compacted {
		run.Fatalf("%+v, %v after %+v", info, err, ch)
	}
	run.topic = info
	// In the order of offsets: an event goes for a newer one up to the mark, a tombstone by itself.
	newest := make(map[string]uint64)
	for offset := uint64(1); offset <= info.Compacted; offset++ {
		e, ok := run.events[offset]
		if !ok || e.key == "" {
			continue
		}
		if before := newest[e.key]; before != 0 {
			run.remove(before, run.events[before])
		}
		newest[e.key] = offset
	}
	for _, offset := range newest {
		if e := run.events[offset]; e.isTombstone && offset <= info.Tombstones {
			run.remove(offset, e)
		}
	}
}

func (run *compactRun) remove(offset uint64, e compactEvent) {
	delete(run.events, offset)
	run.gone[e.id] = offset
}

// newest returns the newest event of a key at an offset, 0 for none.
func (run *compactRun) newest(key string, at uint64) (newest uint64) {
	for offset, e := range run.events {
		if e.key == key && offset <= at && !(e.isTombstone && offset <= run.topic.Tombstones) {
			newest = max(newest, offset)
		}
	}
	return newest
}

// check looks at what is shown while the work is not done.
func (run *compactRun) check() {
	run.Helper()
	shown := make(map[uint64]bool)
	for _, item := range readAll(run, run.store, "t") {
		shown[item.Offset] = true
	}
	for offset := range run.events {
		if !shown[offset] {
			run.Errorf("offset %d is gone; the marks are %+v", offset, run.topic)
		}
	}
	for _, key := range []string{"a", "b", "c", "d"} {
		for at := max(run.topic.Compacted, 1); at <= run.last; at++ {
			got, err := run.store.Latest(context.Background(), "t", key, at)
			if want := run.newest(key, at); got.Offset != want && !(want == 0 && run.isBuried(got)) {
				run.Errorf("the newest of %s at %d is %d, %v; want %d; the marks are %+v", key, at, got.Offset, err, want, run.topic)
			}
		}
	}
	for id, offset := range run.gone {
		if run.rng.IntN(8) > 0 {
			continue
		}
		late := mustCommit(run, run.store, true, given("t", id))[0]
		if !late.Duplicate || late.Offset != offset {
			run.Errorf("the late duplicate %s is at %d, duplicate %v; want %d", id, late.Offset, late.Duplicate, offset)
		}
	}
}

// isBuried: a tombstone may be shown until it is removed. It says the same as nothing.
func (run *compactRun) isBuried(item store.Item) bool {
	return item.Offset <= run.topic.Tombstones && bytes.HasSuffix(item.Record, []byte(`"payload":null}`))
}

// finish does the rest of the work and looks at what is left.
func (run *compactRun) finish() {
	run.Helper()
	for done := false; !done; {
		var err error
		if _, done, err = run.store.Compact(context.Background(), "t"); err != nil {
			run.Fatal(err)
		}
	}
	for mustSweep(run, run.store).More() {
	}
	left := make(map[uint64]bool)
	for _, item := range readAll(run, run.store, "t") {
		left[item.Offset] = true
	}
	want := make(map[uint64]bool)
	for offset := range run.events {
		want[offset] = true
	}
	if !maps.Equal(left, want) {
		run.Errorf("%d events are left, want %d; the marks are %+v", len(left), len(want), run.topic)
	}
	scan(run, run.store, tagKey, func(key, _ []byte) {
		if offset := keyOffset(key); !want[offset] && offset >= run.topic.Horizon {
			run.Errorf("the key index has offset %d, which was removed", offset)
		}
	})
	scan(run, run.store, tagEffect, func(key, _ []byte) {
		if offset := keyTail(key); !want[offset] && offset >= run.topic.Horizon {
			run.Errorf("the links have offset %d, which was removed", offset)
		}
	})
	run.check()
}
