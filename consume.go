package eventhub

import (
	"context"
	"slices"
	"sync"
)

// Handler processes one event. A nil error acks it; any other nacks it with the
// error's text as the reason, and the event comes again after the group's
// backoff, or as [Terminal] or [RetryAfter] in the error's chain say. If the handler
// has settled the delivery itself (Delivery.Ack, Nack), what it returns has no
// effect. The delivery is the handler's to keep.
type Handler func(ctx context.Context, d Delivery) error

// Consume joins a group and calls h for every delivery, with up to concurrency
// calls at a time (at least 1, which also keeps the order of deliveries). It
// returns when ctx ends, with nil, or when the subscription ends by itself, with
// the reason. Either way every call of h has returned by then, its verdict is
// given, and the group has the other leases back. With AutoAck and for a live tail
// there are no verdicts, and what h returns has no effect.
func Consume(ctx context.Context, s Subscriber, opts SubscribeOptions, concurrency int, h Handler) error {
	auto := opts.AutoAck || opts.Group == ""
	return consume(ctx, s, opts, concurrency, func(sub Subscription) (func(Delivery), func()) {
		handle := func(d Delivery) {
			if err := h(ctx, d); !auto {
				settle(ctx, sub, d.Lease, err)
			}
		}
		return handle, func() {}
	})
}

// consume is one membership, from joining to leaving. begin, called once the
// group is joined, gives what is done with each delivery, and what there is to do
// when no delivery is being handled any more and before the group is left.
func consume(ctx context.Context, s Subscriber, opts SubscribeOptions, concurrency int,
	begin func(Subscription) (handle func(Delivery), finish func())) error {
	c := &consumer{limit: opts.WithDefaults().MaxInFlight}
	c.changed.L = &c.mu
	sub, err := s.Subscribe(ctx, opts, c)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { c.end(nil) })
	defer stop()
	handle, finish := begin(sub)
	var workers sync.WaitGroup
	for range max(concurrency, 1) {
		workers.Go(func() { c.work(sub, handle) })
	}
	workers.Wait()
	finish()
	// Verdicts and leaving must not fail because ctx has ended: that is why we
	// are here.
	if err := sub.Unsubscribe(context.WithoutCancel(ctx)); err != nil && c.cause == nil {
		return err
	}
	return c.cause
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

// consumer is the Receiver of Consume: a queue between the subscription, which
// must not be kept waiting, and the workers. It is bounded by limit, and not by
// the leases alone: with AutoAck there are none.
type consumer struct {
	limit int

	mu      sync.Mutex
	changed sync.Cond
	queue   []Delivery
	refused bool // took less than it was given, and has to ask for more
	ended   bool
	cause   error // why, if not because the context ended
}

func (c *consumer) Deliver(batch []Delivery) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return 0
	}
	if room := c.limit - len(c.queue); len(batch) > room {
		batch, c.refused = batch[:max(room, 0)], true
	}
	for _, d := range batch {
		d.Record = slices.Clone(d.Record)
		c.queue = append(c.queue, d)
	}
	c.changed.Broadcast()
	return len(batch)
}

// Forget implements Forgetter. What was refused is void as well, so there is
// nothing to ask for.
func (c *consumer) Forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue, c.refused = nil, false
}

func (c *consumer) Ended(err error) { c.end(err) }

func (c *consumer) end(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	c.ended, c.cause = true, cause
	c.queue = nil // not begun: the group gets the leases back
	c.changed.Broadcast()
}

// next waits for a delivery. more says that there is room again and that the
// subscription has to be told.
func (c *consumer) next() (d Delivery, more, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.queue) == 0 && !c.ended {
		c.changed.Wait()
	}
	if c.ended {
		return Delivery{}, false, false
	}
	d = c.queue[0]
	c.queue[0] = Delivery{}
	c.queue = c.queue[1:]
	if more = c.refused && len(c.queue) <= c.limit/2; more {
		c.refused = false
	}
	return d, more, true
}

func (c *consumer) work(sub Subscription, handle func(Delivery)) {
	for {
		d, more, ok := c.next()
		if !ok {
			return
		}
		if more {
			sub.Ready()
		}
		d.Bind(sub)
		handle(d)
	}
}

func cut(s string, most int) string { return s[:min(len(s), most)] }
