package bus

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/groupstate"
)

// Events that fail hold their own keys back, and of the others half the time of their
// member at most: what comes while a hundred of them wait comes soon.
func TestSuspectsLeaveOthersTheirTurn(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := opts("p.*", "g")
		o.AckTimeout, o.Backoff = time.Second, eventhub.Backoff{Min: time.Millisecond, Max: time.Millisecond}
		in := r.subscribe(o)
		r.publish("p.a", 1, 100)
		time.Sleep(5 * time.Second) // nobody answers: they are suspects
		in.Take()
		for i := range 20 {
			r.publish("p.b", i, 1)
			began := time.Now()
			came := false
			for !came && time.Since(began) < 10*time.Second {
				time.Sleep(50 * time.Millisecond)
				for _, g := range in.Take() {
					if g.Topic == "p.b" {
						came = true
						in.Ack(byLease(g))
					}
				}
			}
			if waited := time.Since(began); waited > 2200*time.Millisecond {
				t.Fatalf("the event of another topic came after %s; a suspect has the member for a second", waited)
			}
		}
		// They end as they do, one after the other.
		for began := time.Now(); time.Since(began) < 20*time.Minute; {
			time.Sleep(time.Second)
			in.Take()
		}
		synctest.Wait()
		equal(t, "dead letters", len(r.events("p.a.dlq")), 100)
	})
}

// A member that has a long job is kept free for a suspect for the length of a lease, and
// then for the others as long; the suspect comes when the job is done.
func TestLongJobsAndSuspects(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := opts("p.*", "g")
		o.AckTimeout = 10 * time.Second
		in := r.subscribe(o)
		r.publish("p.long", 1, 1)
		job := byLease(in.Take()[0])
		r.makeSuspect(in, "p.a")
		time.Sleep(time.Millisecond)
		in.Settle(eventhub.Settlement{Verdict: eventhub.Extend, By: time.Hour}, job)
		r.publish("p.b", 1, 1)
		equal(t, "while the member is kept free", len(in.Take()), 0)
		time.Sleep(11 * time.Second)
		r.ackAll(in, "p.b")
		equal(t, "the other topic", r.cursor("p.b", "g").Offset, uint64(1))
		in.Ack(job)
		time.Sleep(10 * time.Second)
		equal(t, "after the job", places(in.Take()), []string{"p.a/1"})
	})
}

// Who extends the lease of a suspect is alive: others come meanwhile when it has had it
// for the length of a lease.
func TestOthersComeBesideALongSuspect(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := opts("p.*", "g")
		o.AckTimeout = 10 * time.Second
		in := r.subscribe(o)
		r.makeSuspect(in, "p.a")
		time.Sleep(time.Millisecond)
		suspect := in.Take()
		equal(t, "the suspect", places(suspect), []string{"p.a/1"})
		in.Settle(eventhub.Settlement{Verdict: eventhub.Extend, By: time.Hour}, leasesOf(suspect)...)
		r.publish("p.b", 1, 1)
		equal(t, "at first", len(in.Take()), 0)
		time.Sleep(11 * time.Second)
		equal(t, "meanwhile", places(in.Take()), []string{"p.b/1"})
		in.Ack(leasesOf(suspect)...)
		equal(t, "the suspect is done", r.cursor("p.a", "g").Offset, uint64(1))
	})
}

// A suspect that waits until the reservation of another group is over costs nothing meanwhile,
// although the member has room for others.
func TestSuspectsWaitForAClaimAtRest(t *testing.T) {
	awake := time.AfterFunc(20*time.Second, func() { panic("the turns of a group do not come to rest") })
	defer awake.Stop()
	inBubble(t, func(r *rig) {
		o := opts("p.*", "g")
		o.AckTimeout, o.Backoff = 10*time.Second, eventhub.Backoff{Min: time.Millisecond, Max: time.Millisecond}
		in := r.subscribe(o)
		r.publish("p.a", 1, 1)
		r.publish("p.b", 1, 1)
		var out []got
		for len(out) != 1 || out[0].Attempt <= groupstate.IsolateAfter { // nobody answers, until one of them is out alone
			time.Sleep(10 * time.Second)
			out = in.Take()
		}
		in.Settle(eventhub.Settlement{Verdict: eventhub.Extend, By: time.Hour}, leasesOf(out)...)
		time.Sleep(11 * time.Second) // its time alone is over
		synctest.Wait()
		equal(t, "meanwhile", len(in.Take()), 0)
		in.Ack(leasesOf(out)...)
		time.Sleep(time.Minute)
		equal(t, "the other suspect came", len(in.Take()) > 0, true)
	})
}

