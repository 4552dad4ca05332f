package storetest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"

	"eventhub/store"
)

var deleteTopicTests = []test{
	{name: "nothing is found any more", run: testDeleteTopic},
	{name: "offsets go on", run: testDeleteTopicOffsets},
	{name: "the head of a topic that comes back", run: testDeleteTopicHead},
	{name: "a topic that is not there", run: testDeleteTopicNothing},
	{name: "room for another topic", options: Options{MaxTopics: 1}, run: testDeleteTopicRoom},
	{name: "other topics stay", run: testDeleteTopicOthers},
	{name: "sweep in steps", run: testDeleteTopicMany},
}

// deleteTopic deletes a topic and, with sweep, all that it has left.
func (s *env) deleteTopic(t failer, topic string, sweep bool) {
	t.Helper()
	if err := s.DeleteTopic(context.Background(), topic); err != nil {
		t.Fatalf("DeleteTopic(%q): %v", topic, err)
	}
	if sweep {
		s.sweepAll(t)
	}
}

// fill gives a topic one of everything.
func (s *env) fill(t failer, topic, id string) store.Append {
	t.Helper()
	a := keyed(topic, id, "k")
	a.CausedBy, a.Correlation = []string{"cause"}, "corr"
	added := s.add(t, a)
	s.commit(t, &store.Unit{
		Groups: []store.GroupChange{{Topic: topic, Group: "g", Create: true, State: store.GroupState{Epoch: 7},
			Parts: []store.GroupPart{{Kind: 'p', Offset: 1, Value: []byte("x")}}}},
		Delays: []store.Delay{delayFor(topic, "delayed-"+id, 50)},
	})
	return added[0]
}

// nothing fails the test where anything is found under the topic's name.
func (s *env) nothing(t failer, topic, id string) {
	t.Helper()
	ctx := context.Background()
	same(t, "events", []row(nil), s.readAll(t, topic))
	if _, err := s.Find(ctx, topic, id); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("Find: %v", err)
	}
	if _, err := s.Latest(ctx, topic, "k", 0); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("Latest: %v", err)
	}
	if got := s.stateAll(t, topic, 0); len(got) > 0 {
		t.Errorf("State: %v", got)
	}
	same(t, "groups", []store.GroupInfo(nil), s.listGroups(t, topic))
	same(t, "the group", (*store.GroupState)(nil), s.group(t, topic, "g"))
	same(t, "its parts", []store.GroupPart(nil), s.parts(t, topic, "g"))
	same(t, "delayed events", []store.Delayed(nil), s.allDelayed(t))
	same(t, "the delayed event", (*store.Delayed)(nil), s.findDelay(t, topic, "delayed-"+id))
	places, err := s.Places(ctx, id, 10)
	effects, err2 := s.Effects(ctx, "cause", store.Place{}, 10)
	correlated, err3 := s.Correlated(ctx, "corr", store.Place{}, 10)
	if err := errors.Join(err, err2, err3); err != nil {
		t.Fatalf("links: %v", err)
	}
	same(t, "links", []store.Place(nil), append(append(places, effects...), correlated...))
}

func testDeleteTopic(t *testing.T, s *env) {
	for i, sweep := range []bool{false, true} {
		id := fmt.Sprint("e", i)
		s.fill(t, "t", id)
		s.deleteTopic(t, "t", sweep)
		s.nothing(t, "t", id)
		if _, err := s.Topic(context.Background(), "t"); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("Topic: %v", err)
		}
		same(t, "topics", []store.TopicInfo(nil), s.listTopics(t, "", 10))
		if s.Capabilities().Persistent {
			s.reopen(t)
			s.nothing(t, "t", id)
			same(t, "topics after reopening", []store.TopicInfo(nil), s.listTopics(t, "", 10))
		}
	}
}

