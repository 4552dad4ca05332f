package bus

import (
	"context"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"eventhub"
	"eventhub/store/memory"
)

const (
	filterEvents = 1_000_000
	filterOneIn  = 100 // the rare ones
)

// filterEvent is the i-th event: one in filterOneIn is rare, by its key, by a header,
// by a tag and by its payload. The last of each lot is, so that who has all the rare
// ones has looked at all others.
func filterEvent(i int) eventhub.Event {
	e := eventhub.Event{
		Topic: "bench.filter", Key: fmt.Sprint("host-", i%filterOneIn), Headers: map[string]string{"x-source": "sensor", "x-kind": "common"},
		Tags: []string{"#all", "#common"}, Payload: []byte(`{"pid":12345,"name":"stt","cpu_pct":12.3,"rare":false}`),
	}
	if i%filterOneIn == filterOneIn-1 {
		e.Headers["x-kind"], e.Tags[1] = "rare", "#rare"
		e.Payload = []byte(`{"pid":12345,"name":"stt","cpu_pct":12.3,"rare":true}`)
	}
	return e
}

// BenchmarkFilter has a new group catch up with a million events; its filter
// lets one in a hundred pass: events that were looked at, by second and by second of
// processor time, all of the engine's goroutines together. Without a filter every
// event is delivered.
func BenchmarkFilter(b *testing.B) {
	s := memory.Open(memory.Options{})
	defer s.Close()
	bus, err := New(Options{Store: s})
	if err != nil {
		b.Fatal(err)
	}
	defer bus.Close()
	events := make([]eventhub.Event, 0, 1000)
	for i := range filterEvents {
		if events = append(events, filterEvent(i)); len(events) == cap(events) {
			if _, err := bus.Publish(context.Background(), events...); err != nil {
				b.Fatal(err)
			}
			events = events[:0]
		}
	}
	rare := fmt.Sprint("host-", filterOneIn-1)
	for _, tt := range []struct {
		name   string
		filter eventhub.Filter
	}{
		{"none", eventhub.Filter{}},
		{"key", eventhub.Filter{Key: rare}},
		{"header", eventhub.Filter{Headers: map[string]string{"x-kind": "rare"}}},
		{"tag", eventhub.Filter{Tags: []string{"#rare"}}},
		{"key+header+tag", eventhub.Filter{Key: rare, Headers: map[string]string{"x-kind": "rare"}, Tags: []string{"#rare"}}},
		{"cel=key", eventhub.Filter{CEL: fmt.Sprintf("event.key == %q", rare)}},
		{"cel=header", eventhub.Filter{CEL: `event.headers["x-kind"] == "rare"`}},
		{"cel=payload", eventhub.Filter{CEL: `event.payload.rare == true`}},
	} {
		b.Run(tt.name, func(b *testing.B) { benchmarkFilter(b, bus, &tt.filter) })
	}
}

func benchmarkFilter(b *testing.B, bus *Bus, f *eventhub.Filter) {
	ctx := context.Background()
	want := int64(filterEvents)
	if !f.IsZero() {
		want /= filterOneIn
	}
	b.ReportAllocs()
	used := processorTime(b)
	for b.Loop() {
		all := counter{new(atomic.Int64), want, make(chan struct{})}
		sub, err := bus.Subscribe(ctx, eventhub.GroupOptions{Topic: "bench.filter", Group: "g", Filter: f, AutoAck: true,
			MaxInFlight: 1000, BatchSize: 1000, Start: eventhub.Earliest}, all)
		if err != nil {
			b.Fatal(err)
		}
		<-all.done
		b.StopTimer()
		if err := sub.Unsubscribe(ctx); err != nil {
			b.Fatal(err)
		}
		if n := all.delivered.Load(); n != want {
			b.Fatalf("%d events were delivered; %d pass the filter", n, want)
		}
		if err := bus.DeleteGroup(ctx, "bench.filter", "g"); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	seen := float64(b.N) * filterEvents
	b.ReportMetric(seen/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(seen/(processorTime(b)-used).Seconds(), "events/cpu-s")
}

// processorTime is what this process has used so far.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
