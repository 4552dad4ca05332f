package storetest

import (
	"context"
	"fmt"
	"testing"

	"eventhub"
	"eventhub/internal/record"
	"eventhub/internal/testsize"
	"eventhub/store"
)

var compactionTests = []test{
	{name: "the newest of each key is kept", run: testCompact},
	{name: "the marks only go up", run: testCompactedRises},
	{name: "in steps", run: testCompactMany},
	{name: "tombstones", run: testTombstones},
	{name: "what was erased does not count", run: testCompactErased},
	{name: "below a horizon", run: testCompactTrimmed},
	{name: "a late duplicate", run: testCompactDuplicate},
	{name: "links", run: testCompactLinks},
	{name: "nothing to compact", run: testCompactNothing},
}

// compact compacts until it is done.
func (s *env) compact(t failer, topic string) (total store.Usage) {
	t.Helper()
	for {
		u, done, err := s.Compact(context.Background(), topic)
		if err != nil {
			t.Fatalf("Compact(%q): %v", topic, err)
		}
		total.Events += u.Events
		total.Bytes += u.Bytes
		if done {
			return total
		}
	}
}

// tombstone is keyed with a payload that is null.
func tombstone(topic, id, key string) store.Append { return withPayload(topic, id, key, "null") }

func withPayload(topic, id, key, payload string) store.Append {
	bytes, err := record.Append(nil, &eventhub.Event{Topic: topic, ID: id, Key: key, Payload: []byte(payload)})
	if err != nil {
		panic(err)
	}
	return store.Append{Topic: topic, ID: id, Key: key, Record: bytes}
}

// some returns the rows of appends by their places.
func some(added []store.Append, at ...int) (rows []row) {
	for _, i := range at {
		rows = append(rows, rowOf(added[i-1]))
	}
	return rows
}

func testCompact(t *testing.T, s *env) {
	added := s.add(t, keyed("t", "1", "a"), keyed("t", "2", "b"), keyed("t", "3", "a"), given("t", "4"), keyed("t", "5", "a"), keyed("t", "6", "b"))
	s.remove(t, store.TopicChange{Topic: "t", Compacted: 4})
	same(t, "the topic", []store.TopicInfo{{Name: "t", Head: 6, Horizon: 1, Compacted: 4, LastTime: startTime}}, s.topicInfos(t, "", 5))
	b := store.Batch{Horizon: 9, Compacted: 9, Tombstones: 9}
	for _, from := range []uint64{1, 7} {
		if err := s.Read(context.Background(), "t", from, 1, noLimit, &b); err != nil || b.Compacted != 4 || b.Tombstones != 0 {
			t.Errorf("a read from %d has the marks %d and %d, %v; want 4 and 0", from, b.Compacted, b.Tombstones, err)
		}
	}
	if err := s.Read(context.Background(), "none", 1, 1, noLimit, &b); err != nil || b.Compacted != 0 {
		t.Errorf("a read of no topic has the mark %d, %v", b.Compacted, err)
	}
	b.Compacted, b.Tombstones = 4, 4
	b.Reset()
	same(t, "the marks after a reset", [2]uint64{}, [2]uint64{b.Compacted, b.Tombstones})
	u := s.compact(t, "t")
	same(t, "what was removed", store.Usage{Events: 1, Bytes: uint64(len(added[0].Record))}, u)
	s.each(t, func(t *testing.T) {
		same(t, "events", some(added, 2, 3, 4, 5, 6), s.readAll(t, "t"))
		for at := uint64(4); at < 8; at++ {
			want := map[uint64]int{4: 3, 5: 5, 6: 5, 7: 5}[at]
			same(t, fmt.Sprint("a at ", at), rowOf(added[want-1]), s.latest(t, "t", "a", at))
		}
		same(t, "b at 4", rowOf(added[1]), s.latest(t, "t", "b", 4))
		same(t, "the one that is gone", uint64(0), s.find(t, "t", "1"))
		got, _ := s.measure(t, "t", 1, store.Usage{})
		same(t, "what there is", uint64(5), got.Events)
		same(t, "what is left to remove", store.Usage{}, s.compact(t, "t"))
	})
	s.remove(t, store.TopicChange{Topic: "t", Compacted: 6})
	same(t, "what was removed next", uint64(2), s.compact(t, "t").Events)
	s.each(t, func(t *testing.T) {
		same(t, "events", some(added, 4, 5, 6), s.readAll(t, "t"))
		same(t, "head", uint64(6), s.head(t, "t"))
	})
}

func testCompactedRises(t *testing.T, s *env) {
	s.add(t, keyed("t", "1", "a"), keyed("t", "2", "a"), keyed("t", "3", "a"))
	for _, tt := range []struct{ compacted, tombstones, wantCompacted, wantTombstones uint64 }{
		{0, 5, 0, 0}, {2, 1, 2, 1}, {1, 0, 2, 1}, {0, 7, 2, 2}, {9, 0, 3, 2}, {0, 9, 3, 3},
	} {
		s.remove(t, store.TopicChange{Topic: "t", Compacted: tt.compacted, Tombstones: tt.tombstones})
		s.each(t, func(t *testing.T) {
			info, err := s.Topic(context.Background(), "t")
			if err != nil || info.Compacted != tt.wantCompacted || info.Tombstones != tt.wantTombstones {
				t.Errorf("after %+v the marks are %d and %d, %v", tt, info.Compacted, info.Tombstones, err)
			}
		})
	}
}

