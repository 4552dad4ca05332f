package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"eventhub"
	"eventhub/internal/testsize"
	"eventhub/store"
)

var producerTests = []test{
	{name: "a number again has the first results", run: testNumberAgain},
	{name: "results survive reopening", run: testNumberReopened},
	{name: "a hole is refused", run: testNumberHole},
	{name: "a refused unit uses its number", run: testNumberRefused, options: Options{MaxTopics: 2}},
	{name: "another unit has not the results", run: testNumberOfOther},
	{name: "opening fences", run: testProducerFenced},
	{name: "an epoch that is given has to be the producer's", run: testProducerEpoch},
	{name: "removal", run: testProducerRemoved},
	{name: "old numbers are forgotten", run: testNumbersForgotten},
	{name: "list", run: testProducerList},
	{name: "random histories", run: testProducerHistory},
}

// openProducer opens a producer, which must not be refused.
func (s *env) openProducer(t failer, name string, epoch uint64) store.ProducerChange {
	t.Helper()
	u := &store.Unit{Producer: &store.ProducerChange{Name: name, Epoch: epoch, At: startTime}}
	s.commit(t, u)
	if u.Err != nil {
		t.Fatalf("opening producer %q: %v", name, u.Err)
	}
	return *u.Producer
}

func (s *env) producers(t failer) []store.ProducerInfo {
	t.Helper()
	list, err := s.ListProducers(context.Background())
	if err != nil {
		t.Fatalf("ListProducers: %v", err)
	}
	return list
}

// ofNumber is a unit with a number of a producer.
func ofNumber(p store.ProducerChange, number uint64, appends ...store.Append) *store.Unit {
	u := unit(appends...)
	u.Sequence = &store.Sequence{Producer: p.Name, Epoch: p.NewEpoch, Number: number}
	return u
}

func refusing(p store.ProducerChange, number uint64, refusal string, appends ...store.Append) *store.Unit {
	u := ofNumber(p, number, appends...)
	u.Sequence.Refusal = []byte(refusal)
	return u
}

// repeats fails the test unless u has the results of first.
func repeats(t failer, u, first *store.Unit) {
	t.Helper()
	if u.Err != nil || !u.Sequence.Repeated || u.Sequence.Refusal != nil {
		t.Fatalf("number %d: error %v, repeated %v, refusal %q", u.Sequence.Number, u.Err, u.Sequence.Repeated, u.Sequence.Refusal)
	}
	for i := range u.Appends {
		duplicate(t, u.Appends[i], first.Appends[i])
		same(t, "id", first.Appends[i].ID, u.Appends[i].ID)
	}
	for i := range u.Delays {
		got, want := u.Delays[i], first.Delays[i]
		if got.ID != want.ID || got.At != want.At || got.Seq != want.Seq || got.Offset != want.Offset || !got.Duplicate {
			t.Errorf("delayed event %+v; want those of %+v, and a duplicate", got, want)
		}
	}
}

// badNumber fails the test unless the unit is refused for its number.
func badNumber(t failer, u *store.Unit, next uint64, other bool) {
	t.Helper()
	var e *store.SequenceError
	if !errors.As(u.Err, &e) || e.Number != u.Sequence.Number || e.Next != next || e.Other != other {
		t.Errorf("number %d: %v; want a SequenceError, next %d, other %v", u.Sequence.Number, u.Err, next, other)
	}
}

func testNumberAgain(t *testing.T, s *env) {
	p := s.openProducer(t, "p", 0)
	same(t, "last", uint64(0), p.Last)
	units := func() []*store.Unit {
		mixed := ofNumber(p, 3, made("a"), given("b", "x"), made("a"), given("b", "x"))
		mixed.Delays = []store.Delay{delayed("a", "later", 5), delayed("a", "later", 6)}
		return []*store.Unit{ofNumber(p, 1, made("a")), ofNumber(p, 2, made("a"), made("a"), made("a")), mixed,
			ofNumber(p, 4, given("a", "y")), ofNumber(p, 5, given("a", "z"))}
	}
	first := units()
	s.commit(t, first...)
	for _, u := range first {
		if u.Err != nil || u.Sequence.Repeated {
			t.Fatalf("number %d: %v, repeated %v", u.Sequence.Number, u.Err, u.Sequence.Repeated)
		}
	}
	rows := s.readAll(t, "a")
	s.clock.set(5000)
	again := units()
	again[2].Delays[0].At += 7 // another time has passed
	s.commit(t, again...)
	for i, u := range again {
		repeats(t, u, first[i])
	}
	same(t, "topic", rows, s.readAll(t, "a"))
	// In the commit of the first, and with others beside it.
	new1, new2, other := ofNumber(p, 6, made("a")), ofNumber(p, 6, made("a")), unit(made("a"))
	s.commit(t, new1, other, new2)
	repeats(t, new2, new1)
	same(t, "number of events", len(rows)+2, len(s.readAll(t, "a")))
}

