package pebble

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"eventhub/internal/faultfs"
	"eventhub/internal/record/layout"
	"eventhub/internal/testsize"
	"eventhub/store"

	pdb "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// keyTablesOn returns the tables of the key index that Pebble does not know.
func keyTablesOn(t testing.TB, fsys vfs.FS) (names []string) {
	t.Helper()
	all, err := fsys.List("data")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		if isKeyTable(name) {
			names = append(names, name)
		}
	}
	return names
}

// byTables has steps write tables of some keys each.
func byTables(s *Store) {
	s.indexSizes.tables, s.indexSizes.table, s.indexSizes.keys = 1, 60, 20
	s.mostMemTables = 1 << 10
}

// publishKeyed publishes so many events with one of three keys.
func publishKeyed(t testing.TB, s *Store, n int) {
	t.Helper()
	for i := range n {
		a := keyedEvent(layout.IDRoom, fmt.Sprint("k", i%3), `1`)
		a.ID, a.NewID = "", true
		mustCommit(t, s, true, a)
	}
}

// startIndex begins the index of the topic t.
func startIndex(t testing.TB, s *Store) {
	t.Helper()
	mustRemove(t, s, store.TopicChange{Topic: "t", Index: store.StartIndex})
}

// TestIndexIsMadeOfTables: a step with many entries has Pebble take tables, also while a memtable has entries
// between theirs, and nothing of them is left beside Pebble.
func TestIndexIsMadeOfTables(t *testing.T) {
	mem := vfs.NewMem()
	s := mustOpen(t, onMem(t, mem))
	byTables(s)
	publishKeyed(t, s, 50)
	startIndex(t, s)
	publishKeyed(t, s, 5)
	mustIndex(t, s, "t")
	checkIndexes(t, s)
	if m := s.db.Metrics(); m.Ingest.Count != 3 {
		t.Errorf("tables were ingested %d times; want one time for each of 3 steps", m.Ingest.Count)
	}
	if left := keyTablesOn(t, mem); len(left) > 0 {
		t.Errorf("%q are left", left)
	}
	mustClose(t, s)
	s = mustOpen(t, onMem(t, mem))
	checkIndexes(t, s)
	mustClose(t, s)
}

// TestIndexIsMadeOfBatches: few entries, and those of a step at which Pebble would have commits wait, go through
// the log.
func TestIndexIsMadeOfBatches(t *testing.T) {
	for name, set := range map[string]func(*Store){
		"few":               func(s *Store) { s.indexSizes.tables = 51 },
		"memtables wait":    func(s *Store) { s.mostMemTables = 1 },
		"much is in Pebble": func(s *Store) { s.mostSublevels = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			s := mustOpen(t, onMem(t, vfs.NewMem()))
			defer mustClose(t, s)
			s.indexSizes.tables = 1
			mostSublevels := s.mostSublevels
			set(s)
			publishKeyed(t, s, 50)
			mustIndex(t, s, "t")
			s.mostSublevels = mostSublevels // Close reads it
			checkIndexes(t, s)
			if m := s.db.Metrics(); m.Ingest.Count != 0 {
				t.Errorf("tables were ingested %d times", m.Ingest.Count)
			}
		})
	}
}

