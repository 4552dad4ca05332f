package pebble

import (
	"context"
	"flag"
	"fmt"
	"testing"
	"time"

	"eventhub/store"
)

var scaleEvents = flag.Int("scale.events", 1_000_000, "events in the store that BenchmarkOpen opens")

// BenchmarkOpen opens a store of many events, as it was closed and as a crash leaves
// it, and reads the end of the log. One run opens it once each way.
func BenchmarkOpen(b *testing.B) {
	for _, given := range []bool{false, true} {
		b.Run(fmt.Sprintf("given=%v", given), func(b *testing.B) { benchOpen(b, given) })
	}
}

func benchOpen(b *testing.B, areGiven bool) {
	dir := b.TempDir()
	s := mustOpen(b, onDisk(b, dir))
	u, renew := newBenchUnit(1000, areGiven)
	for range *scaleEvents / 1000 {
		renew()
		if err := s.Commit(context.Background(), []*store.Unit{u}, false); err != nil {
			b.Fatal(err)
		}
	}
	open := func() (*Store, time.Duration) {
		began := time.Now()
		s := mustOpen(b, onDisk(b, dir))
		var batch store.Batch
		if err := s.Read(context.Background(), "bench.topic", uint64(*scaleEvents), 1, 1<<20, &batch); err != nil || len(batch.Items) != 1 {
			b.Fatalf("the last event: %d of them, %v", len(batch.Items), err)
		}
		return s, time.Since(began)
	}
	for b.Loop() {
		mustCommit(b, s, true, given("other", "x"))
		copied := b.TempDir()
		if err := s.Checkpoint(context.Background(), copied+"/crashed"); err != nil {
			b.Fatal(err)
		}
		mustClose(b, s)
		var took time.Duration
		s, took = open()
		b.ReportMetric(took.Seconds(), "s-closed")
		dir = copied + "/crashed"
		mustClose(b, s)
		s, took = open()
		b.ReportMetric(took.Seconds(), "s-crashed")
	}
	mustClose(b, s)
}

// BenchmarkCommitTopics is a commit of 100 events to 100 of so many topics, in turn.
func BenchmarkCommitTopics(b *testing.B) {
	for _, topics := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("topics=%d", topics), func(b *testing.B) {
			s := openBench(b)
			defer mustClose(b, s)
			names := make([]string, topics)
			u, renew := newBenchUnit(100, false)
			units := []*store.Unit{u}
			next := 0
			commit := func() {
				renew()
				for i := range u.Appends {
					u.Appends[i].Topic = names[next%topics]
					next++
				}
				if err := s.Commit(context.Background(), units, true); err != nil {
					b.Fatal(err)
				}
			}
			for i := range names {
				names[i] = fmt.Sprintf("bench.topic.%06d", i)
			}
			for next < topics { // they are made
				commit()
			}
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				commit()
			}
			b.ReportMetric(float64(100*b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
}
