package pebble

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	pdb "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"eventhub/internal/testsize"
	"eventhub/store"
)

// testClock is a clock that a test sets.
type testClock struct{ ms int64 }

func (c *testClock) now() time.Time { return time.UnixMilli(1_800_000_000_000 + c.ms) }

func (c *testClock) pass(d time.Duration) { c.ms += d.Milliseconds() }

// openClocked opens a store whose clock the test sets.
func openClocked(t testing.TB, fs vfs.FS, c *testClock) *Store {
	t.Helper()
	o := onMem(t, fs)
	o.Now = c.now
	return mustOpen(t, o)
}

func mustRemove(t testing.TB, s *Store, changes ...store.TopicChange) {
	t.Helper()
	u := &store.Unit{Topics: changes}
	if err := s.Commit(context.Background(), []*store.Unit{u}, true); err != nil || u.Err != nil {
		t.Fatalf("remove %+v: %v, %v", changes, err, u.Err)
	}
}

// keysOf counts the keys that begin with one of the tags.
func keysOf(t testing.TB, s *Store, tags ...byte) (n int) {
	t.Helper()
	for _, tag := range tags {
		scan(t, s, tag, func(_, _ []byte) { n++ })
	}
	return n
}

// What removed events leave is swept to the last key: what is indexed at once, the records when
// their piece has waited, and the ids in their time; also where the process ends between any
// two steps, and where the topic has been deleted meanwhile.
func TestSweepOfRemovedLeavesNothing(t *testing.T) {
	for _, deleted := range []bool{false, true} {
		for crashes := range testsize.Of(6, 2) {
			t.Run(fmt.Sprint("crash ", crashes, ", deleted ", deleted), func(t *testing.T) { sweepRemoved(t, crashes, deleted) })
		}
	}
}

func sweepRemoved(t *testing.T, crashAfter int, deleted bool) {
	const n = 1500
	mem, clock := vfs.NewCrashableMem(), &testClock{}
	s := openClocked(t, mem, clock)
	fillTopic(t, s, "t", n)
	mustRemove(t, s, store.TopicChange{Topic: "t", Erase: []uint64{3, 4}}, store.TopicChange{Topic: "t", Horizon: n - 9, Erase: []uint64{n - 1, n}})
	for step := 0; ; step++ {
		left := mustSweep(t, s)
		if step == crashAfter {
			mustCommit(t, s, true, given("u", "durable")) // the steps with it
			image := afterPowerLoss(mem)
			mustClose(t, s)
			mem, s = image, openClocked(t, image, clock)
		} else if !left.More() && step > crashAfter {
			break
		}
	}
	if got := keysOf(t, s, tagKey, tagEffect, tagCorrelated); got != 3*8 {
		t.Errorf("%d keys of indexes are left; want those of 8 events", got)
	}
	if left := mustSweep(t, s); left.Again <= 0 || left.Again > pieceWait {
		t.Errorf("a piece waits: %+v", left)
	}
	if deleted {
		if err := s.DeleteTopic(context.Background(), "t"); err != nil {
			t.Fatal(err)
		}
	} else {
		clock.pass(pieceWait)
	}
	sweepAll(t, s)
	kept := 8
	if deleted {
		kept = 0
	}
	if got := keysOf(t, s, tagEvent); got != kept+1 {
		t.Errorf("%d records are left; want %d and one of another topic", got, kept)
	}
	if got := keysOf(t, s, tagSweep); got != 0 {
		t.Errorf("%d rows of the sweep are left", got)
	}
	if left := mustSweep(t, s); left.Again <= 0 || left.Again > store.IDsKept {
		t.Errorf("ids wait: %+v", left)
	}
	clock.pass(store.IDsKept)
	sweepAll(t, s)
	if got := keysOf(t, s, tagID, tagOutdated); got != kept+1 {
		t.Errorf("%d ids are left; want %d and one of another topic", got, kept)
	}
	if left := mustSweep(t, s); left != store.Nothing {
		t.Errorf("a sweep of nothing leaves %+v", left)
	}
	checkIndexes(t, s)
	mustClose(t, s)
}

