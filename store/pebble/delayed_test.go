package pebble

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"eventhub/internal/faultfs"
	"eventhub/store"

	"github.com/cockroachdb/pebble/v2/vfs"
)

func newDelay(topic, id string, at int64) store.Delay {
	return store.Delay{Topic: topic, ID: id, At: at, Record: newRecord(topic, id, 0)}
}

func mustDelay(t testing.TB, s *Store, sync bool, delays ...store.Delay) []store.Delay {
	t.Helper()
	u := &store.Unit{Delays: delays}
	if err := s.Commit(context.Background(), []*store.Unit{u}, sync); err != nil || u.Err != nil {
		t.Fatalf("Commit: %v, %v", err, u.Err)
	}
	return u.Delays
}

func mustDelayed(t testing.TB, s *Store) []store.Delayed {
	t.Helper()
	list, err := s.Delayed(context.Background(), -1, 0, 1<<62, 1<<30, 1<<40)
	if err != nil {
		t.Fatalf("Delayed: %v", err)
	}
	return list
}

func delayID(committer int, serial uint64) string {
	return fmt.Sprintf("%d-%d-delayed-b", committer, serial)
}

// addDelays delays an event, moves or cancels that of the unit before, and writes
// the serial into the pattern, the settings and the note of the committer's group.
func (a *attempt) addDelays(rng *rand.Rand) {
	id := delayID(a.committer, a.serial)
	a.unit.Delays = []store.Delay{{Topic: "b", ID: id, FreshID: rng.IntN(2) == 0, Key: "k",
		At: int64(rng.IntN(3)), Record: newRecord("b", id, rng.IntN(3000))}}
	a.unit.Patterns = []store.PatternChange{{Group: fmt.Sprint("g", a.committer), Pattern: "b.*", Value: fmt.Append(nil, a.serial)}}
	a.unit.Settings = []store.SettingChange{{Name: fmt.Sprint("g", a.committer), Value: fmt.Append(nil, a.serial)}}
	a.unit.Notes = []store.NoteChange{{Name: fmt.Sprint("g", a.committer), Value: fmt.Append(nil, a.serial)}}
	if a.serial == 1 || a.serial%3 == 0 {
		return
	}
	last := delayID(a.committer, a.serial-1)
	a.unit.Cancels = []store.Cancel{{Topic: "b", ID: last}}
	if a.serial%3 == 1 {
		a.unit.Appends = append(a.unit.Appends, given("b", last))
		a.added = append(a.added, last)
	}
}

// checkDelays: the delayed events and patterns are those that the units up to the epochs of
// the committers' groups left, and no Seq that was shown is given again.
func checkDelays(t *testing.T, s *Store, attempts, receipts []*attempt) {
	t.Helper()
	want := make(map[string]string) // records by id
	epochs := make(map[string]uint64)
	for _, a := range attempts {
		g := a.unit.Groups[0]
		state, err := s.Group(context.Background(), g.Topic, g.Group)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			t.Fatal(err)
		}
		if a.serial > state.Epoch {
			continue
		}
		epochs[g.Group] = state.Epoch
		for _, up := range a.unit.Cancels {
			delete(want, up.ID)
		}
		for _, p := range a.unit.Delays {
			want[p.ID] = string(p.Record)
		}
	}
	for _, p := range mustDelayed(t, s) {
		if want[p.ID] != string(p.Record) || p.Topic != "b" || p.Key != "k" {
			t.Errorf("the delayed event of %q reads %.80q; want %.80q", p.ID, p.Record, want[p.ID])
		}
		delete(want, p.ID)
	}
	for id := range want {
		t.Errorf("the delayed event of %q is lost", id)
	}
	checkPatterns(t, s, epochs)
	var shown uint64
	for _, r := range receipts {
		shown = max(shown, r.unit.Delays[0].Seq)
	}
	if p := mustDelay(t, s, true, newDelay("b", "new-delayed", 1<<40)); p[0].Seq <= shown {
		t.Errorf("a new delayed event got number %d; %d was shown before", p[0].Seq, shown)
	}
}

func checkPatterns(t *testing.T, s *Store, epochs map[string]uint64) {
	t.Helper()
	patterns, err := s.ListPatterns(context.Background())
	if err != nil || len(patterns) != len(epochs) {
		t.Errorf("the patterns are %v, %v; want those of %v", patterns, err, epochs)
	}
	for _, p := range patterns {
		if string(p.Value) != fmt.Sprint(epochs[p.Group]) {
			t.Errorf("the pattern of %s is of unit %s; the group is at %d", p.Group, p.Value, epochs[p.Group])
		}
	}
	settings, err := s.ListSettings(context.Background())
	if err != nil || len(settings) != len(epochs) {
		t.Errorf("the settings are %v, %v; want those of %v", settings, err, epochs)
	}
	for _, set := range settings {
		if string(set.Value) != fmt.Sprint(epochs[set.Name]) {
			t.Errorf("the settings of %s are of unit %s; the group is at %d", set.Name, set.Value, epochs[set.Name])
		}
	}
	notes, err := s.ListNotes(context.Background())
	if err != nil || len(notes) != len(epochs) {
		t.Errorf("the notes are %v, %v; want those of %v", notes, err, epochs)
	}
	for _, n := range notes {
		if string(n.Value) != fmt.Sprint(epochs[n.Name]) {
			t.Errorf("the note of %s is of unit %s; the group is at %d", n.Name, n.Value, epochs[n.Name])
		}
	}
}

