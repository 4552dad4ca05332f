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
	"eventhub/internal/bubble"
	"eventhub/store/memory"
	"eventhub/store/storefault"
)

// syncs notes which commits were synced.
type syncs struct {
	*storefault.Store
	mu  sync.Mutex
	all []bool
}

func openSyncs() *syncs {
	s := &syncs{Store: storefault.Wrap(memory.Open(memory.Options{}))}
	s.After(storefault.Commit, func(c *storefault.Call) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all = append(s.all, c.Sync)
	})
	return s
}

// take returns whether each commit since the last call was synced.
func (s *syncs) take() []bool {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.all
	s.all = nil
	return all
}

func inInterval(t *testing.T, test func(*syncs, *Bus)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		s := openSyncs()
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
		s.Before(storefault.Commit, func(*storefault.Call) error {
			if left--; left > 0 {
				pubs := []eventhub.Publication{{Events: []eventhub.Event{{Topic: "t", Payload: []byte("1")}}}}
				b.Enqueue(context.Background(), pubs, func([]eventhub.Publication) {})
				time.Sleep(time.Millisecond)
			}
			return nil
		})
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
		s.Before(storefault.Commit, func(c *storefault.Call) error {
			if c.Sync {
				return errors.New("no disk")
			}
			return nil
		})
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		_, err := b.Publish(context.Background(), eventhub.Event{Topic: "t", Payload: []byte("1")})
		wantCode(t, err, eventhub.CodeInternal)
	})
}
