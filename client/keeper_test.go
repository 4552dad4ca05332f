package client

import (
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
	k := &keeper{c: c, Receiver: taker(1), held: make(map[eventhub.Lease]time.Time)}
	a, b := eventhub.Lease{Serial: 1}, eventhub.Lease{Serial: 2}
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
	verdict(a, eventhub.Applied)
	verdict(a, eventhub.Stale) // given already
	verdict(b, eventhub.Stale) // never taken
	k.Deliver(batch)
	k.lost()
	verdict(a, eventhub.Stale)
}

// TestExtensionIsDueInTheMiddle: each held lease once per half of its length.
func TestExtensionIsDueInTheMiddle(t *testing.T) {
	k := &keeper{opts: eventhub.SubscribeOptions{AckTimeout: 4 * time.Second}, held: make(map[eventhub.Lease]time.Time)}
	start := time.Unix(1723140000, 0)
	k.held[eventhub.Lease{Serial: 1}] = start
	k.held[eventhub.Lease{Serial: 2}] = start.Add(time.Second)
	for second, want := range []int{0, 0, 1, 1, 1, 1, 1} {
		refs := k.due(start.Add(time.Duration(second) * time.Second))
		if len(refs) != want {
			t.Errorf("after %d s %d leases are due; want %d", second, len(refs), want)
		}
	}
}
