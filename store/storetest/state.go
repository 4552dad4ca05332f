package storetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"eventhub/internal/testsize"
	"eventhub/store"
)

var stateTests = []test{
	{name: "of keys that look alike", run: testStateKeys},
	{name: "at a bound", run: testStateAt},
	{name: "ends of keys", run: testStateTombstones},
	{name: "what it says of the topic", run: testStateMarks},
	{name: "a page has a bound", run: testStateBounds},
	{name: "many keys without a value", run: testStateNothing},
	{name: "many events of a key", run: testStateNewer},
	{name: "one offset for all pages", run: testStatePages},
	{name: "while the topic is compacted", run: testStateBeside},
}

func testStateKeys(t *testing.T, s *env) {
	latest := make(map[string]row)
	for round := range 2 {
		for i, key := range s.someKeys() {
			latest[key] = rowOf(s.add(t, keyed("t", fmt.Sprintf("%d-%d", round, i), key))[0])
		}
	}
	s.add(t, given("t", "none"), keyed("u", "other", "a"))
	keys := slices.Sorted(slices.Values(s.someKeys()))
	for _, prefix := range append([]string{""}, keys...) {
		var want []row
		for _, key := range keys {
			if strings.HasPrefix(key, prefix) {
				want = append(want, latest[key])
			}
		}
		for _, limit := range []int{1, 3, 1000} {
			q := store.StateQuery{Topic: "t", Prefix: prefix, Limit: limit, MaxBytes: noLimit}
			same(t, fmt.Sprintf("state of %q by %d", prefix, limit), want, s.state(t, q))
		}
	}
	for i, after := range keys {
		q := store.StateQuery{Topic: "t", After: after, Limit: 1, MaxBytes: noLimit}
		var want, wantOfList []row
		for _, key := range keys[i+1:] {
			want = append(want, latest[key])
		}
		same(t, fmt.Sprintf("state after %q", after), want, s.state(t, q))
		q.Keys = []string{}
		for at := 0; at < len(keys); at += 2 {
			if q.Keys = append(q.Keys, keys[at]); at > i {
				wantOfList = append(wantOfList, latest[keys[at]])
			}
		}
		same(t, fmt.Sprintf("state of a list after %q", after), wantOfList, s.state(t, q))
	}
	same(t, "state of an empty list", []row(nil), s.state(t, store.StateQuery{Topic: "t", Keys: []string{}, Limit: 1}))
}

func testStateAt(t *testing.T, s *env) {
	same(t, "state of no topic", []row(nil), s.stateAll(t, "t", 0))
	all := s.add(t, keyed("t", "1", "k"), keyed("t", "2", "a"), keyed("t", "3", "k"), given("t", "4"), keyed("t", "5", "k"))
	for _, tt := range []struct {
		at   uint64
		want []row
	}{
		{1, some(all, 1)}, {2, some(all, 2, 1)}, {3, some(all, 2, 3)}, {4, some(all, 2, 3)}, {5, some(all, 2, 5)},
		{0, some(all, 2, 5)}, {6, some(all, 2, 5)}, {1 << 60, some(all, 2, 5)}, {1<<64 - 1, some(all, 2, 5)},
	} {
		same(t, fmt.Sprint("state at ", tt.at), tt.want, s.stateAll(t, "t", tt.at))
	}
}

func testStateTombstones(t *testing.T, s *env) {
	all := s.add(t, keyed("t", "1", "a"), keyed("t", "2", "b"), tombstone("t", "3", "a"), tombstone("t", "4", "c"), keyed("t", "5", "a"))
	same(t, "state before the end", some(all, 1, 2), s.stateAll(t, "t", 2))
	same(t, "state after the end", some(all, 2), s.stateAll(t, "t", 4))
	same(t, "state after it came back", some(all, 5, 2), s.stateAll(t, "t", 0))
	q := store.StateQuery{Topic: "t", Keys: []string{"a", "b", "c"}, At: 4, Limit: 5, MaxBytes: noLimit}
	same(t, "state of a list", some(all, 2), s.state(t, q))
}

// testStateMarks: the horizon and the marks come with the events, and what the sweep and the
// compaction have left is the state.
func testStateMarks(t *testing.T, s *env) {
	b := store.Batch{Horizon: 9, Compacted: 9, Tombstones: 9}
	read := func(at uint64) store.StatePage {
		t.Helper()
		b.Items = nil
		page, err := s.State(context.Background(), store.StateQuery{Topic: "t", At: at, Limit: 9, MaxBytes: noLimit}, &b)
		if err != nil {
			t.Fatal(err)
		}
		return page
	}
	same(t, "page of no topic", store.StatePage{Done: true}, read(0))
	same(t, "marks of no topic", [3]uint64{}, [3]uint64{b.Horizon, b.Compacted, b.Tombstones})
	added := s.many(t, "t", 9) // keys k0, k1, k2 in turn
	same(t, "page", store.StatePage{At: 9, Done: true}, read(0))
	same(t, "marks", [3]uint64{1, 0, 0}, [3]uint64{b.Horizon, b.Compacted, b.Tombstones})
	s.remove(t, store.TopicChange{Topic: "t", Horizon: 4, Compacted: 7, Tombstones: 6, Erase: []uint64{8}})
	s.compact(t, "t")
	s.each(t, func(t *testing.T) {
		same(t, "page at 7", store.StatePage{At: 7, Done: true}, read(7))
		same(t, "marks", [3]uint64{4, 7, 6}, [3]uint64{b.Horizon, b.Compacted, b.Tombstones})
		same(t, "state at 7", some(added, 7, 5, 6), batchRows(&b))
		same(t, "state at 8", some(added, 7, 5, 6), s.stateAll(t, "t", 8))
		same(t, "state", some(added, 7, 5, 9), s.stateAll(t, "t", 0))
	})
	s.remove(t, store.TopicChange{Topic: "t", Horizon: 10})
	s.each(t, func(t *testing.T) { same(t, "state when all is removed", []row(nil), s.stateAll(t, "t", 0)) })
}

