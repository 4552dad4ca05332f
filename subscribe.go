package eventhub

import (
	"context"
	"slices"
	"time"
)

// Defaults and bounds of a subscription.
const (
	DefaultBatchSize   = 100
	DefaultMaxInFlight = 100
	DefaultAckTimeout  = 30 * time.Second
	MinAckTimeout      = time.Second
	MaxAckTimeout      = time.Hour
	DefaultMaxAttempts = 5
	DefaultMinBackoff  = time.Second
	DefaultMaxBackoff  = 10 * time.Minute

	maxBatchSize   = 10_000
	maxMaxInFlight = 1_000_000
	maxMaxAttempts = 1_000
	maxBackoff     = 24 * time.Hour
	maxReasonBytes = 1 << 10

	// MaxPatterns bounds SubscribeOptions.Topics, MaxPlaces its Places and MaxKnownBytes
	// its Known.
	MaxPatterns   = 64
	MaxPlaces     = 10_000
	MaxKnownBytes = 32

	minConflate = 10 * time.Millisecond
	maxConflate = time.Hour
)

// StartKind says where a group that is being created begins.
type StartKind uint8

// The ways to start. The zero value is StartLatest, as in the protocol.
const (
	StartLatest   StartKind = iota // behind the last event there is
	StartEarliest                  // at the first event there is
	StartTime                      // at the first event committed at or after Start.TS
	StartAfterID                   // behind the event Start.AfterID
	StartOffset                    // at Start.Offset
)

// Start is where a group begins. It counts only when the group is created;
// afterwards the group's cursor does.
type Start struct {
	Kind    StartKind
	TS      int64 // epoch milliseconds, commit time
	AfterID string
	Offset  uint64
}

// Backoff bounds the wait before an event is delivered again: it starts at Min
// and doubles up to Max, with jitter. The zero value takes the group's.
type Backoff struct {
	Min, Max time.Duration
}

// SubscribeOptions ask for membership in a group. Zero values mean the default,
// and for the settings of the group (MaxAttempts, Backoff) whatever the group
// has.
//
// Without a Group they ask for a live tail: all events from Start on, for this
// subscription alone, with no cursor that outlives it, no leases and no acks.
// A tail that falls behind is not closed; it reads from the store and catches up.
//
// Topic may be a pattern, and Topics may name more of them. The subscription is
// then a member of the group in every topic that one of them matches, and
// MaxInFlight is its bound over all of them. The patterns of a group are durable:
// a topic that is created later gets the group from its first event on, members
// connected or not; Start counts for the topics that are there.
type SubscribeOptions struct {
	Topic  string
	Topics []string // at most MaxPatterns
	Group  string
	Start  Start

	// Of this member.
	BatchSize   int           // deliveries handed over at once, at most
	MaxInFlight int           // leases held at once, at most
	AckTimeout  time.Duration // length of a lease, 1 s to 1 h
	AutoAck     bool          // an event counts as acked when handed over, or sent where Buffered
	Buffered    bool          // the receiver queues what it takes and tells by Subscription.Sent what has left it
	Peer        Peer          // who it is, for those who look
	// Conflate, of a live tail, hands over the newest event of each topic and key
	// once in that time, and drops those before it, also where the hub then loses
	// the newer one in a crash or to a backup. Events without a key are of one.
	// 0: every event.
	Conflate time.Duration
	// Places, of a live tail, say where it goes on in topics that it had before:
	// behind these offsets, one for a topic, at most MaxPlaces. Start counts for all
	// other topics. Topics that it does not have are passed over. Where the event of a
	// place is not in the log as it was (TS tells), because the hub lost it or is
	// another one, the tail goes on with what was committed after it or has a higher
	// offset, and with the first event where TS is 0. A Client has places of its own and takes none.
	Places []Place
	// Known, of a live tail that goes on, is what its receiver was told (see Knower) when
	// it began, or went on the last time. A topic that did not exist then, and of which
	// there is no place, begins at its first event, whatever the times of that. A hub that
	// the text says nothing to, as it is of another one, goes by Start alone. Start is none
	// behind an event or at an offset, which are places. A Client keeps it by itself and
	// takes none.
	Known string

	// Of the group, fixed at its creation. An empty Ordering means whatever the
	// group has, and OrderingNone for a new one; a nil Filter likewise, and no
	// filter for a new one. A tail may have a filter too.
	Ordering    string
	Filter      *Filter
	MaxAttempts int
	Backoff     Backoff
}

// The orderings of a group.
const (
	// OrderingNone delivers events to whoever has room; a failed one does not
	// keep others back.
	OrderingNone = "none"
	// OrderingKey delivers the events of a key one by one, in the order of their
	// offsets: the next one goes out when the one before is acked or
	// dead-lettered. Events without a key, and other keys, do not wait.
	OrderingKey = "key"
)

