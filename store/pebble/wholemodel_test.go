package pebble

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"eventhub/store"
	"eventhub/store/storetest"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// wholeState is what a topic, its groups and the settings are to be after some units. A state
// that somebody may look at does not change.
type wholeState struct {
	events map[uint64]wholeEvent // that are there
	// perhaps are events that a mark removes: each may be there until Compact is done.
	perhaps                   map[uint64]wholeEvent
	gone                      map[string]wholeGone // by id
	horizon, compacted, ended uint64               // ended: the mark of tombstones
	last                      uint64
	groups                    map[string]wholeGroup
	settings                  map[string]string
	isIndexed                 bool // the key index was begun
}

type wholeEvent struct {
	id, key string
	isEnd   bool
	// bare: what hid it below the mark was erased, before Compact removed it or after that.
	bare bool
	// again: its id is that of a later event by now.
	again bool
}

// wholeGone is an event that was removed. Its id is remembered until then at least, 0 where it
// need not be.
type wholeGone struct {
	offset uint64
	until  int64
}

type wholeGroup struct {
	state store.GroupState
	parts map[uint64]string // by offset
}

func newWholeState() *wholeState {
	return &wholeState{events: make(map[uint64]wholeEvent), perhaps: make(map[uint64]wholeEvent), gone: make(map[string]wholeGone),
		horizon: 1, groups: make(map[string]wholeGroup), settings: make(map[string]string)}
}

func (st *wholeState) clone() *wholeState {
	c := *st
	c.events, c.perhaps, c.gone = maps.Clone(st.events), maps.Clone(st.perhaps), maps.Clone(st.gone)
	c.groups, c.settings = maps.Clone(st.groups), maps.Clone(st.settings)
	for name, g := range c.groups {
		g.parts = maps.Clone(g.parts)
		c.groups[name] = g
	}
	return &c
}

// remove removes an event for good.
func (st *wholeState) remove(offset uint64, until int64) {
	e, ok := st.events[offset]
	if p, perhaps := st.perhaps[offset]; perhaps {
		e, ok, until = p, true, min(until, st.gone[p.id].until) // it may be gone since the mark
	}
	if ok {
		if !e.again {
			st.gone[e.id] = wholeGone{offset, until}
		}
		delete(st.events, offset)
		delete(st.perhaps, offset)
	}
}

// again has an event whose id was forgotten published again. The record of the one before may be there
// for longer than its id is remembered.
func (st *wholeState) again(id string, offset uint64) {
	if e, ok := st.perhaps[st.gone[id].offset]; ok {
		e.again = true
		st.perhaps[st.gone[id].offset] = e
	}
	delete(st.gone, id)
	st.last, st.events[offset] = offset, wholeEvent{id: id}
}

// change does what a TopicChange says at a time of the test's clock.
func (st *wholeState) change(ch store.TopicChange, now int64) {
	if ch.Index != store.KeepIndex {
		st.isIndexed = ch.Index == store.StartIndex
	}
	until := now + store.IDsKept.Milliseconds()
	if ch.ForgetIDs {
		until = 0
	}
	if horizon := min(ch.Horizon, st.last+1); horizon > st.horizon {
		st.horizon = horizon
		for _, offset := range append(sortedKeys(st.events), sortedKeys(st.perhaps)...) {
			if offset < horizon {
				st.remove(offset, until)
			}
		}
	}
	for _, offset := range ch.Erase {
		e, ok := st.events[offset]
		if !ok {
			e = st.perhaps[offset]
		}
		st.remove(offset, until)
		if e.key != "" && offset <= st.compacted {
			st.lay(e.key, offset)
		}
	}
	st.compacted = max(st.compacted, min(ch.Compacted, st.last))
	st.ended = max(st.ended, min(ch.Tombstones, st.compacted))
	if ch.Compacted > 0 || ch.Tombstones > 0 {
		st.compact(now + store.IDsKept.Milliseconds())
	}
}

// lay bares the events of a key that one at an offset below the mark had hidden.
func (st *wholeState) lay(key string, offset uint64) {
	for newer, e := range st.events {
		if e.key == key && newer > offset && newer <= st.compacted {
			return
		}
	}
	for older, e := range st.perhaps {
		if e.key == key && older < offset {
			e.bare = true
			st.perhaps[older] = e
		}
	}
}

