package pebble

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"eventhub"
	"eventhub/internal/record"
	"eventhub/internal/testsize"
	"eventhub/store"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/uuid"
)

// crashStores is how many stores the crash tests take crashImages of each.
var crashStores = testsize.Int("crash.stores", 4, 1, "how many stores TestCrashImages takes images of, ten of each")

const (
	crashImages     = 10
	crashCommitters = 4
	crashRound      = 24 // units from one image to the next
)

var crashTopics = []string{"a", "a.b", "b"}

// attempt is one unit that was handed to Commit. The group of its committer gets
// the unit's serial as its epoch in the same unit, so the epoch in an image says
// which units have to be there, whole, and which must have left no trace.
type attempt struct {
	committer int
	serial    uint64
	unit      *store.Unit
	// added are the ids that the unit adds; its other appends are duplicates.
	added []string
	sync  bool
}

// crashRun is a store in use. Images of it are taken as a power loss would leave
// them.
type crashRun struct {
	t     *testing.T
	mem   *vfs.MemFS
	store *Store
	mixed bool // some commits are unsynced

	mu       sync.Mutex
	moved    *sync.Cond
	budget   int // units that may still start before the next image
	stopped  bool
	attempts []*attempt
	returned []*attempt // their Commit returned nil: they were shown
}

func TestCrashImages(t *testing.T)         { testCrashImages(t, false) }
func TestCrashImagesUnsynced(t *testing.T) { testCrashImages(t, true) }

func testCrashImages(t *testing.T, mixed bool) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	for n := range uint64(*crashStores) {
		mem := vfs.NewCrashableMem()
		run := &crashRun{t: t, mem: mem, store: mustOpen(t, onMem(t, mem)), mixed: mixed}
		run.moved = sync.NewCond(&run.mu)
		var wg sync.WaitGroup
		for c := range crashCommitters {
			wg.Go(func() { run.commit(c, rand.New(rand.NewPCG(seed, n<<8|uint64(c)))) })
		}
		for i := range crashImages {
			percent := []int{0, 50, 100}[i%3]
			receipts, image := run.crash(rng, percent)
			run.check(image, receipts, percent)
		}
		run.stop()
		wg.Wait()
		mustClose(t, run.store)
		if t.Failed() {
			t.FailNow()
		}
	}
}

// crash lets the committers work and takes an image in the middle of it. What
// was acknowledged is noted before the image, what was attempted after it.
func (run *crashRun) crash(rng *rand.Rand, percent int) (receipts []*attempt, image *vfs.MemFS) {
	run.mu.Lock()
	run.budget += crashRound
	run.moved.Broadcast()
	for at := run.budget - 1 - rng.IntN(crashRound); run.budget > at; {
		run.moved.Wait()
	}
	receipts = slices.Clone(run.returned)
	run.mu.Unlock()
	return receipts, run.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
}

func (run *crashRun) stop() {
	run.mu.Lock()
	defer run.mu.Unlock()
	run.stopped = true
	run.moved.Broadcast()
}

// start takes from the budget, or waits for it.
func (run *crashRun) start(a *attempt) bool {
	run.mu.Lock()
	defer run.mu.Unlock()
	for run.budget == 0 && !run.stopped {
		run.moved.Wait()
	}
	if run.stopped {
		return false
	}
	run.budget--
	run.attempts = append(run.attempts, a)
	run.moved.Broadcast()
	return true
}

func (run *crashRun) commit(committer int, rng *rand.Rand) {
	var own []string // ids this committer added
	for serial := uint64(1); ; serial++ {
		a := newAttempt(committer, serial, own, rng)
		a.sync = !run.mixed || rng.IntN(3) == 0
		if !run.start(a) {
			return
		}
		if err := run.store.Commit(context.Background(), []*store.Unit{a.unit}, a.sync); err != nil || a.unit.Err != nil {
			run.t.Errorf("Commit: %v, %v", err, a.unit.Err)
			return
		}
		own = append(own, a.added...)
		run.mu.Lock()
		run.returned = append(run.returned, a)
		run.mu.Unlock()
	}
}