// WithDefaults fills the member's zero values. The group's settings stay as
// they are: zero there means "whatever the group has".
func (o SubscribeOptions) WithDefaults() SubscribeOptions {
	if o.BatchSize == 0 {
		o.BatchSize = DefaultBatchSize
	}
	if o.MaxInFlight == 0 {
		o.MaxInFlight = DefaultMaxInFlight
	}
	if o.AckTimeout == 0 {
		o.AckTimeout = DefaultAckTimeout
	}
	return o
}

// Validate checks names and ranges; the error names the option by its name on
// the wire.
func (o *SubscribeOptions) Validate() error {
	if _, err := o.Patterns(); err != nil {
		return err
	}
	if err := o.validateGroup(); err != nil {
		return err
	}
	if err := o.Start.Validate(); err != nil {
		return err
	}
	if err := o.Filter.Validate(); err != nil {
		return err
	}
	if err := o.validateConflate(); err != nil {
		return err
	}
	if err := o.validatePlaces(); err != nil {
		return err
	}
	if o.Ordering != "" && o.Ordering != OrderingNone && o.Ordering != OrderingKey {
		return Errorf(CodeBadRequest, "ordering is %s; none and key are allowed", quote(o.Ordering))
	}
	for _, n := range []struct {
		name            string
		value, min, max int64
	}{
		{"batchSize", int64(o.BatchSize), 1, maxBatchSize},
		{"maxInFlight", int64(o.MaxInFlight), 1, maxMaxInFlight},
		{"ackTimeoutMs", o.AckTimeout.Milliseconds(), MinAckTimeout.Milliseconds(), MaxAckTimeout.Milliseconds()},
		{"maxAttempts", int64(o.MaxAttempts), 0, maxMaxAttempts},
		{"backoff.minMs", o.Backoff.Min.Milliseconds(), 0, maxBackoff.Milliseconds()},
		{"backoff.maxMs", o.Backoff.Max.Milliseconds(), 0, maxBackoff.Milliseconds()},
	} {
		if n.value < n.min || n.value > n.max {
			return Errorf(CodeBadRequest, "%s is %d; %d to %d are allowed", n.name, n.value, n.min, n.max)
		}
	}
	if o.Backoff.Max != 0 && o.Backoff.Min > o.Backoff.Max {
		return Errorf(CodeBadRequest, "backoff.minMs %d is above backoff.maxMs %d", o.Backoff.Min.Milliseconds(), o.Backoff.Max.Milliseconds())
	}
	return nil
}

// Patterns returns Topic and Topics, compiled, each once. The error has
// CodeBadTopic, or CodeBadRequest where there are too many.
func (o *SubscribeOptions) Patterns() ([]Pattern, error) {
	if len(o.Topics) > MaxPatterns {
		return nil, Errorf(CodeBadRequest, "topics has %d patterns; at most %d are allowed", len(o.Topics), MaxPatterns)
	}
	patterns := make([]Pattern, 0, 1+len(o.Topics))
	for _, text := range append([]string{o.Topic}, o.Topics...) {
		p, err := ParsePattern(text)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(patterns, func(q Pattern) bool { return q.text == text }) {
			patterns = append(patterns, p)
		}
	}
	return patterns, nil
}

func (o *SubscribeOptions) validateConflate() error {
	switch {
	case o.Conflate == 0:
		return nil
	case o.Group != "":
		return Errorf(CodeBadRequest, "conflate is set; a group gets every event")
	case o.Conflate < minConflate || o.Conflate > maxConflate:
		return Errorf(CodeBadRequest, "conflate.every_ms is %d; %d to %d are allowed", o.Conflate.Milliseconds(), minConflate.Milliseconds(), maxConflate.Milliseconds())
	}
	return nil
}

func (o *SubscribeOptions) validatePlaces() error {
	if len(o.Places) > 0 && o.Group != "" {
		return Errorf(CodeBadRequest, "places are given; a group knows its own")
	}
	if o.Known != "" && o.Group != "" {
		return Errorf(CodeBadRequest, "known is given; a group knows its topics")
	}
	if len(o.Known) > MaxKnownBytes {
		return Errorf(CodeBadRequest, "known has %d bytes; at most %d are allowed", len(o.Known), MaxKnownBytes)
	}
	if len(o.Places) > MaxPlaces {
		return Errorf(CodeBadRequest, "places has %d entries; at most %d are allowed", len(o.Places), MaxPlaces)
	}
	for i, p := range o.Places {
		if err := ValidateStoredTopic(p.Topic); err != nil {
			return Errorf(CodeBadRequest, "places[%d]: %s", i, AsError(err).Message)
		}
		if p.Offset > MaxOffset {
			return Errorf(CodeBadRequest, "places[%d]: offset is %d; at most %d is allowed", i, p.Offset, uint64(MaxOffset))
		}
		if p.TS < 0 {
			return Errorf(CodeBadRequest, "places[%d]: ts is %d; epoch milliseconds are not negative", i, p.TS)
		}
	}
	return nil
}

