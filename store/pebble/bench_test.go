package pebble

import (
	"context"
	"fmt"
	"testing"

	"eventhub/internal/record/layout"
	"eventhub/store"
)

// newBenchUnit is a unit of n events of 256 B in one topic, whose ids the store makes, or
// renew gives: ones that were not used before.
func newBenchUnit(n int, given bool) (u *store.Unit, renew func()) {
	u = &store.Unit{Appends: make([]store.Append, n)}
	for i := range u.Appends {
		u.Appends[i] = store.Append{Topic: "bench.topic", NewID: !given, Record: newRecord("bench.topic", layout.IDRoom, 256)}
	}
	serial := 0
	return u, func() {
		for i := range u.Appends {
			if !given {
				break
			}
			serial++
			id := u.Appends[i].Record.ID()
			for at, rest := len(id)-1, serial; rest > 0; at, rest = at-1, rest/10 {
				id[at] = byte('0' + rest%10)
			}
			u.Appends[i].ID = string(id)
		}
	}
}

func openBench(b *testing.B) *Store {
	b.Helper()
	o := onDisk(b, b.TempDir())
	return mustOpen(b, o)
}

func BenchmarkCommit(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		for _, given := range []bool{false, true} {
			b.Run(fmt.Sprintf("events=%d/given=%v", n, given), func(b *testing.B) {
				s := openBench(b)
				defer mustClose(b, s)
				u, renew := newBenchUnit(n, given)
				units := []*store.Unit{u}
				b.ReportAllocs()
				for b.Loop() {
					b.StopTimer()
					renew()
					b.StartTimer()
					if err := s.Commit(context.Background(), units, true); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(n*b.N)/b.Elapsed().Seconds(), "events/s")
			})
		}
	}
}

func BenchmarkRead(b *testing.B) {
	const events, page = 200_000, 1000
	s := openBench(b)
	defer mustClose(b, s)
	u, renew := newBenchUnit(1000, false)
	for range events / 1000 {
		renew()
		if err := s.Commit(context.Background(), []*store.Unit{u}, false); err != nil {
			b.Fatal(err)
		}
	}
	var batch store.Batch
	from, read := uint64(1), 0
	b.ReportAllocs()
	for b.Loop() {
		batch.Reset()
		if err := s.Read(context.Background(), "bench.topic", from, page, 1<<30, &batch); err != nil {
			b.Fatal(err)
		}
		read += len(batch.Items)
		if from += page; from > events {
			from = 1
		}
	}
	b.ReportMetric(float64(read)/b.Elapsed().Seconds(), "events/s")
}

// BenchmarkCommitGroups writes what a busy hub writes of its groups every 50 ms:
// headers, and with each a part that was there before.
func BenchmarkCommitGroups(b *testing.B) {
	const groups, partBytes = 40, 300
	for _, parts := range []int{0, 1} {
		for _, sync := range []bool{true, false} {
			b.Run(fmt.Sprintf("groups=%d/parts=%d/sync=%v", groups, parts, sync), func(b *testing.B) {
				s := openBench(b)
				defer mustClose(b, s)
				var units []*store.Unit
				for g := range groups {
					ch := store.GroupChange{Topic: "bench.topic", Group: fmt.Sprint("group-", g), Create: true}
					for range parts {
						ch.Parts = append(ch.Parts, store.GroupPart{Kind: 1, Offset: 4096, Value: make([]byte, partBytes)})
					}
					units = append(units, &store.Unit{Groups: []store.GroupChange{ch}})
				}
				b.ReportAllocs()
				for b.Loop() {
					if err := s.Commit(context.Background(), units, sync); err != nil {
						b.Fatal(err)
					}
					for _, u := range units {
						if u.Err != nil {
							b.Fatal(u.Err)
						}
						u.Groups[0].Create = false
						u.Groups[0].State.Cursor++
					}
				}
				b.ReportMetric(float64(groups*b.N)/b.Elapsed().Seconds(), "groups/s")
			})
		}
	}
}

// BenchmarkSweepStep is one step of the sweep of a topic with events of 2 KiB.
func BenchmarkSweepStep(b *testing.B) {
	s := openBench(b)
	defer mustClose(b, s)
	fill := func() {
		u, renew := newBenchUnit(1000, false)
		for i := range u.Appends {
			u.Appends[i].Record = newRecord("bench.topic", layout.IDRoom, 2<<10)
		}
		for range 20 {
			renew()
			if err := s.Commit(context.Background(), []*store.Unit{u}, false); err != nil {
				b.Fatal(err)
			}
		}
		if err := s.DeleteTopic(context.Background(), "bench.topic"); err != nil {
			b.Fatal(err)
		}
	}
	more := false
	b.ReportAllocs()
	for b.Loop() {
		if !more {
			b.StopTimer()
			fill()
			b.StartTimer()
		}
		more = mustSweep(b, s).More()
	}
}
