package storetest

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"eventhub/store"
)

var delayedTests = []test{
	{name: "write, find, remove", run: testDelayLife},
	{name: "order", run: testDelayOrder},
	{name: "pages", run: testDelayPages},
	{name: "until", run: testDelayUntil},
	{name: "bytes", run: testDelayBytes},
	{name: "duplicates", run: testDelayDuplicates},
	{name: "duplicates of events", run: testDelayOfEvent},
	{name: "append of a delayed id", run: testAppendOfDelayed},
	{name: "move", run: testMove},
	{name: "units of one commit", run: testDelayUnits},
	{name: "units of several commits", run: testDelayUnitsApart},
	{name: "refused units leave nothing", options: Options{MaxTopics: 3}, run: testDelayRefused},
	{name: "topic limit", options: Options{MaxTopics: 2}, run: testDelayTopicLimit},
	{name: "remove the very one", run: testCancelTheVeryOne},
	{name: "nothing is shown before it is durable", run: testDelayHeldSync},
	{name: "delayed events are copied", run: testDelayCopied},
	{name: "reopening", run: testDelayReopened},
	{name: "an event is delayed or in the log", run: testDelayOrEvent},
}

// delayFor is a delayed event whose id came from outside, due at startTime+ms.
func delayFor(topic, id string, ms int64) store.Delay {
	a := newAppend(topic, id, "", 0)
	return store.Delay{Topic: topic, ID: id, At: startTime + ms, Record: a.Record}
}

// delayKeyed is a delayed event of a fresh id with a key.
func delayKeyed(topic, id, key string, ms int64) store.Delay {
	a := newAppend(topic, id, key, 0)
	return store.Delay{Topic: topic, ID: id, FreshID: true, Key: key, At: startTime + ms, Record: a.Record}
}

func delays(ps ...store.Delay) *store.Unit { return &store.Unit{Delays: ps} }

func cancels(topic string, ids ...string) *store.Unit {
	u := &store.Unit{}
	for _, id := range ids {
		u.Cancels = append(u.Cancels, store.Cancel{Topic: topic, ID: id})
	}
	return u
}

// move is the unit that puts a delayed event into the log.
func move(topic, id string) *store.Unit {
	u := cancels(topic, id)
	u.Appends = []store.Append{given(topic, id)}
	return u
}

// asRead is what reads have to show of a delayed event that was committed.
func asRead(p store.Delay) store.Delayed {
	return store.Delayed{Topic: p.Topic, ID: p.ID, Key: p.Key, At: p.At, Seq: p.Seq, Record: p.Record}
}

func allAsRead(ps []store.Delay) (read []store.Delayed) {
	for _, p := range ps {
		read = append(read, asRead(p))
	}
	return read
}

// delay commits one unit of delayed events, which must not be refused, and returns them
// with their results.
func (s *env) delay(t failer, ps ...store.Delay) []store.Delay {
	t.Helper()
	u := delays(ps...)
	s.commit(t, u)
	if u.Err != nil {
		t.Fatalf("a unit of %d delayed events was refused: %v", len(ps), u.Err)
	}
	return u.Delays
}

const endOfTime = 9_999_999_999_999

func (s *env) delayedFrom(t failer, at int64, seq uint64, until int64, limit, maxBytes int) []store.Delayed {
	t.Helper()
	list, err := s.Delayed(context.Background(), at, seq, until, limit, maxBytes)
	if err != nil {
		t.Fatalf("Delayed(%d, %d, %d, %d, %d): %v", at, seq, until, limit, maxBytes, err)
	}
	return list
}

// allDelayed also holds FindDelayed to what the list says.
func (s *env) allDelayed(t failer) []store.Delayed {
	t.Helper()
	list := s.delayedFrom(t, 0, 0, endOfTime, noLimit, noLimit)
	for _, p := range list {
		same(t, "delayed event of "+p.ID, &p, s.findDelay(t, p.Topic, p.ID))
	}
	return list
}