func delayed(topic, id string, at int64) store.Delay {
	a := given(topic, id)
	return store.Delay{Topic: topic, ID: id, At: startTime + 1000*at, Record: a.Record}
}

func testNumberReopened(t *testing.T, s *env) {
	p := s.openProducer(t, "p", 0)
	first := []*store.Unit{ofNumber(p, 1, made("a"), made("a")), ofNumber(p, 2, given("b", "x"))}
	s.commit(t, first...)
	s.reopen(t)
	if !s.Capabilities().Persistent {
		u := ofNumber(p, 1, made("a"))
		s.commit(t, u)
		if !errors.Is(u.Err, store.ErrUnknownProducer) {
			t.Error(u.Err)
		}
		return
	}
	q := s.openProducer(t, "p", p.NewEpoch)
	same(t, "last", uint64(2), q.Last)
	again := []*store.Unit{ofNumber(q, 1, made("a"), made("a")), ofNumber(q, 2, given("b", "x")), ofNumber(q, 3, made("a"))}
	s.commit(t, again...)
	repeats(t, again[0], first[0])
	repeats(t, again[1], first[1])
	same(t, "the next", nil, again[2].Err)
}

func testNumberHole(t *testing.T, s *env) {
	p := s.openProducer(t, "p", 0)
	zero, hole, one := ofNumber(p, 0, made("a")), ofNumber(p, 2, made("a")), ofNumber(p, 1, made("a"))
	s.commit(t, zero, hole, one)
	badNumber(t, zero, 1, false)
	badNumber(t, hole, 1, false)
	same(t, "the next", nil, one.Err)
	hole = ofNumber(p, 1<<63, made("a"))
	s.commit(t, hole)
	badNumber(t, hole, 2, false)
	same(t, "number of events", 1, len(s.readAll(t, "a")))
	none := ofNumber(store.ProducerChange{Name: "q", NewEpoch: 1}, 1, made("a"))
	s.commit(t, none)
	if !errors.Is(none.Err, store.ErrUnknownProducer) {
		t.Error(none.Err)
	}
}

func testNumberRefused(t *testing.T, s *env) {
	p := s.openProducer(t, "p", 0)
	expecting := func() store.Append {
		a := made("a")
		a.Expect = eventhub.Expect{Kind: eventhub.ExpectTopicOffset, Offset: 7}
		return a
	}
	units := func() []*store.Unit {
		return []*store.Unit{
			ofNumber(p, 1, made("a")), refusing(p, 2, "no", made("a")), ofNumber(p, 3, made("a"), expecting()),
			ofNumber(p, 4, made("b"), made("c")), refusing(p, 5, strings.Repeat("n", store.MaxRefusal)), ofNumber(p, 6, made("a")),
		}
	}
	check := func(units []*store.Unit, repeated bool) {
		t.Helper()
		var conflict *store.ConflictError
		if !errors.As(units[2].Err, &conflict) || conflict.Append != 1 || conflict.Expect.Offset != 7 || conflict.Present != 1 {
			t.Errorf("number 3: %v", units[2].Err)
		}
		if !errors.Is(units[3].Err, store.ErrTopicLimit) {
			t.Errorf("number 4: %v", units[3].Err)
		}
		same(t, "refusal", "no", string(units[1].Sequence.Refusal))
		same(t, "error", store.ErrRefused, units[1].Err)
		same(t, "long refusal", strings.Repeat("n", store.MaxRefusal), string(units[4].Sequence.Refusal))
		for _, u := range units {
			same(t, "repeated", repeated, u.Sequence.Repeated)
		}
	}
	s.commit(t, units()[0], &store.Unit{Appends: []store.Append{made("z")}})
	first := units()
	s.commit(t, first[1:]...)
	first[0].Sequence.Repeated = false
	check(first, false)
	again := units()
	// What was applied or refused is so for good, whatever the engine would refuse now.
	again[0].Sequence.Refusal, again[1].Sequence.Refusal, again[5].Sequence.Refusal = []byte("late"), nil, []byte("late")
	s.commit(t, again...)
	check(again, true)
	repeats(t, again[5], first[5])
	same(t, "refusal of what was applied", 0, len(again[0].Sequence.Refusal))
	same(t, "number of events", 2, len(s.readAll(t, "a")))
}

