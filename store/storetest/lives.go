package storetest

import (
	"context"
	"errors"
	"testing"

	"eventhub/store"
)

var lifeTests = []test{
	{name: "each is told once, by whatever made it", run: testCreated},
	{name: "numbers rise and are kept", run: testLives},
	{name: "a change of an earlier one is refused", run: testChangeOfALife},
}

// life returns the number of a topic's life, 0 where there is no such topic.
func (s *env) life(t failer, topic string) uint64 {
	t.Helper()
	info, err := s.Topic(context.Background(), topic)
	if notFound(t, err, "Topic") {
		return 0
	}
	if info.Life == 0 || info.Life >= 1<<53 {
		t.Errorf("the life of topic %q is %d", topic, info.Life)
	}
	return info.Life
}

// testCreated: the unit that makes a topic is told so, and no other.
func testCreated(t *testing.T, s *env) {
	s.add(t, given("old", "1"))
	refusedUnit := &store.Unit{Appends: []store.Append{given("a", "0")}, Unplans: []store.Unplan{{Topic: "a", ID: "none"}}}
	first := &store.Unit{Appends: []store.Append{given("a", "1"), given("old", "2"), given("a", "3"), given("a", "3"), given("c", "1")},
		Plans: []store.Plan{planFor("b", "1", 0), planFor("a", "4", 0), planFor("old", "3", 0)}}
	grouped := &store.Unit{Groups: []store.GroupChange{create("d", "g", store.GroupState{})}, Appends: []store.Append{given("d", "1")}}
	second := &store.Unit{Appends: []store.Append{given("a", "5"), given("b", "2"), given("d", "2")}, Plans: []store.Plan{planFor("c", "2", 0)},
		Groups: []store.GroupChange{create("a", "g", store.GroupState{})}}
	created := func(u *store.Unit) map[string]uint64 {
		told := make(map[string]uint64)
		for _, b := range u.Created {
			if told[b.Topic] != 0 {
				t.Errorf("topic %q is told twice", b.Topic)
			}
			told[b.Topic] = b.Life
		}
		return told
	}
	s.commit(t, refusedUnit, first, grouped, second)
	refused(t, refusedUnit, store.ErrNoPlan)
	lives := map[string]uint64{"a": s.life(t, "a"), "b": s.life(t, "b"), "c": s.life(t, "c")}
	same(t, "by the first unit", lives, created(first))
	same(t, "by the one with a group", map[string]uint64{"d": s.life(t, "d")}, created(grouped))
	same(t, "by the second", map[string]uint64{}, created(second))
	s.commit(t, first)
	same(t, "by the first again", map[string]uint64{}, created(first))
	for name, again := range map[string]*store.Unit{
		"a": unit(given("a", "6")), "b": plans(planFor("b", "6", 0)),
		"c": {Groups: []store.GroupChange{create("c", "g", store.GroupState{})}},
	} {
		s.drop(t, name, false)
		s.commit(t, again)
		same(t, "of the second life", map[string]uint64{name: s.life(t, name)}, created(again))
	}
}

// testLives: a later life has a higher number, whatever its topic; a restart changes
// none.
func testLives(t *testing.T, s *env) {
	last := uint64(0)
	rises := func(topic string) {
		t.Helper()
		life := s.life(t, topic)
		if life <= last {
			t.Errorf("the life of topic %q is %d; there was %d before", topic, life, last)
		}
		last = life
	}
	for range 3 {
		s.add(t, given("t", "1"))
		rises("t")
		s.plan(t, planFor("u", "1", 0))
		rises("u")
		if s.Capabilities().Persistent {
			before := [2]uint64{s.life(t, "t"), s.life(t, "u")}
			s.reopen(t)
			same(t, "lives after reopening", before, [2]uint64{s.life(t, "t"), s.life(t, "u")})
		}
		s.drop(t, "t", true)
		s.drop(t, "u", false)
		same(t, "the life of what is dropped", uint64(0), s.life(t, "t"))
		if s.Capabilities().Persistent {
			s.reopen(t)
		}
	}
}

// testChangeOfALife: who names a life changes nothing of another one, and makes none.
func testChangeOfALife(t *testing.T, s *env) {
	group := func(ch store.GroupChange, life uint64) *store.Unit {
		ch.Life = life
		return &store.Unit{Groups: []store.GroupChange{ch}}
	}
	g := store.GroupState{Epoch: 1}
	s.commit(t, group(create("t", "g", g), 0))
	first := s.life(t, "t")
	s.drop(t, "t", false)
	changes := []store.GroupChange{create("t", "h", g), update("t", "g", g), {Topic: "t", Group: "g", Delete: true, State: g}}
	for _, ch := range changes {
		u := group(ch, first)
		u.Appends = []store.Append{given("u", "1"), given("t", "1")}
		s.commit(t, u)
		refused(t, u, store.ErrGone)
	}
	same(t, "topics", 0, len(s.listTopics(t, "", noLimit)))

	// In the commit that makes the next life too.
	born := unit(given("t", "1"))
	units := []*store.Unit{born, group(create("t", "g", g), 0)}
	for _, ch := range changes {
		units = append(units, group(ch, first), group(ch, first+100))
	}
	s.commit(t, units...)
	applied(t, units[1])
	for _, u := range units[2:] {
		refused(t, u, store.ErrGone)
	}
	second := born.Created[0].Life
	same(t, "groups", []store.GroupInfo{{Group: "g", State: g}}, s.listGroups(t, "t"))
	for _, ch := range changes {
		u := group(ch, second)
		s.commit(t, u)
		applied(t, u)
	}
	same(t, "groups in the end", []store.GroupInfo{{Group: "h", State: g}}, s.listGroups(t, "t"))
	none := group(create("none", "g", g), second)
	s.commit(t, none)
	refused(t, none, store.ErrGone)
	if _, err := s.Topic(context.Background(), "none"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("Topic: %v", err)
	}
}
