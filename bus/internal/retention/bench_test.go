package retention

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/commit"
	"eventhub/store"
)

// BenchmarkCommitted is what a commit of 100 events, each of another one of 10,000 topics,
// costs besides the commit: without policies, with some that concern other topics, by age, and
// by count.
func BenchmarkCommitted(b *testing.B) {
	const topics, events = 10_000, 100
	name := func(i int) string { return fmt.Sprint("bench.t", i%topics) }
	for _, tt := range []struct {
		name   string
		policy admin.Retention
		others bool
	}{
		{"without", admin.Retention{}, false},
		{"others", admin.Retention{}, true},
		{"age", admin.Retention{Age: admin.Period(24 * time.Hour)}, false},
		{"count", admin.Retention{Count: 1 << 40}, false},
	} {
		b.Run(tt.name, func(b *testing.B) {
			p := policies{of: make(map[string]admin.Retention)}
			for i := range topics {
				if tt.policy != (admin.Retention{}) {
					p.of[name(i)] = tt.policy
				}
			}
			if tt.others {
				p.of["another"] = admin.Retention{Count: 1}
			}
			r := New(Options{Logger: slog.New(slog.DiscardHandler), Policies: &p, Wall: time.Now})
			var jobs [][]*commit.Request
			for i := range topics / events {
				job := &commit.Request{Units: make([]store.Unit, 1)}
				for j := range events {
					job.Units[0].Appends = append(job.Units[0].Appends,
						store.Append{Topic: name(i*events + j), Offset: 1, CommitTime: time.Now().UnixMilli(), Record: make(eventhub.Record, 400)})
				}
				jobs = append(jobs, []*commit.Request{job})
				r.Committed(jobs[i])
			}
			for _, e := range r.entries {
				if e != nil {
					e.measured = true
				}
			}
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				r.Committed(jobs[n%len(jobs)])
				n++
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n*events), "ns/event")
		})
	}
}
