package bus

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/bus/internal/commit"
	"eventhub/store"
)

// patchy is a store that can hide events, as one that let them go does, and can
// fail reads.
type patchy struct {
	store.Store
	mu   sync.Mutex
	gone []uint64
	fail error
}

func (p *patchy) set(fail error, gone ...uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fail, p.gone = fail, gone
}

func (p *patchy) Read(ctx context.Context, topic string, from uint64, limit, maxBytes int, batch *store.Batch) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fail != nil {
		return p.fail
	}
	var all store.Batch
	if err := p.Store.Read(ctx, topic, from, 1_000_000, 1<<30, &all); err != nil {
		return err
	}
	for _, item := range all.Items {
		if limit > 0 && !slices.Contains(p.gone, item.Offset) {
			batch.Add(item.Offset, item.Record)
			limit--
		}
	}
	return nil
}

// overPatchy runs a test over a patchy store, without a cache.
func overPatchy(t *testing.T, test func(*rig, *patchy)) {
	t.Helper()
	inBubble(t, func(r *rig) {
		r.stop()
		p := &patchy{Store: r.store.Store}
		r.store.Store = p
		r.start(Options{TailCacheBytes: 1})
		synctest.Wait() // tests may put another store in between
		test(r, p)
		p.set(nil)
	})
}

// TestEventsThatAreGone: what the log let go of is passed over, whether it was
// still to be read, to be delivered again or to be dead-lettered.
func TestEventsThatAreGone(t *testing.T) {
	overPatchy(t, func(r *rig, p *patchy) {
		r.publish("t", 1, 8)
		p.set(nil, 2, 3, 7, 8)
		o := opts("t", "g")
		o.Backoff = eventhub.Backoff{Min: time.Second, Max: time.Second}
		in := r.subscribe(o)
		all := in.take()
		equal(t, "offsets delivered", []uint64{all[0].Offset, all[1].Offset, all[2].Offset, all[3].Offset}, []uint64{1, 4, 5, 6})
		in.ack(byLease(all[0]))
		equal(t, "cursor below a gap", r.cursor("t", "g").Offset, 3)
		in.ack(byLease(all[3]))
		p.set(nil, 2, 3, 4, 5, 7, 8)
		in.nack(byLease(all[1]))
		in.settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}, byLease(all[2]))
		equal(t, "cursor before the retry", r.cursor("t", "g").Offset, 3)
		time.Sleep(time.Second)
		equal(t, "deliveries of what is gone", len(in.take()), 0)
		equal(t, "cursor at the end", r.cursor("t", "g").Offset, 8)
		equal(t, "dead letters", len(r.events("t.dlq")), 0)
		time.Sleep(commit.FlushEvery)
		equal(t, "stored cursor", r.stored("t", "g").Cursor, 8)
		p.set(nil)
		r.publish("t", 9, 1)
		equal(t, "offsets afterwards", in.takeOffsets(), []uint64{9})
	})
}

// TestFailedReadIsTriedAgain: nothing is lost with it, neither fresh events nor
// retries nor what is to be dead-lettered.
func TestFailedReadIsTriedAgain(t *testing.T) {
	overPatchy(t, func(r *rig, p *patchy) {
		r.publish("t", 1, 2)
		in := r.subscribe(opts("t", "g"))
		all := in.take()
		p.set(errors.New("the disk coughs"))
		in.settle(eventhub.Settlement{Verdict: eventhub.Nack, Delay: time.Millisecond}, byLease(all[0]))
		in.settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}, byLease(all[1]))
		r.publish("t", 3, 1)
		time.Sleep(5 * time.Second)
		equal(t, "deliveries while reads fail", len(in.take()), 0)
		p.set(nil)
		time.Sleep(readAgain)
		equal(t, "offsets when they work again", in.takeOffsets(), []uint64{1, 3})
		equal(t, "dead letters", len(r.events("t.dlq")), 1)
	})
}

// appointments returns how many ends of leases a group has noted, and how many
// leases there are.
func (r *rig) appointments(topic, name string) (leases, held int) {
	g := r.bus.groups[groupKey{topic: topic, group: name}]
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.leases), g.held
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
			for i, held := range in.take() {
				if i%150 == 7 {
					kept = append(kept, held)
					continue
				}
				in.ack(byLease(held))
				if leases, held := r.appointments("t", "g"); leases > max(1024, 2*held) {
					t.Errorf("%d appointments for %d leases", leases, held)
					return
				}
			}
		}
		for _, k := range kept {
			time.Sleep(time.Until(k.at.Add(k.AckTimeout)))
			equal(t, "deliveries at the deadline", len(short.take())+len(long.take()), 0)
			time.Sleep(time.Millisecond)
			equal(t, "offsets after it", append(short.takeOffsets(), long.takeOffsets()...), []uint64{k.Offset})
		}
	})
}

