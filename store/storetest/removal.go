package storetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"eventhub/internal/testsize"
	"eventhub/store"
)

var removalTests = []test{
	{name: "nothing below the horizon is found", run: testTrim},
	{name: "the horizon only goes up", run: testHorizonRises},
	{name: "the newest is removed and nothing is given twice", run: testTrimAll},
	{name: "a late duplicate", run: testLateDuplicate},
	{name: "a late duplicate in the same commit", run: testLateInCommit},
	{name: "erase", run: testErase},
	{name: "the newest is erased", run: testEraseNewest},
	{name: "a topic that is not there", run: testRemoveNothing},
	{name: "a topic that is deleted after a trim", run: testTrimAndDelete},
	{name: "measure", run: testMeasure},
	{name: "sweep in steps", run: testSweepOfTrim},
	{name: "ids are forgotten in time", run: testForgetIDs},
	{name: "an erased event below the horizon", run: testEraseBelowTrim},
}

// remove commits a unit with one change of a topic.
func (s *env) remove(t failer, ch store.TopicChange) {
	t.Helper()
	u := &store.Unit{Topics: []store.TopicChange{ch}}
	s.commit(t, u)
	applied(t, u)
}

// sweepAll sweeps until nothing can be removed now.
func (s *env) sweepAll(t failer) {
	t.Helper()
	for s.sweep(t).More() {
	}
}

func (s *env) sweep(t failer) store.Left {
	t.Helper()
	left, err := s.Sweep(context.Background())
	if err != nil {
		t.Fatalf("Sweep: %v", err)
	}
	return left
}

// measure goes on until Measure is done.
func (s *env) measure(t failer, topic string, from uint64, until store.Usage) (total store.Usage, next uint64) {
	t.Helper()
	for done := false; !done; {
		rest := until
		if until.Events > 0 {
			rest.Events -= min(total.Events, until.Events-1)
		}
		if until.Bytes > 0 {
			rest.Bytes -= min(total.Bytes, until.Bytes-1)
		}
		u, at, isDone, err := s.Measure(context.Background(), topic, from, rest)
		if err != nil {
			t.Fatalf("Measure(%q, %d, %+v): %v", topic, from, rest, err)
		}
		if !isDone && at <= from {
			t.Fatalf("Measure(%q, %d, %+v) does not go on: %+v, next %d", topic, from, rest, u, at)
		}
		total.Events += u.Events
		total.Bytes += u.Bytes
		from, next, done = at, at, isDone
	}
	return total, next
}

// each runs a check as things are, after a sweep and after reopening.
func (s *env) each(t *testing.T, check func(t *testing.T)) {
	t.Helper()
	check(t)
	s.sweepAll(t)
	check(t)
	if s.Capabilities().Persistent {
		s.reopen(t)
		check(t)
		s.sweepAll(t)
		check(t)
	}
}

// many appends n keyed and linked events, one commit and one millisecond each.
func (s *env) many(t failer, topic string, n int) (added []store.Append) {
	t.Helper()
	for i := range n {
		s.clock.set(int64(i))
		a := keyed(topic, fmt.Sprint("e", i+1), fmt.Sprint("k", i%3))
		a.CausedBy, a.Correlation = []string{"cause"}, "corr"
		added = append(added, s.add(t, a)...)
	}
	return added
}

func testTrim(t *testing.T, s *env) {
	added := s.many(t, "t", 10)
	s.remove(t, store.TopicChange{Topic: "t", Horizon: 6})
	s.each(t, func(t *testing.T) {
		same(t, "events", rowsOf(added[5:]), s.readAll(t, "t"))
		same(t, "events from inside", rowsOf(added[5:]), s.readFrom(t, "t", 3, 5, noLimit))
		same(t, "a removed event", uint64(0), s.find(t, "t", "e5"))
		same(t, "the first that is kept", uint64(6), s.find(t, "t", "e6"))
		same(t, "head", uint64(10), s.head(t, "t"))
		same(t, "the time of a removed event", uint64(6), s.seekTime(t, "t", startTime+1))
		same(t, "the newest of a key", rowOf(added[9]), s.latest(t, "t", "k0", 0))
		same(t, "a key whose events up to there were removed", row{}, s.latest(t, "t", "k1", 5))
		places := func(from int) (want []store.Place) {
			for i := from; i <= 10; i++ {
				want = append(want, store.Place{Topic: "t", Offset: uint64(i)})
			}
			return want
		}
		same(t, "effects", places(6), s.effects(t, "cause", store.Place{}, 20))
		same(t, "correlated", places(6), s.correlated(t, "corr", store.Place{}, 20))
		same(t, "places of a removed event", []store.Place(nil), s.places(t, "e1", 5))
		same(t, "the topic", []store.TopicInfo{{Name: "t", Head: 10, Horizon: 6, LastTime: startTime + 9}}, s.topicInfos(t, "", 5))
		var b store.Batch
		if err := s.Read(context.Background(), "t", 1, 1, noLimit, &b); err != nil || b.Horizon != 6 {
			t.Errorf("a read has the horizon %d, %v; want 6", b.Horizon, err)
		}
		if err := s.Read(context.Background(), "none", 1, 1, noLimit, &b); err != nil || b.Horizon != 0 {
			t.Errorf("a read of no topic has the horizon %d, %v", b.Horizon, err)
		}
	})
	more := s.add(t, keyed("t", "e11", "k1"))
	same(t, "the next event", uint64(11), more[0].Offset)
}

