package bus

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
)

func tailOpts(topic string) eventhub.SubscribeOptions {
	return eventhub.SubscribeOptions{Topic: topic}
}

// TestTail: a subscription without a group gets every event from its start on,
// in order, with nothing to settle, and leaves nothing in the store.
func TestTail(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 3)
		late := r.subscribe(tailOpts("t"))
		o := tailOpts("t")
		o.Start.Kind = eventhub.StartEarliest
		early := r.subscribe(o)
		commits := r.store.calls["Commit"]
		r.publish("t", 4, 2)
		equal(t, "from latest", late.takeOffsets(), []uint64{4, 5})
		all := early.take()
		equal(t, "from earliest", len(all), 5)
		for i, d := range all {
			if !d.Lease.IsZero() || d.Attempt != 1 || d.Offset != uint64(i+1) {
				t.Errorf("delivery %d is %+v", i, d.Delivery)
			}
		}
		equal(t, "outcome of an ack", early.ack(byID(all[0]))[0], eventhub.Stale)
		time.Sleep(time.Hour)
		equal(t, "deliveries after an hour", len(early.take()), 0)
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
		in := r.subscribe(tailOpts("none"))
		_, err := r.bus.Topic(context.Background(), "none")
		wantCode(t, err, eventhub.CodeUnknownID)
		r.publish("none", 1, 1)
		equal(t, "deliveries", in.takeOffsets(), []uint64{1})
	})
}

// TestSlowTail: what a tail has no room for waits for it, in order.
func TestSlowTail(t *testing.T) {
	inBubble(t, func(r *rig) {
		in := r.subscribe(tailOpts("t"))
		in.room = 2
		r.publish("t", 1, 5)
		equal(t, "deliveries", in.takeOffsets(), []uint64{1, 2})
		in.room = 1
		in.sub.Ready()
		equal(t, "with room for one more", in.takeOffsets(), []uint64{3})
		in.room = -1
		in.sub.Ready()
		equal(t, "with room for all", in.takeOffsets(), []uint64{4, 5})
	})
}

// TestTailsEnd: a tail that was left is gone from the engine; one that was not
// hears when the bus closes.
func TestTailsEnd(t *testing.T) {
	inBubble(t, func(r *rig) {
		left, dropped, stays := r.subscribe(tailOpts("t")), r.subscribe(tailOpts("t")), r.subscribe(tailOpts("u"))
		if err := left.sub.Unsubscribe(context.Background()); err != nil {
			t.Error(err)
		}
		dropped.sub.Drop(0)
		r.publish("t", 1, 1)
		equal(t, "deliveries to those that left", len(left.take())+len(dropped.take()), 0)
		equal(t, "runtimes", len(r.bus.groups), 1)
		equal(t, "topics", len(r.bus.logs), 1)
		_, err := r.bus.Subscribe(context.Background(), eventhub.SubscribeOptions{Topic: "t", MaxAttempts: 3}, left)
		wantCode(t, err, eventhub.CodeBadRequest)
		r.restart()
		synctest.Wait()
		equal(t, "ends heard", []int{len(left.ended), len(dropped.ended), len(stays.ended)}, []int{0, 0, 1})
	})
}
