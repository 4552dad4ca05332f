package bus

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"

	"eventhub"
	"eventhub/bus/internal/bustest"
	"eventhub/internal/bubble"
	"eventhub/internal/testsize"
	"eventhub/store/memory"
	"eventhub/store/storefault"
)

var stuckTrials = testsize.Int("stuck.trials", 2000, 500, "trials of TestNobodyIsStuck")

// TestNobodyIsStuck looks for a lost wake-up. The engine has no poll to fall back
// on: a group that is scheduled while its turn is under way has another one, and
// nothing else would wake it. So publishers, members that ack, members that die, and
// pauses race; no time passes in the bubble; and when nobody can do any more, all
// events must be acked.
func TestNobodyIsStuck(t *testing.T) {
	seed := drawSeed(t)
	for trial := range *stuckTrials {
		bubble.Test(t, func(t *testing.T) { tryToStick(t, rand.New(rand.NewPCG(seed, uint64(trial)))) })
		if t.Failed() {
			t.Fatalf("trial %d", trial)
		}
	}
}

func tryToStick(t *testing.T, rng *rand.Rand) {
	s := storefault.Wrap(memory.Open(memory.Options{}))
	yields := rng.IntN(6)
	s.Before(storefault.Commit, func(*storefault.Call) error { yield(yields); return nil })
	b, err := New(Options{Store: s, TailCacheBytes: 1 + rng.IntN(1000), AckWindow: uint64(1 + rng.IntN(20))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	o := eventhub.GroupOptions{
		Topic: "t", Group: "g", Start: eventhub.Earliest, MaxAttempts: 100,
		BatchSize: 1 + rng.IntN(3), MaxInFlight: 1 + rng.IntN(3), Ordering: []string{eventhub.OrderingNone, eventhub.OrderingKey}[rng.IntN(2)],
	}
	var all sync.WaitGroup
	events := 0
	for range 2 {
		n, at := 1+rng.IntN(8), rng.IntN(20)
		events += n
		all.Go(func() { trickle(t, b, n, at) })
	}
	for range 2 {
		at := rng.IntN(20)
		all.Go(func() {
			yield(at)
			if err := eventhub.Consume(ctx, b, atOnce(2, o), func(context.Context, eventhub.Delivery) error { return nil }); err != nil {
				t.Errorf("Consume: %v", err)
			}
		})
	}
	for range rng.IntN(3) {
		at, room, until := rng.IntN(20), rng.IntN(3), rng.IntN(20)
		all.Go(func() { dieSoon(t, b, o, at, room, until) })
	}
	for range rng.IntN(2) {
		at, until := rng.IntN(20), rng.IntN(20)
		all.Go(func() { pauseAWhile(t, b, at, until) })
	}
	synctest.Wait()
	if c, err := b.Cursor(ctx, "t", "g"); err != nil || int(c.Offset) != events {
		t.Errorf("the group is stuck at %d of %d: %v (%+v)", c.Offset, events, err, o)
	}
	cancel()
	all.Wait()
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// yield lets others run.
func yield(times int) {
	for range times {
		runtime.Gosched()
	}
}

// trickle publishes n events one by one.
func trickle(t *testing.T, b *Bus, n, at int) {
	yield(at)
	for i := range n {
		if _, err := b.Publish(context.Background(), eventhub.Event{Topic: "t", Key: fmt.Sprint(i % 3), Payload: []byte("1")}); err != nil {
			t.Errorf("Publish: %v", err)
		}
		yield(at % 3)
	}
}

// dieSoon is a member that takes a few events and is gone without a verdict.
func dieSoon(t *testing.T, b *Bus, o eventhub.GroupOptions, at, room, until int) {
	yield(at)
	sub, err := b.Subscribe(context.Background(), o, &inbox{Inbox: bustest.Inbox{T: t, Room: room}})
	if err != nil {
		t.Errorf("Subscribe: %v", err)
		return
	}
	yield(until)
	sub.Drop(0)
}

// pauseAWhile pauses the group, where there is one, and lets it go on.
func pauseAWhile(t *testing.T, b *Bus, at, until int) {
	yield(at)
	if eventhub.ErrorCode(b.PauseGroup(context.Background(), "t", "g")) == eventhub.CodeNotSubscribed {
		return
	}
	yield(until)
	if err := b.ResumeGroup(context.Background(), "t", "g"); err != nil {
		t.Errorf("ResumeGroup: %v", err)
	}
}