// validateGroup checks the group's name, and that a tail asks for nothing that
// only groups have.
func (o *SubscribeOptions) validateGroup() error {
	switch {
	case o.Group != "":
		return ValidateGroup(o.Group)
	case o.Ordering != "" && o.Ordering != OrderingNone:
		return Errorf(CodeBadRequest, "ordering is %q; a subscription without group has none", o.Ordering)
	case o.MaxAttempts != 0:
		return Errorf(CodeBadRequest, "maxAttempts is %d; a subscription without group has one attempt", o.MaxAttempts)
	case o.Backoff != Backoff{}:
		return Errorf(CodeBadRequest, "backoff is set; a subscription without group has one attempt")
	}
	return nil
}

// Validate checks ranges; the error has CodeBadRequest.
func (s *Start) Validate() error {
	switch s.Kind {
	case StartLatest, StartEarliest:
		return nil
	case StartTime:
		if s.TS < 0 {
			return Errorf(CodeBadRequest, "ts is %d; epoch milliseconds are not negative", s.TS)
		}
	case StartAfterID:
		if err := checkID("afterId", s.AfterID); err != nil {
			return Errorf(CodeBadRequest, "%s", AsError(err).Message)
		}
	case StartOffset:
		if s.Offset > MaxOffset {
			return Errorf(CodeBadRequest, "offset is %d; at most %d is allowed", s.Offset, uint64(MaxOffset))
		}
	default:
		return Errorf(CodeBadRequest, "start kind %d is unknown", s.Kind)
	}
	return nil
}

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
	// Attempt began anew each time.
	Redriven int
	// Sought is set on a member's first delivery after its group was moved: leases
	// that it had are void.
	Sought bool

	settler Settler // of Ack, Nack and Extend
}

// ID returns the event's id.
func (d *Delivery) ID() string { return string(d.Record.ID()) }

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

	// Ended tells that the subscription ended by itself: the hub stops, the
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

// Gap tells that a live tail does not go on right behind a place. The events behind
// After and before First were removed; or, where First is 0, the log does not have what
// was seen there.
type Gap struct {
	Topic        string
	After, First uint64
}

// Gapped is a Receiver that is told of gaps: by Subscribe, before the first delivery, and
// by a client that has subscribed again over another connection, before what comes over
// that. As Deliver it must neither block nor call the Subscription.
type Gapped interface {
	Receiver
	Gap(g Gap)
}

// Knower is a Receiver of a live tail that is told by Subscribe, before anything else, what
// to give as SubscribeOptions.Known to go on later. It is 1 to MaxKnownBytes of 0–9, a–z
// and -, and names the topics that there are. As Deliver it must neither block nor call the
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

// Subscription is a membership in a group. Its methods are safe for concurrent
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

	// Ready tells that the receiver has room again after it took less than it
	// was given.
	Ready()

	// Sent tells that n more of the deliveries that a Buffered receiver took have left
	// it, in the order in which it took them. Only from then on a delivery counts as
	// made: its lease runs from there, and with AutoAck the event is acked. One that
	// waits longer than MaxAckTimeout goes to another member, and the attempt is given
	// back. Sent is not called twice at once, nor from Deliver.
	Sent(n int)

	// Unsubscribe leaves the group: leases go to other members at once and the
	// attempts they were are given back.
	Unsubscribe(ctx context.Context) error

	// Drop leaves the group as a lost connection does: leases go to other
	// members at once and the attempts count, save those of the latest unsent
	// leases, which the receiver took and which never left the hub.
	Drop(unsent int)

	// Pause stops the deliveries to this member, and Resume lets them go on.
	// Leases given before stay, and can be settled. Doing it twice is harmless.
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
}

// Subscriber gives access to groups. Its methods are safe for concurrent use.
type Subscriber interface {
	// Subscribe joins the group as one member, and creates topic and group if
	// need be: the resolved start is durable when Subscribe returns. Deliveries
	// may reach r before that. Without a group it opens a live tail, which
	// creates nothing.
	//
	// CodeGroupMismatch names a setting that the group has otherwise;
	// CodeUnknownID, a start behind an event that does not exist.
	Subscribe(ctx context.Context, opts SubscribeOptions, r Receiver) (Subscription, error)

	// Settle applies a verdict to deliveries named by their leases, from
	// wherever they were taken. topic is the events' own, or a pattern that matches
	// it. CodeNotSubscribed where the group does not exist.
	Settle(ctx context.Context, topic, group string, s Settlement) ([]Outcome, error)

	// AckAndPublish is Subscription.AckAndPublish for deliveries named by their leases.
	AckAndPublish(ctx context.Context, topic, group string, hs []AckPublish, done func([]AckPublish))
}

// Cursor is how far a group is in a topic.
type Cursor struct {
	Topic, Group string
	// Offset is the ack floor: everything at or below it is done.
	Offset uint64
	// Epoch is raised by every seek.
	Epoch uint64
	// LastID and LastTS are those of the event at Offset, as the seeds' cursor
	// shows them; empty when there is none.
	LastID string
	LastTS int64
}
