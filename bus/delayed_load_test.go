//go:build !race

// The race detector's own memory would be counted.

package bus

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
	"weak"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/testsize"
	"eventhub/store"
	"eventhub/store/pebble"
)

// diskRig is a bus over the embedded store in a directory, with a clock that can
// be set.
type diskRig struct {
	t     testing.TB
	dir   string
	clock skewed
	store *countingStore
	bus   *Bus
}

// countingStore counts how many of the delayed events that were read from it are in memory
// at once, whoever keeps them. Its own memory is not counted; in a build without cgo a part
// of it is on the Go heap.
type countingStore struct {
	*pebble.Store
	mu   sync.Mutex
	read []weak.Pointer[byte] // the first byte of each record
	more int                  // records since it was counted
	most int
}

// countEvery is how many events are read from one count to the next.
const countEvery = 10_000

func (s *countingStore) Delayed(ctx context.Context, afterAt int64, afterSeq uint64, until int64, limit, maxBytes int) ([]store.Delayed, error) {
	events, err := s.Store.Delayed(ctx, afterAt, afterSeq, until, limit, maxBytes)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range events {
		events[i].Record = slices.Clone(events[i].Record) // several may share their memory
		s.read = append(s.read, weak.Make(&events[i].Record[0]))
	}
	if s.more += len(events); s.more >= countEvery {
		s.more = 0
		runtime.GC()
		s.read = slices.DeleteFunc(s.read, func(p weak.Pointer[byte]) bool { return p.Value() == nil })
		s.most = max(s.most, len(s.read))
	}
	return events, err
}

// mostHeld returns the highest of the counts.
func (s *countingStore) mostHeld() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.most
}

func openDiskRig(t testing.TB, dir string) *diskRig {
	t.Helper()
	r := &diskRig{t: t, dir: dir}
	r.open()
	return r
}

func (r *diskRig) open() {
	r.t.Helper()
	s, err := pebble.Open(pebble.Options{Dir: r.dir, Now: r.clock.now, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		r.t.Fatal(err)
	}
	r.store = &countingStore{Store: s}
	if r.bus, err = New(Options{Store: r.store, TailCacheBytes: 1 << 20, clock: r.clock.now}); err != nil {
		r.t.Fatal(err)
	}
}

func (r *diskRig) close() {
	r.t.Helper()
	if err := r.bus.Close(); err != nil {
		r.t.Error(err)
	}
	if err := r.store.Close(); err != nil {
		r.t.Error(err)
	}
}

// setAhead sets the hub's clock, and has the mover look at it at once.
func (r *diskRig) setAhead(d time.Duration) {
	r.clock.skew.Store(int64(d))
	r.bus.mover.Start()
}

// schedule publishes n delayed events, due in any order within a second an hour from now; the
// payload is when.
func (r *diskRig) schedule(n int) {
	r.t.Helper()
	base := r.clock.now().Add(time.Hour).UnixMilli()
	rng := rand.New(rand.NewPCG(1, 2))
	const page = 1000
	for first := 0; first < n; first += page {
		var events []eventhub.Event
		for i := first; i < min(n, first+page); i++ {
			at := base + rng.Int64N(1000)
			events = append(events, eventhub.Event{Topic: "t", ID: fmt.Sprint("id-", i), DeliverAt: time.UnixMilli(at), Payload: fmt.Append(nil, at)})
		}
		if _, err := r.bus.Publish(context.Background(), events...); err != nil {
			r.t.Fatal(err)
		}
	}
}

// arrivals is a Receiver that looks at events that were scheduled.
type arrivals struct {
	t    testing.TB
	want int
	done chan struct{}

	mu    sync.Mutex
	seen  map[string]bool // nil where ids do not matter
	count int
	last  int64
}

func (a *arrivals) Deliver(batch []eventhub.Delivery) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range batch {
		d := &batch[i]
		e, err := d.Event()
		at, _ := strconv.ParseInt(string(e.Payload), 10, 64)
		if err != nil || e.CommitTime().UnixMilli() < at || at < a.last || a.seen[e.ID] {
			a.t.Errorf("%s, due at %d after %d, was committed at %d; seen before: %v, %v", e.ID, at, a.last, e.CommitTime().UnixMilli(), a.seen[e.ID], err)
		}
		a.last = at
		if a.seen != nil {
			a.seen[e.ID] = true
		}
		if a.count++; a.count == a.want {
			close(a.done)
		}
	}
	return len(batch)
}

