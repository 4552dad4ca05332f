package client

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"eventhub"
)

// taker takes the first so many deliveries of a batch.
type taker int

func (n taker) Deliver(batch []eventhub.Delivery) int { return min(int(n), len(batch)) }
func (taker) Ended(error)                             {}

// TestVerdictsOfHeldLeasesOnly: an ack by a lease of a lost connection could
// still count for a moment, and take off an event that nobody has handled.
func TestVerdictsOfHeldLeasesOnly(t *testing.T) {
	c := &Client{conn: &conn{}}
	c.conn.wake.L = &c.mu
	k := &keeper{c: c, Receiver: taker(1), held: make(map[spot]hold)}
	a, b := eventhub.Lease{Offset: 1, Serial: 1}, eventhub.Lease{Offset: 2, Serial: 2}
	verdict := func(lease eventhub.Lease, want eventhub.Outcome) {
		t.Helper()
		before := len(c.conn.out.b)
		got, err := kept{nil, k}.Settle(t.Context(), eventhub.Settlement{Refs: []eventhub.Ref{{Lease: lease}}})
		if err != nil || got[0] != want {
			t.Errorf("lease %s: %v, %v; want %v", lease, got, err, want)
		}
		c.conn.appendAcks()
		if sent := len(c.conn.out.b) > before; sent != (want == eventhub.Applied) {
			t.Errorf("lease %s: sent: %v", lease, sent)
		}
	}
	batch := []eventhub.Delivery{{Lease: a}, {Lease: b}}
	k.Deliver(batch)
	k.begin(&batch[0])
	verdict(a, eventhub.Applied)
	verdict(a, eventhub.Stale) // given already
	verdict(b, eventhub.Stale) // never begun
	k.Deliver(batch)
	k.Forget()
	if k.begin(&batch[0]) {
		t.Error("a delivery of a lost connection is begun")
	}
	verdict(a, eventhub.Stale)
}

// bench is a Subscriber that hands its receiver out.
type bench struct {
	eventhub.Subscriber
	joined chan eventhub.Receiver
}

func (b bench) Subscribe(_ context.Context, _ eventhub.GroupOptions, r eventhub.Receiver) (eventhub.Subscription, error) {
	b.joined <- r
	return seat{}, nil
}

type seat struct{ eventhub.Subscription }

func (seat) Ready() {}
func (seat) Settle(context.Context, eventhub.Settlement) ([]eventhub.Outcome, error) {
	return nil, nil
}
func (seat) Unsubscribe(context.Context) error { return nil }

// dealt makes deliveries of events 1 to n of topic t, as given over a connection.
func dealt(connection uint64, n int) (batch []eventhub.Delivery) {
	for offset := uint64(1); offset <= uint64(n); offset++ {
		batch = append(batch, eventhub.Delivery{Topic: "t", Offset: offset, Attempt: int(connection),
			Record: fmt.Appendf(nil, `{"ts":1723140000000,"id":"e-%d","topic":"t","payload":1}`, offset),
			Lease:  eventhub.Lease{Runtime: 7, Offset: offset, Serial: connection}})
	}
	return batch
}

// TestLossDuringABusyHandler: what waits for a handler when the connection is lost
// makes room for what comes again, and no lease of that runs out; what the
// handler still has is neither begun again nor settled under a lease that is over.
func TestLossDuringABusyHandler(t *testing.T) {
	const events = 10
	opts := eventhub.GroupOptions{Topic: "t", Group: "g", MaxInFlight: events}.WithDefaults()
	c := &Client{conn: &conn{}}
	c.conn.wake.L = &c.mu
	k := &keeper{c: c, opts: opts, held: make(map[spot]hold)}
	b := bench{joined: make(chan eventhub.Receiver, 1)}
	ctx, stop := context.WithCancel(t.Context())
	begun, proceed := make(chan string, 9*events), make(chan struct{})
	consumed := make(chan error, 1)
	go func() {
		consumed <- eventhub.Consume(ctx, b, opts, func(_ context.Context, d eventhub.Delivery) error {
			if !k.begin(&d) {
				return nil
			}
			begun <- fmt.Sprint(d.Offset, "/", d.Attempt)
			<-proceed
			_, err := kept{nil, k}.Settle(ctx, eventhub.Settlement{Refs: []eventhub.Ref{{Lease: d.Lease}}})
			return err
		})
	}()
	k.Receiver = <-b.joined
	for connection := uint64(1); connection <= 3; connection++ {
		if taken := k.Deliver(dealt(connection, events)); taken != events {
			t.Errorf("of what came over connection %d %d were taken; want all", connection, taken)
		}
		if connection == 1 {
			if got := <-begun; got != "1/1" {
				t.Fatalf("%s was begun", got)
			}
		}
		var due []uint64
		for _, ref := range k.due(time.Now().Add(opts.AckTimeout)) {
			if ref.Lease.Serial != connection {
				t.Errorf("lease %s is extended over connection %d", ref.Lease, connection)
			}
			due = append(due, ref.Lease.Offset)
		}
		if slices.Sort(due); !slices.Equal(due, []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}) {
			t.Errorf("over connection %d %v are extended; want all", connection, due)
		}
		if connection < 3 {
			k.Forget()
		}
	}
	for offset := 1; offset <= events; offset++ {
		proceed <- struct{}{}
		if offset < events {
			if got, want := <-begun, fmt.Sprint(offset+1, "/", 3); got != want {
				t.Errorf("%s was begun; want %s", got, want)
			}
		}
	}
	stop()
	if err := <-consumed; err != nil {
		t.Error(err)
	}
	var acked []uint64
	for _, ref := range k.acks {
		acked = append(acked, ref.Lease.Offset)
		if ref.Lease.Serial != 3 {
			t.Errorf("acked by the lease %s, which is over", ref.Lease)
		}
	}
	if !slices.Equal(acked, []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}) {
		t.Errorf("%v are acked", acked)
	}
	if len(k.held)+len(k.running)+len(k.heirs) > 0 {
		t.Errorf("%d leases, %d handlers and %d heirs are left", len(k.held), len(k.running), len(k.heirs))
	}
}

