package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"eventhub/store"
)

var groupTests = []test{
	{name: "create, update, read", run: testGroupLife},
	{name: "epochs", run: testGroupEpochs},
	{name: "later changes see earlier ones", run: testGroupOrder},
	{name: "delete", run: testGroupDelete},
	{name: "deletion among changes", run: testGroupDeleteOrder},
	{name: "epochs of deleted ones", run: testDeletedEpoch},
	{name: "paused", run: testGroupPaused},
	{name: "list", run: testListGroups},
	{name: "state is copied", run: testGroupCopied},
	{name: "reopening", run: testGroupReopened},
}

// change commits one group change and returns why it was refused, or nil.
func (s *env) change(t failer, ch store.GroupChange) error {
	t.Helper()
	u := &store.Unit{Groups: []store.GroupChange{ch}}
	s.commit(t, u)
	return u.Err
}

func testGroupLife(t *testing.T, s *env) {
	if _, err := s.Group(context.Background(), "t", "g"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("Group before its creation: %v; want store.ErrNotFound", err)
	}
	first := store.GroupState{Epoch: 1, Cursor: 41, Settings: []byte(`{"max_attempts":5}`)}
	if err := s.change(t, create("t", "g", first)); err != nil {
		t.Fatal(err)
	}
	same(t, "group", &first, s.group(t, "t", "g"))
	second := store.GroupState{Epoch: 1, Cursor: 1 << 52, Settings: []byte(`{"max_attempts":7}`)}
	if err := s.change(t, update("t", "g", second)); err != nil {
		t.Fatal(err)
	}
	same(t, "group after an update", &second, s.group(t, "t", "g"))
	// The store keeps what it is given; that cursors rise is the engine's care.
	third := store.GroupState{Epoch: 1<<64 - 1, Cursor: 0}
	if err := s.change(t, update("t", "g", third)); err != nil {
		t.Fatal(err)
	}
	same(t, "group after a seek", &third, s.group(t, "t", "g"))
	same(t, "group of another topic", (*store.GroupState)(nil), s.group(t, "other", "g"))
	same(t, "another group", (*store.GroupState)(nil), s.group(t, "t", "gg"))
}

func testGroupEpochs(t *testing.T, s *env) {
	if err := s.change(t, create("t", "g", store.GroupState{Epoch: 3})); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		change store.GroupChange
		want   error
		epoch  uint64 // afterwards
	}{
		{"lower", update("t", "g", store.GroupState{Epoch: 2}), store.ErrStaleEpoch, 3},
		{"equal", update("t", "g", store.GroupState{Epoch: 3, Cursor: 1}), nil, 3},
		{"higher", update("t", "g", store.GroupState{Epoch: 7}), nil, 7},
		{"the equal one is stale now", update("t", "g", store.GroupState{Epoch: 3}), store.ErrStaleEpoch, 7},
		{"zero", update("t", "g", store.GroupState{}), store.ErrStaleEpoch, 7},
		{"create, higher", create("t", "g", store.GroupState{Epoch: 9}), store.ErrExists, 7},
		{"missing", update("t", "none", store.GroupState{Epoch: 9}), store.ErrStaleEpoch, 7},
	} {
		if err := s.change(t, tt.change); !errors.Is(err, tt.want) {
			t.Errorf("%s: refused with %v; want %v", tt.name, err, tt.want)
		}
		same(t, tt.name+": epoch", tt.epoch, s.group(t, "t", "g").Epoch)
	}
	same(t, "groups", 1, len(s.listGroups(t, "t")))
}

func testGroupOrder(t *testing.T, s *env) {
	units := []*store.Unit{
		{Groups: []store.GroupChange{create("t", "g", store.GroupState{Epoch: 1}), update("t", "g", store.GroupState{Epoch: 4})}},
		{Groups: []store.GroupChange{update("t", "g", store.GroupState{Epoch: 3, Cursor: 3})}},
		{Groups: []store.GroupChange{update("t", "g", store.GroupState{Epoch: 5}), update("t", "g", store.GroupState{Epoch: 4})}},
		{Groups: []store.GroupChange{update("t", "g", store.GroupState{Epoch: 4, Cursor: 9})}},
		{Groups: []store.GroupChange{create("t", "g", store.GroupState{Epoch: 9})}},
		{Groups: []store.GroupChange{create("t", "h", store.GroupState{Epoch: 2}), create("t", "h", store.GroupState{Epoch: 2})}},
		{Groups: []store.GroupChange{create("t", "h", store.GroupState{Epoch: 1})}},
	}
	s.commit(t, units...)
	for i, want := range []error{nil, store.ErrStaleEpoch, store.ErrStaleEpoch, nil, store.ErrExists, store.ErrExists, nil} {
		if !errors.Is(units[i].Err, want) {
			t.Errorf("unit %d: Err = %v; want %v", i, units[i].Err, want)
		}
	}
	same(t, "groups", []store.GroupInfo{
		{Group: "g", State: store.GroupState{Epoch: 4, Cursor: 9}},
		{Group: "h", State: store.GroupState{Epoch: 1}},
	}, s.listGroups(t, "t"))
}