// findDelay returns nil for a delayed event that is not there.
func (s *env) findDelay(t failer, topic, id string) *store.Delayed {
	t.Helper()
	p, err := s.FindDelayed(context.Background(), topic, id)
	if notFound(t, err, fmt.Sprintf("FindDelayed(%q, %q)", topic, id)) {
		return nil
	}
	return &p
}

// risingSeq fails the test unless the delayed events were added with rising numbers above
// last, and returns the highest.
func risingSeq(t failer, last uint64, ps ...store.Delay) uint64 {
	t.Helper()
	for _, p := range ps {
		if p.Duplicate || p.Seq <= last || p.Offset != 0 {
			t.Errorf("delayed event of %q: duplicate %v, seq %d, offset %d; want a seq above %d", p.ID, p.Duplicate, p.Seq, p.Offset, last)
		}
		last = p.Seq
	}
	return last
}

// duplicateDelay fails the test unless p is a duplicate of first.
func duplicateDelay(t failer, p, first store.Delay) {
	t.Helper()
	if !p.Duplicate || p.Seq != first.Seq || p.At != first.At || p.Offset != 0 {
		t.Errorf("delayed event of %q: duplicate %v, seq %d, at %d, offset %d; want true, %d, %d, 0",
			p.ID, p.Duplicate, p.Seq, p.At, p.Offset, first.Seq, first.At)
	}
}

func testDelayLife(t *testing.T, s *env) {
	same(t, "delayed events of none", 0, len(s.allDelayed(t)))
	same(t, "delayed event of no topic", (*store.Delayed)(nil), s.findDelay(t, "t", "a"))
	p := s.delay(t, delayKeyed("t", "a", "k\x00", 10), delayFor("u", "a", 5))
	last := risingSeq(t, 0, p...)
	same(t, "delayed events", []store.Delayed{asRead(p[1]), asRead(p[0])}, s.allDelayed(t))
	same(t, "another id", (*store.Delayed)(nil), s.findDelay(t, "t", "b"))
	same(t, "topics", []store.TopicInfo{{Name: "t"}, {Name: "u"}}, s.listTopics(t, "", noLimit))
	same(t, "events", 0, len(s.readAll(t, "t")))
	same(t, "offset", uint64(0), s.find(t, "t", "a"))
	same(t, "latest", row{}, s.latest(t, "t", "k\x00", 0))
	same(t, "first offset of the future", uint64(1), s.seekTime(t, "t", 0))

	s.commit(t, cancels("t", "a"))
	same(t, "delayed events after one was removed", []store.Delayed{asRead(p[1])}, s.allDelayed(t))
	same(t, "the delayed event that was removed", (*store.Delayed)(nil), s.findDelay(t, "t", "a"))
	again := cancels("t", "a")
	s.commit(t, again)
	refused(t, again, store.ErrNotDelayed)
	next := s.delay(t, delayFor("t", "a", 10))
	risingSeq(t, last, next...)
	same(t, "delayed events after it came back", []store.Delayed{asRead(p[1]), asRead(next[0])}, s.allDelayed(t))
}

// testDelayOrder delays events in an order of its own; what is read comes by time as a
// number, and at one time in the order of the units.
func testDelayOrder(t *testing.T, s *env) {
	times := []int64{0, 1, 255, 256, 1<<16 - 1, 1 << 16, 1<<32 - 1, 1 << 32, startTime, endOfTime}
	var all []store.Delay
	for i := range 5 * len(times) {
		// 17 and 50 have no common factor.
		n := i * 17 % (5 * len(times))
		p := delayFor([]string{"t", "u", "a"}[n%3], fmt.Sprint("id-", n), 0)
		p.At, p.FreshID = times[n%len(times)], n%2 == 0
		all = append(all, s.delay(t, p)...)
	}
	risingSeq(t, 0, all...)
	slices.SortStableFunc(all, func(a, b store.Delay) int { return int(min(1, max(-1, a.At-b.At))) })
	same(t, "delayed events", allAsRead(all), s.allDelayed(t))
}

