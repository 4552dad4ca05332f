package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"eventhub"
	"eventhub/internal/testsize"
	"eventhub/store"
)

// Most tests of this suite are of what a topic has, and not of when it began to have the key
// index. For these the index is started when it is read, or from the beginning (env.eager).

// Commit implements store.Log.
func (s *env) Commit(ctx context.Context, units []*store.Unit, sync bool) error {
	if err := s.indexExpected(ctx, units); err != nil {
		return err
	}
	err := s.Store.Commit(ctx, units, sync)
	for _, u := range units {
		for i := range u.Created {
			if s.eager && err == nil {
				err = s.buildIndex(ctx, u.Created[i].Topic)
			}
		}
	}
	return err
}

// Latest implements store.Log.
func (s *env) Latest(ctx context.Context, topic, key string, at uint64) (item store.Item, err error) {
	err = s.withIndex(ctx, topic, func() error {
		item, err = s.Store.Latest(ctx, topic, key, at)
		return err
	})
	return item, err
}

// State implements store.Log.
func (s *env) State(ctx context.Context, q store.StateQuery, batch *store.Batch) (page store.StatePage, err error) {
	err = s.withIndex(ctx, q.Topic, func() error {
		page, err = s.Store.State(ctx, q, batch)
		return err
	})
	return page, err
}

// Compact implements store.Retention.
func (s *env) Compact(ctx context.Context, topic string) (u store.Usage, done bool, err error) {
	err = s.withIndex(ctx, topic, func() error {
		u, done, err = s.Store.Compact(ctx, topic)
		return err
	})
	return u, done, err
}

// KeyEvents implements store.Log.
func (s *env) KeyEvents(ctx context.Context, topic, key string, before uint64, limit, maxBytes int, batch *store.Batch) (next uint64, err error) {
	err = s.withIndex(ctx, topic, func() error {
		next, err = s.Store.KeyEvents(ctx, topic, key, before, limit, maxBytes, batch)
		return err
	})
	return next, err
}

// indexExpected builds the indexes that conditions of units need.
func (s *env) indexExpected(ctx context.Context, units []*store.Unit) error {
	for _, u := range units {
		for i := range u.Appends {
			a := &u.Appends[i]
			if a.Expect.Kind != eventhub.ExpectKeyOffset {
				continue
			}
			info, err := s.Topic(ctx, a.Topic)
			if err == nil && info.Index != store.Indexed {
				err = s.buildIndex(ctx, a.Topic)
			}
			if err != nil && !errors.Is(err, store.ErrNotFound) {
				return err
			}
		}
	}
	return nil
}

func (s *env) withIndex(ctx context.Context, topic string, read func() error) error {
	err := read()
	if errors.Is(err, store.ErrNotIndexed) {
		if err = s.buildIndex(ctx, topic); err == nil {
			err = read()
		}
	}
	return err
}

// buildIndex starts the index of a topic and builds it.
func (s *env) buildIndex(ctx context.Context, topic string) error {
	u := &store.Unit{Topics: []store.TopicChange{{Topic: topic, Index: store.StartIndex}}}
	err := s.Store.Commit(ctx, []*store.Unit{u}, true)
	if err == nil {
		err = u.Err
	}
	for done := false; !done && err == nil; {
		_, done, err = s.IndexKeys(ctx, topic, nil)
	}
	return err
}

var indexTests = []test{
	{name: "is asked for", run: testIndexAsked},
	{name: "is built in steps", run: testIndexSteps},
	{name: "of what is removed meanwhile", run: testIndexRemovals},
	{name: "changes within a commit", run: testIndexInCommit},
	{name: "dropped", run: testIndexDropped},
	{name: "dropped in the middle of a pass", run: testIndexDropCompacting},
	{name: "of a topic that is deleted", run: testIndexDeleted},
	{name: "after reopening", run: testIndexReopened},
	{name: "held sync", run: testIndexHeld},
}

// indexOf says how far the index of a topic is, and fails the test where a list has it otherwise,
// or reads do not go by it.
func (s *env) indexOf(t failer, topic string) store.IndexStatus {
	t.Helper()
	ctx := context.Background()
	info, err := s.Topic(ctx, topic)
	if err != nil {
		t.Fatalf("Topic(%q): %v", topic, err)
	}
	for _, status := range []store.IndexStatus{store.NotIndexed, store.Indexing, store.Indexed} {
		names, err := s.TopicsIndexed(ctx, status)
		if err != nil || !slices.IsSorted(names) || slices.Contains(names, topic) != (status == info.Index) {
			t.Errorf("TopicsIndexed(%s) = %q, %v; that of %q is %s", status, names, err, topic, info.Index)
		}
	}
	_, latestErr := s.Store.Latest(ctx, topic, "none", 0)
	_, stateErr := s.Store.State(ctx, store.StateQuery{Topic: topic, Limit: 1}, new(store.Batch))
	isRefused := errors.Is(latestErr, store.ErrNotIndexed) && errors.Is(stateErr, store.ErrNotIndexed)
	if isRead := errors.Is(latestErr, store.ErrNotFound) && stateErr == nil; isRead != (info.Index == store.Indexed) || isRefused == isRead {
		t.Errorf("the index of %q is %s; Latest: %v, State: %v", topic, info.Index, latestErr, stateErr)
	}
	return info.Index
}