// compact takes what the marks remove from what is there for sure.
func (st *wholeState) compact(until int64) {
	newest := make(map[string]uint64)
	take := func(offset uint64) {
		e := st.events[offset]
		st.perhaps[offset] = e
		st.gone[e.id] = wholeGone{offset, until}
		delete(st.events, offset)
	}
	for _, offset := range sortedKeys(st.events) {
		e := st.events[offset]
		if offset > st.compacted || e.key == "" {
			continue
		}
		if before := newest[e.key]; before != 0 {
			take(before)
		}
		newest[e.key] = offset
	}
	for _, offset := range newest {
		if st.events[offset].isEnd && offset <= st.ended {
			take(offset)
		}
	}
}

func sortedKeys[V any](m map[uint64]V) []uint64 { return slices.Sorted(maps.Keys(m)) }

// differs compares the store with the state, as far as reads show it. "" is no difference.
func (st *wholeState) differs(s *Store, rng *rand.Rand) string {
	ctx := context.Background()
	var b store.Batch
	if err := s.Read(ctx, "t", 1, 1<<30, 1<<40, &b); err != nil {
		return err.Error()
	}
	// A reader is told why it does not get what is missing.
	if b.Horizon != st.horizon || b.Compacted != st.compacted || b.Tombstones != st.ended {
		return fmt.Sprintf("a read has the horizon %d and the marks %d, %d; want %d, %d and %d", b.Horizon, b.Compacted, b.Tombstones, st.horizon, st.compacted, st.ended)
	}
	info, err := s.Topic(ctx, "t")
	if err != nil || info.Head != st.last || info.Horizon != st.horizon || info.Compacted != st.compacted || info.Tombstones != st.ended {
		return fmt.Sprintf("the topic is %+v, %v; want the head %d, the horizon %d and the marks %d, %d", info, err, st.last, st.horizon, st.compacted, st.ended)
	}
	shown := make(map[uint64]bool)
	for _, item := range b.Items {
		e, sure := st.events[item.Offset]
		if !sure {
			e = st.perhaps[item.Offset]
		}
		if shown[item.Offset] = true; e.id != string(item.Record.ID()) {
			return fmt.Sprintf("%q is at %d; want %q", item.Record.ID(), item.Offset, e.id)
		}
	}
	for offset, e := range st.events {
		if !shown[offset] {
			return fmt.Sprintf("%q is not at %d; the horizon is %d, the marks are %d and %d", e.id, offset, st.horizon, st.compacted, st.ended)
		}
	}
	if what := st.groupsDiffer(s); what != "" {
		return what
	}
	if what := st.indexDiffers(s, info.Index, rng); what != "" || !st.isIndexed {
		return what
	}
	return st.keysDiffer(s, rng)
}

// indexDiffers looks at whether there is the index that there is to be. One that is being built goes on
// to its end, or is not read.
func (st *wholeState) indexDiffers(s *Store, is store.IndexStatus, rng *rand.Rand) string {
	ctx := context.Background()
	if (is != store.NotIndexed) != st.isIndexed {
		return fmt.Sprintf("the index is %s; it was begun: %v", is, st.isIndexed)
	}
	if is == store.Indexed {
		return ""
	}
	if _, err := s.Latest(ctx, "t", "a", 0); !errors.Is(err, store.ErrNotIndexed) {
		return fmt.Sprintf("an index that is %s is read, %v", is, err)
	}
	for done := false; st.isIndexed && !done; {
		var err error
		if _, done, err = s.IndexKeys(ctx, "t", nil); err != nil {
			return err.Error()
		}
	}
	return ""
}

// looksLike reports whether no read need tell the state from another one.
func (st *wholeState) looksLike(other *wholeState) bool {
	return st.isIndexed == other.isIndexed && st.last == other.last && st.horizon == other.horizon && st.compacted == other.compacted && st.ended == other.ended &&
		maps.Equal(st.settings, other.settings) && maps.Equal(st.events, other.events) && reflect.DeepEqual(st.groups, other.groups)
}

// TestWholeStatesAreKnownByReads: states that look alike are alike. For an image may have any of them,
// and what one of them forgets the other one would miss.
func TestWholeStatesAreKnownByReads(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	serial, alike := 0, 0
	newID := func() string { serial++; return storetest.GivenID("e", serial) }
	for range 500 {
		st := newWholeState()
		for st.last = range uint64(20) {
			st.events[st.last+1] = wholeEvent{id: newID(), key: "a"}
		}
		st.last++
		st.change(store.TopicChange{Topic: "t", Compacted: st.last}, 0)
		states := []*wholeState{st}
		for range 5 {
			next := states[len(states)-1].clone()
			next.drawUnit(rng, 1, newID)
			for _, before := range states {
				if !next.looksLike(before) {
					continue
				}
				if alike++; !maps.Equal(next.gone, before.gone) || !maps.Equal(next.perhaps, before.perhaps) {
					t.Fatalf("%+v looks like %+v", next, before)
				}
			}
			states = append(states, next)
		}
	}
	if alike == 0 {
		t.Error("no two states look alike")
	}
}

