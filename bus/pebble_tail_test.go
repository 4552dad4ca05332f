package bus

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"eventhub"
	"eventhub/internal/testsize"
	"eventhub/store"
	"eventhub/store/pebble"
	"eventhub/store/storefault"
)

var tailEvents = testsize.Int("tail.events", 100_000, 20_000, "events that TestTailsMissNothing publishes")

const (
	tailWriters = 64
	tailReaders = 8
)

// TestTailsMissNothing lets many publishers and tails loose on the embedded store,
// whose commits are held up at random: every tail gets every offset, in order, and
// so does who reads the store itself up to its head. Half of the tails take a few
// events at a time, and fall back to the store.
func TestTailsMissNothing(t *testing.T) {
	seed := drawSeed(t)
	s, delays := openSlow(t, seed)
	commits := announced(s)
	b, err := New(Options{Store: s, TailCacheBytes: 100_000})
	if err != nil {
		t.Fatal(err)
	}
	var readers, writers sync.WaitGroup
	for i := range uint64(tailReaders) {
		tail := &strictTail{t: t, picky: i%2 == 1, starved: make(chan struct{}, 1), done: make(chan struct{})}
		if tail.sub, err = b.Tail(context.Background(), eventhub.TailOptions{Topic: "t"}, tail); err != nil {
			t.Fatal(err)
		}
		readers.Go(func() { tail.follow(rand.New(rand.NewPCG(seed, 1000+i))) })
	}
	readers.Go(func() { followStore(t, s, commits) })
	for n := range uint64(tailWriters) {
		share := *tailEvents / tailWriters
		if n == 0 {
			share += *tailEvents % tailWriters
		}
		writers.Go(func() { writeShare(t, b, share, rand.New(rand.NewPCG(seed, n))) })
	}
	writers.Wait()
	readers.Wait()
	t.Logf("%d events in %d commits, %d of them held up", *tailEvents, s.Calls(storefault.Commit), *delays)
	if *delays == 0 {
		t.Error("no commit was held up")
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// openSlow opens a store that holds up every other commit, and counts these. The
// store's own lock on commits, which the engine makes one by one, guards the count.
func openSlow(t *testing.T, seed uint64) (s *storefault.Store, delays *int) {
	t.Helper()
	backend, err := pebble.Open(pebble.Options{Dir: "data", FS: vfs.NewMem(), Logger: slog.New(slog.DiscardHandler),
		Fatal: func(cause error) { t.Errorf("Fatal(%v)", cause) }})
	if err != nil {
		t.Fatal(err)
	}
	s, delays = storefault.Wrap(backend), new(int)
	rng := rand.New(rand.NewPCG(seed, 2000))
	s.Before(storefault.Commit, func(*storefault.Call) error {
		if rng.IntN(2) == 0 {
			*delays++
			time.Sleep(time.Duration(rng.IntN(2000)) * time.Microsecond)
		}
		return nil
	})
	return s, delays
}

// writeShare publishes n events in batches; the offsets of its own rise.
func writeShare(t *testing.T, b *Bus, n int, rng *rand.Rand) {
	last := uint64(0)
	for n > 0 {
		events := make([]eventhub.Event, min(n, 1+rng.IntN(8)))
		for i := range events {
			events[i] = eventhub.Event{Topic: "t", Payload: []byte(`"some payload"`)}
		}
		receipts, err := b.Publish(context.Background(), events...)
		if err != nil {
			t.Errorf("Publish: %v", err)
			return
		}
		for _, r := range receipts {
			if r.Offset <= last {
				t.Errorf("offset %d after %d", r.Offset, last)
			}
			last = r.Offset
		}
		n -= len(events)
	}
}

// strictTail is the Receiver of a tail that wants every offset.
type strictTail struct {
	t       *testing.T
	sub     eventhub.Subscription
	picky   bool          // takes few at a time
	starved chan struct{} // a picky one was given more than it takes
	done    chan struct{} // it has them all

	mu   sync.Mutex
	room int
	last uint64
}

func (r *strictTail) Deliver(batch []eventhub.Delivery) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.picky && len(batch) > r.room {
		batch = batch[:r.room]
		select {
		case r.starved <- struct{}{}:
		default:
		}
	}
	r.room -= len(batch)
	for _, d := range batch {
		if d.Offset != r.last+1 {
			r.t.Errorf("a tail gets %d after %d", d.Offset, r.last)
		}
		r.last = d.Offset
		if int(r.last) == *tailEvents {
			close(r.done)
		}
	}
	return len(batch)
}

func (r *strictTail) Ended(err error) { r.t.Errorf("a tail ended: %v", err) }

// follow makes room until all events have come.
func (r *strictTail) follow(rng *rand.Rand) {
	for {
		select {
		case <-r.starved:
			r.mu.Lock()
			r.room = 1 + rng.IntN(300)
			r.mu.Unlock()
			r.sub.Ready()
		case <-r.done:
			r.sub.Drop(0)
			return
		}
	}
}

// followStore reads what each commit has added, until all events are there.
func followStore(t *testing.T, s store.Store, commits <-chan struct{}) {
	ctx := context.Background()
	var batch store.Batch
	for last := uint64(0); int(last) < *tailEvents; {
		<-commits
		head, err := s.Head(ctx, "t")
		if err != nil {
			t.Error(err)
			return
		}
		for last < head {
			batch.Reset()
			if err := s.Read(ctx, "t", last+1, 1000, 1<<20, &batch); err != nil || len(batch.Items) == 0 {
				t.Errorf("the store has %d events after %d; its head is %d: %v", len(batch.Items), last, head, err)
				return
			}
			for _, item := range batch.Items {
				if item.Offset != last+1 {
					t.Errorf("the store has %d after %d", item.Offset, last)
				}
				last = item.Offset
			}
		}
	}
}
