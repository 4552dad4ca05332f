package storetest

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"

	"eventhub/store"
)

var partTests = []test{
	{name: "write, overwrite, remove", run: testPartLife},
	{name: "order", run: testPartOrder},
	{name: "reset", run: testPartReset},
	{name: "delete", run: testPartDelete},
	{name: "names that begin alike", run: testPartNames},
	{name: "refused units write none", options: Options{MaxTopics: 1}, run: testPartRefused},
	{name: "changes of one commit", run: testPartChanges},
	{name: "changes of several commits", run: testPartChangesApart},
	{name: "nothing is shown before it is durable", run: testPartHeldSync},
	{name: "parts are copied", run: testPartCopied},
	{name: "reopening", run: testPartReopened},
	{name: "of one change are seen together", run: testPartsTogether},
}

func part(kind byte, offset uint64, value string) store.GroupPart {
	return store.GroupPart{Kind: kind, Offset: offset, Value: []byte(value)}
}

// with returns the change with parts.
func with(ch store.GroupChange, parts ...store.GroupPart) store.GroupChange {
	ch.Parts = parts
	return ch
}

func reset(topic, group string, s store.GroupState, parts ...store.GroupPart) store.GroupChange {
	return store.GroupChange{Topic: topic, Group: group, State: s, Reset: true, Parts: parts}
}

func (s *env) parts(t failer, topic, group string) []store.GroupPart {
	t.Helper()
	parts, err := s.GroupParts(context.Background(), topic, group)
	if err != nil {
		t.Fatalf("GroupParts(%q, %q): %v", topic, group, err)
	}
	return parts
}

// changed commits one change, which must not be refused.
func (s *env) changed(t failer, ch store.GroupChange) {
	t.Helper()
	if err := s.change(t, ch); err != nil {
		t.Fatalf("a change of group %q was refused: %v", ch.Group, err)
	}
}

func testPartLife(t *testing.T, s *env) {
	state := store.GroupState{Epoch: 1, Settings: []byte(`{}`)}
	check := func(what string, want ...store.GroupPart) {
		t.Helper()
		same(t, "parts "+what, want, s.parts(t, "t", "g"))
	}
	check("of no topic")
	s.changed(t, create("t", "other", state))
	check("of no group")
	s.changed(t, with(create("t", "g", state), part(1, 7, "a"), part(2, 7, "b")))
	check("from its creation", part(1, 7, "a"), part(2, 7, "b"))
	state.Cursor = 5
	s.changed(t, update("t", "g", state))
	check("after a change of the header", part(1, 7, "a"), part(2, 7, "b"))
	long := string(bytes.Repeat([]byte{0, 0xff}, store.MaxPartBytes/2))
	s.changed(t, with(update("t", "g", state), part(1, 7, long), part(3, 0, "\x00")))
	check("after one was overwritten and one added", part(1, 7, long), part(2, 7, "b"), part(3, 0, "\x00"))
	s.changed(t, with(update("t", "g", state), part(2, 7, ""), part(9, 9, "")))
	check("after one was removed, and one that was not there", part(1, 7, long), part(3, 0, "\x00"))
	s.changed(t, with(update("t", "g", state), part(2, 7, "again")))
	check("after it came back", part(1, 7, long), part(2, 7, "again"), part(3, 0, "\x00"))
	same(t, "the header with them", &state, s.group(t, "t", "g"))
	same(t, "parts of the other group", 0, len(s.parts(t, "t", "other")))
	same(t, "the same name in another topic", 0, len(s.parts(t, "u", "g")))
}

