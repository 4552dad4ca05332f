package storetest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strings"
	"testing"

	"eventhub"
	"eventhub/store"
)

var linkTests = []test{
	{name: "are found by topic and offset", run: testLinks},
	{name: "are found in pages", run: testLinkPages},
	{name: "no name is the beginning of another", run: testLinkNames},
	{name: "of what was not added are not there", run: testLinksOfNothing},
	{name: "are there after reopening", run: testLinksAfterReopen},
	{name: "are not shown before they are durable", run: testLinksHeldSync},
	{name: "places of one id", run: testPlaces},
}

var keepTests = []test{
	{name: "offset and time", run: testKept},
	{name: "the largest offset that is kept", run: testKeptMost},
	{name: "offsets that are not above", run: testOffsetNotKept},
	{name: "times that do not fit", run: testTimeNotKept},
	{name: "of a duplicate changes nothing", run: testKeepDuplicate},
	{name: "gaps", run: testGaps},
	{name: "offsets are not given again", run: testKeptNotGivenAgain},
}

var checkpointTests = []test{
	{name: "has what there was", run: testCheckpoint},
	{name: "to a place that exists", run: testCheckpointExists},
}

// linked is an append with links.
func linked(topic, id, correlation string, causedBy ...string) store.Append {
	a := given(topic, id)
	a.CausedBy, a.Correlation = causedBy, correlation
	return a
}

func (s *env) effects(t failer, id string, after store.Place, limit int) []store.Place {
	t.Helper()
	places, err := s.Effects(context.Background(), id, after, limit)
	if err != nil {
		t.Fatalf("Effects(%q, %v, %d): %v", id, after, limit, err)
	}
	return places
}

func (s *env) correlated(t failer, correlation string, after store.Place, limit int) []store.Place {
	t.Helper()
	places, err := s.Correlated(context.Background(), correlation, after, limit)
	if err != nil {
		t.Fatalf("Correlated(%q, %v, %d): %v", correlation, after, limit, err)
	}
	return places
}

func (s *env) places(t failer, id string, limit int) []store.Place {
	t.Helper()
	places, err := s.Places(context.Background(), id, limit)
	if err != nil {
		t.Fatalf("Places(%q, %d): %v", id, limit, err)
	}
	return places
}

func placesOf(appends ...store.Append) []store.Place {
	var places []store.Place
	for _, a := range appends {
		places = append(places, store.Place{Topic: a.Topic, Offset: a.Offset})
	}
	return places
}

// nowhere is before all places.
var nowhere store.Place

func testLinks(t *testing.T, s *env) {
	// The order of topics is that of names, not of creation.
	z := s.add(t, linked("z", "1", "c", "x"), linked("z", "2", "", "y"))
	a := s.add(t, linked("a", "3", "d", "y", "x", "y"), linked("a", "4", "c"), linked("a", "5", "c", "x"))
	for _, tt := range []struct {
		name string
		want []store.Place
		got  []store.Place
	}{
		{"effects of x", placesOf(a[0], a[2], z[0]), s.effects(t, "x", nowhere, noLimit)},
		{"effects of y", placesOf(a[0], z[1]), s.effects(t, "y", nowhere, noLimit)},
		{"effects of an id that is nobody's cause", nil, s.effects(t, "1", nowhere, noLimit)},
		{"effects of a correlation", nil, s.effects(t, "c", nowhere, noLimit)},
		{"of correlation c", placesOf(a[1], a[2], z[0]), s.correlated(t, "c", nowhere, noLimit)},
		{"of correlation d", placesOf(a[0]), s.correlated(t, "d", nowhere, noLimit)},
		{"of the correlation x", nil, s.correlated(t, "x", nowhere, noLimit)},
		{"of no correlation", nil, s.correlated(t, "", nowhere, noLimit)},
	} {
		same(t, tt.name, tt.want, tt.got)
	}
}

