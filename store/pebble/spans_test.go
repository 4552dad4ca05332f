package pebble

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	pdb "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"eventhub"
	"eventhub/internal/eventid"
	"eventhub/internal/record"
	"eventhub/store"
)

// TestTablesOfOneSort: no table has both records and entries of an index.
func TestTablesOfOneSort(t *testing.T) {
	s := mustOpen(t, onMem(t, vfs.NewMem()))
	defer mustClose(t, s)
	for _, id := range idsAlike {
		mustCommit(t, s, true, given("t", id))
	}
	if done, err := s.flush(context.Background()); !done || err != nil {
		t.Fatalf("flush: %v, %v", done, err)
	}
	levels, err := s.db.SSTables()
	if err != nil {
		t.Fatal(err)
	}
	sorts := make(map[byte]bool)
	for _, table := range slices.Concat(levels...) {
		from, to := table.Smallest.UserKey[0], table.Largest.UserKey[0]
		if sorts[from] = true; from != to && (slices.Contains(spanEnds, from) || slices.Contains(spanEnds, to)) {
			t.Errorf("a table has keys from %q to %q", from, to)
		}
	}
	if !sorts[tagEvent] || !sorts[tagID] {
		t.Errorf("the tables begin with %v: none with a record, or none with an id", sorts)
	}
}

// TestMergesOfOneSort: where the tables of ids are merged no record is written again.
func TestMergesOfOneSort(t *testing.T) {
	const flushes, events, payloadBytes = 8, 800, 8 << 10
	o, merges := onMem(t, vfs.NewMem()), make(chan bool, 100)
	o.tune = func(p *pdb.Options) {
		small(p)
		p.EventListener.CompactionEnd = func(info pdb.CompactionInfo) {
			if info.Reason == "default" {
				merges <- true
			}
		}
		p.MemTableSize = 16 << 20
		p.TargetFileSizes[0] = 1 << 20
		p.LBaseMaxBytes = baseLevelBytes
	}
	s := mustOpen(t, o)
	defer mustClose(t, s)
	rng := rand.New(rand.NewPCG(1, 2))
	for range flushes {
		flushGiven(t, s, events, func() []byte { return randomText(rng, payloadBytes) })
	}
	<-merges // one at least
	m := s.db.Metrics()
	t.Logf("%d bytes flushed, %d merged", flushed(m), merged(m))
	if all := uint64(flushes * events * payloadBytes); merged(m) > all/8 {
		t.Errorf("%d bytes were written by merges, of %d of records: %s", merged(m), all, fmt.Sprint(m))
	}
}

// randomText is a JSON string of so many bytes that no compression finds anything in.
func randomText(rng *rand.Rand, n int) []byte {
	text := make([]byte, n)
	letters := uint64(0)
	for i := range text {
		if i%8 == 0 {
			letters = rng.Uint64()
		}
		text[i] = 'a' + byte(letters)%26
		letters >>= 8
	}
	text[0], text[n-1] = '"', '"'
	return text
}

// flushGiven commits so many events with ids of their publisher, and flushes them.
func flushGiven(t *testing.T, s *Store, events int, payload func() []byte) {
	t.Helper()
	appends := make([]store.Append, events)
	for i := range appends {
		e := eventhub.Event{Topic: "t", ID: eventid.New(), Payload: payload()}
		var err error
		if appends[i].Record, err = record.Append(nil, &e); err != nil {
			t.Fatal(err)
		}
		appends[i].Topic, appends[i].ID = "t", e.ID
	}
	mustCommit(t, s, false, appends...)
	if done, err := s.flush(context.Background()); !done || err != nil {
		t.Fatalf("flush: %v, %v", done, err)
	}
}

// TestCompressedByFlushes: a flush compresses records that shrink well, and no others.
func TestCompressedByFlushes(t *testing.T) {
	const events, payloadBytes = 1000, 256
	rng := rand.New(rand.NewPCG(1, 2))
	for _, tt := range []struct {
		name    string
		payload func() []byte
		small   bool
	}{
		{"random text", func() []byte { return randomText(rng, payloadBytes) }, false},
		{"JSON", func() []byte {
			return fmt.Appendf(nil, `{"order":%d,"state":"accepted","customer":{"name":"somebody","country":"Somewhere"},"items":[{"product":"lamp","count":%d,"price":%d}],"source":"shop","accepted":true}`,
				rng.IntN(1e9), rng.IntN(10), rng.IntN(1e5))
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := mustOpen(t, onMem(t, vfs.NewMem()))
			defer mustClose(t, s)
			bytes := 0
			flushGiven(t, s, events, func() []byte {
				p := tt.payload()
				bytes += len(p)
				return p
			})
			if got := int(flushed(s.db.Metrics())); got < bytes*2/3 != tt.small {
				t.Errorf("%d bytes of payloads made %d bytes of tables", bytes, got)
			}
		})
	}
}