// testPartOrder writes parts in an order of its own; they come by kind and then
// by offset as a number.
func testPartOrder(t *testing.T, s *env) {
	var want []store.GroupPart
	for _, kind := range []byte{0, 1, 'p', 0x7f, 0x80, 0xff} {
		for _, offset := range []uint64{0, 1, 255, 256, 1<<32 - 1, 1 << 32, 1<<32 + 1, 1<<53 - 1, 1<<64 - 1} {
			want = append(want, part(kind, offset, fmt.Sprint(kind, "/", offset)))
		}
	}
	s.changed(t, create("t", "g", store.GroupState{}))
	for i := range want {
		// 17 and their number, 54, have no common factor: each comes once.
		s.changed(t, with(update("t", "g", store.GroupState{}), want[i*17%len(want)]))
	}
	same(t, "parts", want, s.parts(t, "t", "g"))
}

func testPartReset(t *testing.T, s *env) {
	s.changed(t, with(create("t", "g", store.GroupState{Epoch: 1}), part(1, 1, "a"), part(1, 2, "b"), part(2, 1, "c")))
	s.changed(t, reset("t", "g", store.GroupState{Epoch: 2}, part(1, 2, "new"), part(2, 1, ""), part(3, 3, "d")))
	same(t, "parts after a reset with some", []store.GroupPart{part(1, 2, "new"), part(3, 3, "d")}, s.parts(t, "t", "g"))
	s.changed(t, reset("t", "g", store.GroupState{Epoch: 3}))
	same(t, "parts after a reset", 0, len(s.parts(t, "t", "g")))
	same(t, "header", &store.GroupState{Epoch: 3}, s.group(t, "t", "g"))
	created := reset("t", "h", store.GroupState{}, part(1, 1, "a"))
	created.Create = true
	s.changed(t, created)
	same(t, "parts of a group that was made with a reset", []store.GroupPart{part(1, 1, "a")}, s.parts(t, "t", "h"))
}

func testPartDelete(t *testing.T, s *env) {
	s.changed(t, with(create("t", "g", store.GroupState{Epoch: 1}), part(1, 1, "a"), part(2, 2, "b")))
	s.changed(t, remove("t", "g", 1))
	same(t, "parts of a group that is deleted", 0, len(s.parts(t, "t", "g")))
	s.changed(t, create("t", "g", store.GroupState{Epoch: 2}))
	check := func() {
		t.Helper()
		same(t, "parts of a new group of that name", 0, len(s.parts(t, "t", "g")))
	}
	check()
	if s.Capabilities().Persistent {
		s.reopen(t)
		check()
	}
}

// testPartNames: what happens to one group's parts leaves alone those of groups
// whose names begin with its name, or it with theirs.
func testPartNames(t *testing.T, s *env) {
	// Sizes of a name and a part's place that add up to the same, and offsets
	// whose bytes are those of names.
	names := []string{"g", "g-", "g.", "g.h", "g0", "g00000000", "g:", "gg", "gggggggggg", "h"}
	offsets := []uint64{0, 1, 0x2d2d2d2d2d2d2d2d, 0x3030303030303030, 0x6767676767676767}
	want := make(map[string][]store.GroupPart)
	for _, name := range names {
		for _, kind := range []byte{0, '-', 'g'} {
			for _, offset := range offsets {
				want[name] = append(want[name], part(kind, offset, name))
			}
		}
		s.changed(t, with(create("t", name, store.GroupState{}), want[name]...))
	}
	check := func(what string) {
		t.Helper()
		for _, name := range names {
			same(t, fmt.Sprintf("parts of %s after %s", name, what), want[name], s.parts(t, "t", name))
		}
	}
	check("the creation of all")
	for i, name := range names {
		if i%2 == 0 {
			s.changed(t, remove("t", name, 0))
		} else {
			s.changed(t, reset("t", name, store.GroupState{}))
		}
		delete(want, name)
		check("the end of those of " + name)
	}
}

