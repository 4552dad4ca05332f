package storetest

import (
	"context"
	"errors"
	"testing"

	"eventhub/store"
)

var lifeTests = []test{
	{name: "each is reported once, whatever created it", run: testCreated},
	{name: "numbers rise and are kept", run: testLives},
	{name: "their eras", run: testEras},
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

// testCreated: the unit that creates a topic reports it, and no other unit does.
func testCreated(t *testing.T, s *env) {
	s.add(t, given("old", "1"))
	refusedUnit := &store.Unit{Appends: []store.Append{given("a", "0")}, Cancels: []store.Cancel{{Topic: "a", ID: "none"}}}
	first := &store.Unit{Appends: []store.Append{given("a", "1"), given("old", "2"), given("a", "3"), given("a", "3"), given("c", "1")},
		Delays: []store.Delay{delayFor("b", "1", 0), delayFor("a", "4", 0), delayFor("old", "3", 0)}}
	grouped := &store.Unit{Groups: []store.GroupChange{create("d", "g", store.GroupState{})}, Appends: []store.Append{given("d", "1")}}
	second := &store.Unit{Appends: []store.Append{given("a", "5"), given("b", "2"), given("d", "2")}, Delays: []store.Delay{delayFor("c", "2", 0)},
		Groups: []store.GroupChange{create("a", "g", store.GroupState{})}}
	created := func(u *store.Unit) map[string]uint64 {
		reported := make(map[string]uint64)
		for _, b := range u.Created {
			if reported[b.Topic] != 0 {
				t.Errorf("topic %q is reported twice", b.Topic)
			}
			reported[b.Topic] = b.Life
		}
		return reported
	}
	s.commit(t, refusedUnit, first, grouped, second)
	refused(t, refusedUnit, store.ErrNotDelayed)
	lives := map[string]uint64{"a": s.life(t, "a"), "b": s.life(t, "b"), "c": s.life(t, "c")}
	same(t, "by the first unit", lives, created(first))
	same(t, "by the one with a group", map[string]uint64{"d": s.life(t, "d")}, created(grouped))
	same(t, "by the second", map[string]uint64{}, created(second))
	s.commit(t, first)
	same(t, "by the first again", map[string]uint64{}, created(first))
	for name, again := range map[string]*store.Unit{
		"a": unit(given("a", "6")), "b": delays(delayFor("b", "6", 0)),
		"c": {Groups: []store.GroupChange{create("c", "g", store.GroupState{})}},
	} {
		s.deleteTopic(t, name, false)
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
		s.delay(t, delayFor("u", "1", 0))
		rises("u")
		if s.Capabilities().Persistent {
			before := [2]uint64{s.life(t, "t"), s.life(t, "u")}
			s.reopen(t)
			same(t, "lives after reopening", before, [2]uint64{s.life(t, "t"), s.life(t, "u")})
		}
		s.deleteTopic(t, "t", true)
		s.deleteTopic(t, "u", false)
		same(t, "the life of what is deleted", uint64(0), s.life(t, "t"))
		if s.Capabilities().Persistent {
			s.reopen(t)
		}
	}
}

// testEras: Lives has each life as soon as it shows, keeps what is over, and begins
// another era where the store is opened again or copied.
func testEras(t *testing.T, s *env) {
	ctx := context.Background()
	livesOf := func(st store.Topics) store.Lives {
		t.Helper()
		lives, err := st.Lives(ctx)
		if err != nil || len(lives.Eras) == 0 {
			t.Fatalf("Lives: %+v, %v", lives, err)
		}
		ids := make(map[uint64]bool)
		for i, e := range lives.Eras {
			if e.ID == 0 || ids[e.ID] || i > 0 && e.First < lives.Eras[i-1].First {
				t.Errorf("eras %+v", lives.Eras)
			}
			ids[e.ID] = true
		}
		return lives
	}
	newest := func(what string, want uint64) store.Lives {
		t.Helper()
		lives := livesOf(s)
		same(t, "the newest life "+what, want, lives.Newest)
		return lives
	}
	none := newest("in the beginning", 0)
	s.add(t, given("t", "1"))
	s.delay(t, delayFor("u", "1", 0))
	before := newest("of a delayed event", s.life(t, "u"))
	same(t, "eras", none.Eras, before.Eras)
	s.deleteTopic(t, "u", true)
	same(t, "lives after a deletion", before, livesOf(s))
	if !s.Capabilities().Persistent {
		return
	}
	dir, open := s.backend.Copy()
	if err := s.Checkpoint(ctx, dir); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		s.reopen(t)
		same(t, "lives after opening", before, livesOf(s))
	}
	var own []store.Era
	for n := range 2 { // of the store, then of its copy
		var st store.Store = s
		if n == 1 {
			copied, err := open(Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer copied.Close()
			st = copied
		}
		for _, topic := range []string{"v", "w"} {
			if err := st.Commit(ctx, []*store.Unit{unit(given(topic, "1"))}, true); err != nil {
				t.Fatal(err)
			}
		}
		lives := livesOf(st)
		info, err := st.Topic(ctx, "w")
		if err != nil || lives.Newest != info.Life || len(lives.Eras) != len(before.Eras)+1 {
			t.Fatalf("lives %+v, and the newest topic %+v; %v", lives, info, err)
		}
		same(t, "eras before", before.Eras, lives.Eras[:len(before.Eras)])
		same(t, "the first of the new era", before.Newest+1, lives.Eras[len(before.Eras)].First)
		if n == 0 {
			own = lives.Eras
		} else if lives.Eras[len(before.Eras)].ID == own[len(before.Eras)].ID {
			t.Error("a copy goes on in the era of its original")
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
	s.deleteTopic(t, "t", false)
	changes := []store.GroupChange{create("t", "h", g), update("t", "g", g), {Topic: "t", Group: "g", Delete: true, State: g}}
	for _, ch := range changes {
		u := group(ch, first)
		u.Appends = []store.Append{given("u", "1"), given("t", "1")}
		s.commit(t, u)
		refused(t, u, store.ErrGone)
	}
	same(t, "topics", 0, len(s.listTopics(t, "", noLimit)))

	// In the commit that makes the next life too.
	creating := unit(given("t", "1"))
	units := []*store.Unit{creating, group(create("t", "g", g), 0)}
	for _, ch := range changes {
		units = append(units, group(ch, first), group(ch, first+100))
	}
	s.commit(t, units...)
	applied(t, units[1])
	for _, u := range units[2:] {
		refused(t, u, store.ErrGone)
	}
	second := creating.Created[0].Life
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
