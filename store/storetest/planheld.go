package storetest

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"eventhub/store"
)

// testPlanHeldSync reads plans and patterns that a commit waiting for its fsync
// adds and removes. The readers may wait; they must not see it.
func testPlanHeldSync(t *testing.T, s *env) {
	if s.backend.HoldSync == nil {
		return
	}
	old := s.plan(t, planFor("t", "old", 10))
	u := move("t", "old")
	u.Plans = []store.Plan{planFor("t", "new", 20), planFor("created", "new", 5)}
	u.Patterns = []store.PatternChange{{Group: "g", Pattern: "p", Value: []byte(`1`)}}
	looks := []func() any{
		func() any { return s.plannedFrom(t, 0, 0, endOfTime, noLimit, noLimit) },
		func() any { return s.findPlan(t, "t", "old") },
		func() any { return s.findPlan(t, "t", "new") },
		func() any { return s.findPlan(t, "created", "new") },
		func() any { return s.patterns(t) },
	}
	none := (*store.Planned)(nil)
	isOld := asRead(old[0])
	before := []any{[]store.Planned{isOld}, &isOld, none, none, []store.PatternInfo(nil)}
	s.lookHeld(t, u, looks, before)
	n, b := asRead(u.Plans[0]), asRead(u.Plans[1])
	after := []any{[]store.Planned{b, n}, none, &n, &b, patternsOf(pattern("g", "p", `1`))}
	for i, look := range looks {
		same(t, fmt.Sprintf("look %d after the commit", i), after[i], look())
	}
	// A commit that only removes, of plans and then of patterns.
	s.lookHeld(t, unplans("created", "new"), looks, after)
	after[0], after[3] = []store.Planned{n}, none
	s.lookHeld(t, &store.Unit{Patterns: []store.PatternChange{noPattern("g", "p")}}, looks, after)
	after[4] = []store.PatternInfo(nil)
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

// testPlanOrEvent reads while a mover works: whoever looks finds each event
// planned or in the log, and never in both.
func testPlanOrEvent(t *testing.T, s *env) {
	if !s.Capabilities().AtomicUnits {
		return
	}
	const events, readers = 120, 3
	id := func(i int) string { return fmt.Sprint("id-", i) }
	var ps []store.Plan
	for i := range events {
		ps = append(ps, planFor("t", id(i), int64(i)))
	}
	s.plan(t, ps...)
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
				planned := s.findPlan(t, "t", id(i)) != nil
				after := s.find(t, "t", id(i)) != 0
				if before && planned || !planned && !after {
					t.Errorf("event %d: in the log %v, planned %v, in the log %v", i, before, planned, after)
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
	same(t, "plans", 0, len(s.allPlanned(t)))
}