func fillDelays(t failer, s *env) []store.Delayed {
	t.Helper()
	var ps []store.Delay
	for i := range 12 {
		ps = append(ps, delayFor([]string{"t", "u"}[i%2], fmt.Sprint("id-", i), int64(i/3)*10))
	}
	return allAsRead(s.delay(t, ps...))
}

func testDelayPages(t *testing.T, s *env) {
	want := fillDelays(t, s)
	for _, size := range []int{1, 2, 3, len(want), len(want) + 1} {
		var got []store.Delayed
		var last store.Delayed
		for {
			page := s.delayedFrom(t, last.At, last.Seq, endOfTime, size, noLimit)
			if len(page) > size {
				t.Fatalf("a page of %d has %d delayed events", size, len(page))
			}
			if len(page) == 0 {
				break
			}
			got = append(got, page...)
			last = page[len(page)-1]
		}
		same(t, "all pages", want, got)
	}
	at := want[4].At
	same(t, "limit 0", 0, len(s.delayedFrom(t, 0, 0, endOfTime, 0, noLimit)))
	same(t, "after all of a time", want[6:], s.delayedFrom(t, at, 1<<64-1, endOfTime, noLimit, noLimit))
	same(t, "before all of a time", want[3:], s.delayedFrom(t, at, 0, endOfTime, noLimit, noLimit))
	same(t, "after a time that nothing has", want[6:], s.delayedFrom(t, at+1, 0, endOfTime, noLimit, noLimit))
	same(t, "after the end", 0, len(s.delayedFrom(t, endOfTime, 1<<64-1, endOfTime, noLimit, noLimit)))
	same(t, "before the beginning", want, s.delayedFrom(t, -1, 7, endOfTime, noLimit, noLimit))
	s.commit(t, cancels(want[4].Topic, want[4].ID))
	same(t, "after one that was removed", want[5:], s.delayedFrom(t, at, want[4].Seq, endOfTime, noLimit, noLimit))
}

func testDelayUntil(t *testing.T, s *env) {
	want := fillDelays(t, s) // 3 each at 0, 10, 20, 30
	for _, tt := range []struct {
		ms   int64
		want int
	}{{-1, 0}, {0, 3}, {9, 3}, {10, 6}, {29, 9}, {30, 12}, {31, 12}} {
		same(t, fmt.Sprint("until ", tt.ms), want[:tt.want], s.delayedFrom(t, 0, 0, startTime+tt.ms, noLimit, noLimit))
	}
	same(t, "until the greatest number", want, s.delayedFrom(t, 0, 0, 1<<63-1, noLimit, noLimit))
	same(t, "until before all time", 0, len(s.delayedFrom(t, 0, 0, -1, noLimit, noLimit)))
	same(t, "until before the place", 0, len(s.delayedFrom(t, want[6].At, 0, want[6].At-1, noLimit, noLimit)))
}

func testDelayBytes(t *testing.T, s *env) {
	want := fillDelays(t, s)
	first, second := len(want[0].Record), len(want[1].Record)
	for _, tt := range []struct{ bytes, want int }{
		{0, 1}, {first - 1, 1}, {first, 1}, {first + second - 1, 1}, {first + second, 2},
	} {
		same(t, fmt.Sprint(tt.bytes, " bytes"), want[:tt.want], s.delayedFrom(t, 0, 0, endOfTime, noLimit, tt.bytes))
	}
}

