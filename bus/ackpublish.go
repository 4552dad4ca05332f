package bus

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"eventhub"
	"eventhub/bus/internal/groupstate"
	"eventhub/bus/internal/publish"
)

// An ack-and-publish acks deliveries and publishes events as one unit of the store; how
// it gets there together with others is described above commit.Step. From the moment it is
// accepted until that unit is committed the state of its entries is ackPending: they have no
// deadline, go to nobody else, and take their member's room. Neither the member's
// leaving nor the end of the bus stops it; a seek and the group's deletion do.

// AckAndPublish implements eventhub.Subscriber.
func (b *Bus) AckAndPublish(ctx context.Context, topic, name string, hs []eventhub.AckPublish, done func([]eventhub.AckPublish)) {
	if eventhub.IsPattern(topic) {
		b.ackAndPublishPattern(ctx, topic, name, hs, done)
		return
	}
	g, err := b.acquire(groupKey{topic: topic, group: name})
	if err == nil {
		defer b.release(g)
		err = g.load(ctx, nil)
	}
	b.ackAndPublish(ctx, hs, done, func(h *eventhub.AckPublish) (*group, *member, error) {
		if err != nil {
			return nil, nil, err
		}
		return g, nil, needLeases(h)
	})
}

func needLeases(h *eventhub.AckPublish) error {
	for _, ref := range h.Refs {
		if ref.Lease.IsZero() {
			return eventhub.Errorf(eventhub.CodeBadRequest, "lease is missing; without a subscription it names the delivery")
		}
	}
	return nil
}

// ackAndPublishPattern hands over what leases name in any topic that a pattern matches.
func (b *Bus) ackAndPublishPattern(ctx context.Context, text, name string, hs []eventhub.AckPublish, done func([]eventhub.AckPublish)) {
	meant, err := b.patternTarget(text, name)
	b.ackAndPublish(ctx, hs, done, func(h *eventhub.AckPublish) (*group, *member, error) {
		if err != nil {
			return nil, nil, err
		}
		if err := needLeases(h); err != nil {
			return nil, nil, err
		}
		return oneGroup(h, meant)
	})
}

// AckAndPublish implements eventhub.Subscription.
func (s *subscription) AckAndPublish(ctx context.Context, hs []eventhub.AckPublish, done func([]eventhub.AckPublish)) {
	m := s.single()
	s.bus.ackAndPublish(ctx, hs, done, func(h *eventhub.AckPublish) (*group, *member, error) {
		if m != nil {
			return m.group, m, nil
		}
		return oneGroup(h, s.target)
	})
}

// oneGroup returns the one group that all refs of an ack-and-publish mean.
func oneGroup(h *eventhub.AckPublish, of func(eventhub.Ref) target) (g *group, m *member, _ error) {
	for i, ref := range h.Refs {
		meant := of(ref)
		switch {
		case meant.several:
			return nil, nil, eventhub.Errorf(eventhub.CodeBadRequest, "%s is of several topics of the subscription; the event's own topic or its lease is expected", refName(ref))
		case meant.group == nil:
			return nil, nil, lostLease(ref)
		case i > 0 && meant.group != g:
			return nil, nil, eventhub.Errorf(eventhub.CodeBadRequest, "the deliveries of one ack-and-publish are of one topic; %s and %s are not",
				refName(h.Refs[0]), refName(ref))
		}
		g, m = meant.group, meant.member
	}
	if g == nil {
		return nil, nil, errNothingToAck
	}
	return g, m, nil
}

func lostLease(ref eventhub.Ref) error {
	return eventhub.Errorf(eventhub.CodeLeaseLost, "the lease of %s is lost: another one exists, or the event was settled before; nothing was published", refName(ref))
}

var errNothingToAck = eventhub.Errorf(eventhub.CodeBadRequest, "an ack-and-publish without a delivery to ack is a publish")

