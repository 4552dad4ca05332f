package bus

import (
	"context"
	"slices"

	"eventhub"
	"eventhub/bus/internal/groupstate"
)

// Settle implements eventhub.Subscriber.
func (b *Bus) Settle(ctx context.Context, topic, name string, s eventhub.Settlement) ([]eventhub.Outcome, error) {
	for _, ref := range s.Refs {
		if ref.Lease.IsZero() {
			return nil, eventhub.Errorf(eventhub.CodeBadRequest, "lease is missing; without a subscription it names the delivery")
		}
	}
	if eventhub.IsPattern(topic) {
		return b.settlePattern(topic, name, s)
	}
	g, err := b.acquire(groupKey{topic: topic, group: name})
	if err != nil {
		return nil, err
	}
	defer b.release(g)
	if err := g.load(ctx, nil); err != nil {
		return nil, err
	}
	return g.settle(nil, s)
}

// settlePattern settles what leases name in any topic that a pattern matches.
func (b *Bus) settlePattern(text, name string, s eventhub.Settlement) ([]eventhub.Outcome, error) {
	of, err := b.patternTarget(text, name)
	if err != nil {
		return nil, err
	}
	return settleEach(s, of)
}

// patternTarget finds groups by leases in topics that a pattern matches. A group
// that is not loaded has given no lease that could count.
func (b *Bus) patternTarget(text, name string) (func(eventhub.Ref) target, error) {
	p, err := eventhub.ParsePattern(text)
	if err != nil {
		return nil, err
	}
	if !b.patterns.has(name) {
		return nil, eventhub.Errorf(eventhub.CodeNotSubscribed, "there is no group %q with a pattern", name)
	}
	return func(ref eventhub.Ref) (meant target) {
		if g := b.runtimes.group(ref.Lease.Runtime); g != nil && g.name == name && p.Match(g.log.Topic()) {
			meant.group = g
		}
		return meant
	}, nil
}

// TopicOf returns the topic of the event that a lease names, "" where it names none.
func (b *Bus) TopicOf(l eventhub.Lease) string {
	if g := b.runtimes.group(l.Runtime); g != nil {
		return g.log.Topic()
	}
	return ""
}

// Settle implements eventhub.Subscription.
func (s *subscription) Settle(_ context.Context, st eventhub.Settlement) ([]eventhub.Outcome, error) {
	if m := s.single(); m != nil {
		return m.group.settle(m, st)
	}
	return settleEach(st, s.target)
}

// single returns the one member of a subscription that has one topic for ever.
func (s *subscription) single() *member {
	if s.patterned != nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.members[s.opts.Topic]
}

// target is what a ref means.
type target struct {
	group   *group  // nil: nothing
	member  *member // whose ids count; nil: leases only
	several bool    // the id is of events of several topics, and means none
}

// target finds the group that a ref means. An id alone is enough where one topic has
// it; which of several is meant is not known, and a guess might settle the wrong one.
func (s *subscription) target(ref eventhub.Ref) target {
	if ref.Lease.IsZero() {
		return s.targetOfID(ref)
	}
	g := s.bus.runtimes.group(ref.Lease.Runtime)
	if g == nil || g.name != s.opts.Group {
		return target{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.members[g.log.Topic()]
	if m == nil && !s.covers(g.log.Topic()) {
		return target{}
	}
	return target{group: g, member: m} // nil where it is about to join: a lease counts from anywhere
}

func (s *subscription) targetOfID(ref eventhub.Ref) target {
	// Whoever has a delivery may answer before its id is noted here.
	s.giving.Lock()
	defer s.giving.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.members[ref.Topic]
	if ref.Topic == "" {
		m = s.ids.one[ref.ID]
	}
	switch {
	case m == nil:
		return target{}
	case ref.Topic == "" && len(s.ids.more[ref.ID]) > 0:
		return target{several: true}
	}
	return target{group: m.group, member: m}
}

// settleEach applies one verdict to deliveries of several groups, in runs of one.
// A ref without a group is outdated, and so is one whose topic is just being deleted.
func settleEach(s eventhub.Settlement, of func(eventhub.Ref) target) ([]eventhub.Outcome, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	gone := eventhub.Stale
	if s.Verdict == eventhub.Extend {
		gone = eventhub.Unknown
	}
	outcomes := make([]eventhub.Outcome, 0, len(s.Refs))
	for len(outcomes) < len(s.Refs) {
		rest := s.Refs[len(outcomes):]
		meant := of(rest[0])
		switch {
		case meant.several:
			outcomes = append(outcomes, eventhub.Ambiguous)
			continue
		case meant.group == nil:
			outcomes = append(outcomes, gone)
			continue
		}
		n := 1
		for n < len(rest) && of(rest[n]).group == meant.group {
			n++
		}
		part := s
		part.Refs = rest[:n]
		some, err := meant.group.settle(meant.member, part)
		if eventhub.ErrorCode(err) == eventhub.CodeNotSubscribed {
			some, err = slices.Repeat([]eventhub.Outcome{gone}, n), nil
		}
		if err != nil {
			return nil, err
		}
		outcomes = append(outcomes, some...)
	}
	return outcomes, nil
}

// settle applies one verdict; m is whose leases ids mean, nil for leases by
// token only.
func (g *group) settle(m *member, s eventhub.Settlement) ([]eventhub.Outcome, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	outcomes := make([]eventhub.Outcome, len(s.Refs))
	g.mu.Lock()
	if g.ended != nil {
		defer g.mu.Unlock()
		return nil, g.ended
	}
	now, drift := g.bus.clock.Now(), int64(0)
	if s.Verdict == eventhub.Nack {
		drift = g.bus.clock.Drift()
	}
	for i, ref := range s.Refs {
		outcomes[i] = g.settleOne(m, ref, &s, now, drift)
	}
	g.state.Compact()
	g.mu.Unlock()
	// Room has come free, an event has become due, or a lease ends later.
	g.bus.sched.Schedule(g)
	return outcomes, nil
}

// settleOne holds the rule of docs/semantics.md: the latest lease of an event counts,
// also when it has run out, as long as nobody else holds the event; older ones
// never do.
func (g *group) settleOne(m *member, ref eventhub.Ref, s *eventhub.Settlement, now, drift int64) eventhub.Outcome {
	e := g.lookup(m, ref)
	ok := e != nil
	switch {
	case s.Verdict == eventhub.Extend:
		if !ok || !g.state.Extend(e, s.By.Milliseconds(), now) {
			return eventhub.Unknown
		}
		return eventhub.Applied
	case !ok:
	case s.Verdict == eventhub.Ack:
		ok = g.state.Ack(e, now)
	default:
		f := groupstate.Failure{Cause: groupstate.Nacked, Reason: s.Reason, Delay: s.Delay, Now: now, Drift: drift}
		if s.Terminal {
			f.Cause = groupstate.Refused
		}
		if ok = g.state.Fail(e, f); ok {
			g.counts.Nacked++
		}
	}
	if !ok {
		return eventhub.Stale
	}
	return eventhub.Applied
}

// lookup finds the entry whose last lease ref names.
func (g *group) lookup(m *member, ref eventhub.Ref) *groupstate.Entry {
	switch {
	case ref.Topic != "" && ref.Topic != g.log.Topic():
		return nil
	case !ref.Lease.IsZero():
		return g.state.OfLease(ref.Lease)
	case m == nil || m.sub.opts.AutoAck:
		return nil // there is nothing to say of what acks itself
	}
	return g.state.OfID(ref.ID, &m.holder)
}
