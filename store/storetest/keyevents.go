package storetest

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"eventhub/internal/testsize"
	"eventhub/store"

	"pgregory.net/rapid"
)

var keyEventTests = []test{
	{name: "of keys that look alike", run: testKeyEventsKeys},
	{name: "pages have bounds", run: testKeyEventsBounds},
	{name: "of removed events", run: testKeyEventsRemoved},
	{name: "many that are erased", run: testKeyEventsErased},
	{name: "of another life", run: testKeyEventsLife},
}

// keyEvents returns the events of a key below an offset, in as many calls as it takes.
func (s *env) keyEvents(t failer, topic, key string, before uint64, limit, maxBytes int) (rows []row) {
	t.Helper()
	for calls := 0; ; calls++ {
		var b store.Batch
		next, err := s.KeyEvents(context.Background(), topic, key, before, limit, maxBytes, &b)
		if err != nil {
			t.Fatalf("KeyEvents(%q, %q, %d): %v", topic, key, before, err)
		}
		size := 0
		for i, item := range b.Items {
			if size += len(item.Record); i >= limit || i > 0 && size > maxBytes {
				t.Errorf("KeyEvents(%q, %q, %d, %d, %d) has %d events", topic, key, before, limit, maxBytes, len(b.Items))
			}
		}
		rows = append(rows, batchRows(&b)...)
		if next == 0 {
			return rows
		}
		if before != 0 && next >= before || calls > 10_000 {
			t.Fatalf("KeyEvents(%q, %q, %d) goes on below %d", topic, key, before, next)
		}
		before = next
	}
}

func testKeyEventsKeys(t *testing.T, s *env) {
	want := make(map[string][]row)
	for round := range 3 {
		for i, key := range s.someKeys() {
			a := s.add(t, keyed("t", fmt.Sprintf("%d-%d", round, i), key))
			want[key] = append(rowsOf(a), want[key]...)
		}
		s.add(t, given("t", fmt.Sprint("none ", round)), keyed("u", fmt.Sprint("other ", round), "a"))
	}
	for _, key := range s.someKeys() {
		for _, limit := range []int{1, 2, 1000} {
			same(t, fmt.Sprintf("events of %q by %d", key, limit), want[key], s.keyEvents(t, "t", key, 0, limit, noLimit))
		}
		same(t, fmt.Sprintf("events of %q before its newest", key), want[key][1:], s.keyEvents(t, "t", key, want[key][0].Offset, 2, noLimit))
	}
	same(t, "events of no key", []row(nil), s.keyEvents(t, "t", "nobody", 0, 1, noLimit))
	same(t, "events of no topic", []row(nil), s.keyEvents(t, "none", "a", 0, 1, noLimit))
}

func testKeyEventsBounds(t *testing.T, s *env) {
	all := s.add(t, keyed("t", "1", "k"), tombstone("t", "2", "k"), keyed("t", "3", "l"), keyed("t", "4", "k"), keyed("t", "5", "k"))
	for _, tt := range []struct {
		before          uint64
		limit, maxBytes int
		want            []row
		next            uint64
	}{
		{0, 9, noLimit, some(all, 5, 4, 2, 1), 0},
		{0, 2, noLimit, some(all, 5, 4), all[1].Offset + 1},
		{0, 9, 0, some(all, 5), all[3].Offset + 1},
		{0, 9, len(all[4].Record) + len(all[3].Record), some(all, 5, 4), all[1].Offset + 1},
		{all[3].Offset, 9, noLimit, some(all, 2, 1), 0},
		{all[2].Offset, 1, noLimit, some(all, 2), all[0].Offset + 1},
		{1, 9, noLimit, nil, 0},
		{1 << 53, 1, noLimit, some(all, 5), all[3].Offset + 1},
	} {
		var b store.Batch
		next, err := s.KeyEvents(context.Background(), "t", "k", tt.before, tt.limit, tt.maxBytes, &b)
		if err != nil {
			t.Fatal(err)
		}
		what := fmt.Sprintf("events before %d, %d of %d bytes", tt.before, tt.limit, tt.maxBytes)
		same(t, what, tt.want, batchRows(&b))
		same(t, what+": next", tt.next, next)
	}
}

