package client

import (
	"context"
	"iter"
	"sync"

	"eventhub"
)

// Consume is eventhub.Consume over a connection that may be slow or get lost:
// it joins the group and calls h for every delivery, with up to opts.Concurrency
// calls at a time, until ctx ends (nil), the client ends (ErrClosed), or the hub
// refuses to take the member back. Besides:
//
//   - Leases of deliveries that wait or are being handled are extended at half
//     their length, up to the hour that a hub allows. So opts.AckTimeout is how
//     soon others get the events of a process that died, not how long h may take.
//   - Verdicts are sent and not waited for. One that is lost with its connection
//     means one more delivery.
//   - Deliveries that came over a connection that was lost meanwhile are not
//     begun: they come again. What is being handled then goes on. If it comes
//     again before h returns, because of a lost connection or because a stalled
//     one let the lease run out, it is not handled twice: the verdict is that of
//     the new delivery, whose lease is extended meanwhile.
//
// With AutoAck there are no leases and no verdicts: an error of h is logged, and
// that is all.
func (c *Client) Consume(ctx context.Context, opts eventhub.GroupOptions, h eventhub.Handler) error {
	if opts.AutoAck {
		return eventhub.Consume(ctx, c, opts, c.logging(opts, h))
	}
	return c.keep(opts, func(s eventhub.Subscriber, k *keeper) error {
		return eventhub.Consume(ctx, s, k.opts, func(ctx context.Context, d eventhub.Delivery) error {
			if !k.begin(&d) {
				return nil // and no verdict either: Settle finds nothing begun
			}
			return h(ctx, d)
		})
	})
}

// Transform is eventhub.Transform over a connection that may be slow or get lost,
// as [Client.Consume] is eventhub.Consume: leases are extended while t runs and
// while the results are on their way, and deliveries of a lost connection are not
// begun, nor is what t still works on when it comes again. Steps under way when a connection is lost are taken on the next, see
// [Client.AckAndPublish]; where their outcome stays open the delivery comes again, and
// its results have the same ids. That another member has an event by now is
// logged.
func (c *Client) Transform(ctx context.Context, opts eventhub.GroupOptions, t eventhub.Transformer) error {
	return c.keep(opts, func(s eventhub.Subscriber, k *keeper) error {
		return eventhub.Transform(ctx, s, k.opts, func(ctx context.Context, d eventhub.Delivery) ([]eventhub.Event, error) {
			if !k.begin(&d) {
				return nil, nil // as in Consume
			}
			return t(ctx, d)
		})
	})
}

// Follow is eventhub.Follow: it calls h for every event of a live tail, one after
// the other, until h returns an error, which Follow returns. See [Client.Tail] for
// how a tail continues after a lost connection.
func (c *Client) Follow(ctx context.Context, opts eventhub.TailOptions, h eventhub.Handler) error {
	return eventhub.Follow(ctx, c, opts, h)
}

// Events is eventhub.Events: a loop over a live tail. See [Client.Tail] for how that
// continues after a lost connection.
func (c *Client) Events(ctx context.Context, opts eventhub.TailOptions) iter.Seq2[eventhub.Delivery, error] {
	return eventhub.Events(ctx, c, opts)
}

// Deliveries is eventhub.Deliveries over a connection that may be slow or get lost,
// as [Client.Consume] is eventhub.Consume: leases are extended until the loop settles
// the delivery or ends, verdicts are sent and not waited for, and deliveries of a lost
// connection that the loop has not come to are left out, because they come again.
func (c *Client) Deliveries(ctx context.Context, opts eventhub.GroupOptions) iter.Seq2[eventhub.Delivery, error] {
	if opts.AutoAck {
		return eventhub.Deliveries(ctx, c, opts)
	}
	return func(yield func(eventhub.Delivery, error) bool) {
		_ = c.keep(opts, func(s eventhub.Subscriber, k *keeper) error { // the loop yields the error
			for d, err := range eventhub.Deliveries(ctx, s, k.opts) {
				if err == nil && !k.begin(&d) {
					continue // as in Consume
				}
				if !yield(d, err) {
					break
				}
			}
			return nil
		})
	}
}

// keep runs a consumer whose leases are extended.
func (c *Client) keep(opts eventhub.GroupOptions, run func(eventhub.Subscriber, *keeper) error) error {
	k := &keeper{c: c, opts: opts.WithDefaults(), held: make(map[spot]hold)}
	over := make(chan struct{})
	var extending sync.WaitGroup
	extending.Go(func() { k.extend(over) })
	defer extending.Wait()
	defer close(over)
	return run(joiner{k}, k)
}

// logging is h for deliveries whose verdict nobody asks for.
func (c *Client) logging(opts eventhub.GroupOptions, h eventhub.Handler) eventhub.Handler {
	return func(ctx context.Context, d eventhub.Delivery) error {
		if err := h(ctx, d); err != nil {
			c.cfg.logger.Warn("a handler failed; the event does not come again",
				"subscription", subKey{opts.Topic, opts.Group}, "offset", d.Offset, "id", d.ID(), "error", err)
		}
		return nil
	}
}

