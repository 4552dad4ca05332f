package bus

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/past"
	"eventhub/store"
)

// outdatedFilter is one that an earlier hub took, and this one refuses: its lists hold one another too deep.
var outdatedFilter = &eventhub.Filter{CEL: strings.Repeat("[", 40) + "1" + strings.Repeat("]", 40) + " == []"}

// outdatedSettings are those of a group that has it.
func outdatedSettings(t *testing.T) json.RawMessage {
	t.Helper()
	raw, err := encodeSettings(&eventhub.GroupOptions{Filter: outdatedFilter})
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// storeOutdated writes a group with a filter that no hub of this version would store, at the begin of a topic that is
// there. No bus is over the store.
func storeOutdated(t *testing.T, s store.Store, topic, group string) {
	t.Helper()
	life, err := past.Life(bg, s, topic)
	if err != nil {
		t.Fatal(err)
	}
	raw := strings.TrimSuffix(string(outdatedSettings(t)), "}") + `,"born":7}`
	commitUnit(t, s, store.Unit{Groups: []store.GroupChange{{
		Topic: topic, Life: life, Group: group, Create: true, State: store.GroupState{Epoch: 7, Settings: json.RawMessage(raw)},
	}}})
}

func commitUnit(t *testing.T, s store.Store, u store.Unit) {
	t.Helper()
	if err := s.Commit(bg, []*store.Unit{&u}, true); err != nil || u.Err != nil {
		t.Fatal(err, u.Err)
	}
}

// wantOutdated checks that an error says what is wrong with the group, and with its filter.
func wantOutdated(t *testing.T, what string, err error) {
	t.Helper()
	e := eventhub.AsError(err)
	if e == nil || e.Code != eventhub.CodeGroupMismatch || !strings.Contains(e.Message, `"old"`) || !strings.Contains(e.Message, "filter.cel at 1:1: ") {
		t.Errorf("%s: %v; want %s with the group and what is wrong with its filter", what, err, eventhub.CodeGroupMismatch)
	}
}

// TestOutdatedFilter: a group whose filter this hub does not take any more gives nothing to anybody, and says why.
// What does not ask the filter works, and so does all else.
func TestOutdatedFilter(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 3)
		r.subscribe(opts("t", "fine")).Take()
		r.stop()
		storeOutdated(t, r.store, "t", "old")
		r.start(Options{})
		for range 2 {
			synctest.Wait()
			checkOutdated(t, r.bus)
			r.restart()
		}
		equal(t, "of the other group", len(r.subscribe(opts("t", "fine")).Take()), 3)
		if err := r.bus.DeleteGroup(bg, "t", "old"); err != nil {
			t.Fatalf("remove the group: %v", err)
		}
		r.restart()
		equal(t, "of the group that is made again", len(r.subscribe(opts("t", "old")).Take()), 3)
	})
}

// checkOutdated tries everything that takes the group "old" of topic "t", and leaves it at the begin of the topic.
func checkOutdated(t *testing.T, b *Bus) {
	t.Helper()
	_, err := b.Subscribe(bg, opts("t", "old"), &inbox{})
	wantOutdated(t, "a member", err)
	_, err = b.Subscribe(bg, opts("*", "old"), &inbox{})
	wantOutdated(t, "a member by a pattern", err)
	if list, err := b.Patterns(bg, "old"); err != nil || len(list) != 0 {
		t.Errorf("the pattern that was refused: %v, %v", list, err)
	}
	_, err = b.Pull(bg, opts("t", "old"), time.Second)
	wantOutdated(t, "a pull", err)
	same := opts("t", "old")
	same.Filter = outdatedFilter
	_, err = b.Subscribe(bg, same, &inbox{})
	wantCode(t, err, eventhub.CodeBadRequest)

	info, err := b.Group(bg, "t", "old")
	if err != nil || info.Lag < 3 || info.BlockedBy == nil || info.BlockedBy.Kind != "filter" {
		t.Errorf("described as %+v, blocked by %+v, %v", info, info.BlockedBy, err)
	}
	if list, err := b.Groups(bg, admin.GroupQuery{}); err != nil || len(list) != 2 {
		t.Errorf("listed: %v, %v", list, err)
	}
	for _, start := range []eventhub.Start{eventhub.Latest, eventhub.Earliest} {
		if _, err := b.SeekGroup(bg, "t", "old", start, true); err != nil {
			t.Errorf("seek: %v", err)
		}
	}
	if err := errors.Join(b.PauseGroup(bg, "t", "old"), b.ResumeGroup(bg, "t", "old")); err != nil {
		t.Errorf("pause and resume: %v", err)
	}
	if outcomes, err := b.Settle(bg, "t", "old", eventhub.Settlement{Refs: []eventhub.Ref{{Lease: eventhub.Lease{Runtime: 1, Serial: 1}}}}); err != nil || outcomes[0] != eventhub.Stale {
		t.Errorf("an old lease: %v, %v", outcomes, err)
	}
}