func testKeyEventsRemoved(t *testing.T, s *env) {
	all := s.add(t, keyed("t", "1", "k"), keyed("t", "2", "k"), tombstone("t", "3", "k"), keyed("t", "4", "k"), keyed("t", "5", "k"))
	marks := func(what string, want [3]uint64) {
		t.Helper()
		var b store.Batch
		if _, err := s.KeyEvents(context.Background(), "t", "k", 0, 1, noLimit, &b); err != nil {
			t.Fatal(err)
		}
		same(t, what, want, [3]uint64{b.Horizon, b.Compacted, b.Tombstones})
	}
	marks("the marks", [3]uint64{1})
	s.commit(t, &store.Unit{Topics: []store.TopicChange{{Topic: "t", Horizon: all[1].Offset, Erase: []uint64{all[3].Offset}}}})
	for range 2 {
		same(t, "what is left", some(all, 5, 3, 2), s.keyEvents(t, "t", "k", 0, 2, noLimit))
		marks("the marks after a trim", [3]uint64{all[1].Offset})
		s.sweepAll(t)
	}
	s.commit(t, &store.Unit{Topics: []store.TopicChange{{Topic: "t", Compacted: all[2].Offset}}})
	s.compact(t, "t")
	same(t, "what is left of a compacted key", some(all, 5, 3), s.keyEvents(t, "t", "k", 0, 1, noLimit))
	marks("the marks after a compaction", [3]uint64{all[1].Offset, all[2].Offset})
}

// testKeyEventsErased: what is erased and not swept is passed in bounded steps.
func testKeyEventsErased(t *testing.T, s *env) {
	n := testsize.Of(6000, 1500) // more than one change erases
	var all []store.Append
	for i := range n {
		all = append(all, keyed("t", fmt.Sprint(i), "k"))
	}
	all = s.add(t, all...)
	for i := 1; i < n-1; i += store.MaxErase {
		ch := store.TopicChange{Topic: "t"}
		for _, a := range all[i:min(i+store.MaxErase, n-1)] {
			ch.Erase = append(ch.Erase, a.Offset)
		}
		s.commit(t, &store.Unit{Topics: []store.TopicChange{ch}})
	}
	same(t, "events", rowsOf([]store.Append{all[n-1], all[0]}), s.keyEvents(t, "t", "k", 0, 1000, noLimit))
}

func testKeyEventsLife(t *testing.T, s *env) {
	s.add(t, keyed("t", "1", "k"), keyed("t", "2", "k"))
	s.deleteTopic(t, "t", false)
	same(t, "events of a topic that was deleted", []row(nil), s.keyEvents(t, "t", "k", 0, 9, noLimit))
	a := s.add(t, keyed("t", "3", "k"))
	same(t, "events of its next life", rowsOf(a), s.keyEvents(t, "t", "k", 0, 9, noLimit))
}

// checkKeyEvents compares the events of a key, below some offset, with those of the model.
func (m *model) checkKeyEvents(rt *rapid.T, name string) {
	key := rapid.SampledFrom(modelKeys[2:]).Draw(rt, "key")
	before := rapid.SampledFrom([]uint64{0, 0, 1, m.last[name], m.last[name] + 1, m.last[name] / 2}).Draw(rt, "before")
	limit := rapid.IntRange(1, 4).Draw(rt, "limit")
	maxBytes := rapid.SampledFrom([]int{0, 300, noLimit}).Draw(rt, "max_bytes")
	var want []row
	for _, e := range slices.Backward(m.events(name)) {
		if e.key == key && (before == 0 || e.Offset < before) {
			want = append(want, e.row)
		}
	}
	same(rt, fmt.Sprintf("events of %q below %d", key, before), want, m.env.keyEvents(rt, name, key, before, limit, maxBytes))
}