// TestWholeStateAfterAnIDIsUsedAgain: what removes an event that the compaction removed long before
// says nothing of the later one with the same id.
func TestWholeStateAfterAnIDIsUsedAgain(t *testing.T) {
	var clock testClock
	o := onMem(t, vfs.NewMem())
	o.Now = clock.now
	s := mustOpen(t, o)
	defer mustClose(t, s)
	st := newWholeState()
	for _, a := range mustCommit(t, s, true, keyedEvent("e1", "a", `1`), keyedEvent("e2", "a", `2`)) {
		st.last, st.events[a.Offset] = a.Offset, wholeEvent{id: a.ID, key: a.Key}
	}
	mustIndex(t, s, "t")
	remove := func(ch store.TopicChange) {
		t.Helper()
		st.change(ch, clock.ms)
		mustRemove(t, s, ch)
	}
	remove(store.TopicChange{Topic: "t", Compacted: 2})
	for done := false; !done; {
		var err error
		if _, done, err = s.Compact(context.Background(), "t"); err != nil {
			t.Fatal(err)
		}
	}
	clock.pass(store.IDsKept)
	sweepAll(t, s)
	st.again("e1", mustCommit(t, s, true, given("t", "e1"))[0].Offset)
	remove(store.TopicChange{Topic: "t", Horizon: 4})
	a := mustCommit(t, s, true, given("t", "e1"))[0]
	if g := st.gone["e1"]; !a.Duplicate || a.Offset != 3 || g.offset != a.Offset {
		t.Errorf("e1 is a duplicate of %d, %v; the state has %+v", a.Offset, a.Duplicate, g)
	}
}

func (st *wholeState) groupsDiffer(s *Store) string {
	ctx := context.Background()
	groups, err := s.ListGroups(ctx, "t")
	if err != nil || len(groups) != len(st.groups) {
		return fmt.Sprintf("there are the groups %+v, %v; want %+v", groups, err, st.groups)
	}
	for _, g := range groups {
		want, got := st.groups[g.Group], make(map[uint64]string)
		parts, err := s.GroupParts(ctx, "t", g.Group)
		for _, p := range parts {
			got[p.Offset] = string(p.Value)
		}
		if err != nil || g.State.Cursor != want.state.Cursor || g.State.Epoch != want.state.Epoch || !maps.Equal(got, want.parts) {
			return fmt.Sprintf("group %s is %+v with %v, %v; want %+v", g.Group, g.State, got, err, want)
		}
	}
	settings, err := s.ListSettings(ctx)
	got := make(map[string]string)
	for _, e := range settings {
		got[e.Name] = string(e.Value)
	}
	if err != nil || !maps.Equal(got, st.settings) {
		return fmt.Sprintf("the settings are %v, %v; want %v", got, err, st.settings)
	}
	return ""
}

// keysDiffer looks at the state by key, which is exact from the mark on: nothing that was replaced,
// ended or erased is the newest of its key. An end may be shown until it is removed, and what an
// erased event has hidden.
func (st *wholeState) keysDiffer(s *Store, rng *rand.Rand) string {
	least := max(st.compacted, 1)
	for _, key := range wholeKeys[1:] {
		for _, at := range []uint64{least, st.last, least + rng.Uint64N(st.last+1-least), least + rng.Uint64N(st.last+1-least)} {
			var want uint64
			for offset, e := range st.events {
				if e.key == key && offset <= at {
					want = max(want, offset)
				}
			}
			item, err := newestAt(s, key, at)
			if item.Offset == want {
				continue
			}
			if e, ok := st.perhaps[item.Offset]; !ok || e.key != key || item.Offset < want || !e.isEnd && !e.bare {
				return fmt.Sprintf("the newest of %s at %d is %d, %v, %+v; want %d; the marks are %d and %d", key, at, item.Offset, err, e, want, st.compacted, st.ended)
			}
		}
	}
	return ""
}

// wholeKeys are those that events have; the first one is none.
var wholeKeys = []string{"", "a", "b", "c", "d"}

