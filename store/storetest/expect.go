package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"eventhub"
	"eventhub/store"

	"pgregory.net/rapid"
)

var expectTests = []test{
	{name: "of a key", run: testExpectKey},
	{name: "of a topic", run: testExpectTopic},
	{name: "of a tombstone, before and after its compaction", run: testExpectTombstone},
	{name: "of events that are removed", run: testExpectRemoved},
	{name: "of events that the same commit adds and removes", run: testExpectInCommit},
	{name: "is about the topic before the unit", run: testExpectBeforeUnit},
	{name: "comes after the id", run: testExpectDuplicate},
	{name: "refuses the whole unit, and no other", run: testExpectAtomic},
	{name: "of a topic that is there no more", run: testExpectDeleted},
	{name: "many writers lose no update", run: testExpectRace},
}

// expecting returns an append with a condition.
func expecting(a store.Append, x eventhub.Expect) store.Append {
	a.Expect = x
	return a
}

// tryOne commits one append and returns the present offset of its conflict.
func tryOne(t failer, s *env, a store.Append) (conflict bool, present uint64) {
	t.Helper()
	u := unit(a)
	s.commit(t, u)
	if u.Err == nil {
		return false, 0
	}
	refused(t, u, u.Err)
	var c *store.ConflictError
	if !errors.As(u.Err, &c) {
		t.Fatalf("Unit.Err = %v; want a ConflictError", u.Err)
	}
	if c.Append != 0 || c.Expect != a.Expect {
		t.Errorf("the conflict is of append %d, which expects %+v; want 0, %+v", c.Append, c.Expect, a.Expect)
	}
	return true, c.Present
}

// holds fails the test unless the condition is the one that holds: it, and no offset around
// it, lets an append of the key through. It adds nothing.
func holds(t failer, s *env, topic, key string, x eventhub.Expect) {
	t.Helper()
	wrong := []eventhub.Expect{{Kind: x.Kind, Offset: x.Offset + 1}}
	if x.Offset > 0 {
		wrong = append(wrong, eventhub.Expect{Kind: x.Kind, Offset: x.Offset - 1}, eventhub.Expect{Kind: x.Kind})
	}
	for _, other := range wrong {
		if conflict, present := tryOne(t, s, expecting(keyed(topic, "probe", key), other)); !conflict || present != x.Offset {
			t.Errorf("%s %d of key %q: conflict %v, present %d; want true, %d", other, other.Offset, key, conflict, present, x.Offset)
		}
	}
	// One that holds, in a unit that something else refuses.
	u := &store.Unit{
		Appends: []store.Append{expecting(keyed(topic, "probe", key), x), expecting(keyed(topic, "probe 2", key), eventhub.Expect{Kind: x.Kind, Offset: 1 << 52})},
	}
	s.commit(t, u)
	want := &store.ConflictError{Append: 1, Expect: u.Appends[1].Expect, Present: x.Offset}
	same(t, "the refusal of the second append", error(want), u.Err)
}

func testExpectKey(t *testing.T, s *env) {
	holds(t, s, "t", "k", eventhub.IfKeyOffset(0))
	if len(s.listTopics(t, "", noLimit)) > 0 {
		t.Error("a conflict has created a topic")
	}
	u := unit(expecting(keyed("t", "1", "k"), eventhub.IfKeyOffset(0)))
	s.commit(t, u)
	applied(t, u)
	first := u.Appends[0].Offset
	s.add(t, keyed("t", "2", "other"), given("t", "3"), keyed("t", "4", "k\x00"), keyed("u", "1", "k"))
	holds(t, s, "t", "k", eventhub.IfKeyOffset(first))
	u = unit(expecting(keyed("t", "5", "k"), eventhub.IfKeyOffset(first)))
	s.commit(t, u)
	applied(t, u)
	holds(t, s, "t", "k", eventhub.IfKeyOffset(u.Appends[0].Offset))
	holds(t, s, "t", "none", eventhub.IfKeyOffset(0))
	holds(t, s, "t", "\x00", eventhub.IfKeyOffset(0))
	if !s.Capabilities().Persistent {
		return
	}
	s.reopen(t)
	holds(t, s, "t", "k", eventhub.IfKeyOffset(u.Appends[0].Offset))
}

