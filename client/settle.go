package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	gws "github.com/gobwas/ws"

	"eventhub"
	"eventhub/wire"
)

// Settle implements eventhub.Subscription.
func (s *subscription) Settle(ctx context.Context, v eventhub.Settlement) ([]eventhub.Outcome, error) {
	return s.c.Settle(ctx, s.opts.Topic, s.opts.Group, v)
}

// Settle implements eventhub.Subscriber. Refs without a lease mean deliveries of
// the present connection. An error may leave a part of the refs settled; with
// CodeTooLarge, where a name is longer than any frame, none is.
func (c *Client) Settle(ctx context.Context, topic, group string, v eventhub.Settlement) ([]eventhub.Outcome, error) {
	if err := v.Validate(); err != nil {
		return nil, err
	}
	if len(v.Refs) == 0 {
		return nil, nil
	}
	e := newExchange(settle)
	defer e.recycle()
	err := e.addSettlement(c, topic, group, &v)
	if err == nil {
		err = c.submit(e)
	}
	if err == nil {
		err = c.wait(ctx, e)
	}
	for i := 0; err == nil && i < len(e.answers); i++ {
		err = e.settled(i, v.Verdict)
	}
	if err != nil {
		return nil, fmt.Errorf("client: settle in %.300s: %w", subKey{topic, group}, err)
	}
	return slices.Clone(e.outcomes), nil
}

// addSettlement appends as few frames as there can be. A lease that nobody holds
// is an ERR to an extension, which does not say which of many it is: those go
// alone. A frame above the hub's limit is refused.
func (e *exchange) addSettlement(c *Client, topic, group string, v *eventhub.Settlement) error {
	most := wire.MaxRefs
	if v.Verdict == eventhub.Extend {
		most = 1
	}
	n := 0
	for range byTopic(topic, v.Refs, most) {
		n++
	}
	e.number(c, n)
	for topic, refs := range byTopic(topic, v.Refs, most) {
		frames := wire.AppendSettles(e.frames, e.next(), topic, group, v, refs)
		if err := c.fits(len(frames)-len(e.frames), len(refs), "deliveries"); err != nil {
			return err
		}
		e.add(frames, len(refs))
	}
	e.outcomes = slices.Grow(e.outcomes, len(v.Refs))[:len(v.Refs)]
	clear(e.outcomes)
	return nil
}

// fits refuses a frame above the hub's limit: it would cost the connection, and the
// next one too.
func (c *Client) fits(size, n int, things string) error {
	if limit := c.limit.Load(); limit > 0 && int64(size) > limit {
		return eventhub.Errorf(eventhub.CodeTooLarge, "the frame of %d %s has %d bytes; the hub takes %d", n, things, size, limit)
	}
	return nil
}

// byTopic cuts refs into those of one frame each: at most most, of one topic. That is
// the events' own where refs have it, and topic where not.
func byTopic(topic string, refs []eventhub.Ref, most int) iter.Seq2[string, []eventhub.Ref] {
	return func(yield func(string, []eventhub.Ref) bool) {
		for len(refs) > 0 {
			n := 1
			for n < min(len(refs), most) && refs[n].Topic == refs[0].Topic {
				n++
			}
			if !yield(cmp.Or(refs[0].Topic, topic), refs[:n]) {
				return
			}
			refs = refs[n:]
		}
	}
}

// settled is the error of one frame, except where that is an outcome.
func (e *exchange) settled(i int, verdict eventhub.Verdict) error {
	err := e.answers[i].err
	var refused *eventhub.Error
	if verdict == eventhub.Extend && errors.As(err, &refused) && refused.Code == eventhub.CodeUnknownID {
		e.outcomes[i] = eventhub.Unknown
		return nil
	}
	return err
}

// post sends a verdict that nobody waits for; without a connection it is lost.
func (c *Client) post(topic, group string, v *eventhub.Settlement) {
	var space [256]byte
	for topic, refs := range byTopic(topic, v.Refs, wire.MaxRefs) {
		frame := wire.AppendSettles(space[:0], 0, topic, group, v, refs)
		c.mu.Lock()
		if c.conn != nil {
			c.conn.append(gws.OpText, frame)
		}
		c.mu.Unlock()
	}
}

// ack is post of an ack of a delivery that k holds. Acks gather until the writer
// takes them, in one frame a subscription.
func (c *Client) ack(k *keeper, ref eventhub.Ref) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.conn
	if n == nil {
		return
	}
	if len(k.acks) == 0 {
		n.acking = append(n.acking, k)
		n.wake.Signal()
	}
	k.acks = append(k.acks, ref)
}

// appendAcks queues what gathered. Client.mu is held.
func (n *conn) appendAcks() {
	for _, k := range n.acking {
		for refs := range slices.Chunk(k.acks, wire.MaxRefs) {
			n.scratch = wire.AppendSettles(n.scratch[:0], 0, k.opts.Topic, k.opts.Group, &eventhub.Settlement{}, refs)
			n.append(gws.OpText, n.scratch)
		}
	}
	n.forgetAcks()
}

// forgetAcks empties what gathered. Client.mu is held.
func (n *conn) forgetAcks() {
	for i, k := range n.acking {
		k.acks = k.acks[:0]
		n.acking[i] = nil
	}
	n.acking = n.acking[:0]
}