func testNumberOfOther(t *testing.T, s *env) {
	p := s.openProducer(t, "p", 0)
	one := ofNumber(p, 2, made("a"))
	one.Delays = []store.Delay{delayed("a", "x", 1)}
	conflict := made("a")
	conflict.Expect = eventhub.Expect{Kind: eventhub.ExpectTopicOffset, Offset: 77}
	plain := ofNumber(p, 1, made("a"), made("a"))
	s.commit(t, plain, one, ofNumber(p, 3, made("a"), conflict))
	for _, u := range []*store.Unit{
		ofNumber(p, 1, made("a")), ofNumber(p, 1, made("a"), made("a"), made("a")), ofNumber(p, 1, given("a", "x"), made("a")),
		ofNumber(p, 2, made("a")), ofNumber(p, 3, made("a")), refusing(p, 3, "no"),
	} {
		s.commit(t, u)
		badNumber(t, u, 4, true)
	}
	same(t, "number of events", 3, len(s.readAll(t, "a")))
	// What is refused now, and cannot say its parts, was published all the same.
	for _, first := range []*store.Unit{plain, one} {
		u := refusing(p, first.Sequence.Number, "no")
		s.commit(t, u)
		q := u.Sequence
		if u.Err != nil || !q.Repeated || q.Refusal != nil || q.First == nil || len(q.First.Appends) != len(first.Appends) || len(q.First.Delays) != len(first.Delays) {
			t.Fatalf("number %d, refused now: %v, %+v", q.Number, u.Err, q)
		}
		u.Appends, u.Delays = q.First.Appends, q.First.Delays
		repeats(t, u, first)
	}
}

func testProducerFenced(t *testing.T, s *env) {
	p, other := s.openProducer(t, "p", 0), s.openProducer(t, "other", 0)
	s.commit(t, ofNumber(p, 1, made("a")))
	q := s.openProducer(t, "p", 0)
	if q.Born != p.NewEpoch || p.Born != p.NewEpoch {
		t.Errorf("born in %d; it was %d, %d", q.Born, p.Born, p.NewEpoch)
	}
	if q.NewEpoch <= p.NewEpoch || q.NewEpoch <= other.NewEpoch {
		t.Errorf("epoch %d; want one above %d and %d", q.NewEpoch, p.NewEpoch, other.NewEpoch)
	}
	same(t, "last", uint64(1), q.Last)
	old, again, next, unaffected := ofNumber(p, 2, made("a")), ofNumber(p, 1, made("a")), ofNumber(q, 2, made("a")), ofNumber(other, 1, made("a"))
	s.commit(t, old, again, next, unaffected)
	for _, u := range []*store.Unit{old, again} {
		if !errors.Is(u.Err, store.ErrFenced) {
			t.Errorf("number %d of the epoch before: %v", u.Sequence.Number, u.Err)
		}
	}
	same(t, "the next", nil, next.Err)
	same(t, "of another producer", nil, unaffected.Err)
	// Within one commit too.
	takeover := &store.Unit{Producer: &store.ProducerChange{Name: "p"}}
	before, after := ofNumber(q, 3, made("a")), ofNumber(q, 4, made("a"))
	s.commit(t, before, takeover, after)
	same(t, "before the takeover", nil, before.Err)
	same(t, "last", uint64(3), takeover.Producer.Last)
	if !errors.Is(after.Err, store.ErrFenced) {
		t.Error(after.Err)
	}
}