func testExpectTopic(t *testing.T, s *env) {
	holds(t, s, "t", "", eventhub.IfTopicOffset(0))
	s.commit(t, &store.Unit{Groups: []store.GroupChange{create("t", "g", store.GroupState{})}})
	holds(t, s, "t", "", eventhub.IfTopicOffset(0))
	a := s.add(t, given("t", "1"), keyed("t", "2", "k"), given("u", "1"))
	holds(t, s, "t", "k", eventhub.IfTopicOffset(a[1].Offset))
	far := given("t", "3")
	far.KeepOffset = 100
	far = s.add(t, far)[0]
	holds(t, s, "t", "", eventhub.IfTopicOffset(far.Offset))
	s.commit(t, &store.Unit{Topics: []store.TopicChange{{Topic: "t", Horizon: far.Offset + 1}}})
	holds(t, s, "t", "", eventhub.IfTopicOffset(far.Offset))
	s.sweepAll(t)
	if s.Capabilities().Persistent {
		s.reopen(t)
	} else {
		return
	}
	holds(t, s, "t", "", eventhub.IfTopicOffset(far.Offset))
	u := unit(expecting(given("t", "4"), eventhub.IfTopicOffset(far.Offset)))
	s.commit(t, u)
	applied(t, u)
}

func testExpectTombstone(t *testing.T, s *env) {
	a := s.add(t, keyed("t", "1", "k"), tombstone("t", "2", "k"), given("t", "3"))
	holds(t, s, "t", "k", eventhub.IfKeyOffset(a[1].Offset))
	s.commit(t, &store.Unit{Topics: []store.TopicChange{{Topic: "t", Compacted: a[2].Offset}}})
	s.compact(t, "t")
	holds(t, s, "t", "k", eventhub.IfKeyOffset(a[1].Offset))
	s.commit(t, &store.Unit{Topics: []store.TopicChange{{Topic: "t", Tombstones: a[2].Offset}}})
	s.compact(t, "t")
	holds(t, s, "t", "k", eventhub.IfKeyOffset(0))
}

func testExpectRemoved(t *testing.T, s *env) {
	a := s.add(t, keyed("t", "1", "k"), keyed("t", "2", "k"), keyed("t", "3", "k"), keyed("t", "4", "l"))
	check := func(want uint64) {
		t.Helper()
		holds(t, s, "t", "k", eventhub.IfKeyOffset(want))
		s.sweepAll(t)
		holds(t, s, "t", "k", eventhub.IfKeyOffset(want))
		if s.Capabilities().Persistent {
			s.reopen(t)
			holds(t, s, "t", "k", eventhub.IfKeyOffset(want))
		}
	}
	s.commit(t, &store.Unit{Topics: []store.TopicChange{{Topic: "t", Erase: []uint64{a[2].Offset}}}})
	check(a[1].Offset)
	s.commit(t, &store.Unit{Topics: []store.TopicChange{{Topic: "t", Horizon: a[1].Offset}}})
	check(a[1].Offset)
	s.commit(t, &store.Unit{Topics: []store.TopicChange{{Topic: "t", Horizon: a[3].Offset}}})
	check(0)
	holds(t, s, "t", "l", eventhub.IfKeyOffset(a[3].Offset))
}

