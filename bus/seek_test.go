package bus

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/bus/internal/groupstate"
	"eventhub/internal/bubble"
	"eventhub/store/memory"
)

func TestSeekBehindARefusedDeadLetter(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := &rig{t: t, store: &meter{Store: memory.Open(memory.Options{MaxTopics: 100})}}
		r.start(Options{QueueBytes: 1000})
		fillTopics(r)
		for i := range 5 {
			r.publish("t0", i*1000, 1000) // offsets 2 to 5001
		}
		o := opts("t0", "g")
		o.MaxInFlight = 6000
		in := r.subscribe(o)
		var refs []eventhub.Ref
		for _, g := range in.Take() {
			if g.Offset >= 4096 {
				refs = append(refs, byLease(g))
			}
		}
		in.Ack(refs...)
		in.Sub.Unsubscribe(bg)
		time.Sleep(time.Second)
		o.MaxInFlight = 1
		in = r.subscribe(o)
		in.Take()
		hold := make(chan struct{})
		r.store.set(hold, nil)
		big := func() {
			if _, err := r.bus.Publish(bg, eventhub.Event{Topic: "t1", Payload: []byte(`"` + strings.Repeat("x", 2000) + `"`)}); err != nil {
				t.Error(err)
			}
		}
		go big()
		synctest.Wait()
		go big()
		synctest.Wait()
		ctx, cancel := context.WithCancel(bg)
		sought := make(chan error, 1)
		go func() {
			_, err := r.bus.SeekGroup(ctx, "t0", "g", eventhub.Earliest, true)
			sought <- err
		}()
		synctest.Wait()
		cancel()
		t.Logf("seek: %v", <-sought)
		all := in.Take()
		in.Settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}, byLease(all[0]))
		r.store.set(nil, nil)
		close(hold)
		synctest.Wait()
		time.Sleep(200 * time.Millisecond)
		parts, _ := r.store.GroupParts(bg, "t0", "g")
		for _, p := range parts {
			if p.Kind == groupstate.PartProgress {
				t.Logf("epoch %d (runtime %d): part %d with %d bytes", r.stored("t0", "g").Epoch, r.cursor("t0", "g").Epoch, p.Offset, len(p.Value))
			}
		}
		r.restart()
		o.MaxInFlight = 6000
		in = r.subscribe(o)
		synctest.Wait()
		time.Sleep(time.Hour)
		seen := map[uint64]bool{}
		for _, g := range in.Take() {
			seen[g.Offset] = true
		}
		missing := 0
		for i := uint64(1); i <= 5001; i++ {
			if !seen[i] {
				missing++
			}
		}
		equal(t, "events never delivered after a seek to the start", missing, 0)
		r.stop()
		r.store.Close()
	})
}

func TestRefusedPauseCounts(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.stop()
		r.start(Options{QueueBytes: 1000})
		r.publish("t", 1, 1)
		in := r.subscribe(opts("t", "g"))
		in.Ack(byLease(in.Take()[0]))
		time.Sleep(time.Second)
		hold := make(chan struct{})
		r.store.set(hold, nil)
		big := func() {
			if _, err := r.bus.Publish(bg, eventhub.Event{Topic: "t1", Payload: []byte(`"` + strings.Repeat("x", 2000) + `"`)}); err != nil {
				t.Error(err)
			}
		}
		go big()
		synctest.Wait()
		go big()
		synctest.Wait()
		ctx, cancel := context.WithCancel(bg)
		answered := make(chan error, 2)
		go func() { answered <- r.bus.PauseGroup(ctx, "t", "g") }()
		synctest.Wait()
		cancel()
		t.Log(<-answered)
		r.store.set(nil, nil)
		close(hold)
		synctest.Wait()
		time.Sleep(time.Second)
		i := r.info("t", "g")
		s := r.stored("t", "g")
		if i.Paused != s.Paused || i.Epoch != s.Epoch {
			t.Errorf("after a refused pause the runtime has paused %v, epoch %d, cursor %d; the store, a second later, paused %v, epoch %d, cursor %d", i.Paused, i.Epoch, i.Cursor, s.Paused, s.Epoch, s.Cursor)
		}
	})
}

func TestSeekPlanSkips(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 5)
		in := r.subscribe(opts("t", "g"))
		all := in.Take()
		in.Ack(byLease(all[1]), byLease(all[2]), byLease(all[3]), byLease(all[4])) // 1 is open
		plan, err := r.bus.SeekGroup(bg, "t", "g", eventhub.Start{Kind: eventhub.StartOffset, Offset: 2}, false)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "skipped by a seek to 1", plan.Skipped, 1)
		equal(t, "again", plan.Again, 4)
	})
}

