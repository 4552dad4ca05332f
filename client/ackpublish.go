package client

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"eventhub"
	"eventhub/wire"
)

// AckAndPublish implements eventhub.Subscription.
func (s *subscription) AckAndPublish(ctx context.Context, hs []eventhub.AckPublish, done func([]eventhub.AckPublish)) {
	s.c.AckAndPublish(ctx, s.opts.Topic, s.opts.Group, hs, done)
}

// AckAndPublish implements eventhub.Subscriber. Each ack-and-publish is a frame of its own.
// Events get an id before they are sent, and receipts have it, as those of
// Enqueue; done is called as there, and ctx ends what is not answered.
//
// An ack-and-publish whose answer was lost with its connection is sent again, by its
// lease and under the same ids. Where the hub has carried out the first, or has
// given the delivery to another member meanwhile, the second is refused with
// CodeLeaseLost; which of both it was, the client can not know, and the message
// says so. The events are then published once or not at all, and who has to be
// sure makes them under ids that derive from the delivery, as [eventhub.Transform]
// does: whoever gets the delivery again, publishes the same ids.
func (c *Client) AckAndPublish(ctx context.Context, topic, group string, hs []eventhub.AckPublish, done func([]eventhub.AckPublish)) {
	for i := range hs {
		hs[i].Err = nil
	}
	c.ackAndPublish(ctx, topic, group, hs, func() { done(hs) })
}

// ackAndPublish sends those that have no Err yet.
func (c *Client) ackAndPublish(ctx context.Context, topic, group string, hs []eventhub.AckPublish, done func()) {
	e := newExchange(ackPublish)
	e.number(c, len(hs))
	for i := range hs {
		h := &hs[i]
		h.Receipts = h.Receipts[:0]
		of := topic
		if len(h.Refs) > 0 {
			of = cmp.Or(h.Refs[0].Topic, topic)
		}
		if slices.ContainsFunc(h.Refs, func(r eventhub.Ref) bool { return cmp.Or(r.Topic, topic) != of }) {
			h.Err = eventhub.Errorf(eventhub.CodeBadRequest, "the deliveries of one ack-and-publish are of one topic; of %s and others they are not", of)
		}
		if h.Err == nil {
			h.Err = e.addEvents(c, h.Events, func(dst []byte, events []eventhub.Event) ([]byte, error) {
				return wire.AppendAckPublish(dst, e.next(), of, group, h.Refs, events)
			})
		}
	}
	c.start(ctx, e, func(e *exchange) {
		at := 0
		for i := range hs {
			if hs[i].Err == nil {
				hs[i].Receipts, hs[i].Err = e.outcome(at, hs[i].Receipts)
				hs[i].Err = e.doubt(hs[i].Err)
				at++
			}
		}
	}, done)
}

// doubt adds to a refusal that an earlier try may have succeeded.
func (e *exchange) doubt(err error) error {
	code := eventhub.ErrorCode(err)
	if !e.resent || code != eventhub.CodeLeaseLost && code != eventhub.CodeUnknownID {
		return err
	}
	return eventhub.Wrap(code, err, "%s It was sent over a connection that was lost as well, and may have been carried out then.", eventhub.AsError(err).Message)
}

// Cancel takes back an event that was published with a delay, as
// admin.Scheduler says. Where the answer was lost with its connection it is
// asked again; CodeUnknownID may then mean that the first was carried out, and the
// message says so.
func (c *Client) Cancel(ctx context.Context, topic, id string) error {
	if err := eventhub.ValidateID(id); err != nil {
		return err
	}
	if err := eventhub.ValidateStoredTopic(topic); err != nil {
		return err
	}
	e := newExchange(cancel)
	defer e.recycle()
	e.number(c, 1)
	e.add(wire.AppendCancel(e.frames, e.next(), topic, id), 0)
	err := c.submit(e)
	if err == nil {
		err = c.wait(ctx, e)
	}
	if err == nil {
		err = e.doubt(e.answers[0].err)
	}
	if err != nil {
		return fmt.Errorf("client: cancel %s in %s: %w", id, topic, err)
	}
	return nil
}