// change commits a change of an index.
func (s *env) changeIndex(t failer, topic string, ch store.IndexChange) {
	t.Helper()
	s.remove(t, store.TopicChange{Topic: topic, Index: ch})
}

// index goes on with an index by one step.
func (s *env) index(t failer, topic string) (p store.IndexProgress, done bool) {
	t.Helper()
	p, done, err := s.IndexKeys(context.Background(), topic, nil)
	if err != nil || p.Done > p.Total || done && p.Done != p.Total {
		t.Fatalf("IndexKeys(%q) = %+v, %v, %v", topic, p, done, err)
	}
	return p, done
}

// testIndexAsked: a new topic has none, and what is appended before the start is in it as what is
// appended after that.
func testIndexAsked(t *testing.T, s *env) {
	before := s.add(t, keyed("t", "1", "a"), keyed("t", "2", "b"), given("t", "3"))
	same(t, "index of a new topic", store.NotIndexed, s.indexOf(t, "t"))
	if p, done := s.index(t, "t"); !done || p != (store.IndexProgress{}) {
		t.Errorf("IndexKeys of a topic without index: %+v, %v", p, done)
	}
	if p, done := s.index(t, "none"); !done || p != (store.IndexProgress{}) {
		t.Errorf("IndexKeys of no topic: %+v, %v", p, done)
	}
	if _, _, err := s.Store.Compact(context.Background(), "t"); !errors.Is(err, store.ErrNotIndexed) {
		t.Errorf("Compact: %v", err)
	}
	s.changeIndex(t, "t", store.StartIndex)
	same(t, "index that was started", store.Indexing, s.indexOf(t, "t"))
	after := s.add(t, keyed("t", "4", "a"), keyed("t", "5", "c"))
	for done := false; !done; {
		var p store.IndexProgress
		if p, done = s.index(t, "t"); p.Total != 3 {
			t.Errorf("progress %+v; want one of 3 offsets", p)
		}
	}
	s.each(t, func(t *testing.T) {
		same(t, "index", store.Indexed, s.indexOf(t, "t"))
		same(t, "state", []row{rowOf(after[0]), rowOf(before[1]), rowOf(after[1])}, s.stateAll(t, "t", 0))
		same(t, "state before", some(before, 1, 2), s.stateAll(t, "t", 3))
	})
	s.changeIndex(t, "t", store.StartIndex)
	same(t, "index that is started again", store.Indexed, s.indexOf(t, "t"))
	gone := &store.Unit{Topics: []store.TopicChange{{Topic: "none", Index: store.StartIndex}}}
	s.commit(t, gone)
	refused(t, gone, store.ErrGone)
}

// testIndexSteps: it is built a little at a time, and a store that is opened in between goes on.
func testIndexSteps(t *testing.T, s *env) {
	n := testsize.Of(2000, 500)
	all := s.many(t, "t", n) // keys k0, k1, k2 in turn
	s.changeIndex(t, "t", store.StartIndex)
	var last store.IndexProgress
	for steps := 1; ; steps++ {
		p, done := s.index(t, "t")
		if p.Total != uint64(n) || p.Done < last.Done {
			t.Fatalf("progress %+v after %+v", p, last)
		}
		if last = p; done {
			break
		}
		same(t, "index", store.Indexing, s.indexOf(t, "t"))
		if s.Capabilities().Persistent && steps%3 == 0 {
			s.reopen(t)
			same(t, "index after reopening", store.Indexing, s.indexOf(t, "t"))
		}
		more := keyed("t", fmt.Sprint("more-", steps), fmt.Sprint("k", steps%3))
		all = append(all, s.add(t, more)...)
	}
	same(t, "progress", store.IndexProgress{Done: uint64(n), Total: uint64(n)}, last)
	for _, at := range []int{1, 2, 3, 4, n / 2, n - 1, n, len(all)} {
		newest := make(map[string]row)
		for _, a := range all[:at] {
			newest[a.Key] = rowOf(a)
		}
		var want []row
		for _, key := range []string{"k0", "k1", "k2"} {
			if r, ok := newest[key]; ok {
				want = append(want, r)
			}
		}
		same(t, fmt.Sprint("state at ", at), want, s.stateAll(t, "t", all[at-1].Offset))
	}
}

