// Package bustest has what the tests of the engine and of its packages share.
package bustest

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
)

// Got is one delivery as an inbox keeps it.
type Got struct {
	eventhub.Delivery
	Payload string
	At      time.Time
}

// Inbox is a Receiver that notes what it is given.
type Inbox struct {
	T   *testing.T
	Sub eventhub.Subscription

	Mu    sync.Mutex
	Room  int // deliveries it still takes; negative: all
	All   []Got
	Calls [][]uint64 // offsets by Deliver call
	Ends  []error
}

// Deliver implements eventhub.Receiver.
func (in *Inbox) Deliver(batch []eventhub.Delivery) int {
	in.Mu.Lock()
	defer in.Mu.Unlock()
	n := len(batch)
	if in.Room >= 0 {
		n = min(n, in.Room)
		in.Room -= n
	}
	var offsets []uint64
	for _, d := range batch[:n] {
		d.Record = slices.Clone(d.Record)
		e, err := d.Event()
		if err != nil {
			in.T.Error(err)
		}
		in.All = append(in.All, Got{d, string(e.Payload), time.Now()})
		offsets = append(offsets, d.Offset)
	}
	in.Calls = append(in.Calls, offsets)
	return n
}

// Ended implements eventhub.Receiver.
func (in *Inbox) Ended(err error) {
	in.Mu.Lock()
	defer in.Mu.Unlock()
	in.Ends = append(in.Ends, err)
}

// Take returns what came since the last Take, once the bus has come to rest.
func (in *Inbox) Take() []Got {
	synctest.Wait()
	in.Mu.Lock()
	defer in.Mu.Unlock()
	all := in.All
	in.All = nil
	return all
}

// TakeOffsets is Take for tests that look at offsets only.
func (in *Inbox) TakeOffsets() []uint64 {
	var offsets []uint64
	for _, g := range in.Take() {
		offsets = append(offsets, g.Offset)
	}
	return offsets
}

// Settle gives a verdict of deliveries, and waits for what comes of it.
func (in *Inbox) Settle(s eventhub.Settlement, refs ...eventhub.Ref) []eventhub.Outcome {
	in.T.Helper()
	s.Refs = refs
	out, err := in.Sub.Settle(context.Background(), s)
	if err != nil {
		in.T.Fatal(err)
	}
	synctest.Wait()
	return out
}

// Ack is Settle with that verdict.
func (in *Inbox) Ack(refs ...eventhub.Ref) []eventhub.Outcome {
	in.T.Helper()
	return in.Settle(eventhub.Settlement{Verdict: eventhub.Ack}, refs...)
}

// Nack is Settle with that verdict.
func (in *Inbox) Nack(refs ...eventhub.Ref) []eventhub.Outcome {
	in.T.Helper()
	return in.Settle(eventhub.Settlement{Verdict: eventhub.Nack, Reason: "no luck"}, refs...)
}
