package bus

import (
	"context"
	"runtime"
	"strings"
	"testing"

	"eventhub"
	"eventhub/store"
	"eventhub/store/memory"
)

// TestTailDoesNotSpeakForWhatItDoesNotKnow: an event that a group has read from
// the store before the committer told the tail of it is not gone.
func TestTailDoesNotSpeakForWhatItDoesNotKnow(t *testing.T) {
	l := newTopicLog("t")
	l.watch(&group{}, 7)
	l.add([]store.Append{{Offset: 8, Record: []byte("a")}, {Offset: 9, Record: []byte("b")}}, false)
	for _, tt := range []struct {
		from uint64
		n    int
		ok   bool
	}{{7, 0, false}, {8, 2, true}, {9, 1, true}, {10, 0, false}} {
		items, ok := l.read(nil, tt.from, 10)
		if len(items) != tt.n || ok != tt.ok {
			t.Errorf("read from %d: %d events, %v; want %d, %v", tt.from, len(items), ok, tt.n, tt.ok)
		}
	}
	l.forget(8)
	if items, ok := l.read(nil, 8, 10); ok || len(items) != 0 {
		t.Errorf("read of what was forgotten: %d events, %v", len(items), ok)
	}
}

// tails returns how many bytes of records the tails of all topics hold.
func (r *rig) tails() (bytes int) {
	for _, l := range r.bus.logs {
		l.mu.Lock()
		for _, item := range l.tail {
			bytes += len(item.Record)
		}
		l.mu.Unlock()
	}
	return bytes
}

// TestCacheBoundHoldsWithDuplicates: batches that end in a duplicate do not
// stay in the cache for good.
func TestCacheBoundHoldsWithDuplicates(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.stop()
		r.start(Options{TailCacheBytes: 1000})
		r.subscribe(opts("t", "g"))
		again := eventhub.Event{Topic: "t", ID: "same", Payload: []byte(`1`)}
		for range 50 {
			fresh := eventhub.Event{Topic: "t", Payload: []byte(`1`)}
			if _, err := r.bus.Publish(context.Background(), fresh, again); err != nil {
				t.Fatal(err)
			}
		}
		if n := r.tails(); n > 1000 {
			t.Errorf("the tails hold %d bytes; 1000 are allowed", n)
		}
	})
}

// TestCacheCountsWhatItKeepsAlive: an event that came together with a large one
// that nobody is given does not keep that alive.
func TestCacheCountsWhatItKeepsAlive(t *testing.T) {
	for _, tt := range []struct {
		name  string
		large eventhub.Event
	}{
		{"of a topic that nobody ever read", eventhub.Event{Topic: "unread"}},
		{"of a topic whose readers have left", eventhub.Event{Topic: "left"}},
		{"that is a duplicate", eventhub.Event{Topic: "t", ID: "same"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.large.Payload = []byte(`"` + strings.Repeat("x", 1<<20-2) + `"`)
			keepAlive(t, tt.large)
		})
	}
}

func keepAlive(t *testing.T, large eventhub.Event) {
	const n, limit = 30, 1 << 20
	ctx := context.Background()
	b, err := New(Options{Store: &discard{Store: memory.Open(memory.Options{})}, TailCacheBytes: limit})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for _, topic := range []string{"left", "t"} {
		sub, err := b.Subscribe(ctx, opts(topic, "g"), takeNothing{})
		if err != nil {
			t.Fatal(err)
		}
		if topic == "left" {
			sub.Drop(0)
		}
	}
	before := heapBytes()
	for range n {
		if _, err := b.Publish(ctx, large, eventhub.Event{Topic: "t", Payload: []byte(`1`)}); err != nil {
			t.Fatal(err)
		}
	}
	if grown := heapBytes() - before; grown > 8*limit {
		t.Errorf("with a cache of %d bytes, %d small events keep %d bytes alive", limit, n, grown)
	}
}

func heapBytes() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// discard is a store that numbers events and forgets them, save for the id
// "same".
type discard struct {
	*memory.Store
	head, same uint64
}

func (d *discard) Commit(ctx context.Context, units []*store.Unit, sync bool) error {
	for _, u := range units {
		if len(u.Groups) > 0 {
			return d.Store.Commit(ctx, units, sync)
		}
		for i := range u.Appends {
			a := &u.Appends[i]
			if a.ID == "same" && d.same != 0 {
				a.Offset, a.Duplicate = d.same, true
				continue
			}
			d.head++
			a.Offset = d.head
			if a.ID == "same" {
				d.same = a.Offset
			}
		}
	}
	return nil
}

// TestUnwatchedTopicKeepsNothing: when the last member has left, events go by
// the cache, and members that come and go leave no watcher behind.
func TestUnwatchedTopicKeepsNothing(t *testing.T) {
	inBubble(t, func(r *rig) {
		for range 3 {
			in := r.subscribe(opts("t", "g"))
			r.publish("t", 1, 1)
			if r.tails() == 0 {
				t.Error("the tail is empty while a member is there")
			}
			in.sub.Drop(0)
		}
		r.publish("t", 1, 1)
		equal(t, "bytes in the tail", r.tails(), 0)
		equal(t, "watchers", len(r.bus.logs["t"].watchers), 0)
	})
}