// A suspect that was pulled is out with nobody who is still there; those that wait for
// it cost nothing meanwhile.
func TestSuspectsWaitForAPulledOneAtRest(t *testing.T) {
	awake := time.AfterFunc(20*time.Second, func() { panic("the turns of a group do not come to rest") })
	defer awake.Stop()
	inBubble(t, func(r *rig) {
		o := earliest("t", "g")
		o.Backoff = eventhub.Backoff{Min: time.Millisecond, Max: time.Millisecond}
		r.publish("t", 1, 2)
		in := r.subscribe(o)
		for range groupstate.IsolateAfter { // nobody answers
			time.Sleep(o.WithDefaults().AckTimeout + time.Second)
		}
		in.Sub.Drop(0)
		pulled, err := r.bus.Pull(context.Background(), o, time.Second)
		if err != nil || len(pulled) != 1 {
			t.Fatalf("a pull took %d events, %v; want one suspect", len(pulled), err)
		}
		in = r.subscribe(o)
		synctest.Wait()
		equal(t, "meanwhile", len(in.Take()), 0)
	})
}

// Who pulls gets more than suspects.
func TestPullsGetMoreThanSuspects(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := earliest("t", "g")
		o.MaxAttempts, o.MaxInFlight = 1000, 10
		o.AckTimeout, o.Backoff = time.Second, eventhub.Backoff{Min: time.Millisecond, Max: time.Millisecond}
		const bad, good = 20, 50
		r.publish("t", 1, bad)
		r.publish("t", 1000, good)
		acked, pulls := 0, 0
		for ; acked < good && pulls < 400; pulls++ {
			batch, err := r.bus.Pull(context.Background(), o, time.Second)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range batch {
				if d.Offset <= bad {
					continue // whoever got it dies
				}
				acked++
				s := eventhub.Settlement{Verdict: eventhub.Ack, Refs: []eventhub.Ref{{Lease: d.Lease}}}
				if _, err := r.bus.Settle(context.Background(), "t", "g", s); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(1100 * time.Millisecond)
		}
		if acked < good {
			t.Errorf("%d pulls got %d of %d good events", pulls, acked, good)
		}
	})
}

// A suspect that waits for a busy member goes to another that may have it before.
func TestSuspectGoesToWhoIsFreeFirst(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := opts("t", "g")
		o.AckTimeout, o.Backoff = 10*time.Second, eventhub.Backoff{Min: time.Millisecond, Max: time.Millisecond}
		free := r.subscribe(o)
		r.makeSuspect(free, "t")
		time.Sleep(time.Millisecond)
		first := free.Take() // the suspect, alone
		o.MaxInFlight = 1
		busy := r.subscribe(o)
		r.publish("t", 1, 1)
		job := busy.Take()
		equal(t, "the busy member has a job", len(job), 1)
		busy.Settle(eventhub.Settlement{Verdict: eventhub.Extend, By: time.Hour}, leasesOf(job)...)
		time.Sleep(5 * time.Second)
		free.Nack(leasesOf(first)...) // it had the suspect for 5 s: others have it as long
		time.Sleep(4 * time.Second)
		equal(t, "while it is theirs", len(free.Take()), 0)
		time.Sleep(2 * time.Second)
		equal(t, "then", places(free.Take()), []string{"t/1"})
	})
}

// A redriven event begins with its first attempt: that it was a suspect before holds no
// other one back.
func TestFormerSuspectHoldsNobodyBack(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := earliest("t", "g")
		o.MaxAttempts = groupstate.IsolateAfter + 1
		o.AckTimeout, o.Backoff = 10*time.Second, eventhub.Backoff{Min: time.Millisecond, Max: time.Millisecond}
		in := r.subscribe(o)
		r.makeSuspect(in, "t")
		time.Sleep(time.Millisecond)
		in.Nack(leasesOf(in.Take())...) // it is given up
		synctest.Wait()
		if _, err := r.bus.Redrive(context.Background(), admin.RedriveQuery{DeadLetterQuery: admin.DeadLetterQuery{Topic: "t.dlq"}, Apply: true, Rate: 1000}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		former := in.Take()
		equal(t, "it begins again", former[0].Attempt, 1)
		in.Settle(eventhub.Settlement{Verdict: eventhub.Extend, By: time.Hour}, leasesOf(former)...)
		other := r.subscribe(o)
		r.publish("t", 1, 1)
		for n := 0; n < groupstate.IsolateAfter; time.Sleep(time.Millisecond) {
			for _, m := range []*inbox{in, other} {
				if got := m.Take(); len(got) > 0 {
					m.Nack(leasesOf(got)...)
					n++
				}
			}
		}
		time.Sleep(5 * time.Second)
		equal(t, "another suspect", len(in.Take())+len(other.Take()), 1)
	})
}