// testExpectInCommit: conditions count what the units before them have added and removed.
func testExpectInCommit(t *testing.T, s *env) {
	a := s.add(t, keyed("t", "1", "k"), keyed("t", "2", "k"))
	last := a[1].Offset
	erase := func(offsets ...uint64) *store.Unit {
		return &store.Unit{Topics: []store.TopicChange{{Topic: "t", Erase: offsets}}}
	}
	add := func(id, key string, x eventhub.Expect) *store.Unit { return unit(expecting(keyed("t", id, key), x)) }
	units := []*store.Unit{
		add("3", "k", eventhub.IfKeyOffset(last)),
		add("4", "k", eventhub.IfKeyOffset(last)),     // 3 was first
		add("5", "k", eventhub.IfKeyOffset(last+1)),   // which is there
		add("6", "l", eventhub.IfTopicOffset(last+2)), // that is 5
		erase(last + 2),
		add("7", "k", eventhub.IfKeyOffset(last+2)),
		add("8", "k", eventhub.IfKeyOffset(last+1)),
		erase(last, last+1, last+4),
		add("9", "k", eventhub.IfKeyOffset(a[0].Offset)),
		{Topics: []store.TopicChange{{Topic: "t", Horizon: last + 5}}},
		add("10", "l", eventhub.IfKeyOffset(last+3)),
		add("11", "l", eventhub.IfKeyOffset(0)),
		add("12", "k", eventhub.IfKeyOffset(last+5)),
	}
	s.commit(t, units...)
	refusals := map[int]uint64{1: last + 1, 5: last + 1, 10: 0}
	for i, u := range units {
		if present, ok := refusals[i]; ok {
			same(t, fmt.Sprint("the refusal of unit ", i), error(&store.ConflictError{Expect: u.Appends[0].Expect, Present: present}), u.Err)
		} else {
			applied(t, u)
		}
	}
	same(t, "events", []string{"9", "11", "12"}, idsOf(s.readAll(t, "t")))
	fresh := []*store.Unit{
		unit(expecting(keyed("new", "1", "k"), eventhub.IfKeyOffset(1))),
		unit(expecting(keyed("new", "2", "k"), eventhub.IfKeyOffset(0)), expecting(keyed("new", "3", "l"), eventhub.IfTopicOffset(0))),
		unit(expecting(keyed("new", "4", "k"), eventhub.IfKeyOffset(1))), // the topic is there now, and has no index
		unit(expecting(keyed("new", "5", "k"), eventhub.IfTopicOffset(2))),
	}
	s.commit(t, fresh...)
	for i, u := range fresh {
		if i == 0 || i == 2 {
			refused(t, u, u.Err)
			continue
		}
		applied(t, u)
	}
	same(t, "the refusal without an index", error(&store.NotIndexedError{Topic: "new"}), fresh[2].Err)
	same(t, "events of the new topic", []string{"2", "3", "5"}, idsOf(s.readAll(t, "new")))
}

// idsOf returns the ids of rows.
func idsOf(rows []row) (ids []string) {
	for _, r := range rows {
		ids = append(ids, string(eventhub.Record(r.Record).ID()))
	}
	return ids
}

// testExpectBeforeUnit: the appends of one unit do not count for each other.
func testExpectBeforeUnit(t *testing.T, s *env) {
	a := s.add(t, keyed("t", "1", "k"))
	u := unit(
		expecting(keyed("t", "2", "k"), eventhub.IfKeyOffset(a[0].Offset)),
		expecting(keyed("t", "3", "k"), eventhub.IfKeyOffset(a[0].Offset)),
		expecting(given("t", "4"), eventhub.IfTopicOffset(a[0].Offset)))
	u.Topics = []store.TopicChange{{Topic: "t", Erase: []uint64{a[0].Offset}}}
	s.commit(t, u)
	applied(t, u)
	again := unit(keyed("t", "5", "k"), expecting(keyed("t", "6", "k"), eventhub.IfKeyOffset(u.Appends[2].Offset+1)))
	s.commit(t, again)
	same(t, "the refusal", error(&store.ConflictError{Append: 1, Expect: again.Appends[1].Expect, Present: u.Appends[1].Offset}), again.Err)
}

