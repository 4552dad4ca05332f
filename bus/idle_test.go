package bus

import (
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/store"
)

// expire has groups of a name's topics end that were idle for so long.
func (r *rig) expire(name string, after time.Duration) {
	r.t.Helper()
	r.set(name, admin.TopicSettings{GroupIdleExpiry: admin.Period(after)})
}

// left makes a group that is at the head of a topic and has no member.
func (r *rig) left(o eventhub.GroupOptions) {
	r.t.Helper()
	in := r.subscribe(o)
	in.Ack(leases(in.Take())...)
	r.leave(in)
}

func (r *rig) leave(in *inbox) {
	r.t.Helper()
	if err := in.Sub.Unsubscribe(bg); err != nil {
		r.t.Fatal(err)
	}
	synctest.Wait()
}

// has reports whether the store has a group.
func (r *rig) has(topic, group string) bool {
	r.t.Helper()
	_, err := r.store.Group(bg, topic, group)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		r.t.Fatal(err)
	}
	return err == nil
}

// toldOf subscribes, leaves at once, and returns what was told of groups that had ended.
func (r *rig) toldOf(o eventhub.GroupOptions) (list []eventhub.EndedGroup) {
	r.t.Helper()
	o.OnEnded = func(e eventhub.EndedGroup) { list = append(list, e) }
	r.leave(r.subscribe(o))
	return list
}

// marks are the events of system.audit that say which groups ended.
func (r *rig) marks() (list []admin.GroupEndMark) {
	r.t.Helper()
	for _, e := range r.events(admin.AuditTopic) {
		var m admin.GroupEndMark
		if err := json.Unmarshal(e.Payload, &m); err != nil || m.Action != "group_end" || m.By != "group_idle_expiry" {
			r.t.Errorf("mark %s: %v", e.Payload, err)
		}
		list = append(list, m)
	}
	return list
}

// TestIdleGroupEnds: a group that nobody has used for its expiry ends, others do not; an event
// says so, and whoever makes it again is told, once.
func TestIdleGroupEnds(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 3)
		r.publish("other", 1, 3)
		r.expire("t", time.Hour)
		r.left(opts("t", "g"))
		r.left(opts("other", "g"))
		member := r.subscribe(opts("t", "attended"))
		member.Ack(leases(member.Take())...)
		r.pass(59 * time.Minute)
		equal(t, "before", r.has("t", "g"), true)
		r.pass(2 * time.Minute)
		at := time.Now().UnixMilli()
		equal(t, "after", words(r.has("t", "g"), r.has("other", "g"), r.has("t", "attended")), "false true true")
		if _, err := r.bus.Group(bg, "t", "g"); eventhub.ErrorCode(err) != eventhub.CodeNotSubscribed {
			t.Errorf("Group: %v", err)
		}
		marks := r.marks()
		equal(t, "marks", len(marks), 1)
		equal(t, "mark", words(marks[0].Group, marks[0].Topics, marks[0].Ended), "g 1 [{t 3}]")
		if idle := time.Duration(marks[0].IdleMS) * time.Millisecond; idle < time.Hour || idle > time.Hour+time.Minute {
			t.Errorf("it was idle for %v", idle)
		}
		r.pass(time.Hour)
		told := r.toldOf(opts("t", "g"))
		equal(t, "told", len(told), 1)
		equal(t, "who was told", words(told[0].Topic, told[0].Cursor, at-told[0].TS < 65_000 && at >= told[0].TS), "t 3 true")
		equal(t, "told again", len(r.toldOf(opts("t", "g"))), 0)
		if err := r.bus.DeleteGroup(bg, "t", "g"); err != nil {
			t.Fatal(err)
		}
		equal(t, "told after a deletion", len(r.toldOf(opts("t", "g"))), 0)
		equal(t, "the member's group", words(len(member.Ends), r.info("t", "attended").Cursor), "0 3")
	})
}

