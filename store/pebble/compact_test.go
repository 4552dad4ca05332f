package pebble

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"eventhub"
	"eventhub/internal/record"
	"eventhub/internal/testsize"
	"eventhub/store"

	pdb "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// compactImages is how many power losses TestCompactionOfImages goes through.
var compactImages = testsize.Int("compact.images", 80, 3, "how many images TestCompactionOfImages takes")

// betweenStride is the distance of the moments that TestRemovedBetweenSteps goes through.
var betweenStride = testsize.Int("between.stride", 10, 50, "take each so manieth moment in TestRemovedBetweenSteps")

// compactRun is a topic that is compacted, trimmed, erased from and published to, while the
// machine loses power now and then.
type compactRun struct {
	*testing.T
	rng    *rand.Rand
	mem    *vfs.MemFS
	store  *Store
	clock  testClock
	events map[uint64]compactEvent // that no mark removes
	gone   map[string]uint64       // ids of removed events
	free   map[string]bool         // likewise, that may have been forgotten
	last   uint64
	topic  store.TopicInfo
}

type compactEvent struct {
	id, key     string
	isTombstone bool
}

// TestCompactionOfImages: whatever is lost of the work of a compaction, the state by key at
// any offset from the mark on is what it was, no event that was superseded is the newest of
// its key, no offset is given twice, a late duplicate is one, what there is is measured right, and
// the rest of the work is done after the start. Nothing that compaction removes leaves an index
// entry, and what is published in the middle of a step has all of its own.
func TestCompactionOfImages(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for n := range (uint64(*compactImages) + 5) / 6 {
		mem := vfs.NewCrashableMem()
		run := &compactRun{T: t, rng: rand.New(rand.NewPCG(seed, n)), mem: mem,
			events: make(map[uint64]compactEvent), gone: make(map[string]uint64), free: make(map[string]bool)}
		run.open()
		for range min(6, *compactImages) {
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
	o := onMem(run, run.mem)
	o.Now = run.clock.now
	o.sweeping = func(*pdb.Batch) {
		if run.rng.IntN(3) == 0 {
			run.publish()
		}
	}
	run.store = mustOpen(run, o)
	run.store.sweepRange, run.store.segmentBytes = 1+run.rng.IntN(4000), 1+uint64(run.rng.IntN(3000))
	run.store.compacting, run.store.indexSizes = someCompactSizes(run.rng), someIndexSizes(run.rng)
}

// someIndexSizes are sizes with which few events take many steps.
func someIndexSizes(rng *rand.Rand) indexSizes {
	return indexSizes{looks: 1 + rng.IntN(9), step: 1 + rng.IntN(3000), keys: 1 + rng.IntN(30), least: 1 + rng.IntN(9), memory: 1 + rng.IntN(3000), batch: 1 + rng.IntN(10),
		tables: []int{1, 1 + rng.IntN(30), 1 << 20}[rng.IntN(3)], table: 1 + rng.IntN(200)}
}

// someCompactSizes are sizes that give a compaction of few events every kind of step.
func someCompactSizes(rng *rand.Rand) compactSizes {
	return compactSizes{
		step: 100 + rng.IntN(1500), points: 1 + rng.IntN(20), whole: uint64(rng.IntN(2)) << 40,
		entries: 1 + rng.IntN(30), kept: 1 + rng.IntN(10), bytes: 1 + rng.IntN(2000),
		piece: 1 + rng.IntN(3000), least: 1 + rng.IntN(1000), rewrite: 1 + rng.IntN(10), window: 1 + uint64(rng.IntN(60)),
		settle: uint64(rng.IntN(3000)), settleKeys: uint64(rng.IntN(30)),
	}
}

// lose goes on with what a power loss leaves.
func (run *compactRun) lose() {
	image := run.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: run.rng.IntN(101), RNG: run.rng})
	mustClose(run, run.store)
	run.mem = image
	run.open()
}