// testExpectDuplicate: a publisher that repeats what it does not know the outcome of gets the
// first event, not a conflict with it.
func testExpectDuplicate(t *testing.T, s *env) {
	x := expecting(keyed("t", "x", "k"), eventhub.IfKeyOffset(0))
	first := s.add(t, x)[0]
	s.add(t, keyed("t", "y", "k"))
	s.clock.set(5)
	units := []*store.Unit{
		unit(x),
		unit(x, expecting(keyed("t", "z", "k"), eventhub.IfKeyOffset(2))),
		unit(expecting(keyed("t", "w", "l"), eventhub.IfKeyOffset(0)), expecting(keyed("t", "w", "l"), eventhub.IfKeyOffset(7))),
		unit(expecting(keyed("t", "v", "l"), eventhub.IfKeyOffset(7)), expecting(keyed("t", "v", "l"), eventhub.IfKeyOffset(4))),
	}
	s.commit(t, units...)
	for _, u := range units[:3] {
		applied(t, u)
	}
	duplicate(t, units[0].Appends[0], first)
	duplicate(t, units[1].Appends[0], first)
	duplicate(t, units[2].Appends[1], units[2].Appends[0])
	refused(t, units[3], units[3].Err)
	if units[3].Err == nil {
		t.Error("the first of two appends of an id is not held to what it expects")
	}
	// The id of an event that was removed is remembered.
	s.commit(t, &store.Unit{Topics: []store.TopicChange{{Topic: "t", Erase: []uint64{first.Offset}}}})
	u := unit(x)
	s.commit(t, u)
	applied(t, u)
	duplicate(t, u.Appends[0], store.Append{Offset: first.Offset})
}

func testExpectAtomic(t *testing.T, s *env) {
	a := s.add(t, keyed("t", "1", "k"))
	s.commit(t, &store.Unit{Groups: []store.GroupChange{create("t", "g", store.GroupState{Epoch: 1})}})
	before, after := unit(given("t", "before")), unit(given("t", "after"))
	bad := unit(given("t", "a"), given("created", "b"), expecting(keyed("t", "c", "k"), eventhub.IfKeyOffset(0)))
	bad.Groups = []store.GroupChange{update("t", "g", store.GroupState{Epoch: 1, Cursor: 9})}
	bad.Delays = []store.Delay{{Topic: "t", ID: "later", At: startTime, Record: given("t", "later").Record}}
	s.commit(t, before, bad, after)
	applied(t, before)
	refused(t, bad, bad.Err)
	same(t, "the refusal", error(&store.ConflictError{Append: 2, Expect: eventhub.IfKeyOffset(0), Present: a[0].Offset}), bad.Err)
	applied(t, after)
	same(t, "events", []string{"1", "before", "after"}, idsOf(s.readAll(t, "t")))
	same(t, "group", &store.GroupState{Epoch: 1}, s.group(t, "t", "g"))
	same(t, "topics", 1, len(s.listTopics(t, "", noLimit)))
	if _, err := s.FindDelayed(context.Background(), "t", "later"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the delayed event of a refused unit: %v; want store.ErrNotFound", err)
	}
}

func testExpectDeleted(t *testing.T, s *env) {
	a := s.add(t, keyed("t", "1", "k"), keyed("t", "2", "k"))
	s.deleteTopic(t, "t", false)
	holds(t, s, "t", "k", eventhub.IfKeyOffset(0))
	holds(t, s, "t", "k", eventhub.IfTopicOffset(0))
	s.commit(t, &store.Unit{Groups: []store.GroupChange{create("t", "g", store.GroupState{})}})
	holds(t, s, "t", "k", eventhub.IfTopicOffset(0)) // its offsets go on, and it has no event
	u := unit(expecting(keyed("t", "3", "k"), eventhub.IfKeyOffset(0)), expecting(given("t", "4"), eventhub.IfTopicOffset(0)))
	s.commit(t, u)
	applied(t, u)
	rising(t, a[1].Offset, u.Appends)
	holds(t, s, "t", "k", eventhub.IfKeyOffset(u.Appends[0].Offset))
}