// testIndexRemovals: what is removed before the start, while the index is built, and after that is not
// in it.
func testIndexRemovals(t *testing.T, s *env) {
	all := s.many(t, "t", 600)
	s.remove(t, store.TopicChange{Topic: "t", Horizon: 4, Erase: []uint64{6, 600}})
	s.changeIndex(t, "t", store.StartIndex)
	s.remove(t, store.TopicChange{Topic: "t", Horizon: 7, Erase: []uint64{599, 8}})
	s.index(t, "t")
	s.remove(t, store.TopicChange{Topic: "t", Horizon: 100, Erase: []uint64{598, 101}})
	s.sweepAll(t)
	for done := false; !done; {
		_, done = s.index(t, "t")
	}
	s.each(t, func(t *testing.T) {
		same(t, "state", some(all, 595, 596, 597), s.stateAll(t, "t", 0))
		same(t, "state at 102", some(all, 100, 102), s.stateAll(t, "t", 102))
	})
	s.remove(t, store.TopicChange{Topic: "t", Horizon: 601})
	s.sweepAll(t)
	s.each(t, func(t *testing.T) { same(t, "state of nothing", []row(nil), s.stateAll(t, "t", 0)) })
	// An index of nothing.
	s.changeIndex(t, "t", store.DropIndex)
	s.changeIndex(t, "t", store.StartIndex)
	if p, done := s.index(t, "t"); !done || p != (store.IndexProgress{}) {
		t.Errorf("an index of nothing: %+v, %v", p, done)
	}
	added := s.add(t, keyed("t", "last", "k0"))
	s.each(t, func(t *testing.T) { same(t, "state of one", rowsOf(added), s.stateAll(t, "t", 0)) })
}

// testIndexInCommit: the units of a commit, and the changes of a unit, count one after the other.
func testIndexInCommit(t *testing.T, s *env) {
	change := func(changes ...store.IndexChange) *store.Unit {
		u := &store.Unit{}
		for _, ch := range changes {
			u.Topics = append(u.Topics, store.TopicChange{Topic: "t", Index: ch})
		}
		return u
	}
	first, second, third := unit(keyed("t", "1", "a")), unit(keyed("t", "2", "b")), unit(keyed("t", "3", "a"))
	s.commit(t, first, change(store.StartIndex), second, change(store.DropIndex, store.StartIndex), third)
	same(t, "index", store.Indexing, s.indexOf(t, "t"))
	if p, done := s.index(t, "t"); !done || p.Total != 2 {
		t.Errorf("progress %+v, %v; want one of 2 offsets", p, done)
	}
	want := []row{rowOf(third.Appends[0]), rowOf(second.Appends[0])}
	s.each(t, func(t *testing.T) { same(t, "state", want, s.stateAll(t, "t", 0)) })
	// What a dropped index had of the same commit is not found in the next one.
	fourth := unit(keyed("t", "4", "c"))
	s.commit(t, fourth, change(store.DropIndex))
	s.remove(t, store.TopicChange{Topic: "t", Erase: []uint64{fourth.Appends[0].Offset}})
	s.sweepAll(t)
	same(t, "index", store.NotIndexed, s.indexOf(t, "t"))
	same(t, "state", want, s.stateAll(t, "t", 0))
	same(t, "the newest of a key", row{}, s.latest(t, "t", "c", 0))
}

// testIndexDropped: an index that is dropped is gone, and so is its work; what is removed without
// an index is not in the next one.
func testIndexDropped(t *testing.T, s *env) {
	all := s.many(t, "t", 300)
	s.changeIndex(t, "t", store.DropIndex) // there is none
	for _, steps := range []int{0, 1, 1 << 20} {
		s.changeIndex(t, "t", store.StartIndex)
		for done := false; steps > 0 && !done; steps-- {
			_, done = s.index(t, "t")
		}
		s.changeIndex(t, "t", store.DropIndex)
		s.each(t, func(t *testing.T) { same(t, "index", store.NotIndexed, s.indexOf(t, "t")) })
		if _, done := s.index(t, "t"); !done {
			t.Error("IndexKeys goes on with an index that was dropped")
		}
	}
	s.remove(t, store.TopicChange{Topic: "t", Erase: []uint64{300}, Horizon: 10})
	s.sweepAll(t)
	all = append(all, s.add(t, keyed("t", "without", "k1"))...)
	s.each(t, func(t *testing.T) {
		same(t, "state", some(all, 298, 301, 297), s.stateAll(t, "t", 0))
		same(t, "state at 10", some(all, 10), s.stateAll(t, "t", 10))
	})
}