func testProducerEpoch(t *testing.T, s *env) {
	p := s.openProducer(t, "p", 0)
	q := s.openProducer(t, "p", p.NewEpoch)
	for epoch, want := range map[uint64]error{p.NewEpoch: store.ErrFenced, q.NewEpoch + 1: store.ErrUnknownProducer} {
		u := &store.Unit{Producer: &store.ProducerChange{Name: "p", Epoch: epoch}}
		s.commit(t, u)
		if !errors.Is(u.Err, want) || u.Producer.NewEpoch != 0 {
			t.Errorf("epoch %d: %v; want %v", epoch, u.Err, want)
		}
	}
	u := &store.Unit{Producer: &store.ProducerChange{Name: "none", Epoch: p.NewEpoch}}
	s.commit(t, u)
	if !errors.Is(u.Err, store.ErrUnknownProducer) {
		t.Error(u.Err)
	}
	same(t, "producers", 1, len(s.producers(t)))
}

func testProducerRemoved(t *testing.T, s *env) {
	p := s.openProducer(t, "p", 0)
	s.commit(t, ofNumber(p, 1, made("a")), ofNumber(p, 2, made("a")))
	late, gone, none := ofNumber(p, 4, made("a")), &store.Unit{Producer: &store.ProducerChange{Name: "p", Delete: true, Epoch: p.NewEpoch}},
		&store.Unit{Producer: &store.ProducerChange{Name: "none", Delete: true}}
	s.commit(t, ofNumber(p, 3, made("a")), gone, late, none)
	if gone.Err != nil || none.Err != nil || !errors.Is(late.Err, store.ErrUnknownProducer) {
		t.Fatal(gone.Err, none.Err, late.Err)
	}
	same(t, "producers", 0, len(s.producers(t)))
	s.reopen(t)
	same(t, "producers after a restart", 0, len(s.producers(t)))
	q := s.openProducer(t, "p", 0)
	if !s.Capabilities().Persistent {
		p.NewEpoch = 0
	}
	if q.Born != q.NewEpoch {
		t.Errorf("%+v was made again", q)
	}
	if q.Last != 0 || q.NewEpoch <= p.NewEpoch {
		t.Errorf("%+v after %+v", q, p)
	}
	first := ofNumber(q, 1, made("a"))
	s.commit(t, first)
	s.reopen(t)
	if s.Capabilities().Persistent {
		q = s.openProducer(t, "p", 0)
		same(t, "last", uint64(1), q.Last)
		two, again := ofNumber(q, 2, made("a")), ofNumber(q, 1, made("a"))
		s.commit(t, two, again)
		same(t, "the next", nil, two.Err)
		repeats(t, again, first)
	}
	stale := &store.Unit{Producer: &store.ProducerChange{Name: "p", Delete: true, Epoch: max(p.NewEpoch, 1)}}
	s.commit(t, stale)
	if stale.Err == nil {
		t.Error("removed with the epoch of an earlier one")
	}
}

func testNumbersForgotten(t *testing.T, s *env) {
	p := s.openProducer(t, "p", 0)
	const kept = store.SequencesKept
	next := uint64(1)
	use := func(n, each uint64) {
		for ; n > 0; n -= min(n, each) {
			var units []*store.Unit
			for range min(n, each) {
				units = append(units, refusing(p, next, fmt.Sprint(next)))
				next++
			}
			s.commit(t, units...)
		}
	}
	use(3*kept, 700)
	use(20, 1)
	look := func() {
		t.Helper()
		for _, back := range []uint64{0, 1, 19, 20, 21, 700, kept - 1} {
			u := refusing(p, next-1-back, "again")
			s.commit(t, u)
			if u.Err != store.ErrRefused || string(u.Sequence.Refusal) != fmt.Sprint(next-1-back) {
				t.Errorf("number %d of %d: %v, %q", next-1-back, next-1, u.Err, u.Sequence.Refusal)
			}
		}
		for _, number := range []uint64{1, 2, next - 1 - kept} {
			u := refusing(p, number, "again")
			s.commit(t, u)
			badNumber(t, u, next, false)
		}
	}
	look()
	s.reopen(t)
	if s.Capabilities().Persistent {
		p = s.openProducer(t, "p", p.NewEpoch)
		same(t, "last", next-1, p.Last)
		look()
		use(2*kept, 500)
		look()
	}
}