// testPartRefused: a refused unit writes, resets and deletes nothing, be it the
// first, the last or in the middle of a commit.
func testPartRefused(t *testing.T, s *env) {
	state := store.GroupState{Epoch: 5}
	s.changed(t, with(create("t", "g", state), part(1, 1, "a")))
	s.changed(t, with(create("t", "h", state), part(1, 1, "b")))
	for _, tt := range []struct {
		name string
		want error
		bad  []store.GroupChange
	}{
		{"stale", store.ErrStaleEpoch, []store.GroupChange{with(update("t", "g", store.GroupState{Epoch: 4}), part(1, 1, "x"), part(2, 2, "x"))}},
		{"stale reset", store.ErrStaleEpoch, []store.GroupChange{reset("t", "g", store.GroupState{Epoch: 4}, part(2, 2, "x"))}},
		{"stale deletion", store.ErrStaleEpoch, []store.GroupChange{remove("t", "g", 4)}},
		{"creation of one that is there", store.ErrExists, []store.GroupChange{with(create("t", "g", store.GroupState{Epoch: 9}), part(2, 2, "x"))}},
		{"one that is not there", store.ErrStaleEpoch, []store.GroupChange{with(update("t", "i", state), part(2, 2, "x"))}},
		{"one topic too many", store.ErrTopicLimit, []store.GroupChange{with(create("u", "g", state), part(2, 2, "x"))}},
		{"one change of several", store.ErrStaleEpoch, []store.GroupChange{
			with(update("t", "h", state), part(1, 1, ""), part(2, 2, "x")), reset("t", "g", state),
			remove("t", "g", 5), with(create("t", "g", state), part(3, 3, "x")), update("t", "i", state)}},
	} {
		units := []*store.Unit{
			{Groups: tt.bad},
			{Groups: []store.GroupChange{with(update("t", "g", state), part(4, 4, "good"))}},
			{Groups: tt.bad},
			{Groups: []store.GroupChange{with(update("t", "h", state), part(4, 4, "good"))}},
			{Groups: tt.bad},
		}
		s.commit(t, units...)
		for i, u := range units {
			if i%2 == 0 {
				refused(t, u, tt.want)
			} else {
				applied(t, u)
			}
		}
		same(t, tt.name+": parts of g", []store.GroupPart{part(1, 1, "a"), part(4, 4, "good")}, s.parts(t, "t", "g"))
		same(t, tt.name+": parts of h", []store.GroupPart{part(1, 1, "b"), part(4, 4, "good")}, s.parts(t, "t", "h"))
		same(t, tt.name+": parts of i", 0, len(s.parts(t, "t", "i")))
		same(t, tt.name+": parts in u", 0, len(s.parts(t, "u", "g")))
	}
}

// partCase are units that meet in one group, which has partsBefore, and what
// they leave when they are applied one after the other.
type partCase struct {
	name  string
	units []*store.Unit
	want  []store.GroupPart
}

var partsBefore = []store.GroupPart{part(1, 1, "old"), part(1, 9, "old")}

