package retention

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/store"
)

// TestAge: an event goes when it has come of age, at most a 256th of the age later, and
// nothing younger does. Then nothing runs.
func TestAge(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.put("t", admin.Retention{Age: admin.Period(time.Hour)})
		for range 6 {
			r.publish("t", 1, 1)
			r.pass(10 * time.Minute)
		}
		r.wantKept("t", 1, 6)
		r.pass(15 * time.Second)
		r.wantKept("t", 2, 6)
		r.pass(24 * time.Minute)
		r.wantKept("t", 4, 6)
		r.pass(time.Hour)
		r.wantKept("t", 1, 0)
		before := r.runtime.Stats().Rounds
		r.pass(1000 * time.Hour)
		if n := r.runtime.Stats().Rounds - before; n != 0 {
			t.Errorf("%d rounds over a topic that has no events; want none", n)
		}
		r.publish("t", 1, 1)
		r.pass(30 * time.Minute)
		r.wantKept("t", 7, 7)
		r.pass(31 * time.Minute)
		r.wantKept("t", 8, 7)
	})
}

// TestCount: what is above the cap goes at once where it is much, and within settle where it
// is little; the newest events stay.
func TestCount(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.put("t", admin.Retention{Count: 640})
		r.publish("t", 640, 1)
		r.pass(time.Hour)
		r.wantKept("t", 1, 640)
		r.publish("t", 3, 1)
		r.pass(settle / 2)
		r.wantKept("t", 1, 643)
		r.pass(settle/2 + 2*Every)
		r.wantKept("t", 4, 643)
		r.publish("t", 10, 1)
		r.pass(2 * Every)
		r.wantKept("t", 14, 653)
		if s := r.runtime.Stats().Topics["t"]; s.Events != 13 || s.Bytes == 0 {
			t.Errorf("%+v were removed; want 13 events", s)
		}
	})
}

// TestBytes: the largest number of newest events stays whose records fit, and their ids are
// forgotten with the others.
func TestBytes(t *testing.T) {
	inBubble(t, func(r *rig) {
		size := uint64(len(r.publish("t", 1, 500)[0].Record))
		r.put("t", admin.Retention{Bytes: admin.Size(10*size + size/2)})
		r.publish("t", 20, 500)
		r.pass(time.Minute)
		r.wantKept("t", 12, 21)
		if len(r.reclaimed) == 0 || !r.reclaimed[0].ForgetIDs {
			t.Errorf("trims %+v; want ids forgotten", r.reclaimed)
		}
	})
}

// TestStored: a policy that comes, or is lowered, counts for what is stored. One that goes
// leaves all.
func TestStored(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 100, 1)
		r.put("t", admin.Retention{Count: 50})
		r.pass(2 * Every)
		r.wantKept("t", 51, 100)
		r.put("t", admin.Retention{Count: 20, Age: admin.Period(time.Hour)})
		r.pass(2 * Every)
		r.wantKept("t", 81, 100)
		r.put("t", admin.Retention{})
		r.publish("t", 100, 1)
		r.pass(1000 * time.Hour)
		r.wantKept("t", 81, 200)
		r.put("t", admin.Retention{Age: admin.Period(time.Hour)})
		r.pass(2 * Every)
		r.wantKept("t", 201, 200)
	})
}

// TestCountedOnce: what a topic keeps is counted when it gets a cap; after that a pass reads
// what it removes, and a commit nothing. Removals by others have it counted again.
func TestCountedOnce(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 100, 1)
		r.put("t", admin.Retention{Count: 100})
		r.pass(time.Minute)
		counted := r.measures.Load()
		for range 63 {
			r.publish("t", 1, 1)
		}
		r.pass(time.Minute)
		r.wantKept("t", 64, 163)
		// One call finds the horizon, one counts what is below it.
		if n := r.measures.Load() - counted; n > 4 {
			t.Errorf("the store was asked %d times for two passes; want at most 4", n)
		}
		r.remove(store.TopicChange{Topic: "t", Horizon: 70, Erase: []uint64{100, 101}})
		r.pass(time.Minute)
		r.publish("t", 10, 1)
		r.pass(time.Minute)
		if offsets, _ := r.kept("t"); len(offsets) != 100 || offsets[0] != 72 {
			t.Errorf("%d events from %d are kept; want 100 from 72", len(offsets), offsets[0])
		}
	})
}