func testHorizonRises(t *testing.T, s *env) {
	s.many(t, "t", 5)
	horizon := func() uint64 {
		info, err := s.Topic(context.Background(), "t")
		if err != nil {
			t.Fatal(err)
		}
		return info.Horizon
	}
	same(t, "before any", uint64(1), horizon())
	for _, tt := range []struct{ to, want uint64 }{{0, 1}, {1, 1}, {3, 3}, {2, 3}, {3, 3}, {1 << 60, 6}, {7, 6}} {
		s.remove(t, store.TopicChange{Topic: "t", Horizon: tt.to})
		same(t, fmt.Sprint("horizon after ", tt.to), tt.want, horizon())
	}
	// Also over an event of the same unit.
	u := unit(given("t", "x"))
	u.Topics = []store.TopicChange{{Topic: "t", Horizon: 7}}
	s.commit(t, u)
	applied(t, u)
	same(t, "over an event of the unit", uint64(7), horizon())
	same(t, "events", []row(nil), s.readAll(t, "t"))
	same(t, "head", uint64(6), s.head(t, "t"))
}

func testTrimAll(t *testing.T, s *env) {
	added := s.many(t, "t", 4)
	last := added[3]
	s.remove(t, store.TopicChange{Topic: "t", Horizon: 5, ForgetIDs: true})
	s.clock.set(-1000)
	for round := range 3 {
		s.each(t, func(t *testing.T) {
			same(t, "events", []row(nil), s.readAll(t, "t"))
			same(t, "head", last.Offset, s.head(t, "t"))
			same(t, "the topic", []store.TopicInfo{{Name: "t", Head: last.Offset, Horizon: last.Offset + 1, LastTime: last.CommitTime}}, s.topicInfos(t, "", 5))
			same(t, "any time", last.Offset+1, s.seekTime(t, "t", 0))
			same(t, "a key", row{}, s.latest(t, "t", "k0", 0))
		})
		a := s.add(t, keyed("t", fmt.Sprint("again", round), "k0"))[0]
		if a.Offset != last.Offset+1 || a.CommitTime != last.CommitTime {
			t.Fatalf("offset %d at %d after %d at %d", a.Offset, a.CommitTime, last.Offset, last.CommitTime)
		}
		last = a
		s.remove(t, store.TopicChange{Topic: "t", Horizon: last.Offset + 1})
	}
}

func testLateDuplicate(t *testing.T, s *env) {
	added := s.many(t, "t", 6)
	s.remove(t, store.TopicChange{Topic: "t", Horizon: 4})
	s.remove(t, store.TopicChange{Topic: "t", Erase: []uint64{5}})
	s.each(t, func(t *testing.T) {
		u := unit(given("t", "e1"), given("t", "e5"), given("t", "e6"))
		u.Delays = []store.Delay{delayFor("t", "e2", 50)}
		s.commit(t, u)
		applied(t, u)
		duplicate(t, u.Appends[0], store.Append{Offset: 1})
		duplicate(t, u.Appends[1], store.Append{Offset: 5})
		duplicate(t, u.Appends[2], added[5])
		delayOfEvent(t, u.Delays[0], store.Append{Offset: 2})
	})
	// It is not an event of another topic, nor of a later topic of the name.
	if a := s.add(t, given("u", "e1"))[0]; a.Duplicate {
		t.Error("an event of another topic is a duplicate")
	}
	s.deleteTopic(t, "t", false)
	if a := s.add(t, given("t", "e1"))[0]; a.Duplicate || a.Offset <= 6 {
		t.Errorf("after the deletion: duplicate %v, offset %d", a.Duplicate, a.Offset)
	}
}

