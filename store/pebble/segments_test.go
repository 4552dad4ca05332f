package pebble

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"eventhub"
	"eventhub/internal/record"
	"eventhub/internal/record/layout"
	"eventhub/internal/testsize"
	"eventhub/store"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// mustMeasure goes on until Measure is done, and returns in how many calls.
func mustMeasure(t testing.TB, s *Store, topic string, from uint64) (total store.Usage, calls int) {
	t.Helper()
	for done := false; !done; calls++ {
		var u store.Usage
		var err error
		if u, from, done, err = s.Measure(context.Background(), topic, from, store.Usage{}); err != nil {
			t.Fatalf("Measure: %v", err)
		}
		total.Events += u.Events
		total.Bytes += u.Bytes
	}
	return total, calls
}

// checkUsage holds Measure against what is read, from a few offsets on and with bounds.
func checkUsage(t testing.TB, s *Store, topic string, rng *rand.Rand) {
	t.Helper()
	items := readAll(t, s, topic)
	head, err := s.Head(context.Background(), topic)
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		from := rng.Uint64N(head + 3)
		var want store.Usage
		for _, item := range items {
			if item.Offset >= from {
				want.Events++
				want.Bytes += uint64(len(item.Record))
			}
		}
		if got, _ := mustMeasure(t, s, topic, from); got != want {
			t.Errorf("from %d on there are %+v; want %+v", from, got, want)
		}
		if want.Events == 0 {
			continue
		}
		until, need := store.Usage{Events: 1 + rng.Uint64N(want.Events)}, store.Usage{}
		if rng.IntN(2) == 0 {
			until = store.Usage{Bytes: 1 + rng.Uint64N(want.Bytes)}
		}
		var end uint64
		for _, item := range items {
			if item.Offset >= from && need.Events < max(until.Events, 1) && (until.Bytes == 0 || need.Bytes < until.Bytes) || item.Offset >= from && until.Bytes > 0 && need.Bytes < until.Bytes {
				need.Events++
				need.Bytes += uint64(len(item.Record))
				end = item.Offset + 1
			}
		}
		got, next, done, err := s.Measure(context.Background(), topic, from, until)
		if err != nil || !done || got != need || next != end {
			t.Errorf("from %d until %+v there are %+v, next %d, done %v, %v; want %+v, %d", from, until, got, next, done, err, need, end)
		}
	}
}

// Measure is right whatever was appended, trimmed, erased, compacted, swept, and lost with the process, also
// where there are no segments, and from then on.
func TestMeasureWithSegments(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	mem, clock := vfs.NewCrashableMem(), &testClock{}
	open := func() *Store {
		s := openClocked(t, mem, clock)
		s.segmentBytes = 1 << 10
		return s
	}
	s := open()
	mustCommit(t, s, true, given("t", "first"))
	mustIndex(t, s, "t")
	mustCommit(t, s, true, given("t", "second")) // a power loss does not take the index back
	for i := range 250 {
		last := s.topics.get("t").last
		switch rng.IntN(9) {
		case 0:
			mustRemove(t, s, store.TopicChange{Topic: "t", Horizon: last - min(last, rng.Uint64N(60))})
		case 1:
			// Appended, counted and erased in the same commit, and others.
			u := &store.Unit{Topics: []store.TopicChange{{Topic: "t", Erase: []uint64{last + 1 + rng.Uint64N(30), last - min(last, rng.Uint64N(30)), last - min(last, rng.Uint64N(9))}}}}
			for j := range rng.IntN(30) {
				u.Appends = append(u.Appends, given("t", fmt.Sprint("both-", i, "-", j)))
			}
			if err := s.Commit(context.Background(), []*store.Unit{u, {Appends: []store.Append{given("t", fmt.Sprint("after-", i))}}}, true); err != nil {
				t.Fatal(err)
			}
		case 8:
			u := &store.Unit{Topics: []store.TopicChange{{Topic: "t", Compacted: last - min(last, rng.Uint64N(20))}}}
			for j := range rng.IntN(10) {
				u.Appends = append(u.Appends, linkedEvent(t, "t", 1000*(i+1)+j))
			}
			if err := s.Commit(context.Background(), []*store.Unit{u}, true); err != nil {
				t.Fatal(err)
			}
			if rng.IntN(2) == 0 {
				checkUsage(t, s, "t", rng)
			}
			if _, _, err := s.Compact(context.Background(), "t"); err != nil {
				t.Fatal(err)
			}
		case 2:
			clock.pass(pieceWait)
			mustSweep(t, s)
		case 3:
			if rng.IntN(3) == 0 {
				image := afterPowerLoss(mem)
				mustClose(t, s)
				mem = image
				s = open()
			}
		default:
			u := &store.Unit{}
			for j := range rng.IntN(40) {
				a := given("t", fmt.Sprint(i, "-", j))
				a.Record = newRecord("t", a.ID, rng.IntN(300))
				if rng.IntN(20) == 0 {
					a.KeepOffset = s.topics.get("t").last + rng.Uint64N(1000)
				}
				u.Appends = append(u.Appends, a)
			}
			if err := s.Commit(context.Background(), []*store.Unit{u}, true); err != nil {
				t.Fatal(err)
			}
		}
		if rng.IntN(3) == 0 {
			checkUsage(t, s, "t", rng)
		}
	}
	sweepAll(t, s)
	checkUsage(t, s, "t", rng)
	mustClose(t, s)
}