func testDelayDuplicates(t *testing.T, s *env) {
	u := delays(delayFor("t", "x", 10), delayFor("t", "x", 20), delayFor("u", "x", 5), delayKeyed("t", "fresh", "", 1))
	v := delays(delayFor("t", "x", 30), delayFor("t", "fresh", 40), delayFor("t", "y", 50))
	s.commit(t, u, v)
	first := u.Delays[0]
	duplicateDelay(t, u.Delays[1], first)
	risingSeq(t, first.Seq, u.Delays[2:]...)
	duplicateDelay(t, v.Delays[0], first)
	duplicateDelay(t, v.Delays[1], u.Delays[3])
	want := []store.Delayed{asRead(u.Delays[3]), asRead(u.Delays[2]), asRead(first), asRead(v.Delays[2])}
	same(t, "delayed events", want, s.allDelayed(t))

	check := func() {
		t.Helper()
		again := s.delay(t, delayFor("t", "x", 60), delayFor("t", "fresh", 0), delayFor("u", "x", 5), delayFor("t", "y", 70))
		duplicateDelay(t, again[0], first)
		duplicateDelay(t, again[1], u.Delays[3])
		duplicateDelay(t, again[2], u.Delays[2])
		duplicateDelay(t, again[3], v.Delays[2])
		same(t, "delayed events", want, s.allDelayed(t))
	}
	check()
	if s.Capabilities().Persistent {
		s.reopen(t)
		check()
	}
	// The same unit object again: what it said before is not taken for an answer.
	s.commit(t, cancels("t", "x", "y"))
	s.commit(t, v)
	risingSeq(t, u.Delays[3].Seq, v.Delays[0], v.Delays[2])
	duplicateDelay(t, v.Delays[1], u.Delays[3])
	v.Cancels = []store.Cancel{{Topic: "t", ID: "none"}}
	s.commit(t, v)
	refused(t, v, store.ErrNotDelayed)
}

// delayOfEvent fails the test unless p is a duplicate of the event.
func delayOfEvent(t failer, p store.Delay, event store.Append) {
	t.Helper()
	if !p.Duplicate || p.Offset != event.Offset || p.Seq != 0 {
		t.Errorf("delayed event of %q: duplicate %v, offset %d, seq %d; want true, %d, 0", p.ID, p.Duplicate, p.Offset, p.Seq, event.Offset)
	}
}

func testDelayOfEvent(t *testing.T, s *env) {
	old := s.add(t, given("t", "filler"), given("t", "old"), given("t", "fresh"))
	both := &store.Unit{Appends: []store.Append{given("t", "both")}, Delays: []store.Delay{delayFor("t", "both", 1), delayFor("t", "old", 2)}}
	later := delays(delayFor("t", "both", 3), delayFor("t", "fresh", 4), delayFor("u", "old", 5))
	s.commit(t, both, later)
	delayOfEvent(t, both.Delays[0], both.Appends[0])
	delayOfEvent(t, both.Delays[1], old[1])
	delayOfEvent(t, later.Delays[0], both.Appends[0])
	delayOfEvent(t, later.Delays[1], old[2])
	risingSeq(t, 0, later.Delays[2])
	same(t, "delayed events", []store.Delayed{asRead(later.Delays[2])}, s.allDelayed(t))
	if s.Capabilities().Persistent {
		s.reopen(t)
		delayOfEvent(t, s.delay(t, delayFor("t", "old", 9))[0], old[1])
	}
}

func testAppendOfDelayed(t *testing.T, s *env) {
	p := s.delay(t, delayFor("t", "x", 10), delayFor("t", "y", 20))
	a := s.add(t, given("t", "x"))
	rising(t, 0, a)
	same(t, "delayed events besides the event", allAsRead(p), s.allDelayed(t))
	same(t, "topic", rowsOf(a), s.readAll(t, "t"))
	delayOfEvent(t, s.delay(t, delayFor("t", "x", 30))[0], a[0])
	// The delayed event comes due: there is one event.
	u := move("t", "x")
	s.commit(t, u)
	applied(t, u)
	duplicate(t, u.Appends[0], a[0])
	same(t, "delayed events", allAsRead(p[1:]), s.allDelayed(t))
	same(t, "topic", rowsOf(a), s.readAll(t, "t"))
}