// TestNackedIsNoSuspect: a member that NACKs is alive, so the event comes again with others,
// however often. One that cost its lease twice goes out alone, also where a NACK came after.
func TestNackedIsNoSuspect(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := opts("t", "g")
		o.AckTimeout, o.MaxAttempts = time.Hour, 10
		o.Backoff = eventhub.Backoff{Min: time.Millisecond, Max: time.Millisecond}
		in := r.subscribe(o)
		r.publish("t", 1, 2)
		out := in.Take()
		job, bad := byLease(out[0]), out[1]
		for attempt := 2; attempt <= 5; attempt++ {
			in.Nack(byLease(bad))
			time.Sleep(time.Millisecond)
			if out = in.Take(); len(out) != 1 || out[0].Attempt != attempt {
				t.Fatalf("%+v came after %d NACKs; want attempt %d", out, attempt-1, attempt)
			}
			bad = out[0]
		}
		in.Ack(byLease(bad))

		r.publish("t", 3, 1)
		bad = in.Take()[0]
		for range groupstate.IsolateAfter {
			in.Settle(eventhub.Settlement{Verdict: eventhub.Extend, By: time.Second}, byLease(bad))
			in.Settle(eventhub.Settlement{Verdict: eventhub.Extend, By: time.Hour}, job)
			time.Sleep(time.Second + time.Millisecond)
			if out = in.Take(); len(out) == 1 {
				bad = out[0]
			}
		}
		equal(t, "attempt of the one whose leases ran out, with another", bad.Attempt, groupstate.IsolateAfter)
		in.Ack(job)
		bad = in.Take()[0]
		r.publish("t", 4, 1)
		in.Nack(byLease(bad))
		job = byLease(in.Take()[0])
		time.Sleep(time.Minute)
		equal(t, "came with another", len(in.Take()), 0)
		in.Ack(job)
		equal(t, "came alone", in.TakeOffsets(), []uint64{3})
	})
}

// A suspect that waits for a member goes to another one of its group which becomes
// free before, whatever topic that was busy with.
func TestSuspectGoesToWhoeverIsFreeFirst(t *testing.T) {
	inBubble(t, func(r *rig) {
		one, two := r.subscribe(opts("*", "g")), r.subscribe(opts("*", "g"))
		if err := two.Sub.Pause(bg); err != nil {
			t.Fatal(err)
		}
		r.publish("x", 1, 1)
		busy := one.Take()
		if err := errors.Join(one.Sub.Pause(bg), two.Sub.Resume(bg)); err != nil {
			t.Fatal(err)
		}
		r.publish("y", 1, 2)
		other := two.Take()
		r.publish("a", 1, 1)
		for range 2 {
			two.lapse(leasesOf(two.Take())...)
			time.Sleep(time.Millisecond)
		}
		if err := one.Sub.Resume(bg); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		// one holds one, two holds two: the suspect is kept for one.
		equal(t, "before", []int{len(busy), len(other), len(one.Take()), len(two.Take())}, []int{1, 2, 0, 0})
		two.Ack(leasesOf(other)...)
		equal(t, "the suspect", places(append(two.Take(), one.Take()...)), []string{"a/1"})
	})
}

// A suspect that waits for a busy member goes to one that goes on before that has
// settled what it holds.
func TestSuspectGoesToWhoeverGoesOnFirst(t *testing.T) {
	inBubble(t, func(r *rig) {
		one := r.subscribe(opts("t", "g"))
		r.publish("t", 1, 2)
		in := one.Take()[:1]
		two := r.subscribe(opts("t", "g"))
		if err := two.Sub.Pause(bg); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			one.lapse(leasesOf(in)...)
			time.Sleep(time.Millisecond)
			in = one.Take()
		}
		equal(t, "while one is busy and the other pauses", len(in), 0)
		if err := two.Sub.Resume(bg); err != nil {
			t.Fatal(err)
		}
		equal(t, "the suspect", places(two.Take()), []string{"t/1"})
	})
}

// makeSuspect publishes one event that the inbox is given and fails until it may go
// out alone only; it is due again a millisecond later.
func (r *rig) makeSuspect(in *inbox, topic string) {
	r.t.Helper()
	r.publish(topic, 1, 1)
	for n := range groupstate.IsolateAfter {
		if n > 0 {
			time.Sleep(time.Millisecond)
		}
		in.lapse(leasesOf(in.Take())...)
	}
}

// lapse lets leases run out, which takes a second; the events are due again a millisecond
// later.
func (in *inbox) lapse(leases ...eventhub.Ref) {
	in.Settle(eventhub.Settlement{Verdict: eventhub.Extend, By: time.Second}, leases...)
	time.Sleep(time.Second)
	synctest.Wait() // what is said from now on only brings the events back soon
	in.Settle(eventhub.Settlement{Verdict: eventhub.Nack, Delay: time.Millisecond}, leases...)
}

// A suspect that is read again after a start is delivered alone, and then its member has all
// of its room.
func TestSuspectAfterAStart(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := opts("t", "g")
		o.AckTimeout, o.MaxAttempts, o.MaxInFlight = time.Second, 10, 2
		o.Backoff = eventhub.Backoff{Min: time.Millisecond, Max: time.Millisecond}
		in := r.subscribe(o)
		r.publish("t", 1, 1)
		for range groupstate.IsolateAfter { // nobody answers
			time.Sleep(o.AckTimeout + 2*time.Millisecond)
		}
		in.Take()
		r.restart()
		in = r.subscribe(o)
		r.publish("t", 2, 2)
		var got []uint64
		for range 2 {
			time.Sleep(2 * time.Millisecond)
			for _, d := range in.Take() {
				got = append(got, d.Offset)
				in.Ack(byLease(d))
			}
			time.Sleep(o.AckTimeout / 2)
		}
		slices.Sort(got)
		equal(t, "acked", got, []uint64{1, 2, 3})
		r.publish("t", 4, 3)
		equal(t, "with a member of its own room", len(in.Take()), 2)
	})
}
