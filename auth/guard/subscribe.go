package guard

import (
	"context"
	"time"

	"eventhub"
	"eventhub/auth/policy"
)

// joins returns which of the topics that are asked for a group may have, or, where its name
// is empty, a live tail: an error where it is none of them, or one that is named is not among
// them.
func (g *guard) joins(patterns []eventhub.Pattern, group string) (*eventhub.TopicRules, error) {
	for _, p := range patterns {
		if err := g.some(policy.Subscribe, p.String(), group); err != nil {
			return nil, err
		}
	}
	return g.policy.Topics(policy.Subscribe, patterns, group), nil
}

// showsGroup reports whether an error may name a group: one that is shown in lists, or that may
// be subscribed to.
func (g *guard) showsGroup(topic, group string) bool {
	return g.shows(topic) || g.may(policy.Subscribe, topic, group) == nil
}

// Subscribe implements eventhub.Subscriber.
func (g *guard) Subscribe(ctx context.Context, opts eventhub.GroupOptions, r eventhub.Receiver) (eventhub.Subscription, error) {
	patterns, err := opts.Patterns()
	if err != nil {
		return nil, err
	}
	if opts.Allowed, err = g.joins(patterns, opts.Group); err != nil {
		return nil, err
	}
	opts.Shows = g.showsGroup
	sub, err := g.engine.Subscribe(ctx, opts, r)
	if err != nil {
		return nil, err
	}
	return &subscription{Subscription: sub, guard: g, allowed: opts.Allowed}, nil
}

// Tail implements eventhub.Subscriber.
func (g *guard) Tail(ctx context.Context, opts eventhub.TailOptions, r eventhub.Receiver) (eventhub.Subscription, error) {
	patterns, err := opts.Patterns()
	if err != nil {
		return nil, err
	}
	if opts.Allowed, err = g.joins(patterns, ""); err != nil {
		return nil, err
	}
	if opts.Start.Kind == eventhub.StartSnapshot { // the state is of what was there before
		if err := g.check(policy.Read, opts.Topic, ""); err != nil {
			return nil, err
		}
	}
	sub, err := g.engine.Tail(ctx, opts, r)
	if err != nil {
		return nil, err
	}
	return &subscription{Subscription: sub, guard: g, allowed: opts.Allowed}, nil
}

// Pull implements eventhub.Puller.
func (g *guard) Pull(ctx context.Context, opts eventhub.GroupOptions, wait time.Duration) ([]eventhub.Delivery, error) {
	patterns, err := opts.Patterns()
	if err != nil {
		return nil, err
	}
	if opts.Allowed, err = g.joins(patterns, opts.Group); err != nil {
		return nil, err
	}
	opts.Shows = g.showsGroup
	return g.engine.Pull(ctx, opts, wait)
}

// mayHold reports whether a delivery that a lease names, under a topic or a pattern that was
// checked, is of a topic of the group that is allowed. A lease of nothing has no effect.
func (g *guard) mayHold(ref *eventhub.Ref, name, group string) bool {
	if !eventhub.IsPattern(name) {
		return true
	}
	topic := g.engine.TopicOf(ref.Lease)
	return topic == "" || g.may(policy.Subscribe, topic, group) == nil
}

// Settle implements eventhub.Subscriber. Leases of topics that are not allowed name nothing.
func (g *guard) Settle(ctx context.Context, topic, group string, s eventhub.Settlement) ([]eventhub.Outcome, error) {
	if err := g.some(policy.Subscribe, topic, group); err != nil {
		return nil, err
	}
	none := eventhub.Stale
	if s.Verdict == eventhub.Extend {
		none = eventhub.Unknown
	}
	var outcomes []eventhub.Outcome // where some are not allowed
	var rest []eventhub.Ref
	var places []int
	for i := range s.Refs {
		if g.mayHold(&s.Refs[i], topic, group) {
			rest, places = append(rest, s.Refs[i]), append(places, i)
		}
	}
	if len(rest) == len(s.Refs) {
		return g.engine.Settle(ctx, topic, group, s)
	}
	for range s.Refs {
		outcomes = append(outcomes, none)
	}
	s.Refs = rest
	some, err := g.engine.Settle(ctx, topic, group, s)
	if err != nil {
		return nil, err
	}
	for i, place := range places {
		outcomes[place] = some[i]
	}
	return outcomes, nil
}

