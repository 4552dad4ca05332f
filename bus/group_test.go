package bus

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/bus/internal/bustest"
	"eventhub/bus/internal/commit"
	"eventhub/store"
)

func opts(topic, group string) eventhub.GroupOptions {
	return eventhub.GroupOptions{Topic: topic, Group: group, Start: eventhub.Earliest}
}

func TestStarts(t *testing.T) {
	inBubble(t, func(r *rig) {
		first := r.publish("t", 1, 2)
		time.Sleep(time.Hour)
		noon := time.Now().UnixMilli()
		r.publish("t", 3, 2)
		for _, tt := range []struct {
			name  string
			start eventhub.Start
			want  []uint64
		}{
			{"latest", eventhub.Start{}, []uint64{5}},
			{"earliest", eventhub.Earliest, []uint64{1, 2, 3, 4, 5}},
			{"ts", eventhub.Start{Kind: eventhub.StartTime, TS: noon}, []uint64{3, 4, 5}},
			{"ts between", eventhub.Start{Kind: eventhub.StartTime, TS: noon - 1}, []uint64{3, 4, 5}},
			{"ts before all", eventhub.Start{Kind: eventhub.StartTime}, []uint64{1, 2, 3, 4, 5}},
			{"ts ahead", eventhub.Start{Kind: eventhub.StartTime, TS: noon + 1000}, []uint64{5}},
			{"after_id", eventhub.Start{Kind: eventhub.StartAfterID, AfterID: first[1].ID}, []uint64{3, 4, 5}},
			{"offset", eventhub.Start{Kind: eventhub.StartOffset, Offset: 4}, []uint64{4, 5}},
			{"offset 0", eventhub.Start{Kind: eventhub.StartOffset}, []uint64{1, 2, 3, 4, 5}},
		} {
			in := r.subscribe(eventhub.GroupOptions{Topic: "t", Group: strings.ReplaceAll(tt.name, " ", "-"), Start: tt.start})
			if tt.name == "latest" {
				defer func() { equal(t, tt.name, in.TakeOffsets(), tt.want) }()
				continue
			}
			defer func() { equal(t, tt.name, in.TakeOffsets(), tt.want) }()
		}
		r.publish("t", 5, 1)
	})
}

func TestStartAfterUnknownID(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := eventhub.GroupOptions{Topic: "t", Group: "g", Start: eventhub.Start{Kind: eventhub.StartAfterID, AfterID: "nobody"}}
		_, err := r.bus.Subscribe(context.Background(), o, &inbox{})
		wantCode(t, err, eventhub.CodeUnknownID)
		if _, err := r.store.Group(context.Background(), "t", "g"); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("the refused group is in the store: %v", err)
		}
		if n := len(r.bus.groups) + readTopics(r.bus); n != 0 {
			t.Errorf("%d runtimes are left", n)
		}
	})
}

// TestStartIsDurable: the group begins where it did, also when nothing was ever
// delivered before a restart.
func TestStartIsDurable(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 3)
		o := eventhub.GroupOptions{Topic: "t", Group: "g"} // latest
		r.subscribe(o)
		equal(t, "stored cursor", r.stored("t", "g").Cursor, 3)
		r.restart()
		r.publish("t", 4, 1)
		equal(t, "offsets", r.subscribe(o).TakeOffsets(), []uint64{4})
	})
}

func TestCursorFollowsTheFirstUnacked(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 4)
		in := r.subscribe(opts("t", "g"))
		all := in.Take()
		for _, step := range []struct {
			ack  int
			want uint64
		}{{1, 0}, {0, 2}, {3, 2}, {2, 4}} {
			equal(t, "outcome", in.Ack(byID(all[step.ack]))[0], eventhub.Applied)
			equal(t, "cursor", r.cursor("t", "g").Offset, step.want)
		}
		c := r.cursor("t", "g")
		equal(t, "cursor's last id", c.LastID, all[3].ID())
		equal(t, "stored cursor right away", r.stored("t", "g").Cursor, 0)
		time.Sleep(commit.FlushEvery)
		synctest.Wait()
		equal(t, "stored cursor after the flush", r.stored("t", "g").Cursor, 4)
	})
}