func testLateInCommit(t *testing.T, s *env) {
	s.many(t, "t", 3)
	trim := &store.Unit{Topics: []store.TopicChange{{Topic: "t", Horizon: 2, Erase: []uint64{3}}}}
	late := unit(given("t", "e1"), given("t", "e3"))
	s.commit(t, trim, late)
	duplicate(t, late.Appends[0], store.Append{Offset: 1})
	duplicate(t, late.Appends[1], store.Append{Offset: 3})
}

func testErase(t *testing.T, s *env) {
	added := s.many(t, "t", 6)
	s.remove(t, store.TopicChange{Topic: "t", Erase: []uint64{2, 4, 99, 2}})
	s.each(t, func(t *testing.T) {
		same(t, "events", rowsOf([]store.Append{added[0], added[2], added[4], added[5]}), s.readAll(t, "t"))
		same(t, "an erased event", uint64(0), s.find(t, "t", "e4"))
		same(t, "the newest of its key is the one before", rowOf(added[0]), s.latest(t, "t", "k0", 5))
		same(t, "nothing of a key up to there", row{}, s.latest(t, "t", "k1", 4))
		same(t, "effects", 4, len(s.effects(t, "cause", store.Place{}, 20)))
		same(t, "correlated", 4, len(s.correlated(t, "corr", store.Place{}, 20)))
		same(t, "places", []store.Place(nil), s.places(t, "e2", 5))
		same(t, "the topic", []store.TopicInfo{{Name: "t", Head: 6, Horizon: 1, LastTime: startTime + 5}}, s.topicInfos(t, "", 5))
		got, _ := s.measure(t, "t", 1, store.Usage{})
		same(t, "what there is", uint64(4), got.Events)
	})
}

func testEraseNewest(t *testing.T, s *env) {
	s.many(t, "t", 3)
	s.remove(t, store.TopicChange{Topic: "t", Erase: []uint64{2, 3}})
	s.clock.set(-50)
	s.each(t, func(t *testing.T) {
		same(t, "head", uint64(3), s.head(t, "t"))
		same(t, "events", 1, len(s.readAll(t, "t")))
		same(t, "the time of the erased ones", uint64(4), s.seekTime(t, "t", startTime+1))
	})
	// There is no event at 4 yet, so nothing is erased.
	s.remove(t, store.TopicChange{Topic: "t", Erase: []uint64{4, 5}})
	if a := s.add(t, given("t", "x"))[0]; a.Offset != 4 || a.CommitTime != startTime+2 {
		t.Errorf("offset %d at %d; want 4 at %d", a.Offset, a.CommitTime, startTime+2)
	}
	same(t, "events", 2, len(s.readAll(t, "t")))
}

func testRemoveNothing(t *testing.T, s *env) {
	s.many(t, "t", 1)
	info, err := s.Topic(context.Background(), "t")
	if err != nil {
		t.Fatal(err)
	}
	for _, ch := range []store.TopicChange{{Topic: "none", Horizon: 5}, {Topic: "t", Life: info.Life + 1, Horizon: 2}} {
		u := unit(given("t", "x"))
		u.Topics = []store.TopicChange{ch}
		s.commit(t, u)
		refused(t, u, store.ErrGone)
	}
	same(t, "events", 1, len(s.readAll(t, "t")))
	if _, err := s.Topic(context.Background(), "none"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("a change has made a topic: %v", err)
	}
	u, next := s.measure(t, "none", 7, store.Usage{Events: 3})
	same(t, "usage of no topic", store.Usage{}, u)
	same(t, "its end", uint64(7), next)
}

func testTrimAndDelete(t *testing.T, s *env) {
	for round := range uint64(2) {
		s.many(t, "t", 5)
		info, err := s.Topic(context.Background(), "t")
		if err != nil {
			t.Fatal(err)
		}
		s.remove(t, store.TopicChange{Topic: "t", Horizon: info.Head - 1})
		s.deleteTopic(t, "t", round == 1)
		s.each(t, func(t *testing.T) { same(t, "topics", []store.TopicInfo(nil), s.listTopics(t, "", 5)) })
	}
	// The horizon is of the life.
	a := s.add(t, given("t", "x"))[0]
	same(t, "the next life", []store.TopicInfo{{Name: "t", Head: a.Offset, Horizon: 1, LastTime: a.CommitTime}}, s.topicInfos(t, "", 5))
	same(t, "its event", []row{rowOf(a)}, s.readAll(t, "t"))
}

