package bus

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/store"
)

// makeSuspect publishes one event that the inbox is given and fails until it may go
// out alone only; it is due again a millisecond later.
func (r *rig) makeSuspect(in *inbox, topic string) {
	r.t.Helper()
	r.publish(topic, 1, 1)
	for n := range isolateAfter {
		if n > 0 {
			time.Sleep(time.Millisecond)
		}
		in.lapse(leasesOf(in.take())...)
	}
}

// lapse lets leases run out, which takes a second; the events are due again a millisecond
// later.
func (in *inbox) lapse(leases ...eventhub.Ref) {
	in.settle(eventhub.Settlement{Verdict: eventhub.Extend, By: time.Second}, leases...)
	time.Sleep(time.Second)
	synctest.Wait() // what is said from now on only brings the events back soon
	in.settle(eventhub.Settlement{Verdict: eventhub.Nack, Delay: time.Millisecond}, leases...)
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
		equal(t, "at first", places(in.take()), []string{"p.a/1"})
		if err := r.bus.PauseGroup(bg, "p.a", "g"); err != nil {
			t.Fatal(err)
		}
		r.seekToEnd("p.a", "g")
		equal(t, "behind the seek", places(in.take()), []string{"p.b/1"})
	})
}

// A suspect that waits until its subscription holds nothing goes out when the rest
// of that was void by a seek in another topic.
func TestSeekLetsASuspectOfAnotherTopicGo(t *testing.T) {
	inBubble(t, func(r *rig) {
		in := r.subscribe(opts("p.*", "g"))
		r.publish("p.a", 1, 1)
		equal(t, "at first", places(in.take()), []string{"p.a/1"})
		r.makeSuspect(in, "p.b")
		time.Sleep(time.Millisecond)
		equal(t, "while another is held", len(in.take()), 0)
		r.seekToEnd("p.a", "g")
		equal(t, "behind the seek", places(in.take()), []string{"p.b/1"})
	})
}

// A creation reaches all members, also behind one that asked for other settings than the
// topic has by another pattern of the group.
func TestTopicReachesAllMembers(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := opts("a.*", "g")
		o.MaxAttempts = 5
		one := r.subscribe(o)
		o.Topic, o.MaxAttempts = "*.x", 7
		two := r.subscribe(o)
		_, err := r.bus.Publish(bg, inTopic("a.x", 1)[0], inTopic("a.y", 1)[0], inTopic("b.x", 1)[0])
		if err != nil {
			t.Fatal(err)
		}
		a, b := places(one.take()), places(two.take())
		if !slices.Contains(a, "a.y/1") || !slices.Contains(b, "b.x/1") || len(a)+len(b) != 3 {
			t.Errorf("deliveries: %v and %v", a, b)
		}
	})
}

// A creation that was missed, because the process ended behind the commit that created the
// topic, is made up for by the next start, whether somebody subscribes or not.
func TestMissedBirthIsMadeUpForAtStart(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := opts("p.*", "g")
		o.MaxAttempts = 3
		in := r.subscribe(o)
		if err := in.sub.Unsubscribe(bg); err != nil {
			t.Fatal(err)
		}
		r.bus.patterns.end()
		r.publish("p.a", 1, 2)
		r.publish("q", 1, 1)
		r.restart()
		synctest.Wait()
		info, err := r.bus.Group(bg, "p.a", "g")
		if err != nil || info.Lag != 2 || info.MaxAttempts != 3 {
			t.Errorf("the group in the topic that was created: %+v, %v", info, err)
		}
		_, err = r.bus.Group(bg, "q", "g")
		wantCode(t, err, eventhub.CodeNotSubscribed)
	})
}

// An id names the last lease that a member was given: not one that another member's
// receiver had no room for.
func TestIDNamesTheLeaseThatWasGiven(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := opts("p.*", "g")
		o.AckTimeout = time.Second
		one := r.subscribe(o)
		r.publish("p.a", 1, 1)
		first := one.take()
		if err := one.sub.Pause(bg); err != nil {
			t.Fatal(err)
		}
		two := r.subscribe(o)
		two.mu.Lock()
		two.room = 0
		two.mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		two.mu.Lock()
		equal(t, "asked", len(two.calls), 1)
		two.mu.Unlock()
		equal(t, "late, by id", one.ack(byID(first[0])), []eventhub.Outcome{eventhub.Applied})
		equal(t, "ids", one.sub.(*subscription).ids.len()+two.sub.(*subscription).ids.len(), 0)
	})
}

// The leases of a pull stand when a handover of one is refused.
func TestHandOverOfAPullRefused(t *testing.T) {
	inBubble(t, func(r *rig) {
		for i := range 99 {
			r.publish("t"+string(rune('a'+i/10))+string(rune('a'+i%10)), 1, 1)
		}
		r.publish("t", 1, 1)
		got := r.pull(opts("t", "g"), 0)
		hs := []eventhub.Handover{{Refs: []eventhub.Ref{{Lease: got[0].Lease}}, Events: inTopic("one-too-many", 1)}}
		answered := make(chan struct{})
		r.bus.HandOver(bg, "t", "g", hs, func([]eventhub.Handover) { close(answered) })
		<-answered
		wantCode(t, hs[0].Err, eventhub.CodeOverloaded)
		equal(t, "others get", len(r.pull(opts("t", "g"), 0)), 0)
		equal(t, "its ack", r.ackPulled(got), []eventhub.Outcome{eventhub.Applied})
	})
}