// TestAnotherEventAtTheSamePlace: the hub that is there after a loss has other events
// at the offsets of those that are being handled: they are handled too.
func TestAnotherEventAtTheSamePlace(t *testing.T) {
	k := &keeper{Receiver: taker(9), held: make(map[spot]hold)}
	first, other, same := dealt(1, 1), dealt(2, 1), dealt(3, 1)
	other[0].Record = eventhub.Record(strings.Replace(string(other[0].Record), "e-1", "f-1", 1))
	k.Deliver(first)
	k.begin(&first[0])
	k.Forget()
	k.Deliver(other)
	if !k.begin(&other[0]) {
		t.Error("another event is taken for the one that is being handled")
	}
	k.Forget()
	same[0].Sought = true
	k.Deliver(same)
	if !k.begin(&same[0]) {
		t.Error("an event that an operator wants to be handled again is not")
	}
}

// TestQueueOfAGroupThatWasMoved: a seek makes the leases of its topic void. What waits
// under them is not begun, what is begun gives no verdict, and no lease is kept alive;
// another topic of the subscription keeps what it has.
func TestQueueOfAGroupThatWasMoved(t *testing.T) {
	k := &keeper{Receiver: taker(9), held: make(map[spot]hold)}
	before, elsewhere, after := dealt(1, 3), dealt(2, 2), dealt(3, 2)
	for i := range elsewhere {
		elsewhere[i].Topic, elsewhere[i].Lease.Runtime = "u", 6
	}
	for i := range after { // a seek gives the group another runtime
		after[i].Lease.Runtime = 8
	}
	after[0].Sought = true
	k.Deliver(elsewhere)
	k.begin(&elsewhere[0])
	k.Forget() // its handler goes on
	k.Deliver(elsewhere[1:])
	k.Deliver(before)
	k.begin(&before[0])
	k.Deliver(after)
	k.Deliver(after[:1]) // offered again
	for i := range before {
		if i > 0 && k.begin(&before[i]) {
			t.Errorf("event %d is begun by a lease that is void", i+1)
		}
	}
	if _, held := k.release(before[0].Lease); held {
		t.Error("a verdict counts for a lease that is void")
	}
	for i := range after {
		if !k.begin(&after[i]) {
			t.Errorf("event %d is not begun by the lease that counts", i+1)
		}
	}
	if !k.begin(&elsewhere[1]) {
		t.Error("an event of another topic is not begun")
	}
	if fresh, _ := k.note(elsewhere[:1], time.Now()); len(fresh) != 0 || len(k.held) != 4 {
		t.Errorf("%d events that a handler has are to be begun; %d leases are held", len(fresh), len(k.held))
	}
}