// TestOutdatedFilterOfAPattern: it says so to who subscribes by the pattern, and brings the group to new topics, from which
// it goes with the pattern.
func TestOutdatedFilterOfAPattern(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("p.1", 1, 1)
		r.stop()
		storeOutdated(t, r.store, "p.1", "old")
		commitUnit(t, r.store, store.Unit{Patterns: []store.PatternChange{{Group: "old", Pattern: "p.*", Value: outdatedSettings(t)}}})
		r.start(Options{})
		r.publish("p.2", 1, 1)
		synctest.Wait()
		_, err := r.bus.Subscribe(bg, opts("p.*", "old"), &inbox{})
		wantOutdated(t, "by the pattern", err)
		_, err = r.bus.Subscribe(bg, opts("p.2", "old"), &inbox{})
		wantOutdated(t, "in a new topic", err)
		if err := r.bus.DeleteGroup(bg, "p.*", "old"); err != nil {
			t.Errorf("remove the pattern: %v", err)
		}
		if list, err := r.bus.Groups(bg, admin.GroupQuery{Group: "old"}); err != nil || len(list) != 0 {
			t.Errorf("left: %v, %v", list, err)
		}
		equal(t, "by the pattern that is made again", len(r.subscribe(opts("p.*", "old")).Take()), 2)
	})
}

// TestOutdatedFilterAndPublishes: one that waits for the group is refused, since the filter says which events the group
// has done; others are not.
func TestOutdatedFilterAndPublishes(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 1)
		r.stop()
		storeOutdated(t, r.store, "t", "old")
		r.start(Options{})
		w := r.enqueue(bg, eventhub.Publication{Events: inTopic("t", 1), WaitFor: []string{"old"}})
		synctest.Wait()
		wantOutdated(t, "a publish that waits for it", w.pubs[0].Err)
		equal(t, "published", len(r.events("t")), 1)
		r.publish("t", 2, 1)
	})
}

// TestOutdatedFilterAndRedrive: dead letters of the group are left alone, those of others are given back.
func TestOutdatedFilterAndRedrive(t *testing.T) {
	inBubble(t, func(r *rig) {
		for _, name := range []string{"old", "fine"} {
			o := opts("t", name)
			in := r.subscribe(o)
			if name == "old" {
				r.publish("t", 1, 1)
			}
			for _, d := range in.Take() {
				in.Settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}, byLease(d))
			}
			synctest.Wait()
		}
		r.stop()
		state := r.stored("t", "old")
		state.Settings = json.RawMessage(strings.Replace(string(state.Settings), "{", `{"filter":`+outdatedFilter.String()+",", 1))
		commitUnit(t, r.store, store.Unit{Groups: []store.GroupChange{{Topic: "t", Group: "old", State: state}}})
		r.start(Options{})
		synctest.Wait()
		result := r.redrive(redriveAll("t"))
		equal(t, "redriven, skipped", words(result.Redriven, result.Groups, result.Skipped), "1 map[fine:1] map[filter:1]")
	})
}

// TestOutdatedFilterInABackup: the copy has the group as the store has it.
func TestOutdatedFilterInABackup(t *testing.T) {
	dir := t.TempDir()
	s := openDir(t, filepath.Join(dir, "store"))
	b := over(t, s)
	for range 3 {
		if _, err := b.Publish(bg, eventhub.Event{Topic: "t", Payload: []byte(`1`)}); err != nil {
			t.Fatal(err)
		}
	}
	took := make(chan eventhub.Delivery, 3)
	if _, err := b.Subscribe(bg, opts("t", "fine"), sink(took)); err != nil {
		t.Fatal(err)
	}
	closeAll(t, b)
	storeOutdated(t, s, "t", "old")
	b = over(t, s)
	checkOutdated(t, b)
	if err := b.Backup(context.Background(), filepath.Join(dir, "copy")); err != nil {
		t.Fatal(err)
	}
	closeAll(t, b, s)
	s = openDir(t, filepath.Join(dir, "copy"))
	b = over(t, s)
	checkOutdated(t, b)
	if err := b.DeleteGroup(bg, "t", "old"); err != nil {
		t.Errorf("remove the group: %v", err)
	}
	closeAll(t, b, s)
}

func over(t *testing.T, s store.Store) *Bus {
	t.Helper()
	b, err := New(Options{Store: s})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func closeAll(t *testing.T, all ...interface{ Close() error }) {
	t.Helper()
	for _, c := range all {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}
