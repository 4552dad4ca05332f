package pebble

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"eventhub/store"
	"eventhub/store/journal"
	"eventhub/store/storetest"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// testJournal is a journal in memory. Its places leave out some, as one that has other entries too.
type testJournal struct {
	mu      sync.Mutex
	entries []testEntry
	last    journal.Position
	epoch   uint64
	ms      int64

	// Of the next append, once: it waits before its answer; lost says that it fails, and has says whether
	// the journal has it.
	hold      *syncHold
	lost, has bool
}

type testEntry struct {
	data []byte
	at   journal.Position
}

// walSync is what a syncHold waits for.
var walSync = errorfs.Op{Kind: errorfs.OpFileSync, Path: "1.log"}

var errLost = errors.New("the answer is lost")

// writer takes the journal over.
func (j *testJournal) writer() *testWriter {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.epoch++
	return &testWriter{j, j.epoch}
}

type testWriter struct {
	*testJournal
	of uint64
}

func (w *testWriter) Append(data []byte, ms int64) func() (journal.Position, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of != w.epoch {
		return func() (journal.Position, error) { return journal.Position{}, journal.ErrFenced }
	}
	if ms < w.ms {
		panic(fmt.Sprintf("an entry is of %d, and the one before of %d", ms, w.ms))
	}
	lost := w.lost
	at := journal.Position{Seq: w.last.Seq + 1 + uint64(len(data))%2, Epoch: w.of, Chain: w.last.Chain*31 + uint64(len(data))}
	if !lost || w.has {
		w.entries = append(w.entries, testEntry{bytes.Clone(data), at})
		w.last, w.ms = at, ms
	}
	if lost {
		w.epoch++ // it appends nothing any more
		return func() (journal.Position, error) { return journal.Position{}, errLost }
	}
	return func() (journal.Position, error) {
		if w.hold != nil {
			_ = w.hold.MaybeError(walSync)
		}
		return at, nil
	}
}

func (w *testWriter) Position() journal.Position {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of != w.epoch {
		return journal.Position{}
	}
	return w.last
}

// beat appends an entry without a batch.
func (w *testWriter) beat() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = journal.Position{Seq: w.last.Seq + 1, Epoch: w.of, Chain: w.last.Chain*31 + 1}
}

// after returns the entries after a position.
func (j *testJournal) after(at journal.Position) []testEntry {
	j.mu.Lock()
	defer j.mu.Unlock()
	for i := range j.entries {
		if j.entries[i].at.Seq > at.Seq {
			return j.entries[i:len(j.entries):len(j.entries)]
		}
	}
	return nil
}

// lose has the next append fail.
func (j *testJournal) lose(has bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lost, j.has = true, has
}