// Once measured, what is stored is not read again, but for the parts that no segment has; and
// one call reads little.
func TestMeasureReadsLittle(t *testing.T) {
	mem := vfs.NewMem()
	s := mustOpen(t, onMem(t, mem))
	s.segmentBytes = 1 << 40 // no segments, as before there were any
	const size = 64 << 10
	n := testsize.Of(600, 120)
	for i := range n {
		mustCommit(t, s, false, store.Append{Topic: "t", ID: fmt.Sprint("e", i), Record: newRecord("t", fmt.Sprint("e", i), size)})
	}
	mustClose(t, s)
	s = mustOpen(t, onMem(t, mem))
	total, calls := mustMeasure(t, s, "t", 1)
	if total.Events != uint64(n) || calls < n*size/(measureBytes+segmentBytes) || calls > n*size/measureBytes+1 {
		t.Errorf("%+v in %d calls", total, calls)
	}
	for _, reopened := range []bool{false, true} {
		if reopened {
			mustClose(t, s)
			s = mustOpen(t, onMem(t, mem))
		}
		m := measurement{s: s, topic: s.topics.get("t")}
		if _, err := s.published("t"); err != nil {
			t.Fatal(err)
		}
		if done, err := m.run(1); !done || err != nil || m.Usage != total || m.read > segmentBytes+size {
			t.Errorf("reopened %v: %v, %v, %+v and %d bytes read; want at most one segment", reopened, done, err, m.Usage, m.read)
		}
	}
	// What is appended from here on the committer counts, and the gap before that is read once.
	for i := range n / 4 {
		a := store.Append{Topic: "t", NewID: true, Record: newRecord("t", layout.IDRoom, size)}
		if i == 0 {
			a.KeepOffset = 10_000
		}
		mustCommit(t, s, false, a)
	}
	mustMeasure(t, s, "t", 1)
	m := measurement{s: s, topic: s.topics.get("t")}
	if done, err := m.run(1); !done || err != nil || m.Events != uint64(n+n/4) || m.read > segmentBytes+size {
		t.Errorf("%v, %v, %+v and %d bytes read; want at most one segment", done, err, m.Usage, m.read)
	}
	// A deleted topic leaves none.
	if err := s.DeleteTopic(context.Background(), "t"); err != nil {
		t.Fatal(err)
	}
	sweepAll(t, s)
	if got := keysOf(t, s, tagSegment); got != 0 {
		t.Errorf("%d segments are left of a deleted topic", got)
	}
	mustClose(t, s)
}

// What Measure has read is not kept where something of it was erased meanwhile.
func TestMeasureBesideErase(t *testing.T) {
	mem := vfs.NewMem()
	s := mustOpen(t, onMem(t, mem))
	fillTopic(t, s, "t", 50)
	mustClose(t, s)
	s = mustOpen(t, onMem(t, mem))
	defer mustClose(t, s)
	s.segmentBytes = 1 << 10
	topic, err := s.published("t")
	if err != nil {
		t.Fatal(err)
	}
	m := measurement{s: s, topic: topic}
	if done, err := m.run(1); !done || err != nil || len(m.made) == 0 {
		t.Fatalf("%v, %v, %d segments", done, err, len(m.made))
	}
	mustRemove(t, s, store.TopicChange{Topic: "t", Erase: []uint64{3}})
	if err := s.keepSegments(&m); err != nil {
		t.Fatal(err)
	}
	if got, _ := mustMeasure(t, s, "t", 1); got.Events != 49 {
		t.Errorf("there are %d events; want 49", got.Events)
	}
	if keysOf(t, s, tagSegment) == 0 {
		t.Error("Measure has kept nothing")
	}
}

