package bus

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/bus/internal/commit"
	"eventhub/internal/bubble"
	"eventhub/store/memory"
	"eventhub/store/storefault"
)

// TestStalledStoreIsTold: who runs the hub hears of a commit that does not end while it
// does not, not only afterwards, and of none that does.
func TestStalledStoreIsTold(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var logged lockedBuffer
		faulty := storefault.Wrap(memory.Open(memory.Options{}))
		b, err := New(Options{Store: faulty, Logger: slog.New(slog.NewTextHandler(&logged, nil))})
		if err != nil {
			t.Fatal(err)
		}
		takes := time.Duration(0)
		faulty.Before(storefault.Commit, func(*storefault.Call) error { time.Sleep(takes); return nil })
		published := make(chan error)
		publish := func(took time.Duration) {
			takes = took
			go func() {
				_, err := b.Publish(context.Background(), eventhub.Event{Topic: "t", Payload: []byte(`1`)})
				published <- err
			}()
		}
		look := func(waiting time.Duration, lines ...string) {
			t.Helper()
			synctest.Wait()
			e, err := b.Measure(context.Background())
			if err != nil || e.CommitWaiting != waiting {
				t.Errorf("the store has waited for %v, %v; want %v", e.CommitWaiting, err, waiting)
			}
			if got := strings.Count(logged.String(), "\n"); got != len(lines) {
				t.Errorf("the log has %d lines, want %d:\n%s", got, len(lines), logged.String())
			}
			for _, line := range lines {
				if !strings.Contains(logged.String(), line) {
					t.Errorf("the log does not say %q:\n%s", line, logged.String())
				}
			}
		}
		for range 20 { // one after the other, for longer than one may take
			publish(commit.StallAfter / 2)
			if err := <-published; err != nil {
				t.Fatal(err)
			}
		}
		look(0)
		time.Sleep(commit.StallAfter / 3) // the timer is on its way
		publish(time.Hour)
		time.Sleep(commit.StallAfter - 1)
		look(commit.StallAfter - 1)
		time.Sleep(time.Nanosecond)
		const stalled = `does not end a commit: the disk is slow or does not answer" waited=5s`
		look(commit.StallAfter, stalled)
		time.Sleep(10 * time.Minute) // said once
		look(commit.StallAfter+10*time.Minute, stalled)
		if err := <-published; err != nil {
			t.Error(err)
		}
		look(0, stalled, `the store goes on" waited=1h0m0s`)
		logged.Reset()
		publish(0)
		if err := <-published; err != nil {
			t.Error(err)
		}
		time.Sleep(time.Hour)
		look(0)
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if err := faulty.Close(); err != nil {
			t.Error(err)
		}
	})
}

// lockedBuffer is what several goroutines log to.
type lockedBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func (b *lockedBuffer) Reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text.Reset()
}
