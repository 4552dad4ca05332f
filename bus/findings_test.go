package bus

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/bus/internal/commit"
	"eventhub/store/memory"
)

var bg = context.Background()

func TestSeekBehindARefusedDeadLetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
		for _, g := range in.take() {
			if g.Offset >= 4096 {
				refs = append(refs, byLease(g))
			}
		}
		in.ack(refs...)
		in.sub.Unsubscribe(bg)
		time.Sleep(time.Second)
		o.MaxInFlight = 1
		in = r.subscribe(o)
		in.take()
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
			_, err := r.bus.SeekGroup(ctx, "t0", "g", eventhub.Start{Kind: eventhub.StartEarliest}, true)
			sought <- err
		}()
		synctest.Wait()
		cancel()
		t.Logf("seek: %v", <-sought)
		all := in.take()
		in.settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}, byLease(all[0]))
		r.store.set(nil, nil)
		close(hold)
		synctest.Wait()
		time.Sleep(200 * time.Millisecond)
		parts, _ := r.store.GroupParts(bg, "t0", "g")
		for _, p := range parts {
			if p.Kind == partProgress {
				t.Logf("epoch %d (runtime %d): part %d with %d bytes", r.stored("t0", "g").Epoch, r.cursor("t0", "g").Epoch, p.Offset, len(p.Value))
			}
		}
		r.restart()
		o.MaxInFlight = 6000
		in = r.subscribe(o)
		synctest.Wait()
		time.Sleep(time.Hour)
		seen := map[uint64]bool{}
		for _, g := range in.take() {
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

// A pause that shares a commit with a refused dead letter, and an ack in the
// same chunk between the two.
func TestPauseBesideARefusedDeadLetter(t *testing.T) {
	inBubble(t, func(r *rig) {
		fillTopics(r)
		r.publish("t0", 2, 2)
		in := r.subscribe(opts("t0", "g"))
		all := in.take()
		time.Sleep(time.Second)
		hold := make(chan struct{})
		r.store.set(hold, nil)
		go r.publish("t1", 1, 1)
		synctest.Wait()
		in.settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}, byLease(all[1]))
		// While the committer builds its commit a member acks: between the dead letter's
		// prepare and the pause's.
		if err := r.bus.committer.Submit(bg, &onBuild{do: func() {
			in.sub.Settle(bg, eventhub.Settlement{Refs: []eventhub.Ref{byLease(all[2])}})
		}}); err != nil {
			t.Fatal(err)
		}
		paused := make(chan error, 1)
		go func() { paused <- r.bus.PauseGroup(bg, "t0", "g") }()
		synctest.Wait()
		r.store.set(nil, nil)
		close(hold)
		synctest.Wait()
		if err := <-paused; err != nil {
			t.Fatal(err)
		}
		equal(t, "dead letters", len(r.events("t0.dlq")), 0)
		// The process dies here: what another one finds.
		crashed, err := New(Options{Store: r.store})
		if err != nil {
			t.Fatal(err)
		}
		if err := crashed.ResumeGroup(bg, "t0", "g"); err != nil {
			t.Fatal(err)
		}
		got := &inbox{t: t, room: -1}
		if got.sub, err = crashed.Subscribe(bg, opts("t0", "g"), got); err != nil {
			t.Fatal(err)
		}
		equal(t, "delivered after the crash", got.takeOffsets(), []uint64{1, 2})
		crashed.Close()
	})
}

