package bus

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/internal/strictjson"
	"eventhub/store"
	"eventhub/store/memory"
)

// TestLateNackAfterUnsubscribe: leaving gives the attempt back, and the latest
// lease still counts while nobody holds the event.
func TestLateNackAfterUnsubscribe(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 1)
		in := r.subscribe(opts("t", "g"))
		g := in.take()[0]
		if err := in.sub.Unsubscribe(context.Background()); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if p := recover(); p != nil {
				t.Errorf("panic: %v", p)
				r.bus.groups[groupKey{topic: "t", group: "g"}].mu.Unlock() // so that the bus can be closed
			}
		}()
		equal(t, "outcome", in.nack(byLease(g))[0], eventhub.Applied)
		time.Sleep(time.Minute)
		equal(t, "attempt", r.subscribe(opts("t", "g")).take()[0].Attempt, 1)
	})
}

// TestLeaseThatWasNeverGiven: an event that no receiver took has no lease, so
// no token names it.
func TestLeaseThatWasNeverGiven(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 2)
		in := &inbox{t: t, room: 1}
		sub, err := r.bus.Subscribe(context.Background(), opts("t", "g"), in)
		if err != nil {
			t.Fatal(err)
		}
		in.sub = sub
		token := in.take()[0].Lease
		token.Offset, token.Serial = 2, 0
		equal(t, "outcome", in.ack(eventhub.Ref{Lease: token})[0], eventhub.Stale)
	})
}

// TestRefusedDeadLetterCountsAttempts: an event whose dead letter is refused
// comes again with an attempt from 1 to the most.
func TestRefusedDeadLetterCountsAttempts(t *testing.T) {
	inBubble(t, func(r *rig) {
		fillTopics(r)
		in := r.subscribe(opts("t0", "g"))
		g := in.take()[0]
		if err := in.sub.Unsubscribe(context.Background()); err != nil {
			t.Fatal(err)
		}
		in.settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}, byLease(g))
		next := r.subscribe(opts("t0", "g"))
		time.Sleep(time.Hour)
		all := next.take()
		if len(all) == 0 || all[0].Attempt != 1 {
			t.Errorf("after the refusal came %+v; want attempt 1", all)
		}
	})
}

// fillTopics creates as many topics as the store of a rig may hold.
func fillTopics(r *rig) {
	for i := range 100 {
		r.publish(fmt.Sprintf("t%d", i), 1, 1)
	}
}

// TestSubscribeAtTheTopicLimit has the same code as a publish there.
func TestSubscribeAtTheTopicLimit(t *testing.T) {
	inBubble(t, func(r *rig) {
		fillTopics(r)
		_, err := r.bus.Subscribe(context.Background(), opts("new", "g"), &inbox{})
		wantCode(t, err, eventhub.CodeOverloaded)
	})
}

// TestDeepPayloadIsDeadLettered: what may be published may also be given up.
func TestDeepPayloadIsDeadLettered(t *testing.T) {
	inBubble(t, func(r *rig) {
		payload := strings.Repeat("[", strictjson.MaxDepth) + strings.Repeat("]", strictjson.MaxDepth)
		if _, err := r.bus.Publish(context.Background(), eventhub.Event{Topic: "t", Payload: []byte(payload)}); err != nil {
			t.Fatal(err)
		}
		in := r.subscribe(opts("t", "g"))
		in.settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}, byLease(in.take()[0]))
		equal(t, "dead letters", len(r.events("t.dlq")), 1)
		equal(t, "cursor", r.cursor("t", "g").Offset, 1)
	})
}

// tails returns how many bytes of records the tails of all topics hold.
func (r *rig) tails() (bytes int) {
	for _, l := range r.bus.logs {
		l.mu.Lock()
		for _, item := range l.tail {
			bytes += len(item.Record)
		}
		l.mu.Unlock()
	}
	return bytes
}

// TestCacheBoundHoldsWithDuplicates: batches that end in a duplicate do not
// stay in the cache for good.
func TestCacheBoundHoldsWithDuplicates(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.stop()
		r.start(Options{TailCacheBytes: 1000})
		r.subscribe(opts("t", "g"))
		again := eventhub.Event{Topic: "t", ID: "same", Payload: []byte(`1`)}
		for range 50 {
			fresh := eventhub.Event{Topic: "t", Payload: []byte(`1`)}
			if _, err := r.bus.Publish(context.Background(), fresh, again); err != nil {
				t.Fatal(err)
			}
		}
		if n := r.tails(); n > 1000 {
			t.Errorf("the tails hold %d bytes; 1000 are allowed", n)
		}
	})
}

