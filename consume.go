package eventhub

import (
	"context"
	"errors"
	"iter"
	"slices"
	"sync"

	"eventhub/internal/consume"
)

// Handler processes one event. A nil error acks it; any other nacks it with the
// error's text as the reason, and the event comes again after the group's
// backoff, or as [Terminal] or [RetryAfter] in the error's chain say. If the handler
// has settled the delivery itself (Delivery.Ack, Nack), what it returns has no
// effect. If ctx has ended and the error is its own, the event goes back and the
// attempt does not count. The delivery is the handler's to keep.
type Handler func(ctx context.Context, d Delivery) error

// Consume joins a group and calls h for every delivery, with up to opts.Concurrency
// calls at a time. It returns when ctx ends, with nil, or when the subscription ends
// by itself, with the reason. Either way every call of h has returned by then, its
// verdict is given, and the group has the other leases back. With AutoAck there are
// no verdicts, and what h returns has no effect.
func Consume(ctx context.Context, s Subscriber, opts GroupOptions, h Handler) error {
	return join(ctx, s, opts, func(sub Subscription) (func(Delivery), func()) {
		handle := func(d Delivery) {
			if err := h(ctx, d); !opts.AutoAck && !stopped(ctx, err) {
				settle(ctx, sub, d.Lease, err)
			}
		}
		return handle, func() {}
	})
}

// Follow opens a live tail and calls h for every event, one after the other. It
// returns when h returns an error, with that error; when ctx ends, with nil; or when
// the subscription ends by itself, with the reason. No call of h is under way by then.
func Follow(ctx context.Context, s Subscriber, opts TailOptions, h Handler) error {
	for d, err := range Events(ctx, s, opts) {
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		if err := h(ctx, d); err != nil {
			return err
		}
	}
	return nil
}

// Deliveries joins a group, for a loop over its deliveries, which the loop settles
// with their Ack and Nack:
//
//	for d, err := range eventhub.Deliveries(ctx, s, opts) {
//		if err != nil {
//			return err // why there are no more
//		}
//		…
//		d.Ack(ctx)
//	}
//
// The loop ends after a last pair with an error, which says why: that of the
// subscription, the cause of ctx where that has ended, or the refusal to join. When it
// ends, and also when the loop is left before, the group has all leases back, with
// their attempts: those of deliveries that the loop did not get to, and those that it
// did not settle. opts.Concurrency has no meaning here. The deliveries are the loop's to
// keep. Each loop is a membership of its own.
func Deliveries(ctx context.Context, s Subscriber, opts GroupOptions) iter.Seq2[Delivery, error] {
	made := func() *consumer {
		return newConsumer(opts.WithDefaults().MaxInFlight, opts.Topic, opts.Group, opts.OnGap)
	}
	return each(ctx, made, func(r Receiver) (Subscription, error) { return s.Subscribe(ctx, opts, r) })
}

// Events opens a live tail, for a loop over its events. It ends as that of
// [Deliveries] does; there is nothing to settle.
func Events(ctx context.Context, s Subscriber, opts TailOptions) iter.Seq2[Delivery, error] {
	made := func() *consumer { return newConsumer(opts.WithDefaults().BatchSize, opts.Topic, "", opts.OnGap) }
	return each(ctx, made, func(r Receiver) (Subscription, error) { return s.Tail(ctx, opts, r) })
}

// each is a loop over what one subscription delivers.
func each(ctx context.Context, made func() *consumer, subscribe func(Receiver) (Subscription, error)) iter.Seq2[Delivery, error] {
	return func(yield func(Delivery, error) bool) {
		if err := deliverTo(ctx, made(), subscribe, yield); err != nil {
			yield(Delivery{}, err)
		}
	}
}

// deliverTo returns why there are no more deliveries; nil where yield wants none.
func deliverTo(ctx context.Context, c *consumer, subscribe func(Receiver) (Subscription, error), yield func(Delivery, error) bool) error {
	sub, err := subscribe(c)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { c.End(context.Cause(ctx)) })()
	// Leaving must not fail because ctx has ended, and is all there is to do about a
	// panic of the loop. Where it fails, the subscription is over anyway.
	defer func() {
		c.End(nil)
		_ = sub.Unsubscribe(context.WithoutCancel(ctx))
	}()
	for {
		d, ok := c.take(sub)
		if !ok {
			return c.Cause()
		}
		if !yield(d, nil) {
			return nil
		}
	}
}