// testIndexDropCompacting: a drop may be refused until a pass is done. What the pass has removed is
// not in the next index, and the next pass goes on.
func testIndexDropCompacting(t *testing.T, s *env) {
	n := testsize.Of(3000, 300)
	s.many(t, "t", n)
	s.remove(t, store.TopicChange{Topic: "t", Compacted: uint64(n - 10)})
	if _, _, err := s.Compact(context.Background(), "t"); err != nil {
		t.Fatal(err)
	}
	for {
		u := &store.Unit{Topics: []store.TopicChange{{Topic: "t", Index: store.DropIndex}}}
		if s.commit(t, u); u.Err == nil {
			break
		}
		refused(t, u, store.ErrCompacting)
		same(t, "index after a refusal", store.Indexed, s.indexOf(t, "t"))
		if _, _, err := s.Compact(context.Background(), "t"); err != nil {
			t.Fatal(err)
		}
	}
	same(t, "index", store.NotIndexed, s.indexOf(t, "t"))
	all := s.readAll(t, "t")
	s.remove(t, store.TopicChange{Topic: "t", Compacted: uint64(n - 1)})
	s.compact(t, "t")
	s.each(t, func(t *testing.T) {
		same(t, "events", 4, len(s.readAll(t, "t")))
		same(t, "state", all[len(all)-3:], sortRows(s.stateAll(t, "t", 0)))
	})
}

func sortRows(rows []row) []row {
	slices.SortFunc(rows, func(a, b row) int { return int(a.Offset) - int(b.Offset) })
	return rows
}

// testIndexDeleted: the next life of a topic has none, whatever the one before had.
func testIndexDeleted(t *testing.T, s *env) {
	for round, sweep := range []bool{false, true, false, true} {
		s.add(t, keyed("t", "1", "a"), keyed("t", "2", "b"))
		same(t, "index of a new life", store.NotIndexed, s.indexOf(t, "t"))
		s.changeIndex(t, "t", store.StartIndex)
		if round > 1 {
			s.index(t, "t")
		}
		s.deleteTopic(t, "t", sweep)
		if p, done := s.index(t, "t"); !done || p != (store.IndexProgress{}) {
			t.Errorf("IndexKeys of a topic that was deleted: %+v, %v", p, done)
		}
	}
	added := s.add(t, keyed("t", "3", "b"))
	s.sweepAll(t)
	same(t, "state", rowsOf(added), s.stateAll(t, "t", 0))
}

func testIndexReopened(t *testing.T, s *env) {
	s.many(t, "a", 3)
	s.many(t, "b", 3)
	s.many(t, "c", 3)
	s.changeIndex(t, "b", store.StartIndex)
	s.changeIndex(t, "c", store.StartIndex)
	s.index(t, "c")
	s.reopen(t)
	if !s.Capabilities().Persistent {
		return
	}
	same(t, "index of a", store.NotIndexed, s.indexOf(t, "a"))
	same(t, "index of b", store.Indexing, s.indexOf(t, "b"))
	same(t, "index of c", store.Indexed, s.indexOf(t, "c"))
}

// testIndexHeld: while the commit of a start waits for its fsync nobody sees it; while that of a
// drop does reads may see it, and none sees an index without its keys.
func testIndexHeld(t *testing.T, s *env) {
	if s.backend.HoldSync == nil {
		return
	}
	added := s.many(t, "t", 3)
	held := func(ch store.IndexChange, look func()) {
		t.Helper()
		reached, release := s.backend.HoldSync()
		done := make(chan error, 1)
		u := &store.Unit{Topics: []store.TopicChange{{Topic: "t", Index: ch}}}
		go func() { done <- s.Store.Commit(context.Background(), []*store.Unit{u}, true) }()
		<-reached
		look()
		release()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		applied(t, u)
	}
	held(store.StartIndex, func() { same(t, "index", store.NotIndexed, s.indexOf(t, "t")) })
	same(t, "index", store.Indexing, s.indexOf(t, "t"))
	s.index(t, "t")
	held(store.DropIndex, func() {
		var b store.Batch
		_, err := s.Store.State(context.Background(), store.StateQuery{Topic: "t", Limit: 9, MaxBytes: noLimit}, &b)
		if !errors.Is(err, store.ErrNotIndexed) {
			same(t, "state", rowsOf(added), batchRows(&b))
		}
	})
	same(t, "index", store.NotIndexed, s.indexOf(t, "t"))
}