func TestGroupResumesAtItsCursor(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 5)
		in := r.subscribe(opts("t", "g"))
		all := in.Take()
		in.Ack(byLease(all[0]), byLease(all[1]), byLease(all[3]))
		r.restart()
		if len(in.Ends) != 1 || eventhub.ErrorCode(in.Ends[0]) != eventhub.CodeShuttingDown {
			t.Errorf("Ended got %v; want shutting_down once", in.Ends)
		}
		again := r.subscribe(opts("t", "g")).Take()
		// 4 was acked above the cursor: it may come again, 1 and 2 may not.
		equal(t, "first offset after the restart", again[0].Offset, 3)
		equal(t, "attempt after the restart", again[0].Attempt, 1)
	})
}

func TestNackBacksOffAndIsDeadLettered(t *testing.T) {
	inBubble(t, func(r *rig) {
		receipts := r.publish("t", 7, 1)
		o := opts("t", "g")
		o.MaxAttempts = 3
		o.Backoff = eventhub.Backoff{Min: time.Second, Max: 90 * time.Second}
		in := r.subscribe(o)
		for attempt := 1; attempt <= 3; attempt++ {
			if attempt > 1 {
				d := time.Second << (attempt - 2)
				time.Sleep(d/2 - time.Millisecond)
				equal(t, "deliveries before half the backoff", len(in.Take()), 0)
				time.Sleep(d/2 + time.Millisecond)
			}
			all := in.Take()
			if len(all) != 1 || all[0].Attempt != attempt || all[0].MaxAttempts != 3 {
				t.Fatalf("attempt %d: got %+v", attempt, all)
			}
			in.Nack(byLease(all[0]))
		}
		time.Sleep(time.Hour)
		equal(t, "deliveries after the last attempt", len(in.Take()), 0)
		equal(t, "cursor", r.cursor("t", "g").Offset, 1)
		dead := r.events("t.dlq")
		if len(dead) != 1 {
			t.Fatalf("%d dead letters", len(dead))
		}
		equal(t, "caused_by", dead[0].CausedBy, []string{receipts[0].ID})
		for _, part := range []string{`"topic":"t"`, `"group":"g"`, `"offset":1`, `"attempts":3`, `"reason":"no luck"`, `"payload":7`, receipts[0].ID} {
			if !strings.Contains(string(dead[0].Payload), part) {
				t.Errorf("the dead letter %s lacks %s", dead[0].Payload, part)
			}
		}
	})
}

func TestTerminalNackAndDelay(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 2)
		in := r.subscribe(opts("t", "g"))
		all := in.Take()
		in.Settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true, Reason: "never"}, byLease(all[0]))
		equal(t, "dead letters", len(r.events("t.dlq")), 1)
		in.Settle(eventhub.Settlement{Verdict: eventhub.Nack, Delay: time.Hour}, byLease(all[1]))
		time.Sleep(time.Hour - time.Millisecond)
		equal(t, "deliveries before the delay is over", len(in.Take()), 0)
		time.Sleep(time.Millisecond)
		equal(t, "deliveries after it", in.TakeOffsets(), []uint64{2})
	})
}

func TestLeaseExpires(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 1)
		o := opts("t", "g")
		o.AckTimeout = 5 * time.Second
		o.Backoff = eventhub.Backoff{Min: time.Second, Max: time.Second}
		in := r.subscribe(o)
		first := in.Take()[0]
		time.Sleep(5 * time.Second)
		equal(t, "deliveries at the deadline", len(in.Take()), 0)
		time.Sleep(time.Second)
		second := in.Take()
		if len(second) != 1 || second[0].Attempt != 2 {
			t.Fatalf("after the backoff: %+v", second)
		}
		equal(t, "ack by the older lease", in.Ack(byLease(first))[0], eventhub.Stale)
		equal(t, "cursor", r.cursor("t", "g").Offset, 0)
		equal(t, "ack by the newer lease", in.Ack(byLease(second[0]))[0], eventhub.Applied)
		equal(t, "cursor", r.cursor("t", "g").Offset, 1)
		equal(t, "the same ack again", in.Ack(byLease(second[0]))[0], eventhub.Stale)
	})
}

