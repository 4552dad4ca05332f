package guard_test

import (
	"context"
	"fmt"
	"testing"

	"eventhub"
	"eventhub/auth/guard"
	"eventhub/auth/policy"
)

// silent is an engine that takes publications and does nothing.
type silent struct{ guard.Engine }

func (silent) Enqueue(_ context.Context, pubs []eventhub.Publication, done func([]eventhub.Publication)) {
	done(pubs)
}

// BenchmarkEnqueue is what a guard adds to 64 publications of one event that a connection hands
// over together: to one topic, and to so many that some are decided again.
func BenchmarkEnqueue(b *testing.B) {
	var words []string
	for i := range 9 {
		words = append(words, fmt.Sprintf("publish:team%d.**", i))
	}
	p := policy.Scopes(append(words, "publish:bench.*"))
	for _, topics := range []int{1, 16, 1000} {
		b.Run(fmt.Sprintf("topics=%d", topics), func(b *testing.B) {
			e := guard.For(silent{}, p, nil)
			pubs := make([]eventhub.Publication, 64)
			names := make([]string, topics)
			for i := range names {
				names[i] = fmt.Sprintf("bench.t%d", i)
			}
			done := func(pubs []eventhub.Publication) {
				if pubs[0].Err != nil {
					b.Fatal(pubs[0].Err)
				}
			}
			for i := range pubs {
				pubs[i].Events = make([]eventhub.Event, 1)
			}
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				for i := range pubs {
					pubs[i].Events[0].Topic = names[n%topics]
					n++
				}
				e.Enqueue(b.Context(), pubs, done)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(pubs)), "ns/event")
		})
	}
}
