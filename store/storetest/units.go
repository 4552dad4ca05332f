package storetest

import (
	"context"
	"fmt"
	"testing"

	"eventhub/store"
)

var unitTests = []test{
	{name: "several in one commit, each with its result", run: testUnits},
	{name: "empty commits and units", run: testEmptyUnits},
	{name: "stale epoch touches nothing", run: testRefusedUnit(store.ErrStaleEpoch, update("t", "g", store.GroupState{Epoch: 1}))},
	{name: "existing group touches nothing", run: testRefusedUnit(store.ErrExists, create("t", "g", store.GroupState{Epoch: 9}))},
	{name: "missing group touches nothing", run: testRefusedUnit(store.ErrStaleEpoch, update("t", "none", store.GroupState{Epoch: 9}))},
	{name: "missing topic touches nothing", run: testRefusedUnit(store.ErrStaleEpoch, update("none", "g", store.GroupState{Epoch: 9}))},
	{name: "topic limit touches nothing", options: Options{MaxTopics: 3}, run: testTopicLimit},
	{name: "topic limit after reopening", options: Options{MaxTopics: 2}, run: testTopicLimitReopened},
	{name: "append and group change are one step", run: testAppendWithGroup},
	{name: "group change creates the topic", run: testGroupCreatesTopic},
}

func testUnits(t *testing.T, s *env) {
	units := []*store.Unit{
		unit(given("a", "1"), given("b", "2")),
		unit(given("a", "3")),
		{Groups: []store.GroupChange{create("a", "g", store.GroupState{Epoch: 1})}},
		{Groups: []store.GroupChange{create("a", "g", store.GroupState{Epoch: 2})}},
		unit(given("b", "4")),
	}
	s.commit(t, units...)
	for i, u := range units {
		if i == 3 {
			refused(t, u, store.ErrExists)
		} else {
			applied(t, u)
		}
	}
	a := []store.Append{units[0].Appends[0], units[1].Appends[0]}
	b := []store.Append{units[0].Appends[1], units[4].Appends[0]}
	rising(t, 0, a)
	rising(t, 0, b)
	same(t, "topic a", rowsOf(a), s.readAll(t, "a"))
	same(t, "topic b", rowsOf(b), s.readAll(t, "b"))
	same(t, "group", &store.GroupState{Epoch: 1}, s.group(t, "a", "g"))
}

func testEmptyUnits(t *testing.T, s *env) {
	for _, sync := range []bool{true, false} {
		for _, units := range [][]*store.Unit{nil, {}, {{}}, {{}, {}}} {
			if err := s.Commit(context.Background(), units, sync); err != nil {
				t.Errorf("Commit of %d empty units, sync %v: %v", len(units), sync, err)
			}
		}
	}
	same(t, "topics", []store.TopicInfo(nil), s.listTopics(t, "", noLimit))
}

// testRefusedUnit surrounds a unit that is refused because of the given change
// by units that are not.
func testRefusedUnit(want error, change store.GroupChange) func(t *testing.T, s *env) {
	return func(t *testing.T, s *env) {
		s.commit(t, &store.Unit{Groups: []store.GroupChange{create("t", "g", store.GroupState{Epoch: 5})}})
		s.add(t, keyed("t", "old", "k"))
		before, bad, after := unit(given("t", "before")), unit(given("t", "shared"), keyed("t", "bad", "k"), given("created", "bad")), unit(given("t", "shared"))
		// The changes of the unit that are in order must not stay either.
		bad.Groups = []store.GroupChange{
			update("t", "g", store.GroupState{Epoch: 6}),
			create("t", "other", store.GroupState{Epoch: 1}),
			change,
		}
		s.commit(t, before, bad, after)
		applied(t, before)
		refused(t, bad, want)
		applied(t, after)
		if after.Appends[0].Duplicate {
			t.Error("an id that was in a refused unit is called a duplicate")
		}
		check := func() {
			t.Helper()
			same(t, "topics", 1, len(s.listTopics(t, "", noLimit)))
			same(t, "group", &store.GroupState{Epoch: 5}, s.group(t, "t", "g"))
			same(t, "groups", 1, len(s.listGroups(t, "t")))
			same(t, "number of events", 3, len(s.readAll(t, "t")))
			same(t, "events of the topic that is not there", []row(nil), s.readAll(t, "created"))
			same(t, "offset of the refused id", uint64(0), s.find(t, "t", "bad"))
			same(t, "offset of the id refused first", after.Appends[0].Offset, s.find(t, "t", "shared"))
			same(t, "latest of the key", uint64(1), s.latest(t, "t", "k", 0).Offset)
		}
		check()
		if s.Capabilities().Persistent {
			s.reopen(t)
			check()
		}
		again := s.add(t, given("t", "bad"), given("created", "bad"))
		rising(t, after.Appends[0].Offset, again[:1])
		rising(t, 0, again[1:])
	}
}

