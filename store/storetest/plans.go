package storetest

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"eventhub/store"
)

var planTests = []test{
	{name: "write, find, remove", run: testPlanLife},
	{name: "order", run: testPlanOrder},
	{name: "pages", run: testPlanPages},
	{name: "until", run: testPlanUntil},
	{name: "bytes", run: testPlanBytes},
	{name: "duplicates", run: testPlanDuplicates},
	{name: "duplicates of events", run: testPlanOfEvent},
	{name: "append of a planned id", run: testAppendOfPlanned},
	{name: "move", run: testMove},
	{name: "units of one commit", run: testPlanUnits},
	{name: "units of several commits", run: testPlanUnitsApart},
	{name: "refused units leave nothing", options: Options{MaxTopics: 3}, run: testPlanRefused},
	{name: "topic limit", options: Options{MaxTopics: 2}, run: testPlanTopicLimit},
	{name: "remove the very one", run: testUnplanTheVeryOne},
	{name: "nothing is shown before it is durable", run: testPlanHeldSync},
	{name: "plans are copied", run: testPlanCopied},
	{name: "reopening", run: testPlanReopened},
	{name: "an event is planned or in the log", run: testPlanOrEvent},
}

// planFor is a plan whose id came from outside, due at startTime+ms.
func planFor(topic, id string, ms int64) store.Plan {
	a := newAppend(topic, id, "", 0)
	return store.Plan{Topic: topic, ID: id, At: startTime + ms, Record: a.Record}
}

// planKeyed is a plan of a fresh id with a key.
func planKeyed(topic, id, key string, ms int64) store.Plan {
	a := newAppend(topic, id, key, 0)
	return store.Plan{Topic: topic, ID: id, FreshID: true, Key: key, At: startTime + ms, Record: a.Record}
}

func plans(ps ...store.Plan) *store.Unit { return &store.Unit{Plans: ps} }

func unplans(topic string, ids ...string) *store.Unit {
	u := &store.Unit{}
	for _, id := range ids {
		u.Unplans = append(u.Unplans, store.Unplan{Topic: topic, ID: id})
	}
	return u
}

// move is the unit that puts a planned event into the log.
func move(topic, id string) *store.Unit {
	u := unplans(topic, id)
	u.Appends = []store.Append{given(topic, id)}
	return u
}

// asRead is what reads have to show of a plan that was committed.
func asRead(p store.Plan) store.Planned {
	return store.Planned{Topic: p.Topic, ID: p.ID, Key: p.Key, At: p.At, Seq: p.Seq, Record: p.Record}
}

func allAsRead(ps []store.Plan) (read []store.Planned) {
	for _, p := range ps {
		read = append(read, asRead(p))
	}
	return read
}

// plan commits one unit of plans, which must not be refused, and returns them
// with their results.
func (s *env) plan(t failer, ps ...store.Plan) []store.Plan {
	t.Helper()
	u := plans(ps...)
	s.commit(t, u)
	if u.Err != nil {
		t.Fatalf("a unit of %d plans was refused: %v", len(ps), u.Err)
	}
	return u.Plans
}

const endOfTime = 9_999_999_999_999

func (s *env) plannedFrom(t failer, at int64, seq uint64, until int64, limit, maxBytes int) []store.Planned {
	t.Helper()
	list, err := s.Planned(context.Background(), at, seq, until, limit, maxBytes)
	if err != nil {
		t.Fatalf("Planned(%d, %d, %d, %d, %d): %v", at, seq, until, limit, maxBytes, err)
	}
	return list
}

// allPlanned also holds FindPlan to what the list says.
func (s *env) allPlanned(t failer) []store.Planned {
	t.Helper()
	list := s.plannedFrom(t, 0, 0, endOfTime, noLimit, noLimit)
	for _, p := range list {
		same(t, "plan of "+p.ID, &p, s.findPlan(t, p.Topic, p.ID))
	}
	return list
}

// findPlan returns nil for a plan that is not there.
func (s *env) findPlan(t failer, topic, id string) *store.Planned {
	t.Helper()
	p, err := s.FindPlan(context.Background(), topic, id)
	if notFound(t, err, fmt.Sprintf("FindPlan(%q, %q)", topic, id)) {
		return nil
	}
	return &p
}