func testProducerList(t *testing.T, s *env) {
	same(t, "producers", 0, len(s.producers(t)))
	long := strings.Repeat("n", store.MaxProducerName)
	for _, name := range []string{"b", "a\x00", "a", long, "\x00"} {
		s.openProducer(t, name, 0)
	}
	b := s.openProducer(t, "b", 0)
	first := b.NewEpoch - 6 // of the store, before the first was opened
	s.clock.set(9000)
	s.commit(t, ofNumber(b, 1, made("t")), ofNumber(b, 2, made("t")))
	check := func() {
		t.Helper()
		want := []store.ProducerInfo{
			{Name: "\x00", Epoch: first + 5, Used: startTime}, {Name: "a", Epoch: first + 3, Used: startTime}, {Name: "a\x00", Epoch: first + 2, Used: startTime},
			{Name: "b", Epoch: first + 6, Last: 2, Used: startTime + 9000}, {Name: long, Epoch: first + 4, Used: startTime},
		}
		same(t, "producers", want, s.producers(t))
	}
	check()
	if s.reopen(t); s.Capabilities().Persistent {
		check()
	}
}

// producerModel is what a producer of a history is to be.
type producerModel struct {
	change store.ProducerChange
	last   uint64
	// opening: the commit that is being drawn opens it, and nobody knows its epoch.
	opening bool
	units   []*store.Unit // by number - 1, as they were after their commit
}

// testProducerHistory: units of several producers, new, again, too early and fenced, in commits
// with others, over restarts and deletions of topics: each has the results that a list of all
// units says.
func testProducerHistory(t *testing.T, s *env) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	h := &producerHistory{t: t, s: s, r: r, models: make(map[string]*producerModel)}
	for range testsize.Of(600, 150) {
		switch n := r.IntN(40); {
		case n == 0:
			s.reopen(t)
			if !s.Capabilities().Persistent {
				clear(h.models)
				h.events = 0
			}
		case n == 1:
			if err := s.DeleteTopic(context.Background(), h.topic()); err != nil && !errors.Is(err, store.ErrNotFound) {
				t.Fatal(err)
			}
			h.events = 0
			for _, name := range producerTopics {
				h.events += len(s.readAll(t, name))
			}
		default:
			h.commit()
		}
		s.clock.set(int64(r.IntN(100_000)))
	}
}

type producerHistory struct {
	t      *testing.T
	s      *env
	r      *rand.Rand
	models map[string]*producerModel
	events int
	ids    int
}

var producerTopics = []string{"a", "b", "c"}

func (h *producerHistory) topic() string { return producerTopics[h.r.IntN(len(producerTopics))] }

// parts returns a unit without a number. Its ids are new.
func (h *producerHistory) parts() *store.Unit {
	u := &store.Unit{}
	topic := h.topic()
	for range 1 + h.r.IntN(3) {
		if h.r.IntN(4) == 0 {
			topic = h.topic()
		}
		h.ids++
		a := made(topic)
		if h.r.IntN(4) == 0 {
			a = given(topic, fmt.Sprint("id-", h.ids))
		}
		if h.r.IntN(12) == 0 {
			a.Expect = eventhub.Expect{Kind: eventhub.ExpectTopicOffset, Offset: 1 << 40}
		}
		u.Appends = append(u.Appends, a)
	}
	if h.r.IntN(10) == 0 {
		h.ids++
		u.Delays = append(u.Delays, delayed(topic, fmt.Sprint("later-", h.ids), 1e6))
	}
	return u
}

// copyOf is a unit as a client sends it again.
func copyOf(first *store.Unit) *store.Unit {
	u := &store.Unit{Sequence: &store.Sequence{Producer: first.Sequence.Producer, Epoch: first.Sequence.Epoch, Number: first.Sequence.Number}}
	for _, a := range first.Appends {
		fresh := given(a.Topic, a.ID)
		if a.NewID {
			fresh = made(a.Topic)
		}
		fresh.Expect = a.Expect
		u.Appends = append(u.Appends, fresh)
	}
	for _, d := range first.Delays {
		u.Delays = append(u.Delays, delayed(d.Topic, d.ID, 7))
	}
	return u
}

