package storefault_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"

	"eventhub"
	"eventhub/store"
	"eventhub/store/memory"
	"eventhub/store/storefault"
	"eventhub/store/storetest"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errDisk = errors.New("no disk")

// TestConformance: without faults the wrapper is the store it wraps.
func TestConformance(t *testing.T) {
	storetest.Run(t, func(testing.TB) storetest.Backend {
		return storetest.Backend{Open: func(o storetest.Options) (store.Store, error) {
			return storefault.Wrap(memory.Open(memory.Options{Now: o.Now, MaxTopics: o.MaxTopics})), nil
		}}
	})
}

func open(t *testing.T) (s *storefault.Store, backend store.Store) {
	t.Helper()
	backend = memory.Open(memory.Options{})
	s = storefault.Wrap(backend)
	t.Cleanup(func() {
		if err := backend.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, backend
}

func units(id string) []*store.Unit {
	record := eventhub.Record(`{"ts":            0,"id":"` + id + `","topic":"t","payload":1}`)
	return []*store.Unit{{Appends: []store.Append{{Topic: "t", ID: id, Key: "k", Record: record}},
		Groups: []store.GroupChange{{Topic: "t", Group: "g-" + id, Create: true}},
		Delays: []store.Delay{{Topic: "later", ID: id, FreshID: true, Record: record}}},
		{Topics: []store.TopicChange{{Topic: "t", Index: store.StartIndex}}}}
}

func commit(s store.Store, id string) error {
	return s.Commit(context.Background(), units(id), true)
}

func head(t *testing.T, s store.Store) uint64 {
	t.Helper()
	n, err := s.Head(context.Background(), "t")
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// call is one method of a store, asked for what is there once units("1") are
// committed.
type call struct {
	op  storefault.Op
	run func(s store.Store) error
}

var reads = []call{
	{storefault.Read, func(s store.Store) error {
		return s.Read(context.Background(), "t", 1, 1, 1, new(store.Batch))
	}},
	{storefault.Head, func(s store.Store) error { return second(s.Head(context.Background(), "t")) }},
	{storefault.IndexKeys, func(s store.Store) error { // before those that need the index
		_, _, err := s.IndexKeys(context.Background(), "t", nil)
		return err
	}},
	{storefault.Find, func(s store.Store) error { return second(s.Find(context.Background(), "t", "1")) }},
	{storefault.SeekTime, func(s store.Store) error { return second(s.SeekTime(context.Background(), "t", 0)) }},
	{storefault.Latest, func(s store.Store) error { return second(s.Latest(context.Background(), "t", "k", 0)) }},
	{storefault.State, func(s store.Store) error {
		return second(s.State(context.Background(), store.StateQuery{Topic: "t", Limit: 1}, new(store.Batch)))
	}},
	{storefault.KeyEvents, func(s store.Store) error {
		return second(s.KeyEvents(context.Background(), "t", "k", 0, 1, 1, new(store.Batch)))
	}},
	{storefault.Lives, func(s store.Store) error { return second(s.Lives(context.Background())) }},
	{storefault.ListTopics, func(s store.Store) error { return second(s.ListTopics(context.Background(), "", 1)) }},
	{storefault.Topic, func(s store.Store) error { return second(s.Topic(context.Background(), "t")) }},
	{storefault.Group, func(s store.Store) error { return second(s.Group(context.Background(), "t", "g-1")) }},
	{storefault.GroupParts, func(s store.Store) error { return second(s.GroupParts(context.Background(), "t", "g-1")) }},
	{storefault.ListGroups, func(s store.Store) error { return second(s.ListGroups(context.Background(), "t")) }},
	{storefault.DeletedEpoch, func(s store.Store) error { return second(s.DeletedEpoch(context.Background())) }},
	{storefault.ListPatterns, func(s store.Store) error { return second(s.ListPatterns(context.Background())) }},
	{storefault.ListSettings, func(s store.Store) error { return second(s.ListSettings(context.Background())) }},
	{storefault.ListNotes, func(s store.Store) error { return second(s.ListNotes(context.Background())) }},
	{storefault.ListProducers, func(s store.Store) error { return second(s.ListProducers(context.Background())) }},
	{storefault.Delayed, func(s store.Store) error { return second(s.Delayed(context.Background(), 0, 0, 0, 1, 1)) }},
	{storefault.FindDelayed, func(s store.Store) error { return second(s.FindDelayed(context.Background(), "later", "1")) }},
	{storefault.Places, func(s store.Store) error { return second(s.Places(context.Background(), "1", 1)) }},
	{storefault.Effects, func(s store.Store) error {
		return second(s.Effects(context.Background(), "1", store.Place{}, 1))
	}},
	{storefault.Correlated, func(s store.Store) error {
		return second(s.Correlated(context.Background(), "1", store.Place{}, 1))
	}},
	{storefault.Measure, func(s store.Store) error {
		_, _, _, err := s.Measure(context.Background(), "t", 1, store.Usage{})
		return err
	}},
	{storefault.Compact, func(s store.Store) error {
		_, _, err := s.Compact(context.Background(), "t")
		return err
	}},
	{storefault.TopicsIndexed, func(s store.Store) error {
		return second(s.TopicsIndexed(context.Background(), store.Indexed))
	}},
	{storefault.Checkpoint, func(s store.Store) error {
		if err := s.Checkpoint(context.Background(), "copy"); !errors.Is(err, store.ErrUnsupported) {
			return err // the backend's own answer is as good as none
		}
		return nil
	}},
	{storefault.Size, func(s store.Store) error { return second(s.Size()) }},
	{storefault.Space, func(s store.Store) error { return second(s.Space()) }},
	{storefault.Shrink, func(s store.Store) error { return s.Shrink(context.Background()) }},
}

// TestEveryMethod: each method of the contract is counted, can fail, and calls the test before
// and after.
func TestEveryMethod(t *testing.T) {
	calls := slices.Concat(reads, []call{
		{storefault.Commit, func(s store.Store) error { return commit(s, "2") }},
		{storefault.DeleteTopic, func(s store.Store) error { return s.DeleteTopic(context.Background(), "t") }},
		{storefault.Sweep, func(s store.Store) error { return second(s.Sweep(context.Background())) }},
		{storefault.Close, func(s store.Store) error { return s.Close() }},
	})
	for m := range reflect.TypeFor[store.Store]().Methods() {
		if m.Name == "Capabilities" { // it can not fail
			continue
		}
		i := slices.IndexFunc(calls, func(c call) bool { return string(c.op) == m.Name })
		if i < 0 {
			t.Errorf("no test makes %s fail", m.Name)
			continue
		}
		s, _ := open(t)
		var seen []string
		s.Before(calls[i].op, func(c *storefault.Call) error {
			seen = append(seen, fmt.Sprint("before ", c.Op, " ", c.Err))
			return nil
		})
		s.After(calls[i].op, func(c *storefault.Call) {
			seen = append(seen, fmt.Sprint("after ", c.Op, " ", errors.Is(c.Err, errDisk)))
		})
		s.Inject(storefault.Fault{Op: calls[i].op, Err: errDisk})
		if err := calls[i].run(s); !errors.Is(err, errDisk) {
			t.Errorf("%s with a fault: %v; want the fault's error", m.Name, err)
		}
		if want := []string{"before " + m.Name + " <nil>", "after " + m.Name + " true"}; !slices.Equal(seen, want) {
			t.Errorf("%s called %q; want %q", m.Name, seen, want)
		}
		if s.Calls(calls[i].op) != 1 || s.Calls(storefault.Any) != 1 {
			t.Errorf("%s was counted %d times among %d calls; want 1 of 1", m.Name, s.Calls(calls[i].op), s.Calls(storefault.Any))
		}
	}
}

func second[T any](_ T, err error) error { return err }

// TestFailsTheCallsPicked: of each method those calls fail that the fault says,
// and no other method's.
func TestFailsTheCallsPicked(t *testing.T) {
	for _, c := range reads {
		s, backend := open(t)
		if err := commit(s, "1"); err != nil {
			t.Fatal(err)
		}
		if _, done, err := backend.IndexKeys(context.Background(), "t", nil); !done || err != nil {
			t.Fatalf("IndexKeys: %v, %v", done, err)
		}
		if err := c.run(s); err != nil { // before the fault was put in
			t.Fatalf("%s: %v", c.op, err)
		}
		s.Inject(storefault.Fault{Op: c.op, Skip: 2, Times: 3, Err: errDisk})
		for k := 1; k <= 8; k++ {
			var want error
			if k >= 3 && k <= 5 {
				want = errDisk
			}
			for _, other := range reads {
				err := other.run(s)
				if other.op != c.op && err != nil {
					t.Errorf("%s fails with %v; the fault is in %s", other.op, err, c.op)
				}
				if other.op == c.op && !errors.Is(err, want) {
					t.Errorf("call %d of %s: %v; want %v", k, c.op, err, want)
				}
			}
		}
		if s.Failed() != 3 || s.Calls(c.op) != 9 || s.Calls(storefault.Commit) != 1 || s.Calls(storefault.Any) != 1+1+8*len(reads) {
			t.Errorf("%s: %d failed, %d calls, %d commits, %d calls in all", c.op,
				s.Failed(), s.Calls(c.op), s.Calls(storefault.Commit), s.Calls(storefault.Any))
		}
	}
}

// TestSweep fails each call of a run in turn, as a sweep does, and ends where
// nothing is left to fail.
func TestSweep(t *testing.T) {
	run := func(s store.Store) error {
		for _, step := range slices.Concat([]call{{storefault.Commit, func(s store.Store) error { return commit(s, "1") }}}, reads) {
			if err := step.run(s); err != nil {
				return fmt.Errorf("%s: %w", step.op, err)
			}
		}
		return nil
	}
	var met []string
	for k := 1; ; k++ {
		s, _ := open(t)
		s.Inject(storefault.Fault{Skip: k - 1, Times: 1, Err: errDisk})
		err := run(s)
		if (err != nil) != (s.Failed() == 1) {
			t.Fatalf("k = %d: %v, and %d calls failed", k, err, s.Failed())
		}
		if err == nil {
			break
		}
		met = append(met, err.Error())
	}
	if len(met) != 1+len(reads) || met[1] != "Read: no disk" {
		t.Errorf("the sweep met %q", met)
	}
}

// TestFailedCommitBreaks: a Commit that fails did nothing, unless Applied says
// otherwise, and every later one fails; reads go on.
func TestFailedCommitBreaks(t *testing.T) {
	for _, applied := range []bool{false, true} {
		s, backend := open(t)
		s.Inject(storefault.Fault{Op: storefault.Commit, Skip: 1, Times: 1, Err: errDisk, Applied: applied})
		if err := commit(s, "1"); err != nil {
			t.Fatal(err)
		}
		if err := commit(s, "2"); !errors.Is(err, errDisk) || !errors.Is(err, store.ErrBroken) {
			t.Errorf("the Commit picked: %v; want store.ErrBroken and the fault's error", err)
		}
		s.Clear()
		if err := commit(s, "3"); !errors.Is(err, errDisk) || !errors.Is(err, store.ErrBroken) {
			t.Errorf("the Commit after it: %v; want store.ErrBroken and the fault's error", err)
		}
		want := uint64(1)
		if applied {
			want = 2
		}
		if got := head(t, s); got != want || head(t, backend) != want {
			t.Errorf("applied %v: the head is %d; want %d", applied, got, want)
		}
		if s.Failed() != 1 || s.Calls(storefault.Commit) != 3 {
			t.Errorf("%d calls failed of %d Commits", s.Failed(), s.Calls(storefault.Commit))
		}
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		if err := s.Commit(ended, units("4"), true); !errors.Is(err, context.Canceled) || errors.Is(err, store.ErrBroken) {
			t.Errorf("a Commit of the broken store with a context that has ended: %v", err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := commit(s, "5"); !errors.Is(err, store.ErrClosed) || errors.Is(err, store.ErrBroken) {
			t.Errorf("a Commit of the broken store after Close: %v; want store.ErrClosed", err)
		}
	}
}

// TestErrorsBeforeWriting: what comes before anything is written breaks nothing.
func TestErrorsBeforeWriting(t *testing.T) {
	for _, err := range []error{context.Canceled, context.DeadlineExceeded, store.ErrClosed} {
		s, _ := open(t)
		s.Inject(storefault.Fault{Op: storefault.Commit, Times: 1, Err: fmt.Errorf("too soon: %w", err), Applied: true})
		if got := commit(s, "1"); !errors.Is(got, err) || errors.Is(got, store.ErrBroken) {
			t.Errorf("Commit = %v; want %v alone", got, err)
		}
		if err := commit(s, "2"); err != nil || head(t, s) != 1 {
			t.Errorf("the Commit after it: %v, head %d", err, head(t, s))
		}
	}
}

// TestFirstFaultWins, and the others have seen the call.
func TestFirstFaultWins(t *testing.T) {
	s, _ := open(t)
	other := errors.New("other")
	s.Inject(storefault.Fault{Op: storefault.Head, Times: 1, Err: errDisk})
	s.Inject(storefault.Fault{Times: 2, Err: other})
	for i, want := range []error{errDisk, other, nil} {
		if err := reads[1].run(s); !errors.Is(err, want) {
			t.Errorf("call %d: %v; want %v", i, err, want)
		}
	}
	if s.Failed() != 2 {
		t.Errorf("%d calls failed; want 2", s.Failed())
	}
	s.Inject(storefault.Fault{Op: storefault.Head, Err: errDisk})
	for range 3 {
		if err := reads[1].run(s); !errors.Is(err, errDisk) {
			t.Errorf("a fault without end: %v", err)
		}
	}
	s.Clear()
	if err := reads[1].run(s); err != nil {
		t.Errorf("after Clear: %v", err)
	}
	defer func() {
		if recover() == nil {
			t.Error("a fault without an error was taken")
		}
	}()
	s.Inject(storefault.Fault{Op: storefault.Head})
}

// TestBeforeCommit: the hook holds up the Commit it is called for, with nothing
// of it done, and neither reads nor the fault that comes after it.
func TestBeforeCommit(t *testing.T) {
	s, _ := open(t)
	reached, release := make(chan []*store.Unit), make(chan struct{})
	s.Before(storefault.Commit, func(c *storefault.Call) error {
		if !c.Sync {
			t.Error("the hook hears of an unsynced Commit")
		}
		reached <- c.Units
		<-release
		return nil
	})
	done := make(chan error, 1)
	mine := units("1")
	go func() { done <- s.Commit(context.Background(), mine, true) }()
	if got := <-reached; got[0] != mine[0] {
		t.Error("the hook got other units")
	}
	if n := head(t, s); n != 0 || s.Calls(storefault.Commit) != 1 || len(done) != 0 {
		t.Errorf("while a Commit is held up the head is %d, and %d have begun", n, s.Calls(storefault.Commit))
	}
	s.Before(storefault.Commit, nil)
	if err := commit(s, "2"); err != nil || head(t, s) != 1 {
		t.Errorf("another Commit while one is held up: %v", err)
	}
	s.Inject(storefault.Fault{Op: storefault.Commit, Times: 1, Err: errDisk})
	close(release)
	if err := <-done; !errors.Is(err, errDisk) {
		t.Errorf("the Commit held up: %v; the fault was put in meanwhile", err)
	}
	if n := head(t, s); n != 1 {
		t.Errorf("the head is %d; want 1", n)
	}
}

// TestBeforeFails: a call that the hook fails does nothing and breaks nothing; the hook after
// it gets the error.
func TestBeforeFails(t *testing.T) {
	s, _ := open(t)
	var after error
	s.Before(storefault.Commit, func(*storefault.Call) error { return errDisk })
	s.After(storefault.Commit, func(c *storefault.Call) { after = c.Err })
	if err := commit(s, "1"); !errors.Is(err, errDisk) || !errors.Is(after, errDisk) || head(t, s) != 0 {
		t.Errorf("Commit = %v, after it %v, head %d; want the hook's error and no event", err, after, head(t, s))
	}
	s.Before(storefault.Commit, nil)
	if err := commit(s, "1"); err != nil || after != nil || head(t, s) != 1 {
		t.Errorf("the Commit after it: %v, after it %v, head %d", err, after, head(t, s))
	}
}

// TestHide: reads pass over what is hidden and have as much as they asked for of the rest.
func TestHide(t *testing.T) {
	s, _ := open(t)
	for i := range 9 {
		if err := commit(s, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	size := len(units("1")[0].Appends[0].Record)
	for _, tt := range []struct {
		hidden []uint64
		from   uint64
		limit  int
		events int // whose bytes are asked for
		want   []uint64
	}{
		{nil, 8, 10, 10, []uint64{8, 9}},
		{[]uint64{1, 2, 4, 9}, 1, 3, 10, []uint64{3, 5, 6}},
		{[]uint64{1, 2, 4, 9}, 4, 10, 2, []uint64{5, 6}},
		{[]uint64{1, 2, 4, 9}, 4, 10, 0, []uint64{5}},
		{[]uint64{1, 2, 4, 9}, 9, 10, 10, nil},
		{nil, 1, 3, 10, []uint64{1, 2, 3}},
	} {
		s.Hide("t", tt.hidden...)
		var batch store.Batch
		if err := s.Read(context.Background(), "t", tt.from, tt.limit, tt.events*size, &batch); err != nil {
			t.Fatal(err)
		}
		if batch.Horizon != 1 {
			t.Errorf("the horizon is %d; want 1", batch.Horizon)
		}
		var got []uint64
		for _, item := range batch.Items {
			got = append(got, item.Offset)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%d from %d on without %v: %v; want %v", tt.limit, tt.from, tt.hidden, got, tt.want)
		}
	}
}

func TestSetSpace(t *testing.T) {
	s, _ := open(t)
	want := store.Space{Free: 1, Total: 9}
	s.SetSpace(func() (store.Space, error) { return want, nil })
	if got, err := s.Space(); got != want || err != nil {
		t.Errorf("Space = %+v, %v; want %+v", got, err, want)
	}
	s.SetSpace(func() (store.Space, error) { return store.Space{}, errDisk })
	if _, err := s.Space(); !errors.Is(err, errDisk) {
		t.Errorf("Space: %v; want the error that was put in", err)
	}
	s.SetSpace(nil)
	if got, err := s.Space(); got != (store.Space{}) || err != nil {
		t.Errorf("Space = %+v, %v; want the backend's", got, err)
	}
	s.SetSpace(func() (store.Space, error) { return want, nil })
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Space(); !errors.Is(err, store.ErrClosed) {
		t.Errorf("Space after Close: %v; want store.ErrClosed", err)
	}
}

// TestFailedClose closes the backend all the same.
func TestFailedClose(t *testing.T) {
	s, backend := open(t)
	s.Inject(storefault.Fault{Op: storefault.Close, Err: errDisk})
	if err := s.Close(); !errors.Is(err, errDisk) {
		t.Errorf("Close: %v; want the fault's error", err)
	}
	if _, err := backend.Head(context.Background(), "t"); !errors.Is(err, store.ErrClosed) {
		t.Errorf("the backend is still open: %v", err)
	}
}

// TestCountsUnderRace: of many calls at a time exactly those fail that were
// picked.
func TestCountsUnderRace(t *testing.T) {
	const callers, calls = 8, 100
	s, _ := open(t)
	s.Inject(storefault.Fault{Op: storefault.Head, Skip: 50, Times: 25, Err: errDisk})
	var mu sync.Mutex
	failed := 0
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range calls {
				if _, err := s.Head(context.Background(), "t"); err != nil {
					mu.Lock()
					failed++
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	if failed != 25 || s.Failed() != 25 || s.Calls(storefault.Head) != callers*calls {
		t.Errorf("%d calls failed, Failed says %d of %d; want 25 of %d", failed, s.Failed(), s.Calls(storefault.Head), callers*calls)
	}
}
