package pebble

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"eventhub"
	"eventhub/internal/faultfs"
	"eventhub/internal/record"
	"eventhub/internal/testsize"
	"eventhub/store"
	"eventhub/store/storetest"

	pdb "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// wholeImages is how many power losses TestCrashImagesOfEverything goes through.
var wholeImages = testsize.Int("whole.images", 120, 12, "how many images TestCrashImagesOfEverything takes")

// wholeRun is a topic whose events are published, again too, trimmed, compacted, erased and
// counted, with groups and settings, all of it in the same units and some of these at the same
// time, and in the middle of what the store does besides, until an image is taken in front of one write.
type wholeRun struct {
	*testing.T
	rng    *rand.Rand
	mem    *vfs.MemFS
	store  *Store
	clock  testClock
	state  *wholeState // after all that was built
	serial int

	mu sync.Mutex // Pebble writes from several goroutines
	// may are the states that the store may have after a crash now, in the order of units: the
	// first is that of what was acknowledged.
	may       []*wholeState
	given     uint64 // the highest offset that was shown
	countdown int
	loss      vfs.CrashCloneCfg
	image     *vfs.MemFS
	imaged    []*wholeState
	shown     uint64 // given, when the image was taken
	isAlone   bool   // what the store does besides runs on the test's goroutine
	met       *wholeMet
}

// wholeMet counts what the images met, to show that they met it.
type wholeMet struct {
	images, open, part, perhaps, late, forgotten, trims, marks, drops, refused int
	inside                                                                     int // commits in the middle of a step
	tables, queued, left                                                       int // of the key index
}

// TestCrashImagesOfEverything: a power loss in front of any write, whatever is under way, leaves
// what the units say up to one of them, whole: events, horizon and marks, groups with their parts,
// settings. No offset is given twice, no value of a key comes back that was replaced, ended or
// erased, nothing is missing that a read does not account for, and a late duplicate is one. When
// all work is done, nothing of it is left over.
func TestCrashImagesOfEverything(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	const perRun = 10
	var met wholeMet
	for n := range uint64(*wholeImages) / perRun {
		run := &wholeRun{T: t, rng: rand.New(rand.NewPCG(seed, n)), mem: vfs.NewCrashableMem(), state: newWholeState(), met: &met}
		run.open()
		for range perRun {
			run.lose()
			run.check()
			if t.Failed() {
				t.Fatalf("run %d", n)
			}
		}
		run.finish()
		if t.Failed() {
			t.Fatalf("run %d", n)
		}
	}
	t.Logf("%+v", met)
	if met.images >= 100 && min(met.open, met.part, met.perhaps, met.late, met.forgotten, met.trims, met.marks, met.drops, met.refused, met.tables, met.queued, met.left, met.inside) == 0 {
		t.Error("the images did not meet all of it")
	}
}

func (run *wholeRun) open() {
	o := onMem(run, faultfs.Wrap(run.mem, errorfs.InjectorFunc(run.look)))
	o.Now = run.clock.now
	o.opened, o.sweeping = run.interrupt, func(*pdb.Batch) { run.interrupt() }
	run.store = mustOpen(run, o)
	run.store.sweepRange, run.store.segmentBytes = 2<<10, 1<<10
	run.store.compacting, run.store.indexSizes = someCompactSizes(run.rng), someIndexSizes(run.rng)
	// Which offsets a store gives after a crash is its business: from here on they are in a row.
	a := mustCommit(run, run.store, true, given("t", run.newID()))[0]
	run.give(a)
	run.state = run.state.clone()
	run.state.last, run.state.events[a.Offset] = a.Offset, wholeEvent{id: a.ID}
	run.acknowledge(run.state)
}

func (run *wholeRun) newID() string {
	run.serial++
	return storetest.GivenID("e", run.serial)
}

