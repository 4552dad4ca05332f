package bus

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"eventhub"
	"eventhub/store/memory"
)

// counter is a Receiver that only counts.
type counter struct {
	delivered *atomic.Int64
	want      int64
	done      chan struct{} // closed by who brings delivered to want
}

func (r counter) Deliver(batch []eventhub.Delivery) int {
	if r.delivered.Add(int64(len(batch))) == r.want {
		close(r.done)
	}
	return len(batch)
}

func (counter) Ended(error) {}

// BenchmarkTails is one publisher and many tails of its topic, in process and over
// memory: what the engine itself costs for each event that a tail is given.
func BenchmarkTails(b *testing.B) {
	for _, tails := range []int{1, 1000, 5000} {
		for _, batch := range []int{1, 100} {
			b.Run(fmt.Sprintf("tails=%d/batch=%d", tails, batch), func(b *testing.B) { benchmarkTails(b, tails, batch) })
		}
	}
}

func benchmarkTails(b *testing.B, tails, size int) {
	s := memory.Open(memory.Options{})
	defer s.Close()
	bus, err := New(Options{Store: s})
	if err != nil {
		b.Fatal(err)
	}
	defer bus.Close()
	ctx := context.Background()
	all := counter{new(atomic.Int64), int64(b.N * size * tails), make(chan struct{})}
	for range tails {
		if _, err := bus.Tail(ctx, eventhub.TailOptions{Topic: "bench.tails"}, all); err != nil {
			b.Fatal(err)
		}
	}
	events := make([]eventhub.Event, size)
	for i := range events {
		events[i] = eventhub.Event{Topic: "bench.tails", Payload: payload256}
	}
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		if _, err := bus.Publish(ctx, events...); err != nil {
			b.Fatal(err)
		}
	}
	<-all.done
	b.StopTimer()
	b.ReportMetric(float64(all.want)/b.Elapsed().Seconds(), "deliveries/s")
}
