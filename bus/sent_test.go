package bus

import (
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
)

func buffered(topic, group string) eventhub.GroupOptions {
	o := opts(topic, group)
	o.Buffered = true
	return o
}

// A lease does not run out before its delivery was sent; then it runs in full.
func TestLeaseOfWhatIsNotSent(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := buffered("p.*", "g")
		o.MaxAttempts, o.AckTimeout = 1, 10*time.Second
		in := r.subscribe(o)
		r.publish("p.a", 1, 2)
		all := in.Take()
		r.publish("p.b", 1, 1)
		all = append(all, in.Take()...)
		equal(t, "came", len(all), 3)
		time.Sleep(time.Minute)
		in.Sub.Sent(1)
		time.Sleep(9 * time.Second)
		equal(t, "in time", in.Settle(eventhub.Settlement{Verdict: eventhub.Extend, By: time.Second}, leasesOf(all)...),
			[]eventhub.Outcome{eventhub.Applied, eventhub.Applied, eventhub.Applied})
		time.Sleep(30 * time.Second)
		synctest.Wait()
		equal(t, "given up of p.a", len(r.events("p.a.dlq")), 1)
		in.Sub.Sent(2)
		time.Sleep(11 * time.Second)
		synctest.Wait()
		equal(t, "given up of p.a", len(r.events("p.a.dlq")), 2)
		equal(t, "given up of p.b", len(r.events("p.b.dlq")), 1)
		equal(t, "in the queue", len(in.Sub.(*subscription).queue.items), 0)
	})
}

// What is sent at once costs no second appointment.
func TestSentAtOnce(t *testing.T) {
	inBubble(t, func(r *rig) {
		in := r.subscribe(buffered("t", "g"))
		r.publish("t", 1, 50)
		in.Take()
		in.Sub.Sent(50)
		g := r.bus.running("t", "g")
		equal(t, "appointments", g.state.Deadlines(), 50)
	})
}

// What was not sent in an hour goes to another member, as if it had not been tried.
func TestUnsentGoesToAnother(t *testing.T) {
	inBubble(t, func(r *rig) {
		in := r.subscribe(buffered("t", "g"))
		r.publish("t", 1, 1)
		equal(t, "came", in.TakeOffsets(), []uint64{1})
		in.Mu.Lock()
		in.Room = 0
		in.Mu.Unlock()
		other := r.subscribe(opts("t", "g"))
		time.Sleep(59 * time.Minute)
		equal(t, "within the hour", len(other.Take()), 0)
		time.Sleep(time.Minute + 10*time.Second)
		got := other.Take()
		if len(got) != 1 || got[0].Attempt != 1 {
			t.Errorf("then came %+v; want the event, as attempt 1", got)
		}
	})
}

// A lease that falls due while its member is about to leave, and is still in the group,
// ends no attempt of what was not sent: the connection of a peer that takes nothing ends
// at a whole second, as leases do.
func TestUnsentFallsDueInLeaving(t *testing.T) {
	for _, auto := range []bool{false, true} {
		inBubble(t, func(r *rig) {
			o := buffered("p.*", "g")
			o.MaxAttempts, o.AckTimeout, o.AutoAck = 1, 10*time.Second, auto
			in := r.subscribe(o)
			r.publish("p.a", 1, 2)
			equal(t, "came", len(in.Take()), 2)
			r.publish("p.b", 1, 1)
			equal(t, "came", len(in.Take()), 1)
			in.Sub.Sent(1)
			s := in.Sub.(*subscription)
			equal(t, "is the first to leave", s.depart(), true)
			time.Sleep(11 * time.Second)
			synctest.Wait()
			s.letGo(2)
			synctest.Wait()
			for topic, sent := range map[string]int{"p.a": 1, "p.b": 0} {
				if auto {
					sent = 0 // that is acked
				}
				equal(t, "given up of "+topic, len(r.events(topic+".dlq")), sent)
			}
			again := r.subscribe(buffered("p.*", "g"))
			got := again.Take()
			equal(t, "come to the next member", len(got), 2)
			for _, d := range got {
				equal(t, "attempt of "+d.Topic, d.Attempt, 1)
			}
		})
	}
}

// Who acks by being sent to has acked what was sent, and nothing else.
func TestAutoAckOfWhatIsSent(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := buffered("p.*", "g")
		o.AutoAck, o.MaxInFlight, o.MaxAttempts = true, 5, 1
		in := r.subscribe(o)
		r.publish("p.a", 1, 9)
		all := in.Take()
		equal(t, "came", offsets(all), []uint64{1, 2, 3, 4, 5})
		equal(t, "by id", in.Ack(eventhub.Ref{ID: all[0].ID(), Topic: "p.a"}), []eventhub.Outcome{eventhub.Stale})
		in.Sub.Sent(2)
		equal(t, "then came", in.TakeOffsets(), []uint64{6, 7})
		equal(t, "the cursor", r.cursor("p.a", "g").Offset, uint64(2))
		in.Sub.Drop(5)
		in.Sub.Sent(1) // too late to mean anything
		again := r.subscribe(buffered("p.*", "g"))
		equal(t, "again", again.TakeOffsets(), []uint64{3, 4, 5, 6, 7, 8, 9})
		equal(t, "given up", len(r.events("p.a.dlq")), 0)
	})
}

// What is reported of deliveries that a seek or the end of the topic has taken away has no
// effect.
func TestSentOfWhatIsGone(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := buffered("p.*", "g")
		o.AutoAck, o.MaxInFlight = true, 2
		in := r.subscribe(o)
		r.publish("p.a", 1, 2)
		equal(t, "came", in.TakeOffsets(), []uint64{1, 2})
		if err := r.bus.SetCursor(bg, "p.a", "g", 0); err != nil {
			t.Fatal(err)
		}
		equal(t, "came again", in.TakeOffsets(), []uint64{1, 2})
		in.Sub.Sent(2) // of the first time
		equal(t, "the cursor", r.cursor("p.a", "g").Offset, uint64(0))
		in.Sub.Sent(1)
		equal(t, "the cursor", r.cursor("p.a", "g").Offset, uint64(1))
		if err := r.bus.DeleteTopic(bg, "p.a"); err != nil {
			t.Fatal(err)
		}
		r.publish("p.a", 1, 2)
		equal(t, "of the new topic", len(in.Take()), 2)
		in.Sub.Sent(1) // of the old one
		in.Sub.Sent(2)
		synctest.Wait()
		equal(t, "the lag", r.bus.running("p.a", "g").state.Lag(r.bus.running("p.a", "g").log.Head(), 1), uint64(0))
	})
}

// What was not sent may be settled all the same, by the id of an event that came before.
// When the member is lost, that gives no attempt back of what was sent.
func TestUnsentAndSettled(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := buffered("t", "g")
		o.MaxInFlight, o.AckTimeout, o.Backoff = 4, time.Second, eventhub.Backoff{Min: time.Millisecond, Max: time.Millisecond}
		in := r.subscribe(o)
		r.publish("t", 1, 4)
		first := in.Take()
		in.Sub.Sent(4)
		time.Sleep(2 * time.Second)
		equal(t, "came again", offsets(in.Take()), []uint64{1, 2, 3, 4})
		in.Sub.Sent(2)
		equal(t, "by id", in.Ack(byID(first[3])), []eventhub.Outcome{eventhub.Applied})
		in.Sub.Drop(2)
		var attempts []int
		list, err := r.bus.InFlight(bg, "t", "g", 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range list {
			attempts = append(attempts, f.Attempt)
		}
		equal(t, "attempts", attempts, []int{2, 2, 1})
	})
}