func partCases() []partCase {
	state := store.GroupState{Epoch: 1}
	set := func(parts ...store.GroupPart) store.GroupChange { return with(update("t", "g", state), parts...) }
	gone := remove("t", "g", 1)
	made := func(parts ...store.GroupPart) store.GroupChange { return with(create("t", "g", state), parts...) }
	units := func(changes ...store.GroupChange) (us []*store.Unit) {
		for _, ch := range changes {
			us = append(us, &store.Unit{Groups: []store.GroupChange{ch}})
		}
		return us
	}
	one := func(changes ...store.GroupChange) []*store.Unit { return []*store.Unit{{Groups: changes}} }
	a, b, none := part(1, 1, "a"), part(1, 1, "b"), part(1, 1, "")
	other := part(2, 2, "other")
	old := part(1, 9, "old")
	return []partCase{
		{"write, write", units(set(a), set(b, other)), []store.GroupPart{b, old, other}},
		{"write, remove", units(set(a, other), set(none)), []store.GroupPart{old, other}},
		{"remove, write", units(set(none), set(b)), []store.GroupPart{b, old}},
		{"write, header only", units(set(a), update("t", "g", state)), []store.GroupPart{a, old}},
		{"write, reset", units(set(a, other), reset("t", "g", state)), nil},
		{"write, reset with parts", units(set(a, other), reset("t", "g", state, b)), []store.GroupPart{b}},
		{"reset, write", units(reset("t", "g", state, a), set(other)), []store.GroupPart{a, other}},
		{"write, reset, write", units(set(a, other), reset("t", "g", state), set(b)), []store.GroupPart{b}},
		{"reset with parts, reset", units(reset("t", "g", state, a), reset("t", "g", state)), nil},
		{"delete, create", units(gone, made()), nil},
		{"delete, create with parts", units(gone, made(b)), []store.GroupPart{b}},
		{"write, delete, create, write", units(set(a, other), gone, made(b), set(old)), []store.GroupPart{b, old}},
		{"delete, create, delete", units(gone, made(a), gone), nil},
		{"delete, create, delete, create", units(gone, made(a), gone, made(other)), []store.GroupPart{other}},
		{"delete with a refused unit after it", units(gone, set(a)), nil},
		{"write, refused reset", units(set(a), reset("t", "g", store.GroupState{}, b)), []store.GroupPart{a, old}},
		{"in one unit: write, write", one(set(a), set(b)), []store.GroupPart{b, old}},
		{"in one unit: write, reset, write", one(set(a, other), reset("t", "g", state), set(b)), []store.GroupPart{b}},
		{"in one unit: write, delete, create", one(set(a), gone, made(other)), []store.GroupPart{other}},
		{"in one unit: write, delete", one(set(a), gone), nil},
	}
}

func testPartChanges(t *testing.T, s *env) {
	testPartCases(t, s, func(units []*store.Unit) { s.commit(t, units...) })
}

// testPartChangesApart shows that a commit of several units leaves what one
// commit for each would.
func testPartChangesApart(t *testing.T, s *env) {
	testPartCases(t, s, func(units []*store.Unit) {
		for _, u := range units {
			s.commit(t, u)
		}
	})
}

func testPartCases(t *testing.T, s *env, commit func([]*store.Unit)) {
	for _, tt := range partCases() {
		if s.group(t, "t", "g") != nil {
			s.changed(t, remove("t", "g", 1))
		}
		s.changed(t, with(create("t", "g", store.GroupState{Epoch: 1}), partsBefore...))
		commit(tt.units)
		same(t, tt.name+": parts", tt.want, s.parts(t, "t", "g"))
	}
}

// partLooks is how often testPartHeldSync reads other things while a reader of
// parts runs: a reader that did not wait has returned long before.
const partLooks = 200

// testPartHeldSync reads the parts of groups that a commit waiting for its fsync
// changes, deletes and makes. The readers may wait; they must not see it.
func testPartHeldSync(t *testing.T, s *env) {
	hold := s.backend.HoldSync
	if hold == nil {
		return
	}
	state := store.GroupState{Epoch: 1}
	before := []store.GroupPart{part(1, 1, "a"), part(2, 2, "b")}
	for _, name := range []string{"written", "reset", "deleted"} {
		s.changed(t, with(create("t", name, state), before...))
	}
	u := &store.Unit{Groups: []store.GroupChange{
		with(update("t", "written", state), part(1, 1, "new")),
		reset("t", "reset", state), remove("t", "deleted", 1),
		with(create("t", "made", state), part(1, 1, "new")), with(create("created", "made", state), part(1, 1, "new")),
	}}
	after := [][]store.GroupPart{{part(1, 1, "new"), part(2, 2, "b")}, nil, nil, {part(1, 1, "new")}, {part(1, 1, "new")}}

	reached, release := hold()
	done := make(chan error, 1)
	go func() { done <- s.Commit(context.Background(), []*store.Unit{u}, true) }()
	<-reached
	early := make([][]store.GroupPart, len(u.Groups))
	returned := make([]bool, len(u.Groups))
	var mu sync.Mutex
	var readers sync.WaitGroup
	for i, ch := range u.Groups {
		readers.Go(func() {
			parts, err := s.GroupParts(context.Background(), ch.Topic, ch.Group)
			if err != nil {
				t.Errorf("GroupParts: %v", err)
			}
			mu.Lock()
			defer mu.Unlock()
			early[i], returned[i] = parts, true
		})
	}
	for range partLooks {
		same(t, "header during the commit", &state, s.group(t, "t", "written"))
		runtime.Gosched()
	}
	mu.Lock()
	for i, ch := range u.Groups {
		if returned[i] {
			want := before
			if ch.Create {
				want = nil
			}
			same(t, fmt.Sprintf("parts of %s in %s during the commit", ch.Group, ch.Topic), want, early[i])
		}
	}
	mu.Unlock()
	release()
	readers.Wait()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	applied(t, u)
	for i, ch := range u.Groups {
		same(t, fmt.Sprintf("parts of %s in %s after the commit", ch.Group, ch.Topic), after[i], s.parts(t, ch.Topic, ch.Group))
	}
}

