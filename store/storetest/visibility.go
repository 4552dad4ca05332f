package storetest

import (
	"context"
	"testing"

	"eventhub/store"
)

var visibilityTests = []test{
	{name: "nothing is shown before a synced commit is durable", run: testHeldSync},
	{name: "an unsynced commit is shown at once", run: testUnsyncedShown},
}

// view is everything that the tests of visibility look at.
type view struct {
	A, B          []row
	Heads         [2]uint64
	Found         [3]uint64
	SeekTime      uint64
	Latest        row
	State         []row
	G, H          *store.GroupState
	Groups        []store.GroupInfo
	CreatedGroups []store.GroupInfo
	Topics        []store.TopicInfo
}

func look(t failer, s *env) view {
	t.Helper()
	return view{
		A:             s.readAll(t, "a"),
		B:             s.readAll(t, "created"),
		Heads:         [2]uint64{s.head(t, "a"), s.head(t, "created")},
		Found:         [3]uint64{s.find(t, "a", "old"), s.find(t, "a", "new"), s.find(t, "created", "first")},
		SeekTime:      s.seekTime(t, "a", startTime+1),
		Latest:        s.latest(t, "a", "k", 0),
		State:         s.stateAll(t, "a", 0),
		G:             s.group(t, "a", "g"),
		H:             s.group(t, "a", "h"),
		Groups:        s.listGroups(t, "a"),
		CreatedGroups: s.listGroups(t, "created"),
		Topics:        s.listTopics(t, "", noLimit),
	}
}

// prepare commits what is there before, and returns a unit that changes each
// part of the view.
func prepareView(t failer, s *env) *store.Unit {
	t.Helper()
	old := unit(keyed("a", "old", "k"))
	old.Groups = []store.GroupChange{create("a", "g", store.GroupState{Epoch: 1, Settings: []byte(`1`)})}
	s.commit(t, old)
	s.clock.set(10)
	u := unit(keyed("a", "new", "k"), given("created", "first"))
	u.Groups = []store.GroupChange{
		update("a", "g", store.GroupState{Epoch: 2, Paused: true}),
		create("a", "h", store.GroupState{Epoch: 3}),
		create("created", "i", store.GroupState{Epoch: 4}),
	}
	return u
}

// wantAfter is the view when u is applied.
func wantAfter(u *store.Unit, before view) view {
	added, first := rowOf(u.Appends[0]), rowOf(u.Appends[1])
	h := u.Groups[1].State
	return view{
		A:             append(before.A[:1:1], added),
		B:             []row{first},
		Heads:         [2]uint64{added.Offset, first.Offset},
		Found:         [3]uint64{before.Found[0], added.Offset, first.Offset},
		SeekTime:      added.Offset,
		Latest:        added,
		State:         []row{added},
		G:             &u.Groups[0].State,
		H:             &h,
		Groups:        []store.GroupInfo{{Group: "g", State: u.Groups[0].State}, {Group: "h", State: h}},
		CreatedGroups: []store.GroupInfo{{Group: "i", State: u.Groups[2].State}},
		Topics:        []store.TopicInfo{{Name: "a", Head: added.Offset}, {Name: "created", Head: first.Offset}},
	}
}

// testHeldSync looks at everything while a commit waits for its fsync. That the
// looks return at all shows that reads do not wait for it.
func testHeldSync(t *testing.T, s *env) {
	hold := s.backend.HoldSync
	if hold == nil {
		if s.Capabilities().Durability != store.DurabilityNone {
			t.Fatal("a durable backend without HoldSync")
		}
		return
	}
	u := prepareView(t, s)
	before := look(t, s)
	reached, release := hold()
	done := make(chan error, 1)
	go func() { done <- s.Commit(context.Background(), []*store.Unit{u}, true) }()
	<-reached
	during := look(t, s)
	select {
	case err := <-done:
		t.Errorf("Commit returned before it was durable, with %v", err)
		done <- err
	default:
	}
	release()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	applied(t, u)
	same(t, "view during the commit", before, during)
	same(t, "view after the commit", wantAfter(u, before), look(t, s))
}

func testUnsyncedShown(t *testing.T, s *env) {
	u := prepareView(t, s)
	before := look(t, s)
	if err := s.Commit(context.Background(), []*store.Unit{u}, false); err != nil {
		t.Fatal(err)
	}
	applied(t, u)
	same(t, "view after the commit", wantAfter(u, before), look(t, s))
	stale := &store.Unit{Groups: []store.GroupChange{update("a", "g", store.GroupState{Epoch: 1})}}
	s.commit(t, stale)
	refused(t, stale, store.ErrStaleEpoch)
}