// TestLateAnswersCountWhileNobodyHolds is the rule of late answers, for acks
// and nacks, by lease and by id.
func TestLateAnswersCountWhileNobodyHolds(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 4)
		o := opts("t", "g")
		o.AckTimeout = time.Second
		o.Backoff = eventhub.Backoff{Min: time.Hour, Max: time.Hour}
		in := r.subscribe(o)
		all := in.Take()
		time.Sleep(time.Second)
		synctest.Wait()
		equal(t, "late ack by lease", in.Ack(byLease(all[0]))[0], eventhub.Applied)
		equal(t, "late ack by id", in.Ack(byID(all[1]))[0], eventhub.Applied)
		equal(t, "late modack", in.Settle(eventhub.Settlement{Verdict: eventhub.Extend}, byLease(all[2]))[0], eventhub.Unknown)
		late := eventhub.Settlement{Verdict: eventhub.Nack, Delay: time.Minute}
		equal(t, "late nack", in.Settle(late, byLease(all[2]))[0], eventhub.Applied)
		time.Sleep(time.Minute)
		equal(t, "offsets after the nack's delay", in.TakeOffsets(), []uint64{3})
		equal(t, "cursor", r.cursor("t", "g").Offset, 2)
	})
}

func TestModack(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 1)
		o := opts("t", "g")
		o.AckTimeout = 2 * time.Second
		o.Backoff = eventhub.Backoff{Min: time.Millisecond, Max: time.Millisecond}
		in := r.subscribe(o)
		g := in.Take()[0]
		extend := func(by time.Duration) {
			t.Helper()
			equal(t, "outcome", in.Settle(eventhub.Settlement{Verdict: eventhub.Extend, By: by}, byLease(g))[0], eventhub.Applied)
		}
		time.Sleep(time.Second)
		extend(10 * time.Second)
		time.Sleep(9 * time.Second)
		equal(t, "deliveries within the extension", len(in.Take()), 0)
		for range 400 { // never more than an hour in all
			extend(time.Hour)
			time.Sleep(9 * time.Second)
			if len(in.Take()) > 0 {
				break
			}
		}
		if held := time.Since(g.At); held < time.Hour || held > time.Hour+20*time.Second {
			t.Errorf("the lease could be held for %s; want an hour", held)
		}
	})
}

func TestMembersShareAGroup(t *testing.T) {
	inBubble(t, func(r *rig) {
		a, b := r.subscribe(opts("t", "g")), r.subscribe(opts("t", "g"))
		other := r.subscribe(opts("t", "other"))
		r.publish("t", 1, 10)
		ga, gb := a.Take(), b.Take()
		equal(t, "shares", []int{len(ga), len(gb)}, []int{5, 5})
		seen := map[uint64]bool{}
		for _, g := range append(ga, gb...) {
			seen[g.Offset] = true
		}
		equal(t, "distinct offsets", len(seen), 10)
		equal(t, "the other group's", len(other.Take()), 10)
		equal(t, "ack by id of the other member's", b.Ack(byID(ga[0]))[0], eventhub.Stale)
		equal(t, "ack by lease of the other member's", b.Ack(byLease(ga[0]))[0], eventhub.Applied)
	})
}

func TestMaxInFlightAndBatchSize(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 50)
		o := opts("t", "g")
		o.MaxInFlight, o.BatchSize = 7, 3
		in := r.subscribe(o)
		first := in.Take()
		equal(t, "deliveries", len(first), 7)
		equal(t, "calls", in.Calls, [][]uint64{{1, 2, 3}, {4, 5, 6}, {7}})
		in.Ack(byLease(first[0]), byLease(first[6]))
		equal(t, "after two acks", in.TakeOffsets(), []uint64{8, 9})
	})
}

// TestDroppedMember: its events reach the other member at once, as the next
// attempt.
func TestDroppedMember(t *testing.T) {
	inBubble(t, func(r *rig) {
		dying := r.subscribe(opts("t", "g"))
		r.publish("t", 1, 3)
		held := dying.Take()
		other := r.subscribe(opts("t", "g"))
		before := time.Now()
		dying.Sub.Drop(0)
		dying.Sub.Drop(0) // harmless
		all := other.Take()
		if len(all) != 3 || all[0].Attempt != 2 || !all[0].At.Equal(before) {
			t.Fatalf("the other member got %+v", all)
		}
		equal(t, "ack by the dropped member's lease", other.Ack(byLease(held[0]))[0], eventhub.Stale)
		equal(t, "Ended calls", len(dying.Ends), 0)
	})
}

