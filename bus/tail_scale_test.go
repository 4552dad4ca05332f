package bus

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"eventhub"
	"eventhub/internal/bubble"
	"eventhub/store/memory"
	"eventhub/store/pebble"
	"eventhub/store/storefault"
)

// TestTailsCostTheStoreNothing: five thousand tails of one topic, on the embedded
// store, cause no write and, while they keep up, no read; what each of them keeps in
// memory is little.
func TestTailsCostTheStoreNothing(t *testing.T) {
	const tails, events, mostHeap = 5000, 50, 1024
	ctx := context.Background()
	backend, err := pebble.Open(pebble.Options{Dir: "data", FS: vfs.NewMem(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	s := storefault.Wrap(backend)
	b, err := New(Options{Store: s})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Publish(ctx, eventhub.Event{Topic: "t", Payload: []byte(`1`)}); err != nil {
		t.Fatal(err) // so that the store has made what a first commit makes
	}
	writes, size := s.Calls(storefault.Commit), storeSize(t, s)
	goroutines, heap := runtime.NumGoroutine(), heapBytes()
	all := counter{new(atomic.Int64), tails * events, make(chan struct{})}
	subs := make([]eventhub.Subscription, tails)
	for i := range subs {
		if subs[i], err = b.Tail(ctx, eventhub.TailOptions{Topic: "t"}, all); err != nil {
			t.Fatal(err)
		}
	}
	each := (heapBytes() - heap) / tails
	t.Logf("%d bytes of heap for each of %d tails", each, tails)
	if each > mostHeap {
		t.Errorf("a tail takes %d bytes; %d are allowed", each, mostHeap)
	}
	if n := runtime.NumGoroutine() - goroutines; n > 0 {
		t.Errorf("the tails run %d goroutines", n)
	}
	// The store writes a few bytes of its own accord, in its own time.
	if wrote, now := s.Calls(storefault.Commit)-writes, storeSize(t, s); wrote != 0 || now > size+tails/10 {
		t.Errorf("the tails cause %d writes; the store has %d bytes, %d before", wrote, now, size)
	}
	reads := s.Calls(storefault.Read)
	for i := range events {
		if _, err := b.Publish(ctx, eventhub.Event{Topic: "t", Payload: fmt.Append(nil, i)}); err != nil {
			t.Fatal(err)
		}
	}
	<-all.done
	for _, sub := range subs {
		sub.Drop(0)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if wrote, read := s.Calls(storefault.Commit)-writes, s.Calls(storefault.Read)-reads; wrote != events || read != 0 {
		t.Errorf("%d publishes made %d commits and %d reads; one each and none are right", events, wrote, read)
	}
	if n, _, _ := b.tails.Holds(); n+readTopics(b) != 0 {
		t.Errorf("%d tails and %d topics are left", n, readTopics(b))
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func storeSize(t *testing.T, s *storefault.Store) uint64 {
	t.Helper()
	size, err := s.Size()
	if err != nil {
		t.Fatal(err)
	}
	return size
}

// TestOneTailOverManyTopics: a tail over a thousand topics has no goroutine and no
// timer for them, and gets what is published to each, also to one that is created later.
func TestOneTailOverManyTopics(t *testing.T) {
	const topics = 1000
	bubble.Test(t, func(t *testing.T) {
		r := &rig{t: t, store: &meter{Store: memory.Open(memory.Options{})}}
		r.start(Options{})
		var events []eventhub.Event
		for i := range topics {
			events = append(events, eventhub.Event{Topic: fmt.Sprintf("m.%d.x", i), Payload: []byte(`1`)})
		}
		publish := func() {
			if _, err := r.bus.Publish(context.Background(), events...); err != nil {
				t.Fatal(err)
			}
		}
		publish()
		goroutines, heap := runtime.NumGoroutine(), heapBytes()
		in := r.tail(tailOpts("m.*.x"))
		t.Logf("%d bytes of heap for each of %d topics", (heapBytes()-heap)/topics, topics)
		equal(t, "goroutines", runtime.NumGoroutine()-goroutines, 0)
		equal(t, "appointments", r.bus.sched.Appointments(), 0)
		events = append(events, eventhub.Event{Topic: "m.new.x", Payload: []byte(`1`)})
		reads := r.store.count1("Read")
		publish()
		seen := make(map[string]uint64)
		for _, d := range in.Take() {
			seen[d.Topic] += d.Offset
		}
		equal(t, "topics seen", len(seen), topics+1)
		equal(t, "the one that was created", seen["m.new.x"], 1)
		equal(t, "another", seen["m.77.x"], 2)
		equal(t, "reads", r.store.count1("Read")-reads, 0)
		in.Sub.Drop(0)
		equal(t, "topics left", readTopics(r.bus), 0)
		r.stop()
		if err := r.store.Close(); err != nil {
			t.Error(err)
		}
	})
}