// TestWhatKeepsAGroup: each use of a group begins its idle time anew, and as long as one goes on
// the group does not end.
func TestWhatKeepsAGroup(t *testing.T) {
	short := func(o eventhub.GroupOptions) eventhub.GroupOptions {
		o.AckTimeout = eventhub.MaxAckTimeout
		return o
	}
	for _, tt := range []struct {
		name string
		use  func(r *rig)
		ends time.Duration // after the use began
	}{
		{"nothing", func(*rig) {}, 40 * time.Minute},
		{"a member that comes", func(r *rig) { r.leave(r.subscribe(opts("t", "g"))) }, time.Hour},
		{"a pull", func(r *rig) { r.pull(opts("t", "g"), 0) }, time.Hour},
		{"a lease that runs out", func(r *rig) {
			r.publish("t", 9, 1)
			equal(r.t, "pulled", len(r.pull(short(opts("t", "g")), 0)), 1)
		}, 2 * time.Hour},
		{"a lease that is acked", func(r *rig) {
			r.publish("t", 9, 1)
			ds := r.pull(short(opts("t", "g")), 0)
			r.pass(30 * time.Minute)
			r.ackPulled(ds)
		}, 90 * time.Minute},
		{"a late ack", func(r *rig) {
			r.publish("t", 9, 1)
			o := opts("t", "g")
			o.AckTimeout = time.Minute
			ds := r.pull(o, 0)
			r.pass(30 * time.Minute)
			r.ackPulled(ds)
		}, 90 * time.Minute},
		{"a wait for it", func(r *rig) {
			r.enqueue(bg, eventhub.Publication{Events: inTopic("t", 1), WaitFor: []string{"g"}, WaitUpTo: eventhub.MaxWait})
		}, time.Hour + eventhub.MaxWait},
		{"a wait for it that is cancelled", func(r *rig) {
			ctx, cancel := context.WithCancel(bg)
			w := r.enqueue(ctx, eventhub.Publication{Events: inTopic("t", 1), WaitFor: []string{"g"}, WaitUpTo: eventhub.MaxWait})
			r.pass(4*time.Minute + 10*time.Second)
			equal(r.t, "the wait is over", w.over(), false)
			cancel()
			equal(r.t, "after it was cancelled", w.over(), true)
		}, time.Hour + 4*time.Minute + 10*time.Second},
		{"one of two waits for it", func(r *rig) {
			ctx, cancel := context.WithCancel(bg)
			wait := eventhub.Publication{Events: inTopic("t", 2), WaitFor: []string{"g"}, WaitUpTo: eventhub.MaxWait}
			first, second := wait, wait
			first.Events, second.Events = wait.Events[:1], wait.Events[1:]
			r.enqueue(ctx, first)
			r.enqueue(bg, second)
			r.pass(130 * time.Second)
			cancel()
		}, time.Hour + eventhub.MaxWait},
		{"a seek", func(r *rig) {
			if _, err := r.bus.SeekGroup(bg, "t", "g", eventhub.Earliest, true); err != nil {
				r.t.Fatal(err)
			}
		}, time.Hour},
		{"a pause", func(r *rig) {
			if err := r.bus.PauseGroup(bg, "t", "g"); err != nil {
				r.t.Fatal(err)
			}
		}, time.Hour},
		{"a publish", func(r *rig) { r.publish("t", 9, 1) }, 40 * time.Minute},
		{"a look", func(r *rig) {
			r.info("t", "g")
			if _, err := r.bus.PlanSettings(bg, "t", admin.TopicSettings{GroupIdleExpiry: 1e10}); err != nil {
				r.t.Fatal(err)
			}
		}, 40 * time.Minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.expire("t", time.Hour)
				r.publish("t", 1, 3)
				r.left(opts("t", "g"))
				r.pass(20 * time.Minute)
				began := time.Now()
				tt.use(r)
				r.pass(time.Until(began.Add(tt.ends - time.Second)))
				equal(t, "before", r.has("t", "g"), true)
				r.pass(2 * time.Second)
				equal(t, "after", r.has("t", "g"), false)
			})
		})
	}
}

// TestIdleOverRestarts: time in which no hub runs does not count, all other does, except for the
// last minutes before a crash.
func TestIdleOverRestarts(t *testing.T) {
	for _, tt := range []struct {
		name    string
		restart func(*rig)
		lost    time.Duration // at most
	}{
		{"stop", func(r *rig) {
			r.stop()
			r.pass(100 * 24 * time.Hour)
			r.start(Options{})
		}, 0},
		{"crash", func(r *rig) {
			r.crash()
		}, 2 * time.Minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.publish("t", 1, 1)
				r.left(opts("t", "unwatched"))
				r.expire("t", time.Hour)
				r.left(opts("t", "g"))
				attended := r.subscribe(opts("t", "attended"))
				r.pass(25 * time.Minute)
				tt.restart(r)
				r.pass(20 * time.Minute)
				tt.restart(r)
				_ = attended
				r.pass(15*time.Minute - time.Second)
				equal(t, "before", words(r.has("t", "unwatched"), r.has("t", "g"), r.has("t", "attended")), "true true true")
				r.pass(2*time.Second + 2*tt.lost)
				equal(t, "after", words(r.has("t", "unwatched"), r.has("t", "g"), r.has("t", "attended")), "false false true")
				r.pass(35 * time.Minute)
				equal(t, "the other one", r.has("t", "attended"), false)
			})
		})
	}
}

