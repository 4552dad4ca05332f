package eventhub

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// Delivery is one attempt to hand an event to a member.
type Delivery struct {
	// Topic is the event's own topic.
	Topic  string
	Offset uint64
	// Record is valid until Deliver returns; clone it to keep it.
	Record Record
	// Attempt counts from 1 to MaxAttempts.
	Attempt     int
	MaxAttempts int
	// Lease names this delivery from any connection; empty with AutoAck and for
	// tails.
	Lease Lease
	// AckTimeout is how long the lease runs from now.
	AckTimeout time.Duration
	// Redriven counts how often the event was redriven (see admin.Redriver), 0 for most.
	// Attempt began again each time.
	Redriven int
	// Sought is set on a member's first delivery after its group was moved: leases
	// that it had are void. A remote hub's client sets it also where the group was moved
	// while there was no connection, or was deleted and made again.
	Sought bool
	// Epoch is that of the group in the topic, which each seek raises, and which a group
	// that is made again has otherwise. It is set on a member's first delivery of each
	// topic and on those with Sought; 0 otherwise.
	Epoch uint64
	// Gap, where not nil, says which events of the topic were removed before the group or
	// the tail was given them. It comes with the first delivery after that, and with that
	// event's later ones until it is acked. It must not be changed.
	Gap *Gap
	// State, where not nil, says of a live tail that begins with the state (StartSnapshot) that
	// this is a part of it, or, where there is no Record, something of it in place of an event.
	State *StatePart

	settler Settler // of Ack, Nack and Extend
}

// ID returns the event's id.
func (d *Delivery) ID() string { return string(d.Record.ID()) }

// Decode decodes the event's payload into v, a pointer, as json.Unmarshal does.
func (d *Delivery) Decode(v any) error {
	if err := json.Unmarshal(d.Record, &struct {
		Payload any `json:"payload"`
	}{v}); err != nil {
		return fmt.Errorf("eventhub: payload at offset %d of %s: %w", d.Offset, d.Topic, err)
	}
	return nil
}

// Event decodes the delivered event.
func (d *Delivery) Event() (Event, error) { return d.Record.Event(d.Offset) }

// Receiver is the member's end of a subscription. Where that has several topics,
// Deliver may be called for two of them at once.
type Receiver interface {
	// Deliver takes deliveries from the front of the batch, as many as it has
	// room for, and returns their number; the others get their attempt back and
	// come again after Subscription.Ready. It must neither block nor call the
	// Subscription.
	Deliver(batch []Delivery) (taken int)

	// Ended says that the subscription ended by itself: the hub stops, the
	// connection was lost for good. Nothing is delivered afterwards. It is not
	// called after Unsubscribe or Drop.
	Ended(err error)
}

// Forgetter is a Receiver that keeps deliveries for later. Forget is called when the
// leases of all that it took are void, because the connection to a remote hub was
// lost: what is not begun is not to be, for it comes again. As Deliver it must
// neither block nor call the Subscription.
type Forgetter interface {
	Receiver
	Forget()
}

// Gap says that a reader does not go on right after a place of a topic. The events after
// After and before First were removed, by the settings of the topic or an operator; or, to
// a live tail that goes on, where First is 0, the log does not have what was seen there. First is
// After+1 where no range of events was removed.
type Gap struct {
	Topic        string
	After, First uint64
	// Compacted, where not 0, is an offset at or above First: of the events from First up to it
	// those may be missing that a newer event of their key has replaced. Tombstones, where not 0,
	// is one up to which ends of keys, events with a payload that is null, may be missing too: who
	// keeps the state by key has to drop it and read it anew. Tombstones <= Compacted.
	Compacted, Tombstones uint64
}

// StatePart is what a live tail that begins with the state by key says of it. The state comes
// first: the newest event of each key as of an offset, without those that end their key, in the
// order of offsets, each with a StatePart. Then comes one that is Complete, without an event, then each event
// after that offset. Events without a key are not in the state.
//
// A state may come again: after an erasure, the end of the topic, or a lost connection, where
// what was given of it before does not count any more. It begins with an event that has Snapshot, or, where it is
// empty, with its end; what it does not have is not in the topic any more.
type StatePart struct {
	// Snapshot is set on the first event of a state and on its end. It is what
	// TailOptions.Snapshot takes, 1 to MaxSnapshotBytes of 0–9, a–z and -.
	Snapshot string
	// Complete says that there is no more of the state, which was that at Offset. Count is how
	// many events it had.
	Complete bool
	Offset   uint64
	Count    int
	// Horizon, where not 0, comes without an event too, at any time: what is at a lower offset was
	// removed from the topic, by its settings or an operator. A key whose newest event that was is
	// in no state any more.
	Horizon uint64
}