// AckAndPublish implements eventhub.Subscriber.
func (g *guard) AckAndPublish(ctx context.Context, topic, group string, hs []eventhub.AckPublish, done func([]eventhub.AckPublish)) {
	err := g.some(policy.Subscribe, topic, group)
	g.ackAndPublish(hs, func(h *eventhub.AckPublish) error {
		if err != nil {
			return err
		}
		for i := range h.Refs {
			if !g.mayHold(&h.Refs[i], topic, group) {
				return eventhub.Errorf(eventhub.CodeLeaseLost, "lease %s does not count any more", h.Refs[i].Lease)
			}
		}
		return nil
	}, func(rest []eventhub.AckPublish, done func([]eventhub.AckPublish)) {
		g.engine.AckAndPublish(ctx, topic, group, rest, done)
	}, done)
}

func (g *guard) ackAndPublish(hs []eventhub.AckPublish, acks func(*eventhub.AckPublish) error, over func([]eventhub.AckPublish, func([]eventhub.AckPublish)), done func([]eventhub.AckPublish)) {
	HandOver(hs, func(h *eventhub.AckPublish) error {
		if err := acks(h); err != nil {
			return err
		}
		return g.publishes(policy.Publish, h.Events)
	}, func(h *eventhub.AckPublish, err error) { h.Err = err }, over, done)
}

// TopicOf implements Engine.
func (g *guard) TopicOf(l eventhub.Lease) string { return g.engine.TopicOf(l) }

// subscription is one whose acks may publish only what is allowed.
type subscription struct {
	eventhub.Subscription
	guard   *guard               // nil: full rights, by which it has no more topics than before
	allowed *eventhub.TopicRules // of the topics that its patterns match
}

// AckAndPublish implements eventhub.Subscription.
func (s *subscription) AckAndPublish(ctx context.Context, hs []eventhub.AckPublish, done func([]eventhub.AckPublish)) {
	if s.guard == nil {
		s.Subscription.AckAndPublish(ctx, hs, done)
		return
	}
	s.guard.ackAndPublish(hs, func(*eventhub.AckPublish) error { return nil },
		func(rest []eventhub.AckPublish, done func([]eventhub.AckPublish)) {
			s.Subscription.AckAndPublish(ctx, rest, done)
		}, done)
}

// InFlight returns how many events are leased to the subscription, as far as it says so.
func (s *subscription) InFlight() int {
	if holder, ok := s.Subscription.(interface{ InFlight() int }); ok {
		return holder.InFlight()
	}
	return 0
}

// Adopt returns a subscription of a connection that has another principal now: to is what For
// has returned for that one, sub is by the one before, of these patterns as the group, or as a
// live tail where its name is empty. CodeForbidden: it may not go on, because a topic that it
// has, or could have later, is not allowed any more; its owner ends it. One that goes on has
// no more topics than before.
func Adopt(to Engine, sub eventhub.Subscription, patterns []eventhub.Pattern, group string) (eventhub.Subscription, error) {
	var had *eventhub.TopicRules
	if before, ok := sub.(*subscription); ok {
		sub, had = before.Subscription, before.allowed
	}
	g, ok := to.(*guard)
	switch {
	case !ok && had == nil:
		return sub, nil
	case !ok:
		return &subscription{Subscription: sub, allowed: had}, nil
	}
	if s, ok := sub.(interface{ HasState() bool }); ok && s.HasState() { // and may be given it again
		if err := g.check(policy.Read, patterns[0].String(), ""); err != nil {
			return nil, err
		}
	}
	has, err := g.joins(patterns, group)
	if err != nil {
		return nil, err
	}
	if !policy.Within(patterns, had, has) {
		for _, p := range patterns {
			if err := g.all(policy.Subscribe, p.String(), group); err != nil {
				return nil, err
			}
		}
	}
	return &subscription{Subscription: sub, guard: g, allowed: had}, nil
}
