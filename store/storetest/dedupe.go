package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"eventhub"
	"eventhub/store"
)

var dedupeTests = []test{
	{name: "within a unit", run: testDuplicateInUnit},
	{name: "within a commit", run: testDuplicateInCommit},
	{name: "across commits", run: testDuplicateAcrossCommits},
	{name: "across reopening", run: testDuplicateAcrossReopen},
	{name: "of an id that the store made", run: testDuplicateOfMade},
	{name: "of an id that the store made, elsewhere", run: testMadeIDElsewhere},
	{name: "is per topic", run: testDuplicatePerTopic},
	{name: "adds nothing to the key index", run: testDuplicateKey},
	{name: "among many ids", run: testDuplicatesAmongMany},
}

// duplicate fails the test unless a is a duplicate of first.
func duplicate(t failer, a, first store.Append) {
	t.Helper()
	if !a.Duplicate || a.Offset != first.Offset || a.CommitTime != first.CommitTime {
		t.Errorf("id %q: duplicate %v, offset %d, time %d; want true, %d, %d",
			a.ID, a.Duplicate, a.Offset, a.CommitTime, first.Offset, first.CommitTime)
	}
}

func testDuplicateInUnit(t *testing.T, s *env) {
	a := s.add(t, given("t", "x"), given("t", "y"), given("t", "x"), given("t", "x"))
	duplicate(t, a[2], a[0])
	duplicate(t, a[3], a[0])
	rising(t, 0, a[:2])
	same(t, "topic", rowsOf(a[:2]), s.readAll(t, "t"))
}

func testDuplicateInCommit(t *testing.T, s *env) {
	units := []*store.Unit{unit(given("t", "x")), unit(given("t", "y"), given("t", "x")), unit(given("t", "y"))}
	s.commit(t, units...)
	x, y := units[0].Appends[0], units[1].Appends[0]
	duplicate(t, units[1].Appends[1], x)
	duplicate(t, units[2].Appends[0], y)
	same(t, "topic", []row{rowOf(x), rowOf(y)}, s.readAll(t, "t"))
}

func testDuplicateAcrossCommits(t *testing.T, s *env) {
	first := s.add(t, given("t", "x"))[0]
	s.clock.set(1000)
	second := s.add(t, given("t", "y"))[0]
	s.clock.set(2000)
	again := s.add(t, given("t", "x"), given("t", "z"), given("t", "y"))
	duplicate(t, again[0], first)
	duplicate(t, again[2], second)
	rising(t, second.Offset, again[1:2])
	same(t, "topic", rowsOf([]store.Append{first, second, again[1]}), s.readAll(t, "t"))
	same(t, "offset of x", first.Offset, s.find(t, "t", "x"))

	// The same unit object again, as an engine that repeats itself would.
	u := unit(again...)
	s.commit(t, u)
	duplicate(t, u.Appends[1], again[1])
	same(t, "number of events", 3, len(s.readAll(t, "t")))
}

func testDuplicateAcrossReopen(t *testing.T, s *env) {
	first := s.add(t, given("t", "fresh"), given("t", "given"))
	s.reopen(t)
	s.clock.set(1000)
	again := s.add(t, given("t", "given"), given("t", "fresh"), given("t", "new"))
	if !s.Capabilities().Persistent {
		rising(t, 0, again)
		return
	}
	duplicate(t, again[0], first[1])
	duplicate(t, again[1], first[0])
	same(t, "topic", rowsOf(append(first, again[2])), s.readAll(t, "t"))
}

func testDuplicateOfMade(t *testing.T, s *env) {
	a := s.add(t, made("t"), made("t"), made("u"))
	s.clock.set(1)
	a = append(a, s.add(t, made("t"))...)
	ids := make(map[string]bool)
	check := func() {
		t.Helper()
		for _, first := range a {
			ids[first.ID] = true
			if string(first.Record.ID()) != first.ID || eventhub.ValidateID(first.ID) != nil {
				t.Errorf("the id is %q, in the record %.80q", first.ID, first.Record)
			}
			same(t, "offset of the id", first.Offset, s.find(t, first.Topic, first.ID))
			duplicate(t, s.add(t, given(first.Topic, first.ID))[0], first)
		}
	}
	check()
	if len(ids) != len(a) {
		t.Errorf("%d events have %d ids", len(a), len(ids))
	}
	same(t, "topic", rowsOf([]store.Append{a[0], a[1], a[3]}), s.readAll(t, "t"))
	s.reopen(t)
	if s.Capabilities().Persistent {
		check()
	}
}

// An id that was made for one topic is as good as another in the next, and where its
// event is gone.
func testMadeIDElsewhere(t *testing.T, s *env) {
	ctx := context.Background()
	a := s.add(t, made("t"), given("u", "x"))
	id := a[0].ID
	if _, err := s.Find(ctx, "u", id); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the id is in another topic: %v", err)
	}
	in := s.add(t, given("u", id))[0]
	if in.Duplicate {
		t.Error("the id is a duplicate in another topic")
	}
	places, err := s.Places(ctx, id, 9)
	if err != nil {
		t.Error(err)
	}
	same(t, "places", []store.Place{{Topic: "t", Offset: a[0].Offset}, {Topic: "u", Offset: in.Offset}}, places)
	if err := s.DeleteTopic(ctx, "t"); err != nil {
		t.Fatal(err)
	}
	s.add(t, given("t", "y"))
	if _, err := s.Find(ctx, "t", id); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the id of a deleted topic is there: %v", err)
	}
	again := s.add(t, given("t", id))[0]
	if again.Duplicate {
		t.Error("the id of an event that is gone is a duplicate")
	}
	same(t, "offset of the id", again.Offset, s.find(t, "t", id))
}

func testDuplicatePerTopic(t *testing.T, s *env) {
	a := s.add(t, given("a", "x"), given("b", "y"), given("b", "x"))
	b := s.add(t, given("a", "y"))
	rising(t, 0, a[:1])
	rising(t, 0, a[1:])
	rising(t, a[0].Offset, b)
	same(t, "offsets of x", []uint64{a[0].Offset, a[2].Offset}, []uint64{s.find(t, "a", "x"), s.find(t, "b", "x")})
}

func testDuplicateKey(t *testing.T, s *env) {
	first := newAppend("t", "x", "k", 0)
	a := s.add(t, first, newAppend("t", "x", "other", 0), newAppend("t", "y", "k2", 0))
	b := s.add(t, newAppend("t", "x", "third", 0), newAppend("t", "y", "k", 0))
	duplicate(t, a[1], a[0])
	duplicate(t, b[1], a[2])
	for key, want := range map[string]row{"k": rowOf(a[0]), "k2": rowOf(a[2]), "other": {}, "third": {}} {
		same(t, "latest of "+key, want, s.latest(t, "t", key, 0))
	}
}

// testDuplicatesAmongMany commits shuffled ids; a known part of them was there.
func testDuplicatesAmongMany(t *testing.T, s *env) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	const n = 600
	id := func(i int) string { return fmt.Sprintf("%d.id", i*7919%n) }
	var old []store.Append
	for i := range n / 2 {
		old = append(old, given("t", id(i)))
	}
	old = s.add(t, old...)
	var all []store.Append
	order := rng.Perm(n)
	for _, i := range order {
		all = append(all, given("t", id(i)))
	}
	all = s.add(t, all...)
	last := old[len(old)-1].Offset
	for at, i := range order {
		if i < n/2 {
			duplicate(t, all[at], old[i])
		} else {
			last = rising(t, last, all[at:at+1])
		}
	}
	same(t, "number of events", n, len(s.readAll(t, "t")))
}
