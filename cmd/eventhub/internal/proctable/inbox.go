package proctable

import (
	"slices"
	"sync"

	"eventhub"
)

// inboxSize is how many deliveries wait in memory for a slow terminal.
const inboxSize = 1024

// inbox is the Receiver of the table: it keeps deliveries until all are taken
// at once. Deliver never waits; there is one channel operation a batch.
type inbox struct {
	arrived chan struct{} // holds a token while queue is not empty
	ended   chan error

	mu      sync.Mutex
	queue   []eventhub.Delivery
	refused bool // something was left with the group since the last take
}

func newInbox() *inbox {
	return &inbox{arrived: make(chan struct{}, 1), ended: make(chan error, 1)}
}

// Deliver implements eventhub.Receiver.
func (in *inbox) Deliver(batch []eventhub.Delivery) int {
	in.mu.Lock()
	defer in.mu.Unlock()
	n := min(len(batch), inboxSize-len(in.queue))
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
func (in *inbox) Ended(err error) { in.ended <- err }

// take empties the inbox. refused tells that the group waits to hear that there
// is room.
func (in *inbox) take() (batch []eventhub.Delivery, refused bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	batch, refused = in.queue, in.refused
	in.queue, in.refused = nil, false
	return batch, refused
}