// risingSeq fails the test unless the plans were added with rising numbers above
// last, and returns the highest.
func risingSeq(t failer, last uint64, ps ...store.Plan) uint64 {
	t.Helper()
	for _, p := range ps {
		if p.Duplicate || p.Seq <= last || p.Offset != 0 {
			t.Errorf("plan of %q: duplicate %v, seq %d, offset %d; want a seq above %d", p.ID, p.Duplicate, p.Seq, p.Offset, last)
		}
		last = p.Seq
	}
	return last
}

// duplicatePlan fails the test unless p is a duplicate of first.
func duplicatePlan(t failer, p, first store.Plan) {
	t.Helper()
	if !p.Duplicate || p.Seq != first.Seq || p.At != first.At || p.Offset != 0 {
		t.Errorf("plan of %q: duplicate %v, seq %d, at %d, offset %d; want true, %d, %d, 0",
			p.ID, p.Duplicate, p.Seq, p.At, p.Offset, first.Seq, first.At)
	}
}

func testPlanLife(t *testing.T, s *env) {
	same(t, "plans of none", 0, len(s.allPlanned(t)))
	same(t, "plan of no topic", (*store.Planned)(nil), s.findPlan(t, "t", "a"))
	p := s.plan(t, planKeyed("t", "a", "k\x00", 10), planFor("u", "a", 5))
	last := risingSeq(t, 0, p...)
	same(t, "plans", []store.Planned{asRead(p[1]), asRead(p[0])}, s.allPlanned(t))
	same(t, "another id", (*store.Planned)(nil), s.findPlan(t, "t", "b"))
	same(t, "topics", []store.TopicInfo{{Name: "t"}, {Name: "u"}}, s.listTopics(t, "", noLimit))
	same(t, "events", 0, len(s.readAll(t, "t")))
	same(t, "offset", uint64(0), s.find(t, "t", "a"))
	same(t, "latest", row{}, s.latest(t, "t", "k\x00", 0))
	same(t, "first offset of the future", uint64(1), s.seekTime(t, "t", 0))

	s.commit(t, unplans("t", "a"))
	same(t, "plans after one was removed", []store.Planned{asRead(p[1])}, s.allPlanned(t))
	same(t, "the plan that was removed", (*store.Planned)(nil), s.findPlan(t, "t", "a"))
	again := unplans("t", "a")
	s.commit(t, again)
	refused(t, again, store.ErrNoPlan)
	next := s.plan(t, planFor("t", "a", 10))
	risingSeq(t, last, next...)
	same(t, "plans after it came back", []store.Planned{asRead(p[1]), asRead(next[0])}, s.allPlanned(t))
}

// testPlanOrder plans in an order of its own; what is read comes by time as a
// number, and at one time in the order of planning.
func testPlanOrder(t *testing.T, s *env) {
	times := []int64{0, 1, 255, 256, 1<<16 - 1, 1 << 16, 1<<32 - 1, 1 << 32, startTime, endOfTime}
	var all []store.Plan
	for i := range 5 * len(times) {
		// 17 and 50 have no common factor.
		n := i * 17 % (5 * len(times))
		p := planFor([]string{"t", "u", "a"}[n%3], fmt.Sprint("id-", n), 0)
		p.At, p.FreshID = times[n%len(times)], n%2 == 0
		all = append(all, s.plan(t, p)...)
	}
	risingSeq(t, 0, all...)
	slices.SortStableFunc(all, func(a, b store.Plan) int { return int(min(1, max(-1, a.At-b.At))) })
	same(t, "plans", allAsRead(all), s.allPlanned(t))
}

func fillPlans(t failer, s *env) []store.Planned {
	t.Helper()
	var ps []store.Plan
	for i := range 12 {
		ps = append(ps, planFor([]string{"t", "u"}[i%2], fmt.Sprint("id-", i), int64(i/3)*10))
	}
	return allAsRead(s.plan(t, ps...))
}