// ackAndPublish submits each ack-and-publish; of returns the group of one and the member whose
// leases its ids mean.
func (b *Bus) ackAndPublish(ctx context.Context, hs []eventhub.AckPublish, done func([]eventhub.AckPublish),
	of func(*eventhub.AckPublish) (*group, *member, error)) {
	if len(hs) == 0 {
		done(hs)
		return
	}
	call := &ackPublishCall{hs: hs, done: done}
	call.left.Store(int64(len(hs)))
	pubs := make([]eventhub.Publication, len(hs))
	for i := range hs {
		pubs[i].Events = hs[i].Events
	}
	batch := publish.NewBatch(pubs, b.clock.Wall(), b.topics)
	var begun []*groupStep
	for i := range hs {
		x, err := &groupStep{}, pubs[i].Err
		if err == nil {
			err = b.beginAckPublish(x, batch, i, &hs[i], of)
		}
		if err != nil {
			call.answer(i, nil, err)
			continue
		}
		x.call, x.index = call, i
		begun = append(begun, x)
	}
	if len(begun) == 0 {
		return
	}
	if err := b.committer.SubmitSteps(ctx, asSteps(begun)); err != nil {
		for _, x := range begun {
			x.refuse()
			x.answer(err)
		}
	}
}

// beginAckPublish makes x the step of the ack-and-publish whose events are publication i of the
// batch, and takes its entries.
func (b *Bus) beginAckPublish(x *groupStep, batch *publish.Batch, i int, h *eventhub.AckPublish, of func(*eventhub.AckPublish) (*group, *member, error)) error {
	if u, delayed := batch.Unit(i); u != nil {
		if err := b.space.Check(); err != nil {
			return err
		}
		x.Unit, x.delayed = *u, delayed
	}
	for j := range x.Unit.Appends {
		x.Bytes += len(x.Unit.Appends[j].Record)
	}
	for j := range x.Unit.Delays {
		x.Bytes += len(x.Unit.Delays[j].Record)
	}
	g, m, err := of(h)
	if err != nil {
		return err
	}
	x.group = g
	return g.beginStep(x, m, h.Refs)
}

// beginStep takes the entries that refs name for a step, all of them or none. m
// is whose leases ids mean, nil for leases by token only.
func (g *group) beginStep(x *groupStep, m *member, refs []eventhub.Ref) error {
	if len(refs) == 0 {
		return errNothingToAck
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.deleted:
		return eventhub.Errorf(eventhub.CodeLeaseLost, "group %q of topic %q was deleted; nothing was published", g.name, g.log.Topic())
	case g.ended != nil:
		return g.ended
	}
	entries := make([]*groupstate.Entry, len(refs))
	for i, ref := range refs {
		e := g.lookup(m, ref)
		if e == nil || e.State() != groupstate.Leased && e.State() != groupstate.Waiting {
			return lostLease(ref)
		}
		entries[i] = e
	}
	slices.SortFunc(entries, func(a, b *groupstate.Entry) int { return cmp.Compare(a.Offset(), b.Offset()) })
	for i, e := range entries[1:] {
		if e == entries[i] {
			return eventhub.Errorf(eventhub.CodeBadRequest, "the event at offset %d is named twice in one ack-and-publish", e.Offset())
		}
	}
	for _, e := range entries {
		if e.State() == groupstate.Waiting {
			memberOf(e).hold()
		}
	}
	x.Step = g.state.BeginAcks(entries)
	return nil
}

// refName shows a ref to whoever gave it.
func refName(ref eventhub.Ref) string {
	if ref.Lease.IsZero() {
		return fmt.Sprintf("event %q", ref.ID)
	}
	return fmt.Sprintf("delivery %q", ref.Lease)
}

// refuse undoes the take of a step that was not submitted.
func (x *groupStep) refuse() {
	g := x.group
	g.mu.Lock()
	g.state.Release(&x.Step, g.bus.clock.Now())
	g.mu.Unlock()
	g.bus.sched.Schedule(g)
}
