package bus

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"pgregory.net/rapid"

	"eventhub"
	"eventhub/internal/faultfs"
	"eventhub/internal/testsize"
	"eventhub/store"
	"eventhub/store/pebble"
)

// TestRandomHistoriesOnDisk runs the histories of TestRandomHistories on the
// embedded store, on a file system that shows what a power loss leaves of it. On
// top of what can happen in memory the power can fail, also in the middle of an
// fsync; the model goes on with the image, in which must be: every event that got
// its receipt, no unit in part, of the groups nothing that the model does not
// know, no dead letter twice.
func TestRandomHistoriesOnDisk(t *testing.T) {
	tryHistories(t, testsize.Of(120, 15), newWorldOnDisk)
	redrives.report(t)
	reportExpectations(t)
	t.Logf("%d power losses, %d of them in an fsync; of the units in it %d were there and %d were not",
		losses.all, losses.held, losses.whole, losses.none)
	if losses.all > 500 && min(losses.held, losses.whole, losses.none) == 0 {
		t.Error("the histories did not meet every kind of loss")
	}
}

// losses counts what the histories met, to show that they met it.
var losses struct{ all, held, whole, none int }

// withoutFsync, in the environment, takes the fsync out of all commits.
const withoutFsync = "EVENTHUB_TEST_WITHOUT_FSYNC"

// TestFsyncIsNeeded: the tests of power loss find out when commits are not synced.
func TestFsyncIsNeeded(t *testing.T) {
	for _, test := range []string{"TestRandomHistoriesOnDisk", "TestPowerLossUnderLoad"} {
		cmd := exec.Command(os.Args[0], "-test.run=^"+test+"$", "-rapid.shrinktime=1ms")
		cmd.Env = append(os.Environ(), withoutFsync+"=1")
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "--- FAIL: "+test) {
			t.Errorf("without fsync %s ends with %v; want a failure:\n%s", test, err, out)
		}
	}
}

// disk is the file system below a world's store.
type disk struct {
	mem   *vfs.MemFS
	clock *skewed
	// shared, where not nil, is what the store shares with the copies that other hubs have.
	shared *sharedJournal

	mu   sync.Mutex
	free int           // fsyncs that still pass
	hold chan struct{} // where not nil, later fsyncs of the write-ahead log wait for it
}

func (d *disk) set(hold chan struct{}) { d.setAfter(0, hold) }

// setAfter lets n fsyncs pass before.
func (d *disk) setAfter(n int, hold chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hold, d.free = hold, n
}

func (d *disk) held() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.hold != nil
}

// MaybeError and String make it an errorfs.Injector, which sees every operation.
func (d *disk) MaybeError(op errorfs.Op) error {
	if strings.HasSuffix(op.Path, ".log") && (op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData) {
		d.pass()
	}
	return nil
}

// pass returns when a commit may be durable.
func (d *disk) pass() {
	d.mu.Lock()
	hold := d.hold
	d.free--
	pass := d.free >= 0
	d.mu.Unlock()
	if hold != nil && !pass {
		<-hold
	}
}

func (d *disk) String() string { return "hold up fsyncs" }

// open opens the store on what is there.
func (d *disk) open(t *rapid.T) store.Store {
	if d.shared != nil {
		return d.lead(t)
	}
	s, err := pebble.Open(pebble.Options{
		Dir: "data", FS: faultfs.Wrap(d.mem, d), Logger: slog.New(slog.DiscardHandler), Now: d.clock.now,
		Fatal: func(cause error) { t.Errorf("Fatal(%v)", cause) },
	})
	if err != nil {
		t.Fatal(err)
	}
	return maybeUnsynced(s)
}

func maybeUnsynced(s store.Store) store.Store {
	if os.Getenv(withoutFsync) != "" {
		return unsynced{s}
	}
	return s
}

// unsynced is a store that says OK too early.
type unsynced struct{ store.Store }

func (u unsynced) Commit(ctx context.Context, units []*store.Unit, _ bool) error {
	return u.Store.Commit(ctx, units, false)
}

func newWorldOnDisk(t *rapid.T) *world {
	d := &disk{mem: vfs.NewCrashableMem(), clock: &skewed{}}
	w := newWorld(t, d.open(t), d.clock)
	w.disk = d
	w.steps = append(slices.Clone(w.steps), step{"power loss", 2, (*world).powerLoss}, step{"hold fsyncs", 2, (*world).holdFsyncs})
	return w
}

// reopen closes the store in order and opens it again. The engine is down.
func (w *world) reopen() {
	if err := w.store.Store.Close(); err != nil {
		w.t.Fatalf("Close of the store: %v", err)
	}
	w.store.Store = w.disk.open(w.t)
}

// holdFsyncs makes the fsyncs of commits wait, with all they are to sync written.
func (w *world) holdFsyncs() {
	if w.commits != nil {
		w.release()
		return
	}
	// A group is loaded after the commit under way.
	for _, g := range w.groups {
		if !g.exists {
			continue
		}
		running, err := w.bus.acquire(groupKey{topic: g.topic.name, group: g.name})
		if err == nil {
			err = running.load(context.Background(), nil) // and nothing that reads: reads may be held
			w.bus.release(running)
		}
		if err != nil {
			w.t.Fatal(err)
		}
	}
	w.commits = make(chan struct{})
	// One may pass: the next may be of what follows from it, as the groups of a
	// newborn topic.
	w.disk.setAfter(rapid.IntRange(0, 1).Draw(w.t, "still pass"), w.commits)
}

