package bus

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"

	"eventhub"
	"eventhub/internal/testsize"
	"eventhub/store/pebble"
)

// manyTopics is how many topics one pattern has to take.
const manyTopics = 10_000

// headcount is a receiver that counts.
type headcount struct {
	n    atomic.Int64
	want chan struct{} // gets a value when n is a multiple of each
	each int64
}

func (c *headcount) Deliver(batch []eventhub.Delivery) int {
	for range batch {
		if n := c.n.Add(1); n%c.each == 0 {
			c.want <- struct{}{}
		}
	}
	return len(batch)
}

func (c *headcount) Ended(error) {}

// oneEach publishes one event to each of n topics.
func oneEach(tb testing.TB, bus *Bus, n int) {
	tb.Helper()
	for first := 0; first < n; first += 500 {
		var events []eventhub.Event
		for i := first; i < min(first+500, n); i++ {
			events = append(events, eventhub.Event{Topic: fmt.Sprintf("many.%05d", i), Payload: payload256})
		}
		if _, err := bus.Publish(context.Background(), events...); err != nil {
			tb.Fatal(err)
		}
	}
}

func heapAlloc() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// One pattern group over 10,000 topics; half of them are created while it is
// subscribed. Every event comes, no goroutine is added, and a topic costs little.
func TestPatternOverTenThousandTopics(t *testing.T) {
	topics := testsize.Of(manyTopics, 2000)
	s, err := pebble.Open(pebble.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	bus, err := New(Options{Store: s})
	if err != nil {
		t.Fatal(err)
	}
	defer bus.Close()
	oneEach(t, bus, topics/2)
	before, goroutines := heapAlloc(), runtime.NumGoroutine()
	c := &headcount{want: make(chan struct{}, 1), each: int64(topics + topics/2)}
	o := opts("many.*", "g")
	o.AutoAck = true
	sub, err := bus.Subscribe(context.Background(), o, c)
	if err != nil {
		t.Fatal(err)
	}
	oneEach(t, bus, topics) // the second event of one half, the first of the other
	<-c.want
	perTopic := (int64(heapAlloc()) - int64(before)) / int64(topics)
	t.Logf("%d topics under one pattern: %d B of heap each, %d goroutines before, %d with them", topics, perTopic, goroutines, runtime.NumGoroutine())
	if grown := runtime.NumGoroutine() - goroutines; grown > 5 {
		t.Errorf("%d goroutines were added", grown)
	}
	if perTopic > 8<<10 {
		t.Errorf("a topic costs %d bytes of heap", perTopic)
	}
	// A publish to one of them wakes one runtime.
	turns := func() (n uint64) {
		for _, g := range bus.loaded() {
			g.mu.Lock()
			n += g.counts.Poll.Count()
			g.mu.Unlock()
		}
		return n
	}
	was := turns()
	c.each = 1
	if _, err := bus.Publish(context.Background(), eventhub.Event{Topic: "many.00042", Payload: payload256}); err != nil {
		t.Fatal(err)
	}
	<-c.want
	if n := turns() - was; n > 3 {
		t.Errorf("one event took %d turns", n)
	}
	if err := sub.Unsubscribe(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// BenchmarkPublishUnderPattern is publish, delivery and ack of single events to
// one topic, 64 at a time, where a pattern group has only that topic, and where it
// has 10,000.
func BenchmarkPublishUnderPattern(b *testing.B) {
	for _, topics := range []int{1, manyTopics} {
		b.Run(fmt.Sprintf("topics=%d", topics), func(b *testing.B) {
			bus := onDisk(b)
			oneEach(b, bus, topics)
			o := opts("many.*", "g")
			o.AutoAck, o.Start = true, eventhub.Start{}
			c := &headcount{want: make(chan struct{}, 1), each: int64(b.N) * 64}
			sub, err := bus.Subscribe(context.Background(), o, c)
			if err != nil {
				b.Fatal(err)
			}
			pubs := make([]eventhub.Publication, 64)
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				for i := range pubs {
					pubs[i] = eventhub.Publication{Events: []eventhub.Event{{Topic: "many.00000", Payload: payload256}}}
				}
				answered := make(chan struct{})
				bus.Enqueue(context.Background(), pubs, func([]eventhub.Publication) { close(answered) })
				<-answered
			}
			<-c.want
			b.StopTimer()
			b.ReportMetric(float64(b.N*64)/b.Elapsed().Seconds(), "events/s")
			if err := sub.Unsubscribe(context.Background()); err != nil {
				b.Fatal(err)
			}
		})
	}
}