// TestCacheCountsWhatItKeepsAlive: an event that came together with a large one
// that nobody is given does not keep that alive.
func TestCacheCountsWhatItKeepsAlive(t *testing.T) {
	for _, tt := range []struct {
		name  string
		large eventhub.Event
	}{
		{"of a topic that nobody ever read", eventhub.Event{Topic: "unread"}},
		{"of a topic whose readers have left", eventhub.Event{Topic: "left"}},
		{"that is a duplicate", eventhub.Event{Topic: "t", ID: "same"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.large.Payload = []byte(`"` + strings.Repeat("x", 1<<20-2) + `"`)
			keepAlive(t, tt.large)
		})
	}
}

func keepAlive(t *testing.T, large eventhub.Event) {
	const n, limit = 30, 1 << 20
	ctx := context.Background()
	b, err := New(Options{Store: &discard{Store: memory.Open(memory.Options{})}, TailCacheBytes: limit})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for _, topic := range []string{"left", "t"} {
		sub, err := b.Subscribe(ctx, opts(topic, "g"), takeNothing{})
		if err != nil {
			t.Fatal(err)
		}
		if topic == "left" {
			sub.Drop(0)
		}
	}
	before := heapBytes()
	for range n {
		if _, err := b.Publish(ctx, large, eventhub.Event{Topic: "t", Payload: []byte(`1`)}); err != nil {
			t.Fatal(err)
		}
	}
	if grown := heapBytes() - before; grown > 8*limit {
		t.Errorf("with a cache of %d bytes, %d small events keep %d bytes alive", limit, n, grown)
	}
}

func heapBytes() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// discard is a store that numbers events and forgets them, save for the id
// "same".
type discard struct {
	*memory.Store
	head, same uint64
}

func (d *discard) Commit(ctx context.Context, units []*store.Unit, sync bool) error {
	for _, u := range units {
		if len(u.Groups) > 0 {
			return d.Store.Commit(ctx, units, sync)
		}
		for i := range u.Appends {
			a := &u.Appends[i]
			if a.ID == "same" && d.same != 0 {
				a.Offset, a.Duplicate = d.same, true
				continue
			}
			d.head++
			a.Offset = d.head
			if a.ID == "same" {
				d.same = a.Offset
			}
		}
	}
	return nil
}

// TestExtendsDoNotPileUp: asking for the same deadline again and again costs
// nothing.
func TestExtendsDoNotPileUp(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 1)
		in := r.subscribe(opts("t", "g"))
		ref := byLease(in.take()[0])
		for range 5000 {
			time.Sleep(time.Millisecond)
			in.settle(eventhub.Settlement{Verdict: eventhub.Extend, By: time.Hour}, ref)
		}
		if n, _ := r.appointments("t", "g"); n > 2048 {
			t.Errorf("one lease has %d appointments", n)
		}
	})
}

// TestLeavingDoesNotPileUp: members that come and go leave nothing behind, also
// while somebody else stays.
func TestLeavingDoesNotPileUp(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 100)
		o := opts("t", "g")
		o.MaxInFlight = 1
		r.subscribe(o)
		for range 100 {
			in := r.subscribe(opts("t", "g"))
			if err := in.sub.Unsubscribe(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		if n, held := r.appointments("t", "g"); n > 2048 {
			t.Errorf("%d appointments for %d leases", n, held)
		}
	})
}

// TestIdleGroupKeepsNoRecords: what a turn has read is let go of with its end.
func TestIdleGroupKeepsNoRecords(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 100)
		in := r.subscribe(opts("t", "g"))
		for _, g := range in.take() {
			in.ack(byLease(g))
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

// TestDeadLetterOpensTheWindow: a group that waits for its cursor goes on when a
// dead letter moves it.
func TestDeadLetterOpensTheWindow(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.stop()
		r.start(Options{AckWindow: 3})
		r.publish("t", 1, 6)
		o := opts("t", "g")
		o.MaxInFlight = 3
		in := r.subscribe(o)
		all := in.take()
		hold := make(chan struct{})
		r.store.set(hold, nil)
		in.settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}, byLease(all[0]))
		in.ack(byLease(all[1]), byLease(all[2]))
		equal(t, "deliveries while the window is full", len(in.take()), 0)
		r.store.set(nil, nil)
		close(hold)
		equal(t, "offsets after the dead letter", in.takeOffsets(), []uint64{4, 5, 6})
	})
}

// TestNackWhileTheEventIsRead: a verdict that counts is obeyed, also when the
// event was about to go out.
func TestNackWhileTheEventIsRead(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.stop()
		v := &valve{meter: &meter{Store: r.store.Store}}
		r.store.Store = v
		r.start(Options{TailCacheBytes: 1})
		r.publish("t", 1, 1)
		in := r.subscribe(opts("t", "g"))
		first := in.take()[0]
		hold := make(chan struct{})
		v.set(hold)
		in.settle(eventhub.Settlement{Verdict: eventhub.Nack, Delay: time.Second}, byLease(first))
		time.Sleep(time.Second)
		synctest.Wait() // it is due, and being read
		late := eventhub.Settlement{Verdict: eventhub.Nack, Delay: time.Hour}
		equal(t, "outcome", in.settle(late, byLease(first))[0], eventhub.Applied)
		v.set(nil)
		close(hold)
		equal(t, "deliveries before the delay is over", len(in.take()), 0)
		time.Sleep(time.Hour)
		equal(t, "offsets after it", in.takeOffsets(), []uint64{1})
	})
}

