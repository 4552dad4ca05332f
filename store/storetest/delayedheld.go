package storetest

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"eventhub/store"
)

// testDelayHeldSync reads delayed events, patterns, settings and notes that a commit waiting for its
// fsync adds and removes. The readers may wait; they must not see it.
func testDelayHeldSync(t *testing.T, s *env) {
	if s.backend.HoldSync == nil {
		return
	}
	old := s.delay(t, delayFor("t", "old", 10))
	u := move("t", "old")
	u.Delays = []store.Delay{delayFor("t", "new", 20), delayFor("created", "new", 5)}
	u.Patterns = []store.PatternChange{{Group: "g", Pattern: "p", Value: []byte(`1`)}}
	u.Settings = []store.SettingChange{setting("t.*", `2`)}
	u.Notes = []store.NoteChange{note("n", "3")}
	looks := []func() any{
		func() any { return s.delayedFrom(t, 0, 0, endOfTime, noLimit, noLimit) },
		func() any { return s.findDelay(t, "t", "old") },
		func() any { return s.findDelay(t, "t", "new") },
		func() any { return s.findDelay(t, "created", "new") },
		func() any { return s.patterns(t) },
		func() any { return s.settings(t) },
		func() any { return s.notes(t) },
	}
	none := (*store.Delayed)(nil)
	isOld := asRead(old[0])
	before := []any{[]store.Delayed{isOld}, &isOld, none, none, []store.PatternInfo(nil), []store.SettingInfo(nil), []store.NoteInfo(nil)}
	s.lookHeld(t, u, looks, before)
	n, b := asRead(u.Delays[0]), asRead(u.Delays[1])
	after := []any{[]store.Delayed{b, n}, none, &n, &b, patternsOf(pattern("g", "p", `1`)), settingsOf(setting("t.*", `2`)), notesOf(note("n", "3"))}
	for i, look := range looks {
		same(t, fmt.Sprintf("look %d after the commit", i), after[i], look())
	}
	// A commit that only removes, of delayed events, then of patterns, then of settings, then of notes.
	s.lookHeld(t, cancels("created", "new"), looks, after)
	after[0], after[3] = []store.Delayed{n}, none
	s.lookHeld(t, &store.Unit{Patterns: []store.PatternChange{noPattern("g", "p")}}, looks, after)
	after[4] = []store.PatternInfo(nil)
	s.lookHeld(t, &store.Unit{Settings: []store.SettingChange{noSetting("t.*")}}, looks, after)
	after[5] = []store.SettingInfo(nil)
	s.lookHeld(t, &store.Unit{Notes: []store.NoteChange{noNote("n")}}, looks, after)
	after[6] = []store.NoteInfo(nil)
	for i, look := range looks {
		same(t, fmt.Sprintf("look %d in the end", i), after[i], look())
	}
}

// lookHeld commits the unit and looks while it waits for its fsync: those looks
// that do not wait see what was before.
func (s *env) lookHeld(t *testing.T, u *store.Unit, looks []func() any, before []any) {
	t.Helper()
	reached, release := s.backend.HoldSync()
	done := make(chan error, 1)
	go func() { done <- s.Commit(context.Background(), []*store.Unit{u}, true) }()
	<-reached
	early := make([]any, len(looks))
	var mu sync.Mutex
	var readers sync.WaitGroup
	for i, look := range looks {
		readers.Go(func() {
			seen := look()
			mu.Lock()
			defer mu.Unlock()
			early[i] = seen
		})
	}
	for range partLooks {
		same(t, "head during the commit", uint64(0), s.head(t, "none"))
		runtime.Gosched()
	}
	mu.Lock()
	for i, seen := range early {
		if seen != nil {
			same(t, fmt.Sprintf("look %d during the commit", i), before[i], seen)
		}
	}
	mu.Unlock()
	release()
	readers.Wait()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	applied(t, u)
}

// testDelayOrEvent reads while a mover works: whoever looks finds each event
// delayed or in the log, and never in both.
func testDelayOrEvent(t *testing.T, s *env) {
	if !s.Capabilities().AtomicUnits {
		return
	}
	const events, readers = 120, 3
	id := func(i int) string { return fmt.Sprint("id-", i) }
	var ps []store.Delay
	for i := range events {
		ps = append(ps, delayFor("t", id(i), int64(i)))
	}
	s.delay(t, ps...)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for r := range readers {
		wg.Go(func() {
			for i := r; ; i = (i + 1) % events {
				select {
				case <-stop:
					return
				default:
				}
				before := s.find(t, "t", id(i)) != 0
				delayed := s.findDelay(t, "t", id(i)) != nil
				after := s.find(t, "t", id(i)) != 0
				if before && delayed || !delayed && !after {
					t.Errorf("event %d: in the log %v, delayed %v, in the log %v", i, before, delayed, after)
					return
				}
			}
		})
	}
	for i := range events {
		if err := s.Commit(context.Background(), []*store.Unit{move("t", id(i))}, i%4 == 0); err != nil {
			t.Errorf("Commit: %v", err)
			break
		}
	}
	close(stop)
	wg.Wait()
	same(t, "events", events, len(s.readAll(t, "t")))
	same(t, "delayed events", 0, len(s.allDelayed(t)))
}