// give notes an offset, which was not given before.
func (run *wholeRun) give(a store.Append) {
	run.mu.Lock()
	defer run.mu.Unlock()
	if a.Duplicate || a.Offset <= run.given {
		run.Fatalf("%q got offset %d after %d, duplicate %v", a.ID, a.Offset, run.given, a.Duplicate)
	}
	run.given = a.Offset
}

// acknowledge says that the store is at a state at least, which is one that it may have.
func (run *wholeRun) acknowledge(st *wholeState) {
	run.mu.Lock()
	defer run.mu.Unlock()
	run.may = run.may[max(0, slices.Index(run.may, st)):]
	if len(run.may) == 0 {
		run.may = []*wholeState{st}
	}
}

// look takes the image.
func (run *wholeRun) look(op errorfs.Op) error {
	if op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
		return nil
	}
	run.mu.Lock()
	defer run.mu.Unlock()
	if run.countdown--; run.countdown == 0 {
		run.image, run.imaged, run.shown = run.mem.CrashClone(run.loss), slices.Clone(run.may), run.given
	}
	return nil
}

// lose works until an image was taken, and goes on with that.
func (run *wholeRun) lose() {
	run.mu.Lock()
	run.countdown, run.image = 1+run.rng.IntN(120), nil
	run.loss = vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 50, 100}[run.rng.IntN(3)], RNG: rand.New(rand.NewPCG(run.rng.Uint64(), 0))}
	run.mu.Unlock()
	for {
		run.mu.Lock()
		done := run.image != nil
		run.mu.Unlock()
		if done {
			break
		}
		run.step()
	}
	m := run.store.db.Metrics()
	run.met.tables += int(m.Ingest.Count)
	run.met.queued += int(m.Flush.AsIngestCount)
	mustClose(run, run.store)
	run.mem = run.image
	run.met.left += len(keyTablesOn(run, run.mem))
	run.reopen()
}

// reopen finds out which of the states the image has.
func (run *wholeRun) reopen() {
	o := onMem(run, run.mem)
	o.Now = run.clock.now
	s := mustOpen(run, o)
	var differences []string
	at := -1
	for i, st := range run.imaged {
		what := st.differs(s, run.rng)
		if what == "" {
			at = i
			break
		}
		differences = append(differences, what)
	}
	mustClose(run, s)
	if left := keyTablesOn(run, run.mem); len(left) > 0 {
		run.Errorf("Open leaves %q", left)
	}
	run.met.images++
	if len(run.imaged) > 1 {
		run.met.open++
	}
	if at < 0 {
		run.Fatalf("the image has none of the %d states that there may be: %q", len(run.imaged), differences)
	}
	if at > 0 {
		run.met.part++
	}
	run.state = run.imaged[at]
	run.met.perhaps += len(run.state.perhaps)
	run.may, run.given = nil, run.shown
	run.open()
}

// interrupt commits in the middle of a step of what the store does besides: when that has opened its iterators,
// and before it writes.
func (run *wholeRun) interrupt() {
	if !run.isAlone || run.rng.IntN(3) > 0 {
		return
	}
	run.isAlone = false
	run.commit()
	run.isAlone = true
	run.met.inside++
}

func (run *wholeRun) step() {
	switch k := run.rng.IntN(13); {
	case k == 12:
		run.drop()
	case k < 4:
		run.commit()
	case k < 6:
		run.overlap()
	case k < 9:
		run.isAlone = true
		run.work()
		run.isAlone = false
	case k < 10:
		run.retain()
	default:
		run.clock.ms += []int64{0, 1000, pieceWait.Milliseconds(), store.IDsKept.Milliseconds() / 3}[run.rng.IntN(4)]
		run.isAlone = true
		mustSweep(run, run.store)
		run.isAlone = false
	}
}