// TestNackWhileTheReadFails: trying again does not bring the event forward.
func TestNackWhileTheReadFails(t *testing.T) {
	overPatchy(t, func(r *rig, p *patchy) {
		v := &valve{meter: &meter{Store: p}}
		r.store.Store = v
		r.publish("t", 1, 1)
		in := r.subscribe(opts("t", "g"))
		first := in.take()[0]
		hold := make(chan struct{})
		v.set(hold)
		in.settle(eventhub.Settlement{Verdict: eventhub.Nack, Delay: time.Second}, byLease(first))
		time.Sleep(time.Second)
		synctest.Wait() // it is due, and being read
		in.settle(eventhub.Settlement{Verdict: eventhub.Nack, Delay: time.Hour}, byLease(first))
		p.set(errors.New("the disk coughs"))
		v.set(nil)
		close(hold)
		synctest.Wait()
		p.set(nil)
		time.Sleep(time.Hour - time.Second)
		equal(t, "deliveries before the delay is over", len(in.take()), 0)
		time.Sleep(time.Second)
		equal(t, "offsets after it", in.takeOffsets(), []uint64{1})
	})
}

// TestAckWindowIsNotPassed, however much room there is.
func TestAckWindowIsNotPassed(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.stop()
		r.start(Options{AckWindow: 10})
		r.publish("t", 1, 40)
		equal(t, "deliveries", len(r.subscribe(opts("t", "g")).take()), 10)
	})
}

// TestManyDeadLettersGoInRounds: a member that takes a large lot of last attempts
// with it does not make one turn read all of them.
func TestManyDeadLettersGoInRounds(t *testing.T) {
	inBubble(t, func(r *rig) {
		const n = 3*roundEvents + 1
		o := opts("t", "g")
		o.MaxInFlight, o.MaxAttempts = n, 1
		in := r.subscribe(o)
		r.publish("t", 1, n)
		equal(t, "deliveries", len(in.take()), n)
		in.sub.Drop(0)
		synctest.Wait()
		equal(t, "cursor", r.cursor("t", "g").Offset, n)
		g := newGroup(r.bus, newTopicLog("t"), groupKey{topic: "t", group: "h"})
		g.fetch, g.pendingLetters, g.progress = new(fetcher), make([]pendingLetter, n), newProgress()
		g.window.reset(0)
		g.plan(time.Now().UnixMilli())
		equal(t, "to dead-letter in one round", len(g.fetch.letters), roundEvents)
	})
}

// TestRoundsAreBoundedInBytes: large events that come back together, to be
// delivered or dead-lettered, are not read all at once.
func TestRoundsAreBoundedInBytes(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.stop()
		h := &hoard{Store: r.store.Store}
		r.store.Store = h
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
			equal(t, "deliveries", len(in.take()), delivered)
			in.sub.Drop(0)
			synctest.Wait()
		}
		equal(t, "cursor", r.cursor("t", "g").Offset, n)
		if limit := 2*roundBytes + 2*size; h.most > limit {
			t.Errorf("one round held %d bytes; want at most %d", h.most, limit)
		}
	})
}

// hoard is a store that notes how much a batch ever held.
type hoard struct {
	store.Store
	most int
}

func (h *hoard) Read(ctx context.Context, topic string, from uint64, limit, maxBytes int, batch *store.Batch) error {
	err := h.Store.Read(ctx, topic, from, limit, maxBytes, batch)
	held := 0
	for _, item := range batch.Items {
		held += len(item.Record)
	}
	h.most = max(h.most, held)
	return err
}

// TestEndedIsNotToldToWhoHasLeft, also when it left because another member was
// told.
func TestEndedIsNotToldToWhoHasLeft(t *testing.T) {
	inBubble(t, func(r *rig) {
		first := &leaver{}
		if _, err := r.bus.Subscribe(context.Background(), opts("t", "g"), first); err != nil {
			t.Fatal(err)
		}
		second := r.subscribe(opts("t", "g"))
		first.takes = second.sub
		r.restart()
		equal(t, "Ended calls after Drop", len(second.ended), 0)
	})
}

// leaver is a Receiver that takes another subscription with it.
type leaver struct {
	takeNothing
	takes eventhub.Subscription
}

func (l *leaver) Ended(error) { l.takes.Drop(0) }
