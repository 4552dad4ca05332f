package pebble

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"eventhub/internal/faultfs"
	"eventhub/internal/testsize"
	"eventhub/store/journal"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// fetchedCopy is where the copy is.
const fetchedCopy = "scratch/fetched/copy"

// behind makes a replica with the first entries of a journal in data, and a copy of another one, with all, below it.
func behind(t *testing.T, fsys vfs.FS, own, of *testJournal) (all [][2]string, at journal.Position) {
	t.Helper()
	r := mustOpenReplica(t, onMem(t, fsys))
	follow(t, r, own, 2)
	mustCloseReplica(t, r)
	o := onMem(t, fsys)
	o.Dir = "other"
	r = mustOpenReplica(t, o)
	follow(t, r, of, everything)
	if err := fsys.MkdirAll("data/scratch/fetched", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := r.Checkpoint(context.Background(), "data/"+fetchedCopy); err != nil {
		t.Fatal(err)
	}
	all, at = contents(t, r.s), r.Position()
	mustCloseReplica(t, r)
	return all, at
}

// someJournal has the entries of a store.
func someJournal(t *testing.T) *testJournal {
	t.Helper()
	j := new(testJournal)
	s := lead(t, onMem(t, vfs.NewMem()), j)
	for _, id := range []string{"a", "b", "c", "d"} {
		mustCommit(t, s, true, given("t", id))
	}
	mustClose(t, s)
	return j
}

// TestReplace: a replica is replaced by a copy, whatever moment the power goes at, or the process: by all of it
// when it is gone on with, or by nothing.
func TestReplace(t *testing.T) {
	t.Run("power", func(t *testing.T) { testReplace(t, afterPowerLoss) })
	t.Run("uncleaned", func(t *testing.T) {
		mem, j := vfs.NewMem(), someJournal(t)
		all, at := behind(t, mem, j, j)
		o := onMem(t, mem)
		o.Dir = "./data"
		if err := Replace(o, fetchedCopy); err != nil {
			t.Fatal(err)
		}
		r := mustOpenReplica(t, onMem(t, mem))
		if r.Position() != at {
			t.Errorf("the replica is at %+v; want %+v", r.Position(), at)
		}
		isSame(t, contents(t, r.s), all)
		mustCloseReplica(t, r)
	})
	t.Run("process", func(t *testing.T) { testReplace(t, func(mem *vfs.MemFS) *vfs.MemFS { return mem }) })
}

// replaceStride is the distance of the operations after which testReplace breaks the disk.
var replaceStride = testsize.Of(1, 4)

func testReplace(t *testing.T, crash func(*vfs.MemFS) *vfs.MemFS) {
	j := someJournal(t)
	crashed, replaced, whole := 0, 0, false
	for after := rand.IntN(replaceStride); !whole; after += replaceStride {
		mem := vfs.NewCrashableMem()
		all, at := behind(t, mem, j, j)
		var mu sync.Mutex
		begun, ops := false, 0
		o := onMem(t, faultfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			mu.Lock()
			defer mu.Unlock()
			begun = begun || strings.HasSuffix(op.Path, replaceFileName+tempSuffix)
			if !begun || op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
				return nil
			}
			if ops++; ops > after {
				return errorfs.ErrInjected
			}
			return nil
		})))
		o.Fatal = func(error) {}
		err := Replace(o, fetchedCopy)
		if whole = err == nil; !whole {
			if !errors.Is(err, errorfs.ErrInjected) {
				t.Fatalf("with a fault after %d operations: %v", after, err)
			}
			crashed++
			mem = crash(mem)
		}
		o = onMem(t, mem)
		_, err = mem.Stat("data/" + replaceFileName)
		isBegun := whole || err == nil
		if err := FinishReplace(o); err != nil {
			t.Fatalf("after a crash after %d operations: %v", after, err)
		}
		r := mustOpenReplica(t, o)
		if !isBegun { // or it is over
			follow(t, r, j, everything)
		}
		if r.Position() != at {
			t.Fatalf("after %d operations the replica is at %+v; want %+v", after, r.Position(), at)
		}
		isSame(t, contents(t, r.s), all)
		if isBegun {
			replaced++
		}
		mustCloseReplica(t, r)
		if _, err := mem.Stat("data/" + fetchedCopy); isBegun && err == nil {
			t.Errorf("after %d operations the copy is still there", after)
		}
		if whole {
			mustClose(t, lead(t, o, j)) // and leads
		}
	}
	if crashed*replaceStride < 10 || replaced*replaceStride < 10 {
		t.Errorf("there were %d crashes, and %d of them in the middle", crashed, replaced-1)
	}
}

// TestReplaceRefuses: what is of another cluster, or no step ahead, replaces nothing.
func TestReplaceRefuses(t *testing.T) {
	j, other := someJournal(t), someJournal(t)
	mem := vfs.NewMem()
	behind(t, mem, j, other)
	if err := Replace(onMem(t, mem), fetchedCopy); !errors.Is(err, ErrOtherCluster) {
		t.Errorf("a copy of another cluster: %v", err)
	}
	r := mustOpenReplica(t, onMem(t, mem))
	follow(t, r, j, everything)
	mustCloseReplica(t, r)

	mem = vfs.NewMem()
	behind(t, mem, j, j)
	r = mustOpenReplica(t, onMem(t, mem))
	follow(t, r, j, everything)
	mustCloseReplica(t, r)
	if err := Replace(onMem(t, mem), fetchedCopy); err == nil || !strings.Contains(err.Error(), "the copy is at place") {
		t.Errorf("a copy that has no more: %v", err)
	}

	mem = vfs.NewMem()
	mustClose(t, mustOpen(t, onMem(t, mem)))
	o := onMem(t, mem)
	if err := Replicate(o); err != nil {
		t.Fatal(err)
	}
	source := vfs.NewMem()
	behind(t, source, j, j)
	if ok, err := vfs.Clone(source, mem, "data/scratch", "data/scratch"); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if err := Replace(o, fetchedCopy); !errors.Is(err, ErrFounder) {
		t.Errorf("a store that is to begin a journal: %v", err)
	}
	mustCloseReplica(t, mustOpenReplica(t, o))
}