func testLinkPages(t *testing.T, s *env) {
	var all []store.Append
	for _, topic := range []string{"c", "a.b", "a", "b"} {
		var of []store.Append
		for i := range 3 {
			of = append(of, linked(topic, fmt.Sprint(topic, i), "c", "x"))
		}
		all = append(all, s.add(t, of...)...)
	}
	want := placesOf(all[6], all[7], all[8], all[3], all[4], all[5], all[9], all[10], all[11], all[0], all[1], all[2])
	for limit := 1; limit <= len(want)+1; limit++ {
		for at := range len(want) + 1 {
			after := nowhere
			if at > 0 {
				after = want[at-1]
			}
			page := want[at:min(at+limit, len(want))]
			same(t, fmt.Sprintf("%d effects after %v", limit, after), page, s.effects(t, "x", after, limit))
			same(t, fmt.Sprintf("%d correlated after %v", limit, after), page, s.correlated(t, "c", after, limit))
		}
	}
	for _, tt := range []struct {
		after store.Place
		want  []store.Place
	}{
		{store.Place{Topic: "a", Offset: math.MaxUint64}, want[3:]},
		{store.Place{Topic: "a-"}, want[3:]}, // a name that no topic has
		{store.Place{Topic: "a.b"}, want[3:]},
		{store.Place{Topic: "zz"}, nil},
	} {
		same(t, fmt.Sprintf("effects after %v", tt.after), tt.want, s.effects(t, "x", tt.after, noLimit))
	}
	same(t, "at most none", []store.Place(nil), s.effects(t, "x", nowhere, 0))
}

func testLinkNames(t *testing.T, s *env) {
	names := []string{"a", "a-", "a.b", "ab", "A", strings.Repeat("x", eventhub.MaxIDBytes)}
	for i, name := range names {
		s.add(t, linked("t", fmt.Sprint("id-", i), name, name))
	}
	for i, name := range names {
		want := []store.Place{{Topic: "t", Offset: uint64(i + 1)}}
		same(t, "effects of "+name, want, s.effects(t, name, nowhere, noLimit))
		same(t, "correlated by "+name, want, s.correlated(t, name, nowhere, noLimit))
	}
	long := strings.Repeat("x", eventhub.MaxCorrelationBytes)
	a := s.add(t, linked("t", "long", long), linked("t", "not ASCII", "\x01é\xff"))
	same(t, "the longest correlation", placesOf(a[0]), s.correlated(t, long, nowhere, noLimit))
	same(t, "a correlation of any bytes", placesOf(a[1]), s.correlated(t, "\x01é\xff", nowhere, noLimit))
}

func testLinksOfNothing(t *testing.T, s *env) {
	first := s.add(t, linked("t", "1", "c", "x"))
	again := s.add(t, linked("t", "1", "d", "y"))
	duplicate(t, again[0], first[0])
	stale := unit(linked("t", "2", "d", "y"))
	stale.Groups = []store.GroupChange{update("t", "g", store.GroupState{})}
	s.commit(t, stale)
	refused(t, stale, store.ErrStaleEpoch)
	same(t, "effects of y", []store.Place(nil), s.effects(t, "y", nowhere, noLimit))
	same(t, "correlated by d", []store.Place(nil), s.correlated(t, "d", nowhere, noLimit))
	same(t, "effects of x", placesOf(first...), s.effects(t, "x", nowhere, noLimit))
}

func testLinksAfterReopen(t *testing.T, s *env) {
	a := s.add(t, linked("t", "1", "c", "x"), linked("s", "2", "c", "x"))
	s.reopen(t)
	want := placesOf(a[1], a[0])
	if !s.Capabilities().Persistent {
		want = nil
	}
	same(t, "effects", want, s.effects(t, "x", nowhere, noLimit))
	same(t, "correlated", want, s.correlated(t, "c", nowhere, noLimit))
	same(t, "places", want[:min(1, len(want))], s.places(t, "2", noLimit))
}

