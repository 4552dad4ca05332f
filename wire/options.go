package wire

import (
	"time"

	"eventhub"
)

// SubscribeOptions are what a SUBSCRIBE asks for: membership in a group or, without
// a Group, a live tail. Programs have a type for each; here they are one, because
// the frame is.
type SubscribeOptions struct {
	eventhub.GroupOptions

	// Of a tail: see eventhub.TailOptions.
	Conflate time.Duration
	Places   []eventhub.Place
	Known    string
	Snapshot string
}

// OfTail returns the options of a SUBSCRIBE for a live tail.
func OfTail(t eventhub.TailOptions) SubscribeOptions {
	return SubscribeOptions{
		GroupOptions: eventhub.GroupOptions{
			Topic: t.Topic, Topics: t.Topics, Start: t.Start, Filter: t.Filter,
			BatchSize: t.BatchSize, Buffered: t.Buffered, Peer: t.Peer, AutoAck: true, NoCreate: t.NoCreate,
		},
		Conflate: t.Conflate, Places: t.Places, Known: t.Known, Snapshot: t.Snapshot,
	}
}

// IsTail reports whether a live tail is asked for.
func (o *SubscribeOptions) IsTail() bool { return o.Group == "" }

// Tail returns the options of the live tail that is asked for.
func (o *SubscribeOptions) Tail() eventhub.TailOptions {
	return eventhub.TailOptions{
		Topic: o.Topic, Topics: o.Topics, Start: o.Start, Filter: o.Filter,
		BatchSize: o.BatchSize, Buffered: o.Buffered, Peer: o.Peer, NoCreate: o.NoCreate,
		Conflate: o.Conflate, Places: o.Places, Known: o.Known, Snapshot: o.Snapshot,
	}
}

// WithDefaults fills the member's zero values, as those of a group and of a tail.
func (o SubscribeOptions) WithDefaults() SubscribeOptions {
	o.GroupOptions = o.GroupOptions.WithDefaults()
	return o
}

// Validate checks names and ranges of options that have their defaults; the error
// names the option by its name on the wire.
func (o *SubscribeOptions) Validate() error {
	member := o.GroupOptions
	if o.IsTail() {
		member.Group, member.Start = "tail", eventhub.Start{} // numbers that a tail has no use for must be in range too
	}
	if err := member.Validate(); err != nil {
		return err
	}
	if o.IsTail() {
		return o.validateTail()
	}
	switch {
	case o.Conflate != 0:
		return eventhub.Errorf(eventhub.CodeBadRequest, "conflate is set; a group gets every event")
	case len(o.Places) > 0:
		return eventhub.Errorf(eventhub.CodeBadRequest, "places are given; a group knows its own")
	case o.Known != "":
		return eventhub.Errorf(eventhub.CodeBadRequest, "known is given; a group knows its topics")
	case o.Snapshot != "":
		return eventhub.Errorf(eventhub.CodeBadRequest, "snapshot is given; a group has no state")
	}
	return nil
}

// validateTail checks that a tail asks for nothing that only groups have.
func (o *SubscribeOptions) validateTail() error {
	switch {
	case o.Ordering != "" && o.Ordering != eventhub.OrderingNone:
		return eventhub.Errorf(eventhub.CodeBadRequest, "ordering is %q; a subscription without group has none", o.Ordering)
	case o.MaxAttempts != 0:
		return eventhub.Errorf(eventhub.CodeBadRequest, "max_attempts is %d; a subscription without group has one attempt", o.MaxAttempts)
	case o.Backoff != eventhub.Backoff{}:
		return eventhub.Errorf(eventhub.CodeBadRequest, "backoff is set; a subscription without group has one attempt")
	}
	t := o.Tail()
	return t.Validate()
}