func (h *producerHistory) commit() {
	var units []*store.Unit
	var checks []func()
	for range 1 + h.r.IntN(6) {
		u, check := h.unit()
		units, checks = append(units, u), append(checks, check)
	}
	h.s.commit(h.t, units...)
	for _, check := range checks {
		check()
	}
	events := 0
	for _, name := range producerTopics {
		events += len(h.s.readAll(h.t, name))
	}
	same(h.t, "number of events", h.events, events)
}

// unit draws a unit, and says what it is to be.
func (h *producerHistory) unit() (*store.Unit, func()) {
	t := h.t
	name := fmt.Sprint("p", h.r.IntN(3))
	m := h.models[name]
	switch n := h.r.IntN(20); {
	case m == nil || n == 0 && !m.opening:
		if m == nil {
			m = &producerModel{}
			h.models[name] = m
		}
		u := &store.Unit{Producer: &store.ProducerChange{Name: name}}
		last := m.last
		m.opening = true
		return u, func() {
			if u.Err != nil || u.Producer.NewEpoch <= m.change.NewEpoch || u.Producer.Last != last {
				t.Fatalf("opening %s: %v, %+v; the last was %d, %+v before", name, u.Err, u.Producer, last, m.change)
			}
			m.change, m.opening = *u.Producer, false
		}
	case n == 1 || m.opening:
		u := h.parts()
		return u, func() { h.applied(u) }
	case n == 2:
		u := h.parts()
		u.Sequence = &store.Sequence{Producer: name, Epoch: m.change.NewEpoch, Number: m.last + 2 + h.r.Uint64N(5)}
		next := m.last + 1
		return u, func() { badNumber(t, u, next, false) }
	case n == 3:
		u := h.parts()
		u.Sequence = &store.Sequence{Producer: name, Epoch: m.change.NewEpoch - 1, Number: m.last + 1}
		return u, func() {
			if !errors.Is(u.Err, store.ErrFenced) {
				t.Fatalf("number %d of %s with an old epoch: %v", u.Sequence.Number, name, u.Err)
			}
		}
	case n < 9 && m.last > 0:
		first := m.units[m.last-1-h.r.Uint64N(min(m.last, 100))]
		u := copyOf(first)
		u.Sequence.Epoch = m.change.NewEpoch
		return u, func() { h.repeated(u, first) }
	}
	u := h.parts()
	m.last++
	u.Sequence = &store.Sequence{Producer: name, Epoch: m.change.NewEpoch, Number: m.last}
	if h.r.IntN(8) == 0 {
		u.Sequence.Refusal = fmt.Append(nil, "refused ", m.last)
	}
	m.units = append(m.units, u)
	return u, func() { h.applied(u) }
}

// applied notes a unit that is to be new.
func (h *producerHistory) applied(u *store.Unit) {
	var conflict *store.ConflictError
	isRefused := u.Sequence != nil && u.Sequence.Refusal != nil && u.Err == store.ErrRefused
	if u.Sequence != nil && u.Sequence.Repeated || u.Err != nil && !isRefused && !errors.As(u.Err, &conflict) {
		h.t.Fatalf("a new unit: %v, %+v", u.Err, u.Sequence)
	}
	if u.Err == nil {
		h.events += len(u.Appends)
	}
}

// repeated compares a unit with the first of its number, which the same commit may have.
func (h *producerHistory) repeated(u, first *store.Unit) {
	switch {
	case first.Sequence.Refusal != nil:
		same(h.t, "refusal", string(first.Sequence.Refusal), string(u.Sequence.Refusal))
		same(h.t, "error of what the engine refused", store.ErrRefused, u.Err)
	case first.Err != nil:
		var was, is *store.ConflictError
		if !errors.As(first.Err, &was) || !errors.As(u.Err, &is) || *was != *is {
			h.t.Fatalf("number %d: %v; the first had %v", u.Sequence.Number, u.Err, first.Err)
		}
	default:
		repeats(h.t, u, first)
	}
}