func TestRefusedPauseCounts(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.stop()
		r.start(Options{QueueBytes: 1000})
		r.publish("t", 1, 1)
		in := r.subscribe(opts("t", "g"))
		in.ack(byLease(in.take()[0]))
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

func TestTailsOfNothingLeaveNothing(t *testing.T) {
	inBubble(t, func(r *rig) {
		for i := range 1000 {
			in := r.subscribe(eventhub.SubscribeOptions{Topic: fmt.Sprintf("nothing.%d", i)})
			in.sub.Unsubscribe(bg)
			if _, err := r.bus.Subscribe(bg, eventhub.SubscribeOptions{Topic: fmt.Sprintf("refused.%d", i), Start: eventhub.Start{Kind: eventhub.StartAfterID, AfterID: "x"}}, in); err == nil {
				t.Fatal("not refused")
			}
		}
		m, err := r.bus.Measure(bg)
		if err != nil {
			t.Fatal(err)
		}
		topics, _ := r.bus.Topics(bg, "", 1000)
		equal(t, "topics", len(topics), 0)
		equal(t, "kept counts of tails", len(r.bus.counts.tails), 0)
		equal(t, "measured groups", len(m.Groups), 0)
	})
}

func TestSeekPlanSkips(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 5)
		in := r.subscribe(opts("t", "g"))
		all := in.take()
		in.ack(byLease(all[1]), byLease(all[2]), byLease(all[3]), byLease(all[4])) // 1 is open
		plan, err := r.bus.SeekGroup(bg, "t", "g", eventhub.Start{Kind: eventhub.StartOffset, Offset: 2}, false)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "skipped by a seek to 1", plan.Skipped, 1)
		equal(t, "again", plan.Again, 4)
	})
}

func TestNumbersAfterARestart(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 5)
		in := r.subscribe(opts("t", "g"))
		all := in.take()
		in.ack(byLease(all[1]), byLease(all[2]), byLease(all[3])) // 1 and 5 are open
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

func TestLeaseOfNobody(t *testing.T) {
	inBubble(t, func(r *rig) {
		receipts := r.publish("t", 1, 1)
		in := &inbox{t: t, room: 0}
		sub, err := r.bus.Subscribe(bg, opts("t", "g"), in)
		if err != nil {
			t.Fatal(err)
		}
		in.sub = sub
		synctest.Wait()
		out, err := r.bus.Settle(bg, "t", "g", eventhub.Settlement{Refs: []eventhub.Ref{{ID: receipts[0].ID, Lease: eventhub.Lease{Runtime: 1}}}})
		t.Log(out, err)
		if err == nil && out[0] == eventhub.Applied {
			t.Errorf("an ack by id without a lease of an event that was never delivered is applied; cursor %d", r.cursor("t", "g").Offset)
		}
	})
}

func TestSeekMeetsDelete(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 1)
		in := r.subscribe(opts("t", "g"))
		in.take()
		time.Sleep(time.Second)
		hold := make(chan struct{})
		r.store.set(hold, nil)
		go r.publish("t1", 1, 1)
		synctest.Wait()
		deleted, sought := make(chan error, 1), make(chan error, 1)
		go func() { deleted <- r.bus.DeleteGroup(bg, "t", "g") }()
		synctest.Wait()
		go func() {
			_, err := r.bus.SeekGroup(bg, "t", "g", eventhub.Start{Kind: eventhub.StartEarliest}, true)
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
		for _, g := range in.take() {
			in.ack(byLease(g))
		}
		err := r.bus.SetCursor(bg, "t", "g", math.MaxUint64)
		t.Logf("SetCursor: %v, cursor %d", err, r.cursor("t", "g").Offset)
		if err == nil && r.cursor("t", "g").Offset < 5 {
			t.Errorf("SetCursor(%d) put the cursor to %d", uint64(math.MaxUint64), r.cursor("t", "g").Offset)
		}
	})
}

func TestBlockedByPausedMembers(t *testing.T) {
	inBubble(t, func(r *rig) {
		in := r.subscribe(opts("t", "g"))
		in.sub.Pause(bg)
		r.publish("t", 1, 3)
		synctest.Wait()
		b := r.info("t", "g").BlockedBy
		t.Logf("%+v", b)
		if b != nil && b.Kind == "members_full" {
			t.Errorf("blocked_by is %q; the only member holds 0 of %d and has paused", b.Kind, 100)
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
		for _, g := range in.take() {
			if g.Offset != 1 && g.Offset != 10000 {
				refs = append(refs, byLease(g))
			}
		}
		in.ack(refs...)
		r.restart()
		o.MaxInFlight = 2
		before := r.store.total()
		in = r.subscribe(o)
		equal(t, "delivered", in.takeOffsets(), []uint64{1, 10000})
		if calls := r.store.total() - before; calls > 50 {
			t.Errorf("%d store calls to pass 9998 acked events", calls)
		}
	})
}

// onBuild is a job that does something while a commit is built, and has nothing in it.
type onBuild struct {
	commit.Request
	do func()
}

func (j *onBuild) Build() bool { j.do(); return false }
func (j *onBuild) Done(error)  {}
