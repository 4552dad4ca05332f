package storetest

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"

	"eventhub/internal/testsize"
	"eventhub/store"
)

var readTests = []test{
	{name: "from", run: testReadFrom},
	{name: "limit", run: testReadLimit},
	{name: "max bytes", run: testReadMaxBytes},
	{name: "topic that does not exist", run: testReadUnknownTopic},
	{name: "topics whose names touch", run: testReadNeighbours},
	{name: "batch is appended to and reused", run: testReadBatch},
	{name: "large records", run: testReadLarge},
	{name: "find", run: testFind},
	{name: "head", run: testHead},
}

// numbered appends n fresh events to the topic, all with records of one size.
func numbered(t failer, s *env, topic string, n int) []store.Append {
	t.Helper()
	var appends []store.Append
	for i := range n {
		appends = append(appends, given(topic, fmt.Sprintf("%s-%04d", topic, i)))
	}
	return s.add(t, appends...)
}

func testReadFrom(t *testing.T, s *env) {
	all := numbered(t, s, "t", 10)
	rows := rowsOf(all)
	same(t, "from 0", rows, s.readFrom(t, "t", 0, noLimit, noLimit))
	for i, a := range all {
		same(t, fmt.Sprintf("from %d", a.Offset), rows[i:], s.readFrom(t, "t", a.Offset, noLimit, noLimit))
	}
	last := all[9].Offset
	same(t, "from after the head", []row(nil), s.readFrom(t, "t", last+1, noLimit, noLimit))
	same(t, "from far after the head", []row(nil), s.readFrom(t, "t", math.MaxUint64, noLimit, noLimit))
}

func testReadLimit(t *testing.T, s *env) {
	rows := rowsOf(numbered(t, s, "t", 10))
	for _, limit := range []int{-1, 0, 1, 9, 10, 11} {
		same(t, fmt.Sprintf("limit %d", limit), rows[:min(max(limit, 0), 10)], s.readFrom(t, "t", 1, limit, noLimit))
	}
	same(t, "limit in the middle", rows[4:7], s.readFrom(t, "t", rows[4].Offset, 3, noLimit))
}

func testReadMaxBytes(t *testing.T, s *env) {
	rows := rowsOf(numbered(t, s, "t", 5))
	size := len(rows[0].Record)
	for _, tt := range []struct{ maxBytes, want int }{
		{-1, 1}, {0, 1}, {1, 1}, {size, 1}, {2*size - 1, 1}, {2 * size, 2}, {5*size - 1, 4}, {5 * size, 5}, {noLimit, 5},
	} {
		same(t, fmt.Sprintf("max bytes %d of records of %d", tt.maxBytes, size), rows[:tt.want],
			s.readFrom(t, "t", 1, noLimit, tt.maxBytes))
	}
}

func testReadUnknownTopic(t *testing.T, s *env) {
	s.add(t, keyed("t", "1", "k"))
	same(t, "events", []row(nil), s.readAll(t, "none"))
	same(t, "head", uint64(0), s.head(t, "none"))
	same(t, "find", uint64(0), s.find(t, "none", "1"))
	same(t, "end of time", uint64(1), s.seekTime(t, "none", 0))
	same(t, "latest", row{}, s.latest(t, "none", "k", 0))
	same(t, "groups", 0, len(s.listGroups(t, "none")))
	same(t, "topics", 1, len(s.listTopics(t, "", noLimit)))
}

// testReadNeighbours: no topic shows events of another.
func testReadNeighbours(t *testing.T, s *env) {
	want := make(map[string][]row)
	for _, topic := range []string{"a", "a.b", "a.b.c", "a-b", "b", "B", "aa"} {
		want[topic] = rowsOf(numbered(t, s, topic, 3))
	}
	for topic, rows := range want {
		same(t, "events of "+topic, rows, s.readAll(t, topic))
		same(t, "events after the last of "+topic, []row(nil), s.readFrom(t, topic, rows[2].Offset+1, noLimit, noLimit))
		same(t, "end of time of "+topic, rows[2].Offset+1, s.seekTime(t, topic, math.MaxInt64))
	}
}

func testReadBatch(t *testing.T, s *env) {
	rows := rowsOf(numbered(t, s, "t", 6))
	ctx := context.Background()
	var b store.Batch
	for i := 0; i < 6; i += 2 {
		if err := s.Read(ctx, "t", rows[i].Offset, 2, noLimit, &b); err != nil {
			t.Fatal(err)
		}
	}
	same(t, "batch of three reads", rows, batchRows(&b))
	for range 3 {
		b.Reset()
		if err := s.Read(ctx, "t", rows[1].Offset, 3, noLimit, &b); err != nil {
			t.Fatal(err)
		}
		same(t, "batch used again", rows[1:4], batchRows(&b))
	}
}

func testReadLarge(t *testing.T, s *env) {
	var appends []store.Append
	size := testsize.Of(1<<20, 64<<10)
	for i := range 6 {
		a := newAppend("t", fmt.Sprint(i), strings.Repeat("k", 1000), 0)
		// A payload of about a megabyte, in a full run: larger than any buffer on the way.
		a.Record = []byte(strings.Replace(string(a.Record), "payload of", strings.Repeat(fmt.Sprint(i), size), 1))
		appends = append(appends, a)
	}
	all := rowsOf(s.add(t, appends...))
	if got := s.readAll(t, "t"); len(got) != len(all) {
		t.Fatalf("read %d events; want %d", len(got), len(all))
	}
	for i, r := range all {
		if got := s.readFrom(t, "t", r.Offset, 1, 0); len(got) != 1 || got[0] != r {
			t.Errorf("event %d came back otherwise", i)
		}
	}
	if got := s.latest(t, "t", strings.Repeat("k", 1000), 0); got != all[5] {
		t.Errorf("latest is at offset %d; want %d", got.Offset, all[5].Offset)
	}
}

func testFind(t *testing.T, s *env) {
	all := s.add(t, given("t", "a"), given("t", "ab"), given("t", "a.b"), given("t", "A:1_-"))
	for _, a := range all {
		same(t, "offset of "+a.ID, a.Offset, s.find(t, "t", a.ID))
	}
	for _, id := range []string{"", "b", "a.", "abc", strings.Repeat("z", 64)} {
		same(t, fmt.Sprintf("offset of %q", id), uint64(0), s.find(t, "t", id))
	}
	if _, err := s.Find(context.Background(), "t", "none"); err == nil {
		t.Error("Find of an id that is not there: no error")
	}
}

func testHead(t *testing.T, s *env) {
	same(t, "head before the first", uint64(0), s.head(t, "t"))
	for i := range 3 {
		a := numbered(t, s, fmt.Sprint("t", i), i+1)
		same(t, "head", a[i].Offset, s.head(t, fmt.Sprint("t", i)))
	}
}