func testMove(t *testing.T, s *env) {
	p := s.delay(t, delayKeyed("t", "x", "k", 10), delayFor("t", "y", 20), delayFor("u", "x", 30))
	s.clock.set(15)
	u := cancels("t", "x")
	u.Appends = []store.Append{{Topic: "t", ID: "x", Key: "k", Record: p[0].Record}}
	before, gone := unit(given("t", "before")), move("t", "x")
	s.commit(t, before, u, gone)
	applied(t, u)
	refused(t, gone, store.ErrNotDelayed)
	rising(t, before.Appends[0].Offset, u.Appends)
	same(t, "commit time", int64(startTime+15), u.Appends[0].CommitTime)
	check := func() {
		t.Helper()
		same(t, "delayed events", allAsRead(p[1:]), s.allDelayed(t))
		same(t, "topic", rowsOf(append(before.Appends, u.Appends...)), s.readAll(t, "t"))
		same(t, "latest of the key", rowOf(u.Appends[0]), s.latest(t, "t", "k", 0))
		same(t, "offset", u.Appends[0].Offset, s.find(t, "t", "x"))
	}
	check()
	if s.Capabilities().Persistent {
		s.reopen(t)
		check()
	}
}

// delayCase are units that meet in one id, "x", which is delayed for
// delayBefore; want is when it is delayed for afterwards, -1 for not at all, and
// refusals which units are refused.
type delayCase struct {
	name   string
	units  []*store.Unit
	want   int64
	refuse []int
	events int
}

const delayBefore = 10

func delayCases() []delayCase {
	at := func(ms int64) *store.Unit { return delays(delayFor("t", "x", ms)) }
	gone := func() *store.Unit { return cancels("t", "x") }
	moved := func() *store.Unit { return move("t", "x") }
	again := gone() // to another time, in one step
	again.Delays = []store.Delay{delayFor("t", "x", 77)}
	both := moved()
	both.Delays = []store.Delay{delayFor("t", "x", 77)}
	return []delayCase{
		{name: "delay", units: []*store.Unit{at(20)}, want: delayBefore},
		{name: "remove", units: []*store.Unit{gone()}, want: -1},
		{name: "remove, remove", units: []*store.Unit{gone(), gone()}, want: -1, refuse: []int{1}},
		{name: "remove, delay", units: []*store.Unit{gone(), at(20)}, want: 20},
		{name: "remove, delay, delay", units: []*store.Unit{gone(), at(20), at(30)}, want: 20},
		{name: "remove, delay, remove", units: []*store.Unit{gone(), at(20), gone()}, want: -1},
		{name: "remove, delay, remove, delay", units: []*store.Unit{gone(), at(20), gone(), at(30)}, want: 30},
		{name: "move, move", units: []*store.Unit{moved(), moved()}, want: -1, refuse: []int{1}, events: 1},
		{name: "move, delay", units: []*store.Unit{moved(), at(20)}, want: -1, events: 1},
		{name: "remove, move", units: []*store.Unit{gone(), moved()}, want: -1, refuse: []int{1}},
		{name: "remove, delay, move", units: []*store.Unit{gone(), at(20), moved()}, want: -1, events: 1},
		{name: "in one unit: remove, remove", units: []*store.Unit{cancels("t", "x", "x")}, want: delayBefore, refuse: []int{0}},
		{name: "in one unit: remove, remove another", units: []*store.Unit{cancels("t", "x", "none"), at(20)}, want: delayBefore, refuse: []int{0}},
		{name: "in one unit: remove, delay", units: []*store.Unit{again}, want: 77},
		{name: "in one unit: move, delay", units: []*store.Unit{both}, want: -1, events: 1},
	}
}

func testDelayUnits(t *testing.T, s *env) {
	testDelayCases(t, s, func(units []*store.Unit) { s.commit(t, units...) })
}

// testDelayUnitsApart shows that a commit of several units leaves what one commit
// for each would.
func testDelayUnitsApart(t *testing.T, s *env) {
	testDelayCases(t, s, func(units []*store.Unit) {
		for _, u := range units {
			s.commit(t, u)
		}
	})
}