// testLinksHeldSync looks for links while their commit waits for its fsync: in a
// topic that is there, and in one that it creates.
func testLinksHeldSync(t *testing.T, s *env) {
	if s.backend.HoldSync == nil {
		return
	}
	old := s.add(t, linked("t", "old", "c", "x"))
	u := unit(linked("t", "new", "c", "x"), linked("created", "new", "c", "x"))
	looks := []func() any{
		func() any { return s.effects(t, "x", nowhere, noLimit) },
		func() any { return s.correlated(t, "c", nowhere, noLimit) },
		func() any { return s.places(t, "new", noLimit) },
	}
	before := []any{placesOf(old...), placesOf(old...), []store.Place(nil)}
	reached, release := s.backend.HoldSync()
	done := make(chan error, 1)
	go func() { done <- s.Commit(context.Background(), []*store.Unit{u}, true) }()
	<-reached
	for i, look := range looks {
		same(t, fmt.Sprintf("look %d during the commit", i), before[i], look())
	}
	release()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	all := placesOf(u.Appends[1], old[0], u.Appends[0])
	after := []any{all, all, placesOf(u.Appends[1], u.Appends[0])}
	for i, look := range looks {
		same(t, fmt.Sprintf("look %d after the commit", i), after[i], look())
	}
}

func testPlaces(t *testing.T, s *env) {
	a := s.add(t, given("b", "x"), given("b", "xy"), given("c", "y"), given("a", "y"), given("a", "x"), given("b", "x"), given("a", "x."))
	same(t, "of x", placesOf(a[4], a[0]), s.places(t, "x", noLimit))
	same(t, "the first of x", placesOf(a[4]), s.places(t, "x", 1))
	same(t, "of y", placesOf(a[3], a[2]), s.places(t, "y", 2))
	same(t, "at most none", []store.Place(nil), s.places(t, "x", 0))
	same(t, "of an id that is not there", []store.Place(nil), s.places(t, "z", noLimit))
}

// kept is an append that asks for an offset and a time, the latter from startTime.
func kept(topic, id string, offset uint64, ms int64) store.Append {
	a := given(topic, id)
	a.KeepOffset, a.KeepTime = offset, startTime+ms
	return a
}

// testKeptMost: an offset is kept up to MaxKeepOffset; one above it does not leave the
// topic without offsets, nor give one twice.
func testKeptMost(t *testing.T, s *env) {
	var got []uint64
	for i, ask := range []uint64{eventhub.MaxOffset, eventhub.MaxOffset + 1, 1<<64 - 1, store.MaxKeepOffset, store.MaxKeepOffset + 1, 0} {
		if i == 3 {
			s.reopen(t)
		}
		got = append(got, s.add(t, kept("t", fmt.Sprint(i), ask, 0))[0].Offset)
	}
	same(t, "offsets", []uint64{1, 2, 3, store.MaxKeepOffset, store.MaxKeepOffset + 1, store.MaxKeepOffset + 2}, got)
}

func testKept(t *testing.T, s *env) {
	s.clock.set(1000)
	own := newAppend("t", "own", "k", 5)
	own.KeepOffset, own.KeepTime = 9, startTime+30
	a := s.add(t, kept("t", "1", 1, 10), kept("t", "2", 2, 10), kept("t", "3", 7, 20), own)
	var got []int64
	for _, a := range a {
		got = append(got, int64(a.Offset), a.CommitTime-startTime, a.Record.CommitTime()-startTime)
	}
	same(t, "offsets and times", []int64{1, 10, 10, 2, 10, 10, 7, 20, 20, 9, 30, 30}, got)
	same(t, "topic", rowsOf(a), s.readAll(t, "t"))
	next := s.add(t, given("t", "4"))
	same(t, "offset and time of the next", []int64{10, startTime + 1000}, []int64{int64(next[0].Offset), next[0].CommitTime})
	same(t, "first event at a time that was kept", a[2].Offset, s.seekTime(t, "t", startTime+11))
	s.reopen(t)
	if s.Capabilities().Persistent {
		same(t, "topic after reopening", rowsOf(append(a, next...)), s.readAll(t, "t"))
	}
}

