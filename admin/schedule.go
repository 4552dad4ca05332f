package admin

import "context"

// Scheduled is an event that was published with a delay and is not in its
// topic's log yet.
type Scheduled struct {
	Topic string `json:"topic"`
	ID    string `json:"id"`
	Key   string `json:"key,omitempty"`
	// DeliverAt is when it enters the log, in epoch milliseconds. Events of the
	// same time enter it in the order of Seq.
	DeliverAt int64  `json:"deliver_at"`
	Seq       uint64 `json:"seq"`
}

// ScheduleQuery says which delayed events to list. An empty field does not choose.
type ScheduleQuery struct {
	Topic    string // only those of this topic
	AfterAt  int64  // only those after this place: DeliverAt and
	AfterSeq uint64 // Seq of the last one seen
	Limit    int    // 1 to MaxPage; 0 means MaxPage
}

// Scheduler is about events that were published with a delay. Its methods are
// safe for concurrent use.
type Scheduler interface {
	// Cancel cancels a delayed event: it will never be in the log. It is durable when
	// Cancel returns. CodeUnknownID if the topic has no delayed event with that id,
	// because there was none or because it was delivered.
	Cancel(ctx context.Context, topic, id string) error

	// Scheduled lists delayed events in the order in which they are due.
	Scheduled(ctx context.Context, q ScheduleQuery) ([]Scheduled, error)
}
