package guard

import (
	"context"

	"eventhub"
	"eventhub/auth/policy"
)

// Within returns what For has returned, with another publisher between the rights and the
// engine: it has what is allowed, and no more. It is for what For returns, before anybody uses
// that.
func Within(e Engine, between func(eventhub.Publisher) eventhub.Publisher) Engine {
	if g, ok := e.(*guard); ok {
		g.publisher = between(g.engine)
		return g
	}
	return within{e, between(e)}
}

// within is the engine for full rights.
type within struct {
	Engine
	publisher eventhub.Publisher
}

// Publish implements eventhub.Publisher.
func (w within) Publish(ctx context.Context, events ...eventhub.Event) ([]eventhub.Receipt, error) {
	return w.publisher.Publish(ctx, events...)
}

// Enqueue implements eventhub.Publisher.
func (w within) Enqueue(ctx context.Context, pubs []eventhub.Publication, done func([]eventhub.Publication)) {
	w.publisher.Enqueue(ctx, pubs, done)
}

// publishes refuses events to topics on which an action is not allowed, all of them for one. A
// condition asks what the topic has, so it needs the right to read it, too.
func (g *guard) publishes(a policy.Action, events []eventhub.Event) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range events {
		e := &events[i]
		if err := g.mayLocked(a, e.Topic, ""); err != nil {
			return eventhub.AtIndex(g.refuse(err, a, e.Topic, ""), "", i)
		}
		if e.Expect.IsZero() {
			continue
		}
		if err := g.mayLocked(policy.Read, e.Topic, ""); err != nil {
			return eventhub.AtIndex(g.refuse(err, policy.Read, e.Topic, ""), "", i)
		}
	}
	return nil
}

// Publish implements eventhub.Publisher.
func (g *guard) Publish(ctx context.Context, events ...eventhub.Event) ([]eventhub.Receipt, error) {
	if err := g.publishes(policy.Publish, events); err != nil {
		return nil, err
	}
	return g.publisher.Publish(ctx, events...)
}

// Enqueue implements eventhub.Publisher. Whoever may publish may wait for groups to ack: it
// learns of them only how far they are with its own events.
func (g *guard) Enqueue(ctx context.Context, pubs []eventhub.Publication, done func([]eventhub.Publication)) {
	HandOver(pubs,
		func(p *eventhub.Publication) error { return p.Refuse(g.publishes(policy.Publish, p.Events)) },
		func(p *eventhub.Publication, err error) { p.Err = err },
		func(rest []eventhub.Publication, done func([]eventhub.Publication)) {
			g.publisher.Enqueue(ctx, rest, done)
		},
		done)
}

// OpenProducer implements eventhub.Producers. Clients ask for a producer before they know what they
// may publish, so to have none is no refusal.
func (g *guard) OpenProducer(ctx context.Context, o eventhub.ProducerOptions) (*eventhub.Producer, error) {
	if !g.policy.Somewhere(policy.Publish) {
		return nil, nil
	}
	return g.engine.OpenProducer(ctx, o)
}

// Recall implements eventhub.Recaller.
func (g *guard) Recall(ctx context.Context, topic, id string) (eventhub.Record, error) {
	if err := g.check(policy.Publish, topic, ""); err != nil {
		return nil, err
	}
	return g.engine.Recall(ctx, topic, id)
}

// LeaveProducer implements eventhub.Producers.
func (g *guard) LeaveProducer(p *eventhub.Producer) { g.engine.LeaveProducer(p) }

// Import implements admin.Importer.
func (g *guard) Import(ctx context.Context, events ...eventhub.Event) ([]eventhub.Receipt, error) {
	if err := g.publishes(policy.Admin, events); err != nil {
		return nil, err
	}
	return g.engine.Import(ctx, events...)
}