// TestSeekWhileADeadLetterWaits: the seek takes the event back, and a dead
// letter of the epoch before does not stand for it.
func TestSeekWhileADeadLetterWaits(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 1)
		in := r.subscribe(opts("t", "g"))
		epoch := r.stored("t", "g").Epoch
		hold := make(chan struct{})
		r.store.set(hold, nil)
		go r.publish("other", 1, 1) // keeps the committer busy
		terminal := eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}
		in.settle(terminal, byLease(in.take()[0]))
		moved := make(chan error, 1)
		go func() { moved <- r.bus.SetCursor(context.Background(), "t", "g", 0) }()
		again := in.take()
		equal(t, "deliveries after the seek", len(again), 1)
		in.settle(terminal, byLease(again[0]))
		r.store.set(nil, nil)
		close(hold)
		if err := <-moved; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		equal(t, "cursor", r.cursor("t", "g").Offset, 1)
		dead := r.events("t.dlq")
		if len(dead) != 1 || dead[0].ID != deadLetterID("t", 1, "g", epoch+1, "") {
			t.Errorf("dead letters %+v; want the one of the second epoch", dead)
		}
	})
}

// TestDeadLetterAndCursorAreOneUnit: when the dead letter is in the log the cursor
// has passed the event, without waiting for a flush.
func TestDeadLetterAndCursorAreOneUnit(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 3)
		in := r.subscribe(opts("t", "g"))
		all := in.take()
		in.settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}, byLease(all[0]), byLease(all[1]))
		equal(t, "dead letters", len(r.events("t.dlq")), 2)
		equal(t, "stored cursor", r.stored("t", "g").Cursor, 2)
	})
}

// TestEveryEpochHasItsDeadLetter: who moves a group back and fails again hears
// of it again.
func TestEveryEpochHasItsDeadLetter(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 1)
		in := r.subscribe(opts("t", "g"))
		for n := 1; n <= 2; n++ {
			in.settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}, byLease(in.take()[0]))
			equal(t, "dead letters", len(r.events("t.dlq")), n)
			if err := r.bus.SetCursor(context.Background(), "t", "g", 0); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestRefusedDeadLetterComesAgain: the event is not lost with it.
func TestRefusedDeadLetterComesAgain(t *testing.T) {
	inBubble(t, func(r *rig) {
		fillTopics(r)
		o := opts("t0", "g")
		o.Backoff = eventhub.Backoff{Min: time.Second, Max: time.Minute}
		o.AckTimeout = time.Hour // no lease's end wakes the group before
		in := r.subscribe(o)
		for range 3 {
			all := in.take()
			if len(all) != 1 || all[0].Attempt != 1 {
				t.Errorf("got %+v; want the event at attempt 1", all)
				return
			}
			in.settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}, byLease(all[0]))
			equal(t, "cursor", r.cursor("t0", "g").Offset, 0)
			time.Sleep(time.Minute)
		}
	})
}

// TestBrokenStoreDeadLettersNothing: a dead letter whose commit failed may not be in
// the log, so its event is not done.
func TestBrokenStoreDeadLettersNothing(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 1)
		in := r.subscribe(opts("t", "g"))
		all := in.take()
		broken := errors.New("disk on fire")
		r.store.set(nil, broken)
		in.settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}, byLease(all[0]))
		equal(t, "cursor", r.cursor("t", "g").Offset, 0)
		r.store.set(nil, nil)
		if err := r.bus.Close(); !errors.Is(err, broken) {
			t.Errorf("Close = %v; want %v", err, broken)
		}
		r.start(Options{})
		equal(t, "offsets after a restart", r.subscribe(opts("t", "g")).takeOffsets(), []uint64{1})
	})
}

// TestEmptiedLogIsPassed: where nothing is left to read the cursor goes to the
// head, durably.
func TestEmptiedLogIsPassed(t *testing.T) {
	overPatchy(t, func(r *rig, p *patchy) {
		r.publish("t", 1, 3)
		p.set(nil, 1, 2, 3)
		equal(t, "deliveries", len(r.subscribe(opts("t", "g")).take()), 0)
		equal(t, "cursor", r.cursor("t", "g").Offset, 3)
		time.Sleep(commit.FlushEvery)
		synctest.Wait()
		equal(t, "stored cursor", r.stored("t", "g").Cursor, 3)
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
		ref := byLease(in.take()[0])
		time.Sleep(59 * time.Second)
		in.settle(eventhub.Settlement{Verdict: eventhub.Extend, By: time.Hour}, ref)
		time.Sleep(time.Hour - 59*time.Second)
		equal(t, "deliveries within the hour", len(in.take()), 0)
		time.Sleep(time.Millisecond)
		equal(t, "deliveries after it", len(in.take()), 1)
	})
}

// TestUnwatchedTopicKeepsNothing: when the last member has left, events go by
// the cache, and members that come and go leave no watcher behind.
func TestUnwatchedTopicKeepsNothing(t *testing.T) {
	inBubble(t, func(r *rig) {
		for range 3 {
			in := r.subscribe(opts("t", "g"))
			r.publish("t", 1, 1)
			if r.tails() == 0 {
				t.Error("the tail is empty while a member is there")
			}
			in.sub.Drop(0)
		}
		r.publish("t", 1, 1)
		equal(t, "bytes in the tail", r.tails(), 0)
		equal(t, "watchers", len(r.bus.logs["t"].watchers), 0)
	})
}
