package tail

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/store"
)

func tailOpts(topic string) eventhub.TailOptions {
	return eventhub.TailOptions{Topic: topic}
}

// TestTail: a subscription without a group gets every event from its start on,
// in order, with nothing to settle, and leaves nothing in the store.
func TestTail(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 3)
		late := r.tail(tailOpts("t"))
		o := tailOpts("t")
		o.Start.Kind = eventhub.StartEarliest
		early := r.tail(o)
		commits := r.store.calls["Commit"]
		r.publish("t", 4, 2)
		equal(t, "from latest", late.TakeOffsets(), []uint64{4, 5})
		all := early.Take()
		equal(t, "from earliest", len(all), 5)
		for i, d := range all {
			if !d.Lease.IsZero() || d.Attempt != 1 || d.Offset != uint64(i+1) {
				t.Errorf("delivery %d is %+v", i, d.Delivery)
			}
		}
		equal(t, "outcome of an ack", early.Ack(byID(all[0]))[0], eventhub.Stale)
		time.Sleep(time.Hour)
		equal(t, "deliveries after an hour", len(early.Take()), 0)
		equal(t, "commits beside the publish", r.store.calls["Commit"]-commits, 1)
		groups, err := r.store.ListGroups(context.Background(), "t")
		if err != nil || len(groups) != 0 {
			t.Errorf("ListGroups = %v, %v; tails leave nothing", groups, err)
		}
	})
}

// TestTailWithoutTopic: a tail creates no topic, and gets what comes later.
func TestTailWithoutTopic(t *testing.T) {
	inBubble(t, func(r *rig) {
		in := r.tail(tailOpts("none"))
		if _, err := r.store.Topic(bg, "none"); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("the tail has created its topic: %v", err)
		}
		r.publish("none", 1, 1)
		equal(t, "deliveries", in.TakeOffsets(), []uint64{1})
	})
}

// TestSlowTail: what a tail has no room for waits for it, in order.
func TestSlowTail(t *testing.T) {
	inBubble(t, func(r *rig) {
		in := r.tail(tailOpts("t"))
		in.Room = 2
		r.publish("t", 1, 5)
		equal(t, "deliveries", in.TakeOffsets(), []uint64{1, 2})
		in.Room = 1
		in.Sub.Ready()
		equal(t, "with room for one more", in.TakeOffsets(), []uint64{3})
		in.Room = -1
		in.Sub.Ready()
		equal(t, "with room for all", in.TakeOffsets(), []uint64{4, 5})
	})
}

// TestTailsEnd: a tail that was left is gone from the engine; one that was not
// hears when the bus closes.
func TestTailsEnd(t *testing.T) {
	inBubble(t, func(r *rig) {
		left, dropped, stays := r.tail(tailOpts("t")), r.tail(tailOpts("t")), r.tail(tailOpts("u"))
		if err := left.Sub.Unsubscribe(context.Background()); err != nil {
			t.Error(err)
		}
		dropped.Sub.Drop(0)
		r.publish("t", 1, 1)
		equal(t, "deliveries to those that left", len(left.Take())+len(dropped.Take()), 0)
		equal(t, "tails", r.count(), 1)
		equal(t, "topics", r.topics(), 1)
		r.restart()
		synctest.Wait()
		equal(t, "ends heard", []int{len(left.Ends), len(dropped.Ends), len(stays.Ends)}, []int{0, 0, 1})
	})
}

// TestTailRefusesAtEveryPlace: a receiver may take any prefix of what it is handed,
// and gets the rest later, in order and once.
func TestTailRefusesAtEveryPlace(t *testing.T) {
	const n = 7
	for room := range n + 1 {
		inBubble(t, func(r *rig) {
			o := tailOpts("t")
			o.BatchSize = 3
			in, other := r.tail(o), r.tail(o)
			in.Room = room
			r.publish("t", 1, n)
			got := in.TakeOffsets()
			equal(t, "with room for some", len(got), room)
			r.publish("t", 1, 1)
			equal(t, "without room", len(in.Take()), 0)
			equal(t, "another tail", other.TakeOffsets(), []uint64{1, 2, 3, 4, 5, 6, 7, 8})
			in.Room = -1
			in.Sub.Ready()
			equal(t, "all of it", append(got, in.TakeOffsets()...), []uint64{1, 2, 3, 4, 5, 6, 7, 8})
		})
	}
}

// TestTailLeavesDuringTurn: a tail that leaves while its shard hands events over gets
// nothing afterwards; nor does one that is still to come in that turn.
func TestTailLeavesDuringTurn(t *testing.T) {
	inBubble(t, func(r *rig) {
		blocker := &stopper{entered: make(chan struct{}), release: make(chan struct{})}
		sub, err := r.tails.Open(context.Background(), tailOpts("t"), blocker)
		if err != nil {
			t.Fatal(err)
		}
		in := r.tail(tailOpts("t"))
		r.publish("t", 1, 1)
		<-blocker.entered
		in.Sub.Drop(0)
		left := make(chan struct{})
		go func() {
			sub.Drop(0)
			close(left)
		}()
		close(blocker.release)
		<-left
		r.publish("t", 2, 1)
		equal(t, "deliveries to the one that left", len(in.Take()), 0)
		equal(t, "deliveries to the other", blocker.taken, 1)
		equal(t, "topics", r.topics(), 0)
	})
}

// stopper is a Receiver whose first Deliver waits.
type stopper struct {
	entered, release chan struct{}
	taken            int
}

func (s *stopper) Deliver(batch []eventhub.Delivery) int {
	if s.taken == 0 {
		close(s.entered)
		<-s.release
	}
	s.taken += len(batch)
	return len(batch)
}

