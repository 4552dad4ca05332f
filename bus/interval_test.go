package bus

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/store"
	"eventhub/store/memory"
)

// syncs notes which commits were synced, and when.
type syncs struct {
	store.Store
	mu   sync.Mutex
	all  []bool
	at   []time.Time
	fail error  // of synced commits
	busy func() // where not nil, called by each commit
}

func (s *syncs) Commit(ctx context.Context, units []*store.Unit, sync bool) error {
	s.mu.Lock()
	s.all, s.at = append(s.all, sync), append(s.at, time.Now())
	fail, busy := s.fail, s.busy
	s.mu.Unlock()
	if busy != nil {
		busy()
	}
	if sync && fail != nil {
		return fail
	}
	return s.Store.Commit(ctx, units, sync)
}

// take returns whether each commit since the last call was synced.
func (s *syncs) take() []bool {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.all
	s.all, s.at = nil, nil
	return all
}

func inInterval(t *testing.T, test func(*syncs, *Bus)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &syncs{Store: memory.Open(memory.Options{})}
		b, err := New(Options{Store: s, SyncEvery: 10 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		test(s, b)
		_ = b.Close() // its error is the test's
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

func publishOne(t *testing.T, b *Bus) {
	t.Helper()
	if _, err := b.Publish(context.Background(), eventhub.Event{Topic: "t", Payload: []byte("1")}); err != nil {
		t.Error(err)
	}
}

// OKs do not wait for the disk; it has everything SyncEvery after the first of them,
// and is left alone when there is nothing new.
func TestIntervalSyncsAfterTheOKs(t *testing.T) {
	inInterval(t, func(s *syncs, b *Bus) {
		publishOne(t, b)
		time.Sleep(9 * time.Millisecond)
		publishOne(t, b)
		equal(t, "at first", s.take(), []bool{false, false})
		time.Sleep(time.Millisecond)
		equal(t, "10 ms after the first", s.take(), []bool{true})
		time.Sleep(time.Hour)
		equal(t, "afterwards", len(s.take()), 0)
		publishOne(t, b)
		equal(t, "again", s.take(), []bool{false})
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		all := s.take()
		equal(t, "in the end", slices.Contains(all, true), true)
	})
}

// What is answered once for all is on disk with its answer: a cancel, a group, its
// deletion.
func TestIntervalWaitsForWhatIsPromised(t *testing.T) {
	inInterval(t, func(s *syncs, b *Bus) {
		ctx := context.Background()
		at := time.Now().Add(time.Hour).UnixMilli()
		if _, err := b.Publish(ctx, eventhub.Event{Topic: "t", ID: "later", Payload: []byte("1"), DeliverAt: time.UnixMilli(at)}); err != nil {
			t.Fatal(err)
		}
		equal(t, "a scheduled event", s.take(), []bool{false})
		if err := b.Cancel(ctx, "t", "later"); err != nil {
			t.Fatal(err)
		}
		equal(t, "its cancel", s.take(), []bool{true})
		_, err := b.Subscribe(ctx, eventhub.GroupOptions{Topic: "t", Group: "g"}, sink(nil))
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "a group", slices.Contains(s.take(), true), true)
		if err := b.DeleteGroup(ctx, "t", "g"); err != nil {
			t.Fatal(err)
		}
		equal(t, "its deletion", slices.Contains(s.take(), true), true)
	})
}

// Publishers that never pause do not put the sync off.
func TestIntervalSyncsUnderLoad(t *testing.T) {
	inInterval(t, func(s *syncs, b *Bus) {
		for range 100 {
			publishOne(t, b)
			time.Sleep(time.Millisecond)
		}
		synced := 0
		for _, sync := range s.take() {
			if sync {
				synced++
			}
		}
		equal(t, "syncs in 100 ms", synced, 9)
	})
}

// Nor does a queue that is never empty.
func TestIntervalSyncsWithoutAPause(t *testing.T) {
	inInterval(t, func(s *syncs, b *Bus) {
		left := 30
		s.busy = func() {
			if left--; left > 0 {
				pubs := []eventhub.Publication{{Events: []eventhub.Event{{Topic: "t", Payload: []byte("1")}}}}
				b.Enqueue(context.Background(), pubs, func([]eventhub.Publication) {})
				time.Sleep(time.Millisecond)
			}
		}
		publishOne(t, b)
		time.Sleep(20 * time.Millisecond)
		s.mu.Lock()
		synced := slices.Contains(s.all, true)
		s.mu.Unlock()
		equal(t, "synced within 20 ms", synced, true)
	})
}

// A failed fsync ends everything, as a failed commit does.
func TestIntervalSyncFails(t *testing.T) {
	inInterval(t, func(s *syncs, b *Bus) {
		publishOne(t, b)
		s.mu.Lock()
		s.fail = errors.New("no disk")
		s.mu.Unlock()
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		_, err := b.Publish(context.Background(), eventhub.Event{Topic: "t", Payload: []byte("1")})
		wantCode(t, err, eventhub.CodeInternal)
	})
}
