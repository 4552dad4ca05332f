package bus

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/bustest"
	"eventhub/bus/internal/space"
	"eventhub/store"
	"eventhub/store/storefault"
)

// publishKeys adds one event for each key, in order.
func (r *rig) publishKeys(topic string, keys ...string) {
	r.t.Helper()
	var events []eventhub.Event
	for _, key := range keys {
		events = append(events, eventhub.Event{Topic: topic, Key: key, Payload: []byte("1")})
	}
	if _, err := r.bus.Publish(context.Background(), events...); err != nil {
		r.t.Error(err)
	}
}

func keyed(topic, group string) eventhub.GroupOptions {
	o := opts(topic, group)
	o.Ordering = eventhub.OrderingKey
	return o
}

// TestOrderByKey: one event of a key at a time, over redeliveries and members;
// other keys and events without one do not wait.
func TestOrderByKey(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publishKeys("t", "a", "a", "b", "", "a", "", "b")
		one := r.subscribe(keyed("t", "g"))
		first := one.Take()
		equal(t, "first of all keys, and those without", offsets(first), []uint64{1, 3, 4, 6})
		two := r.subscribe(keyed("t", "g"))
		one.Settle(eventhub.Settlement{Verdict: eventhub.Nack, Delay: 10 * time.Second}, byLease(first[0]))
		one.Ack(byLease(first[1]), byLease(first[2]))
		equal(t, "b goes on", append(one.TakeOffsets(), two.TakeOffsets()...), []uint64{7})
		time.Sleep(10 * time.Second)
		again := append(one.Take(), two.Take()...)
		equal(t, "a comes again, and only its first", offsets(again), []uint64{1})
		info := r.info("t", "g")
		equal(t, "held", info.Held, 2)
		if b := info.BlockedBy; b == nil || b.Kind != "key" || b.Key != "a" || b.Offset != 1 || b.State != "leased" || b.Member == nil {
			t.Errorf("blocked by %+v", b)
		}
		_, err := r.bus.Settle(context.Background(), "t", "g", eventhub.Settlement{Refs: []eventhub.Ref{byLease(again[0])}})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		equal(t, "the next of a", append(one.TakeOffsets(), two.TakeOffsets()...), []uint64{2})
		equal(t, "cursor", r.cursor("t", "g").Offset, 1)
	})
}

func offsets(all []got) []uint64 {
	var o []uint64
	for _, g := range all {
		o = append(o, g.Offset)
	}
	return o
}

// TestKeyGoesOnAfterADeadLetter: an event that is given up makes way, once its
// dead letter is in the log and not before.
func TestKeyGoesOnAfterADeadLetter(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publishKeys("t", "a", "a")
		in := r.subscribe(keyed("t", "g"))
		hold := make(chan struct{})
		first := in.Take()
		r.store.set(hold, nil)
		in.Settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}, byLease(first[0]))
		equal(t, "deliveries while the dead letter is written", len(in.Take()), 0)
		r.store.set(nil, nil)
		close(hold)
		equal(t, "deliveries after it", in.TakeOffsets(), []uint64{2})
		equal(t, "dead letters", len(r.events("t.dlq")), 1)
	})
}

// TestOrderOverRestart: what was acked out of order is not delivered again, and
// what was not comes in the order of its key, with the attempts that it had.
func TestOrderOverRestart(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publishKeys("t", "a", "a", "b", "b", "c")
		in := r.subscribe(keyed("t", "g"))
		first := in.Take()
		in.Settle(eventhub.Settlement{Verdict: eventhub.Nack, Reason: "no luck", Delay: time.Millisecond}, byLease(first[0]))
		in.Ack(byLease(first[1]), byLease(first[2]))
		time.Sleep(time.Second)
		r.restart()
		none := keyed("t", "g")
		none.MaxInFlight = 1
		tight := r.subscribe(none)
		equal(t, "with room for one", len(tight.Take()), 1)
		for offset, want := range map[uint64]string{1: "leased", 2: "held", 3: "done", 4: "ahead", 5: "done"} {
			list, err := r.bus.EventGroups(context.Background(), "t", r.events("t")[offset-1].ID)
			if err != nil {
				t.Fatal(err)
			}
			equal(t, fmt.Sprintf("state of %d", offset), list[0].State, want)
		}
		if err := tight.Sub.Unsubscribe(context.Background()); err != nil {
			t.Fatal(err)
		}
		in = r.subscribe(keyed("t", "g"))
		again := in.Take()
		equal(t, "after the restart", offsets(again), []uint64{1, 4})
		equal(t, "attempts", []int{again[0].Attempt, again[1].Attempt}, []int{2, 1})
		in.Ack(byLease(again[0]))
		equal(t, "the next of a", in.TakeOffsets(), []uint64{2})
		equal(t, "lag", r.info("t", "g").Lag, 2)
	})
}