// testTopicLimit has room for three topics. One too many refuses the whole unit,
// and takes no room from later ones.
func testTopicLimit(t *testing.T, s *env) {
	s.add(t, given("a", "1"), given("b", "2"))
	units := []*store.Unit{
		unit(given("a", "3"), given("c", "4"), given("d", "5")),
		unit(given("b", "6"), given("c", "7"), given("c", "8")),
		unit(given("d", "9")),
		{Groups: []store.GroupChange{create("d", "g", store.GroupState{})}},
		unit(given("c", "10"), given("a", "11")),
	}
	s.commit(t, units...)
	refused(t, units[0], store.ErrTopicLimit)
	applied(t, units[1])
	refused(t, units[2], store.ErrTopicLimit)
	refused(t, units[3], store.ErrTopicLimit)
	applied(t, units[4])
	var names []string
	for _, info := range s.listTopics(t, "", noLimit) {
		names = append(names, info.Name)
	}
	same(t, "topics", []string{"a", "b", "c"}, names)
	same(t, "number of events in a, b, c", []int{2, 2, 3},
		[]int{len(s.readAll(t, "a")), len(s.readAll(t, "b")), len(s.readAll(t, "c"))})
	same(t, "offset of a refused id", uint64(0), s.find(t, "a", "3"))
}

func testTopicLimitReopened(t *testing.T, s *env) {
	s.add(t, given("a", "1"), given("b", "2"))
	s.reopen(t)
	u := unit(given("c", "3"))
	s.commit(t, u)
	if s.Capabilities().Persistent {
		refused(t, u, store.ErrTopicLimit)
	} else {
		applied(t, u)
	}
}

// testAppendWithGroup is an ack with publish: both or neither, also after
// reopening.
func testAppendWithGroup(t *testing.T, s *env) {
	s.commit(t, &store.Unit{
		Appends: []store.Append{given("t", "1")},
		Groups:  []store.GroupChange{create("t", "g", store.GroupState{Epoch: 3})},
	})
	good, stale := unit(given("out", "2")), unit(given("out", "3"))
	good.Groups = []store.GroupChange{update("t", "g", store.GroupState{Epoch: 3, Cursor: 1})}
	stale.Groups = []store.GroupChange{update("t", "g", store.GroupState{Epoch: 2, Cursor: 7})}
	s.commit(t, good, stale)
	applied(t, good)
	refused(t, stale, store.ErrStaleEpoch)
	if s.Capabilities().Persistent {
		s.reopen(t)
		same(t, "group", &store.GroupState{Epoch: 3, Cursor: 1}, s.group(t, "t", "g"))
		same(t, "topic", rowsOf(good.Appends), s.readAll(t, "out"))
	}
}

func testGroupCreatesTopic(t *testing.T, s *env) {
	state := store.GroupState{Epoch: 1, Settings: []byte(`{"a":1}`)}
	s.commit(t, &store.Unit{Groups: []store.GroupChange{create("t", "g", state)}})
	check := func() {
		t.Helper()
		same(t, "topics", []store.TopicInfo{{Name: "t"}}, s.listTopics(t, "", noLimit))
		same(t, "head", uint64(0), s.head(t, "t"))
		same(t, "events", []row(nil), s.readAll(t, "t"))
		same(t, "end of time", uint64(1), s.seekTime(t, "t", startTime))
		same(t, "group", &state, s.group(t, "t", "g"))
	}
	check()
	if s.Capabilities().Persistent {
		s.reopen(t)
		check()
	}
	if a := s.add(t, given("t", "1")); a[0].Offset != 1 {
		t.Errorf("the first offset is %d; want 1", a[0].Offset)
	}
	same(t, "group after the first event", fmt.Sprint(state), fmt.Sprint(*s.group(t, "t", "g")))
}
