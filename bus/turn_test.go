package bus

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/bus/internal/commit"
	"eventhub/store"
	"eventhub/store/storefault"
)

// TestIdleGroupKeepsNoRecords: what a turn has read is let go of with its end.
func TestIdleGroupKeepsNoRecords(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 100)
		in := r.subscribe(opts("t", "g"))
		for _, g := range in.Take() {
			in.Ack(byLease(g))
		}
		f := fetchers.Get().(*fetcher) // with one processor it is the one that was used
		kept := 0
		for _, items := range [][]store.Item{f.items[:cap(f.items)], f.batch.Items[:cap(f.batch.Items)]} {
			for _, item := range items {
				if item.Record != nil {
					kept++
				}
			}
		}
		if g := r.bus.groups[groupKey{topic: "t", group: "g"}]; g.fetch != nil {
			t.Error("the idle group holds on to what it has read")
		}
		equal(t, "records kept", kept, 0)
	})
}

// TestAckWindowIsNotPassed, however much room there is.
func TestAckWindowIsNotPassed(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.stop()
		r.start(Options{AckWindow: 10})
		r.publish("t", 1, 40)
		equal(t, "deliveries", len(r.subscribe(opts("t", "g")).Take()), 10)
	})
}

// TestRoundsAreBoundedInBytes: large events that come back together, to be
// delivered or dead-lettered, are not read all at once.
func TestRoundsAreBoundedInBytes(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.stop()
		most := 0 // bytes that a batch ever held
		r.faulty().After(storefault.Read, func(c *storefault.Call) {
			held := 0
			for _, item := range c.Batch.Items {
				held += len(item.Record)
			}
			most = max(most, held)
		})
		r.start(Options{TailCacheBytes: 1})
		const n, size = 40, 80_000
		payload := []byte(`"` + strings.Repeat("x", size) + `"`)
		for range n {
			if _, err := r.bus.Publish(context.Background(), eventhub.Event{Topic: "t", Payload: payload}); err != nil {
				t.Fatal(err)
			}
		}
		o := opts("t", "g")
		o.MaxAttempts = 2
		for _, delivered := range []int{n, n, 0} { // the second drop ends the last attempts
			in := r.subscribe(o)
			equal(t, "deliveries", len(in.Take()), delivered)
			in.Sub.Drop(0)
			synctest.Wait()
		}
		equal(t, "cursor", r.cursor("t", "g").Offset, n)
		if limit := 2*roundBytes + 2*size; most > limit {
			t.Errorf("one round held %d bytes; want at most %d", most, limit)
		}
	})
}

// overFaulty runs a test over a store in which it can interfere, without a cache.
func overFaulty(t *testing.T, test func(*rig, *storefault.Store)) {
	t.Helper()
	inBubble(t, func(r *rig) {
		r.stop()
		s := r.faulty()
		r.start(Options{TailCacheBytes: 1})
		synctest.Wait() // tests may put another store in between
		test(r, s)
		s.Clear()
		s.Hide("t")
	})
}

// TestEventsThatAreGone: what the log let go of is passed over, whether it was
// still to be read, to be delivered again or to be dead-lettered.
func TestEventsThatAreGone(t *testing.T) {
	overFaulty(t, func(r *rig, s *storefault.Store) {
		r.publish("t", 1, 8)
		s.Hide("t", 2, 3, 7, 8)
		o := opts("t", "g")
		o.Backoff = eventhub.Backoff{Min: time.Second, Max: time.Second}
		in := r.subscribe(o)
		all := in.Take()
		equal(t, "offsets delivered", []uint64{all[0].Offset, all[1].Offset, all[2].Offset, all[3].Offset}, []uint64{1, 4, 5, 6})
		in.Ack(byLease(all[0]))
		equal(t, "cursor below a gap", r.cursor("t", "g").Offset, 3)
		in.Ack(byLease(all[3]))
		s.Hide("t", 2, 3, 4, 5, 7, 8)
		in.Nack(byLease(all[1]))
		in.Settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}, byLease(all[2]))
		equal(t, "cursor before the retry", r.cursor("t", "g").Offset, 3)
		time.Sleep(time.Second)
		equal(t, "deliveries of what is gone", len(in.Take()), 0)
		equal(t, "cursor at the end", r.cursor("t", "g").Offset, 8)
		equal(t, "dead letters", len(r.events("t.dlq")), 0)
		time.Sleep(commit.FlushEvery)
		synctest.Wait()
		equal(t, "stored cursor", r.stored("t", "g").Cursor, 8)
		s.Hide("t")
		r.publish("t", 9, 1)
		equal(t, "offsets afterwards", in.TakeOffsets(), []uint64{9})
	})
}

// TestFailedReadIsTriedAgain: nothing is lost with it, neither fresh events nor
// retries nor what is to be dead-lettered.
func TestFailedReadIsTriedAgain(t *testing.T) {
	overFaulty(t, func(r *rig, s *storefault.Store) {
		r.publish("t", 1, 2)
		in := r.subscribe(opts("t", "g"))
		all := in.Take()
		s.Inject(storefault.Fault{Op: storefault.Read, Err: errors.New("the disk coughs")})
		in.Settle(eventhub.Settlement{Verdict: eventhub.Nack, Delay: time.Millisecond}, byLease(all[0]))
		in.Settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}, byLease(all[1]))
		r.publish("t", 3, 1)
		time.Sleep(5 * time.Second)
		equal(t, "deliveries while reads fail", len(in.Take()), 0)
		s.Clear()
		time.Sleep(readAgain)
		equal(t, "offsets when they work again", in.TakeOffsets(), []uint64{1, 3})
		equal(t, "dead letters", len(r.events("t.dlq")), 1)
	})
}

// TestEmptiedLogIsPassed: where nothing is left to read the cursor goes to the
// head, durably.
func TestEmptiedLogIsPassed(t *testing.T) {
	overFaulty(t, func(r *rig, s *storefault.Store) {
		r.publish("t", 1, 3)
		s.Hide("t", 1, 2, 3)
		equal(t, "deliveries", len(r.subscribe(opts("t", "g")).Take()), 0)
		equal(t, "cursor", r.cursor("t", "g").Offset, 3)
		time.Sleep(commit.FlushEvery)
		synctest.Wait()
		equal(t, "stored cursor", r.stored("t", "g").Cursor, 3)
	})
}