// TestDropBesideTables: an index that is dropped, or dropped and begun again, or whose topic is deleted, while a step
// makes tables, gets none of them.
func TestDropBesideTables(t *testing.T) {
	change := func(s *Store, changes ...store.IndexChange) error {
		var err error
		for _, ch := range changes {
			u := &store.Unit{Topics: []store.TopicChange{{Topic: "t", Index: ch}}}
			err = errors.Join(err, s.Commit(context.Background(), []*store.Unit{u}, true), u.Err)
		}
		return err
	}
	for name, do := range map[string]func(*Store) error{
		"dropped":     func(s *Store) error { return change(s, store.DropIndex) },
		"begun again": func(s *Store) error { return change(s, store.DropIndex, store.StartIndex) },
		"deleted":     func(s *Store) error { return s.DeleteTopic(context.Background(), "t") },
	} {
		t.Run(name, func(t *testing.T) {
			mem := vfs.NewMem()
			o := onMem(t, mem)
			var hook func()
			o.sweeping = func(*pdb.Batch) {
				if hook != nil {
					hook()
				}
			}
			s := mustOpen(t, o)
			defer mustClose(t, s)
			byTables(s)
			publishKeyed(t, s, 50)
			startIndex(t, s)
			called := 0
			hook = func() {
				if called++; called == 1 {
					if made := keyTablesOn(t, mem); len(made) < 2 {
						t.Errorf("the tables %q are made", made)
					}
					if err := do(s); err != nil {
						t.Error(err)
					}
				}
			}
			if _, done, err := s.IndexKeys(context.Background(), "t", nil); !done || err != nil {
				t.Errorf("IndexKeys: %v, %v", done, err)
			}
			if called != 1 {
				t.Errorf("the step has written %d times", called)
			}
			if got := keysOf(t, s, tagKey); got != 0 {
				t.Errorf("%d entries are there", got)
			}
			if left := keyTablesOn(t, mem); len(left) > 0 {
				t.Errorf("%q are left", left)
			}
			if name == "begun again" {
				mustIndex(t, s, "t")
				checkIndexes(t, s)
			}
		})
	}
}

// TestIndexOnAFullDisk: where tables can not be written a step fails and leaves nothing; commits go on, and so does
// the index when there is room again.
func TestIndexOnAFullDisk(t *testing.T) {
	for _, kind := range []errorfs.OpKind{errorfs.OpCreate, errorfs.OpFileWrite, errorfs.OpFileSync, errorfs.OpLink} {
		t.Run(fmt.Sprint(kind), func(t *testing.T) {
			mem := vfs.NewMem()
			fault := &failing{match: func(op errorfs.Op) bool {
				isCopy := kind == errorfs.OpLink && op.Kind == errorfs.OpCreate && isTable(op.Path) && !isKeyTable(mem.PathBase(op.Path))
				return isCopy || op.Kind == kind && isKeyTable(mem.PathBase(op.Path))
			}}
			s := mustOpen(t, onMem(t, faultfs.Wrap(mem, fault)))
			defer mustClose(t, s)
			byTables(s)
			publishKeyed(t, s, 50)
			startIndex(t, s)
			fault.on.Store(true)
			for range 2 {
				if _, done, err := s.IndexKeys(context.Background(), "t", nil); done || !errors.Is(err, errorfs.ErrInjected) {
					t.Errorf("IndexKeys: %v, %v", done, err)
				}
				if left := keyTablesOn(t, mem); len(left) > 0 {
					t.Errorf("%q are left", left)
				}
			}
			publishKeyed(t, s, 3)
			fault.on.Store(false)
			mustIndex(t, s, "t")
			checkIndexes(t, s)
		})
	}
}