// TestRestartsDeadLetterNothing: an event on its last attempt that a stop of the
// engine cut short has it again, however often.
func TestRestartsDeadLetterNothing(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 1)
		o := opts("t", "g")
		o.MaxAttempts = 2
		in := r.subscribe(o)
		in.Nack(byLease(in.Take()[0]))
		time.Sleep(2 * time.Second)
		for range 5 {
			last := in.Take()
			if len(last) != 1 || last[0].Attempt != 2 {
				t.Fatalf("deliveries %+v; want attempt 2", last)
			}
			time.Sleep(time.Second)
			r.restart()
			in = r.subscribe(o)
		}
		equal(t, "dead letters", len(r.events("t.dlq")), 0)
	})
}

// dies is a member that leaves as a lost connection does whenever it is handed
// the poison, and acks all else.
func dies(t *testing.T, r *rig, o eventhub.GroupOptions, poison uint64) (acked map[uint64]int, rounds int) {
	acked = make(map[uint64]int)
	for rounds = 1; rounds <= 20; rounds++ {
		in := r.subscribe(o)
		for quiet := 0; quiet < 3; quiet++ {
			all := in.Take()
			deadly := false
			for _, g := range all {
				deadly = deadly || g.Offset == poison
			}
			if deadly {
				in.Sub.Drop(0)
				break
			}
			for _, g := range all {
				in.Ack(byLease(g))
				acked[g.Offset]++
				quiet = 0
			}
			if len(all) == 0 {
				time.Sleep(time.Hour) // for backoffs
			}
		}
		if r.cursor("t", "g").Offset == r.info("t", "g").Head {
			in.Sub.Drop(0)
			return acked, rounds
		}
	}
	t.Error("the group does not come to its end")
	return acked, rounds
}

// TestPoison: a member that dies of one event takes attempts from the others it
// holds, twice; then the event comes alone, and it alone is dead-lettered.
func TestPoison(t *testing.T) {
	for _, ordering := range []string{eventhub.OrderingNone, eventhub.OrderingKey} {
		inBubble(t, func(r *rig) {
			r.publishKeys("t", "a", "b", "a", "b", "", "a", "", "c", "c", "d")
			o := opts("t", "g")
			o.Ordering = ordering
			acked, _ := dies(t, r, o, 3)
			for offset := uint64(1); offset <= 10; offset++ {
				want := 1
				if offset == 3 {
					want = 0
				}
				equal(t, fmt.Sprintf("acks of %d, ordering %s", offset, ordering), acked[offset], want)
			}
			dead := r.events("t.dlq")
			if len(dead) != 1 {
				t.Fatalf("%d dead letters", len(dead))
			}
			var letter struct {
				Offset   uint64
				Attempts int
				Reason   string
				History  []admin.Attempt
			}
			if err := json.Unmarshal(dead[0].Payload, &letter); err != nil {
				t.Fatal(err)
			}
			equal(t, "letter", []any{letter.Offset, letter.Attempts, letter.Reason}, []any{3, 5, "member disconnected"})
			for i, a := range letter.History {
				if a.Attempt != i+1 || a.Why != "disconnected" || a.SinceTS == 0 || a.EndedTS < a.SinceTS {
					t.Errorf("history[%d] = %+v", i, a)
				}
			}
			equal(t, "history", len(letter.History), 5)
		})
	}
}

