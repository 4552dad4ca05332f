package bus

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/bus/internal/bustest"
	"eventhub/store/storefault"
)

func TestLeaseOfNobody(t *testing.T) {
	inBubble(t, func(r *rig) {
		receipts := r.publish("t", 1, 1)
		in := &inbox{Inbox: bustest.Inbox{T: t, Room: 0}}
		sub, err := r.bus.Subscribe(bg, opts("t", "g"), in)
		if err != nil {
			t.Fatal(err)
		}
		in.Sub = sub
		synctest.Wait()
		out, err := r.bus.Settle(bg, "t", "g", eventhub.Settlement{Refs: []eventhub.Ref{{ID: receipts[0].ID, Lease: eventhub.Lease{Runtime: 1}}}})
		t.Log(out, err)
		if err == nil && out[0] == eventhub.Applied {
			t.Errorf("an ack by id without a lease of an event that was never delivered is applied; cursor %d", r.cursor("t", "g").Offset)
		}
	})
}

// An event that was offered to somebody who did not take it is still that of the
// member who had it last, also where that names it by its id.
func TestRefusedOfferKeepsTheLastLeaseByID(t *testing.T) {
	inBubble(t, func(r *rig) {
		in := r.subscribe(opts("p.*", "g"))
		receipts := r.publish("p.a", 1, 1)
		in.lapse(leasesOf(in.Take())...)
		if err := in.Sub.Pause(bg); err != nil {
			t.Fatal(err)
		}
		if _, err := r.bus.Subscribe(bg, opts("p.a", "g"), &inbox{Inbox: bustest.Inbox{T: t}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		equal(t, "a late ack", in.Ack(eventhub.Ref{ID: receipts[0].ID}), []eventhub.Outcome{eventhub.Applied})
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
		first := one.Take()
		if err := one.Sub.Pause(bg); err != nil {
			t.Fatal(err)
		}
		two := r.subscribe(o)
		two.Mu.Lock()
		two.Room = 0
		two.Mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		two.Mu.Lock()
		equal(t, "asked", len(two.Calls), 1)
		two.Mu.Unlock()
		equal(t, "late, by id", one.Ack(byID(first[0])), []eventhub.Outcome{eventhub.Applied})
		equal(t, "ids", one.Sub.(*subscription).ids.len()+two.Sub.(*subscription).ids.len(), 0)
	})
}

// TestLateNackAfterUnsubscribe: leaving gives the attempt back, and the latest
// lease still counts while nobody holds the event.
func TestLateNackAfterUnsubscribe(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 1)
		in := r.subscribe(opts("t", "g"))
		g := in.Take()[0]
		if err := in.Sub.Unsubscribe(context.Background()); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if p := recover(); p != nil {
				t.Errorf("panic: %v", p)
				r.bus.groups[groupKey{topic: "t", group: "g"}].mu.Unlock() // so that the bus can be closed
			}
		}()
		equal(t, "outcome", in.Nack(byLease(g))[0], eventhub.Applied)
		time.Sleep(time.Minute)
		equal(t, "attempt", r.subscribe(opts("t", "g")).Take()[0].Attempt, 1)
	})
}

// TestLeaseThatWasNeverGiven: an event that no receiver took has no lease, so
// no token names it.
func TestLeaseThatWasNeverGiven(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 2)
		in := &inbox{Inbox: bustest.Inbox{T: t, Room: 1}}
		sub, err := r.bus.Subscribe(context.Background(), opts("t", "g"), in)
		if err != nil {
			t.Fatal(err)
		}
		in.Sub = sub
		token := in.Take()[0].Lease
		token.Offset, token.Serial = 2, 0
		equal(t, "outcome", in.Ack(eventhub.Ref{Lease: token})[0], eventhub.Stale)
	})
}

// TestExtendsDoNotPileUp: asking for the same deadline again and again costs
// nothing.
func TestExtendsDoNotPileUp(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 1)
		in := r.subscribe(opts("t", "g"))
		ref := byLease(in.Take()[0])
		for range 5000 {
			time.Sleep(time.Millisecond)
			in.Settle(eventhub.Settlement{Verdict: eventhub.Extend, By: time.Hour}, ref)
		}
		if n, _ := r.appointments("t", "g"); n > 2048 {
			t.Errorf("one lease has %d appointments", n)
		}
	})
}

// TestLeavingDoesNotPileUp: members that come and go leave nothing in memory, also
// while somebody else stays.
func TestLeavingDoesNotPileUp(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 100)
		o := opts("t", "g")
		o.MaxInFlight = 1
		r.subscribe(o)
		for range 100 {
			in := r.subscribe(opts("t", "g"))
			if err := in.Sub.Unsubscribe(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		if n, held := r.appointments("t", "g"); n > 2048 {
			t.Errorf("%d appointments for %d leases", n, held)
		}
	})
}

