package eventhub

import (
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

	// MaxPatterns bounds Topics of GroupOptions and TailOptions, MaxPlaces the Places
	// of TailOptions and MaxKnownBytes its Known.
	MaxPatterns   = 64
	MaxPlaces     = 10_000
	MaxKnownBytes = 32
	// MaxSnapshotBytes bounds Snapshot of TailOptions, and MaxStateKeys the keys of a state
	// that a tail may begin with.
	MaxSnapshotBytes = 96
	MaxStateKeys     = 1_000_000

	minConflate = 10 * time.Millisecond
	maxConflate = time.Hour
)

// Backoff bounds the wait before an event is delivered again: it starts at Min
// and doubles up to Max, with jitter. The zero value takes the group's.
type Backoff struct {
	Min, Max time.Duration
}

// GroupOptions ask for membership in a group. Topic and Group are required; zero
// values of the others mean the default, and for the settings of the group
// (Ordering, Filter, MaxAttempts, Backoff) whatever the group has.
//
// Topic may be a pattern, and Topics may name more of them. The subscription is
// then a member of the group in every topic that one of them matches, and
// MaxInFlight is its bound over all of them. The patterns of a group are durable:
// a topic that is created later gets the group from its first event on, members
// connected or not; Start counts for the topics that are there.
type GroupOptions struct {
	Topic  string
	Topics []string // at most MaxPatterns
	// Group is the name: 1–128 of A–Z a–z 0–9 . _ : -. Members with the same name
	// share the events.
	Group string
	// Start is where the group begins, if this subscription creates it.
	Start Start
	// NoCreate refuses to create anything: CodeUnknownID if the topic does not exist, and
	// CodeNotSubscribed if the topic has no such group, or the group no such pattern. What
	// a pattern of the group brings to new topics is created all the same. It counts
	// also when a client subscribes again after a lost connection.
	NoCreate bool
	// Allowed, where not nil, are the topics that the subscription may have of those that its
	// patterns match: it is not a member of the group in others, and its patterns do not bring
	// the group to others that are created later. Patterns keep what each subscription by them
	// allowed. It is the hub's own; a client takes none.
	Allowed *TopicRules
	// Shows, where not nil, reports which other groups of an allowed topic the error of a
	// misspelt one may name. It is the hub's own too.
	Shows func(topic, group string) bool

	// Of this member.
	Concurrency int           // calls of a handler at once; 0 means 1, which keeps the order of deliveries
	BatchSize   int           // deliveries handed over at once, at most
	MaxInFlight int           // leases held at once, at most
	AckTimeout  time.Duration // length of a lease, 1 s to 1 h
	AutoAck     bool          // an event counts as acked when handed over, or sent where Buffered
	Buffered    bool          // the receiver queues what it takes and reports by Subscription.Sent what has left it
	Peer        Peer          // who it is, for those who look
	// OnGap is called once for each gap (Delivery.Gap), before what is done with the first
	// delivery that has it: by Consume, Transform and Deliveries, and by as many goroutines
	// at once as handlers are. Nil: the deliveries alone say it.
	OnGap func(Gap)
	// OnEnded is called, by Subscribe or Pull before it returns, for each topic in which the group
	// had ended by itself, and that this call has made it again. It begins at Start there. A
	// remote hub's client calls it also where that has happened over a lost connection. It must
	// not block.
	OnEnded func(EndedGroup)

	// Of the group, fixed at its creation. An empty Ordering means whatever the
	// group has, and OrderingNone for a new one; a nil Filter likewise, and no
	// filter for a new one.
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

// TailOptions ask for a live tail: all events from Start on, in order, for this
// subscription alone, with no cursor that outlives it, no leases and no acks.
// Topic is required; zero values of the others mean the default. A tail that falls
// behind is not closed; it reads from the store and catches up.
//
// Topic may be a pattern, and Topics may name more of them. Topics that are created
// later are followed from their first event on; Start counts for the topics that
// are there.
type TailOptions struct {
	Topic  string
	Topics []string // at most MaxPatterns
	// Start is where the tail begins: after the latest event, if it is not set.
	Start Start
	// NoCreate refuses, with CodeUnknownID, a topic that does not exist, and a pattern
	// that no topic matches, as a misspelt one. A tail creates nothing in any case.
	NoCreate bool
	// Allowed, where not nil, are the topics that the tail may have of those that its patterns
	// match, also later. It is the hub's own; a client takes none.
	Allowed *TopicRules
	// Filter leaves events out; nil takes all.
	Filter *Filter
	// Conflate hands over the newest event of each topic and key
	// once in that time, and leaves out those before it, also where the hub then loses
	// the newer one in a crash or to a backup. Events without a key are of one.
	// 0: every event.
	Conflate time.Duration

	BatchSize int  // events handed over at once, at most
	Buffered  bool // the receiver queues what it takes and reports by Subscription.Sent what has left it
	Peer      Peer // who it is, for those who look
	// OnGap is called by Follow and Events once for each gap, before what is done with the
	// first event after it. Nil: the deliveries alone say it (Delivery.Gap).
	OnGap func(Gap)

	// Places say where the tail continues in topics that it had before:
	// after these offsets, one for a topic, at most MaxPlaces. Start counts for all
	// other topics. Topics that it does not have are passed over. Where the event of a
	// place is not in the log as it was (TS shows that), because the hub lost it or is
	// another one, the tail goes on with what was committed after it or has a higher
	// offset, and with the first event where TS is 0. A client has places of its own
	// and takes none.
	Places []Place
	// Known, of a tail that continues, is what its receiver was given (see Knower) when
	// it began, or went on the last time. A topic that did not exist then, and has no
	// place, begins at its first event, whatever the times of that. A topic that
	// existed, and has no place, begins at Start; where that is Latest, a second before the
	// time at which the tail first began, which the text has. In a hub that the text is not
	// of, all topics do. With AfterID and FromOffset, which are places, it has no effect. A
	// client keeps it by itself and takes none.
	Known string
	// Snapshot, of a tail with the state that continues, is what came last of
	// StatePart.Snapshot; Places then has the last event that came, also of the state. What
	// came of the state counts on, and the rest of it comes, or what follows it. Where that
	// cannot be, as after an erasure, the tail begins with another state: as of its place, or, where that
	// is not known any more, as of now. A client keeps it by itself and takes none.
	Snapshot string
}

// WithDefaults fills the member's zero values. The group's settings stay as
// they are: zero there means "whatever the group has".
func (o GroupOptions) WithDefaults() GroupOptions {
	if o.Concurrency == 0 {
		o.Concurrency = 1
	}
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

// WithDefaults fills the zero values.
func (o TailOptions) WithDefaults() TailOptions {
	if o.BatchSize == 0 {
		o.BatchSize = DefaultBatchSize
	}
	return o
}

// Validate checks names and ranges of options that have their defaults; the error
// names the option by its name on the wire.
func (o *GroupOptions) Validate() error {
	if _, err := o.Patterns(); err != nil {
		return err
	}
	if o.Group == "" {
		return Errorf(CodeBadRequest, "group is empty; events without a group are those of a live tail, which has its own call and TailOptions")
	}
	if err := ValidateGroup(o.Group); err != nil {
		return err
	}
	if err := o.Start.Validate(); err != nil {
		return err
	}
	if err := o.Filter.Validate(); err != nil {
		return err
	}
	if o.Ordering != "" && o.Ordering != OrderingNone && o.Ordering != OrderingKey {
		return Errorf(CodeBadRequest, "ordering is %s; none and key are allowed", quote(o.Ordering))
	}
	for _, n := range []struct {
		name            string
		value, min, max int64
	}{
		{"concurrency", int64(o.Concurrency), 0, maxMaxInFlight},
		{"batch_size", int64(o.BatchSize), 1, maxBatchSize},
		{"max_in_flight", int64(o.MaxInFlight), 1, maxMaxInFlight},
		{"ack_timeout_ms", o.AckTimeout.Milliseconds(), MinAckTimeout.Milliseconds(), MaxAckTimeout.Milliseconds()},
		{"max_attempts", int64(o.MaxAttempts), 0, maxMaxAttempts},
		{"backoff.min_ms", o.Backoff.Min.Milliseconds(), 0, maxBackoff.Milliseconds()},
		{"backoff.max_ms", o.Backoff.Max.Milliseconds(), 0, maxBackoff.Milliseconds()},
	} {
		if n.value < n.min || n.value > n.max {
			return Errorf(CodeBadRequest, "%s is %d; %d to %d are allowed", n.name, n.value, n.min, n.max)
		}
	}
	if o.Backoff.Max != 0 && o.Backoff.Min > o.Backoff.Max {
		return Errorf(CodeBadRequest, "backoff.min_ms %d is above backoff.max_ms %d", o.Backoff.Min.Milliseconds(), o.Backoff.Max.Milliseconds())
	}
	return nil
}

// Validate checks names and ranges of options that have their defaults; the error
// names the option by its name on the wire.
func (o *TailOptions) Validate() error {
	if _, err := o.Patterns(); err != nil {
		return err
	}
	if err := o.validateStart(); err != nil {
		return err
	}
	if err := o.Filter.Validate(); err != nil {
		return err
	}
	if o.Conflate != 0 && (o.Conflate < minConflate || o.Conflate > maxConflate) {
		return Errorf(CodeBadRequest, "conflate.every_ms is %d; %d to %d are allowed", o.Conflate.Milliseconds(), minConflate.Milliseconds(), maxConflate.Milliseconds())
	}
	if o.BatchSize < 1 || o.BatchSize > maxBatchSize {
		return Errorf(CodeBadRequest, "batch_size is %d; 1 to %d are allowed", o.BatchSize, maxBatchSize)
	}
	return o.validatePlaces()
}

// validateStart checks where the tail begins. The state is that of one topic, and each event of
// it counts.
func (o *TailOptions) validateStart() error {
	if o.Start.Kind != StartSnapshot {
		if o.Snapshot != "" {
			return Errorf(CodeBadRequest, "snapshot is given, and from is not snapshot")
		}
		return o.Start.Validate()
	}
	switch {
	case IsPattern(o.Topic):
		return Errorf(CodeBadRequest, "from is snapshot and topic %s is a pattern; the state is that of one topic", quote(o.Topic))
	case len(o.Topics) > 0:
		return Errorf(CodeBadRequest, "from is snapshot and topics has %d more; the state is that of one topic", len(o.Topics))
	case o.Conflate != 0:
		return Errorf(CodeBadRequest, "from is snapshot and conflate is set; one of both is wanted")
	case len(o.Snapshot) > MaxSnapshotBytes:
		return Errorf(CodeBadRequest, "snapshot has %d bytes; at most %d are allowed", len(o.Snapshot), MaxSnapshotBytes)
	}
	return nil
}

func (o *TailOptions) validatePlaces() error {
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

// Patterns returns Topic and Topics, compiled, each once. The error has
// CodeBadTopic, or CodeBadRequest where there are too many.
func (o *GroupOptions) Patterns() ([]Pattern, error) { return patternsOf(o.Topic, o.Topics) }

// Patterns returns Topic and Topics, compiled, each once. The error has
// CodeBadTopic, or CodeBadRequest where there are too many.
func (o *TailOptions) Patterns() ([]Pattern, error) { return patternsOf(o.Topic, o.Topics) }

func patternsOf(topic string, topics []string) ([]Pattern, error) {
	if len(topics) > MaxPatterns {
		return nil, Errorf(CodeBadRequest, "topics has %d patterns; at most %d are allowed", len(topics), MaxPatterns)
	}
	patterns := make([]Pattern, 0, 1+len(topics))
	for _, text := range append([]string{topic}, topics...) {
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