// IsMark reports whether there is no event.
func (s *StatePart) IsMark() bool { return s != nil && (s.Complete || s.Horizon != 0) }

// EndedGroup says that a group had ended: the settings of a topic end groups that nobody has used for
// a while (admin.TopicSettings, GroupIdleExpiry). It is told once, to who makes the group again.
type EndedGroup struct {
	Topic string
	TS    int64 // when that was, in epoch milliseconds
	// Cursor is the offset up to which the group had done everything.
	Cursor uint64
}

// Gapped is the Receiver of a live tail that is notified of gaps which are known when the tail
// begins: by Tail, before the first delivery, and by a client that has subscribed again over
// another connection, before what comes over that. Gaps that are found out later, and those
// of groups, come with a delivery (Delivery.Gap), and no gap in both ways. As Deliver it must
// neither block nor call the Subscription. Handlers need none of it: what calls them notifies
// them of either by the delivery and by OnGap.
type Gapped interface {
	Receiver
	Gap(g Gap)
}

// Knower is a Receiver of a live tail that learns from Subscribe, before anything else, what
// to give as TailOptions.Known to go on later. It is 1 to MaxKnownBytes of 0–9, a–z
// and -, and names the topics that there are, and the time. As Deliver it must neither block nor call the
// Subscription.
type Knower interface {
	Receiver
	Know(known string)
}

// Verdict is what a member says of a delivery.
type Verdict uint8

// The verdicts.
const (
	Ack    Verdict = iota // done
	Nack                  // not done; deliver again after the backoff, or give up
	Extend                // still at it; move the lease's deadline
)

// Ref names a delivery: by its lease, or by the event's id, by which this
// member's last lease of that event is meant. An id is of one topic: where a
// subscription has several, Topic says which, the event's own. Where it is empty, an
// id that the subscription has in one topic alone means the event there, and one that
// it has in several means none (Ambiguous). A lease of another topic than Topic names
// nothing.
type Ref struct {
	ID    string
	Lease Lease
	Topic string
}

// Settlement is one verdict on any number of deliveries.
type Settlement struct {
	Verdict Verdict
	Refs    []Ref

	// Of Nack.
	Reason   string        // kept with the dead letter, at most 1 KiB
	Delay    time.Duration // instead of the backoff, when positive
	Terminal bool          // dead-letter now, whatever the attempt

	// Of Extend: the deadline from now, 1 s to 1 h.
	By time.Duration
}

// Validate checks ranges; the error has CodeBadRequest.
func (s *Settlement) Validate() error {
	if s.Verdict > Extend {
		return Errorf(CodeBadRequest, "verdict is %d; %d to %d are allowed", s.Verdict, Ack, Extend)
	}
	if len(s.Reason) > maxReasonBytes {
		return Errorf(CodeBadRequest, "reason has %d bytes; at most %d are allowed", len(s.Reason), maxReasonBytes)
	}
	if s.Delay < 0 || s.Delay > maxBackoff {
		return Errorf(CodeBadRequest, "delay_ms is %d; 0 to %d are allowed", s.Delay.Milliseconds(), maxBackoff.Milliseconds())
	}
	if s.Verdict == Extend && (s.By < 0 || s.By > MaxAckTimeout) {
		return Errorf(CodeBadRequest, "extend_ms is %d; at most %d is allowed", s.By.Milliseconds(), MaxAckTimeout.Milliseconds())
	}
	return nil
}

// Outcome is what became of one Ref of a Settlement.
type Outcome uint8

// The outcomes.
const (
	Applied   Outcome = iota // the verdict counts
	Stale                    // a newer lease exists, or the event was settled before: no effect
	Unknown                  // Extend only: nobody holds that lease now
	Ambiguous                // the id is of events of several topics, and none is named: no effect
)

// AckPublish acks deliveries and publishes events in one atomic step. Receipts,
// parallel to Events, and Err are its outcome.
type AckPublish struct {
	Refs     []Ref
	Events   []Event
	Receipts []Receipt
	Err      error
}