// powerLoss takes the power away and goes on with what the disk has then, some of
// what was not synced included.
func (w *world) powerLoss() {
	if len(w.seeks)+len(w.joins) > 0 || w.commits != nil && !w.disk.held() {
		w.release()
		w.check()
	}
	losses.all++
	image := w.disk.mem.CrashClone(vfs.CrashCloneCfg{
		UnsyncedDataPercent: rapid.SampledFrom([]int{0, 20, 50, 80, 100}).Draw(w.t, "unsynced"),
		RNG:                 rand.New(rand.NewPCG(rapid.Uint64().Draw(w.t, "image"), 0)),
	})
	if w.disk.shared != nil && rapid.Bool().Draw(w.t, "another hub") {
		image = vfs.NewCrashableMem() // it has nothing but the journal
	}
	reading := w.reads
	w.afterlife()
	w.disk.mem = image
	w.store.Store = w.disk.open(w.t)
	w.checkUnits()
	for _, topic := range w.topics {
		w.due(topic, eventhub.MaxOffset) // moved in the fsync that was held up
	}
	w.checkLogs()
	w.checkMarks()
	w.reads = reading
	letters := w.readLetters()
	w.readMarks()
	w.checkLetters(letters) // as long as w.reads or w.commits says that some may be missing
	w.reads = nil
	w.commits = nil
	for _, g := range w.groups {
		w.checkImage(g)
	}
	w.checkStoredPatterns()
	clear(w.written)
	w.open()
}

// afterlife lets the engine end on the old disk, with the commit that was under
// way and without another one. Nobody sees what it does; but the receipts say
// which units were in that commit.
func (w *world) afterlife() {
	broken := errors.New("the power is gone")
	w.store.meter.set(nil, broken)
	w.store.set(nil)
	w.disk.set(nil)
	for _, hold := range []chan struct{}{w.reads, w.commits} {
		if hold != nil {
			close(hold)
		}
	}
	w.reads = nil
	synctest.Wait()
	if err := w.bus.Close(); err != nil && !errors.Is(err, broken) {
		w.t.Fatalf("Close: %v", err)
	}
	w.awaitRedrives(true)
	w.redriving = nil // what was reported to them is of that disk
	if err := w.store.Store.Close(); err != nil {
		w.t.Fatalf("Close of the store: %v", err)
	}
	w.store.meter.set(nil, nil)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.journal = nil
}

// checkUnits looks for the units that were in the commit under way: each is there
// with all its events or with none, and none without those before it.
func (w *world) checkUnits() {
	if w.commits != nil {
		losses.held++
	}
	lost := false
	for _, p := range w.pending {
		for _, pub := range p.pubs {
			if pub.Err != nil {
				continue // it was not in that commit, or never will be in any
			}
			added, there := 0, 0
			for i, r := range pub.Receipts {
				if !r.Duplicate {
					added++
					there += w.has(pub.Events[i].Topic, r)
				}
			}
			switch {
			case there != 0 && there != added:
				w.t.Fatalf("of %+v there are %d of %d", pub.Receipts, there, added)
			case there != 0 && lost:
				w.t.Fatalf("%+v are there, and units before it are not", pub.Receipts)
			case there != 0:
				losses.whole++
				w.checkHeld(pub.Events, pub.Receipts)
				for i, r := range pub.Receipts {
					w.receipt(pub.Events[i], r)
				}
			case added != 0:
				losses.none++
				lost = true
			}
		}
	}
	w.pending = nil
}

// has returns 1 where the event is in its log, else 0.
func (w *world) has(topic string, r eventhub.Receipt) int {
	var batch store.Batch
	if err := w.store.Store.Read(context.Background(), topic, r.Offset, 1, 0, &batch); err != nil {
		w.t.Fatal(err)
	}
	if len(batch.Items) == 1 && batch.Items[0].Offset == r.Offset && string(batch.Items[0].Record.ID()) == r.ID {
		return 1
	}
	return 0
}

// checkLogs: the topics hold what the model has, and nothing more; dead letters
// that were under way may have come.
func (w *world) checkLogs() {
	for _, topic := range w.topics {
		var batch store.Batch
		if err := w.store.Store.Read(context.Background(), topic.name, 1, 1_000_000, 1<<30, &batch); err != nil {
			w.t.Fatal(err)
		}
		for i, id := range topic.ids {
			if i >= len(batch.Items) || batch.Items[i].Offset != uint64(i+1) || string(batch.Items[i].Record.ID()) != id {
				w.t.Fatalf("the power loss took %s at %d of %s", id, i+1, topic.name)
			}
		}
		if topic.source == nil && len(batch.Items) > len(topic.ids) {
			w.t.Fatalf("%s holds %d events; %d were published", topic.name, len(batch.Items), len(topic.ids))
		}
	}
}

// checkImage holds what the image has of a group against the model, which then
// goes on from there.
func (w *world) checkImage(g *modelGroup) {
	s, err := w.store.Store.Group(context.Background(), g.topic.name, g.name)
	if !g.exists {
		switch {
		case errors.Is(err, store.ErrNotFound):
			g.due = false // the next engine finds its topic
			return
		case err != nil || !g.due || s.Cursor != 0:
			w.t.Fatalf("%s was deleted, or never made, and is there: %+v, %v", g, s, err)
		}
		w.create(modelStart{group: g, modelSettings: w.inherited(g).modelSettings})
	}
	if err != nil {
		w.t.Fatalf("the power loss took %s: %v", g, err)
	}
	s = w.load(g) // not older than what was seen of it
	if high := g.cursor(true, true); s.Epoch != g.epoch || s.Cursor > high || s.Paused != g.paused {
		w.t.Fatalf("after the power loss %s is stored at %+v; it stood at %d, at most at %d, paused %t", g, s, g.epoch, high, g.paused)
	}
	w.restore(g, s.Cursor, true)
}
