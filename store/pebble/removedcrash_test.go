package pebble

import (
	"context"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"

	"eventhub/internal/faultfs"
	"eventhub/internal/testsize"
	"eventhub/store"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// removalImages is how many power losses TestCrashImagesOfRemovals goes through.
var removalImages = testsize.Int("removal.images", 300, 40, "how many images TestCrashImagesOfRemovals takes")

// removalState is what is known of a topic from which events are removed.
type removalState struct {
	events  map[uint64]string // ids of those that were acknowledged, by offset
	horizon uint64
	gone    map[uint64]removedID
	last    uint64
}

// removedID is the id of an event whose removal was acknowledged.
type removedID struct {
	id    string
	until int64 // remembered until, in the milliseconds of the test's clock; 0 where it need not be
}

func (st *removalState) clone() *removalState {
	c := *st
	c.events, c.gone = maps.Clone(st.events), maps.Clone(st.gone)
	return &c
}

// removalRun publishes, trims, erases, sweeps and measures, and takes an image in front of one
// write.
type removalRun struct {
	*testing.T
	rng   *rand.Rand
	mem   *vfs.MemFS
	store *Store
	clock testClock

	mu        sync.Mutex // Pebble writes from several goroutines
	state     *removalState
	maybe     map[uint64]bool // offsets that the call under way removes
	countdown int
	loss      vfs.CrashCloneCfg
	image     *vfs.MemFS
	imaged    *removalState
	imageAt   map[uint64]bool
}

// TestCrashImagesOfRemovals: a power loss in front of any write gives no offset again, brings no
// event back whose removal was acknowledged, and loses no other. A late duplicate is one, what
// there is is measured right, and the sweep leaves nothing in the end.
func TestCrashImagesOfRemovals(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	const perRun = 10
	for n := range uint64(*removalImages) / perRun {
		run := &removalRun{T: t, rng: rand.New(rand.NewPCG(seed, n)), mem: vfs.NewCrashableMem(),
			state: &removalState{events: make(map[uint64]string), gone: make(map[uint64]removedID), horizon: 1}}
		run.open()
		for range perRun {
			run.lose()
			run.check()
		}
		run.finish()
		if t.Failed() {
			t.Fatalf("run %d", n)
		}
	}
}

func (run *removalRun) open() {
	o := onMem(run, faultfs.Wrap(run.mem, errorfs.InjectorFunc(run.look)))
	o.Now = run.clock.now
	run.store = mustOpen(run, o)
	run.store.sweepRange, run.store.segmentBytes = 2<<10, 1<<10
}

// look takes the image.
func (run *removalRun) look(op errorfs.Op) error {
	if op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
		return nil
	}
	run.mu.Lock()
	defer run.mu.Unlock()
	if run.countdown--; run.countdown == 0 {
		run.image = run.mem.CrashClone(run.loss)
		run.imaged, run.imageAt = run.state.clone(), maps.Clone(run.maybe)
	}
	return nil
}

// lose works until an image was taken, and goes on with that.
func (run *removalRun) lose() {
	run.mu.Lock()
	run.countdown, run.image = 1+run.rng.IntN(60), nil
	run.loss = vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 50, 100}[run.rng.IntN(3)], RNG: rand.New(rand.NewPCG(run.rng.Uint64(), 0))}
	run.mu.Unlock()
	for {
		run.mu.Lock()
		done := run.image != nil
		run.mu.Unlock()
		if done {
			break
		}
		run.step(run.rng.IntN(10))
	}
	mustClose(run, run.store)
	run.mu.Lock()
	run.mem, run.state, run.maybe, run.countdown = run.image, run.imaged, nil, 0
	for offset := range run.imageAt { // of the call that was cut short nothing is known
		if id, ok := run.state.events[offset]; ok {
			delete(run.state.events, offset)
			run.state.gone[offset] = removedID{id: id}
		}
	}
	cut := run.imageAt
	run.mu.Unlock()
	run.open()
	for _, item := range readAll(run, run.store, "t") { // but what is there now stays
		if g, ok := run.state.gone[item.Offset]; ok && cut[item.Offset] {
			run.state.events[item.Offset] = g.id
			delete(run.state.gone, item.Offset)
		}
	}
}