// build draws units and the states after each of them.
func (run *wholeRun) build(n int) (units []*store.Unit) {
	for range n {
		next := run.state.clone()
		before := len(next.gone)
		u := next.drawUnit(run.rng, run.clock.ms, run.newID)
		if len(next.gone) > before {
			run.met.trims++
		}
		if next.compacted > run.state.compacted {
			run.met.marks++
		}
		units = append(units, u)
		run.state = next
		run.mu.Lock()
		run.may = append(run.may, next)
		run.mu.Unlock()
	}
	return units
}

// checkUnits holds what a commit answered against the state after it.
func (run *wholeRun) checkUnits(units []*store.Unit, st *wholeState) {
	for _, u := range units {
		if u.Err != nil {
			run.Fatalf("a unit was refused: %v", u.Err)
		}
		for _, a := range u.Appends {
			if a.Duplicate {
				if g, ok := st.gone[a.ID]; !ok || g.offset != a.Offset {
					run.Fatalf("%s is a duplicate of offset %d; it was at %d, %v", a.ID, a.Offset, g.offset, ok)
				}
				run.met.late++
				continue
			}
			run.give(a)
			e, g := st.events[a.Offset], st.gone[a.ID]
			if e.id != a.ID && st.perhaps[a.Offset].id != a.ID && g.offset != a.Offset {
				run.Fatalf("%s got offset %d; want %q there; it was %+v, and it is %d", a.ID, a.Offset, e.id, g, run.clock.ms)
			}
		}
	}
}

func (run *wholeRun) commit() {
	units := run.build(1 + run.rng.IntN(3))
	st := run.state
	isSynced := run.rng.IntN(4) > 0
	if err := run.store.Commit(context.Background(), units, isSynced); err != nil {
		run.Fatal(err)
	}
	if isSynced {
		run.acknowledge(st) // with those before it
	}
	run.checkUnits(units, st)
}

// overlap has two commits under way, and others do their work meanwhile.
func (run *wholeRun) overlap() {
	first := run.build(1 + run.rng.IntN(2))
	afterFirst := run.state
	wait, err := run.store.Start(context.Background(), first)
	if err != nil {
		run.Fatal(err)
	}
	second := run.build(1 + run.rng.IntN(2))
	afterSecond := run.state
	waitToo, err := run.store.Start(context.Background(), second)
	if err != nil {
		run.Fatal(err)
	}
	var others sync.WaitGroup
	others.Go(run.work)
	for i, w := range []func() error{wait, waitToo} {
		if err := w(); err != nil {
			run.Fatal(err)
		}
		run.acknowledge([]*wholeState{afterFirst, afterSecond}[i])
	}
	others.Wait()
	run.checkUnits(first, afterSecond)
	run.checkUnits(second, afterSecond)
}

// work is that of the store beside commits.
func (run *wholeRun) work() {
	if _, _, err := run.store.IndexKeys(context.Background(), "t", nil); err != nil {
		run.Error(err)
	}
	if _, _, err := run.store.Compact(context.Background(), "t"); err != nil && !errors.Is(err, store.ErrNotIndexed) {
		run.Error(err)
	}
	if _, err := run.store.Sweep(context.Background()); err != nil {
		run.Error(err)
	}
}

// drop drops the index, unless a pass is under way: then it does some of that.
func (run *wholeRun) drop() {
	st := run.state.clone()
	ch := store.TopicChange{Topic: "t", Index: store.DropIndex}
	st.change(ch, run.clock.ms)
	run.mu.Lock()
	run.may = append(run.may, st)
	run.mu.Unlock()
	u := &store.Unit{Topics: []store.TopicChange{ch}}
	if err := run.store.Commit(context.Background(), []*store.Unit{u}, true); err != nil {
		run.Fatal(err)
	}
	switch {
	case u.Err == nil:
		run.met.drops++
		run.state = st
		run.acknowledge(st)
	case errors.Is(u.Err, store.ErrCompacting):
		run.met.refused++
		run.mu.Lock()
		run.may = run.may[:len(run.may)-1]
		run.mu.Unlock()
		run.work()
	default:
		run.Fatal(u.Err)
	}
}