// TestSuspectsDoNotStopTheOthers: while one member has a suspect, others get
// what is fresh.
func TestSuspectsDoNotStopTheOthers(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 2)
		one := r.subscribe(opts("t", "g"))
		for range 2 {
			one.lapse(leasesOf(one.Take())...)
			time.Sleep(time.Millisecond)
		}
		two := r.subscribe(opts("t", "g"))
		suspect := append(one.Take(), two.Take()...)
		equal(t, "suspects out", offsets(suspect), []uint64{1})
		r.publish("t", 3, 3)
		equal(t, "fresh ones for the other", append(one.TakeOffsets(), two.TakeOffsets()...), []uint64{3, 4, 5})
		if _, err := r.bus.Settle(context.Background(), "t", "g", eventhub.Settlement{Refs: []eventhub.Ref{byLease(suspect[0])}}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		equal(t, "the next suspect", append(one.TakeOffsets(), two.TakeOffsets()...), []uint64{2})
	})
}

// TestUnsentIsGivenBack: of what a lost connection held, the latest that never
// left the hub count for nothing.
func TestUnsentIsGivenBack(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 4)
		in := r.subscribe(opts("t", "g"))
		equal(t, "deliveries", len(in.Take()), 4)
		in.Sub.Drop(3)
		in = r.subscribe(opts("t", "g"))
		var attempts []int
		for _, g := range in.Take() {
			attempts = append(attempts, g.Attempt)
		}
		equal(t, "attempts", attempts, []int{2, 1, 1, 1})
	})
}

// TestPause: a paused member, and a paused group, get nothing until they are
// resumed; a group stays paused over a restart.
func TestPause(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := context.Background()
		in := r.subscribe(opts("t", "g"))
		if err := in.Sub.Pause(ctx); err != nil {
			t.Fatal(err)
		}
		r.publish("t", 1, 2)
		equal(t, "deliveries to the paused member", len(in.Take()), 0)
		if err := in.Sub.Resume(ctx); err != nil {
			t.Fatal(err)
		}
		all := in.Take()
		equal(t, "deliveries after it", len(all), 2)
		if err := r.bus.PauseGroup(ctx, "t", "g"); err != nil {
			t.Fatal(err)
		}
		r.publish("t", 3, 1)
		in.Nack(byLease(all[1]))
		in.Ack(byLease(all[0]))
		time.Sleep(time.Hour)
		equal(t, "deliveries to the paused group", len(in.Take()), 0)
		info := r.info("t", "g")
		equal(t, "cursor, paused, why", []any{info.Cursor, info.Paused, info.BlockedBy.Kind}, []any{1, true, "paused"})
		r.restart()
		equal(t, "paused after a restart", r.info("t", "g").Paused, true)
		_, g := r.measured("t", "g")
		equal(t, "measured as paused", g.Paused, true)
		in = r.subscribe(opts("t", "g"))
		equal(t, "deliveries after a restart", len(in.Take()), 0)
		if err := r.bus.ResumeGroup(ctx, "t", "g"); err != nil {
			t.Fatal(err)
		}
		equal(t, "deliveries when it goes on", in.TakeOffsets(), []uint64{2, 3})
		wantCode(t, r.bus.PauseGroup(ctx, "t", "none"), eventhub.CodeNotSubscribed)
	})
}