// A trim of what compaction has removed already, so that the first event is above the horizon,
// leaves no rows either.
func TestSweepOfTrimBelowTheFirstEvent(t *testing.T) {
	s := openClocked(t, vfs.NewMem(), &testClock{})
	defer mustClose(t, s)
	fillTopic(t, s, "t", 6) // all of one key
	mustRemove(t, s, store.TopicChange{Topic: "t", Compacted: 6})
	for done := false; !done; {
		var err error
		if _, done, err = s.Compact(context.Background(), "t"); err != nil {
			t.Fatal(err)
		}
	}
	mustRemove(t, s, store.TopicChange{Topic: "t", Horizon: 4})
	sweepAll(t, s)
	if got := keysOf(t, s, tagSweep); got != 0 {
		t.Errorf("%d rows of the sweep are left", got)
	}
}

// An id that was forgotten, and published again, is remembered as the new event's, whatever the
// sweep does again after a crash.
func TestForgottenIDAgain(t *testing.T) {
	mem, clock := vfs.NewCrashableMem(), &testClock{}
	s := openClocked(t, mem, clock)
	defer func() { mustClose(t, s) }()
	fillTopic(t, s, "t", 2000)
	mustRemove(t, s, store.TopicChange{Topic: "t", Horizon: 1000, ForgetIDs: true}, store.TopicChange{Topic: "t", Erase: []uint64{1999}, ForgetIDs: true})
	sweepAll(t, s)
	again := mustCommit(t, s, true, given("t", "e5"), given("t", "e1998"))
	for _, a := range again {
		if a.Duplicate {
			t.Fatalf("the id %q is not forgotten", a.ID)
		}
	}
	for range 3 {
		image := afterPowerLoss(mem)
		mustClose(t, s)
		mem, s = image, openClocked(t, image, clock)
		sweepAll(t, s)
		for _, first := range again {
			if a := mustCommit(t, s, true, given("t", first.ID))[0]; !a.Duplicate || a.Offset != first.Offset {
				t.Errorf("%s again: duplicate %v, offset %d; want %d", a.ID, a.Duplicate, a.Offset, first.Offset)
			}
		}
		clock.pass(pieceWait)
	}
}

// A step of the sweep is small, and little is removed by ranges: large pieces, and once a minute
// what there is. The more there is left the more the sweep says.
func TestSweepOfTrimsInPieces(t *testing.T) {
	clock := &testClock{}
	o := onMem(t, vfs.NewMem())
	o.Now = clock.now
	ranges := countRangeDeletions(&o)
	s := mustOpen(t, o)
	defer mustClose(t, s)
	s.sweepRange = 1 << 20
	const size = 16 << 10
	add := func(n int) {
		for i := range n {
			a := made("t")
			if a.Record = newRecord("t", string(a.Record.ID()), size); i%100 == 0 {
				a.Record = newRecord("t", string(a.Record.ID()), 2*sweepBytes)
			}
			mustCommit(t, s, false, a)
		}
	}
	last := func() uint64 { return s.topics.get("t").last }
	add(300)
	mustRemove(t, s, store.TopicChange{Topic: "t", Horizon: last() - 1})
	steps, backlog := 0, uint64(0)
	for before := s.topics.get("t"); ; steps++ {
		from := uint64(1)
		if r := s.sweeper.removals.topics[before.id]; r != nil {
			from = max(r.from, 1)
		}
		left := mustSweep(t, s)
		if now := s.sweeper.removals.topics[before.id].from; now-from > sweepBytes/size+1 {
			t.Fatalf("a step took %d events of %d bytes", now-from, size)
		}
		if steps > 10 { // it knows what events are like
			backlog = max(backlog, left.Bytes)
		}
		if !left.More() {
			break
		}
	}
	if least := 290 / (sweepBytes/size + 1); steps < least {
		t.Errorf("%d steps; want at least %d", steps, least)
	}
	if backlog < 150*size || backlog > 500*size {
		t.Errorf("at most %d bytes were left; there are %d", backlog, 300*size)
	}
	if got := keysOf(t, s, tagEvent); got > 1<<20/size+2 {
		t.Errorf("%d records are left; want at most a piece", got)
	}
	clock.pass(pieceWait)
	sweepAll(t, s)
	// Now few at a time, each a second after the other.
	for range testsize.Of(200, 40) {
		add(2)
		mustRemove(t, s, store.TopicChange{Topic: "t", Horizon: last()})
		clock.pass(time.Second)
		sweepAll(t, s)
	}
	clock.pass(pieceWait)
	sweepAll(t, s)
	if got := keysOf(t, s, tagEvent); got != 1 {
		t.Errorf("%d records are left; want 1", got)
	}
	if *ranges != 0 {
		t.Errorf("the sweep of few events made %d range deletions", *ranges)
	}
	u := &store.Unit{}
	for range 2 * sweepKeys {
		u.Appends = append(u.Appends, made("t"))
	}
	if err := s.Commit(context.Background(), []*store.Unit{u}, true); err != nil {
		t.Fatal(err)
	}
	mustRemove(t, s, store.TopicChange{Topic: "t", Horizon: last()})
	sweepAll(t, s)
	clock.pass(pieceWait)
	sweepAll(t, s)
	if got := keysOf(t, s, tagEvent); *ranges != 1 || got != 1 {
		t.Errorf("the sweep of many events made %d range deletions and left %d records; want 1 and 1", *ranges, got)
	}
}