// join is one membership, from joining to leaving. begin, called once the
// group is joined, gives what is done with each delivery, and what there is to do
// when no delivery is being handled any more and before the group is left.
func join(ctx context.Context, s Subscriber, opts GroupOptions, begin func(Subscription) (handle func(Delivery), finish func())) error {
	opts = opts.WithDefaults()
	c := newConsumer(opts.MaxInFlight, opts.Topic, opts.Group, opts.OnGap)
	sub, err := s.Subscribe(ctx, opts, c)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	stop := context.AfterFunc(ctx, func() { c.End(nil) })
	defer stop()
	handle, finish := begin(sub)
	var workers sync.WaitGroup
	for range opts.Concurrency {
		workers.Go(func() { c.work(sub, handle) })
	}
	workers.Wait()
	finish()
	// Verdicts and leaving must not fail because ctx has ended: that is why we
	// are here.
	if err := sub.Unsubscribe(context.WithoutCancel(ctx)); err != nil && c.Cause() == nil {
		return err
	}
	return c.Cause()
}

// stopped reports whether a handler has failed because ctx has ended. There is no
// verdict then: the group gets the delivery back with the membership, and the attempt
// does not count.
func stopped(ctx context.Context, err error) bool {
	return ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx)))
}

// settle acks a delivery, or nacks it with the reason.
func settle(ctx context.Context, sub Subscription, lease Lease, reason error) {
	verdict := Settlement{}
	if reason != nil {
		verdict = NackOf(reason)
	}
	verdict.Refs = []Ref{{Lease: lease}}
	// An error means that the subscription is ending: Ended says so, and the event
	// comes again.
	_, _ = sub.Settle(context.WithoutCancel(ctx), verdict)
}

// consumer is the Receiver of Consume: what it takes waits in a queue for the workers.
type consumer struct {
	*consume.Queue[Delivery]
	topic, group string // of the options
	gaps         gaps
}

func newConsumer(limit int, topic, group string, onGap func(Gap)) *consumer {
	c := &consumer{Queue: consume.NewQueue[Delivery](limit), topic: topic, group: group}
	c.gaps.on = onGap
	return c
}

func (c *consumer) Deliver(batch []Delivery) int {
	for i := range batch {
		if batch[i].Sought {
			c.removeVoid(batch[i].Topic, batch[i].Lease.Runtime)
		}
	}
	return c.Put(batch, c.keep)
}

// keep is called for each delivery that is taken.
func (c *consumer) keep(d Delivery) Delivery {
	d.Record = slices.Clone(d.Record)
	c.gaps.join(&d)
	return d
}

// Gap implements Gapped.
func (c *consumer) Gap(g Gap) { c.gaps.wait(g) }

// removeVoid removes what came before the group was moved in the topic: its leases are void,
// and what is to be handled comes again. A seek gives the group another runtime.
func (c *consumer) removeVoid(topic string, runtime uint64) {
	c.Remove(func(d Delivery) bool { return d.Topic == topic && d.Lease.Runtime != runtime })
}

// Forget implements Forgetter.
func (c *consumer) Forget() { c.Clear() }

// Ended implements Receiver.
func (c *consumer) Ended(err error) {
	if e, ok := err.(*Error); ok { // a remote hub's is wrapped, and says it
		err = Ending(e, c.topic, c.group)
	}
	c.End(err)
}

// take waits for a delivery; there is none when the subscription has ended.
func (c *consumer) take(sub Subscription) (d Delivery, ok bool) {
	d, ok = c.Next(sub.Ready)
	d.Bind(sub)
	c.gaps.tell(d.Gap)
	return d, ok
}

func (c *consumer) work(sub Subscription, handle func(Delivery)) {
	for d, ok := c.take(sub); ok; d, ok = c.take(sub) {
		handle(d)
	}
}

func cut(s string, most int) string { return s[:min(len(s), most)] }
