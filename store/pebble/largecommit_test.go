package pebble

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"eventhub/internal/bubble"
	"eventhub/internal/faultfs"
	"eventhub/internal/testsize"
	"eventhub/store"

	pdb "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// A commit of the engine has up to 16 MiB, a full one here half of these, hundreds of blocks of the log: largeEvents of
// largeBytes and a change of a group, in one unit. The race detector looks at each of these
// bytes many times over, so a small one has tens of blocks, and is larger than a small memtable.
var largeEvents, largeBytes = testsize.Of(16, 4), testsize.Of(512<<10, 128<<10)

// largeBlocks are those that a commit fills.
func largeBlocks() int64 { return int64(largeEvents*largeBytes) / (32 << 10) }

func largeUnit(serial uint64) *store.Unit {
	u := &store.Unit{Groups: []store.GroupChange{{Topic: "t", Group: "g", Create: serial == 1, State: store.GroupState{Epoch: serial}}}}
	for i := range largeEvents {
		id := fmt.Sprint(serial, "-", i)
		u.Appends = append(u.Appends, store.Append{Topic: "t", ID: id, Record: newRecord("t", id, largeBytes-100)})
	}
	return u
}

func commitLarge(s *Store, serial uint64) error {
	u := largeUnit(serial)
	return errors.Join(s.Commit(context.Background(), []*store.Unit{u}, true), u.Err)
}

// checkLarge: units are there whole or not at all, in order, at least so many. The one that
// comes next is taken.
func checkLarge(t *testing.T, what string, o Options, acked uint64) {
	t.Helper()
	s, err := Open(o)
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	defer mustClose(t, s)
	state, err := s.Group(context.Background(), "t", "g")
	items := readAll(t, s, "t")
	if err != nil || state.Epoch < acked || uint64(len(items)) != uint64(largeEvents)*state.Epoch {
		t.Errorf("%s: %d events, and the group is at unit %d, %v; %d units of %d events were acknowledged", what, len(items), state.Epoch, err, acked, largeEvents)
		return
	}
	for i, item := range items {
		id := fmt.Sprint(i/largeEvents+1, "-", i%largeEvents)
		if string(item.Record.ID()) != id || len(item.Record) < largeBytes-200 {
			t.Errorf("%s: event %d is %s, of %d bytes; want %s", what, i, item.Record.ID(), len(item.Record), id)
		}
	}
	if err := commitLarge(s, state.Epoch+1); err != nil {
		t.Errorf("%s: the next unit: %v", what, err)
	}
	if got := len(readAll(t, s, "t")); got != len(items)+largeEvents {
		t.Errorf("%s: %d events, and a unit of %d more makes %d", what, len(items), largeEvents, got)
	}
}

// largeTunes: with memtables as they are a large commit goes into one; with small ones it is
// one of its own, which Pebble treats in another way.
var largeTunes = map[string]func(*pdb.Options){"in a memtable": nil, "outside memtables": small}

// TestLargeCommitInImages takes images in the middle of large commits, as a kill -9 or a
// power loss leaves them.
func TestLargeCommitInImages(t *testing.T) {
	for name, tune := range largeTunes {
		t.Run(name, func(t *testing.T) {
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			rng := rand.New(rand.NewPCG(seed, 5))
			mem := vfs.NewCrashableMem()
			var mu sync.Mutex
			acked, inside, images := uint64(0), 0, 0
			look := errorfs.InjectorFunc(func(op errorfs.Op) error {
				if !isLog(op.Path) || op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
					return nil
				}
				mu.Lock()
				defer mu.Unlock()
				// All fsyncs, and of the hundreds of writes some.
				if inside++; acked == 0 || op.Kind == errorfs.OpFileWrite && rng.Int64N(largeBlocks()) > 1 {
					return nil
				}
				images++
				percent := []int{0, 50, 100, 100}[rng.IntN(4)]
				image := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
				o := onMem(t, image)
				o.tune = tune
				checkLarge(t, fmt.Sprintf("image of %d %%, in front of %v %d", percent, op.Kind, inside), o, acked)
				return nil
			})
			o := onMem(t, faultfs.Wrap(mem, look))
			o.tune = tune
			s := mustOpen(t, o)
			for serial := range uint64(2) {
				if err := commitLarge(s, serial+1); err != nil {
					t.Fatal(err)
				}
				mu.Lock()
				acked++
				mu.Unlock()
			}
			mustClose(t, s)
			if t.Logf("%d writes, %d images", inside, images); images == 0 {
				t.Error("too few to show anything")
			}
		})
	}
}

// TestLargeCommitFails: a write in the middle of a large commit fails, or its fsync, or the
// disk is full: it is not acknowledged, and what is left has all of it or nothing.
func TestLargeCommitFails(t *testing.T) {
	for name, tune := range largeTunes {
		for _, at := range []int64{1, 2, largeBlocks() * 3 / 16, largeBlocks() * 9 / 16, 0} { // 0: the fsync
			t.Run(fmt.Sprintf("%s, write %d", name, at), func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					mem := vfs.NewCrashableMem()
					var on atomic.Bool
					var writes, fired atomic.Int64
					fault := errorfs.InjectorFunc(func(op errorfs.Op) error {
						if !on.Load() || !(at == 0 && isWALSync(op) || isWALWrite(op) && writes.Add(1) == at) {
							return nil
						}
						fired.Add(1)
						return syscall.ENOSPC
					})
					o := onMem(t, faultfs.Wrap(mem, fault))
					o.tune, o.Fatal = tune, func(error) {}
					s := mustOpen(t, o)
					if err := commitLarge(s, 1); err != nil {
						t.Fatal(err)
					}
					on.Store(true)
					err := commitLarge(s, 2)
					if fired.Load() == 0 {
						t.Fatalf("no fault in %d writes", writes.Load())
					}
					if !errors.Is(err, store.ErrBroken) || !errors.Is(err, syscall.ENOSPC) {
						t.Errorf("the commit: %v", err)
					}
					if got := len(readAll(t, s, "t")); got != largeEvents {
						t.Errorf("the broken store shows %d events; want %d", got, largeEvents)
					}
					_ = s.Close()
					for _, percent := range []int{0, 100} {
						o := onMem(t, mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(1, 2))}))
						o.tune = tune
						checkLarge(t, fmt.Sprintf("%d %% of what is not synced", percent), o, 1)
					}
				})
			})
		}
	}
}