func (run *compactRun) step() {
	switch k := run.rng.IntN(14); {
	case k > 11 && run.last > 0 && run.isIndexed():
		if k == 12 {
			mustDrop(run, run.store, "t")
		}
	case k > 10 && run.last > 0:
		mustRemove(run, run.store, store.TopicChange{Topic: "t", Index: store.StartIndex})
		if _, _, err := run.store.IndexKeys(context.Background(), "t", nil); err != nil {
			run.Fatal(err)
		}
	case k < 4:
		run.publish()
	case k < 6:
		run.mark()
	case k < 9:
		if _, _, err := run.store.Compact(context.Background(), "t"); err != nil && (run.isIndexed() || !errors.Is(err, store.ErrNotIndexed)) {
			run.Fatal(err)
		}
	case k < 10 && run.last > 0:
		checkUsage(run, run.store, "t", run.rng)
	default:
		if _, err := run.store.Sweep(context.Background()); err != nil {
			run.Fatal(err)
		}
	}
}

// isIndexed reports whether the index is ready.
func (run *compactRun) isIndexed() bool {
	info, err := run.store.Topic(context.Background(), "t")
	return errors.Is(err, store.ErrNotFound) || info.Index == store.Indexed
}

func (run *compactRun) publish() {
	u := &store.Unit{}
	for range 1 + run.rng.IntN(8) {
		e := eventhub.Event{Topic: "t", ID: fmt.Sprint("e", run.last, "-", len(u.Appends)), Key: []string{"", "a", "b", "c", "d"}[run.rng.IntN(5)],
			Payload: []byte(`"` + string(bytes.Repeat([]byte("x"), run.rng.IntN(200))) + `"`), CausedBy: []string{"cause"}}
		if run.rng.IntN(4) == 0 {
			e.Payload = []byte("null")
		}
		if free := slices.Sorted(maps.Keys(run.free)); len(free) > 0 && run.rng.IntN(4) == 0 {
			e.ID = free[run.rng.IntN(len(free))]
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
		if a.Duplicate && run.free[a.ID] {
			continue
		}
		if a.Duplicate && slices.ContainsFunc(u.Appends, func(b store.Append) bool { return !b.Duplicate && b.ID == a.ID }) {
			continue // twice in the unit
		}
		if a.Duplicate || a.Offset <= run.last {
			run.Fatalf("offset %d after %d, duplicate %v", a.Offset, run.last, a.Duplicate)
		}
		run.last = a.Offset
		run.events[a.Offset] = compactEvent{a.ID, a.Key, bytes.HasSuffix(a.Record, []byte(`"payload":null}`))}
		delete(run.free, a.ID)
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
	ch.ForgetIDs = run.rng.IntN(2) == 0
	mustRemove(run, run.store, ch)
	if ch.ForgetIDs { // those that the compaction has left behind with them
		for id, offset := range run.gone {
			if offset < min(ch.Horizon, run.last+1) || len(ch.Erase) > 0 && offset == ch.Erase[0] {
				delete(run.gone, id)
				run.free[id] = true
			}
		}
	}
	for offset, e := range run.events {
		if offset < min(ch.Horizon, run.last+1) || len(ch.Erase) > 0 && offset == ch.Erase[0] {
			run.remove(offset, e)
			if ch.ForgetIDs {
				delete(run.gone, e.id)
				run.free[e.id] = true
			}
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
	checkUsage(run, run.store, "t", run.rng)
	if run.last > 0 {
		mustIndex(run, run.store, "t")
	}
	for _, key := range []string{"a", "b", "c", "d"} {
		for at := max(run.topic.Compacted, 1); at <= run.last; at++ {
			got, err := newestAt(run.store, key, at)
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

// newestAt returns the newest event of a key of "t" up to an offset that is not below the mark; the zero Item where there
// is none. In the middle of a pass Latest does not say it, and the state does, but for ends of keys.
func newestAt(s *Store, key string, at uint64) (newest store.Item, err error) {
	ctx := context.Background()
	if newest, err = s.Latest(ctx, "t", key, at); !errors.Is(err, store.ErrNotIndexed) {
		return newest, err
	}
	var batch store.Batch
	if _, err = s.State(ctx, store.StateQuery{Topic: "t", At: at, Keys: []string{key}, Limit: 1, MaxBytes: 1 << 20}, &batch); err != nil {
		return newest, err
	}
	if len(batch.Items) > 0 {
		return batch.Items[0], nil
	}
	err = s.Read(ctx, "t", 1, 1<<30, 1<<40, &batch)
	for _, item := range batch.Items {
		if item.Offset <= at && string(item.Record.Key()) == key && item.Record.IsTombstone() {
			newest = item
		}
	}
	return newest, err
}

// TestLatestInAPass: whoever goes from one event of a key to the one before it has all that reads show, or is told that
// the index does not say it: at each moment of a pass, also where the newest one was erased.
func TestLatestInAPass(t *testing.T) {
	ctx := context.Background()
	for _, whole := range []uint64{0, 1 << 40} {
		for _, erase := range [][]uint64{nil, {12}} {
			s := mustOpen(t, onMem(t, vfs.NewMem()))
			s.compacting = compactSizes{step: 150, points: 2, whole: whole, entries: 4, kept: 3, bytes: 300, piece: 500, least: 200, rewrite: 3, window: 16}
			for n := range 18 {
				mustCommit(t, s, true, keyedEvent(fmt.Sprint("e", n), []string{"a", "b", "c"}[n%3], `"x"`))
			}
			mustIndex(t, s, "t")
			mustRemove(t, s, store.TopicChange{Topic: "t", Compacted: 14, Erase: erase})
			steps, told := 0, 0
			for done := false; !done; steps++ {
				for _, key := range []string{"a", "b", "c", "d"} {
					want := make(map[uint64]bool)
					for _, item := range readAll(t, s, "t") {
						if string(item.Record.Key()) == key {
							want[item.Offset] = true
						}
					}
					var err error
					for at := uint64(18); at > 0 && err == nil; {
						var item store.Item
						if item, err = s.Latest(ctx, "t", key, at); err == nil {
							delete(want, item.Offset)
							at = item.Offset - 1
						}
					}
					switch {
					case errors.Is(err, store.ErrNotIndexed):
						told++
					case err != nil && !errors.Is(err, store.ErrNotFound):
						t.Fatal(err)
					case len(want) > 0:
						t.Errorf("whole from %d, erased %v, after %d steps: of key %s the events %v are shown and not found", whole, erase, steps, key, slices.Sorted(maps.Keys(want)))
					}
				}
				var err error
				if _, done, err = s.Compact(ctx, "t"); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := s.Latest(ctx, "t", "d", 18); !errors.Is(err, store.ErrNotFound) {
				t.Errorf("after the pass: %v", err)
			}
			if whole == 0 && told == 0 || whole != 0 && told > 0 {
				t.Errorf("whole from %d: told %d times that the index does not say it", whole, told)
			}
			mustClose(t, s)
		}
	}
}

// TestIDsInAPass: the id of an event is known for as long as reads show the event, however long a pass takes, and goes
// after that.
func TestIDsInAPass(t *testing.T) {
	ctx := context.Background()
	for _, whole := range []uint64{0, 1 << 40} {
		mem, clock := vfs.NewMem(), &testClock{}
		o := onMem(t, mem)
		o.Now = clock.now
		s := mustOpen(t, o)
		s.compacting = compactSizes{step: 150, points: 2, whole: whole, entries: 4, kept: 3, bytes: 300, piece: 500, least: 1 << 20, rewrite: 3, window: 16}
		for n := range 18 {
			mustCommit(t, s, true, keyedEvent(fmt.Sprint("e", n), []string{"a", "b", "c"}[n%3], `"x"`))
		}
		mustIndex(t, s, "t")
		mustRemove(t, s, store.TopicChange{Topic: "t", Compacted: 14})
		for steps, done := 1, false; !done; steps++ {
			var err error
			if _, done, err = s.Compact(ctx, "t"); err != nil {
				t.Fatal(err)
			}
			clock.pass(store.IDsKept)
			sweepAll(t, s)
			for _, item := range readAll(t, s, "t") {
				if offset, err := s.Find(ctx, "t", string(item.Record.ID())); err != nil || offset != item.Offset {
					t.Errorf("whole from %d, after %d steps: id %s is at %d, %v; want %d", whole, steps, item.Record.ID(), offset, err, item.Offset)
				}
			}
		}
		left := len(readAll(t, s, "t"))
		clock.pass(store.IDsKept)
		sweepAll(t, s)
		if got := keysOf(t, s, tagID); got != left {
			t.Errorf("whole from %d: %d ids are known in the end; want those of the %d events that are left", whole, got, left)
		}
		if got := keysOf(t, s, tagOutdated); got != 0 {
			t.Errorf("whole from %d: %d rows of ids that go are left", whole, got)
		}
		checkIndexes(t, s)
		mustClose(t, s)
	}
}

// isBuried: a tombstone may be shown until it is removed. It says the same as nothing.
func (run *compactRun) isBuried(item store.Item) bool {
	return item.Offset <= run.topic.Tombstones && bytes.HasSuffix(item.Record, []byte(`"payload":null}`))
}

// TestRemovedBetweenSteps: an event that a pass as a whole is to remove is erased or trimmed after
// any step of it, and swept after any other, with a power loss in between and without one. Each
// event leaves the indexes once, whoever removes it: an id that is published again meanwhile stays.
func TestRemovedBetweenSteps(t *testing.T) {
	moment := 0
	for name, ch := range map[string]store.TopicChange{
		"erased": {Topic: "t", Erase: []uint64{5}}, "erased with its id": {Topic: "t", Erase: []uint64{5}, ForgetIDs: true},
		"trimmed": {Topic: "t", Horizon: 6}, "trimmed with ids": {Topic: "t", Horizon: 6, ForgetIDs: true},
	} {
		for steps := 0; steps >= 0; steps++ {
			whole := false
			for _, more := range []int{0, 1, 4} {
				for _, isLost := range []bool{false, true} {
					if moment++; moment%*betweenStride != 0 {
						continue
					}
					whole = removeBetweenSteps(t, ch, steps, more, isLost)
					if t.Failed() {
						t.Fatalf("%s after %d steps, swept after %d more, power loss %v", name, steps, more, isLost)
					}
				}
			}
			if whole {
				break
			}
		}
	}
}

// removeBetweenSteps reports whether the pass was done before the removal.
func removeBetweenSteps(t *testing.T, ch store.TopicChange, steps, more int, isLost bool) (whole bool) {
	run := &compactRun{T: t, rng: rand.New(rand.NewPCG(1, 1)), mem: vfs.NewCrashableMem()}
	open := func() {
		o := onMem(run, run.mem)
		o.Now = run.clock.now
		run.store = mustOpen(run, o)
		run.store.sweepRange = 400
		run.store.compacting = compactSizes{step: 150, points: 2, entries: 4, kept: 3, bytes: 300, piece: 500, least: 200, rewrite: 3, window: 16}
	}
	compact := func() (done bool) {
		_, done, err := run.store.Compact(context.Background(), "t")
		if err != nil {
			run.Fatal(err)
		}
		return done
	}
	open()
	for n := range 20 {
		mustCommit(run, run.store, true, keyedEvent(fmt.Sprint("e", n), []string{"a", "b", "c"}[n%3], `"x"`))
	}
	mustIndex(run, run.store, "t")
	mustRemove(run, run.store, store.TopicChange{Topic: "t", Compacted: 16})
	for range steps {
		whole = compact()
	}
	mustRemove(run, run.store, ch)
	for range more {
		compact()
	}
	mustSweep(run, run.store)
	if isLost {
		run.mem = run.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: run.rng})
		mustClose(run, run.store)
		open()
	}
	// Those of which the id was forgotten are new ones now.
	for n := range 5 {
		mustCommit(run, run.store, true, keyedEvent(fmt.Sprint("e", n), "d", `"y"`))
	}
	for !compact() {
	}
	for range 3 {
		sweepAll(run, run.store)
		run.clock.pass(pieceWait)
	}
	run.clock.pass(store.IDsKept)
	sweepAll(run, run.store)
	checkIndexes(run, run.store)
	checkUsage(run, run.store, "t", run.rng)
	mustClose(run, run.store)
	return whole
}

// finish does the rest of the work and looks at what is left.
func (run *compactRun) finish() {
	run.Helper()
	if run.last > 0 {
		mustIndex(run, run.store, "t")
	}
	for done := false; !done; {
		var err error
		if _, done, err = run.store.Compact(context.Background(), "t"); err != nil {
			run.Fatal(err)
		}
	}
	sweepAll(run, run.store)
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
	run.check()
	run.clock.pass(pieceWait)
	sweepAll(run, run.store)
	run.clock.pass(store.IDsKept)
	sweepAll(run, run.store)
	checkIndexes(run, run.store)
}