// drawUnit draws a unit with some of all that a unit can be, which is taken, and does what it says.
func (st *wholeState) drawUnit(rng *rand.Rand, now int64, newID func() string) *store.Unit {
	u := &store.Unit{}
	if rng.IntN(3) > 0 {
		st.drawAppends(u, rng, now, newID)
	}
	if rng.IntN(2) == 0 {
		ch := st.drawChange(rng)
		if slices.ContainsFunc(ch.Erase, func(offset uint64) bool { return st.perhaps[offset].id != "" }) {
			// A read need not show that, as Compact may have been there before. So a setting does: the
			// store may have forgotten the id, and whether it has is to be known after a crash too.
			shown := store.SettingChange{Name: "shown", Value: json.RawMessage(fmt.Sprintf(`{"version":%d}`, rng.Uint64()))}
			st.settings[shown.Name] = string(shown.Value)
			u.Settings = append(u.Settings, shown)
		}
		st.change(ch, now)
		u.Topics = append(u.Topics, ch)
	}
	if rng.IntN(3) == 0 {
		st.drawGroup(u, rng)
	}
	if rng.IntN(4) == 0 {
		name := []string{"t", "*", "a.**"}[rng.IntN(3)]
		ch := store.SettingChange{Name: name, Delete: rng.IntN(3) == 0}
		if delete(st.settings, name); !ch.Delete {
			ch.Value = json.RawMessage(fmt.Sprintf(`{"version":%d}`, rng.Uint32()))
			st.settings[name] = string(ch.Value)
		}
		u.Settings = append(u.Settings, ch)
	}
	return u
}

func (st *wholeState) drawAppends(u *store.Unit, rng *rand.Rand, now int64, newID func() string) {
	var late []string
	for id, g := range st.gone {
		if g.until > now {
			late = append(late, id)
		}
	}
	slices.Sort(late)
	for range 1 + rng.IntN(8) {
		if len(late) > 0 && rng.IntN(5) == 0 {
			u.Appends = append(u.Appends, given("t", late[rng.IntN(len(late))]))
			continue
		}
		e := wholeEvent{id: newID(), key: wholeKeys[rng.IntN(len(wholeKeys))]}
		payload := `"` + string(bytes.Repeat([]byte("x"), rng.IntN(200))) + `"`
		if e.isEnd = e.key != "" && rng.IntN(4) == 0; e.isEnd {
			payload = "null"
		}
		u.Appends = append(u.Appends, keyedEvent(e.id, e.key, payload))
		st.last++
		st.events[st.last] = e
	}
}

func (st *wholeState) drawChange(rng *rand.Rand) store.TopicChange {
	ch := store.TopicChange{Topic: "t"}
	below := func(reach uint64) uint64 {
		if rng.IntN(6) == 0 {
			return st.last // the head stays where it is
		}
		return st.last - min(st.last-1, rng.Uint64N(reach))
	}
	switch rng.IntN(4) {
	case 0:
		ch.Horizon, ch.ForgetIDs = below(60)+rng.Uint64N(2), rng.IntN(4) == 0
	case 1:
		for range 1 + rng.IntN(4) {
			ch.Erase = append(ch.Erase, below(60))
		}
		ch.ForgetIDs = rng.IntN(4) == 0
	default:
		ch.Compacted = below(30)
		ch.Tombstones = rng.Uint64N(ch.Compacted + 1)
	}
	if rng.IntN(3) == 0 {
		ch.Index = store.StartIndex
	}
	return ch
}

func (st *wholeState) drawGroup(u *store.Unit, rng *rand.Rand) {
	name := []string{"g", "h"}[rng.IntN(2)]
	g, ok := st.groups[name]
	if !ok {
		g = wholeGroup{store.GroupState{Epoch: 1}, make(map[uint64]string)}
	}
	g.state.Cursor += rng.Uint64N(st.last - g.state.Cursor + 1)
	ch := store.GroupChange{Topic: "t", Group: name, Create: !ok, State: g.state}
	part := store.GroupPart{Kind: 'p', Offset: rng.Uint64N(4)}
	if delete(g.parts, part.Offset); rng.IntN(3) > 0 {
		part.Value = fmt.Appendf(nil, "%d", rng.Uint32())
		g.parts[part.Offset] = string(part.Value)
	}
	ch.Parts = []store.GroupPart{part}
	st.groups[name] = g
	u.Groups = append(u.Groups, ch)
}