// TestNothingEndsAtAStart: who was away while the hub was down has some minutes to come back.
func TestNothingEndsAtAStart(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 1)
		r.expire("t", 24*time.Hour)
		r.left(opts("t", "g"))
		r.pass(24*time.Hour - 10*time.Second)
		r.restart()
		r.pass(4 * time.Minute)
		equal(t, "after 4 minutes", r.has("t", "g"), true)
		r.pass(2 * time.Minute)
		equal(t, "after 6", r.has("t", "g"), false)
	})
}

// TestMemberIsKnownAfterACrash: a member that came is known to the store when SUBSCRIBE
// has returned, although it does nothing else.
func TestMemberIsKnownAfterACrash(t *testing.T) {
	for _, pattern := range []bool{false, true} {
		inBubble(t, func(r *rig) {
			r.publish("t.a", 1, 1)
			r.expire("t.*", time.Hour)
			o := opts("t.a", "g")
			if pattern {
				o.Topic = "t.*"
			}
			r.left(o)
			r.pass(50 * time.Minute)
			r.subscribe(o)
			r.crash()
			r.pass(59 * time.Minute)
			equal(t, words("pattern", pattern, "before"), r.has("t.a", "g"), true)
			r.pass(2 * time.Minute)
			equal(t, words("pattern", pattern, "after"), r.has("t.a", "g"), false)
		})
	}
}

// TestIdleCostsNoCommit: an ack costs none, a group that stays idle one in a long time, and
// without the setting none is made.
func TestIdleCostsNoCommit(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 1)
		r.left(opts("t", "g"))
		r.pass(time.Second)
		commits := func(do func()) int {
			before := r.store.count1("Commit")
			do()
			return r.store.count1("Commit") - before
		}
		day := func() { r.pass(24 * time.Hour) }
		equal(t, "without the setting", commits(day), 0)
		r.expire("t", 64*24*time.Hour)
		day()
		if n := commits(day); n > 25 {
			t.Errorf("%d commits in a day of an idle group", n)
		}
		work := func() {
			for i := range 600 {
				r.publish("t", i, 1)
				r.ackPulled(r.pull(opts("t", "g"), 0))
				r.pass(time.Second)
			}
		}
		with := commits(work)
		if err := r.bus.UnsetTopic(bg, "t", nil); err != nil {
			t.Fatal(err)
		}
		r.pass(time.Hour)
		without := commits(work)
		if with > without+2 {
			t.Errorf("%d commits of 600 pulls; %d without the setting", with, without)
		}
		day()
		notes, err := r.store.ListNotes(bg)
		for _, n := range notes {
			if strings.HasPrefix(n.Name, "idle/") {
				t.Errorf("note %q is left, %v", n.Name, err)
			}
		}
	})
}

// TestSettingCountsAtOnce: a group that was idle before there was the setting ends with it, if this
// hub has seen all that time; and a longer one spares it.
func TestSettingCountsAtOnce(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 1)
		r.left(opts("t", "before"))
		r.pass(time.Hour)
		r.left(opts("t", "g"))
		r.pass(time.Hour)
		ends := func(after time.Duration) (list []string) {
			plan, err := r.bus.PlanSettings(bg, "t", admin.TopicSettings{GroupIdleExpiry: admin.Period(after)})
			if err != nil {
				t.Fatal(err)
			}
			for _, g := range plan.Groups {
				list = append(list, g.Group)
			}
			return list
		}
		equal(t, "dry run of 3h", len(ends(3*time.Hour)), 0)
		equal(t, "dry run of 90m", ends(90*time.Minute), []string{"before"})
		equal(t, "dry run of 30m", ends(30*time.Minute), []string{"before", "g"})
		r.pass(time.Minute)
		equal(t, "after dry runs", words(r.has("t", "before"), r.has("t", "g")), "true true")
		r.expire("t", 3*time.Hour)
		r.pass(time.Minute)
		r.expire("t", 90*time.Minute)
		r.pass(time.Second)
		equal(t, "with 90m", words(r.has("t", "before"), r.has("t", "g")), "false true")
		r.expire("t", 4*time.Hour)
		r.pass(time.Hour)
		equal(t, "with 4h", r.has("t", "g"), true)
		if err := r.bus.UnsetTopic(bg, "t", nil); err != nil {
			t.Fatal(err)
		}
		r.pass(100 * time.Hour)
		equal(t, "without", r.has("t", "g"), true)
	})
}

