package storetest

import (
	"fmt"
	"testing"

	"eventhub/store"
)

var timeTests = []test{
	{name: "commit time does not decrease", run: testTimeMonotonic},
	{name: "commit time does not decrease over reopening", run: testTimeAfterReopen},
	{name: "seek", run: testSeekTime},
	{name: "seek among equal times", run: testSeekTimeEqual},
	{name: "seek at every event of many", run: testSeekTimeMany},
}

func testTimeMonotonic(t *testing.T, s *env) {
	s.clock.set(5000)
	a := s.add(t, given("t", "1"))
	s.clock.set(2000)
	a = append(a, s.add(t, given("t", "2"))...)
	other := s.add(t, given("other", "3"))
	s.clock.set(5001)
	a = append(a, s.add(t, given("t", "4"))...)
	var got []int64
	for _, e := range append(a, other...) {
		got = append(got, e.CommitTime-startTime)
		if e.Record.CommitTime() != e.CommitTime {
			t.Errorf("id %q: the record has commit time %d, the result %d", e.ID, e.Record.CommitTime(), e.CommitTime)
		}
	}
	elsewhere := int64(2000)
	if s.backend.OneClock {
		elsewhere = 5000
	}
	same(t, "commit times; the clock of one topic is not that of another, unless the store has one", []int64{5000, 5000, 5001, elsewhere}, got)
}

func testTimeAfterReopen(t *testing.T, s *env) {
	s.clock.set(5000)
	s.add(t, given("t", "1"))
	s.clock.set(1000)
	s.reopen(t)
	want := int64(startTime + 5000)
	if !s.Capabilities().Persistent {
		want = startTime + 1000
	}
	same(t, "commit time", want, s.add(t, given("t", "2"))[0].CommitTime)
}

func testSeekTime(t *testing.T, s *env) {
	same(t, "answer in a topic that does not exist", uint64(1), s.seekTime(t, "t", startTime))
	var a []store.Append
	for i, ms := range []int64{1000, 2000, 2000, 4000} {
		s.clock.set(ms)
		a = append(a, s.add(t, given("t", fmt.Sprint(i)))...)
	}
	s.clock.set(9000)
	s.add(t, given("other", "later"))
	end := a[3].Offset + 1
	for _, tt := range []struct {
		name string
		ms   int64
		want uint64
	}{
		{"the beginning of time", -startTime, a[0].Offset},
		{"before the first", 999, a[0].Offset},
		{"at the first", 1000, a[0].Offset},
		{"between", 1001, a[1].Offset},
		{"at two equal ones", 2000, a[1].Offset},
		{"after two equal ones", 2001, a[3].Offset},
		{"at the last", 4000, a[3].Offset},
		{"after the last", 4001, end},
		{"long after the last", 1 << 40, end},
	} {
		same(t, tt.name, tt.want, s.seekTime(t, "t", startTime+tt.ms))
	}
}

func testSeekTimeEqual(t *testing.T, s *env) {
	var before, equal []store.Append
	for i := range 3 {
		before = append(before, given("t", fmt.Sprint("before", i)))
	}
	for i := range 200 {
		equal = append(equal, given("t", fmt.Sprint("equal", i)))
	}
	s.add(t, before...)
	s.clock.set(10)
	equal = s.add(t, equal...)
	s.clock.set(20)
	after := s.add(t, given("t", "after"))
	same(t, "first of many equal", equal[0].Offset, s.seekTime(t, "t", startTime+10))
	same(t, "after many equal", after[0].Offset, s.seekTime(t, "t", startTime+11))
	same(t, "before many equal", equal[0].Offset, s.seekTime(t, "t", startTime+9))
}

func testSeekTimeMany(t *testing.T, s *env) {
	var all []store.Append
	for i := range 70 {
		s.clock.set(int64(i * 10))
		all = append(all, s.add(t, given("t", fmt.Sprint(i)))...)
	}
	for i, a := range all {
		same(t, "answer at the event", a.Offset, s.seekTime(t, "t", a.CommitTime))
		same(t, "answer just before it", a.Offset, s.seekTime(t, "t", a.CommitTime-1))
		if i+1 < len(all) {
			same(t, "answer just after it", all[i+1].Offset, s.seekTime(t, "t", a.CommitTime+1))
		}
	}
}