// TestDelayNumbersAreNotReused: not after a power loss that took delayed events away which
// readers have seen, and not when the reserve is used up.
func TestDelayNumbersAreNotReused(t *testing.T) {
	mem := vfs.NewCrashableMem()
	s := mustOpen(t, onMem(t, mem))
	var last uint64
	lost := 0
	for round := range 3 {
		for i := range 20 {
			if i == 5 {
				s.lastDelay += reserveAhead - 7 // as if so many had been delayed
			}
			p := mustDelay(t, s, false, newDelay("t", fmt.Sprint("unsynced-", round, i), 1))
			if p[0].Seq <= last {
				t.Errorf("round %d: a delayed event got number %d; %d was given before", round, p[0].Seq, last)
			}
			last = p[0].Seq
		}
		image := afterPowerLoss(mem)
		shown := len(mustDelayed(t, s))
		mustClose(t, s)
		mem = image
		s = mustOpen(t, onMem(t, mem))
		lost += shown - len(mustDelayed(t, s))
	}
	mustClose(t, s)
	if lost == 0 {
		t.Error("nothing was lost; this shows nothing")
	}
}

// TestDelayReserveIsCheap: only one commit in many writes the floor, and with it
// waits for an fsync that nobody asked for.
func TestDelayReserveIsCheap(t *testing.T) {
	s := mustOpen(t, onMem(t, vfs.NewMem()))
	defer mustClose(t, s)
	mustDelay(t, s, false, newDelay("t", "first", 1))
	floor := s.delayFloor
	for i := range 100 {
		mustDelay(t, s, i%2 == 0, newDelay("t", fmt.Sprint(i), 1))
	}
	if s.delayFloor != floor || floor != reserveAhead+1 {
		t.Errorf("the floor went from %d to %d", floor, s.delayFloor)
	}
	mustDelay(t, s, false, newDelay("t", "unsynced", 1))
	if !s.unsynced {
		t.Error("an unsynced commit below the floor was synced")
	}
}

// TestDamagedDelays: what is no delayed event is reported with its place, and not taken for
// one.
func TestDamagedDelays(t *testing.T) {
	good := newDelay("t", "x", 5)
	for _, tt := range []struct {
		name       string
		key, value []byte
		want       string
	}{
		{"a short key", []byte("d123"), nil, "has 3 bytes; want 16"},
		{"no value", appendDelayKey(nil, 5, 1), nil, "the delayed event at (5, 1)"},
		{"a length that is too long", appendDelayKey(nil, 5, 1), []byte{200, 1, 'x'}, "the delayed event at (5, 1)"},
		{"no record", appendDelayKey(nil, 5, 1), []byte{1, 't', 0, '{', '}'}, "the delayed event at (5, 1)"},
		{"no key's end", appendDelayKey(nil, 5, 1), append([]byte{1, 't', 0xff}, good.Record...), "the delayed event at (5, 1)"},
		{"number 0", appendDelayKey(nil, 5, 0), append([]byte{1, 't', 0}, good.Record...), "(5, 0)"},
	} {
		s := mustOpen(t, onMem(t, vfs.NewMem()))
		if err := s.db.Set(tt.key, tt.value, nil); err != nil {
			t.Fatal(err)
		}
		list, err := s.Delayed(context.Background(), -1, 0, 1<<62, 10, 10)
		if err == nil || !strings.Contains(err.Error(), tt.want) || len(list) > 0 {
			t.Errorf("%s: Delayed = %v, %v; want %q in the error", tt.name, list, err, tt.want)
		}
		mustClose(t, s)
	}
}

// TestBrokenStoreHidesDelays: what a failed commit left in Pebble is shown by no
// read.
func TestBrokenStoreHidesDelays(t *testing.T) {
	fault := &failing{match: isWALSync}
	o := onMem(t, faultfs.Wrap(vfs.NewMem(), fault))
	o.Fatal = func(error) {}
	s := mustOpen(t, o)
	mustDelay(t, s, true, newDelay("t", "old", 1))
	fault.on.Store(true)
	u := &store.Unit{Delays: []store.Delay{newDelay("t", "new", 2)}, Patterns: []store.PatternChange{{Group: "g", Pattern: "*"}},
		Settings: []store.SettingChange{{Name: "t"}}, Notes: []store.NoteChange{{Name: "n"}}}
	if err := s.Commit(context.Background(), []*store.Unit{u}, true); !errors.Is(err, store.ErrBroken) {
		t.Fatalf("Commit: %v; want store.ErrBroken", err)
	}
	fault.on.Store(false)
	if list, err := s.Delayed(context.Background(), -1, 0, 9, 9, 9); !errors.Is(err, store.ErrBroken) {
		t.Errorf("Delayed = %v, %v; want store.ErrBroken", list, err)
	}
	if p, err := s.FindDelayed(context.Background(), "t", "new"); !errors.Is(err, store.ErrBroken) {
		t.Errorf("FindDelayed = %v, %v; want store.ErrBroken", p, err)
	}
	if list, err := s.ListPatterns(context.Background()); !errors.Is(err, store.ErrBroken) {
		t.Errorf("ListPatterns = %v, %v; want store.ErrBroken", list, err)
	}
	if list, err := s.ListSettings(context.Background()); !errors.Is(err, store.ErrBroken) {
		t.Errorf("ListSettings = %v, %v; want store.ErrBroken", list, err)
	}
	if list, err := s.ListNotes(context.Background()); !errors.Is(err, store.ErrBroken) {
		t.Errorf("ListNotes = %v, %v; want store.ErrBroken", list, err)
	}
	_ = s.Close()
}
