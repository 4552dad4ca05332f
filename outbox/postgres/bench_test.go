package postgres

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"eventhub/hubtest"
	"eventhub/outbox"
)

// rowsOfBench are drained in each run: b.N is for the go command alone.
const rowsOfBench = 20_000

func fillBench(b *testing.B, s *Store, rows int) {
	b.Helper()
	_, err := s.pool.Exec(context.Background(), fmt.Sprintf(`INSERT INTO eventhub_outbox (topic, key, payload)
		SELECT 'bench', 'k' || n %% 1000, '{"n":' || n || ',"text":"' || repeat('x', 200) || '"}' FROM generate_series(1, %d) n`, rows))
	if err != nil {
		b.Fatal(err)
	}
	if _, err := s.pool.Exec(context.Background(), `VACUUM ANALYZE eventhub_outbox`); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkDrain drains rows into a hub with a store on disk, by so many drainers with so
// many rows at once. The ratio to BenchmarkUpdate is what all but the database costs.
func BenchmarkDrain(b *testing.B) {
	for _, c := range []struct{ drainers, batch, rows int }{{1, 1, 2000}, {1, 100, rowsOfBench}, {1, 1000, rowsOfBench}, {4, 100, rowsOfBench}} {
		b.Run(fmt.Sprintf("drainers=%d/batch=%d", c.drainers, c.batch), func(b *testing.B) {
			h := hubtest.Start(b)
			_, s := open(b)
			for b.Loop() {
				b.StopTimer()
				fillBench(b, s, c.rows)
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

// BenchmarkUpdate is the least that a database has to do for a claim: one UPDATE RETURNING of
// as many rows, and another one that marks them.
func BenchmarkUpdate(b *testing.B) {
	for _, batch := range []int{100, 1000} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			_, s := open(b)
			ctx := context.Background()
			for b.Loop() {
				b.StopTimer()
				fillBench(b, s, rowsOfBench)
				b.StartTimer()
				for range rowsOfBench / batch {
					rows, err := s.pool.Query(ctx, `UPDATE eventhub_outbox SET status = 'claimed', attempts = attempts + 1 WHERE seq = ANY (ARRAY
						(SELECT seq FROM eventhub_outbox WHERE status = 'pending' ORDER BY seq LIMIT $1)) RETURNING `+fields, batch)
					if err != nil {
						b.Fatal(err)
					}
					all, err := collect(rows)
					if err != nil {
						b.Fatal(err)
					}
					ids := make([]int64, len(all))
					for i, r := range all {
						ids[i] = r.seq
					}
					if _, err := s.pool.Exec(ctx, `UPDATE eventhub_outbox SET status = 'sent' WHERE seq = ANY ($1)`, ids); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(float64(rowsOfBench*b.N)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}

// BenchmarkClaim claims 100 rows, and gives them back, of a table with so many pending ones.
func BenchmarkClaim(b *testing.B) {
	for _, pending := range []int{1_000, 1_000_000} {
		b.Run(fmt.Sprintf("pending=%d", pending), func(b *testing.B) {
			_, s := open(b)
			fillBench(b, s, pending)
			var settled []outbox.Outcome
			for b.Loop() {
				rows, err := s.Turn(context.Background(), settled, outbox.Claim{Max: 100, Lease: time.Minute, Worker: "w", Order: outbox.ByKey})
				if err != nil || len(rows) != 100 {
					b.Fatal(len(rows), err)
				}
				settled = settled[:0]
				for _, r := range rows {
					settled = append(settled, outbox.Outcome{ID: r.Event.ID, Status: outbox.Pending, Unused: true})
				}
			}
		})
	}
}