// AckAndPublish does one ack-and-publish and waits for its outcome. Where ctx ends before,
// the outcome is unknown.
func AckAndPublish(ctx context.Context, sub Subscription, refs []Ref, events ...Event) ([]Receipt, error) {
	answered := make(chan struct{})
	hs := []AckPublish{{Refs: refs, Events: events}}
	sub.AckAndPublish(ctx, hs, func([]AckPublish) { close(answered) })
	select {
	case <-answered:
		return hs[0].Receipts, hs[0].Err
	case <-ctx.Done():
		return nil, Wrap(CodeShuttingDown, ctx.Err(), "gave up waiting; the events may or may not be published and acked together")
	}
}

// Subscription is a membership in a group, or a live tail. Its methods are safe for concurrent
// use. It ends by Unsubscribe, Drop or Receiver.Ended, whichever comes first;
// afterwards Settle still finds leases by token.
type Subscription interface {
	// Settle applies the verdict and returns one outcome per Ref, in order. It
	// is applied in memory when Settle returns and durable within 50 ms; a crash
	// in between means one more delivery, never a lost event.
	Settle(ctx context.Context, s Settlement) ([]Outcome, error)

	// AckAndPublish acks deliveries and publishes events in one atomic step each: the
	// events are durable and the deliveries are done, or nothing happens. The
	// ack-and-publishes are independent of one another; done is called exactly once, when
	// every outcome is known, must not block, and may run before AckAndPublish returns.
	// Where a lease is lost (another one exists, the event was settled before, or
	// the group was moved) Err has CodeLeaseLost. While an ack-and-publish is under way its
	// deliveries neither expire nor go to others. The deliveries of one ack-and-publish are
	// of one topic.
	//
	// The bytes of the events may be reused when AckAndPublish returns; hs itself belongs
	// to the subscription until done. ctx bounds the wait for room.
	AckAndPublish(ctx context.Context, hs []AckPublish, done func([]AckPublish))

	// Ready says that the receiver has room again after it took less than it
	// was given.
	Ready()

	// Sent says that n more of the deliveries that a Buffered receiver took have left
	// it, in the order in which it took them. Only from then on a delivery counts as
	// made: its lease runs from there, and with AutoAck the event is acked. One that
	// waits longer than MaxAckTimeout goes to another member, and the attempt is given
	// back. Sent is not called twice at once, nor from Deliver.
	Sent(n int)

	// Unsubscribe leaves the group: leases go to other members at once and the
	// attempts they were are given back.
	Unsubscribe(ctx context.Context) error

	// Drop leaves the group as a lost connection does: leases go to other
	// members at once and the attempts count, except those of the latest unsent
	// leases, which the receiver took and which never left the hub.
	Drop(unsent int)

	// Pause stops the deliveries to this member, and Resume lets them go on.
	// Leases given before stay, and can be settled. Doing it twice is harmless.
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
}

// Subscriber gives access to groups and live tails. Its methods are safe for concurrent use.
type Subscriber interface {
	// Subscribe joins the group as one member, and creates topic and group if
	// need be: the resolved start is durable when Subscribe returns. Deliveries
	// may reach r before that.
	//
	// CodeGroupMismatch names a setting that the group has otherwise, or says what is wrong with a filter that it has and
	// the hub does not accept any more;
	// CodeUnknownID, a start after an event that does not exist; CodeBadRequest, a
	// value out of range or a missing group.
	Subscribe(ctx context.Context, opts GroupOptions, r Receiver) (Subscription, error)

	// Tail opens a live tail, which creates nothing. Of the Subscription, Settle and
	// AckAndPublish have nothing to name. Otherwise it is as Subscribe.
	Tail(ctx context.Context, opts TailOptions, r Receiver) (Subscription, error)

	// Settle applies a verdict to deliveries named by their leases, from
	// wherever they were taken. topic is the events' own, or a pattern that matches
	// it. CodeNotSubscribed where the group does not exist.
	Settle(ctx context.Context, topic, group string, s Settlement) ([]Outcome, error)

	// AckAndPublish is Subscription.AckAndPublish for deliveries named by their leases.
	AckAndPublish(ctx context.Context, topic, group string, hs []AckPublish, done func([]AckPublish))
}
