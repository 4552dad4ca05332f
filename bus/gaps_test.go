package bus

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/admin"
)

// Offsets have gaps, small and huge: an import keeps the offsets of another hub, a topic
// that is made again goes on above the old ones. Everything costs and counts by events.

// sparse imports events at the given offsets.
func (r *rig) sparse(topic string, offsets ...uint64) {
	r.t.Helper()
	var events []eventhub.Event
	for _, offset := range offsets {
		events = append(events, eventhub.Event{ID: fmt.Sprint("e", offset), Offset: offset, TS: 1, Topic: topic, Payload: fmt.Appendf(nil, "%d", offset)})
	}
	receipts, err := r.bus.Import(context.Background(), events...)
	if err != nil {
		r.t.Fatal(err)
	}
	for i, got := range receipts {
		if got.Offset != offsets[i] {
			r.t.Fatalf("imported at %d; want %d", got.Offset, offsets[i])
		}
	}
}

// noMoreTopics makes topics until the store takes no other.
func (r *rig) noMoreTopics() {
	r.t.Helper()
	for i := range 1000 {
		if _, err := r.bus.Publish(context.Background(), eventhub.Event{Topic: fmt.Sprint("full-", i), Payload: []byte("1")}); err != nil {
			wantCode(r.t, err, eventhub.CodeOverloaded)
			return
		}
	}
	r.t.Fatal("the store takes any number of topics")
}

const farOffset = 1<<52 - 1

func TestRefusedStepOverAGap(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.sparse("in", 1, farOffset)
		in := r.subscribe(opts("in", "g"))
		got := in.Take()
		equal(t, "delivered", []uint64{got[0].Offset, got[1].Offset}, []uint64{1, farOffset})
		r.noMoreTopics()
		for _, d := range got {
			_, err := in.ackAndPublish([]eventhub.Ref{byLease(d)}, out("1"))
			wantCode(t, err, eventhub.CodeOverloaded)
		}
		equal(t, "acked all the same", in.Ack(byLease(got[1])), []eventhub.Outcome{eventhub.Applied})
		time.Sleep(time.Second)
		r.restart()
		equal(t, "not acked", r.subscribe(opts("in", "g")).TakeOffsets(), []uint64{1})
	})
}

// TestAckedOverGaps: acked events far apart, so many that the window has forgotten them,
// are known as such after their state was written again and the hub was started again.
func TestAckedOverGaps(t *testing.T) {
	inBubble(t, func(r *rig) {
		const n = 1536 // three times what the window remembers one by one
		var offsets []uint64
		for i := range uint64(n) {
			offsets = append(offsets, 1+i*(1<<40))
		}
		r.sparse("in", offsets...)
		o := opts("in", "g")
		o.MaxInFlight, o.BatchSize = n, n
		in := r.subscribe(o)
		got := in.Take()
		equal(t, "delivered", len(got), n)
		for _, d := range got[1:] {
			in.Ack(byLease(d))
		}
		g := r.bus.running("in", "g")
		g.mu.Lock()
		size, lag, forgotten := g.state.Size(), g.state.Lag(offsets[n-1], 1), g.state.Find(offsets[n/2]) == nil
		g.mu.Unlock()
		if size != n || lag != 1 || !forgotten {
			t.Errorf("%d events in the window, lag %d, forgotten: %t; want %d, 1 and true", size, lag, forgotten, n)
		}
		r.noMoreTopics()
		_, err := in.ackAndPublish([]eventhub.Ref{byLease(got[0])}, out("1"))
		wantCode(t, err, eventhub.CodeOverloaded)
		time.Sleep(time.Second)
		r.restart()
		equal(t, "not acked", r.subscribe(o).TakeOffsets(), []uint64{1})
	})
}

// TestAckWindowOverGaps: how far a group may read ahead counts events.
func TestAckWindowOverGaps(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.stop()
		r.start(Options{AckWindow: 4})
		r.sparse("t", 1, 1000, 2000, farOffset-1, farOffset)
		in := r.subscribe(opts("t", "g"))
		got := in.Take()
		equal(t, "delivered", len(got), 4)
		in.Ack(byLease(got[1]))
		info, err := r.bus.Group(context.Background(), "t", "g")
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "lag", info.Lag, 4)
		equal(t, "blocked by", info.BlockedBy.Kind, "window")
		equal(t, "more, while the first is not done", len(in.Take()), 0)
		in.Ack(byLease(got[0]))
		equal(t, "then", in.TakeOffsets(), []uint64{farOffset})
		synctest.Wait()
	})
}

// TestSeekOverGaps: the plan of a seek counts events, whether they were acked, are in
// the window, or were not read yet.
func TestSeekOverGaps(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := context.Background()
		r.sparse("t", 500, 1000, 1500, 2000, 3000, farOffset)
		o := opts("t", "g")
		o.MaxInFlight = 4
		in := r.subscribe(o)
		got := in.Take()
		plan := func(offset uint64) admin.SeekPlan {
			t.Helper()
			p, err := r.bus.SeekGroup(ctx, "t", "g", eventhub.Start{Kind: eventhub.StartOffset, Offset: offset}, false)
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		p := plan(farOffset + 1)
		equal(t, "skipped, leased ones and unread ones", []uint64{p.Again, p.Skipped}, []uint64{0, 6})
		in.Ack(byLease(got[0]), byLease(got[1]), byLease(got[3])) // two more are read
		p = plan(1)
		equal(t, "from the beginning", []uint64{p.From, p.Again, p.Skipped}, []uint64{1499, 3, 0})
		p = plan(600)
		equal(t, "from the second", []uint64{p.Again, p.Skipped}, []uint64{2, 0})
		p = plan(farOffset)
		equal(t, "to the last", []uint64{p.Again, p.Skipped}, []uint64{0, 2})
		in.Take()
		p, err := r.bus.SeekGroup(ctx, "t", "g", eventhub.Earliest, true)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "applied", []uint64{p.Again, p.Skipped}, []uint64{3, 0})
		equal(t, "delivered again", in.TakeOffsets(), []uint64{500, 1000, 1500, 2000})
	})
}

// TestSeekCountsSoMuch: what a seek reads to count events is bounded.
func TestSeekCountsSoMuch(t *testing.T) {
	inBubble(t, func(r *rig) {
		const n = countedEvents + 5*roundEvents
		for i := 0; i < n; i += 1000 {
			r.publish("t", i, min(1000, n-i))
		}
		in := r.subscribe(eventhub.GroupOptions{Topic: "t", Group: "g"}) // from now on
		before := r.store.count1("Read")
		p, err := r.bus.SeekGroup(context.Background(), "t", "g", eventhub.Earliest, false)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "again", p.Again, uint64(n))
		if reads := r.store.count1("Read") - before; reads > countedEvents/roundEvents+1 {
			t.Errorf("%d reads", reads)
		}
		in.Sub.Drop(0)
	})
}
