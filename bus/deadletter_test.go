package bus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/bus/internal/bustest"
	"eventhub/bus/internal/commit"
	"eventhub/bus/internal/deadletter"
	"eventhub/bus/internal/groupstate"
	"eventhub/bus/internal/topiclog"
	"eventhub/internal/strictjson"
)

// A pause that shares a commit with a refused dead letter, and an ack in the
// same chunk between the two.
func TestPauseBesideARefusedDeadLetter(t *testing.T) {
	inBubble(t, func(r *rig) {
		fillTopics(r)
		r.publish("t0", 2, 2)
		in := r.subscribe(opts("t0", "g"))
		all := in.Take()
		time.Sleep(time.Second)
		hold := make(chan struct{})
		r.store.set(hold, nil)
		go r.publish("t1", 1, 1)
		synctest.Wait()
		in.Settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}, byLease(all[1]))
		// While the committer builds its commit a member acks: between the dead letter's
		// prepare and the pause's.
		if err := r.bus.committer.Submit(bg, &onBuild{do: func() {
			in.Sub.Settle(bg, eventhub.Settlement{Refs: []eventhub.Ref{byLease(all[2])}})
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
		got := &inbox{Inbox: bustest.Inbox{T: t, Room: -1}}
		if got.Sub, err = crashed.Subscribe(bg, opts("t0", "g"), got); err != nil {
			t.Fatal(err)
		}
		equal(t, "delivered after the crash", got.TakeOffsets(), []uint64{1, 2})
		crashed.Close()
	})
}

// onBuild is a job that does something while a commit is built, and has nothing in it.
type onBuild struct {
	commit.Request
	do func()
}

func (j *onBuild) Build() bool { j.do(); return false }

func (j *onBuild) Done(error) {}

// TestRefusedDeadLetterCountsAttempts: an event whose dead letter is refused
// comes again with an attempt from 1 to the most.
func TestRefusedDeadLetterCountsAttempts(t *testing.T) {
	inBubble(t, func(r *rig) {
		fillTopics(r)
		in := r.subscribe(opts("t0", "g"))
		g := in.Take()[0]
		if err := in.Sub.Unsubscribe(context.Background()); err != nil {
			t.Fatal(err)
		}
		in.Settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}, byLease(g))
		next := r.subscribe(opts("t0", "g"))
		time.Sleep(time.Hour)
		all := next.Take()
		if len(all) == 0 || all[0].Attempt != 1 {
			t.Errorf("after the refusal came %+v; want attempt 1", all)
		}
	})
}

// fillTopics creates as many topics as the store of a rig may hold.
func fillTopics(r *rig) {
	for i := range 100 {
		r.publish(fmt.Sprintf("t%d", i), 1, 1)
	}
}

// TestDeepPayloadIsDeadLettered: what may be published may also be given up.
func TestDeepPayloadIsDeadLettered(t *testing.T) {
	inBubble(t, func(r *rig) {
		payload := strings.Repeat("[", strictjson.MaxDepth) + strings.Repeat("]", strictjson.MaxDepth)
		if _, err := r.bus.Publish(context.Background(), eventhub.Event{Topic: "t", Payload: []byte(payload)}); err != nil {
			t.Fatal(err)
		}
		in := r.subscribe(opts("t", "g"))
		in.Settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}, byLease(in.Take()[0]))
		equal(t, "dead letters", len(r.events("t.dlq")), 1)
		equal(t, "cursor", r.cursor("t", "g").Offset, 1)
	})
}

// TestDeadLetterOpensTheWindow: a group that waits for its cursor goes on when a
// dead letter moves it.
func TestDeadLetterOpensTheWindow(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.stop()
		r.start(Options{AckWindow: 3})
		r.publish("t", 1, 6)
		o := opts("t", "g")
		o.MaxInFlight = 3
		in := r.subscribe(o)
		all := in.Take()
		hold := make(chan struct{})
		r.store.set(hold, nil)
		in.Settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}, byLease(all[0]))
		in.Ack(byLease(all[1]), byLease(all[2]))
		equal(t, "deliveries while the window is full", len(in.Take()), 0)
		r.store.set(nil, nil)
		close(hold)
		equal(t, "offsets after the dead letter", in.TakeOffsets(), []uint64{4, 5, 6})
	})
}

