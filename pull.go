package eventhub

import (
	"context"
	"time"
)

// The wait of a Pull for a first delivery: a shorter one is MinPullWait, in which
// what is there is found.
const (
	MinPullWait = 100 * time.Millisecond
	MaxPullWait = time.Minute
)

// Puller hands deliveries out to those who come, take some and go, as over plain
// HTTP: each call is a member of the group for as long as it lasts. Its method is safe
// for concurrent use.
type Puller interface {
	// Pull joins the group, takes up to opts.MaxInFlight deliveries as soon as there is
	// one, 8 MiB of them together or one, and leaves again; the leases stay, and are settled by their tokens through
	// Subscriber.Settle or AckAndPublish, from anywhere, or run out. Nothing in time (wait, up
	// to MaxPullWait) is no error. Records belong to the caller.
	Pull(ctx context.Context, opts GroupOptions, wait time.Duration) ([]Delivery, error)
}