// TestIndexWriteErrors fails each write of the building of an index by tables in turn: of the tables, their
// links, the log and the manifest that name them, flushes beside them. What the store says of it is true,
// and both it, if it goes on, and a power loss after that leave an index that is built to its end.
func TestIndexWriteErrors(t *testing.T) {
	stride := int64(testsize.Of(4, 15))
	broke, went, k := 0, 0, 1+rand.Int64N(stride)
	t.Logf("write %d and every %d-th after it", k, stride)
	for ; ; k += stride {
		mem := vfs.NewCrashableMem()
		fault := &kthWrite{k: k}
		var on atomic.Bool
		o := onMem(t, faultfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if !on.Load() {
				return nil
			}
			return fault.MaybeError(op)
		})))
		o.Fatal = func(error) {}
		s := mustOpen(t, o)
		byTables(s)
		publishKeyed(t, s, 50)
		startIndex(t, s)
		on.Store(true)
		for range 3 {
			u := &store.Unit{Appends: []store.Append{keyedEvent(layout.IDRoom, "k1", `1`)}}
			u.Appends[0].ID, u.Appends[0].NewID = "", true
			committed := s.Commit(context.Background(), []*store.Unit{u}, true)
			_, _, err := s.IndexKeys(context.Background(), "t", nil)
			if isBroken := s.faults.err() != nil; isBroken && !errors.Is(err, store.ErrBroken) || !isBroken && committed != nil {
				t.Errorf("write %d: Commit %v, IndexKeys %v; the store is broken: %v", k, committed, err, isBroken)
			}
		}
		fired := fault.fired.Load()
		on.Store(false)
		if s.faults.err() == nil {
			went++
			mustIndex(t, s, "t")
			checkIndexes(t, s)
			if left := keyTablesOn(t, mem); len(left) > 0 && (fired == nil || fired.Kind != errorfs.OpRemove) {
				t.Errorf("write %d, %+v: %q are left", k, fired, left)
			}
		} else {
			broke++
		}
		image := mem.CrashClone(vfs.CrashCloneCfg{})
		_ = s.Close() // what it says is that of TestWriteErrorSweep
		for _, fsys := range []vfs.FS{image, mem} {
			again := mustOpen(t, onMem(t, fsys))
			byTables(again)
			if left := keyTablesOn(t, fsys); len(left) > 0 {
				t.Errorf("write %d, %+v: Open leaves %q", k, fired, left)
			}
			mustIndex(t, again, "t")
			checkIndexes(t, again)
			mustClose(t, again)
		}
		if fired == nil || t.Failed() {
			break
		}
	}
	if t.Logf("%d writes; %d failures broke the store, %d did not", k, broke, went-1); broke == 0 || went < 2 {
		t.Error("too few to show anything")
	}
}

// TestOpenLeavesOtherTables: what Open removes are tables that a step has made, and no others.
func TestOpenLeavesOtherTables(t *testing.T) {
	mem := vfs.NewMem()
	s := mustOpen(t, onMem(t, mem))
	publishKeyed(t, s, 5)
	mustClose(t, s)
	writeFile(t, mem, "data/keys-7.sst", []byte("cut short"))
	s = mustOpen(t, onMem(t, mem))
	defer mustClose(t, s)
	if _, err := mem.Stat("data/keys-7.sst"); err == nil {
		t.Error("the table of a step is still there")
	}
	// The others are there, or Pebble has merged them meanwhile.
	if got := len(readAll(t, s, "t")); got != 5 {
		t.Errorf("%d events are there", got)
	}
}

// TestStepGivesWay: a step ends early where a sweep waits for its end, and not where none does.
func TestStepGivesWay(t *testing.T) {
	for _, waits := range []bool{false, true} {
		s := mustOpen(t, onMem(t, vfs.NewMem()))
		publishKeyed(t, s, 50)
		startIndex(t, s)
		s.indexSizes.least = 10
		if waits {
			s.sweeper.stepping.waiting.Add(1)
		}
		p, done, err := s.IndexKeys(context.Background(), "t", nil)
		if want := map[bool]uint64{false: 50, true: 10}[waits]; p.Done != want || done == waits || err != nil {
			t.Errorf("somebody waits, %v: %d of %d are done, %v, %v; want %d", waits, p.Done, p.Total, done, err, want)
		}
		s.sweeper.stepping.waiting.Store(0)
		mustIndex(t, s, "t")
		checkIndexes(t, s)
		mustClose(t, s)
	}
}

// looks is after how many events a step pauses in the tests of pauses.
const looks = 256