// A range deletion covers the pieces before it, too: a table in which one ends and the next one
// begins is covered by one of them as a whole.
func TestPiecesCoverThoseBefore(t *testing.T) {
	var begins, ends [][]byte
	o := onMem(t, vfs.NewMem())
	o.sweeping = func(batch *pdb.Batch) {
		for r := batch.Reader(); ; {
			kind, key, value, ok, err := r.Next()
			if !ok || err != nil {
				return
			}
			if kind == pdb.InternalKeyKindRangeDelete {
				begins, ends = append(begins, bytes.Clone(key)), append(ends, bytes.Clone(value))
			}
		}
	}
	s := mustOpen(t, o)
	defer mustClose(t, s)
	s.sweepRange = 64 << 10
	u := &store.Unit{}
	for range 4 * sweepKeys {
		a := made("t")
		a.Record = newRecord("t", string(a.Record.ID()), 100)
		u.Appends = append(u.Appends, a)
	}
	if err := s.Commit(context.Background(), []*store.Unit{u}, true); err != nil || u.Err != nil {
		t.Fatal(err, u.Err)
	}
	mustRemove(t, s, store.TopicChange{Topic: "t", Horizon: s.topics.get("t").last})
	sweepAll(t, s)
	if len(ends) < 2 || bytes.Equal(ends[0], ends[1]) {
		t.Fatalf("the range deletions end at %x; want several pieces", ends)
	}
	for _, begin := range begins {
		if first := appendEventKey(nil, s.topics.get("t").id, 1); bytes.Compare(begin, first) > 0 {
			t.Errorf("a range deletion begins at %x; the first event is at %x", begin, first)
		}
	}
}