// TestDyingConsumerEndsInDeadLetters: disconnects count, so an event that kills
// its consumers is given up in the end.
func TestDyingConsumerEndsInDeadLetters(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 1)
		for attempt := 1; attempt <= eventhub.DefaultMaxAttempts; attempt++ {
			in := r.subscribe(opts("t", "g"))
			all := in.Take()
			if len(all) != 1 || all[0].Attempt != attempt {
				t.Fatalf("attempt %d: %+v", attempt, all)
			}
			in.Sub.Drop(0)
		}
		synctest.Wait()
		equal(t, "dead letters", len(r.events("t.dlq")), 1)
		equal(t, "cursor", r.cursor("t", "g").Offset, 1)
		if dead := r.events("t.dlq"); len(dead) == 1 && !strings.Contains(string(dead[0].Payload), "disconnected") {
			t.Errorf("the dead letter does not say why: %s", dead[0].Payload)
		}
	})
}

func TestUnsubscribeGivesAttemptsBack(t *testing.T) {
	inBubble(t, func(r *rig) {
		leaving := r.subscribe(opts("t", "g"))
		r.publish("t", 1, 2)
		leaving.Take()
		other := r.subscribe(opts("t", "g"))
		if err := leaving.Sub.Unsubscribe(context.Background()); err != nil {
			t.Fatal(err)
		}
		for _, g := range other.Take() {
			equal(t, "attempt", g.Attempt, 1)
		}
		r.publish("t", 3, 2)
		equal(t, "deliveries after leaving", len(leaving.Take()), 0)
		equal(t, "deliveries of the other", len(other.Take()), 2)
	})
}

// TestFullReceiver: what a receiver does not take was never delivered, and
// comes when it is ready.
func TestFullReceiver(t *testing.T) {
	inBubble(t, func(r *rig) {
		in := &inbox{Inbox: bustest.Inbox{T: t, Room: 2}}
		sub, err := r.bus.Subscribe(context.Background(), opts("t", "g"), in)
		if err != nil {
			t.Fatal(err)
		}
		in.Sub = sub
		r.publish("t", 1, 5)
		equal(t, "offsets taken", in.TakeOffsets(), []uint64{1, 2})
		calls := len(in.Calls)
		time.Sleep(24 * time.Hour)
		equal(t, "calls while full", len(in.Calls)-calls, 0)
		in.Mu.Lock()
		in.Room = -1
		in.Mu.Unlock()
		in.Sub.Ready()
		rest := in.Take()
		var fresh []uint64
		for _, g := range rest {
			if g.Offset > 2 {
				equal(t, "attempt", g.Attempt, 1)
				fresh = append(fresh, g.Offset)
			}
		}
		equal(t, "offsets after Ready", fresh, []uint64{3, 4, 5})
	})
}

// TestFullReceiverKeepsTheOlderLease: a redelivery that was not taken leaves
// the last lease that was delivered in force.
func TestFullReceiverKeepsTheOlderLease(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 1)
		in := &inbox{Inbox: bustest.Inbox{T: t, Room: 1}}
		sub, err := r.bus.Subscribe(context.Background(), opts("t", "g"), in)
		if err != nil {
			t.Fatal(err)
		}
		in.Sub = sub
		g := in.Take()[0]
		in.Nack(byLease(g))
		time.Sleep(time.Minute)
		equal(t, "deliveries", len(in.Take()), 0)
		equal(t, "late ack", in.Ack(byLease(g))[0], eventhub.Applied)
		equal(t, "cursor", r.cursor("t", "g").Offset, 1)
	})
}

func TestAutoAck(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := opts("t", "g")
		o.AutoAck, o.MaxInFlight = true, 2
		in := r.subscribe(o)
		r.publish("t", 1, 20)
		all := in.Take()
		equal(t, "deliveries", len(all), 20)
		equal(t, "lease", all[0].Lease.IsZero(), true)
		equal(t, "cursor", r.cursor("t", "g").Offset, 20)
	})
}

func TestSettleFromElsewhere(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 1)
		g := r.subscribe(opts("t", "g")).Take()[0]
		ctx := context.Background()
		ack := eventhub.Settlement{Refs: []eventhub.Ref{byLease(g)}}
		_, err := r.bus.Settle(ctx, "t", "nobody", ack)
		wantCode(t, err, eventhub.CodeNotSubscribed)
		_, err = r.bus.Settle(ctx, "t", "g", eventhub.Settlement{Refs: []eventhub.Ref{byID(g)}})
		wantCode(t, err, eventhub.CodeBadRequest)
		out, err := r.bus.Settle(ctx, "t", "g", ack)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "outcome", out, []eventhub.Outcome{eventhub.Applied})
		r.restart()
		out, err = r.bus.Settle(ctx, "t", "g", ack)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "outcome of a lease of an earlier run", out, []eventhub.Outcome{eventhub.Stale})
	})
}

