package compaction

import (
	"testing"
	"testing/synctest"
	"time"

	"eventhub/admin"
)

// TestHeld: what keeps a mark from the head is said, and when that ends.
func TestHeld(t *testing.T) {
	inBubble(t, func(r *rig) {
		held := func(when string, want Held) {
			t.Helper()
			synctest.Wait()
			if got := r.runtime.Status("t"); got.Held != want || got.Running {
				t.Errorf("%s: %+v; want held %+v", when, got, want)
			}
		}
		if got := r.runtime.Status("t"); got != (Stats{}) {
			t.Errorf("before all: %+v", got)
		}
		const hour, day = time.Hour, 24 * time.Hour
		first := time.Now()
		r.publish("t", "a", "b")
		r.policies.put("t", &admin.Compaction{MinAge: admin.Period(hour), Grace: admin.Period(day), Hold: admin.Period(day)})
		r.runtime.Changed("t")
		held("young events", Held{From: 1, Until: first.Add(hour).UnixMilli()})
		time.Sleep(hour + time.Minute)
		held("old events", Held{})
		second := time.Now()
		r.group("t", "slow", 2)
		r.group("t", "slower", 1)
		r.publish("t", "a", "b")
		r.group("t", "slow", 3)
		time.Sleep(hour + time.Minute)
		held("a group that is not done", Held{From: 2, Group: "slower", Until: first.Add(day).UnixMilli()})
		r.group("t", "slower", 4)
		time.Sleep(time.Minute)
		held("another one", Held{From: 4, Group: "slow", Until: second.Add(day).UnixMilli()})
		time.Sleep(day)
		held("a group that is overtaken", Held{})
		if got := r.runtime.Status("t"); got.Events != 2 || got.LastPass == 0 {
			t.Errorf("in the end %+v; want 2 events removed", got)
		}
		r.runtime.Forget("t")
		if got := r.runtime.Status("t"); got != (Stats{}) {
			t.Errorf("of a deleted topic: %+v", got)
		}
	})
}
