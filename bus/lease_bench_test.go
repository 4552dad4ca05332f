package bus

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"eventhub"
	"eventhub/store/memory"
)

// taker takes all it is given and keeps nothing.
type taker struct {
	got  atomic.Int64
	want int64
	all  chan struct{} // closed with the want-th delivery
}

func (r *taker) Deliver(batch []eventhub.Delivery) int {
	if r.got.Add(int64(len(batch))) == r.want {
		close(r.all)
	}
	return len(batch)
}

func (r *taker) Ended(error) {}

// BenchmarkLeases is what a million leases cost in memory, and after them events that wait for another attempt, and how long another group
// waits for an event at worst while they run out all at once, and, for comparison,
// before: a few events a second would wait for a turn of theirs, or a lock.
//
// Memory is given over the store that keeps its own: the other one's cache would count.
func BenchmarkLeases(b *testing.B) {
	b.Run("memory", func(b *testing.B) {
		s := memory.Open(memory.Options{})
		bus, err := New(Options{Store: s})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			if err := errors.Join(bus.Close(), s.Close()); err != nil {
				b.Error(err)
			}
		})
		benchmarkLeases(b, bus)
	})
	b.Run("disk", func(b *testing.B) { benchmarkLeases(b, onDisk(b)) })
}

func benchmarkLeases(b *testing.B, bus *Bus) {
	const leases, timeout = 1_000_000, 15 * time.Second
	for range b.N {
		publish := func(topic string, n int) {
			for n > 0 {
				events := make([]eventhub.Event, min(n, 1000))
				for i := range events {
					events[i] = eventhub.Event{Topic: topic, Payload: []byte("1")}
				}
				if _, err := bus.Publish(context.Background(), events...); err != nil {
					b.Fatal(err)
				}
				n -= len(events)
			}
		}
		publish("much", leases)
		before := heapAlloc()
		o := opts("much", "g")
		o.MaxInFlight, o.BatchSize, o.AckTimeout = leases, 1000, timeout
		o.Backoff = eventhub.Backoff{Min: time.Hour, Max: time.Hour}
		much := &taker{want: leases, all: make(chan struct{})}
		sub, err := bus.Subscribe(context.Background(), o, much)
		if err != nil {
			b.Fatal(err)
		}
		<-much.all
		held := heapAlloc() - before
		g := bus.running("much", "g")
		b.ReportMetric(float64(held)/leases, "B/lease")

		probe := newProbe(b, bus)
		calm := probe.worst(func() bool { return g.expired() > 0 })
		storm := probe.worst(func() bool { return g.expired() == leases })
		waits := heapAlloc() - before
		b.ReportMetric(float64(waits)/leases, "B/waiting")
		b.ReportMetric(float64(calm.Microseconds())/1000, "ms-worst-before")
		b.ReportMetric(float64(storm.Microseconds())/1000, "ms-worst-while-expiring")
		if err := sub.Unsubscribe(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}

func (g *group) expired() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.counts.Expired
}

// probe is a publisher and a member of another topic.
type probe struct {
	b    *testing.B
	bus  *Bus
	came chan struct{}
}

func newProbe(b *testing.B, bus *Bus) *probe {
	p := &probe{b: b, bus: bus, came: make(chan struct{}, 1)}
	o := opts("little", "g")
	o.AutoAck = true
	if _, err := bus.Subscribe(context.Background(), o, p); err != nil {
		b.Fatal(err)
	}
	return p
}

func (p *probe) Deliver(batch []eventhub.Delivery) int {
	p.came <- struct{}{}
	return len(batch)
}

func (p *probe) Ended(error) {}

// worst returns how long an event took at worst from its publish to its delivery, one
// every two milliseconds until over.
func (p *probe) worst(over func() bool) (worst time.Duration) {
	for !over() {
		began := time.Now()
		if _, err := p.bus.Publish(context.Background(), eventhub.Event{Topic: "little", Payload: []byte("1")}); err != nil {
			p.b.Fatal(err)
		}
		<-p.came
		worst = max(worst, time.Since(began))
		time.Sleep(2 * time.Millisecond)
	}
	return worst
}