func (run *removalRun) step(k int) {
	switch {
	case k < 4:
		run.publish()
	case k < 6:
		run.remove()
	case k < 9:
		run.clock.ms += []int64{0, 0, 1000, pieceWait.Milliseconds(), store.IDsKept.Milliseconds()}[run.rng.IntN(5)]
		mustSweep(run, run.store)
	default:
		mustMeasure(run, run.store, "t", 1)
	}
}

func (run *removalRun) publish() {
	u := &store.Unit{}
	for i := range 1 + run.rng.IntN(30) {
		id := run.state.last*100 + uint64(i) + uint64(run.rng.Uint32())<<20
		u.Appends = append(u.Appends, linkedEvent(run.T, "t", int(id)))
	}
	if err := run.store.Commit(context.Background(), []*store.Unit{u}, true); err != nil {
		run.Fatal(err)
	}
	run.mu.Lock()
	defer run.mu.Unlock()
	for _, a := range u.Appends {
		if a.Duplicate || a.Offset <= run.state.last {
			run.Fatalf("offset %d after %d, duplicate %v", a.Offset, run.state.last, a.Duplicate)
		}
		run.state.last = a.Offset
		run.state.events[a.Offset] = a.ID
	}
}

func (run *removalRun) remove() {
	last := run.state.last
	if last == 0 {
		return
	}
	ch := store.TopicChange{Topic: "t", ForgetIDs: run.rng.IntN(3) == 0}
	if run.rng.IntN(2) == 0 {
		ch.Horizon = last - min(last, run.rng.Uint64N(40))
	}
	for range run.rng.IntN(6) {
		ch.Erase = append(ch.Erase, last-min(last-1, run.rng.Uint64N(60)))
	}
	going := make(map[uint64]bool)
	for offset := range run.state.events {
		if offset < ch.Horizon {
			going[offset] = true
		}
	}
	for _, offset := range ch.Erase {
		going[offset] = true
	}
	run.mu.Lock()
	run.maybe = going
	run.mu.Unlock()
	mustRemove(run, run.store, ch)
	run.mu.Lock()
	defer run.mu.Unlock()
	run.maybe = nil
	run.state.horizon = max(run.state.horizon, ch.Horizon)
	for offset := range going {
		if id, ok := run.state.events[offset]; ok {
			g := removedID{id: id}
			if !ch.ForgetIDs {
				g.until = run.clock.ms + store.IDsKept.Milliseconds()
			}
			delete(run.state.events, offset)
			run.state.gone[offset] = g
		}
	}
}

// check holds the store against what is known.
func (run *removalRun) check() {
	there := make(map[uint64]string)
	for _, item := range readAll(run, run.store, "t") {
		there[item.Offset] = string(item.Record.ID())
		if g, ok := run.state.gone[item.Offset]; ok || item.Offset < run.state.horizon {
			run.Errorf("the removed event %q is at %d again", g.id, item.Offset)
		}
	}
	for offset, id := range run.state.events {
		if there[offset] != id {
			run.Errorf("the event %q is not at %d; there is %q", id, offset, there[offset])
		}
	}
	for offset, g := range run.state.gone {
		if g.until <= run.clock.ms {
			delete(run.state.gone, offset)
			run.state.gone[offset] = removedID{id: g.id}
			continue
		}
		if a := mustCommit(run, run.store, true, given("t", g.id))[0]; !a.Duplicate || a.Offset != offset {
			run.Fatalf("the late duplicate %q of offset %d: duplicate %v, offset %d", g.id, offset, a.Duplicate, a.Offset)
		}
	}
	checkUsage(run, run.store, "t", run.rng)
	// What the call that was cut short has added is known now.
	for offset, id := range there {
		run.state.events[offset] = id
		run.state.last = max(run.state.last, offset)
	}
}

// finish sweeps all there is.
func (run *removalRun) finish() {
	sweepAll(run, run.store)
	run.clock.pass(pieceWait)
	sweepAll(run, run.store)
	run.clock.pass(store.IDsKept)
	sweepAll(run, run.store)
	checkIndexes(run, run.store)
	if got := keysOf(run, run.store, tagSweep, tagOutdated); got != 0 {
		run.Errorf("%d rows of the sweep are left", got)
	}
	checkUsage(run, run.store, "t", run.rng)
	mustClose(run, run.store)
}
