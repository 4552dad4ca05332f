package pebble

import (
	"context"
	"encoding/binary"
	"fmt"
	"syscall"
	"testing"
	"time"

	"eventhub"
	"eventhub/internal/record"
	"eventhub/internal/record/layout"
	"eventhub/store"
)

// BenchmarkIndexKeys builds the key index of a topic of a million events with 1,000 keys, and says how
// many events it goes through in a second, and how much time of processors one costs.
func BenchmarkIndexKeys(b *testing.B) {
	const events, perCommit = 1_000_000, 1000
	s := mustOpen(b, Options{Dir: b.TempDir(), Logger: quiet})
	defer mustClose(b, s)
	payload := fmt.Appendf(nil, `"%0200d"`, 0)
	for n := 0; n < events; n += perCommit {
		u := &store.Unit{}
		for i := range perCommit {
			key := fmt.Sprint("key-", (n+i)*7919%1000)
			r, err := record.Append(nil, &eventhub.Event{Topic: "t", ID: layout.IDRoom, Key: key, Payload: payload})
			if err != nil {
				b.Fatal(err)
			}
			u.Appends = append(u.Appends, store.Append{Topic: "t", NewID: true, Key: key, Record: r})
		}
		if err := s.Commit(context.Background(), []*store.Unit{u}, false); err != nil {
			b.Fatal(err)
		}
	}
	change := func(ch store.IndexChange) {
		u := &store.Unit{Topics: []store.TopicChange{{Topic: "t", Index: ch}}}
		if err := s.Commit(context.Background(), []*store.Unit{u}, true); err != nil || u.Err != nil {
			b.Fatal(err, u.Err)
		}
	}
	awaitIdle(s)
	began := processorTime(b)
	for b.Loop() {
		change(store.DropIndex)
		change(store.StartIndex)
		for done := false; !done; {
			var err error
			if _, done, err = s.IndexKeys(context.Background(), "t", nil); err != nil {
				b.Fatal(err)
			}
		}
	}
	awaitIdle(s)
	b.ReportMetric(float64((processorTime(b)-began).Nanoseconds())/float64(events*b.N), "cpu-ns/event")
	b.ReportMetric(float64(b.N)*events/b.Elapsed().Seconds(), "events/s")
}

// BenchmarkCommitIndexed commits events of 256 B which have nothing that is indexed; a key in a topic without the key
// index, and with it; one id in caused_by; or a correlation that ten of them have. It says how much time of processors
// an event costs, with what Pebble does later.
func BenchmarkCommitIndexed(b *testing.B) {
	const events = 1000
	for _, what := range []string{"nothing", "key", "key indexed", "cause", "correlation"} {
		b.Run(what, func(b *testing.B) {
			s := openBench(b)
			defer mustClose(b, s)
			u, _ := newBenchUnit(events, false)
			units := []*store.Unit{u}
			if err := s.Commit(context.Background(), units, false); err != nil {
				b.Fatal(err)
			}
			if what == "key indexed" {
				mustIndex(b, s, u.Appends[0].Topic)
			}
			var random [16]byte
			began := processorTime(b)
			for n := 0; b.Loop(); n++ {
				for i := range u.Appends {
					a := &u.Appends[i]
					binary.BigEndian.PutUint64(random[:], uint64(n*events+i)*0x9e3779b97f4a7c15)
					switch what {
					case "key", "key indexed":
						a.Key = fmt.Sprintf("key-%03d", random[0])
					case "cause":
						a.CausedBy = []string{fmt.Sprintf("%036x", random)}
					case "correlation":
						binary.BigEndian.PutUint64(random[:], uint64(n*events+i)/10*0x9e3779b97f4a7c15)
						a.Correlation = fmt.Sprintf("%036x", random)
					default:
						_ = fmt.Sprintf("%036x", random)
					}
				}
				if err := s.Commit(context.Background(), units, true); err != nil {
					b.Fatal(err)
				}
			}
			awaitIdle(s)
			b.ReportMetric(float64((processorTime(b)-began).Nanoseconds())/float64(events*b.N), "cpu-ns/event")
			b.ReportMetric(float64(events*b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
}

// processorTime is what this process has used.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// awaitIdle waits until Pebble neither flushes nor compacts.
func awaitIdle(s *Store) {
	for {
		m := s.db.Metrics()
		if m.Compact.NumInProgress == 0 && m.Flush.NumInProgress == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}