// nackedAndRead returns a member with a delivery that it has NACKed. The event is due again,
// and its read, at the valve, goes on when hold is closed.
func (r *rig) nackedAndRead(v *valve) (in *inbox, first got, hold chan struct{}) {
	r.publish("t", 1, 1)
	in = r.subscribe(opts("t", "g"))
	first = in.Take()[0]
	hold = make(chan struct{})
	v.set(hold)
	in.Settle(eventhub.Settlement{Verdict: eventhub.Nack, Delay: time.Second}, byLease(first))
	time.Sleep(time.Second)
	synctest.Wait()
	return in, first, hold
}

// TestNackWhileTheEventIsRead: a verdict that counts is obeyed, also when the
// event was about to go out.
func TestNackWhileTheEventIsRead(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.stop()
		v := &valve{meter: &meter{Store: r.store.Store}}
		r.store.Store = v
		r.start(Options{TailCacheBytes: 1})
		in, first, hold := r.nackedAndRead(v)
		late := eventhub.Settlement{Verdict: eventhub.Nack, Delay: time.Hour}
		equal(t, "outcome", in.Settle(late, byLease(first))[0], eventhub.Applied)
		v.set(nil)
		close(hold)
		equal(t, "deliveries before the delay is over", len(in.Take()), 0)
		time.Sleep(time.Hour)
		equal(t, "offsets after it", in.TakeOffsets(), []uint64{1})
	})
}

// TestNackWhileTheReadFails: trying again does not bring the event forward.
func TestNackWhileTheReadFails(t *testing.T) {
	overFaulty(t, func(r *rig, s *storefault.Store) {
		v := &valve{meter: &meter{Store: s}}
		r.store.Store = v
		in, first, hold := r.nackedAndRead(v)
		in.Settle(eventhub.Settlement{Verdict: eventhub.Nack, Delay: time.Hour}, byLease(first))
		s.Inject(storefault.Fault{Op: storefault.Read, Err: errors.New("the disk coughs")})
		v.set(nil)
		close(hold)
		synctest.Wait()
		s.Clear()
		time.Sleep(time.Hour - time.Second)
		equal(t, "deliveries before the delay is over", len(in.Take()), 0)
		time.Sleep(time.Second)
		equal(t, "offsets after it", in.TakeOffsets(), []uint64{1})
	})
}

// appointments returns how many ends of leases a group has noted, and how many
// leases there are.
func (r *rig) appointments(topic, name string) (leases, held int) {
	g := r.bus.groups[groupKey{topic: topic, group: name}]
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.state.Deadlines(), g.state.Leased()
}

// TestAppointmentsAreBounded: void ones go when they are the larger part, and
// those that stay keep their order.
func TestAppointmentsAreBounded(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := opts("t", "g")
		o.MaxInFlight, o.AckTimeout = 10_000, 90*time.Second
		o.Backoff = eventhub.Backoff{Min: time.Millisecond, Max: time.Millisecond}
		long := r.subscribe(o)
		o.AckTimeout = time.Minute
		short := r.subscribe(o)
		for range 30 { // leases that end one after the other, those of short first
			r.publish("t", 0, 100)
			time.Sleep(time.Second)
		}
		var kept []got
		for _, in := range []*inbox{short, long} {
			for i, held := range in.Take() {
				if i%150 == 7 {
					kept = append(kept, held)
					continue
				}
				in.Ack(byLease(held))
				if leases, held := r.appointments("t", "g"); leases > max(1024, 2*held) {
					t.Errorf("%d appointments for %d leases", leases, held)
					return
				}
			}
		}
		for _, k := range kept {
			time.Sleep(time.Until(k.At.Add(k.AckTimeout)))
			equal(t, "deliveries at the deadline", len(short.Take())+len(long.Take()), 0)
			time.Sleep(time.Millisecond)
			equal(t, "offsets after it", append(short.TakeOffsets(), long.TakeOffsets()...), []uint64{k.Offset})
		}
	})
}

// TestModackCountsFromTheDelivery: extending late does not make the hour longer.
func TestModackCountsFromTheDelivery(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 1)
		o := opts("t", "g")
		o.AckTimeout = time.Minute
		o.Backoff = eventhub.Backoff{Min: time.Millisecond, Max: time.Millisecond}
		in := r.subscribe(o)
		ref := byLease(in.Take()[0])
		time.Sleep(59 * time.Second)
		in.Settle(eventhub.Settlement{Verdict: eventhub.Extend, By: time.Hour}, ref)
		time.Sleep(time.Hour - 59*time.Second)
		equal(t, "deliveries within the hour", len(in.Take()), 0)
		time.Sleep(time.Millisecond)
		equal(t, "deliveries after it", len(in.Take()), 1)
	})
}
