// Package inbox is for consumers that work in batches, as the process projector
// and the demo's table do. [eventhub.Consume] calls a handler for each event and
// settles it when the handler returns; an Inbox hands all that has come to one
// goroutine at once, which settles what it likes, when it likes, and can wait for
// other things meanwhile.
package inbox

import (
	"slices"
	"sync"

	"eventhub"
)

// Inbox is an eventhub.Receiver: deliveries wait in it until they are taken, all
// at once. The hub is never kept waiting; what finds no room stays with it until
// the next Take. There is one channel operation a batch, and none an event.
//
// Any goroutine may deliver; one takes.
type Inbox struct {
	room    int
	arrived chan struct{} // holds a token while queue is not empty
	ended   chan error

	mu      sync.Mutex
	queue   []eventhub.Delivery
	refused bool // something was left with the hub since the last Take
}

// New returns an Inbox in which at most room deliveries wait, at least 1.
func New(room int) *Inbox {
	return &Inbox{room: max(room, 1), arrived: make(chan struct{}, 1), ended: make(chan error, 1)}
}

// Deliver implements eventhub.Receiver.
func (in *Inbox) Deliver(batch []eventhub.Delivery) int {
	in.mu.Lock()
	defer in.mu.Unlock()
	n := min(len(batch), in.room-len(in.queue))
	for _, d := range batch[:n] {
		d.Record = slices.Clone(d.Record)
		in.queue = append(in.queue, d)
	}
	if n < len(batch) {
		in.refused = true
	}
	if n > 0 {
		select {
		case in.arrived <- struct{}{}:
		default:
		}
	}
	return n
}

// Ended implements eventhub.Receiver.
func (in *Inbox) Ended(err error) { in.ended <- err }

// Arrived says that there is something to take.
func (in *Inbox) Arrived() <-chan struct{} { return in.arrived }

// Over gives the reason when the subscription has ended by itself.
func (in *Inbox) Over() <-chan error { return in.ended }

// Take empties the inbox, after Arrived, and lets the subscription know that there
// is room again.
func (in *Inbox) Take(sub eventhub.Subscription) []eventhub.Delivery {
	in.mu.Lock()
	batch, refused := in.queue, in.refused
	in.queue, in.refused = nil, false
	in.mu.Unlock()
	if refused {
		sub.Ready() // without the lock: it may deliver at once
	}
	return batch
}
