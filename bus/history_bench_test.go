package bus

import (
	"context"
	"testing"

	"eventhub"
	"eventhub/admin"
)

// BenchmarkReplay reads 100,000 events of 256 B from the embedded store, in batches
// as a publisher made them.
func BenchmarkReplay(b *testing.B) {
	const events, page = 100_000, 1000
	bus := onDisk(b)
	batch := make([]eventhub.Event, page)
	for i := range batch {
		batch[i] = eventhub.Event{Topic: "bench.replay", Payload: payload256}
	}
	for range events / page {
		if _, err := bus.Publish(context.Background(), batch...); err != nil {
			b.Fatal(err)
		}
	}
	bytes, n := 0, 0
	b.ReportAllocs()
	for b.Loop() {
		err := bus.Replay(context.Background(), admin.ReplayQuery{Topic: "bench.replay"}, func(_ string, item eventhub.Item) error {
			n++
			bytes += len(item.Record)
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	if n != b.N*events {
		b.Errorf("%d events in %d replays", n, b.N)
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(float64(bytes)/1e6/b.Elapsed().Seconds(), "MB/s")
}