func testMeasure(t *testing.T, s *env) {
	added := s.many(t, "t", 9)
	size := func(from, to int) (bytes uint64) {
		for _, a := range added[from-1 : to] {
			bytes += uint64(len(a.Record))
		}
		return bytes
	}
	s.remove(t, store.TopicChange{Topic: "t", Horizon: 3})
	s.each(t, func(t *testing.T) {
		for _, tt := range []struct {
			from  uint64
			until store.Usage
			want  store.Usage
			next  uint64
		}{
			{1, store.Usage{}, store.Usage{Events: 7, Bytes: size(3, 9)}, 10},
			{5, store.Usage{}, store.Usage{Events: 5, Bytes: size(5, 9)}, 10},
			{1, store.Usage{Events: 2}, store.Usage{Events: 2, Bytes: size(3, 4)}, 5},
			{1, store.Usage{Bytes: size(3, 5)}, store.Usage{Events: 3, Bytes: size(3, 5)}, 6},
			{1, store.Usage{Bytes: size(3, 5) + 1}, store.Usage{Events: 4, Bytes: size(3, 6)}, 7},
			{1, store.Usage{Events: 4, Bytes: 1}, store.Usage{Events: 1, Bytes: size(3, 3)}, 4},
			{9, store.Usage{Events: 4}, store.Usage{Events: 1, Bytes: size(9, 9)}, 10},
			{50, store.Usage{Events: 4}, store.Usage{}, 50},
		} {
			got, next := s.measure(t, "t", tt.from, tt.until)
			same(t, fmt.Sprintf("usage from %d until %+v", tt.from, tt.until), tt.want, got)
			same(t, fmt.Sprintf("the end of what is from %d until %+v", tt.from, tt.until), tt.next, next)
		}
	})
}

// testSweepOfTrim: what is left of many events is removed a little at a time, and what is kept stays.
func testSweepOfTrim(t *testing.T, s *env) {
	events := testsize.Of(1500, 300)
	u := &store.Unit{}
	for i := range events {
		a := keyed("t", fmt.Sprint("e", i+1), fmt.Sprint("k", i%7))
		a.CausedBy = []string{"cause"}
		u.Appends = append(u.Appends, a)
	}
	s.commit(t, u)
	for _, horizon := range []uint64{2, uint64(events / 3 * 2), uint64(events/3*2 + 1), uint64(events - 10)} {
		s.remove(t, store.TopicChange{Topic: "t", Horizon: horizon, ForgetIDs: horizon%2 == 0})
		s.each(t, func(t *testing.T) {
			same(t, "events", rowsOf(u.Appends[horizon-1:]), s.readAll(t, "t"))
			same(t, "effects", events-int(horizon)+1, len(s.effects(t, "cause", store.Place{}, events)))
		})
	}
}

func testForgetIDs(t *testing.T, s *env) {
	s.many(t, "t", 6)
	s.clock.set(1000)
	s.remove(t, store.TopicChange{Topic: "t", Horizon: 3})
	s.remove(t, store.TopicChange{Topic: "t", Erase: []uint64{4}, ForgetIDs: true})
	s.sweepAll(t)
	if a := s.add(t, given("t", "e4"))[0]; a.Duplicate || a.Offset != 7 {
		t.Errorf("an id that was to be forgotten: duplicate %v, offset %d", a.Duplicate, a.Offset)
	}
	s.clock.set(1000 + store.IDsKept.Milliseconds() - 1)
	s.sweepAll(t)
	if a := s.add(t, given("t", "e1"))[0]; !a.Duplicate || a.Offset != 1 {
		t.Errorf("an id before its time: duplicate %v, offset %d", a.Duplicate, a.Offset)
	}
	// The store may take its time, but not for ever.
	s.clock.set(1000 + store.IDsKept.Milliseconds() + (2 * time.Minute).Milliseconds())
	s.sweepAll(t)
	first := s.add(t, given("t", "e1"), given("t", "e2"))
	if first[0].Duplicate || first[1].Duplicate {
		t.Errorf("ids after their time: %+v", first)
	}
	if again := s.add(t, given("t", "e1"))[0]; !again.Duplicate || again.Offset != first[0].Offset {
		t.Errorf("the id again: duplicate %v, offset %d; want %d", again.Duplicate, again.Offset, first[0].Offset)
	}
}

// testEraseBelowTrim: what the first removal of an event says of its id counts.
func testEraseBelowTrim(t *testing.T, s *env) {
	s.many(t, "t", 6)
	s.remove(t, store.TopicChange{Topic: "t", Erase: []uint64{2}})
	s.remove(t, store.TopicChange{Topic: "t", Erase: []uint64{3}, ForgetIDs: true})
	s.remove(t, store.TopicChange{Topic: "t", Horizon: 5, ForgetIDs: true})
	s.sweepAll(t)
	for i, want := range []bool{false, true, false, false} {
		if a := s.add(t, given("t", fmt.Sprint("e", i+1)))[0]; a.Duplicate != want {
			t.Errorf("the id of the event at %d: duplicate %v; want %v", i+1, a.Duplicate, want)
		}
	}
}