// ConsumeJSON is Consume for payloads of one type. A payload that is no T
// becomes a dead letter at once: another attempt would not read it either.
func ConsumeJSON[T any](ctx context.Context, c *Client, opts eventhub.GroupOptions, h func(ctx context.Context, v T, d eventhub.Delivery) error) error {
	return c.Consume(ctx, opts, decoding(h))
}

// FollowJSON is Follow for payloads of one type. A payload that is no T ends it, as an
// error of h does. What has no event (Delivery.State) comes with the zero T.
func FollowJSON[T any](ctx context.Context, c *Client, opts eventhub.TailOptions, h func(ctx context.Context, v T, d eventhub.Delivery) error) error {
	return c.Follow(ctx, opts, decoding(h))
}

func decoding[T any](h func(ctx context.Context, v T, d eventhub.Delivery) error) eventhub.Handler {
	return func(ctx context.Context, d eventhub.Delivery) error {
		var v T
		if d.State.IsMark() {
			return h(ctx, v, d)
		}
		if err := d.Decode(&v); err != nil {
			return eventhub.Terminal(err)
		}
		return h(ctx, v, d)
	}
}

// joiner is the Subscriber that eventhub.Consume sees.
type joiner struct{ *keeper }

func (j joiner) Subscribe(ctx context.Context, opts eventhub.GroupOptions, r eventhub.Receiver) (eventhub.Subscription, error) {
	j.Receiver = r
	sub, err := j.c.Subscribe(ctx, opts, j.keeper)
	if err != nil {
		return nil, err
	}
	return kept{sub, j.keeper}, nil
}

func (j joiner) Tail(ctx context.Context, opts eventhub.TailOptions, r eventhub.Receiver) (eventhub.Subscription, error) {
	return j.c.Tail(ctx, opts, r)
}

func (j joiner) Settle(ctx context.Context, topic, group string, s eventhub.Settlement) ([]eventhub.Outcome, error) {
	return j.c.Settle(ctx, topic, group, s)
}

func (j joiner) AckAndPublish(ctx context.Context, topic, group string, hs []eventhub.AckPublish, done func([]eventhub.AckPublish)) {
	j.c.AckAndPublish(ctx, topic, group, hs, done)
}

// kept is the Subscription of Consume.
type kept struct {
	eventhub.Subscription
	k *keeper
}

// Settle sends the verdict if its delivery is still ours.
func (s kept) Settle(_ context.Context, v eventhub.Settlement) ([]eventhub.Outcome, error) {
	if err := v.Validate(); err != nil {
		return nil, err
	}
	outcomes := make([]eventhub.Outcome, len(v.Refs))
	for i, ref := range v.Refs {
		var held bool
		if v.Verdict == eventhub.Extend {
			ref.Lease, held = s.k.prolong(ref.Lease, v.By)
		} else {
			ref.Lease, held = s.k.release(ref.Lease)
		}
		if !held {
			outcomes[i] = eventhub.Stale
			continue
		}
		if v.Verdict == eventhub.Ack {
			s.k.c.ack(s.k, ref)
			continue
		}
		one := v
		one.Refs = []eventhub.Ref{ref}
		s.k.c.post(s.k.opts.Topic, s.k.opts.Group, &one)
	}
	return outcomes, nil
}

// AckAndPublish takes the steps whose deliveries are still ours. They stay so until the
// outcome is known, and after it where there is a verdict to follow.
func (s kept) AckAndPublish(ctx context.Context, hs []eventhub.AckPublish, done func([]eventhub.AckPublish)) {
	k := s.k
	for i := range hs {
		hs[i].Err = nil
		for j, ref := range hs[i].Refs {
			var held bool
			if hs[i].Refs[j].Lease, held = k.ackAndPublish(ref.Lease); !held {
				hs[i].Err = eventhub.Errorf(eventhub.CodeLeaseLost, "lease %s came over a connection that was lost", ref.Lease)
			}
		}
	}
	k.c.ackAndPublish(ctx, k.opts.Topic, k.opts.Group, hs, func() {
		for i := range hs {
			k.ackPublished(&hs[i])
		}
		done(hs)
	})
}

// ackPublished lets go of the leases that are at their end.
func (k *keeper) ackPublished(h *eventhub.AckPublish) {
	if h.Err != nil && eventhub.ErrorCode(h.Err) != eventhub.CodeLeaseLost {
		return
	}
	for _, ref := range h.Refs {
		k.release(ref.Lease)
		if h.Err != nil {
			k.c.cfg.logger.Info("the results of an event were not published here", "subscription", subKey{k.opts.Topic, k.opts.Group},
				"offset", ref.Lease.Offset, "error", h.Err)
		}
	}
}
