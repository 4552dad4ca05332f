package pebble

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"eventhub/internal/bubble"
	"eventhub/internal/faultfs"
	"eventhub/store"
	"eventhub/store/storetest"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// halved makes each synced commit out of the two halves.
type halved struct{ *Store }

func (h halved) Commit(ctx context.Context, units []*store.Unit, sync bool) error {
	if !sync || len(units) == 0 {
		return h.Store.Commit(ctx, units, sync)
	}
	wait, err := h.Start(ctx, units)
	if err != nil {
		return err
	}
	return wait()
}

// TestConformanceOfStarts: what is true of Commit is true of its halves.
func TestConformanceOfStarts(t *testing.T) {
	storetest.Run(t, func(t testing.TB) storetest.Backend {
		hold := new(syncHold)
		base := onMem(t, faultfs.Wrap(vfs.NewMem(), hold))
		open := func(at Options, o storetest.Options) (store.Store, error) {
			at.Now, at.MaxTopics = o.Now, o.MaxTopics
			s, err := Open(at)
			if err != nil {
				return nil, err
			}
			s.compacting.step = 250 // two events or three
			return halved{s}, nil
		}
		return storetest.Backend{
			HoldSync: hold.arm,
			Copy: func() (string, func(storetest.Options) (store.Store, error)) {
				return "copies/one", func(o storetest.Options) (store.Store, error) {
					copied := base
					copied.Dir = "copies/one"
					return open(copied, o)
				}
			},
			Open: func(o storetest.Options) (store.Store, error) { return open(base, o) },
		}
	})
}

func mustStart(t *testing.T, s *Store, appends ...store.Append) ([]store.Append, func() error) {
	t.Helper()
	u := &store.Unit{Appends: appends}
	wait, err := s.Start(context.Background(), []*store.Unit{u})
	if err != nil || u.Err != nil {
		t.Fatalf("Start: %v, refused: %v", err, u.Err)
	}
	return u.Appends, wait
}

// TestStartsOverlap: while the fsync of one is under way others are started; none is
// shown before its wait is over, and power loss takes all that was not.
func TestStartsOverlap(t *testing.T) {
	mem, hold := vfs.NewCrashableMem(), new(syncHold)
	s := mustOpen(t, onMem(t, faultfs.Wrap(mem, hold)))
	defer mustClose(t, s)
	mustCommit(t, s, true, given("t", "1"))
	reached, release := hold.arm()
	first, waitFirst := mustStart(t, s, given("t", "2"))
	<-reached
	second, waitSecond := mustStart(t, s, given("t", "3"), given("t", "2"))
	if first[0].Offset != 2 || second[0].Offset != 3 || second[1].Offset != 2 || !second[1].Duplicate {
		t.Errorf("offsets %d, %d, %d, a duplicate %v; want 2, 3, 2, true", first[0].Offset, second[0].Offset, second[1].Offset, second[1].Duplicate)
	}
	if got := readAll(t, s, "t"); len(got) != 1 {
		t.Errorf("%d events are shown while the first is synced; want 1", len(got))
	}
	if _, err := s.Find(context.Background(), "t", "2"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("Find of an event that is being synced: %v; want store.ErrNotFound", err)
	}
	lost := mustOpen(t, onMem(t, afterPowerLoss(mem)))
	if got := readAll(t, lost, "t"); len(got) != 1 {
		t.Errorf("%d events are there after a power loss during the first fsync; want 1", len(got))
	}
	mustClose(t, lost)
	release()
	for i, wait := range []func() error{waitFirst, waitSecond} {
		if err := wait(); err != nil {
			t.Error(err)
		}
		kept := mustOpen(t, onMem(t, afterPowerLoss(mem)))
		if got := readAll(t, kept, "t"); len(got) < i+2 {
			t.Errorf("%d events are there when the power fails after wait %d", len(got), i+1)
		}
		mustClose(t, kept)
		if got := readAll(t, s, "t"); len(got) < i+2 {
			t.Errorf("%d events are shown after wait %d", len(got), i+1)
		}
	}
	checkIndexes(t, s)
}

