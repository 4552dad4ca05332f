package postgres

import (
	"context"
	"fmt"
	"testing"
	"time"

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
