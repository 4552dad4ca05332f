package pebble

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"eventhub"
	"eventhub/internal/record"
	"eventhub/internal/record/layout"
	"eventhub/store"

	"github.com/google/uuid"
)

// BenchmarkGivenIDs commits events of 256 B whose ids the store makes, and ones with ids of publishers:
// UUIDs of version 7 of 16 publishers at a time, of version 4, and text; and with one of 1,000 keys where the
// topic has the key index. It says how much time of processors an event costs, with what Pebble does later,
// and how many bytes of it are written to the log and to tables. Compare -benchtime 1000x.
func BenchmarkGivenIDs(b *testing.B) {
	for _, c := range []struct {
		ids   string
		keyed bool
	}{{"made", false}, {"v7", false}, {"v4", false}, {"text", false}, {"v7", true}} {
		b.Run(fmt.Sprintf("%s/keyed=%v", c.ids, c.keyed), func(b *testing.B) {
			s := openBench(b)
			defer mustClose(b, s)
			if c.keyed {
				mustCommit(b, s, true, made("bench.topic"))
				mustIndex(b, s, "bench.topic")
			}
			u := newGivenUnit(b, c.ids, c.keyed)
			awaitIdle(s)
			began, serial := processorTime(b), 0
			for b.Loop() {
				u.renew(serial)
				serial += len(u.Appends)
				if err := s.Commit(context.Background(), []*store.Unit{u.Unit}, false); err != nil {
					b.Fatal(err)
				}
			}
			awaitIdle(s)
			events := float64(serial)
			b.ReportMetric(float64((processorTime(b)-began).Nanoseconds())/events, "cpu-ns/event")
			m := s.db.Metrics()
			b.ReportMetric(float64(m.WAL.BytesWritten)/events, "log-B/event")
			b.ReportMetric(float64(flushed(m))/events, "flush-B/event")
			b.ReportMetric(float64(merged(m))/events, "merge-B/event")
		})
	}
}

// givenUnit is a unit whose events get other ids and keys each time.
type givenUnit struct {
	*store.Unit
	ids    string
	random *rand.Rand
}

func newGivenUnit(b *testing.B, ids string, keyed bool) *givenUnit {
	u := &givenUnit{Unit: &store.Unit{}, ids: ids, random: rand.New(rand.NewPCG(1, 2))}
	noise := make([]byte, 120)
	for range 1000 {
		for i := range noise {
			noise[i] = byte(u.random.Uint32())
		}
		e := eventhub.Event{Topic: "bench.topic", ID: layout.IDRoom, Payload: fmt.Appendf(nil, "%q", base64.RawURLEncoding.EncodeToString(noise))}
		if keyed {
			e.Key = fmt.Sprintf("key-%08d", u.random.IntN(1000))
		}
		r, err := record.Append(nil, &e)
		if err != nil {
			b.Fatal(err)
		}
		u.Appends = append(u.Appends, store.Append{Topic: e.Topic, Key: e.Key, NewID: ids == "made", Record: r})
	}
	return u
}

// renew gives the events the ids of so many after the first. A millisecond has 100 events.
func (u *givenUnit) renew(serial int) {
	for i := range u.Appends {
		a := &u.Appends[i]
		n := serial + i
		var id uuid.UUID
		switch u.ids {
		case "made":
			return
		case "text":
			a.ID = fmt.Sprintf("shop-%02d:order:%022d", n%16, n)
		case "v4":
			binary.NativeEndian.PutUint64(id[:], u.random.Uint64())
			binary.NativeEndian.PutUint64(id[8:], u.random.Uint64())
			id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
			a.ID = id.String()
		case "v7":
			ms := uint64(1_723_140_000_000 + n/100 - n%16)
			binary.BigEndian.PutUint64(id[:], ms<<16|7<<12|u.random.Uint64()&0xfff)
			binary.BigEndian.PutUint64(id[8:], 2<<62|u.random.Uint64()>>2)
			a.ID = id.String()
		}
		copy(a.Record.ID(), a.ID)
	}
}