func testOffsetNotKept(t *testing.T, s *env) {
	a := s.add(t, kept("t", "1", 5, 0), kept("t", "2", 5, 0), kept("t", "3", 2, 0), kept("t", "4", 8, 0), kept("t", "5", 7, 0))
	var got []uint64
	for _, a := range a {
		got = append(got, a.Offset)
	}
	same(t, "offsets", []uint64{5, 6, 7, 8, 9}, got)
	same(t, "topic", rowsOf(a), s.readAll(t, "t"))
}

// testTimeNotKept: a time that does not fit becomes the publisher's, where the
// publisher gave none.
func testTimeNotKept(t *testing.T, s *env) {
	s.clock.set(1000)
	s.add(t, given("t", "now"))
	s.clock.set(2000)
	own := newAppend("t", "own", "", 5)
	own.KeepTime = startTime + 1
	a := s.add(t, kept("t", "early", 0, 999), kept("t", "ahead", 0, 2001), own, kept("t", "fits", 0, 2000))
	for i, ts := range []int64{startTime + 999, startTime + 2001, 5, startTime + 2000} {
		stored := s.readFrom(t, "t", a[i].Offset, 1, noLimit)
		same(t, "record", []row{rowOf(a[i])}, stored)
		e, err := eventhub.Record(stored[0].Record).Event(a[i].Offset)
		if err != nil {
			t.Fatal(err)
		}
		if e.TS != ts || e.CommitTime().UnixMilli() != startTime+2000 || a[i].CommitTime != startTime+2000 || e.ID != a[i].ID {
			t.Errorf("id %q became %s; want the ts %d", a[i].ID, stored[0].Record, ts)
		}
	}
}

func testKeepDuplicate(t *testing.T, s *env) {
	first := s.add(t, given("t", "1"))
	again := s.add(t, kept("t", "1", 40, 0), kept("t", "2", 0, 0), kept("t", "2", 50, 0))
	duplicate(t, again[0], first[0])
	duplicate(t, again[2], again[1])
	same(t, "head", uint64(2), s.head(t, "t"))
}

// testGaps reads where offsets are missing.
func testGaps(t *testing.T, s *env) {
	s.clock.set(100)
	const far = eventhub.MaxOffset / 2
	one, two := kept("t", "1", 3, 10), kept("t", "2", far, 20)
	two.Key, two.Record = "k", newAppend("t", "2", "k", 0).Record
	a := s.add(t, one, two)
	for _, tt := range []struct {
		from uint64
		want []row
	}{
		{0, rowsOf(a)}, {1, rowsOf(a)}, {3, rowsOf(a)}, {4, rowsOf(a[1:])}, {far, rowsOf(a[1:])}, {far + 1, nil},
	} {
		same(t, fmt.Sprint("events from offset ", tt.from), tt.want, s.readFrom(t, "t", tt.from, 10, noLimit))
	}
	for ms, want := range map[int64]uint64{0: 3, 10: 3, 11: far, 20: far, 21: far + 1} {
		same(t, fmt.Sprint("first event at ", ms), want, s.seekTime(t, "t", startTime+ms))
	}
	same(t, "head", uint64(far), s.head(t, "t"))
	same(t, "found", []uint64{3, far}, []uint64{s.find(t, "t", "1"), s.find(t, "t", "2")})
	same(t, "latest", rowOf(a[1]), s.latest(t, "t", "k", 0))
	same(t, "latest in the gap", row{}, s.latest(t, "t", "k", far-1))
	same(t, "topics", []store.TopicInfo{{Name: "t", Head: far}}, s.listTopics(t, "", noLimit))
}

func testKeptNotGivenAgain(t *testing.T, s *env) {
	u := unit(kept("t", "1", 1_000_000, 0))
	if err := s.Commit(context.Background(), []*store.Unit{u}, false); err != nil {
		t.Fatal(err)
	}
	more := unit(given("t", "2"))
	if err := s.Commit(context.Background(), []*store.Unit{more}, false); err != nil {
		t.Fatal(err)
	}
	same(t, "offsets", []uint64{1_000_000, 1_000_001}, []uint64{u.Appends[0].Offset, more.Appends[0].Offset})
	s.reopen(t)
	if s.Capabilities().Persistent {
		same(t, "offset after reopening", uint64(1_000_002), s.add(t, given("t", "3"))[0].Offset)
	}
}