// TestManyDeadLettersGoInRounds: a member that takes a large lot of last attempts
// with it does not make one turn read all of them.
func TestManyDeadLettersGoInRounds(t *testing.T) {
	inBubble(t, func(r *rig) {
		const n = 3*roundEvents + 1
		o := opts("t", "g")
		o.MaxInFlight, o.MaxAttempts = n, 1
		in := r.subscribe(o)
		r.publish("t", 1, n)
		equal(t, "deliveries", len(in.Take()), n)
		in.Sub.Drop(0)
		synctest.Wait()
		equal(t, "cursor", r.cursor("t", "g").Offset, n)
		g := newGroup(r.bus, topiclog.New(0).Use("t"), groupKey{topic: "t", group: "h"})
		g.fetch = new(fetcher)
		g.state.ReturnLetters(make([]groupstate.Letter, n))
		g.plan(time.Now().UnixMilli())
		equal(t, "to dead-letter in one round", len(g.fetch.letters), roundEvents)
	})
}

// TestSeekWhileADeadLetterWaits: the seek takes the event back, and a dead
// letter of the epoch before does not stand for it.
func TestSeekWhileADeadLetterWaits(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 1)
		in := r.subscribe(opts("t", "g"))
		epoch := r.stored("t", "g").Epoch
		hold := make(chan struct{})
		r.store.set(hold, nil)
		go r.publish("other", 1, 1) // keeps the committer busy
		terminal := eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}
		in.Settle(terminal, byLease(in.Take()[0]))
		moved := make(chan error, 1)
		go func() { moved <- r.bus.SetCursor(context.Background(), "t", "g", 0) }()
		again := in.Take()
		equal(t, "deliveries after the seek", len(again), 1)
		in.Settle(terminal, byLease(again[0]))
		r.store.set(nil, nil)
		close(hold)
		if err := <-moved; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		equal(t, "cursor", r.cursor("t", "g").Offset, 1)
		dead := r.events("t.dlq")
		if len(dead) != 1 || dead[0].ID != deadletter.ID("t", 1, "g", epoch+1, "") {
			t.Errorf("dead letters %+v; want the one of the second epoch", dead)
		}
	})
}

// TestDeadLetterAndCursorAreOneUnit: when the dead letter is in the log the cursor
// has passed the event, without waiting for a flush.
func TestDeadLetterAndCursorAreOneUnit(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 3)
		in := r.subscribe(opts("t", "g"))
		all := in.Take()
		in.Settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}, byLease(all[0]), byLease(all[1]))
		equal(t, "dead letters", len(r.events("t.dlq")), 2)
		equal(t, "stored cursor", r.stored("t", "g").Cursor, 2)
	})
}

// TestEveryEpochHasItsDeadLetter: who moves a group back and fails again hears
// of it again.
func TestEveryEpochHasItsDeadLetter(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 1)
		in := r.subscribe(opts("t", "g"))
		for n := 1; n <= 2; n++ {
			in.Settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}, byLease(in.Take()[0]))
			equal(t, "dead letters", len(r.events("t.dlq")), n)
			if err := r.bus.SetCursor(context.Background(), "t", "g", 0); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestRefusedDeadLetterComesAgain: the event is not lost with it.
func TestRefusedDeadLetterComesAgain(t *testing.T) {
	inBubble(t, func(r *rig) {
		fillTopics(r)
		o := opts("t0", "g")
		o.Backoff = eventhub.Backoff{Min: time.Second, Max: time.Minute}
		o.AckTimeout = time.Hour // no lease's end wakes the group before
		in := r.subscribe(o)
		for range 3 {
			all := in.Take()
			if len(all) != 1 || all[0].Attempt != 1 {
				t.Errorf("got %+v; want the event at attempt 1", all)
				return
			}
			in.Settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}, byLease(all[0]))
			equal(t, "cursor", r.cursor("t0", "g").Offset, 0)
			time.Sleep(time.Minute)
		}
	})
}

// TestBrokenStoreDeadLettersNothing: a dead letter whose commit failed may not be in
// the log, so its event is not done.
func TestBrokenStoreDeadLettersNothing(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 1)
		in := r.subscribe(opts("t", "g"))
		all := in.Take()
		broken := errors.New("disk on fire")
		r.store.set(nil, broken)
		in.Settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}, byLease(all[0]))
		equal(t, "cursor", r.cursor("t", "g").Offset, 0)
		r.store.set(nil, nil)
		if err := r.bus.Close(); !errors.Is(err, broken) {
			t.Errorf("Close = %v; want %v", err, broken)
		}
		r.start(Options{})
		equal(t, "offsets after a restart", r.subscribe(opts("t", "g")).TakeOffsets(), []uint64{1})
	})
}