func (s *stopper) Ended(error) {}

// TestTailHasNothingToSettle: verdicts have no effect, and an ack-and-publish is refused.
func TestTailHasNothingToSettle(t *testing.T) {
	inBubble(t, func(r *rig) {
		in := r.tail(tailOpts("t"))
		r.publish("t", 1, 1)
		ref := byID(in.Take()[0])
		equal(t, "outcome of an extension", in.Settle(eventhub.Settlement{Verdict: eventhub.Extend}, ref)[0], eventhub.Unknown)
		_, err := eventhub.AckAndPublish(context.Background(), in.Sub, []eventhub.Ref{ref}, eventhub.Event{Topic: "u", Payload: []byte(`1`)})
		wantCode(t, err, eventhub.CodeBadRequest)
		if _, err := r.store.Topic(bg, "u"); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("it has published: %v", err)
		}
		r.stop()
		_, err = in.Sub.Settle(context.Background(), eventhub.Settlement{Refs: []eventhub.Ref{ref}})
		wantCode(t, err, eventhub.CodeShuttingDown)
		wantCode(t, in.Sub.Pause(context.Background()), eventhub.CodeShuttingDown)
		_, err = r.tails.Open(context.Background(), tailOpts("t"), in)
		wantCode(t, err, eventhub.CodeShuttingDown)
		equal(t, "ends heard", len(in.Ends), 1)
		r.start(1 << 20)
	})
}

// TestTailPauses: a tail that is paused gets nothing, and goes on where it was.
func TestTailPauses(t *testing.T) {
	inBubble(t, func(r *rig) {
		in := r.tail(tailOpts("t"))
		if err := in.Sub.Pause(context.Background()); err != nil {
			t.Fatal(err)
		}
		r.publish("t", 1, 3)
		in.Sub.Ready()
		equal(t, "deliveries while it is paused", len(in.Take()), 0)
		if err := in.Sub.Resume(context.Background()); err != nil {
			t.Fatal(err)
		}
		equal(t, "deliveries afterwards", in.TakeOffsets(), []uint64{1, 2, 3})
	})
}

// TestTailThatCannotOpen: a subscription that is refused half-way leaves nothing, and
// its receiver hears of nothing, not even of the bus's end.
func TestTailThatCannotOpen(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("a", 1, 1)
		r.publish("b", 1, 1)
		r.store.failHeadOf = "b"
		in := &inbox{T: t, Room: -1}
		o := eventhub.TailOptions{Topic: "*", Start: eventhub.Earliest}
		_, err := r.tails.Open(context.Background(), o, in)
		wantCode(t, err, eventhub.CodeInternal)
		equal(t, "deliveries", len(in.Take()), 0)
		equal(t, "what is left", r.left(), 0)
		r.store.failHeadOf = ""
		r.restart()
		equal(t, "ends heard", len(in.Ends), 0)
	})
}

// TestTailBetweenCommitAndNews: the store shows a commit before the committer has
// notified of it. A shard that reads it there does not skip those who begin with
// it.
func TestTailBetweenCommitAndNews(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.stop()
		r.start(1)
		first := &stopper{entered: make(chan struct{}), release: make(chan struct{})}
		if _, err := r.tails.Open(context.Background(), tailOpts("t"), first); err != nil {
			t.Fatal(err)
		}
		r.publish("t", 1, 1)
		<-first.entered
		r.publish("t", 2, 1)
		news := make(chan struct{})
		r.store.setAfter(news)
		published := make(chan struct{})
		go func() {
			r.publish("t", 3, 1)
			close(published)
		}()
		synctest.Wait() // it is in the store
		close(first.release)
		synctest.Wait() // and the shard has read what there is
		o := tailOpts("t")
		o.Start = eventhub.Start{Kind: eventhub.StartOffset, Offset: 3}
		in := r.tail(o)
		r.store.setAfter(nil)
		close(news)
		<-published
		equal(t, "deliveries", in.TakeOffsets(), []uint64{3})
		equal(t, "events of the first", first.taken, 3)
	})
}

// TestLaggingTailReadsForItself: a tail far behind reads the log once, and those that
// keep up, in its shard and in another, do not read at all.
func TestLaggingTailReadsForItself(t *testing.T) {
	const tails, rounds, each = shardSize + 10, 40, 100
	inBubble(t, func(r *rig) {
		r.stop()
		r.start(2 * each * 120) // more than one commit
		slow := r.tail(tailOpts("t"))
		slow.Room = 0
		all := counter{new(atomic.Int64), 0, nil}
		for range tails {
			if _, err := r.tails.Open(context.Background(), tailOpts("t"), all); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		reads := r.store.count1("Read")
		for i := range rounds {
			r.publish("t", i*each, each)
			synctest.Wait()
		}
		equal(t, "events handed to those that keep up", all.delivered.Load(), tails*rounds*each)
		equal(t, "reads for them", r.store.count1("Read")-reads, 0)
		slow.Room = -1
		slow.Sub.Ready()
		equal(t, "events of the one that lagged", len(slow.Take()), rounds*each)
		// Its reads grow from a batch to roundEvents.
		if n := r.store.count1("Read") - reads; n == 0 || n > 10 {
			t.Errorf("%d reads of %d events", n, rounds*each)
		}
		reads = r.store.count1("Read")
		r.publish("t", 0, 1)
		equal(t, "events when it has caught up", len(slow.Take()), 1)
		equal(t, "reads then", r.store.count1("Read")-reads, 0)
	})
}
