package bus

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
)

func (r *rig) pull(o eventhub.GroupOptions, wait time.Duration) []eventhub.Delivery {
	r.t.Helper()
	ds, err := r.bus.Pull(context.Background(), o, wait)
	if err != nil {
		r.t.Fatal(err)
	}
	return ds
}

func (r *rig) ackPulled(ds []eventhub.Delivery) []eventhub.Outcome {
	r.t.Helper()
	s := eventhub.Settlement{}
	for _, d := range ds {
		s.Refs = append(s.Refs, eventhub.Ref{Lease: d.Lease})
	}
	outcomes, err := r.bus.Settle(context.Background(), "t", "g", s)
	if err != nil {
		r.t.Fatal(err)
	}
	return outcomes
}

func TestPullTakesWhatIsThereAndKeepsTheLeases(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 5)
		o := opts("t", "g")
		o.MaxInFlight, o.AckTimeout = 3, 10*time.Second
		first := r.pull(o, 0)
		equal(t, "first", len(first), 3)
		second := r.pull(o, 0)
		equal(t, "second", []uint64{second[0].Offset, second[1].Offset}, []uint64{4, 5})
		equal(t, "nothing left", len(r.pull(o, time.Second)), 0)
		equal(t, "acks", r.ackPulled(first), []eventhub.Outcome{eventhub.Applied, eventhub.Applied, eventhub.Applied})
		equal(t, "cursor", r.cursor("t", "g").Offset, 3)
		// What nobody settles runs out and comes again.
		time.Sleep(o.AckTimeout + eventhub.DefaultMinBackoff)
		again := r.pull(o, time.Second)
		equal(t, "again", []int{len(again), again[0].Attempt}, []int{2, 2})
		equal(t, "too late", r.ackPulled(second), []eventhub.Outcome{eventhub.Stale, eventhub.Stale})
		r.ackPulled(again)
		equal(t, "cursor", r.cursor("t", "g").Offset, 5)
	})
}

func TestPullWaits(t *testing.T) {
	inBubble(t, func(r *rig) {
		began := time.Now()
		equal(t, "without result", len(r.pull(opts("t", "g"), time.Minute)), 0)
		equal(t, "waited", time.Since(began).String(), "1m0s")
		time.AfterFunc(5*time.Second, func() { r.publish("t", 1, 1) })
		began = time.Now()
		equal(t, "with luck", len(r.pull(opts("t", "g"), time.Minute)), 1)
		equal(t, "waited", time.Since(began).String(), "5s")
	})
}

// A pull that is given up gives back what it was given, at once and without an
// attempt.
func TestPullGivenUp(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			ds, err := r.bus.Pull(ctx, opts("t", "g"), time.Minute)
			if len(ds) != 0 || err != nil {
				t.Errorf("the pull that was given up returned %d, %v", len(ds), err)
			}
		}()
		synctest.Wait()
		cancel()
		<-done
		r.publish("t", 1, 1)
		ds := r.pull(opts("t", "g"), 0)
		equal(t, "attempt", ds[0].Attempt, 1)
	})
}

func TestPullsAndMembersShareTheGroup(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := opts("t", "g")
		o.MaxInFlight = 1
		in := r.subscribe(o)
		r.publish("t", 1, 2)
		a := in.Take()
		ds := r.pull(o, 0)
		equal(t, "shared", []uint64{a[0].Offset, ds[0].Offset}, []uint64{1, 2})
		wait := eventhub.GroupOptions{Topic: "t", Group: "g"}
		_, err := r.bus.Pull(context.Background(), wait, time.Hour)
		wantCode(t, err, eventhub.CodeBadRequest)
		wait.Group = ""
		_, err = r.bus.Pull(context.Background(), wait, 0)
		wantCode(t, err, eventhub.CodeBadRequest)
	})
}

func TestPullEndsWithTheBus(t *testing.T) {
	inBubble(t, func(r *rig) {
		failed := make(chan error, 1)
		go func() {
			_, err := r.bus.Pull(context.Background(), opts("t", "g"), time.Minute)
			failed <- err
		}()
		synctest.Wait()
		r.stop()
		wantCode(t, <-failed, eventhub.CodeShuttingDown)
		r.start(Options{})
	})
}

// TestPullIsBounded: a pull takes no more bytes than it may, and one event whatever
// its size.
func TestPullIsBounded(t *testing.T) {
	batch := make([]eventhub.Delivery, 20)
	for i := range batch {
		batch[i].Record = make(eventhub.Record, maxPullBytes/8)
	}
	p := &pull{room: 100, some: make(chan struct{})}
	equal(t, "taken", p.Deliver(batch), 8)
	equal(t, "of what comes later", p.Deliver([]eventhub.Delivery{{Record: make(eventhub.Record, 1)}}), 0)
	batch[0].Record = make(eventhub.Record, 2*maxPullBytes)
	p = &pull{room: 100, some: make(chan struct{})}
	equal(t, "taken where the first is large", p.Deliver(batch), 1)
	ds, err := p.close()
	equal(t, "deliveries", len(ds), 1)
	equal(t, "error", err, nil)
}