// TestLives: a policy goes on with the next topic of a name, and what was counted of the one
// before does not count.
func TestLives(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.put("t", admin.Retention{Count: 10, Age: admin.Period(time.Hour)})
		r.publish("t", 12, 1)
		r.deleteTopic("t")
		first := r.publish("t", 9, 1)[0].Offset
		r.pass(time.Minute)
		r.wantKept("t", first, first+8)
		r.publish("t", 3, 1)
		r.pass(time.Minute)
		r.wantKept("t", first+2, first+11)
		r.pass(time.Hour)
		r.wantKept("t", first+12, first+11)
	})
}

// TestLivesBeside: a topic that is deleted, and created again, in the middle of a pass keeps what the next life has to be
// looked at for.
func TestLivesBeside(t *testing.T) {
	for name, isGoneFirst := range map[string]bool{"before the look": true, "after the look": false} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.put("t", admin.Retention{Age: admin.Period(time.Hour)})
				r.publish("t", 3, 1)
				r.pass(time.Minute)
				var first uint64
				looks := func() func() {
					if isGoneFirst {
						r.deleteTopic("t")
					}
					return func() {
						if !isGoneFirst {
							r.deleteTopic("t")
						}
						first = r.publish("t", 2, 1)[0].Offset
					}
				}
				r.looks.Store(&looks)
				r.pass(time.Hour)
				r.wantKept("t", first, first+1)
				if first != 4 {
					t.Fatalf("the next life begins at %d; no pass has looked", first)
				}
				r.pass(2 * time.Hour)
				r.wantKept("t", first+2, first+1)
			})
		})
	}
}

// TestNoPolicies: where no topic has a policy nothing is looked up and nothing runs.
func TestNoPolicies(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.pass(time.Minute)
		asks, rounds := r.policies.asks, r.runtime.Stats().Rounds
		r.publish("t", 100, 1)
		r.pass(time.Hour)
		if r.policies.asks != asks || r.runtime.Stats().Rounds != rounds || len(r.runtime.entries) > 2 {
			t.Errorf("%d questions, %d rounds and %d topics; want none", r.policies.asks-asks, r.runtime.Stats().Rounds-rounds, len(r.runtime.entries))
		}
	})
}

// TestRounds: the trims of many topics go in few commits, at most every second.
func TestRounds(t *testing.T) {
	inBubble(t, func(r *rig) {
		names := make([]string, 300)
		for i := range names {
			names[i] = "t" + strings.Repeat("x", i%3) + string(rune('a'+i%26)) + time.Duration(i).String()
			r.put(names[i], admin.Retention{Count: 1})
		}
		for range 5 {
			for _, name := range names {
				r.publish(name, 2, 1)
			}
			r.pass(100 * time.Millisecond)
		}
		r.pass(time.Minute)
		for _, name := range names {
			r.wantKept(name, 10, 10)
		}
		if r.commits > 6 {
			t.Errorf("%d commits of trims; want at most 6", r.commits)
		}
	})
}

// TestClockAhead: a wall clock that jumps ahead costs at most the events of an hour a minute,
// and is warned of. When it is right again everything is as before.
func TestClockAhead(t *testing.T) {
	inBubble(t, func(r *rig) {
		const age = 100 * time.Hour
		r.put("t", admin.Retention{Age: admin.Period(age)})
		for range 100 {
			r.publish("t", 1, 1)
			r.pass(time.Hour)
		}
		r.set.Store(int64(365 * 24 * time.Hour))
		before, _ := r.kept("t")
		r.publish("t", 1, 1)
		r.pass(10 * time.Minute)
		after, _ := r.kept("t")
		if gone := len(before) + 1 - len(after); gone < 5 || gone > 12 {
			t.Errorf("%d hours of events went in ten minutes; want about ten", gone)
		}
		if held := r.runtime.Stats().Held; held < 300*24*time.Hour {
			t.Errorf("the clock of ages is held back by %s; want most of a year", held)
		}
		if n := strings.Count(r.said.String(), "level=WARN"); n != 1 {
			t.Errorf("%d warnings; want one: %s", n, &r.said)
		}
		r.set.Store(0)
		r.pass(30 * time.Minute)
		now, _ := r.kept("t")
		if len(now) < len(after)-1 {
			t.Errorf("%d events are left after the clock was set back, of %d", len(now), len(after))
		}
		if held := r.runtime.Stats().Held; held != 0 {
			t.Errorf("the clock of ages is held back by %s", held)
		}
	})
}

