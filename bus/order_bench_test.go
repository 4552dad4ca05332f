package bus

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"eventhub"
	"eventhub/store/memory"
)

// ackingReceiver acks all it is given, in batches, but the events of one key.
type ackingReceiver struct {
	never []byte
	wake  chan struct{}

	mu   sync.Mutex
	refs []eventhub.Ref
}

func (a *ackingReceiver) Deliver(batch []eventhub.Delivery) int {
	a.mu.Lock()
	for i := range batch {
		if a.never == nil || !bytes.Equal(batch[i].Record.Key(), a.never) {
			a.refs = append(a.refs, eventhub.Ref{Lease: batch[i].Lease})
		}
	}
	a.mu.Unlock()
	select {
	case a.wake <- struct{}{}:
	default:
	}
	return len(batch)
}

func (a *ackingReceiver) Ended(error) {}

func (a *ackingReceiver) take() []eventhub.Ref {
	a.mu.Lock()
	defer a.mu.Unlock()
	refs := a.refs
	a.refs = nil
	return refs
}

// BenchmarkStuckKey catches up with a backlog of 1,000 keys in turn, in a group
// without ordering, in one ordered by key, and in one ordered by key where one
// key is never acked.
func BenchmarkStuckKey(b *testing.B) {
	for _, tt := range []struct {
		name, ordering string
		never          []byte
	}{
		{"ordering=none", eventhub.OrderingNone, nil},
		{"ordering=key", eventhub.OrderingKey, nil},
		{"ordering=key/stuck=1", eventhub.OrderingKey, []byte("k7")},
	} {
		b.Run(tt.name, func(b *testing.B) {
			s := memory.Open(memory.Options{})
			bus, err := New(Options{Store: s})
			if err != nil {
				b.Fatal(err)
			}
			defer bus.Close()
			ctx := context.Background()
			events := make([]eventhub.Event, 1000)
			for i := range events {
				events[i] = eventhub.Event{Topic: "bench.keys", Key: fmt.Sprintf("k%d", i), Payload: payload256}
			}
			for range b.N {
				if _, err := bus.Publish(ctx, events...); err != nil {
					b.Fatal(err)
				}
			}
			want := b.N * 1000
			if tt.never != nil {
				want -= b.N
			}
			r := &ackingReceiver{never: tt.never, wake: make(chan struct{}, 1)}
			b.ResetTimer()
			sub, err := bus.Subscribe(ctx, eventhub.GroupOptions{
				Topic: "bench.keys", Group: "g", Ordering: tt.ordering, MaxInFlight: 1000, AckTimeout: time.Hour,
				Start: eventhub.Earliest,
			}, r)
			if err != nil {
				b.Fatal(err)
			}
			for acked := 0; acked < want; {
				<-r.wake
				refs := r.take()
				if _, err := sub.Settle(ctx, eventhub.Settlement{Refs: refs}); err != nil {
					b.Fatal(err)
				}
				acked += len(refs)
			}
			b.StopTimer()
			b.ReportMetric(float64(want)/b.Elapsed().Seconds(), "events/s")
		})
	}
}
