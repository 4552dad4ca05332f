package eventhub

import (
	"context"
	"slices"
	"strconv"
	"time"
)

// The wait for groups that a publish may ask for.
const (
	DefaultWait = 10 * time.Second
	MaxWait     = 5 * time.Minute
	MaxWaitFor  = 16 // groups
)

// Receipt says where an event is. It is handed out only once the event is as
// durable as the hub promises.
type Receipt struct {
	ID     string
	Offset uint64 // 0 while the event is delayed
	// DeliverAt is when a delayed event enters the log; the zero time for others.
	DeliverAt time.Time
	// Duplicate is set when an event with this id was in the topic already;
	// Offset or DeliverAt is then the first one's, and nothing was added.
	Duplicate bool
}

// Publication is one atomic publish: its events are committed together or not
// at all. Receipts, parallel to Events, and Err are its outcome.
type Publication struct {
	Events   []Event
	Receipts []Receipt
	Err      error

	// Producer, where not nil, numbers the publication. The number after the last one is
	// published as any publication is, and is used then, also where it is refused. A number that
	// was used before gets the answer of the first, with Duplicate in its receipts, or its Err;
	// its events are not looked at beyond their number. Any other number is CodeBadSequence, a
	// producer that somebody else has opened since CodeFenced, and one that the hub has forgotten
	// CodeUnknownProducer. An event with a delay or a time is a delayed one, also where that
	// time is over.
	Producer *Producer
	Seq      uint64
	// Refused, where not nil, is why the publication is refused whatever it is; see Refuse.
	Refused error
	// SeqUsed, a result, says that the number is used: another publication with it gets this answer.
	SeqUsed bool

	// WaitFor names groups that must have acked all of the events before the
	// publication counts as done, and WaitUpTo how long that may take: up to
	// MaxWait, 0 means DefaultWait. A group that does not exist in the topic of
	// each event is CodeNotSubscribed, and nothing is published. Groups that have
	// not acked in time, or have dead-lettered an event, are named by an Err with
	// CodeWaitTimeout, or with CodeGone where an event was removed before that; the events are
	// published then, and Receipts are filled.
	// Delayed events cannot be waited for.
	WaitFor  []string
	WaitUpTo time.Duration
	// Committed, where not nil, is called once the events of a publication with
	// WaitFor are in their topics and it begins to wait; never where they are
	// refused. It must not block, and runs before done.
	Committed func()
}

// ValidateWait checks WaitFor and WaitUpTo; the error has CodeBadRequest and names the
// option by its name on the wire.
func (p *Publication) ValidateWait() error {
	if len(p.WaitFor) > MaxWaitFor {
		return Errorf(CodeBadRequest, "wait_for has %d groups; at most %d are allowed", len(p.WaitFor), MaxWaitFor)
	}
	if p.WaitUpTo < 0 || p.WaitUpTo > MaxWait {
		return Errorf(CodeBadRequest, "wait_ms is %s; 0 to %d are allowed", millis(p.WaitUpTo), MaxWait.Milliseconds())
	}
	for i, name := range p.WaitFor {
		if err := ValidateGroup(name); err != nil {
			return Errorf(CodeBadRequest, "wait_for[%d]: %s", i, AsError(err).Message)
		}
		if slices.Contains(p.WaitFor[:i], name) {
			return Errorf(CodeBadRequest, "wait_for names %q twice", name)
		}
	}
	return nil
}

// millis writes a duration in milliseconds, with what is less than one.
func millis(d time.Duration) string {
	return strconv.FormatFloat(float64(d)/float64(time.Millisecond), 'f', -1, 64)
}

// Publisher appends events to topics. Its methods are safe for concurrent use.
type Publisher interface {
	// Publish commits the events in one atomic step and returns one receipt for
	// each, in order, once they are durable. On an error nothing of the batch
	// was refused halfway: either all events are in the log or none is; after
	// an error other than one with CodeInternal or CodeShuttingDown none is.
	// Publishing again under the same ids is always safe.
	Publish(ctx context.Context, events ...Event) ([]Receipt, error)

	// Enqueue hands over independent publications that succeed or fail each for
	// itself; those to one topic keep their order. It returns once they are
	// accepted, waiting while the publisher has no room; done is then called
	// exactly once, when every outcome is known, and must not block. done may
	// run before Enqueue returns. Where a publication's Receipts has room for
	// its events it is filled in place.
	//
	// The bytes of the events may be reused when Enqueue returns; pubs itself
	// belongs to the publisher until done. A publication with WaitFor holds the
	// others of its call up. ctx bounds the wait for room, and that of WaitFor.
	Enqueue(ctx context.Context, pubs []Publication, done func([]Publication))
}

// Recaller finds what was published under an id, for whoever may publish to the topic and comes
// again. Its methods are safe for concurrent use.
type Recaller interface {
	// Recall returns the event of the id, whether it is in the log of the topic or delayed.
	// CodeUnknownID: there is none, or none any more.
	Recall(ctx context.Context, topic, id string) (Record, error)
}

// PublishAndWait publishes the events as [Publisher].Publish does and waits until the
// groups have acked all of them, for up to wait: at most MaxWait; 0 means DefaultWait.
// What prevents it are errors as of Publication.WaitFor: with CodeWaitTimeout the
// events are published, and the receipts say where. If ctx ends before, they may
// or may not be.
func PublishAndWait(ctx context.Context, p Publisher, groups []string, wait time.Duration, events ...Event) ([]Receipt, error) {
	answered := make(chan struct{})
	pubs := []Publication{{Events: events, WaitFor: groups, WaitUpTo: wait}}
	p.Enqueue(ctx, pubs, func([]Publication) { close(answered) })
	select {
	case <-answered:
		return pubs[0].Receipts, pubs[0].Err
	case <-ctx.Done():
		return nil, Wrap(CodeShuttingDown, ctx.Err(), "gave up waiting; the events may or may not be published")
	}
}