// TestLeaseThatRunsOutOverAConnection: where no extension gets through in time an event
// comes again over the same connection. It is with one handler then, whose verdict is for
// the new lease; what no handler has begun is begun once, by the new lease.
func TestLeaseThatRunsOutOverAConnection(t *testing.T) {
	c := &Client{conn: &conn{}}
	c.conn.wake.L = &c.mu
	k := &keeper{c: c, Receiver: taker(9), held: make(map[spot]hold)}
	first, again, last := dealt(1, 3), dealt(2, 3), dealt(3, 3)
	k.Deliver(first)
	k.begin(&first[0])
	k.begin(&first[1])
	k.ackAndPublish(first[1].Lease)
	if fresh, _ := k.note(again, time.Now()); len(fresh) != 2 || fresh[0].Offset != 2 || fresh[1].Offset != 3 {
		t.Errorf("%d deliveries are to be begun", len(fresh))
	}
	if fresh, _ := k.note(again[:1], time.Now()); len(fresh) > 0 {
		t.Error("what is offered again and is with a handler is to be begun")
	}
	for i := range first {
		if i > 0 && k.begin(&first[i]) {
			t.Errorf("event %d is begun by the lease that ran out", i+1)
		}
		if i > 0 && !k.begin(&again[i]) {
			t.Errorf("event %d is not begun by the new lease", i+1)
		}
	}
	k.note(last[:1], time.Now())
	for i, want := range []uint64{3, 2, 2} {
		if lease, held := k.release(first[i].Lease); i == 0 && (!held || lease.Serial != want) || i > 0 && held {
			t.Errorf("event %d: the verdict is for lease %s; held: %v", i+1, lease, held)
		}
	}
	for i := 1; i < 3; i++ {
		if lease, held := k.release(again[i].Lease); !held || lease.Serial != 2 {
			t.Errorf("event %d: the verdict is for lease %s; held: %v", i+1, lease, held)
		}
	}
	if len(k.held)+len(k.heirs)+len(k.running) > 0 {
		t.Errorf("%d leases and %d heirs are left", len(k.held), len(k.heirs))
	}
}

// TestLeasesThatWaitBehindAFullQueue: an event that a handler has comes twice more while the
// queue is full, so both deliveries are offered again and again. The handler's verdict is for
// the last lease, and nothing of the event is begun again after it.
func TestLeasesThatWaitBehindAFullQueue(t *testing.T) {
	c := &Client{conn: &conn{}}
	c.conn.wake.L = &c.mu
	k := &keeper{c: c, Receiver: taker(9), held: make(map[spot]hold)}
	first, second, third := dealt(1, 1), dealt(2, 2), dealt(3, 1)
	k.Deliver(first)
	k.begin(&first[0])
	waiting := []eventhub.Delivery{second[1], second[0], third[0]}
	k.Receiver = taker(0)
	for range 3 {
		if taken := k.Deliver(waiting); taken != 0 {
			t.Fatalf("%d deliveries are taken by a full queue", taken)
		}
	}
	if lease, held := k.prolong(first[0].Lease, time.Second); !held || lease != third[0].Lease {
		t.Errorf("lease %s is extended; held: %v", lease, held)
	}
	if lease, held := k.release(first[0].Lease); !held || lease != third[0].Lease {
		t.Errorf("the verdict is for lease %s; held: %v", lease, held)
	}
	k.Receiver = taker(9)
	if taken := k.Deliver(waiting); taken != 3 {
		t.Errorf("%d deliveries are taken", taken)
	}
	for i := range waiting {
		if begun := k.begin(&waiting[i]); begun != (i == 0) {
			t.Errorf("delivery %d of what waited is begun: %v", i, begun)
		}
	}
	k.release(waiting[0].Lease)
	if len(k.held)+len(k.heirs)+len(k.running)+len(k.passed) > 0 {
		t.Errorf("%d leases, %d heirs and %d passed are left", len(k.held), len(k.heirs), len(k.passed))
	}
}

// TestExtensionIsDueInTheMiddle: each held lease once per half of its length.
func TestExtensionIsDueInTheMiddle(t *testing.T) {
	k := &keeper{opts: eventhub.GroupOptions{AckTimeout: 4 * time.Second}, held: make(map[spot]hold)}
	start := time.Unix(1723140000, 0)
	k.held[spot{offset: 1}] = hold{since: start}
	k.held[spot{offset: 2}] = hold{since: start.Add(time.Second)}
	for second, want := range []int{0, 0, 1, 1, 1, 1, 1} {
		refs := k.due(start.Add(time.Duration(second) * time.Second))
		if len(refs) != want {
			t.Errorf("after %d s %d leases are due; want %d", second, len(refs), want)
		}
	}
}

// TestProlongedLeaseIsExtendedLater: an extension by hand that is longer than the lease
// is not cut short by the next one of the keeper.
func TestProlongedLeaseIsExtendedLater(t *testing.T) {
	k := &keeper{opts: eventhub.GroupOptions{AckTimeout: 4 * time.Second}, held: make(map[spot]hold)}
	lease := eventhub.Lease{Offset: 1}
	k.held[spotOf(lease)] = hold{since: time.Now(), begun: true}
	if _, held := k.prolong(lease, time.Hour); !held {
		t.Error("the lease is not held")
	}
	for i, after := range []time.Duration{time.Minute, 59 * time.Minute, time.Hour} {
		want := i / 2
		if n := len(k.due(time.Now().Add(after))); n != want {
			t.Errorf("after %s %d leases are extended; want %d", after, n, want)
		}
	}
	if _, held := k.prolong(eventhub.Lease{Offset: 2}, time.Hour); held {
		t.Error("a lease that nobody has is held")
	}
}