// What a range deletion covers of a table gives back its room without the rest being written
// again.
func TestRoomOfTablesInPart(t *testing.T) {
	o, ended := onMem(t, vfs.NewMem()), make(chan pdb.CompactionInfo, 100)
	o.tune = func(p *pdb.Options) {
		p.EventListener.CompactionEnd = func(info pdb.CompactionInfo) { ended <- info }
		for i := range p.TargetFileSizes {
			p.TargetFileSizes[i] = 512 << 10
		}
		p.ApplyCompressionSettings(func() pdb.DBCompressionSettings { return pdb.DBCompressionNone })
	}
	clock := &testClock{}
	o.Now = clock.now
	s := mustOpen(t, o)
	defer mustClose(t, s)
	u := &store.Unit{}
	for range 4 * sweepKeys {
		a := made("t")
		a.Record = newRecord("t", string(a.Record.ID()), 1000)
		u.Appends = append(u.Appends, a)
	}
	if err := s.Commit(context.Background(), []*store.Unit{u}, true); err != nil || u.Err != nil {
		t.Fatal(err, u.Err)
	}
	all := numberBounds(tagEvent, s.topics.get("t").id)
	room := func() uint64 {
		n, err := s.db.EstimateDiskUsage(all.LowerBound, all.UpperBound)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if err := s.db.Compact(t.Context(), []byte{0}, []byte{0xff}, false); err != nil {
		t.Fatal(err)
	}
	for len(ended) > 0 {
		<-ended
	}
	before := room()
	mustRemove(t, s, store.TopicChange{Topic: "t", Horizon: s.topics.get("t").last / 4 * 3})
	sweepAll(t, s)
	clock.pass(pieceWait)
	sweepAll(t, s)
	if err := s.db.Flush(); err != nil {
		t.Fatal(err)
	}
	for room() > before*2/5 {
		if info := <-ended; info.Reason != "delete-only" {
			t.Errorf("a compaction was made: %s", info)
		}
		s.db.Metrics() // waits for the lock under which Pebble says that it has ended, and shows it after that
	}
	if got := keysOf(t, s, tagEvent); got != sweepKeys+1 {
		t.Errorf("%d events are left; want %d", got, sweepKeys+1)
	}
}

// countRangeDeletions counts those of a sweep.
func countRangeDeletions(o *Options) *int {
	n := new(int)
	o.sweeping = func(batch *pdb.Batch) {
		for r := batch.Reader(); ; {
			kind, _, _, ok, err := r.Next()
			if !ok || err != nil {
				return
			}
			if kind == pdb.InternalKeyKindRangeDelete {
				*n++
			}
		}
	}
	return n
}

// A piece does not wait on a disk that is nearly full.
func TestSweepDoesNotWaitOnFullDisk(t *testing.T) {
	o := onMem(t, vfs.NewMem())
	var low atomic.Bool
	o.Space = spaceThatIs(&low)
	s := mustOpen(t, o)
	defer mustClose(t, s)
	fillTopic(t, s, "t", 30)
	mustRemove(t, s, store.TopicChange{Topic: "t", Horizon: 31})
	sweepAll(t, s)
	if got := keysOf(t, s, tagEvent); got != 30 {
		t.Errorf("%d records are left; the piece should wait", got)
	}
	low.Store(true)
	sweepAll(t, s)
	if got := keysOf(t, s, tagEvent); got != 0 {
		t.Errorf("%d records are left on a full disk", got)
	}
}

// Erased events that are gone are not looked for any more.
func TestErasedAreForgotten(t *testing.T) {
	mem := vfs.NewMem()
	s := mustOpen(t, onMem(t, mem))
	const n = 3 * store.MaxErase
	fillTopic(t, s, "t", n+1)
	for first := uint64(1); first <= n; first += store.MaxErase {
		var erase []uint64
		for offset := first; offset < first+store.MaxErase; offset++ {
			erase = append(erase, offset)
		}
		mustRemove(t, s, store.TopicChange{Topic: "t", Erase: erase})
	}
	topic := s.topics.get("t")
	if got := len(topic.removed.Load().erased); got != n {
		t.Fatalf("%d events are erased; want %d", got, n)
	}
	mustSweep(t, s)
	mustClose(t, s)
	s = mustOpen(t, onMem(t, mem))
	defer mustClose(t, s)
	mustSweep(t, s) // of a topic that nobody has read yet
	if got := readAll(t, s, "t"); len(got) != 1 {
		t.Errorf("%d events are there; want 1", len(got))
	}
	if got := len(s.topics.get("t").removed.Load().erased); got == 0 || got >= n {
		t.Errorf("%d events are to be swept after the restart; want fewer than %d", got, n)
	}
	sweepAll(t, s)
	if got := s.topics.get("t").removed.Load().erased; len(got) != 0 || keysOf(t, s, tagEvent) != 1 || keysOf(t, s, tagSweep) != 0 {
		t.Errorf("%d erased events are known, %d records and %d rows are there; want 0, 1, 0", len(got), keysOf(t, s, tagEvent), keysOf(t, s, tagSweep))
	}
}

// TestLeftOfWhatPilesUp: the more there is to be swept one by one, the more is said to be left, so that the sweep is given more
// time where erasures and deletions come faster than it is.
func TestLeftOfWhatPilesUp(t *testing.T) {
	for name, pile := range map[string]func(s *Store, n int){
		"erased events": func(s *Store, n int) {
			fillTopic(t, s, "t", n)
			offsets := make([]uint64, n)
			for i := range offsets {
				offsets[i] = uint64(i) + 1
			}
			mustRemove(t, s, store.TopicChange{Topic: "t", Erase: offsets})
		},
		"deleted topics": func(s *Store, n int) {
			for i := range n {
				topic := fmt.Sprint("t", i)
				fillTopic(t, s, topic, 1)
				if err := s.DeleteTopic(context.Background(), topic); err != nil {
					t.Fatal(err)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			left := func(n int) uint64 {
				s := mustOpen(t, onMem(t, vfs.NewCrashableMem()))
				defer mustClose(t, s)
				pile(s, n)
				return mustSweep(t, s).Bytes
			}
			few, many := left(600), left(1800)
			if few == 0 || many < 2*few {
				t.Errorf("of 600 %d bytes are left after a step, and of 1800 %d", few, many)
			}
		})
	}
}

// TestRemovedDuringAStep: what is published and removed, or deleted with its topic, while a step of the sweep is
// under way for something else is removed for good: nothing shows it again, and nothing of it is left.
func TestRemovedDuringAStep(t *testing.T) {
	for _, test := range []struct {
		name   string
		remove func(t *testing.T, s *Store, first, last uint64)
		left   int // events of the topic
	}{
		{"erased", func(t *testing.T, s *Store, first, last uint64) {
			mustRemove(t, s, store.TopicChange{Topic: "t", Erase: []uint64{first, last - 1}})
		}, 3},
		{"trimmed", func(t *testing.T, s *Store, first, last uint64) {
			mustRemove(t, s, store.TopicChange{Topic: "t", Horizon: last})
		}, 1},
		{"deleted", func(t *testing.T, s *Store, first, last uint64) {
			if err := s.DeleteTopic(context.Background(), "t"); err != nil {
				t.Fatal(err)
			}
		}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			mem, clock := vfs.NewCrashableMem(), &testClock{}
			o := onMem(t, mem)
			o.Now = clock.now
			var s *Store
			during := func() {}
			o.opened = func() {
				f := during
				during = func() {}
				f()
			}
			s = mustOpen(t, o)
			fillTopic(t, s, "before", 8)
			if test.left == 0 {
				if err := s.DeleteTopic(context.Background(), "before"); err != nil {
					t.Fatal(err)
				}
			} else {
				mustRemove(t, s, store.TopicChange{Topic: "before", Horizon: 9, Erase: []uint64{2}})
			}
			fillTopic(t, s, "t", 1) // has the index made
			const n = 4
			during = func() {
				for i := range n {
					mustCommit(t, s, true, linkedEvent(t, "t", i+1))
				}
				test.remove(t, s, 2, n+1)
			}
			sweepAll(t, s)
			clock.pass(pieceWait)
			sweepAll(t, s)
			clock.pass(store.IDsKept)
			sweepAll(t, s)
			for _, when := range []string{"at once", "after a restart"} {
				if got := readAll(t, s, "t"); len(got) != test.left {
					t.Errorf("%s the topic shows %d events; want %d", when, len(got), test.left)
				}
				if got := keysOf(t, s, tagEvent); got != test.left {
					t.Errorf("%s %d records are there; want %d", when, got, test.left)
				}
				if got := keysOf(t, s, tagKey, tagEffect, tagCorrelated); got != 3*test.left {
					t.Errorf("%s %d keys of indexes are left; want those of %d events", when, got, test.left)
				}
				checkIndexes(t, s)
				mustClose(t, s)
				s = mustOpen(t, o)
				sweepAll(t, s)
			}
			mustClose(t, s)
		})
	}
}

// On a disk that is nearly full events can be removed, and Sweep and Shrink give their room back.
func TestTrimOnFullDisk(t *testing.T) {
	const room, size = 32 << 20, 100 << 10
	for _, disk := range smallDisks(t, 256<<20+room) {
		t.Run(disk.name, func(t *testing.T) {
			o := disk.options(t)
			var stays atomic.Bool // what it was, whatever a compaction gives back meanwhile
			space := o.withDefaults().Space
			o.Space = func() (store.Space, error) {
				if stays.Load() {
					return store.Space{Free: 1, Total: 1 << 40}, nil
				}
				return space()
			}
			s := mustOpen(t, o)
			defer mustClose(t, s)
			stored := fillUntilLow(t, s, size)
			n := uint64(stored / size)
			stays.Store(true)
			before, err := s.Size()
			if err != nil {
				t.Fatal(err)
			}
			mustRemove(t, s, store.TopicChange{Topic: "t", Horizon: n + 1})
			sweepAll(t, s)
			rounds, after := 0, before
			for ; rounds < 1000 && after > before/4; rounds++ { // Pebble deletes the tables when it can
				if err := s.Shrink(context.Background()); err != nil {
					t.Fatal(err)
				}
				if after, err = s.Size(); err != nil {
					t.Fatal(err)
				}
			}
			stays.Store(false)
			if after > before/4 || s.isLow() {
				t.Errorf("after %d rounds the store has %d MiB of %d MiB; the disk is low: %v", rounds, after>>20, before>>20, s.isLow())
			}
			if got := keysOf(t, s, tagEvent); got != 0 {
				t.Errorf("%d of %d records are left", got, n)
			}
			if a := mustCommit(t, s, true, given("t", "next"))[0]; a.Offset != n+1 {
				t.Errorf("the next event is at %d; want %d", a.Offset, n+1)
			}
		})
	}
}