// TestCloseBetweenTheHalves: a Close waits for the wait of a Start, and whoever has to
// call that may call something else before: it gets ErrClosed.
func TestCloseBetweenTheHalves(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := mustOpen(t, onMem(t, vfs.NewMem()))
		mustCommit(t, s, true, given("t", "1"))
		_, wait := mustStart(t, s, given("t", "2"))
		closed := make(chan error, 2)
		go func() { closed <- s.Close() }()
		synctest.Wait()
		_, err := s.Head(context.Background(), "t")
		wantError(t, err, store.ErrClosed)
		_, err = s.Start(context.Background(), []*store.Unit{{Appends: []store.Append{given("t", "4")}}})
		wantError(t, err, store.ErrClosed)
		if len(closed) > 0 {
			t.Error("Close did not wait for the Start")
		}
		if err := wait(); err != nil {
			t.Error(err)
		}
		go func() { closed <- s.Close() }()
		if err := errors.Join(<-closed, <-closed); err != nil {
			t.Error(err)
		}
	})
}

// TestSweepBesideStarts: a sweep does not wait for the fsync of a Start, nor this for it.
func TestSweepBesideStarts(t *testing.T) {
	hold := new(syncHold)
	s := mustOpen(t, onMem(t, faultfs.Wrap(vfs.NewMem(), hold)))
	defer mustClose(t, s)
	mustCommit(t, s, true, given("t", "1"))
	mustCommit(t, s, true, given("gone", "1"))
	if err := s.DeleteTopic(context.Background(), "gone"); err != nil {
		t.Fatal(err)
	}
	reached, release := hold.arm()
	_, wait := mustStart(t, s, given("t", "2"))
	<-reached
	if left := mustSweep(t, s); left.More() {
		t.Errorf("Sweep: %+v; want all swept", left)
	}
	release()
	if err := wait(); err != nil {
		t.Error(err)
	}
	if got := readAll(t, s, "t"); len(got) != 2 {
		t.Errorf("%d events are there; want 2", len(got))
	}
	checkIndexes(t, s)
}

// TestStartThatCreates: one that does more than append ends within Start, whatever is
// under way.
func TestStartThatCreates(t *testing.T) {
	s := mustOpen(t, onMem(t, vfs.NewMem()))
	defer mustClose(t, s)
	mustCommit(t, s, true, given("t", "1"))
	_, wait := mustStart(t, s, given("t", "2"))
	_, waitCreated := mustStart(t, s, given("created", "3"), given("t", "4"))
	if got := readAll(t, s, "created"); len(got) != 1 {
		t.Errorf("%d events are in the topic that was created; want 1", len(got))
	}
	if err := errors.Join(wait(), waitCreated()); err != nil {
		t.Error(err)
	}
	if got := readAll(t, s, "t"); len(got) != 3 {
		t.Errorf("%d events are there; want 3", len(got))
	}
}

// TestStartWhoseFsyncFails: wait says so, and nothing is committed any more. The fsync fails
// when both were started: the store is broken at once, whether somebody waits or not.
func TestStartWhoseFsyncFails(t *testing.T) {
	started := make(chan struct{})
	fault := &failing{match: func(op errorfs.Op) bool {
		if isWALSync(op) {
			<-started
		}
		return isWALSync(op)
	}}
	o := onMem(t, faultfs.Wrap(vfs.NewMem(), fault))
	fatal := 0
	o.Fatal = func(error) { fatal++ }
	s := mustOpen(t, o)
	mustCommit(t, s, true, given("t", "1"))
	fault.on.Store(true)
	_, wait := mustStart(t, s, given("t", "2"))
	again, waitAgain := mustStart(t, s, given("t", "2"))
	close(started)
	if err := wait(); !errors.Is(err, store.ErrBroken) || !errors.Is(err, errorfs.ErrInjected) {
		t.Errorf("wait: %v; want store.ErrBroken and its cause", err)
	}
	if err := waitAgain(); !again[0].Duplicate || !errors.Is(err, store.ErrBroken) {
		t.Errorf("wait for its duplicate (%v): %v; want store.ErrBroken", again[0].Duplicate, err)
	}
	if got := readAll(t, s, "t"); len(got) != 1 {
		t.Errorf("%d events are shown; want 1", len(got))
	}
	if _, err := s.Start(context.Background(), []*store.Unit{{Appends: []store.Append{given("t", "3")}}}); !errors.Is(err, store.ErrBroken) {
		t.Errorf("another Start: %v; want store.ErrBroken", err)
	}
	if fatal != 1 {
		t.Errorf("Fatal was called %d times; want once", fatal)
	}
	if err := s.Close(); err != nil && !errors.Is(err, errorfs.ErrInjected) {
		t.Errorf("close: %v", err)
	}
}
