package eventhub

import (
	"context"
	"errors"
	"strings"
	"time"
)

// Terminal makes of err one that gives up: a handler of Consume, ConsumeJSON or
// Transform that returns it, or a Nack with it, puts the event into the dead
// letters at once, whatever the attempt. The text is err's, which errors.Is and
// errors.As find, also where the result is wrapped again (%w). Terminal(nil) is
// nil, so that `return eventhub.Terminal(work())` acks what has succeeded.
func Terminal(err error) error {
	if err == nil {
		return nil
	}
	return &verdictError{error: err, terminal: true}
}

// RetryAfter makes of err one that says when the event should come again, in
// place of the group's backoff: after the delay d, rounded up to a millisecond,
// from 1 ms to 24 h; what is longer counts as 24 h, and 0 or less as the backoff.
// The attempt counts, and after the last one the event is a dead letter. The rest
// is as with [Terminal]; RetryAfter(d, nil) is nil. Of both in one chain the
// outer one counts.
func RetryAfter(d time.Duration, err error) error {
	if err == nil {
		return nil
	}
	return &verdictError{error: err, delay: d}
}

// verdictError is an error of a handler that says more than that it failed.
type verdictError struct {
	error
	delay    time.Duration
	terminal bool
}

func (e *verdictError) Unwrap() error { return e.error }

// NackOf returns the verdict on a delivery that failed with err: its reason is
// err's text, cut to 1 KiB, and [Terminal] and [RetryAfter] in its chain count. A
// nil err gives no reason. Refs are for the caller to fill in.
func NackOf(err error) Settlement {
	s := Settlement{Verdict: Nack}
	if err == nil {
		return s
	}
	s.Reason = strings.ToValidUTF8(cut(err.Error(), maxReasonBytes), "")
	var v *verdictError
	if errors.As(err, &v) {
		s.Terminal = v.terminal
		s.Delay = (min(max(v.delay, 0), maxBackoff) + time.Millisecond - 1).Truncate(time.Millisecond)
	}
	return s
}

// Settler takes verdicts on deliveries; every Subscription is one.
type Settler interface {
	Settle(ctx context.Context, s Settlement) ([]Outcome, error)
}

// Bind makes s the one that Ack, Nack and Extend of the delivery go to. A
// Subscriber calls it before it hands the delivery over.
func (d *Delivery) Bind(s Settler) { d.settler = s }

// Ack says that the event is done. The lease decides, not the place: it may be
// called outside the handler, and from any goroutine, as long as the subscription
// lasts. CodeLeaseLost: the delivery was settled before, its lease ran out, or
// the group was moved; the verdict has no effect then. CodeBadRequest: the
// delivery has nothing to ack, because it is of a live tail or of a subscription
// with AutoAck.
//
// In process the verdict counts when Ack returns. Within Consume, Transform and
// Deliveries of a client it is sent and not waited for, as that of a handler is; if
// it is lost with its connection, the event comes again.
func (d *Delivery) Ack(ctx context.Context) error {
	return d.settle(ctx, Settlement{Verdict: Ack})
}

// Nack says that the event is not done, with the text of reason, which may be nil;
// it comes again after the group's backoff, or as [Terminal] or [RetryAfter] in
// reason say. The errors are those of Ack.
func (d *Delivery) Nack(ctx context.Context, reason error) error {
	return d.settle(ctx, NackOf(reason))
}

// Extend moves the end of the lease to by from now, from 1 s to 1 h; 0 means the
// subscription's AckTimeout. The errors are those of Ack. Consume, Transform and
// Deliveries of a client extend leases by themselves.
func (d *Delivery) Extend(ctx context.Context, by time.Duration) error {
	if by == 0 {
		by = d.AckTimeout
	}
	return d.settle(ctx, Settlement{Verdict: Extend, By: by})
}

func (d *Delivery) settle(ctx context.Context, s Settlement) error {
	switch {
	case d.Lease.IsZero():
		return Errorf(CodeBadRequest, "the delivery of offset %d of topic %s has nothing to ack: it is of a live tail, or of a subscription with AutoAck", d.Offset, quote(d.Topic))
	case d.settler == nil:
		return Errorf(CodeBadRequest, "the delivery of offset %d of topic %s did not come from a subscription: settle it by its lease", d.Offset, quote(d.Topic))
	}
	s.Refs = []Ref{{Lease: d.Lease}}
	outcomes, err := d.settler.Settle(ctx, s)
	if err != nil {
		return err
	}
	if len(outcomes) != 1 || outcomes[0] != Applied {
		return Errorf(CodeLeaseLost, "the delivery of offset %d of topic %s is not ours any more: it was settled, its lease ran out, or the group was moved", d.Offset, quote(d.Topic))
	}
	return nil
}
