package pebble

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"eventhub"
	"eventhub/internal/eventid"
	"eventhub/internal/record"
	"eventhub/store"

	pdb "github.com/cockroachdb/pebble/v2"
)

var (
	compactEvents = flag.Int("compact.events", 1_000_000, "events that BenchmarkCompact compacts")
	compactKeys   = flag.Int("compact.keys", 10_000, "keys that they have")
	compactGiven  = flag.Bool("compact.given", false, "BenchmarkCompact gives the ids, as the SDK does")
)

// BenchmarkCompact compacts a topic of which every event but the newest of each key goes. One run
// is one pass. What it writes is what Pebble does from its beginning until nothing moves any more.
func BenchmarkCompact(b *testing.B) {
	for b.Loop() {
		s := mustOpen(b, onDisk(b, b.TempDir()))
		fillKeyed(b, s)
		before := s.db.Metrics()
		marks := uint64(*compactEvents)
		mustRemove(b, s, store.TopicChange{Topic: "t", Compacted: marks, Tombstones: marks})
		began := time.Now()
		steps, longest := 0, time.Duration(0)
		var total store.Usage
		for done := false; !done; steps++ {
			began := time.Now()
			var u store.Usage
			var err error
			if u, done, err = s.Compact(context.Background(), "t"); err != nil {
				b.Fatal(err)
			}
			total.Events += u.Events
			longest = max(longest, time.Since(began))
		}
		b.ReportMetric(time.Since(began).Seconds(), "s")
		b.ReportMetric(float64(steps), "steps")
		b.ReportMetric(float64(longest.Milliseconds()), "ms-longest")
		b.ReportMetric(float64(total.Events), "removed")
		awaitQuiet(s)
		after := s.db.Metrics()
		for name, bytes := range map[string]uint64{
			"log": after.WAL.BytesWritten - before.WAL.BytesWritten, "flushed": flushed(after) - flushed(before),
			"merged": merged(after) - merged(before), "before": tables(before), "after": tables(after),
		} {
			b.ReportMetric(float64(bytes)/(1<<20), "MiB-"+name)
		}
		mustClose(b, s)
	}
}

func fillKeyed(b *testing.B, s *Store) {
	rng := rand.New(rand.NewPCG(1, 2))
	payload := make([]byte, 258)
	u := &store.Unit{}
	for n := range *compactEvents {
		for i := range payload {
			payload[i] = 'a' + byte(rng.IntN(26))
		}
		payload[0], payload[257] = '"', '"'
		e := eventhub.Event{Topic: "t", Key: fmt.Sprint("key-", rng.IntN(*compactKeys)), Payload: payload}
		a := store.Append{Topic: "t", Key: e.Key, NewID: !*compactGiven}
		if e.ID = eventid.New(); *compactGiven {
			a.ID = e.ID
		}
		var err error
		if a.Record, err = record.Append(nil, &e); err != nil {
			b.Fatal(err)
		}
		if u.Appends = append(u.Appends, a); len(u.Appends) == 1000 || n == *compactEvents-1 {
			if err := s.Commit(context.Background(), []*store.Unit{u}, false); err != nil {
				b.Fatal(err)
			}
			u = &store.Unit{}
		}
		if n == 1000 {
			mustIndex(b, s, "t")
		}
	}
	awaitQuiet(s)
}

// awaitQuiet waits until Pebble has had nothing to do for a while.
func awaitQuiet(s *Store) {
	for last, since := uint64(0), time.Now(); time.Since(since) < rangeFlush+2*time.Second; time.Sleep(100 * time.Millisecond) {
		m := s.db.Metrics()
		if now := flushed(m) + merged(m) + uint64(m.Compact.DeleteOnlyCount); now != last || m.Compact.NumInProgress > 0 {
			last, since = now, time.Now()
		}
	}
}

func flushed(m *pdb.Metrics) (bytes uint64) { return m.Levels[0].TableBytesFlushed }

func merged(m *pdb.Metrics) (bytes uint64) {
	for _, l := range m.Levels {
		bytes += l.TableBytesCompacted
	}
	return bytes
}

func tables(m *pdb.Metrics) (bytes uint64) {
	for _, l := range m.Levels {
		bytes += uint64(l.TablesSize)
	}
	return bytes
}