// TestStepPauses: a step calls pause while it reads and while it writes, tables or batches, unless a sweep waits for its end; one that is
// given up in a pause says so, and does nothing more.
func TestStepPauses(t *testing.T) {
	for _, tables := range []bool{false, true} {
		s := mustOpen(t, onMem(t, vfs.NewMem()))
		publishKeyed(t, s, 2*looks+1)
		startIndex(t, s)
		s.indexSizes.looks, s.indexSizes.batch = looks, looks
		if s.indexSizes.tables = 1 << 30; tables {
			s.indexSizes.tables = 1
		}
		ctx, giveUp := context.WithCancel(context.Background())
		if _, done, err := s.IndexKeys(ctx, "t", func(context.Context, store.IndexProgress) bool { giveUp(); return false }); done || !errors.Is(err, context.Canceled) {
			t.Errorf("a step that was given up: %v, %v", done, err)
		}
		for _, waits := range []bool{true, false} {
			if s.sweeper.stepping.waiting.Store(0); waits {
				s.sweeper.stepping.waiting.Store(1)
			}
			paused := 0
			_, _, err := s.IndexKeys(context.Background(), "t", func(context.Context, store.IndexProgress) bool { paused++; return false })
			if err != nil || (paused > 0) == waits || !waits && paused < 3 {
				t.Errorf("tables %v, somebody waits %v: %d pauses, %v", tables, waits, paused, err)
			}
			if waits {
				s.sweeper.stepping.waiting.Store(0)
				mustRemove(t, s, store.TopicChange{Topic: "t", Index: store.DropIndex})
				startIndex(t, s)
			}
		}
		mustIndex(t, s, "t")
		checkIndexes(t, s)
		mustClose(t, s)
	}
}

// TestStepEndsInAPause: a step that is told so in a pause reads no more, writes what it has, and goes on there the next time. It says in each pause
// how far it has read.
func TestStepEndsInAPause(t *testing.T) {
	s := mustOpen(t, onMem(t, vfs.NewMem()))
	publishKeyed(t, s, 4*looks)
	startIndex(t, s)
	s.indexSizes.looks = looks
	s.indexSizes.least = 2 * looks
	var last store.IndexProgress
	p, done, err := s.IndexKeys(context.Background(), "t", func(_ context.Context, p store.IndexProgress) bool {
		if p.Total != 4*looks || p.Done < last.Done || p.Done == 0 {
			t.Errorf("a pause at %+v after %+v", p, last)
		}
		last = p
		return true
	})
	if err != nil || done || p.Done != 2*looks {
		t.Errorf("a step that was ended: %+v, %v, %v; want %d", p, done, err, 2*looks)
	}
	mustIndex(t, s, "t")
	checkIndexes(t, s)
	mustClose(t, s)
}

// TestPausesHoldNoTables: a step that pauses for long does not keep on the disk what Pebble has replaced meanwhile.
func TestPausesHoldNoTables(t *testing.T) {
	s := mustOpen(t, onMem(t, vfs.NewMem()))
	for range 2 { // tables that Pebble merges
		publishKeyed(t, s, 4*looks)
		if err := s.db.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	startIndex(t, s)
	s.indexSizes.looks = looks
	s.indexSizes.held = 1 // a nanosecond
	held := func() int64 { return s.db.Metrics().Table.ZombieCount }
	paused := 0
	_, _, err := s.IndexKeys(context.Background(), "t", func(ctx context.Context, _ store.IndexProgress) bool {
		if paused++; paused == 1 {
			if err := errors.Join(s.db.Flush(), s.db.Compact(ctx, []byte{0}, []byte{0xff}, false)); err != nil {
				t.Error(err)
			}
			if held() == 0 {
				t.Error("the iterator of the step holds nothing")
			}
		} else if n := held(); n > 0 {
			t.Errorf("pause %d: %d tables are held that were replaced", paused, n)
		}
		return false
	})
	if err != nil || paused < 3 {
		t.Errorf("%d pauses, %v", paused, err)
	}
	mustIndex(t, s, "t")
	checkIndexes(t, s)
	mustClose(t, s)
}