func testDelayCases(t *testing.T, s *env, commit func([]*store.Unit)) {
	for i, tt := range delayCases() {
		topic := fmt.Sprint("t", i)
		for _, u := range tt.units {
			for j := range u.Delays {
				u.Delays[j].Topic = topic
			}
			for j := range u.Cancels {
				u.Cancels[j].Topic = topic
			}
			for j := range u.Appends {
				u.Appends[j].Topic = topic
			}
		}
		s.delay(t, delayFor(topic, "x", delayBefore), delayFor(topic, "y", 0))
		commit(tt.units)
		for j, u := range tt.units {
			if slices.Contains(tt.refuse, j) {
				refused(t, u, store.ErrNotDelayed)
			} else if u.Err != nil {
				t.Errorf("%s: unit %d was refused: %v", tt.name, j, u.Err)
			}
		}
		got := int64(-1)
		if p := s.findDelay(t, topic, "x"); p != nil {
			got = p.At - startTime
		}
		same(t, tt.name+": delayed for", tt.want, got)
		same(t, tt.name+": events", tt.events, len(s.readAll(t, topic)))
		rows := 0
		for _, p := range s.allDelayed(t) {
			if p.Topic == topic {
				rows++
			}
		}
		same(t, tt.name+": delayed events of the topic", tt.want >= 0, rows == 2)
	}
}

// testDelayRefused surrounds units that are refused, for each reason there is, by
// units that are not.
func testDelayRefused(t *testing.T, s *env) {
	s.commit(t, &store.Unit{Groups: []store.GroupChange{create("t", "g", store.GroupState{Epoch: 5})}})
	old := s.delay(t, delayFor("t", "old", 10))
	for i, tt := range []struct {
		name string
		want error
		part store.Unit
	}{
		{"no delayed event", store.ErrNotDelayed, *cancels("t", "none")},
		{"no topic", store.ErrNotDelayed, *cancels("none", "old")},
		{"an event, but no delayed event", store.ErrNotDelayed, *cancels("t", "event")},
		{"stale epoch", store.ErrStaleEpoch, store.Unit{Groups: []store.GroupChange{update("t", "g", store.GroupState{Epoch: 4})}}},
		{"topic limit", store.ErrTopicLimit, store.Unit{Appends: []store.Append{given("b", "x"), given("c", "x"), given("d", "x")}}},
	} {
		id := fmt.Sprint("id-", i)
		bad := tt.part
		bad.Cancels = append([]store.Cancel{{Topic: "t", ID: "old"}}, bad.Cancels...)
		bad.Appends = append([]store.Append{given("t", "event"), given("t", id)}, bad.Appends...)
		bad.Delays = []store.Delay{delayFor("t", id, 20), delayFor("created", id, 30)}
		bad.Patterns = []store.PatternChange{{Group: "g", Pattern: id, Value: []byte(`1`)}}
		bad.Settings = []store.SettingChange{setting("t."+id, `1`)}
		bad.Notes = []store.NoteChange{note(id, "1")}
		before, after := delays(delayFor("t", "before-"+id, 1)), delays(delayFor("t", id, 40))
		s.commit(t, before, &bad, after)
		applied(t, before)
		refused(t, &bad, tt.want)
		applied(t, after)
		risingSeq(t, before.Delays[0].Seq, after.Delays[0])
		same(t, tt.name+": delayed events", []store.Delayed{asRead(before.Delays[0]), asRead(old[0]), asRead(after.Delays[0])}, s.allDelayed(t))
		same(t, tt.name+": events", 0, len(s.readAll(t, "t")))
		same(t, tt.name+": topics", 1, len(s.listTopics(t, "", noLimit)))
		same(t, tt.name+": patterns", 0, len(s.patterns(t)))
		same(t, tt.name+": settings", 0, len(s.settings(t)))
		same(t, tt.name+": notes", 0, len(s.notes(t)))
		s.commit(t, cancels("t", "before-"+id, id))
	}
}