func newAttempt(committer int, serial uint64, own []string, rng *rand.Rand) *attempt {
	a := &attempt{committer: committer, serial: serial, unit: &store.Unit{Groups: groupChanges(committer, serial, rng)}}
	topics := make(map[string]string) // by id
	for i := range 1 + rng.IntN(4) {
		e := eventhub.Event{
			ID:      crashID(committer, serial, i, rng),
			Key:     []string{"", "k", "k\x00", "l"}[rng.IntN(4)],
			Payload: fmt.Appendf(nil, "%q", strings.Repeat("x", rng.IntN(3000))),
		}
		isNew := len(own) == 0 || rng.IntN(4) > 0
		if isNew {
			a.added = append(a.added, e.ID)
		} else {
			e.ID = own[rng.IntN(len(own))]
		}
		e.Topic = topicOfID(e.ID)
		for range rng.IntN(3) {
			e.CausedBy = append(e.CausedBy, fmt.Sprint("cause-", rng.IntN(3)))
		}
		if rng.IntN(2) == 0 {
			e.Headers = map[string]string{eventhub.CorrelationHeader: fmt.Sprint(rng.IntN(2))}
		}
		topics[e.ID] = e.Topic
		rec, err := record.Append(nil, &e)
		if err != nil {
			panic(err)
		}
		a.unit.Appends = append(a.unit.Appends, store.Append{
			Topic: e.Topic, ID: e.ID, Key: e.Key, Record: rec,
			CausedBy: e.CausedBy, Correlation: e.Headers[eventhub.CorrelationHeader]})
	}
	a.addDelays(rng)
	return a
}

// groupChanges makes the unit's serial the epoch of its committer's group, and
// rewrites one part and writes another one for good, removes one, resets all or makes
// the group again.
func groupChanges(committer int, serial uint64, rng *rand.Rand) []store.GroupChange {
	value := fmt.Append(nil, serial, strings.Repeat("x", rng.IntN(3000)))
	ch := store.GroupChange{Topic: "a", Group: fmt.Sprint("g", committer), Create: serial == 1,
		State: store.GroupState{Epoch: serial, Paused: serial%2 == 0},
		Reset: serial%5 == 0,
		Parts: []store.GroupPart{{Kind: 1, Value: value}, {Kind: 2, Offset: serial, Value: value}, {Kind: 2, Offset: serial - 2}}}
	if serial%7 != 0 {
		return []store.GroupChange{ch}
	}
	gone := store.GroupChange{Topic: ch.Topic, Group: ch.Group, Delete: true, State: ch.State}
	ch.Create = true
	return []store.GroupChange{gone, ch}
}

func topicOfID(id string) string {
	if u, err := uuid.Parse(id); err == nil {
		return crashTopics[u[15]]
	}
	return strings.SplitN(id, "-", 4)[3]
}

// crashID returns a new id: a UUID or text. The topic is part of it, so that a duplicate meets its
// first.
func crashID(committer int, serial uint64, i int, rng *rand.Rand) string {
	topic := rng.IntN(len(crashTopics))
	if rng.IntN(2) == 0 {
		return fmt.Sprintf("%08x-%04x-7%03x-8000-%012x", serial, committer, i, topic)
	}
	return fmt.Sprintf("%d-%d-%d-%s", committer, serial, i, crashTopics[topic])
}

// check opens the image and holds it against what is known of the run.
func (run *crashRun) check(image *vfs.MemFS, receipts []*attempt, percent int) {
	t := run.t
	s, err := Open(onMem(t, image))
	if err != nil {
		t.Errorf("the image of %d %% does not open: %v", percent, err)
		return
	}
	defer mustClose(t, s)
	run.mu.Lock()
	attempts := slices.Clone(run.attempts)
	run.mu.Unlock()

	there := make(map[string]store.Item) // by id
	for _, topic := range crashTopics {
		for _, item := range readAll(t, s, topic) {
			there[string(item.Record.ID())] = item
		}
	}
	checkReceipts(t, s, there, receipts)
	checkWhole(t, s, there, attempts)
	checkParts(t, s, attempts)
	checkDelays(t, s, attempts, receipts)
	checkIndexes(t, s)
	checkNewOffsets(t, s, receipts)
}

