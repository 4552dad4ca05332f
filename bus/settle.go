package bus

import (
	"context"
	"slices"
	"time"

	"eventhub"
	"eventhub/admin"
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
// it; which of several is meant cannot be told, and a guess might settle the wrong one.
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
	if m == nil && !slices.ContainsFunc(s.patterns, func(p eventhub.Pattern) bool { return p.Match(g.log.Topic()) }) {
		return target{}
	}
	return target{group: g, member: m} // nil where it is about to join: a lease counts from anywhere
}

func (s *subscription) targetOfID(ref eventhub.Ref) target {
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
	now := g.bus.clock.Now()
	for i, ref := range s.Refs {
		outcomes[i] = g.settleOne(m, ref, &s, now)
	}
	g.compact()
	g.mu.Unlock()
	// Room has come free, an event has become due, or a lease ends later.
	g.bus.sched.Schedule(g)
	return outcomes, nil
}

// settleOne holds the rule of docs/semantics.md: the latest lease of an event counts,
// also when it has run out, as long as nobody else holds the event; older ones
// never do.
func (g *group) settleOne(m *member, ref eventhub.Ref, s *eventhub.Settlement, now int64) eventhub.Outcome {
	e := g.lookup(m, ref)
	switch {
	case s.Verdict == eventhub.Extend:
		if e == nil || e.state != leased {
			return eventhub.Unknown
		}
		g.extend(e, s.By, now)
	case e == nil || e.state != leased && e.state != waiting:
		return eventhub.Stale
	case s.Verdict == eventhub.Ack:
		g.counts.acked(e, now)
		g.finish(e)
	default:
		g.counts.Nacked++
		g.nack(e, s, now)
	}
	return eventhub.Applied
}

// lookup finds the entry whose last lease ref names.
func (g *group) lookup(m *member, ref eventhub.Ref) *entry {
	if ref.Topic != "" && ref.Topic != g.log.Topic() {
		return nil
	}
	if !ref.Lease.IsZero() {
		if ref.Lease.Serial == 0 {
			return nil // that of events which nobody ever had
		}
		if e := g.find(ref.Lease.Offset); e != nil && e.state != done && e.lease(g.runtime) == ref.Lease {
			return e
		}
		return nil
	}
	offset, ok := g.ids[ref.ID]
	if !ok || m == nil || m.sub.opts.AutoAck {
		return nil // there is nothing to say of what acks itself
	}
	if e := g.find(offset); e != nil && e.member == m {
		return e
	}
	return nil
}

func (g *group) extend(e *entry, by time.Duration, now int64) {
	ms := by.Milliseconds()
	if ms == 0 {
		ms = e.member.sub.timeout
	}
	ms = max(ms, eventhub.MinAckTimeout.Milliseconds())
	if at := min(now+ms, e.since+eventhub.MaxAckTimeout.Milliseconds()); at != e.at {
		e.at = at
		g.leases.push(timed{e.at, e.offset})
	}
}

func (g *group) nack(e *entry, s *eventhub.Settlement, now int64) {
	reason := s.Reason
	g.note(e, now, whyNacked, reason)
	if reason == "" {
		reason = whyNacked
	}
	if s.Terminal {
		g.giveUp(e, reason)
		return
	}
	delay := s.Delay
	if delay == 0 {
		delay = g.settings.backoff(int(e.attempts))
	}
	g.failed(e, now+delay.Milliseconds(), reason)
}

// The transitions of an entry. Each keeps the counts of the group and of the
// member that held it.

// become moves an entry out of its state. Room that it takes of its member was
// reserved before, and is given back with the last of the states that take some.
func (g *group) become(e *entry, state entryState) {
	switch had, has := e.state.taken(), state.taken(); {
	case had && !has:
		e.member.inFlight--
		e.member.free()
		g.held--
	case has && !had:
		e.member.inFlight++
		g.held++
	}
	switch e.state {
	case waiting:
		g.waits--
	case behind:
		g.behind--
	}
	switch state {
	case waiting:
		g.waits++
	case behind:
		g.behind++
	}
	e.state = state
	if e.redriven > 0 {
		g.progress.moved[e.offset] = true
	} else {
		g.progress.mark(e.offset)
	}
	g.touch()
}

// whyNacked is how an attempt has ended of which the member said so.
const whyNacked = "nacked"

// note remembers that the attempt under way has come to nothing.
func (g *group) note(e *entry, now int64, why, reason string) {
	if e.state == leased {
		drift := g.bus.clock.Drift()
		g.progress.note(e.offset, admin.Attempt{
			Attempt: int(e.attempts), Member: e.member.sub.peer, SinceTS: e.since + drift, EndedTS: now + drift, Why: why, Reason: reason,
		})
	}
}

// finish takes an entry off: acked, dead-lettered or gone from the log.
func (g *group) finish(e *entry) {
	g.become(e, done)
	if e.id != "" {
		delete(g.ids, e.id)
		e.forgetID()
	}
	offset := e.offset
	if e.redriven > 0 {
		delete(g.progress.redriven, offset)
	} else {
		g.window.settle(e)
		if g.progress.redriven[offset] != nil {
			return // it was done before and is read again; history and line are the other's
		}
	}
	g.progress.forget(offset)
	if len(g.awaited) > 0 {
		g.tell(offset, "")
	}
	if next := g.keyQueues.leave(offset); next != 0 {
		g.retry(g.find(next), 0)
	}
}

// failed ends an attempt that came to nothing: the event comes again at the
// given time, or is dead-lettered when it had its last attempt.
func (g *group) failed(e *entry, at int64, reason string) {
	if int(e.attempts) >= g.settings.MaxAttempts {
		g.giveUp(e, reason)
		return
	}
	g.retry(e, at)
}

func (g *group) retry(e *entry, at int64) {
	g.become(e, waiting)
	e.at = at
	g.retries.push(timed{at, e.offset})
}

// giveUp leaves the rest to the group's next turn, which has the event's bytes.
func (g *group) giveUp(e *entry, reason string) {
	g.become(e, letterPending)
	e.forgetID() // no verdict on it counts any more
	g.pendingLetters = append(g.pendingLetters, pendingLetter{e.offset, reason})
}

// compact bounds what void appointments take.
func (g *group) compact() {
	g.leases.compact(g.held, g.leaseStands)
	g.retries.compact(g.waits, g.retryStands)
}

// leaseStands and retryStands tell appointments that still mean something.
func (g *group) leaseStands(t timed) bool {
	e := g.find(t.offset)
	return e != nil && e.state == leased && e.at == t.at
}

func (g *group) retryStands(t timed) bool {
	e := g.find(t.offset)
	return e != nil && e.state == waiting && e.at == t.at
}