// TestSeekPlan: a dry run says what a seek then does, and changes nothing.
func TestSeekPlan(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := context.Background()
		r.publish("t", 1, 10)
		o := opts("t", "g")
		o.MaxInFlight = 6
		in := r.subscribe(o)
		all := in.Take()
		in.Ack(byLease(all[0]), byLease(all[1]), byLease(all[4])) // 1, 2 and 5; 3, 4, 6 to 9 are leased
		in.Take()
		before := r.info("t", "g")
		for _, tt := range []struct {
			to             uint64
			again, skipped uint64
		}{
			{0, 3, 0}, {2, 1, 0}, {3, 1, 1}, {4, 1, 2}, {5, 0, 2}, {9, 0, 6}, {10, 0, 7}, {15, 0, 7},
		} {
			plan, err := r.bus.SeekGroup(ctx, "t", "g", eventhub.Start{Kind: eventhub.StartOffset, Offset: tt.to + 1}, false)
			if err != nil {
				t.Fatal(err)
			}
			equal(t, fmt.Sprintf("plan to %d", tt.to), plan, admin.SeekPlan{
				Topic: "t", Group: "g", From: 2, To: tt.to, Head: 10, Again: tt.again, Skipped: tt.skipped, Voided: 6, Epoch: before.Epoch})
		}
		equal(t, "group after dry runs", r.info("t", "g"), before)
		plan, err := r.bus.SeekGroup(ctx, "t", "g", eventhub.Earliest, true)
		if err != nil || !plan.Applied || plan.Epoch != before.Epoch+1 {
			t.Errorf("seek = %+v, %v", plan, err)
		}
		again := in.Take()
		equal(t, "delivered again", offsets(again), []uint64{1, 2, 3, 4, 5, 6})
		for i, g := range again {
			equal(t, fmt.Sprintf("delivery %d says that the group was moved", i), g.Sought, i == 0)
		}
		in.Room = 0
		if _, err := r.bus.SeekGroup(ctx, "t", "g", eventhub.Latest, true); err != nil {
			t.Fatal(err)
		}
		r.publish("t", 11, 2)
		equal(t, "taken without room", len(in.Take()), 0)
		in.Room = -1
		in.Sub.Ready()
		late := in.Take()
		equal(t, "said when there is room", []bool{late[0].Sought, late[1].Sought}, []bool{true, false})
		equal(t, "an old lease", in.Ack(byLease(all[2]))[0], eventhub.Stale)
		_, err = r.bus.SeekGroup(ctx, "t", "g", eventhub.Start{Kind: eventhub.StartAfterID, AfterID: "none"}, true)
		wantCode(t, err, eventhub.CodeUnknownID)
		_, err = r.bus.SeekGroup(ctx, "t", "none", eventhub.Start{}, false)
		wantCode(t, err, eventhub.CodeNotSubscribed)
	})
}

// TestEventGroups: what became of one event in each group.
func TestEventGroups(t *testing.T) {
	inBubble(t, func(r *rig) {
		id := r.publish("t", 1, 1)[0].ID
		r.subscribe(opts("t", "done")).Settle(eventhub.Settlement{Refs: nil})
		done := r.subscribe(opts("t", "acked"))
		done.Ack(byLease(done.Take()[0]))
		o := opts("t", "failing")
		o.Peer.Name = "me"
		failing := r.subscribe(o)
		failing.Nack(byLease(failing.Take()[0]))
		late := opts("t", "late")
		late.Start.Kind = eventhub.StartLatest
		r.subscribe(late)
		list, err := r.bus.EventGroups(context.Background(), "t", id)
		if err != nil {
			t.Fatal(err)
		}
		states := make(map[string]string)
		for _, g := range list {
			states[g.Group] = g.State
		}
		equal(t, "states", states, map[string]string{"acked": "done", "done": "leased", "failing": "waiting", "late": "done"})
		if h := list[2].History; len(h) != 1 || h[0].Why != "nacked" || h[0].Reason != "no luck" || h[0].Member.Name != "me" {
			t.Errorf("history %+v", h)
		}
		_, err = r.bus.EventGroups(context.Background(), "t", "none")
		wantCode(t, err, eventhub.CodeUnknownID)
	})
}

