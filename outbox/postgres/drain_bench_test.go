package postgres_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"eventhub/hubtest"
	"eventhub/outbox"
	"eventhub/outbox/postgres"
)

// BenchmarkDrain drains rows into a hub with a store on disk, by so many drainers with so
// many rows at once. The ratio to BenchmarkUpdate is what all but the database costs.
func BenchmarkDrain(b *testing.B) {
	for _, c := range []struct{ drainers, batch, rows int }{{1, 1, 2000}, {1, 100, postgres.RowsOfBench}, {1, 1000, postgres.RowsOfBench}, {4, 100, postgres.RowsOfBench}} {
		b.Run(fmt.Sprintf("drainers=%d/batch=%d", c.drainers, c.batch), func(b *testing.B) {
			h := hubtest.Start(b)
			s := postgres.OpenForBench(b)
			for b.Loop() {
				b.StopTimer()
				postgres.FillForBench(b, s, c.rows)
				b.StartTimer()
				var all sync.WaitGroup
				for range c.drainers {
					d, err := outbox.NewDrainer(s, h.Client(), outbox.Options{Batch: c.batch, UntilEmpty: true, Interval: 10 * time.Millisecond})
					if err != nil {
						b.Fatal(err)
					}
					all.Go(func() {
						if err := d.Run(context.Background()); err != nil {
							b.Error(err)
						}
					})
				}
				all.Wait()
			}
			b.ReportMetric(float64(c.rows*b.N)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}