// A late handover that is refused leaves the event waiting, with the attempts that it
// had: no lease comes back to life.
func TestLateHandOverRefusedWaitsOn(t *testing.T) {
	for _, due := range []bool{false, true} {
		inBubble(t, func(r *rig) {
			s := &picky{Store: r.store.Store}
			synctest.Wait() // the engine has looked at its store
			r.store.Store = s
			r.publish("in", 1, 1)
			r.publish("out", 1, 1)
			o := opts("in", "g")
			o.AckTimeout, o.Backoff = time.Second, eventhub.Backoff{Min: time.Hour, Max: time.Hour}
			in := r.subscribe(o)
			first := in.take()
			time.Sleep(2 * time.Second)
			hold := make(chan struct{})
			s.set(hold, nil)
			bad := out(`1`)
			bad.ID = "poison"
			hs := []eventhub.Handover{{Refs: leasesOf(first), Events: []eventhub.Event{bad}}}
			in.sub.HandOver(bg, hs, func([]eventhub.Handover) {})
			if due {
				time.Sleep(2 * time.Hour)
			}
			close(hold)
			s.set(nil, nil)
			synctest.Wait()
			wantCode(t, hs[0].Err, eventhub.CodeOverloaded)
			list, err := r.bus.InFlight(bg, "in", "g", 10)
			if err != nil || len(list) != 1 {
				t.Fatalf("InFlight = %+v, %v", list, err)
			}
			again := in.take()
			if due {
				equal(t, "delivered", len(again), 1)
				equal(t, "attempt", list[0].Attempt, 2)
			} else {
				equal(t, "delivered", len(again), 0)
				equal(t, "stands", list[0].State, "waiting")
			}
		})
	}
}

// A late handover takes room while it is under way, and gives back no more than that.
func TestLateHandOverKeepsTheCountOfRoom(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("in", 1, 3)
		o := opts("in", "g")
		o.MaxInFlight, o.AckTimeout, o.Backoff = 1, time.Second, eventhub.Backoff{Min: time.Hour, Max: time.Hour}
		in := r.subscribe(o)
		first := in.take()
		time.Sleep(time.Second)
		second := in.take()
		equal(t, "in its place", offsets(second), []uint64{2})
		if _, err := in.handOver(leasesOf(first), out(`1`)); err != nil {
			t.Fatal(err)
		}
		equal(t, "while the second is held", len(in.take()), 0)
		in.ack(leasesOf(second)...)
		equal(t, "then", in.takeOffsets(), []uint64{3})
	})
}

// sparse hides one offset of a topic, as if the log had let go of it.
type sparse struct {
	store.Store
	topic string
	gone  uint64
}

func (s *sparse) Read(ctx context.Context, topic string, from uint64, limit, maxBytes int, batch *store.Batch) error {
	if topic == s.topic && from <= s.gone {
		// What lies before it, or else what lies behind.
		if from < s.gone {
			return s.Store.Read(ctx, topic, from, min(limit, int(s.gone-from)), maxBytes, batch)
		}
		from = s.gone + 1
	}
	return s.Store.Read(ctx, topic, from, limit, maxBytes, batch)
}

// A wait for an event that the log has let go of ends where the group reads on.
func TestWaitForWhatIsGone(t *testing.T) {
	inBubble(t, func(r *rig) {
		in := r.subscribe(earliest("t", "g"))
		if err := in.sub.Unsubscribe(bg); err != nil {
			t.Fatal(err)
		}
		w := r.enqueue(bg, eventhub.Publication{Events: inTopic("t", 2)[1:], WaitFor: []string{"g"}, WaitUpTo: time.Minute})
		r.publish("t", 3, 1)
		equal(t, "over before", w.over(), false)
		synctest.Wait()
		r.store.Store = &sparse{Store: r.store.Store, topic: "t", gone: w.pubs[0].Receipts[0].Offset}
		in = r.subscribe(earliest("t", "g"))
		equal(t, "delivered", in.takeOffsets(), []uint64{2})
		equal(t, "over", w.over(), true)
		if w.pubs[0].Err != nil {
			t.Error(w.pubs[0].Err)
		}
	})
}

// A handover that finds no room in the queue in time takes no delivery.
func TestHandOverGivenUpInTheQueue(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.stop()
		r.start(Options{QueueBytes: 1})
		r.publish("in", 1, 1)
		in := r.subscribe(opts("in", "g"))
		got := in.take()
		hold := make(chan struct{})
		r.store.set(hold, nil)
		for range 2 { // one in the commit, one in the queue
			go r.publish("other", 1, 1)
			synctest.Wait()
		}
		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		hs := []eventhub.Handover{{Refs: leasesOf(got), Events: []eventhub.Event{out(`1`)}}}
		in.sub.HandOver(ctx, hs, func([]eventhub.Handover) {})
		wantCode(t, hs[0].Err, eventhub.CodeOverloaded)
		r.store.set(nil, nil)
		close(hold)
		equal(t, "its ack", in.ack(leasesOf(got)...), []eventhub.Outcome{eventhub.Applied})
	})
}