// testExpectRace: each of many writers adds one to a number that it has read, again until
// nobody was faster.
func testExpectRace(t *testing.T, s *env) {
	const writers, rounds = 4, 25
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			var last uint64
			for i := 0; i < rounds; {
				u := unit(expecting(keyed("t", fmt.Sprintf("%d-%d-%d", w, i, last), "k"), eventhub.IfKeyOffset(last)))
				if err := s.Commit(context.Background(), []*store.Unit{u}, true); err != nil {
					t.Error(err)
					return
				}
				var c *store.ConflictError
				switch {
				case u.Err == nil:
					i, last = i+1, u.Appends[0].Offset
				case errors.As(u.Err, &c):
					last = c.Present
				case errors.Is(u.Err, store.ErrNotIndexed): // another writer has just made the topic
				default:
					t.Error(u.Err)
					return
				}
			}
		})
	}
	wg.Wait()
	var last uint64
	rows := s.readAll(t, "t")
	for _, r := range rows {
		if id := string(eventhub.Record(r.Record).ID()); id[len(id)-len(fmt.Sprint("-", last)):] != fmt.Sprint("-", last) {
			t.Errorf("after offset %d comes event %q", last, id)
		}
		last = r.Offset
	}
	same(t, "number of events", writers*rounds, len(rows))
}

// The part of testModel that is about conditions.

// drawExpect draws a condition for some appends, which mostly holds.
func (m *model) drawExpect(rt *rapid.T, a *store.Append) {
	if rapid.IntRange(0, 3).Draw(rt, "expect") > 0 {
		return
	}
	x := eventhub.Expect{Kind: eventhub.ExpectTopicOffset}
	if a.Key != "" && rapid.Bool().Draw(rt, "of the key") {
		x.Kind = eventhub.ExpectKeyOffset
	}
	a.Expect = x
	x.Offset = rapid.SampledFrom([]uint64{m.present(a), m.present(a), m.present(a), 0, m.last[a.Topic]}).Draw(rt, "expected")
	a.Expect = x
}

// present returns what an append should expect.
func (m *model) present(a *store.Append) (offset uint64) {
	t := m.topics[a.Topic]
	if t == nil {
		return 0
	}
	if a.Expect.Kind == eventhub.ExpectTopicOffset {
		return t.head
	}
	for _, e := range t.events {
		if e.key == a.Key {
			offset = e.Offset
		}
	}
	return offset
}

// expectRefusal returns the conflict of a unit.
func (m *model) expectRefusal(u *store.Unit) error {
	for i := range u.Appends {
		a := &u.Appends[i]
		if a.Expect.IsZero() || !a.NewID && m.isRepeated(u, i) {
			continue
		}
		if t := m.topics[a.Topic]; t != nil && a.Expect.Kind == eventhub.ExpectKeyOffset && t.index != store.Indexed {
			return store.ErrNotIndexed
		}
		if present := m.present(a); present != a.Expect.Offset {
			return &store.ConflictError{Append: i, Expect: a.Expect, Present: present}
		}
	}
	return nil
}

// isRepeated reports whether an append has an id that its topic knows, or that an append before
// it has. Of an id that may be forgotten it takes the store's word: whether it is a duplicate, or
// the unit was refused for this very append.
func (m *model) isRepeated(u *store.Unit, i int) bool {
	a := &u.Appends[i]
	if slices.ContainsFunc(u.Appends[:i], func(b store.Append) bool { return b.Topic == a.Topic && !b.NewID && b.ID == a.ID }) {
		return true
	}
	t := m.topics[a.Topic]
	if t == nil {
		return false
	}
	if g, ok := t.gone[a.ID]; ok {
		var c *store.ConflictError
		var n *store.NotIndexedError
		switch {
		case !g.may:
			return true
		case u.Err == nil:
			return a.Duplicate
		case errors.As(u.Err, &n): // of the topic of a key of which something is expected
			return n.Topic != a.Topic || a.Expect.Kind != eventhub.ExpectKeyOffset
		}
		return !errors.As(u.Err, &c) || c.Append != i
	}
	return slices.ContainsFunc(t.events, func(e modelEvent) bool { return e.id == a.ID })
}