// remove deletes the group at an epoch.
func remove(topic, group string, epoch uint64) store.GroupChange {
	return store.GroupChange{Topic: topic, Group: group, Delete: true, State: store.GroupState{Epoch: epoch, Cursor: 99}}
}

func testGroupDelete(t *testing.T, s *env) {
	for _, name := range []string{"f", "g", "h"} {
		if err := s.change(t, create("t", name, store.GroupState{Epoch: 3, Cursor: 7, Settings: []byte(`{}`)})); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name   string
		change store.GroupChange
		want   error
	}{
		{"of an older epoch", remove("t", "g", 2), store.ErrStaleEpoch},
		{"of a group that is not there", remove("t", "none", 3), store.ErrStaleEpoch},
		{"in a topic that is not there", remove("none", "g", 3), store.ErrStaleEpoch},
		{"as it should", remove("t", "g", 3), nil},
		{"again", remove("t", "g", 3), store.ErrStaleEpoch},
		{"a write after it", update("t", "g", store.GroupState{Epoch: 3}), store.ErrStaleEpoch},
	} {
		if err := s.change(t, tt.change); !errors.Is(err, tt.want) {
			t.Errorf("a deletion %s: refused with %v; want %v", tt.name, err, tt.want)
		}
	}
	same(t, "the group deleted", (*store.GroupState)(nil), s.group(t, "t", "g"))
	same(t, "topics", 1, len(s.listTopics(t, "", 10)))
	check := func() {
		t.Helper()
		var names []string
		for _, g := range s.listGroups(t, "t") {
			names = append(names, g.Group)
		}
		same(t, "groups left", []string{"f", "h"}, names)
	}
	check()
	s.reopen(t)
	if s.Capabilities().Persistent {
		check()
		same(t, "the group deleted, after reopening", (*store.GroupState)(nil), s.group(t, "t", "g"))
		if err := s.change(t, create("t", "g", store.GroupState{Epoch: 1})); err != nil {
			t.Errorf("creation after the deletion: %v", err)
		}
	}
}

func testGroupDeleteOrder(t *testing.T, s *env) {
	units := []*store.Unit{
		{Groups: []store.GroupChange{create("t", "g", store.GroupState{Epoch: 5})}},
		{Groups: []store.GroupChange{remove("t", "g", 5), create("t", "g", store.GroupState{Epoch: 2, Cursor: 4})}},
		{Groups: []store.GroupChange{create("t", "h", store.GroupState{Epoch: 1}), remove("t", "h", 1)}},
		{Groups: []store.GroupChange{update("t", "h", store.GroupState{Epoch: 1})}},
		{Groups: []store.GroupChange{remove("t", "g", 2), update("t", "g", store.GroupState{Epoch: 9})}},
	}
	s.commit(t, units...)
	for i, want := range []error{nil, nil, nil, store.ErrStaleEpoch, store.ErrStaleEpoch} {
		if !errors.Is(units[i].Err, want) {
			t.Errorf("unit %d: Err = %v; want %v", i, units[i].Err, want)
		}
	}
	same(t, "groups", []store.GroupInfo{{Group: "g", State: store.GroupState{Epoch: 2, Cursor: 4}}}, s.listGroups(t, "t"))
}

