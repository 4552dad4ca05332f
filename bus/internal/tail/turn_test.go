package tail

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/store/storefault"
)

func TestTailsOfNothingLeaveNothing(t *testing.T) {
	inBubble(t, func(r *rig) {
		for i := range 1000 {
			in := r.tail(eventhub.TailOptions{Topic: fmt.Sprintf("nothing.%d", i)})
			in.Sub.Unsubscribe(bg)
			if _, err := r.tails.Open(bg, eventhub.TailOptions{Topic: fmt.Sprintf("refused.%d", i), Start: eventhub.Start{Kind: eventhub.StartAfterID, AfterID: "x"}}, in); err == nil {
				t.Fatal("not refused")
			}
		}
		topics, _ := r.store.ListTopics(bg, "", 1000)
		equal(t, "topics", len(topics), 0)
		_, _, kept := r.tails.Holds()
		equal(t, "topics of which something is kept", kept, 0)
		equal(t, "measured topics", len(r.tails.Measure()), 0)
	})
}

// TestTailOverHoles: a tail passes over offsets that hold no event, in the middle and
// at the head, whether it keeps up or reads for itself.
func TestTailOverHoles(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.stop()
		s := storefault.Wrap(r.store.Store)
		r.store.Store = s
		s.After(storefault.Read, func(*storefault.Call) {
			if s.Calls(storefault.Read) > 1000 {
				panic("it is read over and over")
			}
		})
		r.start(1) // so that all is read from the store
		s.Hide("t", 2, 3, 4, 6, 7, 8)
		keepsUp, slow := r.tail(tailOpts("t")), r.tail(tailOpts("t"))
		slow.Room = 0
		for i := range 7 {
			r.publish("t", i, 1)
			synctest.Wait()
		}
		slow.Room = -1
		slow.Sub.Ready()
		for name, in := range map[string]*inbox{"keeps up": keepsUp, "was slow": slow} {
			equal(t, "events of the one that "+name, in.TakeOffsets(), []uint64{1, 5})
		}
		early := r.tail(eventhub.TailOptions{Topic: "t", Start: eventhub.Start{Kind: eventhub.StartOffset, Offset: 6}})
		equal(t, "events where there are none", len(early.Take()), 0)
		r.publish("t", 7, 2)
		for name, in := range map[string]*inbox{"keeps up": keepsUp, "was slow": slow, "came into a hole": early} {
			equal(t, "events after the holes of the one that "+name, in.TakeOffsets(), []uint64{9})
		}
	})
}

// TestTailThatBeginsAhead: a tail may begin at an offset that is still to come, and
// gets nothing before it, though its shard reads that for the others.
func TestTailThatBeginsAhead(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 1)
		ahead := r.tail(eventhub.TailOptions{Topic: "t", Start: eventhub.Start{Kind: eventhub.StartOffset, Offset: 5}})
		other := r.tail(tailOpts("t"))
		r.publish("t", 2, 2)
		equal(t, "events before its place", len(ahead.Take()), 0)
		r.publish("t", 4, 3) // its place is in the middle
		equal(t, "events from its place on", ahead.TakeOffsets(), []uint64{5, 6})
		equal(t, "events of another", other.TakeOffsets(), []uint64{2, 3, 4, 5, 6})
	})
}

// TestLaggingTopicsTakeTurns: a tail that is far behind in one topic does not wait
// with the others until it has caught up there.
func TestLaggingTopicsTakeTurns(t *testing.T) {
	const many = 5 * roundEvents
	inBubble(t, func(r *rig) {
		for i := range 5 {
			r.publish("a", i*roundEvents, roundEvents)
		}
		r.publish("b", 1, 1)
		in := r.tail(eventhub.TailOptions{Topic: "*", Start: eventhub.Earliest})
		all := in.Take()
		equal(t, "events", len(all), many+1)
		at := slices.IndexFunc(all, func(d got) bool { return d.Topic == "b" })
		if at < 0 || at > roundEvents {
			t.Errorf("the event of the other topic comes at place %d; at most %d is right", at, roundEvents)
		}
	})
}

// TestTopicForATailThatLeft: a tail that leaves while the committer is about to attach
// it to a newborn topic is not attached, and leaves nothing.
func TestTopicForATailThatLeft(t *testing.T) {
	inBubble(t, func(r *rig) {
		in := r.tail(tailOpts("p.*"))
		r.tails.mu.Lock()
		topic := r.tails.use("p.new")
		r.tails.mu.Unlock()
		in.Sub.Drop(0)
		in.Sub.(*Tail).attach(topic, 0, beginning{})
		equal(t, "topics left", r.topics(), 0)
		equal(t, "tails of the topic", topic.tails(), 0)
	})
}

// TestBusClosesWhileATailOpens: who gets an error from Subscribe hears of no end.
func TestBusClosesWhileATailOpens(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("a", 1, 1)
		r.store.failHeadOf = "b" // which takes a while
		in := &inbox{T: t, Room: -1}
		refused := make(chan error)
		go func() {
			_, err := r.tails.Open(context.Background(), eventhub.TailOptions{Topic: "a", Topics: []string{"b"}}, in)
			refused <- err
		}()
		synctest.Wait()
		began := time.Now()
		r.stop()
		if time.Since(began) != 0 {
			t.Error("the bus has waited for the tail to open")
		}
		if err := <-refused; err == nil {
			t.Error("the tail has opened on a bus that is closed")
		}
		equal(t, "ends heard", len(in.Ends), 0)
		equal(t, "what is left", r.left(), 0)
		r.store.failHeadOf = ""
		r.start(1 << 20)
	})
}

// TestCountsOfADeletedTopic: tails that outlive their topic go on counting in its next
// life, and what they were handed is forgotten with the last of them.
func TestCountsOfADeletedTopic(t *testing.T) {
	inBubble(t, func(r *rig) {
		in := r.tail(tailOpts("t"))
		r.publish("t", 1, 2)
		equal(t, "events of the first life", len(in.Take()), 2)
		if err := r.deleteTopic("t"); err != nil {
			t.Fatal(err)
		}
		r.publish("t", 3, 1)
		equal(t, "events of the next", len(in.Take()), 1)
		equal(t, "counted", r.measured("t").Delivered, 3)
		in.Sub.Drop(0)
		equal(t, "counted when the tail has left", r.measured("t").Delivered, 0)
	})
}