// checkReceipts: what was acknowledged after an fsync is there, as it was. What
// was only shown may be gone, and is not replaced by something else.
func checkReceipts(t *testing.T, s *Store, there map[string]store.Item, receipts []*attempt) {
	t.Helper()
	durable := make(map[int]uint64) // last synced serial by committer
	for _, r := range receipts {
		if r.sync {
			durable[r.committer] = max(durable[r.committer], r.serial)
		}
	}
	for _, r := range receipts {
		for _, a := range r.unit.Appends {
			item, ok := there[a.ID]
			if !ok && r.serial <= durable[r.committer] {
				t.Errorf("event %s, acknowledged at offset %d of %s, is lost", a.ID, a.Offset, a.Topic)
			}
			if !ok {
				continue
			}
			if item.Offset != a.Offset || !a.Duplicate && !bytes.Equal(item.Record, a.Record) {
				t.Errorf("event %s, acknowledged at offset %d, is at %d; it reads\n%s\nand was\n%s", a.ID, a.Offset, item.Offset, item.Record, a.Record)
			}
			if offset, err := s.Find(context.Background(), a.Topic, a.ID); err != nil || offset != a.Offset {
				t.Errorf("Find(%s) = %d, %v; want %d", a.ID, offset, err, a.Offset)
			}
		}
	}
}

// checkWhole: each unit is there with all its parts or with none, and a
// committer's units are lost from the end only.
func checkWhole(t *testing.T, s *Store, there map[string]store.Item, attempts []*attempt) {
	t.Helper()
	want := 0
	for _, a := range attempts {
		g := a.unit.Groups[0]
		state, err := s.Group(context.Background(), g.Topic, g.Group)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			t.Fatal(err)
		}
		for _, id := range a.added {
			if _, ok := there[id]; ok != (a.serial <= state.Epoch) {
				t.Errorf("unit %d of committer %d is torn: the group says that %d were applied, event %s is there: %v",
					a.serial, a.committer, state.Epoch, id, ok)
			}
		}
		if a.serial <= state.Epoch {
			want += len(a.added)
		}
	}
	if len(there) != want {
		t.Errorf("%d events are there; the units that were applied had %d", len(there), want)
	}
}

// checkParts: a group's parts are those that the units up to its epoch left,
// neither older nor newer ones.
func checkParts(t *testing.T, s *Store, attempts []*attempt) {
	t.Helper()
	type name struct {
		kind   byte
		offset uint64
	}
	for committer := range crashCommitters {
		group := fmt.Sprint("g", committer)
		state, err := s.Group(context.Background(), "a", group)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			t.Fatal(err)
		}
		want := make(map[name]string)
		for _, a := range attempts { // a committer's own are in order
			if a.committer != committer || a.serial > state.Epoch {
				continue
			}
			for _, ch := range a.unit.Groups {
				if ch.Reset || ch.Delete {
					clear(want)
				}
				for _, p := range ch.Parts {
					if want[name{p.Kind, p.Offset}] = string(p.Value); len(p.Value) == 0 {
						delete(want, name{p.Kind, p.Offset})
					}
				}
			}
		}
		if state.Paused != (state.Epoch > 0 && state.Epoch%2 == 0) {
			t.Errorf("group %s at epoch %d: paused is %v", group, state.Epoch, state.Paused)
		}
		parts, err := s.GroupParts(context.Background(), "a", group)
		if err != nil {
			t.Errorf("GroupParts: %v", err)
		}
		for _, p := range parts {
			at := name{p.Kind, p.Offset}
			if value, ok := want[at]; !ok || value != string(p.Value) {
				t.Errorf("group %s at epoch %d: part %v is %.20q; want %.20q, %v", group, state.Epoch, at, p.Value, value, ok)
			}
			delete(want, at)
		}
		for at := range want {
			t.Errorf("group %s at epoch %d lacks part %v", group, state.Epoch, at)
		}
	}
}

// checkNewOffsets publishes more and looks that no offset that was shown names
// another event now.
func checkNewOffsets(t *testing.T, s *Store, receipts []*attempt) {
	t.Helper()
	for _, topic := range crashTopics {
		before := readAll(t, s, topic)
		var shown uint64
		for _, r := range receipts {
			for _, a := range r.unit.Appends {
				if a.Topic == topic {
					shown = max(shown, a.Offset)
				}
			}
		}
		more := mustCommit(t, s, true, given(topic, "new-1"), given(topic, "new-2"))
		if more[0].Offset <= shown || more[1].Offset <= more[0].Offset {
			t.Errorf("new events of %s got offsets %d, %d; %d was shown before", topic, more[0].Offset, more[1].Offset, shown)
		}
		after := readAll(t, s, topic)
		if len(after) != len(before)+2 {
			t.Errorf("%s had %d events and 2 more make %d", topic, len(before), len(after))
		}
		for i := range before {
			if before[i].Offset != after[i].Offset || !bytes.Equal(before[i].Record, after[i].Record) {
				t.Errorf("event %d of %s changed", i, topic)
			}
		}
	}
}