// testCheckpoint: the copy has what there was, and both go their own ways.
func testCheckpoint(t *testing.T, s *env) {
	if s.backend.Copy == nil {
		if s.Capabilities().Persistent {
			t.Fatal("a persistent backend without Copy")
		}
		if err := s.Checkpoint(context.Background(), "copy"); !errors.Is(err, store.ErrUnsupported) {
			t.Errorf("Checkpoint: %v; want store.ErrUnsupported", err)
		}
		return
	}
	u := unit(linked("t", "1", "c", "x"), keyed("t", "2", "k"))
	u.Groups = []store.GroupChange{create("t", "g", store.GroupState{Epoch: 3, Cursor: 1})}
	u.Groups[0].Parts = []store.GroupPart{{Kind: 1, Offset: 2, Value: []byte("v")}}
	u.Delays = []store.Delay{delayFor("t", "later", 5)}
	u.Patterns = []store.PatternChange{pattern("g", "p", `1`)}
	u.Settings = []store.SettingChange{setting("t", `2`)}
	u.Notes = []store.NoteChange{note("n", "3")}
	s.commit(t, u)
	unsynced := unit(given("t", "3"))
	if err := s.Commit(context.Background(), []*store.Unit{unsynced}, false); err != nil {
		t.Fatal(err)
	}
	dir, openCopy := s.backend.Copy()
	if err := s.Checkpoint(context.Background(), dir); err != nil {
		t.Fatal(err)
	}
	s.add(t, given("t", "of the store"))
	backend := s.backend
	backend.Open = openCopy
	c := &env{backend: backend, options: s.options, clock: s.clock}
	c.open(t)
	defer c.close(t)
	rows := rowsOf(append(u.Appends, unsynced.Appends...))
	same(t, "events of the copy", rows, c.readAll(t, "t"))
	same(t, "effects in the copy", placesOf(u.Appends[0]), c.effects(t, "x", nowhere, noLimit))
	same(t, "latest in the copy", rowOf(u.Appends[1]), c.latest(t, "t", "k", 0))
	same(t, "group in the copy", &u.Groups[0].State, c.group(t, "t", "g"))
	same(t, "parts in the copy", u.Groups[0].Parts, c.parts(t, "t", "g"))
	same(t, "delayed events in the copy", 1, len(c.allDelayed(t)))
	same(t, "patterns in the copy", patternsOf(u.Patterns...), c.patterns(t))
	same(t, "settings in the copy", settingsOf(u.Settings...), c.settings(t))
	same(t, "notes in the copy", notesOf(u.Notes...), c.notes(t))
	mine := c.add(t, given("t", "of the copy"))
	rising(t, unsynced.Appends[0].Offset, mine)
	c.reopen(t)
	same(t, "events of the copy", append(rows, rowOf(mine[0])), c.readAll(t, "t"))
	same(t, "places of the copy's event in the store", []store.Place(nil), s.places(t, "of the copy", 1))
	same(t, "places of the store's event in the copy", []store.Place(nil), c.places(t, "of the store", 1))
}

func testCheckpointExists(t *testing.T, s *env) {
	if s.backend.Copy == nil {
		return
	}
	s.add(t, given("t", "1"))
	dir, openCopy := s.backend.Copy()
	for i := range 2 {
		err := s.Checkpoint(context.Background(), dir)
		if (err == nil) != (i == 0) || err != nil && !errors.Is(err, fs.ErrExist) {
			t.Errorf("Checkpoint %d: %v; want fs.ErrExist for the second", i+1, err)
		}
	}
	s.add(t, given("t", "2"))
	c := &env{backend: Backend{Open: openCopy}, options: s.options, clock: s.clock}
	c.open(t)
	same(t, "head of the first copy", uint64(1), c.head(t, "t"))
	c.close(t)
}