func testStateBounds(t *testing.T, s *env) {
	all := s.add(t, keyed("t", "1", "a"), keyed("t", "2", "b"), keyed("t", "3", "c"))
	first, second := len(all[0].Record), len(all[0].Record)+len(all[1].Record)
	for _, tt := range []struct {
		limit, maxBytes, want int
		after                 string
	}{
		{1, noLimit, 1, "a"}, {2, noLimit, 2, "b"}, {9, 0, 1, "a"}, {9, first, 1, "a"}, {9, second - 1, 1, "a"}, {9, second, 2, "b"}, {9, noLimit, 3, ""},
	} {
		for _, keys := range [][]string{nil, {"a", "b", "c"}} {
			var b store.Batch
			q := store.StateQuery{Topic: "t", Keys: keys, Limit: tt.limit, MaxBytes: tt.maxBytes}
			page, err := s.State(context.Background(), q, &b)
			if err != nil || len(b.Items) != tt.want || page.After != tt.after {
				t.Errorf("State(%+v) has %d events and goes on after %q, %v; want %d and %q", q, len(b.Items), page.After, err, tt.want, tt.after)
			}
		}
	}
}

// testStateNothing: keys that have ended are passed a part at a time.
func testStateNothing(t *testing.T, s *env) {
	keys := testsize.Of(5000, 500)
	u := &store.Unit{}
	for i := range keys {
		u.Appends = append(u.Appends, tombstone("t", fmt.Sprint(i), fmt.Sprintf("k%05d", i)))
	}
	u.Appends = append(u.Appends, keyed("t", "last", "l"))
	s.commit(t, u)
	q := store.StateQuery{Topic: "t", Limit: 2, MaxBytes: noLimit}
	same(t, "state", some(u.Appends, keys+1), s.state(t, q))
	q.At = uint64(keys)
	same(t, "state before", []row(nil), s.state(t, q))
	for i := range keys {
		q.Keys = append(q.Keys, fmt.Sprintf("k%05d", i))
	}
	q.At, q.Keys = 0, append(q.Keys, "l")
	same(t, "state of a list", some(u.Appends, keys+1), s.state(t, q))
}

// testStateNewer: the events of a key above and below the offset are in nobody's way.
func testStateNewer(t *testing.T, s *env) {
	u := &store.Unit{}
	n := testsize.Of(6000, 600)
	for i := range n {
		u.Appends = append(u.Appends, keyed("t", fmt.Sprint(i), fmt.Sprint("k", i%3)))
	}
	s.commit(t, u)
	same(t, "state at the first ones", some(u.Appends, 1, 2, 3), s.stateAll(t, "t", 3))
	same(t, "state in the middle", some(u.Appends, n/2+1, n/2+2, n/2), s.stateAll(t, "t", uint64(n/2+2)))
	same(t, "state at the last ones", some(u.Appends, n-2, n-1, n), s.stateAll(t, "t", 0))
}

// testStatePages: what comes between two pages is in none of them.
func testStatePages(t *testing.T, s *env) {
	all := s.add(t, keyed("t", "1", "a"), keyed("t", "2", "b"), keyed("t", "3", "c"))
	var b store.Batch
	q := store.StateQuery{Topic: "t", Limit: 1, MaxBytes: noLimit}
	for page := range 3 {
		got, err := s.State(context.Background(), q, &b)
		if err != nil || got.At != 3 {
			t.Fatalf("page %d is at %d, %v; want 3", page, got.At, err)
		}
		q.At, q.After = got.At, got.After
		s.add(t, tombstone("t", fmt.Sprint("b", page), "b"), keyed("t", fmt.Sprint("c", page), "c"), keyed("t", fmt.Sprint("ab", page), "ab"))
	}
	same(t, "the pages", rowsOf(all), batchRows(&b))
}

// testStateBeside: each key has a value in every state, whatever is published, and compacted away,
// while it is read.
func testStateBeside(t *testing.T, s *env) {
	const keys = 40
	write := func(round int) uint64 {
		u := &store.Unit{}
		for i := range keys {
			u.Appends = append(u.Appends, keyed("t", fmt.Sprintf("%d-%d", round, i), fmt.Sprintf("k%02d", i)))
		}
		s.commit(t, u)
		return u.Appends[keys-1].Offset
	}
	write(0)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for round := range testsize.Of(60, 15) {
			s.remove(t, store.TopicChange{Topic: "t", Compacted: write(round + 1)})
			s.compact(t, "t")
		}
	}()
	reads := 0
	for isOver := false; !isOver; reads++ {
		select {
		case <-done:
			isOver = true
		default:
		}
		var b store.Batch
		page, err := s.State(context.Background(), store.StateQuery{Topic: "t", Limit: 2 * keys, MaxBytes: noLimit}, &b)
		if err != nil || len(b.Items) != keys || page.At < b.Compacted || !page.Done {
			t.Fatalf("read %d has %d of %d keys at %d, compacted up to %d: %+v, %v", reads, len(b.Items), keys, page.At, b.Compacted, page, err)
		}
	}
}