func testPlanPages(t *testing.T, s *env) {
	want := fillPlans(t, s)
	for _, size := range []int{1, 2, 3, len(want), len(want) + 1} {
		var got []store.Planned
		var last store.Planned
		for {
			page := s.plannedFrom(t, last.At, last.Seq, endOfTime, size, noLimit)
			if len(page) > size {
				t.Fatalf("a page of %d has %d plans", size, len(page))
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
	same(t, "limit 0", 0, len(s.plannedFrom(t, 0, 0, endOfTime, 0, noLimit)))
	same(t, "after all of a time", want[6:], s.plannedFrom(t, at, 1<<64-1, endOfTime, noLimit, noLimit))
	same(t, "before all of a time", want[3:], s.plannedFrom(t, at, 0, endOfTime, noLimit, noLimit))
	same(t, "after a time that nothing has", want[6:], s.plannedFrom(t, at+1, 0, endOfTime, noLimit, noLimit))
	same(t, "after the end", 0, len(s.plannedFrom(t, endOfTime, 1<<64-1, endOfTime, noLimit, noLimit)))
	same(t, "before the beginning", want, s.plannedFrom(t, -1, 7, endOfTime, noLimit, noLimit))
	s.commit(t, unplans(want[4].Topic, want[4].ID))
	same(t, "after one that was removed", want[5:], s.plannedFrom(t, at, want[4].Seq, endOfTime, noLimit, noLimit))
}

func testPlanUntil(t *testing.T, s *env) {
	want := fillPlans(t, s) // 3 each at 0, 10, 20, 30
	for _, tt := range []struct {
		ms   int64
		want int
	}{{-1, 0}, {0, 3}, {9, 3}, {10, 6}, {29, 9}, {30, 12}, {31, 12}} {
		same(t, fmt.Sprint("until ", tt.ms), want[:tt.want], s.plannedFrom(t, 0, 0, startTime+tt.ms, noLimit, noLimit))
	}
	same(t, "until the greatest number", want, s.plannedFrom(t, 0, 0, 1<<63-1, noLimit, noLimit))
	same(t, "until before all time", 0, len(s.plannedFrom(t, 0, 0, -1, noLimit, noLimit)))
	same(t, "until before the place", 0, len(s.plannedFrom(t, want[6].At, 0, want[6].At-1, noLimit, noLimit)))
}

func testPlanBytes(t *testing.T, s *env) {
	want := fillPlans(t, s)
	first, second := len(want[0].Record), len(want[1].Record)
	for _, tt := range []struct{ bytes, want int }{
		{0, 1}, {first - 1, 1}, {first, 1}, {first + second - 1, 1}, {first + second, 2},
	} {
		same(t, fmt.Sprint(tt.bytes, " bytes"), want[:tt.want], s.plannedFrom(t, 0, 0, endOfTime, noLimit, tt.bytes))
	}
}

func testPlanDuplicates(t *testing.T, s *env) {
	u := plans(planFor("t", "x", 10), planFor("t", "x", 20), planFor("u", "x", 5), planKeyed("t", "fresh", "", 1))
	v := plans(planFor("t", "x", 30), planFor("t", "fresh", 40), planFor("t", "y", 50))
	s.commit(t, u, v)
	first := u.Plans[0]
	duplicatePlan(t, u.Plans[1], first)
	risingSeq(t, first.Seq, u.Plans[2:]...)
	duplicatePlan(t, v.Plans[0], first)
	duplicatePlan(t, v.Plans[1], u.Plans[3])
	want := []store.Planned{asRead(u.Plans[3]), asRead(u.Plans[2]), asRead(first), asRead(v.Plans[2])}
	same(t, "plans", want, s.allPlanned(t))

	check := func() {
		t.Helper()
		again := s.plan(t, planFor("t", "x", 60), planFor("t", "fresh", 0), planFor("u", "x", 5), planFor("t", "y", 70))
		duplicatePlan(t, again[0], first)
		duplicatePlan(t, again[1], u.Plans[3])
		duplicatePlan(t, again[2], u.Plans[2])
		duplicatePlan(t, again[3], v.Plans[2])
		same(t, "plans", want, s.allPlanned(t))
	}
	check()
	if s.Capabilities().Persistent {
		s.reopen(t)
		check()
	}
	// The same unit object again: what it said before is not taken for an answer.
	s.commit(t, unplans("t", "x", "y"))
	s.commit(t, v)
	risingSeq(t, u.Plans[3].Seq, v.Plans[0], v.Plans[2])
	duplicatePlan(t, v.Plans[1], u.Plans[3])
	v.Unplans = []store.Unplan{{Topic: "t", ID: "none"}}
	s.commit(t, v)
	refused(t, v, store.ErrNoPlan)
}

// planOfEvent fails the test unless p is a duplicate of the event.
func planOfEvent(t failer, p store.Plan, event store.Append) {
	t.Helper()
	if !p.Duplicate || p.Offset != event.Offset || p.Seq != 0 {
		t.Errorf("plan of %q: duplicate %v, offset %d, seq %d; want true, %d, 0", p.ID, p.Duplicate, p.Offset, p.Seq, event.Offset)
	}
}

func testPlanOfEvent(t *testing.T, s *env) {
	old := s.add(t, given("t", "filler"), given("t", "old"), given("t", "fresh"))
	both := &store.Unit{Appends: []store.Append{given("t", "both")}, Plans: []store.Plan{planFor("t", "both", 1), planFor("t", "old", 2)}}
	later := plans(planFor("t", "both", 3), planFor("t", "fresh", 4), planFor("u", "old", 5))
	s.commit(t, both, later)
	planOfEvent(t, both.Plans[0], both.Appends[0])
	planOfEvent(t, both.Plans[1], old[1])
	planOfEvent(t, later.Plans[0], both.Appends[0])
	planOfEvent(t, later.Plans[1], old[2])
	risingSeq(t, 0, later.Plans[2])
	same(t, "plans", []store.Planned{asRead(later.Plans[2])}, s.allPlanned(t))
	if s.Capabilities().Persistent {
		s.reopen(t)
		planOfEvent(t, s.plan(t, planFor("t", "old", 9))[0], old[1])
	}
}

func testAppendOfPlanned(t *testing.T, s *env) {
	p := s.plan(t, planFor("t", "x", 10), planFor("t", "y", 20))
	a := s.add(t, given("t", "x"))
	rising(t, 0, a)
	same(t, "plans beside the event", allAsRead(p), s.allPlanned(t))
	same(t, "topic", rowsOf(a), s.readAll(t, "t"))
	planOfEvent(t, s.plan(t, planFor("t", "x", 30))[0], a[0])
	// The plan comes due: there is one event.
	u := move("t", "x")
	s.commit(t, u)
	applied(t, u)
	duplicate(t, u.Appends[0], a[0])
	same(t, "plans", allAsRead(p[1:]), s.allPlanned(t))
	same(t, "topic", rowsOf(a), s.readAll(t, "t"))
}

func testMove(t *testing.T, s *env) {
	p := s.plan(t, planKeyed("t", "x", "k", 10), planFor("t", "y", 20), planFor("u", "x", 30))
	s.clock.set(15)
	u := unplans("t", "x")
	u.Appends = []store.Append{{Topic: "t", ID: "x", Key: "k", Record: p[0].Record}}
	before, gone := unit(given("t", "before")), move("t", "x")
	s.commit(t, before, u, gone)
	applied(t, u)
	refused(t, gone, store.ErrNoPlan)
	rising(t, before.Appends[0].Offset, u.Appends)
	same(t, "commit time", int64(startTime+15), u.Appends[0].CommitTime)
	check := func() {
		t.Helper()
		same(t, "plans", allAsRead(p[1:]), s.allPlanned(t))
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

// planCase are units that meet in one id, "x", which is planned for
// planBefore; want is when it is planned for afterwards, -1 for not at all, and
// refusals which units are refused.
type planCase struct {
	name   string
	units  []*store.Unit
	want   int64
	refuse []int
	events int
}

const planBefore = 10

func planCases() []planCase {
	at := func(ms int64) *store.Unit { return plans(planFor("t", "x", ms)) }
	gone := func() *store.Unit { return unplans("t", "x") }
	moved := func() *store.Unit { return move("t", "x") }
	again := gone() // to another time, in one step
	again.Plans = []store.Plan{planFor("t", "x", 77)}
	both := moved()
	both.Plans = []store.Plan{planFor("t", "x", 77)}
	return []planCase{
		{name: "plan", units: []*store.Unit{at(20)}, want: planBefore},
		{name: "remove", units: []*store.Unit{gone()}, want: -1},
		{name: "remove, remove", units: []*store.Unit{gone(), gone()}, want: -1, refuse: []int{1}},
		{name: "remove, plan", units: []*store.Unit{gone(), at(20)}, want: 20},
		{name: "remove, plan, plan", units: []*store.Unit{gone(), at(20), at(30)}, want: 20},
		{name: "remove, plan, remove", units: []*store.Unit{gone(), at(20), gone()}, want: -1},
		{name: "remove, plan, remove, plan", units: []*store.Unit{gone(), at(20), gone(), at(30)}, want: 30},
		{name: "move, move", units: []*store.Unit{moved(), moved()}, want: -1, refuse: []int{1}, events: 1},
		{name: "move, plan", units: []*store.Unit{moved(), at(20)}, want: -1, events: 1},
		{name: "remove, move", units: []*store.Unit{gone(), moved()}, want: -1, refuse: []int{1}},
		{name: "remove, plan, move", units: []*store.Unit{gone(), at(20), moved()}, want: -1, events: 1},
		{name: "in one unit: remove, remove", units: []*store.Unit{unplans("t", "x", "x")}, want: planBefore, refuse: []int{0}},
		{name: "in one unit: remove, remove another", units: []*store.Unit{unplans("t", "x", "none"), at(20)}, want: planBefore, refuse: []int{0}},
		{name: "in one unit: remove, plan", units: []*store.Unit{again}, want: 77},
		{name: "in one unit: move, plan", units: []*store.Unit{both}, want: -1, events: 1},
	}
}

func testPlanUnits(t *testing.T, s *env) {
	testPlanCases(t, s, func(units []*store.Unit) { s.commit(t, units...) })
}

// testPlanUnitsApart shows that a commit of several units leaves what one commit
// for each would.
func testPlanUnitsApart(t *testing.T, s *env) {
	testPlanCases(t, s, func(units []*store.Unit) {
		for _, u := range units {
			s.commit(t, u)
		}
	})
}

func testPlanCases(t *testing.T, s *env, commit func([]*store.Unit)) {
	for i, tt := range planCases() {
		topic := fmt.Sprint("t", i)
		for _, u := range tt.units {
			for j := range u.Plans {
				u.Plans[j].Topic = topic
			}
			for j := range u.Unplans {
				u.Unplans[j].Topic = topic
			}
			for j := range u.Appends {
				u.Appends[j].Topic = topic
			}
		}
		s.plan(t, planFor(topic, "x", planBefore), planFor(topic, "y", 0))
		commit(tt.units)
		for j, u := range tt.units {
			if slices.Contains(tt.refuse, j) {
				refused(t, u, store.ErrNoPlan)
			} else if u.Err != nil {
				t.Errorf("%s: unit %d was refused: %v", tt.name, j, u.Err)
			}
		}
		got := int64(-1)
		if p := s.findPlan(t, topic, "x"); p != nil {
			got = p.At - startTime
		}
		same(t, tt.name+": planned for", tt.want, got)
		same(t, tt.name+": events", tt.events, len(s.readAll(t, topic)))
		rows := 0
		for _, p := range s.allPlanned(t) {
			if p.Topic == topic {
				rows++
			}
		}
		same(t, tt.name+": plans of the topic", tt.want >= 0, rows == 2)
	}
}

// testPlanRefused surrounds units that are refused, for each reason there is, by
// units that are not.
func testPlanRefused(t *testing.T, s *env) {
	s.commit(t, &store.Unit{Groups: []store.GroupChange{create("t", "g", store.GroupState{Epoch: 5})}})
	old := s.plan(t, planFor("t", "old", 10))
	for i, tt := range []struct {
		name string
		want error
		part store.Unit
	}{
		{"no plan", store.ErrNoPlan, *unplans("t", "none")},
		{"no topic", store.ErrNoPlan, *unplans("none", "old")},
		{"an event, but no plan", store.ErrNoPlan, *unplans("t", "event")},
		{"stale epoch", store.ErrStaleEpoch, store.Unit{Groups: []store.GroupChange{update("t", "g", store.GroupState{Epoch: 4})}}},
		{"topic limit", store.ErrTopicLimit, store.Unit{Appends: []store.Append{given("b", "x"), given("c", "x"), given("d", "x")}}},
	} {
		id := fmt.Sprint("id-", i)
		bad := tt.part
		bad.Unplans = append([]store.Unplan{{Topic: "t", ID: "old"}}, bad.Unplans...)
		bad.Appends = append([]store.Append{given("t", "event"), given("t", id)}, bad.Appends...)
		bad.Plans = []store.Plan{planFor("t", id, 20), planFor("created", id, 30)}
		bad.Patterns = []store.PatternChange{{Group: "g", Pattern: id, Value: []byte(`1`)}}
		before, after := plans(planFor("t", "before-"+id, 1)), plans(planFor("t", id, 40))
		s.commit(t, before, &bad, after)
		applied(t, before)
		refused(t, &bad, tt.want)
		applied(t, after)
		risingSeq(t, before.Plans[0].Seq, after.Plans[0])
		same(t, tt.name+": plans", []store.Planned{asRead(before.Plans[0]), asRead(old[0]), asRead(after.Plans[0])}, s.allPlanned(t))
		same(t, tt.name+": events", 0, len(s.readAll(t, "t")))
		same(t, tt.name+": topics", 1, len(s.listTopics(t, "", noLimit)))
		same(t, tt.name+": patterns", 0, len(s.patterns(t)))
		s.commit(t, unplans("t", "before-"+id, id))
	}
}

// testUnplanTheVeryOne: who names a plan by its number never removes another one of
// the same id, whether that came by an earlier commit or is in the same one.
func testUnplanTheVeryOne(t *testing.T, s *env) {
	first := s.plan(t, planFor("t", "x", 10))[0]
	s.commit(t, unplans("t", "x"))
	second := s.plan(t, planFor("t", "x", 20))[0]
	by := func(seq uint64) *store.Unit {
		u := move("t", "x")
		u.Unplans[0].Seq = seq
		return u
	}
	for _, seq := range []uint64{first.Seq, second.Seq + 1} {
		u := by(seq)
		s.commit(t, u)
		refused(t, u, store.ErrNoPlan)
		same(t, "plans", []store.Planned{asRead(second)}, s.allPlanned(t))
	}
	away, again, old := by(second.Seq), plans(planFor("t", "x", 30)), by(second.Seq)
	away.Appends = nil
	s.commit(t, away, again, old)
	applied(t, away)
	applied(t, again)
	refused(t, old, store.ErrNoPlan)
	twice := by(again.Plans[0].Seq)
	twice.Unplans = append(twice.Unplans, store.Unplan{Topic: "t", ID: "x"})
	right := by(again.Plans[0].Seq)
	s.commit(t, twice, right)
	refused(t, twice, store.ErrNoPlan)
	applied(t, right)
	same(t, "plans at the end", 0, len(s.allPlanned(t)))
	same(t, "events", 1, len(s.readAll(t, "t")))
}

func testPlanTopicLimit(t *testing.T, s *env) {
	units := []*store.Unit{
		plans(planFor("a", "1", 0)), plans(planFor("b", "1", 0), planFor("c", "1", 0)),
		plans(planFor("b", "2", 0), planFor("a", "2", 0)), plans(planFor("c", "3", 0)), unit(given("c", "4")), unit(given("b", "5")),
	}
	s.commit(t, units...)
	for i, u := range units {
		if i == 1 || i == 3 || i == 4 {
			refused(t, u, store.ErrTopicLimit)
		} else {
			applied(t, u)
		}
	}
	same(t, "plans", 3, len(s.allPlanned(t)))
}

func testPlanCopied(t *testing.T, s *env) {
	p := planFor("t", "x", 10)
	want := string(p.Record)
	s.plan(t, p)
	same(t, "the caller's record", want, string(p.Record))
	clear(p.Record)
	for range 2 {
		found, list := s.findPlan(t, "t", "x"), s.allPlanned(t)
		same(t, "records", []string{want, want}, []string{string(found.Record), string(list[0].Record)})
		clear(found.Record)
		clear(list[0].Record)
	}
}

func testPlanReopened(t *testing.T, s *env) {
	p := s.plan(t, planKeyed("t", "a", "k", 30), planFor("t", "b", 10), planFor("u", "c", 20))
	u := unplans("t", "b")
	u.Plans = []store.Plan{planFor("t", "d", 5)}
	if err := s.Commit(context.Background(), []*store.Unit{u}, false); err != nil {
		t.Fatal(err)
	}
	want := []store.Planned{asRead(u.Plans[0]), asRead(p[2]), asRead(p[0])}
	same(t, "plans after an unsynced commit", want, s.allPlanned(t))
	last := u.Plans[0].Seq
	for range 3 {
		s.reopen(t)
		if !s.Capabilities().Persistent {
			same(t, "plans", 0, len(s.allPlanned(t)))
			return
		}
		same(t, "plans after reopening", want, s.allPlanned(t))
		more := s.plan(t, planFor("t", fmt.Sprint("more-", last), 100))
		last = risingSeq(t, last, more...)
		want = append(want, asRead(more[0]))
	}
}
