package storetest

import (
	"context"
	"strings"
	"testing"

	"eventhub"
	"eventhub/store"
)

var offsetTests = []test{
	{name: "start at 1 and rise in each topic alone", run: testOffsetsRise},
	{name: "go on after reopening", run: testOffsetsAfterReopen},
	{name: "go on after unsynced commits and reopening", run: testOffsetsAfterUnsynced},
	{name: "record is patched in place", run: testRecordPatched},
	{name: "record of the caller is not kept", run: testRecordNotKept},
	{name: "record given out is the reader's", run: testRecordGivenOut},
}

// rising fails the test unless the appends' offsets rise from above last; it
// returns the last.
func rising(t failer, last uint64, appends []store.Append) uint64 {
	t.Helper()
	for _, a := range appends {
		if a.Offset <= last {
			t.Errorf("id %q got offset %d after %d", a.ID, a.Offset, last)
		}
		if a.Duplicate {
			t.Errorf("id %q is called a duplicate", a.ID)
		}
		last = a.Offset
	}
	return last
}

func testOffsetsRise(t *testing.T, s *env) {
	a := s.add(t, given("a", "1"), given("a", "2"), given("a", "3"))
	if a[0].Offset != 1 {
		t.Errorf("the first offset is %d; want 1", a[0].Offset)
	}
	b := s.add(t, given("b", "4"))
	if b[0].Offset != 1 {
		t.Errorf("the first offset of the second topic is %d; want 1", b[0].Offset)
	}
	mixed := s.add(t, given("b", "5"), given("a", "6"), given("b", "7"))
	a, b = append(a, mixed[1]), append(b, mixed[0], mixed[2])
	rising(t, 0, a)
	rising(t, 0, b)
	same(t, "topic a", rowsOf(a), s.readAll(t, "a"))
	same(t, "topic b", rowsOf(b), s.readAll(t, "b"))
	same(t, "heads", []uint64{a[3].Offset, b[2].Offset}, []uint64{s.head(t, "a"), s.head(t, "b")})
}

func testOffsetsAfterReopen(t *testing.T, s *env) {
	first := s.add(t, given("a", "1"), given("a", "2"))
	other := s.add(t, given("b", "3"))
	s.reopen(t)
	if !s.Capabilities().Persistent {
		same(t, "topics", []store.TopicInfo(nil), s.listTopics(t, "", noLimit))
		if again := s.add(t, given("a", "4")); again[0].Offset != 1 {
			t.Errorf("the first offset is %d; want 1", again[0].Offset)
		}
		return
	}
	same(t, "head", first[1].Offset, s.head(t, "a"))
	more := s.add(t, given("a", "4"), given("b", "5"))
	rising(t, first[1].Offset, more[:1])
	rising(t, other[0].Offset, more[1:])
	same(t, "topic a", rowsOf(append(first, more[0])), s.readAll(t, "a"))
	same(t, "topic b", rowsOf(append(other, more[1])), s.readAll(t, "b"))
}

// Close makes durable what was committed without sync.
func testOffsetsAfterUnsynced(t *testing.T, s *env) {
	var all []store.Append
	var last uint64
	for _, id := range []string{"1", "2", "3"} {
		u := unit(given("a", id))
		if err := s.Commit(context.Background(), []*store.Unit{u}, false); err != nil {
			t.Fatal(err)
		}
		last = rising(t, last, u.Appends)
		all = append(all, u.Appends...)
		same(t, "head", last, s.head(t, "a"))
	}
	s.commit(t)
	same(t, "topic", rowsOf(all), s.readAll(t, "a"))
	s.reopen(t)
	if !s.Capabilities().Persistent {
		return
	}
	more := s.add(t, given("a", "4"))
	rising(t, last, more)
	same(t, "topic after reopening", rowsOf(append(all, more...)), s.readAll(t, "a"))
}

func testRecordPatched(t *testing.T, s *env) {
	s.clock.set(7)
	own := newAppend("t", "own", "", 5)
	for _, a := range s.add(t, given("t", "plain"), own) {
		if got := a.Record.CommitTime(); got != startTime+7 || a.CommitTime != got {
			t.Errorf("id %q: the record has commit time %d, the result %d; want %d", a.ID, got, a.CommitTime, startTime+7)
		}
		stored := s.readFrom(t, "t", a.Offset, 1, noLimit)
		same(t, "stored record", []row{rowOf(a)}, stored)
		if e, err := eventhub.Record(stored[0].Record).Event(a.Offset); err != nil || e.CommitTime().UnixMilli() != startTime+7 || e.ID != a.ID {
			t.Errorf("decoded event is %+v, %v", e, err)
		}
	}
}

func testRecordNotKept(t *testing.T, s *env) {
	a := keyed("t", "1", "k")
	s.commit(t, unit(a))
	want := row{1, string(a.Record)}
	copy(a.Record, strings.Repeat("x", len(a.Record)))
	same(t, "record after the caller changed its own", []row{want}, s.readAll(t, "t"))
	same(t, "latest after the caller changed its own", want, s.latest(t, "t", "k", 0))
}

func testRecordGivenOut(t *testing.T, s *env) {
	a := s.add(t, keyed("t", "1", "k"))[0]
	item, err := s.Latest(context.Background(), "t", "k", 0)
	if err != nil {
		t.Fatal(err)
	}
	var b store.Batch
	if err := s.Read(context.Background(), "t", 1, 1, 1, &b); err != nil {
		t.Fatal(err)
	}
	clear(item.Record)
	clear(b.Items[0].Record)
	same(t, "record after a reader changed its own", []row{rowOf(a)}, s.readAll(t, "t"))
	same(t, "latest after a reader changed its own", rowOf(a), s.latest(t, "t", "k", 0))
}