// TestBlockedBy names every reason why a group waits.
func TestBlockedBy(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.stop()
		r.start(Options{AckWindow: 3})
		kind := func() string {
			synctest.Wait()
			if b := r.info("t", "g").BlockedBy; b != nil {
				return fmt.Sprintf("%s %d %s", b.Kind, b.Offset, b.State)
			}
			return ""
		}
		o := opts("t", "g")
		o.MaxInFlight = 2
		in := r.subscribe(o)
		equal(t, "with nothing to do", kind(), "")
		r.publish("t", 1, 2)
		equal(t, "with all in flight", kind(), "")
		r.publish("t", 3, 3)
		equal(t, "with a full member", kind(), "members_full 0 ")
		all := in.Take()
		in.Ack(byLease(all[1]))
		equal(t, "with a full window", kind(), "window 1 leased")
		in.Sub.Drop(0)
		equal(t, "without members", kind(), "no_members 0 ")
		r.restart()
		equal(t, "without members, after a restart", kind(), "no_members 0 ")
	})
}

// TestDeadLettersOnAFullDisk: dead letters go on while publishes are refused, until they would take the room
// that acks and a start need. Then they wait, in no member's way, and are made when there is room.
func TestDeadLettersOnAFullDisk(t *testing.T) {
	inBubble(t, func(r *rig) {
		const mib, gib = 1 << 20, 1 << 30
		faulty := r.faulty()
		in := r.subscribe(opts("t", "g"))
		r.publish("t", 1, 4)
		all := in.Take()
		giveUp := func(free uint64, e bustest.Got) {
			faulty.SetSpace(func() (store.Space, error) { return store.Space{Free: free, Total: 100 * gib}, nil })
			time.Sleep(space.LookEvery)
			in.Settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}, byLease(e))
			time.Sleep(space.RetryAfter)
		}
		giveUp(256*mib, all[0])
		equal(t, "dead letters with room for them alone", len(r.events("t.dlq")), 1)
		giveUp(256*mib-1, all[1])
		in.Ack(byLease(all[2]))
		time.Sleep(time.Second)
		equal(t, "dead letters without room", len(r.events("t.dlq")), 1)
		equal(t, "acked without room", r.stored("t", "g").Cursor, 1)
		giveUp(256*mib-1, all[3])
		equal(t, "delivered meanwhile", len(in.Take()), 0)
		giveUp(256*mib, all[0]) // has no effect
		equal(t, "dead letters with room again", len(r.events("t.dlq")), 3)
		equal(t, "stored cursor", r.stored("t", "g").Cursor, 4)
	})
}

// TestDiskNearlyFull: publishes are refused and say when to come again, acks and
// reads go on, and it is over when there is room.
func TestDiskNearlyFull(t *testing.T) {
	inBubble(t, func(r *rig) {
		faulty := r.faulty()
		in := r.subscribe(opts("t", "g"))
		r.publish("t", 1, 2)
		const gib = 1 << 30
		publish := func() error {
			time.Sleep(space.LookEvery)
			_, err := r.bus.Publish(context.Background(), eventhub.Event{Topic: "t", Payload: []byte("1")})
			return err
		}
		const minFree = 256 << 20
		for _, tt := range []struct {
			free, total uint64
			refused     bool
		}{
			{minFree - 1, gib, true}, {minFree, gib, false}, {49 * gib / 10, 100 * gib, true}, {5 * gib, 100 * gib, false}, {0, 0, false},
		} {
			faulty.SetSpace(func() (store.Space, error) { return store.Space{Free: tt.free, Total: tt.total}, nil })
			err := publish()
			if refused := eventhub.ErrorCode(err) == eventhub.CodeOverloaded; refused != tt.refused || refused && eventhub.AsError(err).RetryAfter <= 0 {
				t.Errorf("with %d of %d bytes free: %v", tt.free, tt.total, err)
			}
			if tt.refused && !strings.Contains(err.Error(), fmt.Sprintf("%d MiB are free", tt.free>>20)) {
				t.Errorf("the refusal says %v; %d bytes are free", err, tt.free)
			}
			if !tt.refused {
				continue
			}
			for _, g := range in.Take() {
				in.Ack(byLease(g))
			}
			time.Sleep(time.Second)
			equal(t, "stored cursor", r.stored("t", "g").Cursor, uint64(len(r.events("t"))))
		}
		equal(t, "events", len(r.events("t")), 2+3)
		equal(t, "times that the store was to give room back", faulty.Calls(storefault.Shrink), 2)
	})
}
