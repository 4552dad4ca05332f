package idle

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"eventhub/store"
)

// TestClock: what a timer is late does not count, and all does where none was set.
func TestClock(t *testing.T) {
	c := clock{watched: time.Hour}
	for _, step := range []struct {
		at, planned, want time.Duration
	}{
		{10 * time.Second, never, time.Hour + 10*time.Second},
		{time.Minute, 30 * time.Second, time.Hour + time.Minute},
		{90 * time.Second, time.Minute, time.Hour + 90*time.Second}, // in time
		{24 * time.Hour, time.Minute, time.Hour + 151*time.Second},  // a day late: planned, and slack
		{24*time.Hour + time.Minute, never, time.Hour + 211*time.Second},
		{48 * time.Hour, never, 25*time.Hour + 151*time.Second},
		{47 * time.Hour, never, 25*time.Hour + 151*time.Second}, // it never goes back
	} {
		if got := c.time(step.at); got != step.want {
			t.Errorf("at %v: %v; want %v", step.at, got, step.want)
		}
		c.look(step.at, step.planned)
		if got := c.time(step.at); got != step.want {
			t.Errorf("after the look at %v: %v; want %v", step.at, got, step.want)
		}
	}
}

// TestEndedAreBoundedInNumber: of very many the oldest are left out.
func TestEndedAreBoundedInNumber(t *testing.T) {
	now := time.UnixMilli(EndedKept.Milliseconds() * 2)
	groups := make(map[Group]Ended)
	for i := range MaxEnded {
		groups[Group{"t", string(rune('a'+i%26)) + time.Duration(i).String()}] = Ended{TS: now.UnixMilli() - int64(i)}
	}
	var e endings
	e.init(groups)
	e.add(Group{"t", "newest"}, Ended{TS: now.UnixMilli() + 1})
	e.add(Group{"t", "older"}, Ended{TS: now.UnixMilli() - MaxEnded - 7})
	stale := e.stale(now)
	if len(stale) != 2 || stale[0] != (Group{"t", "older"}).row(endedPrefix) || len(e.groups) != MaxEnded || len(e.order) != MaxEnded {
		t.Errorf("%d are left out, %d kept", len(stale), len(e.groups))
	}
	if stale = e.stale(now.Add(EndedKept)); len(stale) != MaxEnded-2 {
		t.Errorf("%d are too old; want all but those of the last two milliseconds", len(stale))
	}
}

// held is a store whose commits wait while there is something to wait for.
type held struct {
	store.Store
	until atomic.Pointer[chan struct{}]
}

func (h *held) Commit(ctx context.Context, units []*store.Unit, sync bool) error {
	if until := h.until.Load(); until != nil {
		<-*until
	}
	return h.Store.Commit(ctx, units, sync)
}

// TestSyncWaitsForOthers: who uses a group waits for the note that goes, also where another one, or a round, has it
// in a commit that is under way, or in the same one.
func TestSyncWaitsForOthers(t *testing.T) {
	for _, isSame := range []bool{false, true} {
		syncBesideOthers(t, isSame)
	}
}

func syncBesideOthers(t *testing.T, isSame bool) {
	t.Helper()
	inBubble(t, false, func(r *rig) {
		r.stop()
		s := &held{Store: r.store}
		r.store = s
		r.start()
		r.expire("t", time.Hour)
		r.change(store.GroupChange{Topic: "t", Group: "g", Create: true, State: store.GroupState{Epoch: 1}})
		time.Sleep(5 * time.Minute)
		notes := func() (names []string) {
			list, err := r.store.ListNotes(context.Background())
			if err != nil {
				t.Error(err) // and not Fatal: goroutines ask too
			}
			for _, n := range list {
				if n.Name != clockRow {
					names = append(names, n.Name)
				}
			}
			return names
		}
		if got := notes(); len(got) != 1 {
			t.Fatalf("the notes of an idle group are %q", got)
		}
		until := make(chan struct{})
		first := until
		s.until.Store(&first)
		if isSame { // both wait for that
			go r.change(store.GroupChange{Topic: "other", Group: "g", Create: true, State: store.GroupState{Epoch: 1}})
			synctest.Wait()
		}
		r.runtime.Used("t", "g")
		var synced atomic.Int32
		for range 2 {
			go func() {
				if err := r.runtime.Sync(context.Background()); err != nil {
					t.Error(err)
				}
				if got := notes(); len(got) != 0 {
					t.Errorf("in the same commit %v: Sync has returned, and the store has %q", isSame, got)
				}
				synced.Add(1)
			}()
			synctest.Wait()
		}
		if isSame {
			until = make(chan struct{})
			second := until
			s.until.Store(&second)
			close(first)
			synctest.Wait()
		}
		if n := synced.Load(); n != 0 {
			t.Errorf("in the same commit %v: %d have not waited", isSame, n)
		}
		s.until.Store(nil)
		close(until)
		synctest.Wait()
		if n := synced.Load(); n != 2 {
			t.Errorf("%d of 2 are told", n)
		}
	})
}
