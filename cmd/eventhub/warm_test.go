package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"eventhub"
	"eventhub/client"
	"eventhub/internal/testsize"
)

var (
	warmKeys   = testsize.Int("warm.keys", 5000, 1000, "keys of the state that TestWarmStart starts with")
	warmTrials = testsize.Int("warm.trials", 8, 4, "starts of readers in TestWarmStart")
	warmKills  = testsize.Int("warm.kills", 4, 2, "of them, those in which the hub is killed in the middle")
	warmRate   = flag.Int("warm.rate", 2000, "events a second that TestWarmStart publishes meanwhile")
	warmWithin = flag.Duration("warm.within", 0, "within which a map has to be loaded in half of the starts without a kill; 0: it is reported and not judged")
)

const warmTopic = "warm"

type warmValue struct {
	N    int
	Text string
}

// TestWarmStart starts readers of the state of a topic with many keys while events are published,
// some of which end keys, and kills the hub in the middle of some of the starts. A map is what all
// answered publishes say, as soon as it has the last of them; a reader of events had a whole state,
// then each event after it once, in order, whenever the hub was killed.
func TestWarmStart(t *testing.T) {
	rng := rand.New(rand.NewPCG(drawSeed(t), 5))
	dir, addr := t.TempDir(), freePort(t)
	hub := startHub(t, "--store", dir, "--ws", addr)
	w := &warmWriter{t: t, client: connect(t, addr), state: make(map[string]warmWritten), rng: rng}
	for w.n < *warmKeys {
		w.publish(min(1000, *warmKeys-w.n), func() string { return fmt.Sprint("key-", w.n) })
	}
	killAt := make([]int, *warmKills) // as the state comes
	for i := range killAt {
		killAt[i] = rng.IntN(*warmKeys / 2)
	}
	ctx, stop := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	writing.Go(func() { w.run(ctx) })
	var took []time.Duration
	for trial := range *warmTrials {
		kills := trial < *warmKills
		r := newWarmReader(t, addr)
		c := connect(t, addr)
		began := time.Now()
		m, err := client.State[warmValue](t.Context(), c, warmTopic)
		if err != nil {
			t.Fatal(err)
		}
		if kills {
			r.start()
			r.await(t, func() bool { return len(r.state) > killAt[trial] || r.complete })
			hub.kill()
			hub = startHub(t, "--store", dir, "--ws", addr)
		}
		waitFor(t, "the map", func(ctx context.Context) error { return m.WaitLoaded(ctx) })
		if !kills {
			took = append(took, time.Since(began))
			r.start()
		}
		w.pause(func(last uint64) {
			waitFor(t, "the map to catch up", func(ctx context.Context) error { return m.WaitOffset(ctx, last) })
			w.compare(m)
			r.await(t, func() bool { return r.last >= last })
			r.check(w)
		})
		m.Close()
		c.Close()
		r.stop()
	}
	stop()
	writing.Wait()
	slices.Sort(took)
	if len(took) > 0 {
		t.Logf("%d keys, %d events published: a map is loaded in %s, %s at most, in %d starts; %d more with a kill",
			*warmKeys, w.n, took[len(took)/2].Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond), len(took), *warmKills)
		if *warmWithin > 0 && took[len(took)/2] > *warmWithin {
			t.Errorf("a map is loaded in %s; %s is allowed", took[len(took)/2], *warmWithin)
		}
	}
}

// waitFor fails a test in which something does not come.
func waitFor(t *testing.T, what string, wait func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), watchdog)
	defer cancel()
	if err := wait(ctx); err != nil {
		t.Fatalf("waiting for %s: %v", what, err)
	}
}

type warmWritten struct {
	n      int
	offset uint64
}

// warmWriter publishes, and knows the state by what was answered.
type warmWriter struct {
	t      *testing.T
	client *client.Client

	mu      sync.Mutex // one publish at a time, and none while it is held up
	rng     *rand.Rand
	n       int
	state   map[string]warmWritten
	offsets []uint64 // of all events
}

// run publishes warmRate events a second.
func (w *warmWriter) run(ctx context.Context) {
	const every = 20 * time.Millisecond
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		w.publish(max(1, *warmRate*int(every)/int(time.Second)), func() string { return fmt.Sprint("key-", w.rng.IntN(*warmKeys)) })
	}
}