func TestSetCursor(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := context.Background()
		wantCode(t, r.bus.SetCursor(ctx, "t", "g", 1), eventhub.CodeNotSubscribed)
		r.publish("t", 1, 4)
		in := r.subscribe(opts("t", "g"))
		epoch := r.stored("t", "g").Epoch
		old := in.Take()
		in.Ack(byLease(old[0]), byLease(old[1]), byLease(old[2]))
		if err := r.bus.SetCursor(ctx, "t", "g", 1); err != nil {
			t.Fatal(err)
		}
		equal(t, "stored", r.stored("t", "g").Cursor, 1)
		equal(t, "stored epoch", r.stored("t", "g").Epoch, epoch+1)
		again := in.Take()
		equal(t, "deliveries", len(again), 3)
		equal(t, "first", again[0].Offset, 2)
		equal(t, "attempt", again[0].Attempt, 1)
		equal(t, "ack by a lease from before", in.Ack(byLease(old[3]))[0], eventhub.Stale)
		equal(t, "ack by a new lease", in.Ack(byLease(again[0]))[0], eventhub.Applied)
		equal(t, "cursor", r.cursor("t", "g").Offset, 2)
		if err := r.bus.SetCursor(ctx, "t", "g", 4); err != nil {
			t.Fatal(err)
		}
		r.publish("t", 5, 1)
		equal(t, "after a seek to the head", in.TakeOffsets(), []uint64{5})
	})
}

// TestIdleBusDoesNothing: with members waiting and leases long, a day passes
// without one call to the store.
func TestIdleBusDoesNothing(t *testing.T) {
	inBubble(t, func(r *rig) {
		for _, group := range []string{"a", "b", "c"} {
			r.subscribe(opts("t", group))
		}
		in := r.subscribe(opts("t", "busy"))
		r.publish("t", 1, 1)
		in.Ack(byLease(in.Take()[0]))
		time.Sleep(time.Minute)
		synctest.Wait()
		// The other groups hold a lease; let them run out of attempts first.
		time.Sleep(48 * time.Hour)
		synctest.Wait()
		before := r.store.total()
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		equal(t, "store calls in an idle day", r.store.total()-before, 0)
	})
}

// TestTailIsServedFromMemory: groups at the tail do not read the store, and
// groups after it do.
func TestTailIsServedFromMemory(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 0, 10) // nobody watches: not kept
		o := opts("t", "g")
		o.Start = eventhub.Start{}
		in := r.subscribe(o)
		for i := range 10 {
			r.publish("t", i, 10)
			for _, g := range in.Take() {
				in.Ack(byLease(g))
			}
		}
		equal(t, "reads of the store", r.store.calls["Read"], 0)
		late := r.subscribe(opts("t", "late"))
		equal(t, "deliveries to the late group", len(late.Take()), 100)
		if r.store.calls["Read"] == 0 {
			t.Error("the late group was not served from the store")
		}
	})
}

// TestSmallCacheLosesNothing: events that the cache let go are read from the
// store.
func TestSmallCacheLosesNothing(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.stop()
		r.start(Options{TailCacheBytes: 250})
		o := opts("t", "g")
		o.MaxInFlight = 1
		in := r.subscribe(o)
		r.publish("t", 1, 30)
		for want := uint64(1); want <= 30; want++ {
			all := in.Take()
			if len(all) != 1 || all[0].Offset != want {
				t.Fatalf("at offset %d came %+v", want, all)
			}
			in.Ack(byLease(all[0]))
		}
	})
}

func TestAckWindow(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.stop()
		r.start(Options{AckWindow: 10})
		o := opts("t", "g")
		o.MaxInFlight = 5
		in := r.subscribe(o)
		r.publish("t", 1, 40)
		all := in.Take()
		stuck, last := all[0], uint64(0)
		for all = all[1:]; len(all) > 0; all = in.Take() {
			for _, g := range all {
				last = g.Offset
				in.Ack(byLease(g))
			}
		}
		equal(t, "highest offset while the first is held", last, 10)
		in.Ack(byLease(stuck))
		equal(t, "cursor", r.cursor("t", "g").Offset, 10)
		equal(t, "offsets then", in.TakeOffsets(), []uint64{11, 12, 13, 14, 15})
	})
}