// testCancelTheVeryOne: who names a delayed event by its number never removes another one of
// the same id, whether that came by an earlier commit or is in the same one.
func testCancelTheVeryOne(t *testing.T, s *env) {
	first := s.delay(t, delayFor("t", "x", 10))[0]
	s.commit(t, cancels("t", "x"))
	second := s.delay(t, delayFor("t", "x", 20))[0]
	by := func(seq uint64) *store.Unit {
		u := move("t", "x")
		u.Cancels[0].Seq = seq
		return u
	}
	for _, seq := range []uint64{first.Seq, second.Seq + 1} {
		u := by(seq)
		s.commit(t, u)
		refused(t, u, store.ErrNotDelayed)
		same(t, "delayed events", []store.Delayed{asRead(second)}, s.allDelayed(t))
	}
	away, again, old := by(second.Seq), delays(delayFor("t", "x", 30)), by(second.Seq)
	away.Appends = nil
	s.commit(t, away, again, old)
	applied(t, away)
	applied(t, again)
	refused(t, old, store.ErrNotDelayed)
	twice := by(again.Delays[0].Seq)
	twice.Cancels = append(twice.Cancels, store.Cancel{Topic: "t", ID: "x"})
	right := by(again.Delays[0].Seq)
	s.commit(t, twice, right)
	refused(t, twice, store.ErrNotDelayed)
	applied(t, right)
	same(t, "delayed events at the end", 0, len(s.allDelayed(t)))
	same(t, "events", 1, len(s.readAll(t, "t")))
}

func testDelayTopicLimit(t *testing.T, s *env) {
	units := []*store.Unit{
		delays(delayFor("a", "1", 0)), delays(delayFor("b", "1", 0), delayFor("c", "1", 0)),
		delays(delayFor("b", "2", 0), delayFor("a", "2", 0)), delays(delayFor("c", "3", 0)), unit(given("c", "4")), unit(given("b", "5")),
	}
	s.commit(t, units...)
	for i, u := range units {
		if i == 1 || i == 3 || i == 4 {
			refused(t, u, store.ErrTopicLimit)
		} else {
			applied(t, u)
		}
	}
	same(t, "delayed events", 3, len(s.allDelayed(t)))
}

func testDelayCopied(t *testing.T, s *env) {
	p := delayFor("t", "x", 10)
	want := string(p.Record)
	s.delay(t, p)
	same(t, "the caller's record", want, string(p.Record))
	clear(p.Record)
	for range 2 {
		found, list := s.findDelay(t, "t", "x"), s.allDelayed(t)
		same(t, "records", []string{want, want}, []string{string(found.Record), string(list[0].Record)})
		clear(found.Record)
		clear(list[0].Record)
	}
}

func testDelayReopened(t *testing.T, s *env) {
	p := s.delay(t, delayKeyed("t", "a", "k", 30), delayFor("t", "b", 10), delayFor("u", "c", 20))
	u := cancels("t", "b")
	u.Delays = []store.Delay{delayFor("t", "d", 5)}
	if err := s.Commit(context.Background(), []*store.Unit{u}, false); err != nil {
		t.Fatal(err)
	}
	want := []store.Delayed{asRead(u.Delays[0]), asRead(p[2]), asRead(p[0])}
	same(t, "delayed events after an unsynced commit", want, s.allDelayed(t))
	last := u.Delays[0].Seq
	for range 3 {
		s.reopen(t)
		if !s.Capabilities().Persistent {
			same(t, "delayed events", 0, len(s.allDelayed(t)))
			return
		}
		same(t, "delayed events after reopening", want, s.allDelayed(t))
		more := s.delay(t, delayFor("t", fmt.Sprint("more-", last), 100))
		last = risingSeq(t, last, more...)
		want = append(want, asRead(more[0]))
	}
}