// publish publishes n events of keys in one step.
func (w *warmWriter) publish(n int, key func() string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	events := make([]eventhub.Event, n)
	numbers := make([]int, n)
	for i := range events {
		events[i] = eventhub.Event{Topic: warmTopic, Key: key(), Payload: fmt.Appendf(nil, `{"N":%d,"Text":%q}`, w.n, strings.Repeat("x", 100))}
		numbers[i] = w.n
		if w.n >= *warmKeys && w.rng.IntN(50) == 0 {
			events[i].Payload, numbers[i] = []byte("null"), -1
		}
		w.n++
	}
	receipts, err := w.client.Publish(context.Background(), events...)
	if err != nil {
		w.t.Error(err)
		return
	}
	for i, r := range receipts {
		w.offsets = append(w.offsets, r.Offset)
		if numbers[i] < 0 {
			delete(w.state, events[i].Key)
			continue
		}
		w.state[events[i].Key] = warmWritten{numbers[i], r.Offset}
	}
}

// pause calls do with the offset of the last event while nothing is published.
func (w *warmWriter) pause(do func(last uint64)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	do(w.offsets[len(w.offsets)-1])
}

// compare holds a map against the state. w.mu is held.
func (w *warmWriter) compare(m *client.StateMap[warmValue]) {
	got := maps.Collect(m.All())
	for key, v := range got {
		if want, has := w.state[key]; !has || want.n != v.N {
			w.t.Fatalf("the map has %s %d at %d; the state %+v, %v", key, v.N, m.Offset(), want, has)
		}
	}
	if len(got) != len(w.state) {
		w.t.Fatalf("the map has %d keys, the state %d", len(got), len(w.state))
	}
}

// warmReader reads a state and the events after it.
type warmReader struct {
	client *client.Client
	sub    eventhub.Subscription

	mu       sync.Mutex
	changed  chan struct{}
	state    map[string]uint64 // offsets of what came of the state
	seen     map[uint64]int    // events after it
	at, last uint64
	count    int
	complete bool
	wrong    string
}

func newWarmReader(t *testing.T, addr string) *warmReader {
	return &warmReader{client: connect(t, addr), changed: make(chan struct{}, 1), state: make(map[string]uint64), seen: make(map[uint64]int)}
}

func (r *warmReader) start() {
	sub, err := r.client.Tail(context.Background(), eventhub.TailOptions{Topic: warmTopic, Start: eventhub.Snapshot}, r)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sub = sub; err != nil {
		r.wrong = err.Error()
	}
}

func (r *warmReader) stop() { r.client.Close() }

// Ended implements eventhub.Receiver.
func (r *warmReader) Ended(error) {}

// Deliver implements eventhub.Receiver.
func (r *warmReader) Deliver(batch []eventhub.Delivery) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range batch {
		d := &batch[i]
		switch s := d.State; {
		case s == nil:
			if r.seen[d.Offset]++; d.Offset <= r.last || !r.complete {
				r.fail("offset %d came after %d", d.Offset, r.last)
			}
			r.last = d.Offset
		case s.Complete:
			if s.Count != len(r.state) {
				r.fail("the state at %d has %d events, and its mark says %d", s.Offset, len(r.state), s.Count)
			}
			if r.at > 0 && s.Offset != r.last {
				r.fail("a state at %d came to a reader at %d", s.Offset, r.last)
			}
			if r.at == 0 {
				r.at = s.Offset
			}
			r.complete, r.last, r.count = true, s.Offset, s.Count
		case s.IsMark():
		default:
			if s.Snapshot != "" {
				clear(r.state)
				r.complete = false
			}
			r.state[string(d.Record.Key())] = d.Offset
		}
	}
	select {
	case r.changed <- struct{}{}:
	default:
	}
	return len(batch)
}

func (r *warmReader) fail(format string, args ...any) {
	if r.wrong == "" {
		r.wrong = fmt.Sprintf(format, args...)
	}
}

// await waits until something is so.
func (r *warmReader) await(t *testing.T, is func() bool) {
	t.Helper()
	late := time.After(watchdog)
	for {
		r.mu.Lock()
		ok, wrong := is(), r.wrong
		r.mu.Unlock()
		if wrong != "" {
			t.Fatal(wrong)
		}
		if ok {
			return
		}
		select {
		case <-r.changed:
		case <-late:
			t.Fatalf("a reader stays at %d", r.last)
		}
	}
}

// check holds what came against what was published. w.mu is held.
func (r *warmReader) check(w *warmWriter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	gaps, doubles := 0, 0
	after, _ := slices.BinarySearch(w.offsets, r.at+1) // the trials before it have published the rest
	for _, offset := range w.offsets[after:] {
		switch n := r.seen[offset]; {
		case n == 0:
			gaps++
		case n > 1:
			doubles++
		}
	}
	if gaps > 0 || doubles > 0 || r.wrong != "" {
		w.t.Fatalf("%d gaps and %d doubles after the state at %d; %s", gaps, doubles, r.at, r.wrong)
	}
}