// What Measure has read is not kept where it reaches into a segment that the committer has written meanwhile, or another
// Measure: an erasure looks for one segment that has the event.
func TestMeasureBesideSegments(t *testing.T) {
	for name, meanwhile := range map[string]func(t *testing.T, s *Store){
		"of the committer": func(t *testing.T, s *Store) {
			for n := range 20 {
				mustCommit(t, s, true, given("t", fmt.Sprint("late", n)))
			}
		},
		"of a Measure": func(t *testing.T, s *Store) { mustMeasure(t, s, "t", 43) },
	} {
		t.Run(name, func(t *testing.T) {
			mem := vfs.NewMem()
			s := mustOpen(t, onMem(t, mem))
			fillTopic(t, s, "t", 47)
			mustClose(t, s)
			s = mustOpen(t, onMem(t, mem))
			defer mustClose(t, s)
			s.segmentBytes = 600
			topic, err := s.published("t")
			if err != nil {
				t.Fatal(err)
			}
			topic.measured.Store(name == "of the committer")
			for n := range 8 { // the committer counts from here on
				mustCommit(t, s, true, given("t", fmt.Sprint("more", n)))
			}
			m := measurement{s: s, topic: topic}
			if done, err := m.run(1); !done || err != nil || m.made[len(m.made)-1].last < 50 {
				t.Fatalf("%v, %v, %+v", done, err, m.made)
			}
			meanwhile(t, s)
			if err := s.keepSegments(&m); err != nil {
				t.Fatal(err)
			}
			var before uint64
			scan(t, s, tagSegment, func(key, value []byte) {
				g, err := decodeSegment(key, value)
				if err != nil || g.first <= before {
					t.Errorf("%v: the segment from %d to %d comes after one to %d", err, g.first, g.last, before)
				}
				before = g.last
			})
			for offset := uint64(45); offset < 56; offset++ {
				mustRemove(t, s, store.TopicChange{Topic: "t", Erase: []uint64{offset}})
				checkUsage(t, s, "t", rand.New(rand.NewPCG(1, offset)))
			}
		})
	}
}

// What Measure has read is not kept where something of it was compacted meanwhile; the rest is.
func TestMeasureBesideCompaction(t *testing.T) {
	for _, sizes := range []compactSizes{
		{step: 1 << 20, points: 99, whole: 1 << 40},
		{step: 1 << 20, points: 9, entries: 99, kept: 99, bytes: 1 << 20, piece: 1 << 20, least: 1 << 20, window: 1 << 10},
		{step: 1 << 20, points: 9, entries: 99, kept: 99, bytes: 1 << 20, piece: 1 << 20, window: 1 << 10},
	} {
		mem := vfs.NewMem()
		s := mustOpen(t, onMem(t, mem))
		for n := range 60 {
			e := eventhub.Event{Topic: "t", ID: fmt.Sprint("e", n), Key: fmt.Sprint("k", n%5), Payload: []byte("1")}
			encoded, err := record.Append(nil, &e)
			if err != nil {
				t.Fatal(err)
			}
			mustCommit(t, s, true, store.Append{Topic: "t", ID: e.ID, Key: e.Key, Record: encoded})
		}
		mustIndex(t, s, "t")
		mustClose(t, s)
		s = mustOpen(t, onMem(t, mem))
		s.segmentBytes, s.compacting = 1<<10, sizes
		topic, err := s.published("t")
		if err != nil {
			t.Fatal(err)
		}
		m := measurement{s: s, topic: topic}
		if done, err := m.run(1); !done || err != nil || len(m.made) == 0 {
			t.Fatalf("%v, %v, %d segments", done, err, len(m.made))
		}
		mustRemove(t, s, store.TopicChange{Topic: "t", Compacted: 20})
		m.view.after = topic.removed.Load() // the marks alone remove nothing
		for done := false; !done; {
			if _, done, err = s.Compact(context.Background(), "t"); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.keepSegments(&m); err != nil {
			t.Fatal(err)
		}
		if got, _ := mustMeasure(t, s, "t", 1); got.Events != uint64(len(readAll(t, s, "t"))) {
			t.Errorf("there are %d events; want %d", got.Events, len(readAll(t, s, "t")))
		}
		if keysOf(t, s, tagSegment) == 0 {
			t.Error("Measure has kept nothing")
		}
		mustClose(t, s)
	}
}

// TestNoSegmentsUnasked: a topic that nobody measures has no segments, so its tables have
// nothing but events and are moved, not rewritten.
func TestNoSegmentsUnasked(t *testing.T) {
	s := mustOpen(t, onMem(t, vfs.NewMem()))
	defer mustClose(t, s)
	s.segmentBytes = 100
	segments := func() (n int) {
		scan(t, s, tagSegment, func(_, _ []byte) { n++ })
		return n
	}
	for range 10 {
		mustCommit(t, s, true, made("t"), made("t"))
	}
	if n := segments(); n != 0 {
		t.Errorf("there are %d segments before anybody asked", n)
	}
	if _, _, _, err := s.Measure(context.Background(), "t", 1, store.Usage{}); err != nil {
		t.Fatal(err)
	}
	before := segments()
	for range 10 {
		mustCommit(t, s, true, made("t"), made("t"))
	}
	if n := segments(); n <= before {
		t.Errorf("there are %d segments after it, as there were %d", n, before)
	}
}