func TestSeekMeetsDelete(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 1)
		in := r.subscribe(opts("t", "g"))
		in.Take()
		time.Sleep(time.Second)
		hold := make(chan struct{})
		r.store.set(hold, nil)
		go r.publish("t1", 1, 1)
		synctest.Wait()
		deleted, sought := make(chan error, 1), make(chan error, 1)
		go func() { deleted <- r.bus.DeleteGroup(bg, "t", "g") }()
		synctest.Wait()
		go func() {
			_, err := r.bus.SeekGroup(bg, "t", "g", eventhub.Earliest, true)
			sought <- err
		}()
		synctest.Wait()
		r.store.set(nil, nil)
		close(hold)
		synctest.Wait()
		if err := <-deleted; err != nil {
			t.Error(err)
		}
		err := <-sought
		t.Log(err)
		wantCode(t, err, eventhub.CodeNotSubscribed)
	})
}

func TestSetCursorToTheEndOfTime(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 5)
		in := r.subscribe(opts("t", "g"))
		for _, g := range in.Take() {
			in.Ack(byLease(g))
		}
		err := r.bus.SetCursor(bg, "t", "g", math.MaxUint64)
		t.Logf("SetCursor: %v, cursor %d", err, r.cursor("t", "g").Offset)
		if err == nil && r.cursor("t", "g").Offset < 5 {
			t.Errorf("SetCursor(%d) put the cursor to %d", uint64(math.MaxUint64), r.cursor("t", "g").Offset)
		}
	})
}

// TestAckedIsNotReadAgain: what was acked above the cursor before a restart is
// passed without being read.
func TestAckedIsNotReadAgain(t *testing.T) {
	inBubble(t, func(r *rig) {
		for i := range 10 {
			r.publish("t", i*1000, 1000)
		}
		o := opts("t", "g")
		o.MaxInFlight = 20000
		in := r.subscribe(o)
		var refs []eventhub.Ref
		for _, g := range in.Take() {
			if g.Offset != 1 && g.Offset != 10000 {
				refs = append(refs, byLease(g))
			}
		}
		in.Ack(refs...)
		r.restart()
		o.MaxInFlight = 2
		before := r.store.total()
		in = r.subscribe(o)
		equal(t, "delivered", in.TakeOffsets(), []uint64{1, 10000})
		if calls := r.store.total() - before; calls > 50 {
			t.Errorf("%d store calls to pass 9998 acked events", calls)
		}
	})
}

// A paused group that waited for room does not keep it from those that wait after it.
func TestPausedGroupLetsOthersHaveTheRoom(t *testing.T) {
	inBubble(t, func(r *rig) {
		in, first := r.fullMember("p.x", "p.y", "p.z")
		if err := errors.Join(r.bus.PauseGroup(bg, "p.x", "g"), r.bus.PauseGroup(bg, "p.y", "g")); err != nil {
			t.Fatal(err)
		}
		in.Ack(leasesOf(first)...)
		equal(t, "next", places(in.Take()), []string{"p.z/1"})
	})
}

// The room that a seek sets free in one topic is for all, also where the group there
// is paused.
func TestSeekSetsRoomFree(t *testing.T) {
	inBubble(t, func(r *rig) {
		in, _ := r.fullMember("p.x", "p.y")
		if err := errors.Join(r.bus.PauseGroup(bg, "p.x", "g"), r.bus.SetCursor(bg, "p.x", "g", 0)); err != nil {
			t.Fatal(err)
		}
		equal(t, "next", places(in.Take()), []string{"p.y/1"})
	})
}

// A suspect that waits until the member holds nothing goes out when a seek in another
// topic has taken what it held.
func TestSeekSetsAReservedMemberFree(t *testing.T) {
	inBubble(t, func(r *rig) {
		in := r.subscribe(opts("*", "g"))
		r.publish("a", 1, 1)
		r.publish("b", 1, 1)
		suspect, other := eventhub.Ref{}, 0
		for range 2 {
			for _, g := range in.Take() {
				if g.Topic == "a" {
					suspect = byLease(g)
				} else {
					other++
				}
			}
			in.lapse(suspect)
			time.Sleep(time.Millisecond)
		}
		equal(t, "while b is held", []int{other, len(in.Take())}, []int{1, 0})
		if err := r.bus.SetCursor(bg, "b", "g", 0); err != nil {
			t.Fatal(err)
		}
		equal(t, "after the seek", places(in.Take()), []string{"a/1"})
	})
}

func (r *rig) seekToEnd(topic, group string) {
	r.t.Helper()
	if _, err := r.bus.SeekGroup(bg, topic, group, eventhub.Start{}, true); err != nil {
		r.t.Fatal(err)
	}
}

// The room of leases that a seek voids goes to the other groups of the subscription
// that wait for it, also where the group that was moved is paused.
func TestSeekGivesRoomToOtherTopics(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := opts("p.*", "g")
		o.MaxInFlight = 1
		in := r.subscribe(o)
		r.publish("p.a", 1, 1)
		synctest.Wait()
		r.publish("p.b", 1, 1)
		equal(t, "at first", places(in.Take()), []string{"p.a/1"})
		if err := r.bus.PauseGroup(bg, "p.a", "g"); err != nil {
			t.Fatal(err)
		}
		r.seekToEnd("p.a", "g")
		equal(t, "after the seek", places(in.Take()), []string{"p.b/1"})
	})
}