// TestClockBack: a clock that goes back removes nothing, and events of the time before go
// when they have come of age.
func TestClockBack(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.put("t", admin.Retention{Age: admin.Period(time.Hour)})
		r.publish("t", 10, 1)
		r.set.Store(-int64(24 * time.Hour))
		r.pass(90 * time.Minute)
		r.wantKept("t", 1, 10)
		r.pass(25 * time.Hour)
		r.wantKept("t", 11, 10)
	})
}

// TestStartAfterAWhile: what has come of age while the hub was stopped goes at the pace of a
// clock that is ahead, and what comes after the start at its time.
func TestStartAfterAWhile(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.put("t", admin.Retention{Age: admin.Period(30 * time.Second)})
		r.put("u", admin.Retention{Age: admin.Period(100 * time.Hour)})
		for range 100 {
			r.publish("u", 1, 1)
			r.pass(time.Hour)
		}
		r.publish("t", 5, 1)
		r.stop()
		time.Sleep(7 * 24 * time.Hour)
		r.start()
		r.pass(time.Minute)
		r.wantKept("t", 6, 5)
		if left, _ := r.kept("u"); len(left) < 95 {
			t.Errorf("%d of 100 events are left a minute after the start", len(left))
		}
		r.publish("t", 1, 1)
		r.pass(40 * time.Second)
		r.wantKept("t", 7, 6)
		r.pass(2 * time.Hour)
		if left, _ := r.kept("u"); len(left) != 0 {
			t.Errorf("%d events are left two hours after the start", len(left))
		}
	})
}

// TestImportedAges: an event of the past that comes with its time goes when it comes.
func TestImportedAges(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.put("t", admin.Retention{Age: admin.Period(time.Hour)})
		r.pass(time.Minute)
		a := r.publish("other", 1, 1)[0]
		r.commitUnit(store.Unit{Appends: []store.Append{
			{Topic: "t", ID: string(a.Record.ID()), Record: a.Record, KeepTime: time.Now().Add(-2 * time.Hour).UnixMilli()}}})
		r.pass(10 * time.Second)
		r.wantKept("t", 2, 1)
	})
}

// TestErrors: a topic that cannot be counted keeps everything and is tried again; the others
// go on.
func TestErrors(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.broken.Store(true)
		r.put("t", admin.Retention{Count: 5})
		r.publish("t", 10, 1)
		r.pass(time.Second)
		r.pass(retryAfter * 3 / 2)
		r.wantKept("t", 1, 10)
		r.broken.Store(false)
		r.pass(retryAfter)
		r.wantKept("t", 6, 10)
		if n := strings.Count(r.said.String(), "level=ERROR"); n == 0 || n > 4 {
			t.Errorf("%d errors were logged: %s", n, &r.said)
		}
	})
}

// TestRefusedTrims: a trim that is not taken is tried again after a rest, whatever else there is to
// do in its topic.
func TestRefusedTrims(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.marks = func(_ context.Context, from uint64) (uint64, bool, error) { return min(from+3, 11), from == 11, nil }
		r.put("by.count", admin.Retention{Count: 5})
		r.put("by.age", admin.Retention{Age: admin.Period(time.Minute)})
		r.publish("orders.dlq", 1, 1)
		for _, topic := range []string{"by.count", "by.age", admin.RedriveTopic} {
			r.publish(topic, 10, 1)
		}
		r.refusing.Store(true)
		r.runtime.Look(admin.RedriveTopic)
		r.pass(time.Minute + 2*retryAfter)
		for _, topic := range []string{"by.count", "by.age", admin.RedriveTopic} {
			if n := strings.Count(r.said.String(), "topic="+topic+" "); n < 2 || n > 4 {
				t.Errorf("%d trims of %s were tried: %s", n, topic, &r.said)
			}
			r.wantKept(topic, 1, 10)
		}
		r.refusing.Store(false)
		r.pass(retryAfter)
		r.wantKept("by.count", 6, 10)
		r.wantKept("by.age", 11, 10)
		r.wantKept(admin.RedriveTopic, 11, 10)
	})
}

