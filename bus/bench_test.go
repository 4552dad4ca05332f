package bus

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/store/memory"
	"eventhub/store/pebble"
)

// payload256 is a JSON string of 256 bytes.
var payload256 = fmt.Appendf(nil, `"%s"`, bytes.Repeat([]byte("x"), 254))

// onDisk is a bus over the embedded store in a directory of the benchmark, with
// an fsync for every commit.
func onDisk(b *testing.B) *Bus { return onDiskWith(b, Options{}) }

func onDiskWith(b *testing.B, o Options) *Bus {
	b.Helper()
	s, err := pebble.Open(pebble.Options{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	o.Store = s
	bus, err := New(o)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := bus.Close(); err != nil {
			b.Error(err)
		}
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	})
	return bus
}

// BenchmarkPublish is the durable publish in process: batches of 100 atomic
// events of 256 B from several goroutines, each waiting for its receipts.
func BenchmarkPublish(b *testing.B) {
	for _, publishers := range []int{1, 4, 16} {
		b.Run(fmt.Sprintf("batch=100/publishers=%d", publishers), func(b *testing.B) {
			bus := onDisk(b)
			events := make([]eventhub.Event, 100)
			for i := range events {
				events[i] = eventhub.Event{Topic: "bench.publish", Payload: payload256}
			}
			b.ReportAllocs()
			b.ResetTimer()
			var wg sync.WaitGroup
			for p := range publishers {
				wg.Go(func() {
					for i := p; i < b.N; i += publishers {
						if _, err := bus.Publish(context.Background(), events...); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			b.ReportMetric(float64(b.N*len(events))/b.Elapsed().Seconds(), "events/s")
		})
	}
}

// BenchmarkPublishWithSettings is a publish to one after the other of 10,000 topics: without
// settings, with those that publishing does not look at, and where each topic requires keys.
func BenchmarkPublishWithSettings(b *testing.B) {
	const topics = 10_000
	name := func(i int) string { return fmt.Sprint("bench.t", i%topics) }
	for _, tt := range []struct {
		name     string
		settings *admin.TopicSettings
	}{
		{"without", nil},
		{"retention", &admin.TopicSettings{Retention: admin.Retention{Age: admin.Period(24 * time.Hour)}}},
		{"count", &admin.TopicSettings{Retention: admin.Retention{Count: 1_000_000}}},
		{"count that is reached", &admin.TopicSettings{Retention: admin.Retention{Count: 10}}},
		{"keys", &admin.TopicSettings{KeyRequired: true}},
	} {
		b.Run(tt.name, func(b *testing.B) {
			var o Options
			for i := 0; i < topics && tt.settings != nil; i++ {
				o.Topics = append(o.Topics, admin.SettingsEntry{Name: name(i), Settings: *tt.settings})
			}
			bus := onDiskWith(b, o)
			events := make([]eventhub.Event, 100)
			publish := func(i int) {
				for j := range events {
					events[j] = eventhub.Event{Topic: name(i*len(events) + j), Key: "k", Payload: payload256}
				}
				if _, err := bus.Publish(context.Background(), events...); err != nil {
					b.Fatal(err)
				}
			}
			for i := range topics / len(events) { // creates the topics
				publish(i)
			}
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				publish(n)
				n++
			}
			b.ReportMetric(float64(n*len(events))/b.Elapsed().Seconds(), "events/s")
		})
	}
}

// BenchmarkDeliver is publish, delivery and ack in process, over memory: what
// the engine itself costs.
func BenchmarkDeliver(b *testing.B) {
	s := memory.Open(memory.Options{})
	bus, err := New(Options{Store: s})
	if err != nil {
		b.Fatal(err)
	}
	defer bus.Close()
	ctx, cancel := context.WithCancel(context.Background())
	acked := 0
	finished := make(chan error, 1)
	go func() {
		finished <- eventhub.Consume(ctx, bus, eventhub.GroupOptions{Topic: "bench.deliver", Group: "g", MaxInFlight: 1000,
			Start: eventhub.Earliest}, func(context.Context, eventhub.Delivery) error {
			if acked++; acked == b.N*100 {
				cancel()
			}
			return nil
		})
	}()
	events := make([]eventhub.Event, 100)
	for i := range events {
		events[i] = eventhub.Event{Topic: "bench.deliver", Payload: payload256}
	}
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		if _, err := bus.Publish(ctx, events...); err != nil {
			b.Fatal(err)
		}
	}
	if err := <-finished; err != nil {
		b.Fatal(err)
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N*100)/b.Elapsed().Seconds(), "events/s")
}

// BenchmarkAckAndPublish is the durable ack-and-publish in process: calls of 64 ack-and-publishes of one
// event each, one call after the other, next to a publish of 64 events and 64 acks
// of the same group, each with a commit.
func BenchmarkAckAndPublish(b *testing.B) {
	const each = 64
	ctx := context.Background()
	event := func(topic string) eventhub.Event { return eventhub.Event{Topic: topic, Payload: payload256} }
	fill := func(b *testing.B, bus *Bus) (*leaseQueue, eventhub.Subscription) {
		events := make([]eventhub.Event, each)
		for i := range events {
			events[i] = event("bench.in")
		}
		for range b.N {
			if _, err := bus.Publish(ctx, events...); err != nil {
				b.Fatal(err)
			}
		}
		if _, err := bus.Publish(ctx, event("bench.out")); err != nil {
			b.Fatal(err)
		}
		q := &leaseQueue{leases: make(chan eventhub.Lease, 8*each)}
		sub, err := bus.Subscribe(ctx, eventhub.GroupOptions{Topic: "bench.in", Group: "g", MaxInFlight: 4 * each,
			Start: eventhub.Earliest}, q)
		if err != nil {
			b.Fatal(err)
		}
		return q, sub
	}
	run := func(b *testing.B, do func()) {
		b.ReportAllocs()
		b.ResetTimer()
		for range b.N {
			do()
		}
		b.StopTimer()
		b.ReportMetric(float64(b.N*each)/b.Elapsed().Seconds(), "events/s")
	}
	b.Run("ack-and-publish", func(b *testing.B) {
		q, sub := fill(b, onDisk(b))
		hs := make([]eventhub.AckPublish, each)
		done := make(chan struct{})
		run(b, func() {
			for i := range hs {
				hs[i] = eventhub.AckPublish{Refs: []eventhub.Ref{{Lease: <-q.leases}}, Events: []eventhub.Event{event("bench.out")}}
			}
			sub.AckAndPublish(ctx, hs, func(hs []eventhub.AckPublish) {
				for i := range hs {
					if hs[i].Err != nil {
						b.Error(hs[i].Err)
					}
				}
				done <- struct{}{}
			})
			<-done
		})
	})
	b.Run("publish", func(b *testing.B) {
		bus := onDisk(b)
		events := make([]eventhub.Event, each)
		for i := range events {
			events[i] = event("bench.out")
		}
		run(b, func() {
			if _, err := bus.Publish(ctx, events...); err != nil {
				b.Fatal(err)
			}
		})
	})
	b.Run("ack", func(b *testing.B) {
		bus := onDisk(b)
		q, sub := fill(b, bus)
		refs := make([]eventhub.Ref, each)
		run(b, func() {
			for i := range refs {
				refs[i] = eventhub.Ref{Lease: <-q.leases}
			}
			if _, err := sub.Settle(ctx, eventhub.Settlement{Refs: refs}); err != nil {
				b.Fatal(err)
			}
			if err := bus.running("bench.in", "g").write(ctx); err != nil {
				b.Fatal(err)
			}
		})
	})
}

// leaseQueue is a member that passes on its leases.
type leaseQueue struct{ leases chan eventhub.Lease }

func (q *leaseQueue) Deliver(batch []eventhub.Delivery) int {
	for i := range batch {
		q.leases <- batch[i].Lease
	}
	return len(batch)
}

func (q *leaseQueue) Ended(error) {}