func (a *arrivals) Ended(error) {}

func heapInUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func (r *diskRig) await(a *arrivals) {
	r.t.Helper()
	a.t, a.done = r.t, make(chan struct{})
	o := eventhub.GroupOptions{Topic: "t", Group: "g", AutoAck: true, MaxInFlight: 10_000, Start: eventhub.Earliest}
	if _, err := r.bus.Subscribe(context.Background(), o, a); err != nil {
		r.t.Fatal(err)
	}
}

// TestManyScheduledOnDisk: many events that are due within one second cost
// no memory while they wait and a page of it while they are moved, and each is
// moved once, in its order.
func TestManyScheduledOnDisk(t *testing.T) {
	n := testsize.Of(100_000, 50_000)
	empty := openDiskRig(t, t.TempDir())
	atRest := heapInUse()
	empty.close()

	r := openDiskRig(t, t.TempDir())
	r.schedule(n)
	r.close()
	r.open()
	defer r.close()
	if list, err := r.bus.Scheduled(context.Background(), admin.ScheduleQuery{Limit: 1}); err != nil || len(list) != 1 {
		t.Fatalf("scheduled: %v, %v", list, err)
	}
	waiting := heapInUse()
	if waiting > atRest+2<<20 {
		t.Errorf("with %d events scheduled %d bytes are in use; without any %d", n, waiting, atRest)
	}
	goroutines := runtime.NumGoroutine()

	a := &arrivals{want: n, seen: make(map[string]bool, n)}
	r.await(a)
	began := time.Now()
	r.setAhead(time.Hour + time.Second)
	<-a.done
	took, most := time.Since(began), r.store.mostHeld()
	t.Logf("%d events moved and delivered in %v; bytes in use: at rest %d, waiting %d; at most %d of the events in memory", n, took, atRest, waiting, most)
	// A page or two, and what the tail cache keeps and is being delivered.
	if most < 1 || most > n/2 {
		t.Errorf("while %d events were moved %d of them were in memory; want some pages", n, most)
	}
	if now := runtime.NumGoroutine(); now > goroutines+8 {
		t.Errorf("%d goroutines; before the move %d", now, goroutines)
	}
	if head, err := r.store.Head(context.Background(), "t"); err != nil || head != uint64(n) {
		t.Errorf("the head is %d, %v; want %d", head, err, n)
	}
	if list, err := r.bus.Scheduled(context.Background(), admin.ScheduleQuery{}); err != nil || len(list) > 0 {
		t.Errorf("scheduled afterwards: %v, %v", list, err)
	}
}

// BenchmarkSchedule is BenchmarkPublish for events with a delay.
func BenchmarkSchedule(b *testing.B) {
	r := openDiskRig(b, b.TempDir())
	defer r.close()
	events := make([]eventhub.Event, 100)
	for i := range events {
		events[i] = eventhub.Event{Topic: "bench.schedule", Delay: time.Duration(1+i%10) * time.Hour, Payload: payload256}
	}
	b.ReportAllocs()
	b.ResetTimer()
	const publishers = 4
	var wg sync.WaitGroup
	for p := range publishers {
		wg.Go(func() {
			for i := p; i < b.N; i += publishers {
				if _, err := r.bus.Publish(context.Background(), events...); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(100*b.N)/b.Elapsed().Seconds(), "events/s")
}

// BenchmarkMove is one event from being due to being delivered, of many that are
// due at once.
func BenchmarkMove(b *testing.B) {
	r := openDiskRig(b, b.TempDir())
	defer r.close()
	r.schedule(b.N)
	a := &arrivals{want: b.N}
	r.await(a)
	b.ReportAllocs()
	b.ResetTimer()
	r.setAhead(time.Hour + time.Second)
	<-a.done
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}