// TestHubsOwn: system.audit keeps a number of events whatever the settings say, and
// system.redrive what the marks say.
func TestHubsOwn(t *testing.T) {
	inBubble(t, func(r *rig) {
		first := uint64(1)
		r.marks = func(_ context.Context, from uint64) (uint64, bool, error) { return max(first, from), true, nil }
		r.put("orders.dlq", admin.Retention{Count: 2})
		r.publish(admin.RedriveTopic, 10, 1)
		r.publish("system.other", 10, 1)
		r.publish("orders.dlq", 2, 1)
		r.pass(time.Minute)
		r.wantKept(admin.RedriveTopic, 1, 10)
		first = 4
		r.publish("orders.dlq", 2, 1)
		r.pass(time.Minute)
		r.wantKept("orders.dlq", 3, 4)
		r.wantKept(admin.RedriveTopic, 4, 10)
		r.wantKept("system.other", 1, 10)
		defer func(was admin.Retention) { auditCap = was }(auditCap)
		auditCap = admin.Retention{Count: 5}
		r.publish(admin.AuditTopic, 10, 1)
		r.runtime.Look(admin.AuditTopic)
		r.pass(time.Minute)
		r.wantKept(admin.AuditTopic, 6, 10)
	})
}

// TestPlan: a plan says what a policy would remove, and removes nothing.
func TestPlan(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 100, 1)
		r.pass(time.Hour)
		r.publish("t", 10, 1)
		r.remove(store.TopicChange{Topic: "t", Horizon: 11, Erase: []uint64{50}})
		info, err := r.store.Topic(context.Background(), "t")
		if err != nil {
			t.Fatal(err)
		}
		for _, tt := range []struct {
			policy  admin.Retention
			horizon uint64
			removed uint64
		}{
			{admin.Retention{}, 11, 0},
			{admin.Retention{Count: 99}, 11, 0},
			{admin.Retention{Count: 50}, 61, 49},
			{admin.Retention{Age: admin.Period(time.Minute)}, 101, 89},
			{admin.Retention{Age: admin.Period(time.Minute), Count: 5}, 106, 94},
			{admin.Retention{Bytes: 1}, 111, 99},
		} {
			p, err := r.runtime.Plan(context.Background(), info, tt.policy)
			if err != nil {
				t.Fatal(err)
			}
			if p.From != 11 || p.Horizon != tt.horizon || p.Removed.Events != tt.removed || p.Kept.Events != 99-tt.removed || (p.Removed.Bytes == 0) != (tt.removed == 0) {
				t.Errorf("of %+v: %+v; want horizon %d, %d removed", tt.policy, p, tt.horizon, tt.removed)
			}
		}
		if offsets, _ := r.kept("t"); len(offsets) != 99 {
			t.Errorf("%d events are left; want all 99", len(offsets))
		}
	})
}

// TestBelow: events are counted exactly, also over huge gaps, or up to where it got.
func TestBelow(t *testing.T) {
	inBubble(t, func(r *rig) {
		at := []uint64{1, 2, 3, 1000, 1001, 1 << 40, eventhub.MaxOffset / 4}
		var u store.Unit
		for i, a := range r.publish("other", len(at), 1) {
			u.Appends = append(u.Appends, store.Append{Topic: "t", ID: string(a.Record.ID()), Record: a.Record, KeepOffset: at[i]})
		}
		size := uint64(len(u.Appends[0].Record))
		r.commitUnit(u)
		for _, tt := range []struct{ from, to, want uint64 }{
			{1, 1, 0}, {1, 4, 3}, {2, 1000, 2}, {1, 1001, 4}, {4, 1000, 0}, {1, 1 << 41, 6}, {1000, 1 << 50, 3}, {5, 4, 0},
		} {
			u, reached, err := Below(context.Background(), r.store, "t", tt.from, tt.to, 1000)
			if err != nil || u.Events != tt.want || u.Bytes != tt.want*size || reached < tt.to {
				t.Errorf("from %d to %d: %+v up to %d, %v; want %d events", tt.from, tt.to, u, reached, err, tt.want)
			}
		}
	})
}

// TestChangedBeside: settings change while the goroutine, woken for nothing, looks for changes.
func TestChangedBeside(t *testing.T) {
	inBubble(t, func(r *rig) {
		var changes sync.WaitGroup
		for range 4 {
			changes.Go(func() {
				for i := range 500 {
					r.runtime.hint()
					r.runtime.Changed(string(rune('a' + i%7)))
					runtime.Gosched()
				}
			})
		}
		changes.Wait()
	})
}