// testCompactMany: each pass does what the passes before have not, a little at a time, and
// goes on after a restart.
func testCompactMany(t *testing.T, s *env) {
	const keys, passes = 70, 3
	events := testsize.Of(6000, 600)
	u := &store.Unit{}
	for i := range events {
		u.Appends = append(u.Appends, keyed("t", fmt.Sprint(i), fmt.Sprint("k", (i*11)%keys)))
	}
	s.commit(t, u)
	for pass := 1; pass <= passes; pass++ {
		upTo := events / passes * pass
		s.remove(t, store.TopicChange{Topic: "t", Compacted: uint64(upTo)})
		if _, _, err := s.Compact(context.Background(), "t"); err != nil {
			t.Fatal(err)
		}
		if s.Capabilities().Persistent {
			s.reopen(t)
		}
		s.compact(t, "t")
		var want []row
		for i, a := range u.Appends {
			if i+keys >= upTo {
				want = append(want, rowOf(a))
			}
		}
		s.each(t, func(t *testing.T) { same(t, fmt.Sprint("events after pass ", pass), want, s.readAll(t, "t")) })
	}
}

func testTombstones(t *testing.T, s *env) {
	added := s.add(t, keyed("t", "1", "a"), tombstone("t", "2", "a"), keyed("t", "3", "b"), tombstone("t", "4", "b"), tombstone("t", "5", "c"), keyed("t", "6", "c"))
	s.remove(t, store.TopicChange{Topic: "t", Compacted: 5, Tombstones: 2})
	s.compact(t, "t")
	s.each(t, func(t *testing.T) {
		same(t, "events", some(added, 4, 5, 6), s.readAll(t, "t"))
		same(t, "a", row{}, s.latest(t, "t", "a", 0))
		same(t, "b", rowOf(added[3]), s.latest(t, "t", "b", 0))
	})
	s.remove(t, store.TopicChange{Topic: "t", Tombstones: 5})
	s.compact(t, "t")
	s.each(t, func(t *testing.T) {
		same(t, "events", some(added, 6), s.readAll(t, "t"))
		same(t, "b", row{}, s.latest(t, "t", "b", 0))
		same(t, "c", rowOf(added[5]), s.latest(t, "t", "c", 0))
	})
	// An event whose payload only looks like one, and one without a key, are kept.
	more := s.add(t, withPayload("t", "7", "d", `{"payload":null}`), withPayload("t", "8", "e", `"\"payload\":null}"`), tombstone("t", "9", ""))
	s.remove(t, store.TopicChange{Topic: "t", Compacted: 9, Tombstones: 9})
	s.compact(t, "t")
	same(t, "what is no tombstone", append(some(added, 6), rowsOf(more)...), s.readAll(t, "t"))
}

func testCompactErased(t *testing.T, s *env) {
	added := s.add(t, keyed("t", "1", "a"), keyed("t", "2", "a"), keyed("t", "3", "a"), keyed("t", "4", "a"))
	s.remove(t, store.TopicChange{Topic: "t", Erase: []uint64{3}})
	s.remove(t, store.TopicChange{Topic: "t", Compacted: 3})
	s.compact(t, "t")
	s.each(t, func(t *testing.T) {
		same(t, "events", some(added, 2, 4), s.readAll(t, "t"))
		same(t, "a at 3", rowOf(added[1]), s.latest(t, "t", "a", 3))
	})
}

func testCompactTrimmed(t *testing.T, s *env) {
	added := s.many(t, "t", 9) // keys k0, k1, k2 in turn
	s.remove(t, store.TopicChange{Topic: "t", Horizon: 5, Compacted: 8})
	same(t, "what was removed", uint64(1), s.compact(t, "t").Events)
	s.each(t, func(t *testing.T) { same(t, "events", some(added, 6, 7, 8, 9), s.readAll(t, "t")) })
}

func testCompactDuplicate(t *testing.T, s *env) {
	s.add(t, keyed("t", "1", "a"), keyed("t", "2", "a"))
	s.remove(t, store.TopicChange{Topic: "t", Compacted: 2})
	s.compact(t, "t")
	s.each(t, func(t *testing.T) {
		duplicate(t, s.add(t, keyed("t", "1", "a"))[0], store.Append{Offset: 1})
		same(t, "events", 1, len(s.readAll(t, "t")))
	})
}

func testCompactLinks(t *testing.T, s *env) {
	s.many(t, "t", 6)
	s.remove(t, store.TopicChange{Topic: "t", Compacted: 6})
	s.compact(t, "t")
	s.each(t, func(t *testing.T) {
		want := []store.Place{{Topic: "t", Offset: 4}, {Topic: "t", Offset: 5}, {Topic: "t", Offset: 6}}
		same(t, "effects", want, s.effects(t, "cause", store.Place{}, 20))
		same(t, "correlated", want, s.correlated(t, "corr", store.Place{}, 20))
	})
}

func testCompactNothing(t *testing.T, s *env) {
	same(t, "of no topic", store.Usage{}, s.compact(t, "none"))
	s.add(t, keyed("t", "1", "a"), keyed("t", "2", "a"))
	same(t, "without a mark", store.Usage{}, s.compact(t, "t"))
	same(t, "events", 2, len(s.readAll(t, "t")))
}