// TestIdlePattern: a group under a pattern ends with it, when it is idle in all topics that the
// pattern matches, and these all have an expiry.
func TestIdlePattern(t *testing.T) {
	inBubble(t, func(r *rig) {
		for _, topic := range []string{"p.a", "p.b", "p.c", "q.a"} {
			r.publish(topic, 1, 1)
		}
		r.expire("p.*", time.Hour)
		r.left(opts("p.*", "g"))
		r.pass(30 * time.Minute)
		r.left(opts("p.b", "g"))
		r.left(opts("*.a", "g"))
		all := func() string {
			return words(r.has("p.a", "g"), r.has("p.b", "g"), r.has("p.c", "g"), r.has("q.a", "g"), len(r.storedPatterns("g")))
		}
		r.pass(45 * time.Minute)
		equal(t, "one is younger", all(), "true true true true 2")
		r.pass(20 * time.Minute)
		equal(t, "*.a matches what has no expiry", all(), "true false false true 1")
		r.pass(24 * time.Hour)
		r.deleteTopic("q.a")
		r.pass(2 * time.Second)
		equal(t, "now it does not", all(), "false false false false 0")
		marks := r.marks()
		equal(t, "marks", len(marks), 2)
		equal(t, "the first", words(marks[0].Pattern, marks[0].Topics, marks[0].Ended), "p.* 2 [{p.b 1} {p.c 1}]")
		r.publish("p.d", 1, 1)
		equal(t, "no new topic gets it", r.has("p.d", "g"), false)
		r.restart()
		synctest.Wait()
		equal(t, "nor after a restart", all(), "false false false false 0")
		var topics []string
		for _, e := range r.toldOf(opts("p.*", "g")) {
			topics = append(topics, words(e.Topic, e.Cursor))
		}
		equal(t, "told", topics, []string{"p.a 1", "p.b 1", "p.c 1"})
		r.pass(time.Second)
	})
}

// TestPatternIsKept: what uses the group in one topic of its pattern keeps it in all.
func TestPatternIsKept(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("p.a", 1, 1)
		r.publish("p.b", 1, 1)
		r.expire("p.*", time.Hour)
		r.left(opts("p.*", "g"))
		in := r.subscribe(opts("p.b", "g"))
		r.pass(3 * time.Hour)
		equal(t, "with a member in one", words(r.has("p.a", "g"), r.has("p.b", "g")), "true true")
		r.leave(in)
		r.pass(59 * time.Minute)
		r.publish("p.new", 1, 1) // it has the group from now on
		r.pass(59 * time.Minute)
		equal(t, "with a new topic", words(r.has("p.a", "g"), r.has("p.b", "g"), r.has("p.new", "g")), "true true true")
		r.pass(2 * time.Minute)
		equal(t, "in the end", words(r.has("p.a", "g"), r.has("p.b", "g"), r.has("p.new", "g")), "false false false")
	})
}

// TestDeadLettersOfAnEndedGroup: they stay, and are nobody's, as after a deletion.
func TestDeadLettersOfAnEndedGroup(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 2)
		r.expire("t", time.Hour)
		r.deadLetterAll("t", "g")
		r.pass(62 * time.Minute)
		equal(t, "the group", r.has("t", "g"), false)
		equal(t, "dead letters", len(r.deadLetters(admin.DeadLetterQuery{Topic: "t"})), 2)
		result := r.redrive(redriveAll("t"))
		equal(t, "redriven", words(result.Redriven, result.Matched), "0 2")
		in := r.subscribe(eventhub.GroupOptions{Topic: "t", Group: "g"})
		result = r.redrive(redriveAll("t"))
		equal(t, "to another group of the name", words(result.Redriven, result.Matched, len(in.Take())), "0 2 0")
	})
}

// TestSubscribeMeetsAnEnd: who comes while a group is being ended makes it again, and is told.
func TestSubscribeMeetsAnEnd(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 3)
		r.expire("t", time.Hour)
		r.left(opts("t", "g"))
		r.pass(59*time.Minute + 30*time.Second)
		release := r.syncHeld()
		r.pass(time.Minute) // its end waits for the disk
		told := make(chan eventhub.EndedGroup, 1)
		o := eventhub.GroupOptions{Topic: "t", Group: "g", OnEnded: func(e eventhub.EndedGroup) { told <- e }}
		done := make(chan error)
		in := &inbox{}
		in.T, in.Room = t, -1
		go func() {
			var err error
			in.Sub, err = r.bus.Subscribe(bg, o, in)
			done <- err
		}()
		synctest.Wait()
		select {
		case err := <-done:
			t.Errorf("SUBSCRIBE is over: %v", err)
		default:
		}
		release()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		equal(t, "told", (<-told).Cursor, 3)
		r.publish("t", 4, 1)
		equal(t, "delivered", in.TakeOffsets(), []uint64{4})
	})
}