// A suspect that waits until its subscription holds nothing goes out when the rest
// of that was void by a seek in another topic.
func TestSeekLetsASuspectOfAnotherTopicGo(t *testing.T) {
	inBubble(t, func(r *rig) {
		in := r.subscribe(opts("p.*", "g"))
		r.publish("p.a", 1, 1)
		equal(t, "at first", places(in.Take()), []string{"p.a/1"})
		r.makeSuspect(in, "p.b")
		time.Sleep(time.Millisecond)
		equal(t, "while another is held", len(in.Take()), 0)
		r.seekToEnd("p.a", "g")
		equal(t, "after the seek", places(in.Take()), []string{"p.b/1"})
	})
}

// A group that is paused while it is in the queue for room lets the next one
// have it.
func TestPausedGroupPassesRoomOn(t *testing.T) {
	inBubble(t, func(r *rig) {
		in, held := r.fullMember("p.c", "p.a", "p.b")
		if err := errors.Join(r.bus.PauseGroup(bg, "p.a", "g"), r.bus.PauseGroup(bg, "p.c", "g")); err != nil {
			t.Fatal(err)
		}
		in.Ack(leasesOf(held)...)
		equal(t, "then", places(in.Take()), []string{"p.b/1"})
	})
}

// Nor does it keep a subscription free for a suspect that does not go out.
func TestPausedGroupKeepsNobodyForItsSuspects(t *testing.T) {
	for _, out := range []bool{true, false} {
		inBubble(t, func(r *rig) {
			in := r.subscribe(opts("p.*", "g"))
			r.publish("p.a", 1, 1)
			held := in.Take()
			r.makeSuspect(in, "p.b")
			if out {
				in.Ack(leasesOf(held)...)
			}
			time.Sleep(time.Millisecond)
			suspects := in.Take()
			equal(t, "suspects out", len(suspects) == 1, out)
			if err := r.bus.PauseGroup(bg, "p.b", "g"); err != nil {
				t.Fatal(err)
			}
			r.publish("p.c", 1, 1)
			if out {
				equal(t, "with a suspect under way", len(in.Take()), 0)
				in.Ack(leasesOf(suspects)...)
			}
			equal(t, "then", places(in.Take()), []string{"p.c/1"})
		})
	}
}

// TestEpochOfDeliveries: the first delivery of a member, and the first after a seek, has
// the epoch of the group, until the receiver has taken it; others have none.
func TestEpochOfDeliveries(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 4)
		epochs := func(ds []got) (all []uint64) {
			for _, d := range ds {
				all = append(all, d.Epoch)
			}
			return all
		}
		in := r.subscribe(opts("t", "g"))
		epoch := r.info("t", "g").Epoch
		equal(t, "of a new member", epochs(in.Take()), []uint64{epoch, 0, 0, 0})
		r.publish("t", 5, 1)
		equal(t, "later", epochs(in.Take()), []uint64{0})
		in.Room = 0
		if _, err := r.bus.SeekGroup(bg, "t", "g", eventhub.Earliest, true); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		in.Room = -1
		in.Sub.Ready()
		equal(t, "after a seek, where it was not taken at once", epochs(in.Take()), []uint64{epoch + 1, 0, 0, 0, 0})
		in.Sub.Unsubscribe(bg)
		if _, err := r.bus.SeekGroup(bg, "t", "g", eventhub.Earliest, true); err != nil {
			t.Fatal(err)
		}
		in = r.subscribe(opts("t", "g"))
		again := in.Take()
		equal(t, "of a member that comes after a seek", epochs(again), []uint64{epoch + 2, 0, 0, 0, 0})
		equal(t, "it says Sought", again[0].Sought, false)
		r.restart()
		in = r.subscribe(opts("t", "g"))
		equal(t, "after a restart", epochs(in.Take()), []uint64{epoch + 2, 0, 0, 0, 0})
	})
}

// TestSeekIf: of two who have looked at the same plan the first moves the group, and the second changes nothing.
func TestSeekIf(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 5)
		r.subscribe(opts("t", "g")).Take()
		plan, err := r.bus.SeekGroup(bg, "t", "g", eventhub.Latest, false)
		if err != nil {
			t.Fatal(err)
		}
		first, err := r.bus.SeekGroupIf(bg, "t", "g", eventhub.Latest, plan.Epoch)
		if err != nil || !first.Applied || first.To != 5 || first.Epoch <= plan.Epoch {
			t.Errorf("the first: %+v, %v", first, err)
		}
		if second, err := r.bus.SeekGroupIf(bg, "t", "g", eventhub.Earliest, plan.Epoch); eventhub.ErrorCode(err) != eventhub.CodeConflict {
			t.Errorf("the second: %+v, %v", second, err)
		}
		info, err := r.bus.Group(bg, "t", "g")
		if err != nil || info.Cursor != 5 || info.Epoch != first.Epoch {
			t.Errorf("the group is at %d in epoch %d, %v", info.Cursor, info.Epoch, err)
		}
	})
}