// TestTightWindow: while groups have as much memory as they may each has a window of so many events that are not done, whatever its members
// may hold; it says so, goes on with each that is done, and with all when others have given memory back, although nothing happens to it.
func TestTightWindow(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.stop()
		r.start(Options{GroupBytes: 2500 * 192}) // of 2,500 leases
		const all = 3 * TightWindow
		join := func(group string) *inbox {
			o := opts("t", group)
			o.Start, o.MaxInFlight, o.AckTimeout = eventhub.Earliest, all, time.Hour
			return r.subscribe(o)
		}
		r.publish("t", 1, all)
		first := join("first")
		held := first.Take()
		equal(t, "events of the first group", len(held), all)
		in := join("g")
		got := in.Take()
		equal(t, "events of another one", len(got), TightWindow)
		equal(t, "what blocks", r.info("t", "g").BlockedBy.Kind, "window")
		in.Ack(byLease(got[3]), byLease(got[7]))
		equal(t, "offsets after two acks", in.TakeOffsets(), []uint64{TightWindow + 1, TightWindow + 2})
		in.Settle(eventhub.Settlement{Verdict: eventhub.Nack, Delay: time.Hour}, byLease(got[0]))
		equal(t, "after one that is to come again in an hour", len(in.Take()), 0)
		time.Sleep(tightAgain)
		equal(t, "while nothing has changed", len(in.Take()), 0)
		for _, d := range held {
			first.Ack(byLease(d))
		}
		time.Sleep(tightAgain)
		equal(t, "events when there is memory again", len(in.Take()), all-TightWindow-2)
		if b := r.info("t", "g").BlockedBy; b != nil {
			t.Errorf("then it is blocked by %+v", b)
		}
		if err := r.bus.DeleteTopic(bg, "t"); err != nil {
			t.Fatal(err)
		}
		equal(t, "bytes of groups that are gone", r.bus.groupBytes.Load(), int64(0))
	})
}

func TestNumbersAfterARestart(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 5)
		in := r.subscribe(opts("t", "g"))
		all := in.Take()
		in.Ack(byLease(all[1]), byLease(all[2]), byLease(all[3])) // 1 and 5 are open
		start := eventhub.Start{Kind: eventhub.StartOffset, Offset: 6}
		before, _ := r.bus.SeekGroup(bg, "t", "g", start, false)
		lag := r.info("t", "g").Lag
		r.restart()
		equal(t, "lag, not loaded", r.info("t", "g").Lag, lag)
		after, _ := r.bus.SeekGroup(bg, "t", "g", start, false)
		equal(t, "lag, loaded", r.info("t", "g").Lag, lag)
		equal(t, "skipped", after.Skipped, before.Skipped)
		start.Offset = 1
		again, _ := r.bus.SeekGroup(bg, "t", "g", start, false)
		equal(t, "again by a seek to 0", again.Again, 3)
	})
}

// TestSubscribeAtTheTopicLimit has the same code as a publish there.
func TestSubscribeAtTheTopicLimit(t *testing.T) {
	inBubble(t, func(r *rig) {
		fillTopics(r)
		_, err := r.bus.Subscribe(context.Background(), opts("new", "g"), &inbox{})
		wantCode(t, err, eventhub.CodeOverloaded)
	})
}

// TestEndedIsNotForWhoHasLeft, also when it left because another member was
// notified.
func TestEndedIsNotForWhoHasLeft(t *testing.T) {
	inBubble(t, func(r *rig) {
		first := &leaver{}
		if _, err := r.bus.Subscribe(context.Background(), opts("t", "g"), first); err != nil {
			t.Fatal(err)
		}
		second := r.subscribe(opts("t", "g"))
		first.takes = second.Sub
		r.restart()
		equal(t, "Ended calls after Drop", len(second.Ends), 0)
	})
}

// leaver is a Receiver that takes another subscription with it.
type leaver struct {
	takeNothing
	takes eventhub.Subscription
}

func (l *leaver) Ended(error) { l.takes.Drop(0) }