// partsRead is a store in which something happens in the middle of the loading of a group.
type partsRead struct {
	store.Store
	do atomic.Pointer[func()]
}

func (s *partsRead) GroupParts(ctx context.Context, topic, group string) ([]store.GroupPart, error) {
	if do := s.do.Swap(nil); do != nil {
		(*do)()
	}
	return s.Store.GroupParts(ctx, topic, group)
}

// TestEndMeetsASubscribe: a member that has come in front of the end of its group keeps it.
func TestEndMeetsASubscribe(t *testing.T) {
	inBubble(t, func(r *rig) {
		s := &partsRead{Store: r.store.Store}
		r.store.Store = s
		r.publish("t", 1, 3)
		r.expire("t", time.Hour)
		r.left(opts("t", "g"))
		r.restart() // so that its end loads it
		r.pass(59*time.Minute + 30*time.Second)
		var in inbox
		in.T, in.Room = t, -1
		users := func() int {
			r.bus.mu.RLock()
			defer r.bus.mu.RUnlock()
			return r.bus.groups[groupKey{"t", "g"}].users
		}
		done := make(chan error, 1)
		comes := func() {
			go func() {
				_, err := r.bus.Subscribe(bg, opts("t", "g"), &in)
				done <- err
			}()
			for users() < 2 {
				runtime.Gosched()
			}
		}
		s.do.Store(&comes)
		r.pass(time.Minute)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		r.pass(time.Hour)
		equal(t, "the group", words(r.has("t", "g"), len(r.marks())), "true 0")
	})
}

// TestEndWithoutRoomForAnEvent: where no topic can be created any more, groups end all the same.
func TestEndWithoutRoomForAnEvent(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 1)
		r.expire("t", time.Hour)
		r.left(opts("t", "g"))
		r.noMoreTopics()
		r.pass(63 * time.Minute)
		equal(t, "after", words(r.has("t", "g"), len(r.events(admin.AuditTopic))), "false 0")
		equal(t, "told", len(r.toldOf(opts("t", "g"))), 1)
	})
}

// TestEndedInAnotherLife: what ended with a topic is of no interest to those of the next topic of
// that name.
func TestEndedInAnotherLife(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 1)
		r.expire("t", time.Hour)
		r.left(opts("t", "g"))
		r.left(opts("t", "h"))
		r.pass(63 * time.Minute)
		equal(t, "before", words(r.has("t", "g"), r.has("t", "h")), "false false")
		r.deleteTopic("t")
		r.publish("t", 1, 1)
		equal(t, "told", len(r.toldOf(opts("t", "g"))), 0)
		r.restart()
		equal(t, "told after a restart", len(r.toldOf(opts("t", "h"))), 0)
	})
}

// TestEndedAreBounded: what is kept of ended groups is kept for 30 days.
func TestEndedAreBounded(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 1)
		r.expire("t", time.Hour)
		r.left(opts("t", "g"))
		r.left(opts("t", "h"))
		r.pass(29 * 24 * time.Hour)
		equal(t, "told after 29 days", len(r.toldOf(opts("t", "g"))), 1)
		r.pass(3 * 24 * time.Hour)
		notes, err := r.store.ListNotes(bg)
		kept := slices.ContainsFunc(notes, func(n store.NoteInfo) bool { return strings.HasPrefix(n.Name, "ended/t\x00h") })
		equal(t, "after 32", words(len(r.toldOf(opts("t", "h"))), kept, err), "0 false <nil>")
	})
}

// TestNoMaintenanceEndsNothing: … but what it sees counts for the next hub.
func TestNoMaintenanceEndsNothing(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 1)
		r.expire("t", time.Hour)
		r.left(opts("t", "g"))
		r.stop()
		r.start(Options{NoMaintenance: true})
		r.pass(3 * time.Hour)
		equal(t, "without maintenance", r.has("t", "g"), true)
		r.restart()
		r.pass(6 * time.Minute)
		equal(t, "with it", r.has("t", "g"), false)
	})
}
