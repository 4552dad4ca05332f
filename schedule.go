package eventhub

import (
	"context"
	"time"
)

// MaxDelay is how far ahead an event may be scheduled.
const MaxDelay = 365 * 24 * time.Hour

// Scheduled is an event that was published with a delay and is not in its
// topic's log yet.
type Scheduled struct {
	Topic string `json:"topic"`
	ID    string `json:"id"`
	Key   string `json:"key,omitempty"`
	// DeliverAt is when it enters the log, in epoch milliseconds. Events of the
	// same time do so in the order of Seq.
	DeliverAt int64  `json:"deliver_at"`
	Seq       uint64 `json:"seq"`
}

// ScheduleQuery says which scheduled events to list. Empty fields ask for
// nothing.
type ScheduleQuery struct {
	Topic    string // only those of this topic
	AfterAt  int64  // only those behind this place: DeliverAt and
	AfterSeq uint64 // Seq of the last one seen
	Limit    int    // 1 to MaxPage; 0 means MaxPage
}

// Scheduler is about events that were published with a delay. Its methods are
// safe for concurrent use.
type Scheduler interface {
	// Cancel takes a scheduled event back: it will never be in the log. It is
	// durable when Cancel returns. CodeUnknownID where nothing of that id is
	// scheduled in the topic, because nothing was or because it was delivered.
	Cancel(ctx context.Context, topic, id string) error

	// Scheduled lists scheduled events in the order in which they are due.
	Scheduled(ctx context.Context, q ScheduleQuery) ([]Scheduled, error)
}
