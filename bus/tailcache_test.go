package bus

import (
	"context"
	"runtime"
	"strings"
	"testing"

	"eventhub"
	"eventhub/internal/testsize"
	"eventhub/store"
	"eventhub/store/memory"
)

// cached returns how many bytes of records the logs of all topics hold.
func (r *rig) cached() (bytes int) {
	_, bytes = r.bus.logs.Holds()
	return bytes
}

// readTopics returns how many topics have a log in memory, for a group or for tails.
func readTopics(b *Bus) (topics int) {
	topics, _ = b.logs.Holds()
	return topics
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
		if n := r.cached(); n > 1000 {
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
	const limit = 1 << 20
	n := testsize.Of(30, 15)
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

// discard is a store that numbers events and forgets them, except for the id
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

// TestUnwatchedTopicKeepsNothing: when the last member has left, events are not cached.
func TestUnwatchedTopicKeepsNothing(t *testing.T) {
	inBubble(t, func(r *rig) {
		for range 3 {
			in := r.subscribe(opts("t", "g"))
			r.publish("t", 1, 1)
			if r.cached() == 0 {
				t.Error("nothing is cached while a member is there")
			}
			in.Sub.Drop(0)
		}
		r.publish("t", 1, 1)
		equal(t, "bytes in the cache", r.cached(), 0)
	})
}