func testPartCopied(t *testing.T, s *env) {
	value := []byte("first")
	s.changed(t, with(create("t", "g", store.GroupState{}), store.GroupPart{Kind: 1, Offset: 1, Value: value}))
	clear(value)
	want := []store.GroupPart{part(1, 1, "first")}
	same(t, "parts after the caller changed its own", want, s.parts(t, "t", "g"))
	clear(s.parts(t, "t", "g")[0].Value)
	same(t, "parts after a reader changed its own", want, s.parts(t, "t", "g"))
}

func testPartReopened(t *testing.T, s *env) {
	state := store.GroupState{Epoch: 1, Paused: true}
	s.changed(t, with(create("t", "g", state), part(1, 1, "a"), part(1, 1<<40, "b"), part(2, 0, "c")))
	u := &store.Unit{Groups: []store.GroupChange{with(update("t", "g", state), part(1, 1, ""), part(2, 1, "d"))}}
	if err := s.Commit(context.Background(), []*store.Unit{u}, false); err != nil {
		t.Fatal(err)
	}
	want := []store.GroupPart{part(1, 1<<40, "b"), part(2, 0, "c"), part(2, 1, "d")}
	same(t, "parts after an unsynced commit", want, s.parts(t, "t", "g"))
	s.reopen(t)
	if !s.Capabilities().Persistent {
		want = nil
	}
	same(t, "parts after reopening", want, s.parts(t, "t", "g"))
}

// testPartsTogether reads while a writer gives three parts the same new value
// in each commit, and now and then makes the group again.
func testPartsTogether(t *testing.T, s *env) {
	if !s.Capabilities().AtomicUnits {
		return
	}
	const commits = 150
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for range 3 {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				parts, err := s.GroupParts(context.Background(), "t", "g")
				if err != nil {
					t.Errorf("GroupParts: %v", err)
					return
				}
				if n := len(parts); n != 0 && n != 3 || n == 3 && slices.ContainsFunc(parts, func(p store.GroupPart) bool {
					return !bytes.Equal(p.Value, parts[0].Value)
				}) {
					t.Errorf("parts of several changes are together: %v", parts)
					return
				}
			}
		})
	}
	exists := false
	for i := range commits {
		v := fmt.Sprint(i)
		u := &store.Unit{Groups: []store.GroupChange{with(update("t", "g", store.GroupState{}), part(1, 1, v), part(1, 2, v), part(2, 1, v))}}
		u.Groups[0].Create = !exists
		exists = true
		if i%10 == 9 {
			u.Groups, exists = []store.GroupChange{remove("t", "g", 0)}, false
		}
		if err := s.Commit(context.Background(), []*store.Unit{u}, i%4 == 0); err != nil || u.Err != nil {
			t.Errorf("Commit %d: %v, %v", i, err, u.Err)
			break
		}
	}
	close(stop)
	readers.Wait()
}