func mustOpenReplica(t testing.TB, o Options) *Replica {
	t.Helper()
	r, err := OpenReplica(o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func mustCloseReplica(t testing.TB, r *Replica) {
	t.Helper()
	if err := r.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

// follow applies what the journal has, at most so many entries.
func follow(t testing.TB, r *Replica, j *testJournal, most int) {
	t.Helper()
	for i, e := range j.after(r.Position()) {
		if i == most {
			return
		}
		if err := r.Apply(e.data, e.at); err != nil {
			t.Fatal(err)
		}
	}
}

const everything = 1 << 30

// lead opens a replica, follows the journal to its end, and leads it.
func lead(t testing.TB, o Options, j *testJournal) *Store {
	t.Helper()
	r := mustOpenReplica(t, o)
	follow(t, r, j, everything)
	s, err := r.Lead(j.writer())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// contents are all keys and values of a store, in order.
func contents(t testing.TB, s *Store) (all [][2]string) {
	t.Helper()
	iter, err := s.db.NewIter(nil)
	if err != nil {
		t.Fatal(err)
	}
	for valid := iter.First(); valid; valid = iter.Next() {
		value, err := iter.ValueAndErr()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, [2]string{string(iter.Key()), string(value)})
	}
	if err := errors.Join(iter.Error(), iter.Close()); err != nil {
		t.Fatal(err)
	}
	return all
}

// isSame compares the contents of two members that are at the same position.
func isSame(t testing.TB, a, b [][2]string) {
	t.Helper()
	for i := range max(len(a), len(b)) {
		switch {
		case i >= len(a):
			t.Fatalf("one has nothing after %d keys; the other has %q", i, b[i])
		case i >= len(b):
			t.Fatalf("one has nothing after %d keys; the other has %q", i, a[i])
		case a[i] != b[i]:
			t.Fatalf("key %d of one is %q, of the other %q", i, a[i], b[i])
		}
	}
}

// memberAt returns what a member has that gets the journal from its beginning up to a position.
func memberAt(t testing.TB, j *testJournal, at journal.Position) [][2]string {
	t.Helper()
	r := mustOpenReplica(t, onMem(t, vfs.NewMem()))
	for _, e := range j.after(journal.Position{}) {
		if e.at.Seq > at.Seq {
			break
		}
		if err := r.Apply(e.data, e.at); err != nil {
			t.Fatal(err)
		}
	}
	all := contents(t, r.s)
	mustCloseReplica(t, r)
	return all
}

// ledStore is a store that leads a journal, which others follow: when it is closed, they have what it has.
type ledStore struct {
	*Store
	t        testing.TB
	journal  *testJournal
	follower Options
}

func (s ledStore) Close() error {
	if s.life.running.Load() < 0 {
		return s.Store.Close()
	}
	if err := s.Store.Close(); err != nil {
		return err
	}
	leader := mustOpenReplica(s.t, s.options)
	r := mustOpenReplica(s.t, s.follower)
	follow(s.t, r, s.journal, everything)
	if leader.Position() != r.Position() {
		s.t.Errorf("the leader was closed at %+v; the journal ends at %+v", leader.Position(), r.Position())
	}
	isSame(s.t, contents(s.t, leader.s), contents(s.t, r.s))
	return errors.Join(leader.Close(), r.Close())
}

func (s turns) Commit(ctx context.Context, units []*store.Unit, sync bool) error {
	if s.n.Add(1)%2 == 0 {
		return s.ledStore.Commit(ctx, units, sync)
	}
	return halved{s.Store}.Commit(ctx, units, sync)
}

// turns is a ledStore every other commit of which is a Start.
type turns struct {
	ledStore
	n *atomic.Uint64
}

// TestConformanceOfLeaders: a store that leads a journal has all duties of one that does not, whether a commit is one
// call or its two halves, and its followers have the same keys and values. So have its copies, which go on where they
// were made.
func TestConformanceOfLeaders(t *testing.T) {
	n := new(atomic.Uint64)
	n.Store(rand.Uint64N(2))
	t.Logf("commits are Starts from the number %d on", n.Load())
	storetest.Run(t, func(t testing.TB) storetest.Backend {
		hold := new(syncHold)
		j := &testJournal{hold: hold}
		base, follower := onMem(t, vfs.NewMem()), onMem(t, vfs.NewMem())
		return storetest.Backend{
			OneClock: true,
			HoldSync: hold.arm,
			Copy: func() (string, func(storetest.Options) (store.Store, error)) {
				return "copies/one", func(o storetest.Options) (store.Store, error) {
					copied := base
					copied.Dir, copied.Now, copied.MaxTopics = "copies/one", o.Now, o.MaxTopics
					r, err := OpenReplica(copied)
					if err != nil {
						return nil, err
					}
					at := r.Position()
					return r.Lead((&testJournal{last: at, epoch: at.Epoch}).writer())
				}
			},
			Open: func(o storetest.Options) (store.Store, error) {
				base.Now, base.MaxTopics = o.Now, o.MaxTopics
				r, err := OpenReplica(base)
				if err != nil {
					return nil, err
				}
				follow(t, r, j, everything)
				s, err := r.Lead(j.writer())
				if err != nil {
					return nil, err
				}
				return turns{ledStore{s, t, j, follower}, n}, nil
			},
		}
	})
}

// TestNothingBeforeTheAnswer: until the journal has an entry, nothing of it is in the store, for no
// reader and on no disk.
func TestNothingBeforeTheAnswer(t *testing.T) {
	j := &testJournal{hold: new(syncHold)}
	s := lead(t, onMem(t, vfs.NewMem()), j)
	mustCommit(t, s, true, given("t", "a"))
	for name, commit := range map[string]func(*store.Unit) error{
		"Commit": func(u *store.Unit) error { return s.Commit(context.Background(), []*store.Unit{u}, false) },
		"Start": func(u *store.Unit) error {
			wait, err := s.Start(context.Background(), []*store.Unit{u})
			if err != nil {
				return err
			}
			return wait()
		},
	} {
		before, at := contents(t, s), len(readAll(t, s, "t"))
		reached, release := j.hold.arm()
		done := make(chan error, 1)
		go func() { done <- commit(&store.Unit{Appends: []store.Append{given("t", name), given(name, name)}}) }()
		<-reached
		isSame(t, before, contents(t, s))
		if head, err := s.Head(context.Background(), "t"); head != uint64(at) || err != nil {
			t.Errorf("%s: the head is %d, %v before the answer; want %d", name, head, err, at)
		}
		if _, err := s.Topic(context.Background(), name); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("%s: the topic that it makes is there before the answer: %v", name, err)
		}
		if n := len(readAll(t, s, "t")); n != at {
			t.Errorf("%s: a read shows %d events before the answer; there were %d", name, n, at)
		}
		release()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if n := len(readAll(t, s, "t")); n != at+1 {
			t.Errorf("%s: a read shows %d events after the answer; want %d", name, n, at+1)
		}
	}
	mustClose(t, s)
}

// TestFencedLeader: the error of a journal breaks the store, which says whether another one leads, and
// does nothing more; the directory goes on as a replica.
func TestFencedLeader(t *testing.T) {
	j := new(testJournal)
	o := onMem(t, vfs.NewMem())
	var causes []error
	o.Fatal = func(cause error) { causes = append(causes, cause) }
	s := lead(t, o, j)
	mustCommit(t, s, true, given("t", "a"))
	j.writer()
	u := &store.Unit{Appends: []store.Append{given("t", "b")}}
	err := s.Commit(context.Background(), []*store.Unit{u}, true)
	if !errors.Is(err, store.ErrBroken) || !errors.Is(err, journal.ErrFenced) {
		t.Errorf("the commit of a fenced leader: %v", err)
	}
	if len(causes) != 1 || !errors.Is(causes[0], journal.ErrFenced) {
		t.Errorf("Fatal got %v", causes)
	}
	if err := s.DeleteTopic(context.Background(), "t"); !errors.Is(err, journal.ErrFenced) {
		t.Errorf("a deletion after that: %v", err)
	}
	if err := s.Close(); !errors.Is(err, journal.ErrFenced) {
		t.Errorf("its close: %v", err)
	}
	o.Fatal = func(cause error) { t.Errorf("Fatal(%v)", cause) }
	s = lead(t, o, j)
	if items := readAll(t, s, "t"); len(items) != 1 {
		t.Errorf("there are %d events; want 1", len(items))
	}
	mustClose(t, s)
}

// TestCommitTimesOfTheNextLeader: they are not below those of the one before, whose clock was ahead.
func TestCommitTimesOfTheNextLeader(t *testing.T) {
	j := new(testJournal)
	ahead := testClock{ms: 2_000_000}
	o := onMem(t, vfs.NewMem())
	o.Now = ahead.now
	s := lead(t, o, j)
	first := mustCommit(t, s, true, given("t", "a"))[0]
	mustClose(t, s)
	behind := testClock{ms: 1_000_000}
	o = onMem(t, vfs.NewMem())
	o.Now = behind.now
	s = lead(t, o, j)
	// In another topic, which has no times yet.
	if a := mustCommit(t, s, true, given("u", "a"))[0]; a.CommitTime != first.CommitTime {
		t.Errorf("the time is %d; the last entry has %d", a.CommitTime, first.CommitTime)
	}
	behind.ms = 3_000_000
	if a := mustCommit(t, s, true, given("u", "b"))[0]; a.CommitTime != behind.now().UnixMilli() {
		t.Errorf("the time is %d; want %d", a.CommitTime, behind.now().UnixMilli())
	}
	mustClose(t, s)
}

// TestStartsOfALeader: what has no answer yet is in no read and on no disk; the Starts after it know its
// ids, numbers and offsets, whatever else the store does meanwhile.
func TestStartsOfALeader(t *testing.T) {
	ctx := context.Background()
	j := new(testJournal)
	clock := testClock{}
	o := onMem(t, vfs.NewMem())
	o.Now = clock.now
	s := lead(t, o, j)
	first := mustCommit(t, s, true, given("t", storetest.GivenID("e", 1)), given("t", "text"))
	open := &store.Unit{Producer: &store.ProducerChange{Name: "p"}}
	if err := s.Commit(ctx, []*store.Unit{open}, true); err != nil || open.Err != nil {
		t.Fatal(err, open.Err)
	}
	numbered := func(number uint64) *store.Unit {
		id := fmt.Sprint("n", number)
		return &store.Unit{Appends: []store.Append{given("t", id)}, Sequence: &store.Sequence{Producer: "p", Epoch: open.Producer.NewEpoch, Number: number}}
	}
	before := contents(t, s)
	start := func(u *store.Unit) func() error {
		t.Helper()
		wait, err := s.Start(ctx, []*store.Unit{u})
		if err != nil || u.Err != nil {
			t.Fatal(err, u.Err)
		}
		return wait
	}
	a := &store.Unit{Appends: []store.Append{given("t", storetest.GivenID("e", 5)), given("t", "other"), given("t", first[1].ID)}}
	b := &store.Unit{Appends: []store.Append{given("t", "other"), given("t", storetest.GivenID("e", 5)), given("t", storetest.GivenID("e", 9)), made("t")}}
	waits := []func() error{start(a), start(b)}
	isSame(t, before, contents(t, s))
	if head, err := s.Head(ctx, "t"); head != 2 || err != nil {
		t.Errorf("the head is %d, %v before the waits", head, err)
	}
	for i, want := range []uint64{3, 4, 2} {
		if got := a.Appends[i]; got.Offset != want || got.Duplicate != (want == 2) {
			t.Errorf("event %d of the first: offset %d, duplicate %v; want %d", i, got.Offset, got.Duplicate, want)
		}
	}
	for i, want := range []uint64{4, 3, 5, 6} {
		if got := b.Appends[i]; got.Offset != want || got.Duplicate != (want < 5) || got.CommitTime == 0 {
			t.Errorf("event %d of the second: %+v; want offset %d", i, got, want)
		}
	}
	// Another window of new ids, and a number that comes again: both look into the database. Of these ids
	// every one is a UUID of version 7.
	clock.pass(2 * windowFor)
	c := &store.Unit{Appends: []store.Append{given("t", storetest.GivenID("e", 9)), given("t", storetest.GivenID("e", 13))}}
	again := numbered(2)
	waits = append(waits, start(c), start(numbered(1)), start(numbered(2)), start(again), start(numbered(3)))
	if got := c.Appends[0]; got.Offset != 5 || !got.Duplicate {
		t.Errorf("an id of the second: offset %d, duplicate %v; want 5", got.Offset, got.Duplicate)
	}
	if got := again.Appends[0]; got.Offset != 9 || !again.Sequence.Repeated {
		t.Errorf("a number again: %+v, repeated %v", got, again.Sequence.Repeated)
	}
	mustSweep(t, s)
	if head, err := s.Head(ctx, "t"); head != 2 || err != nil {
		t.Errorf("the head is %d, %v before the waits", head, err)
	}
	for i, wait := range waits {
		if err := wait(); err != nil {
			t.Fatal(err)
		}
		head, err := s.Head(ctx, "t")
		if want := []uint64{4, 6, 7, 8, 9, 9, 10}[i]; head != want || err != nil {
			t.Errorf("the head is %d, %v after wait %d; want %d", head, err, i, want)
		}
	}
	if items := readAll(t, s, "t"); len(items) != 10 {
		t.Errorf("there are %d events; want 10", len(items))
	}
	if late := mustCommit(t, s, true, given("t", storetest.GivenID("e", 9)))[0]; late.Offset != 5 || !late.Duplicate {
		t.Errorf("an id of a Start, later: offset %d, duplicate %v; want 5", late.Offset, late.Duplicate)
	}
	checkIndexes(t, s)
	mustClose(t, s)
}

// TestStartsWithoutAnAnswer: none of the Starts after one whose answer is lost succeeds.
func TestStartsWithoutAnAnswer(t *testing.T) {
	for _, has := range []bool{false, true} {
		j := new(testJournal)
		o := onMem(t, vfs.NewMem())
		o.Fatal = func(error) {}
		s := lead(t, o, j)
		mustCommit(t, s, true, given("t", "a"))
		_, first := mustStart(t, s, given("t", "b"))
		j.lose(has)
		_, second := mustStart(t, s, given("t", "c"))
		_, third := mustStart(t, s, given("t", "d"))
		if err := first(); err != nil {
			t.Errorf("the wait before the lost answer: %v", err)
		}
		for _, wait := range []func() error{second, third} {
			if err := wait(); !errors.Is(err, errLost) {
				t.Errorf("a wait without an answer: %v", err)
			}
		}
		if err := s.Close(); !errors.Is(err, errLost) {
			t.Errorf("close: %v", err)
		}
		j.lost = false
		s = lead(t, o, j)
		want := 2
		if has {
			want = 3
		}
		if items := readAll(t, s, "t"); len(items) != want {
			t.Errorf("there are %d events; want %d", len(items), want)
		}
		mustClose(t, s)
	}
}