// testDeletedEpoch: the highest epoch of a deletion stays known, whatever was refused,
// made again, or went with its topic.
func testDeletedEpoch(t *testing.T, s *env) {
	check := func(when string, want uint64) {
		t.Helper()
		got, err := s.DeletedEpoch(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		same(t, "the highest epoch of a deleted group "+when, want, got)
	}
	check("at first", 0)
	units := []*store.Unit{
		{Groups: []store.GroupChange{create("t", "g", store.GroupState{Epoch: 7}), create("t", "h", store.GroupState{Epoch: 3})}},
		{Groups: []store.GroupChange{create("u", "g", store.GroupState{Epoch: 20})}},
		{Groups: []store.GroupChange{remove("t", "g", 9)}},
		{Groups: []store.GroupChange{remove("t", "h", 4), update("t", "g", store.GroupState{Epoch: 30})}},
		{Groups: []store.GroupChange{remove("t", "g", 31)}},
	}
	s.commit(t, units...)
	for i, want := range []error{nil, nil, nil, store.ErrStaleEpoch, store.ErrStaleEpoch} {
		if !errors.Is(units[i].Err, want) {
			t.Errorf("unit %d: Err = %v; want %v", i, units[i].Err, want)
		}
	}
	check("after one deletion", 9)
	s.commit(t, &store.Unit{Groups: []store.GroupChange{remove("t", "h", 3), create("t", "g", store.GroupState{Epoch: 1}), remove("t", "g", 1)}})
	check("after lower ones", 9)
	if err := s.DeleteTopic(context.Background(), "u"); err != nil {
		t.Fatal(err)
	}
	check("after the deletion of a topic", 9)
	s.reopen(t)
	if s.Capabilities().Persistent {
		check("after reopening", 9)
		s.changed(t, create("t", "g", store.GroupState{Epoch: 10}))
		s.changed(t, remove("t", "g", 10))
		s.reopen(t)
		check("after a higher one, after reopening", 10)
	}
}

func testGroupPaused(t *testing.T, s *env) {
	// Settings of each first byte that JSON has, spaces included.
	for i, settings := range []string{"", "{}", "[]", `"a"`, "0", "-1", "true", "false", "null", " 1", "\t1", "\n1", "\r1"} {
		name := fmt.Sprint("g", i)
		for n, paused := range []bool{i%2 == 0, true, false, true} {
			state := store.GroupState{Epoch: uint64(n), Cursor: uint64(i), Paused: paused, Settings: []byte(settings)}
			if settings == "" {
				state.Settings = nil
			}
			ch := update("t", name, state)
			ch.Create = n == 0
			s.changed(t, ch)
			same(t, fmt.Sprintf("group with settings %q", settings), &state, s.group(t, "t", name))
			list := s.listGroups(t, "t")
			at := slices.IndexFunc(list, func(g store.GroupInfo) bool { return g.Group == name })
			same(t, "group in the list", state, list[at].State)
		}
	}
}

func testListGroups(t *testing.T, s *env) {
	var want []store.GroupInfo
	for i, name := range []string{"A", "B", "a", "a-b", "a.b", "a:b", "ab", "b", "z_9"} {
		want = append(want, store.GroupInfo{Group: name, State: store.GroupState{Epoch: uint64(i), Settings: []byte(`{}`)}})
	}
	order := []int{6, 2, 0, 8, 1, 4, 3, 7, 5}
	for i, at := range order {
		sorted := func(a, b store.GroupChange) []store.GroupChange { return []store.GroupChange{a, b} }
		u := &store.Unit{Groups: sorted(create("t", want[at].Group, want[at].State), create("u", want[at].Group, store.GroupState{Cursor: uint64(i)}))}
		s.commit(t, u)
		applied(t, u)
	}
	sortGroups(want)
	same(t, "groups of t", want, s.listGroups(t, "t"))
	same(t, "number of groups of u", len(want), len(s.listGroups(t, "u")))
}

func testGroupCopied(t *testing.T, s *env) {
	settings := []byte(`{"a":"first"}`)
	if err := s.change(t, create("t", "g", store.GroupState{Epoch: 1, Settings: settings})); err != nil {
		t.Fatal(err)
	}
	want := &store.GroupState{Epoch: 1, Settings: []byte(`{"a":"first"}`)}
	copy(settings, "xxxxxxxxxxxxx")
	same(t, "group after the caller changed its own", want, s.group(t, "t", "g"))
	clear(s.group(t, "t", "g").Settings)
	clear(s.listGroups(t, "t")[0].State.Settings)
	same(t, "group after readers changed their own", want, s.group(t, "t", "g"))
}

func testGroupReopened(t *testing.T, s *env) {
	state := store.GroupState{Epoch: 4, Cursor: 7, Settings: []byte(`[]`)}
	if err := s.change(t, create("t", "g", state)); err != nil {
		t.Fatal(err)
	}
	s.reopen(t)
	if !s.Capabilities().Persistent {
		same(t, "group", (*store.GroupState)(nil), s.group(t, "t", "g"))
		return
	}
	same(t, "group", &state, s.group(t, "t", "g"))
	if err := s.change(t, update("t", "g", store.GroupState{Epoch: 3})); !errors.Is(err, store.ErrStaleEpoch) {
		t.Errorf("an older epoch after reopening: %v; want store.ErrStaleEpoch", err)
	}
	if err := s.change(t, create("t", "g", store.GroupState{Epoch: 9})); !errors.Is(err, store.ErrExists) {
		t.Errorf("creation after reopening: %v; want store.ErrExists", err)
	}
}