// An offset is never given again, neither by the same store nor by a later one; ids
// may come again, and are not duplicates.
func testDeleteTopicOffsets(t *testing.T, s *env) {
	last := s.fill(t, "t", "e").Offset
	for round := range 4 {
		s.deleteTopic(t, "t", round%2 == 0)
		if round > 1 && s.Capabilities().Persistent {
			s.reopen(t)
		}
		again := s.fill(t, "t", "e")
		if again.Duplicate || again.Offset <= last {
			t.Fatalf("round %d: offset %d after %d, duplicate %v", round, again.Offset, last, again.Duplicate)
		}
		last = again.Offset
		same(t, "events", []row{rowOf(again)}, s.readAll(t, "t"))
		same(t, "head", last, s.head(t, "t"))
		same(t, "the event by key", rowOf(again), s.latest(t, "t", "k", 0))
		same(t, "delayed events", 1, len(s.allDelayed(t)))
	}
	// A topic that comes back without events keeps the promise too.
	s.deleteTopic(t, "t", true)
	s.commit(t, &store.Unit{Groups: []store.GroupChange{create("t", "g", store.GroupState{Epoch: 1})}})
	if s.Capabilities().Persistent {
		s.reopen(t)
	}
	if a := s.add(t, given("t", "x"))[0]; a.Offset <= last {
		t.Errorf("offset %d after %d", a.Offset, last)
	}
}

// testDeleteTopicHead: a topic that comes back without events has none to show, before a
// restart as after it.
func testDeleteTopicHead(t *testing.T, s *env) {
	last := s.fill(t, "t", "e").Offset
	s.deleteTopic(t, "t", true)
	s.commit(t, &store.Unit{Groups: []store.GroupChange{create("t", "g", store.GroupState{Epoch: 1})}})
	empty := func() {
		t.Helper()
		same(t, "head", uint64(0), s.head(t, "t"))
		same(t, "topics", []store.TopicInfo{{Name: "t"}}, s.listTopics(t, "", noLimit))
		same(t, "first event at 0", uint64(1), s.seekTime(t, "t", 0))
		same(t, "events", []row(nil), s.readAll(t, "t"))
	}
	empty()
	if s.Capabilities().Persistent {
		s.reopen(t)
		empty()
	}
	a := s.add(t, given("t", "x"))[0]
	if a.Offset <= last {
		t.Errorf("offset %d after %d", a.Offset, last)
	}
	same(t, "head with an event", a.Offset, s.head(t, "t"))
}

func testDeleteTopicNothing(t *testing.T, s *env) {
	if err := s.DeleteTopic(context.Background(), "t"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("DeleteTopic of nothing: %v", err)
	}
	s.fill(t, "t", "e")
	s.deleteTopic(t, "t", true)
	if err := s.DeleteTopic(context.Background(), "t"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("DeleteTopic again: %v", err)
	}
	same(t, "what a sweep of nothing leaves", store.Nothing, s.sweep(t))
}

func testDeleteTopicRoom(t *testing.T, s *env) {
	s.add(t, given("a", "1"))
	u := unit(given("b", "1"))
	s.commit(t, u)
	refused(t, u, store.ErrTopicLimit)
	s.deleteTopic(t, "a", false)
	s.add(t, given("b", "1"))
}

func testDeleteTopicOthers(t *testing.T, s *env) {
	s.fill(t, "a", "1")
	kept := s.fill(t, "b", "2")
	s.fill(t, "c", "3")
	delay := s.findDelay(t, "b", "delayed-2")
	s.deleteTopic(t, "a", true)
	s.deleteTopic(t, "c", true)
	same(t, "events", []row{rowOf(kept)}, s.readAll(t, "b"))
	same(t, "delayed events", []store.Delayed{*delay}, s.allDelayed(t))
	same(t, "parts", 1, len(s.parts(t, "b", "g")))
	effects, err := s.Effects(context.Background(), "cause", store.Place{}, 10)
	if err != nil {
		t.Fatal(err)
	}
	same(t, "effects", []store.Place{{Topic: "b", Offset: kept.Offset}}, effects)
}

// A store removes much in steps between which commits have room, and what it has not
// removed yet is found by nobody.
func testDeleteTopicMany(t *testing.T, s *env) {
	const n = 2500
	for i := 0; i < n; i += 500 {
		var appends []store.Append
		for j := range 500 {
			appends = append(appends, keyed("t", fmt.Sprint("e", i+j), "k"))
		}
		s.add(t, appends...)
	}
	s.deleteTopic(t, "t", false)
	steps := 0
	for more := true; more && steps < math.MaxInt8; steps++ {
		more = s.sweep(t).More()
		s.nothing(t, "t", "e0")
		s.add(t, given("other", fmt.Sprint("o", steps)))
	}
	if steps > 10 {
		t.Errorf("%d steps for %d events", steps, n)
	}
	same(t, "the others", steps, len(s.readAll(t, "other")))
}