// retain keeps so many events, as retention does.
func (run *wholeRun) retain() {
	all, _ := mustMeasure(run, run.store, "t", run.state.horizon)
	keep := 20 + run.rng.Uint64N(80)
	if all.Events <= keep {
		return
	}
	_, next, _, err := run.store.Measure(context.Background(), "t", run.state.horizon, store.Usage{Events: all.Events - keep})
	if err != nil {
		run.Fatal(err)
	}
	st := run.state.clone()
	ch := store.TopicChange{Topic: "t", Horizon: next}
	st.change(ch, run.clock.ms)
	run.state = st
	run.mu.Lock()
	run.may = append(run.may, st)
	run.mu.Unlock()
	mustRemove(run, run.store, ch)
	run.acknowledge(st)
}

// check looks at what reads do not show: late duplicates, and how much there is.
func (run *wholeRun) check() {
	asked := 0
	for id, g := range run.state.gone {
		if asked++; asked > 12 {
			break
		}
		a := mustCommit(run, run.store, true, given("t", id))[0]
		switch isKnown := a.Duplicate && a.Offset == g.offset; {
		case isKnown:
		case g.until > run.clock.ms:
			run.Fatalf("the late duplicate %q of offset %d: duplicate %v, offset %d", id, g.offset, a.Duplicate, a.Offset)
		default:
			run.give(a)
			run.met.forgotten++
			run.state = run.state.clone()
			run.state.again(id, a.Offset)
		}
	}
	run.state = run.state.clone()
	maps.DeleteFunc(run.state.gone, func(_ string, g wholeGone) bool { return g.until <= run.clock.ms && run.rng.IntN(4) > 0 })
	run.mu.Lock()
	run.may = []*wholeState{run.state}
	run.mu.Unlock()
	checkUsage(run, run.store, "t", run.rng)
	if what := run.state.differs(run.store, run.rng); what != "" {
		run.Error(what)
	}
}

// finish does all the work there is, and looks at what is left.
func (run *wholeRun) finish() {
	if !run.state.isIndexed {
		// Those entries that are there may be of no index.
		if got := keysOf(run, run.store, tagKey, tagKeys); got != 0 {
			run.Errorf("%d keys of an index are there; the topic has none", got)
		}
		run.state.isIndexed = true
	}
	mustIndex(run, run.store, "t")
	for done := false; !done; {
		var err error
		if _, done, err = run.store.Compact(context.Background(), "t"); err != nil {
			run.Fatal(err)
		}
	}
	for range 3 {
		sweepAll(run, run.store)
		run.clock.pass(pieceWait)
	}
	run.clock.pass(store.IDsKept)
	sweepAll(run, run.store)
	if what := run.state.differs(run.store, run.rng); what != "" {
		run.Error(what)
	}
	for _, item := range readAll(run, run.store, "t") {
		if e, ok := run.state.perhaps[item.Offset]; ok && !e.bare {
			run.Errorf("offset %d, %+v, is left; the marks are %d and %d", item.Offset, e, run.state.compacted, run.state.ended)
		}
	}
	checkIndexes(run, run.store)
	checkUsage(run, run.store, "t", run.rng)
	if got := keysOf(run, run.store, tagSweep, tagOutdated); got != 0 {
		run.Errorf("%d rows of the sweep are left", got)
	}
	mustClose(run, run.store)
}

// keyedEvent is an append of an event with a cause and a correlation.
func keyedEvent(id, key, payload string) store.Append {
	e := eventhub.Event{Topic: "t", ID: id, Key: key, Payload: []byte(payload), CausedBy: []string{"cause"},
		Headers: map[string]string{eventhub.CorrelationHeader: "corr"}}
	encoded, err := record.Append(nil, &e)
	if err != nil {
		panic(err)
	}
	return store.Append{Topic: "t", ID: id, Key: key, CausedBy: e.CausedBy, Correlation: "corr", Record: encoded}
}
