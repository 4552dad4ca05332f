package bus

import (
	"context"
	"errors"
	"testing"
	"time"

	"eventhub"
	"eventhub/bus/internal/groupstate"
	"eventhub/store"
)

// TestOutlivedPartsAreRemoved: what a crash left of events that are done
// is gone soon after the group is loaded, whether or not it has anything to do.
func TestOutlivedPartsAreRemoved(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 1)
		in := r.subscribe(opts("t", "g"))
		in.Ack(byLease(in.Take()[0]))
		in.Sub.Drop(0)
		time.Sleep(time.Second)
		r.stop()
		left := store.GroupChange{Topic: "t", Group: "g", State: r.stored("t", "g"), Parts: []store.GroupPart{
			{Kind: groupstate.PartHistory, Offset: 1, Value: []byte(`[]`)}, {Kind: groupstate.PartProgress, Offset: 0, Value: []byte{1, 0, 1, 2}}}}
		left.State.Cursor = 4096 // the whole part
		if err := r.store.Commit(context.Background(), []*store.Unit{{Groups: []store.GroupChange{left}}}, true); err != nil {
			t.Fatal(err)
		}
		r.start(Options{})
		r.subscribe(opts("t", "g"))
		time.Sleep(time.Second)
		parts, err := r.store.GroupParts(context.Background(), "t", "g")
		if err != nil || len(parts) != 0 {
			t.Errorf("parts %v, %v", parts, err)
		}
	})
}

// TestHistoryOfWhatIsDone: the commit in which an ack-and-publish acks an event leaves the event's
// history to a later one. Where the hub ends in between, the history goes after the next
// start, although the cursor has not passed the event and nobody reads it again.
func TestHistoryOfWhatIsDone(t *testing.T) {
	inBubble(t, func(r *rig) {
		s := &interposed{Store: r.store.Store}
		r.store.Store = s
		r.publish("t", 1, 3)
		in := r.subscribe(opts("t", "g"))
		first := in.Take()
		in.Nack(byLease(first[1]))
		time.Sleep(5 * time.Second) // longer than a backoff, shorter than a lease
		again := in.Take()
		if parts := r.parts("t", "g"); len(again) != 1 || len(parts) != 2 {
			t.Fatalf("%d deliveries after a NACK, parts %v; want 1, and 2 parts", len(again), parts)
		}
		broken := errors.New("the store broke")
		s.when(afterCommit, 0, func() { s.fail(broken) })
		if _, err := in.ackAndPublish([]eventhub.Ref{byLease(again[0])}, out(`1`)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		s.off()
		if err := r.bus.Close(); !errors.Is(err, broken) {
			t.Fatalf("Close: %v", err)
		}
		s.fail(nil)
		r.start(Options{})
		one := opts("t", "g")
		one.MaxInFlight = 1 // so that a turn begins at the event that is done
		in = r.subscribe(one)
		time.Sleep(time.Second)
		for range 2 {
			in.Ack(byLease(in.Take()[0]))
			time.Sleep(time.Second)
		}
		equal(t, "the stored cursor", r.stored("t", "g").Cursor, 3)
		if parts := r.parts("t", "g"); len(parts) != 0 {
			t.Errorf("with all done the group keeps parts %v", parts)
		}
	})
}

// parts returns what the store has of a group besides its header.
func (r *rig) parts(topic, group string) []store.GroupPart {
	r.t.Helper()
	parts, err := r.store.GroupParts(context.Background(), topic, group)
	if err != nil {
		r.t.Fatal(err)
	}
	return parts
}
