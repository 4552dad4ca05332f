package ws

import (
	"eventhub"
	"eventhub/wire"
)

// keptRefs is how many references a connection keeps memory for.
const keptRefs = 64

// settleBatch is the consecutive ACKs (or NACKs, or MODACKs) of one read that
// say the same of deliveries of the same subscription: one Settle.
type settleBatch struct {
	sub          *subscription // nil: the deliveries are named by their leases
	topic, group string
	settlement   eventhub.Settlement // Refs are those of all frames
	frames       []settleFrame
}

// settleFrame is one of them, with how many of the batch's refs are its.
type settleFrame struct {
	to   corr
	refs int
}

// takes reports whether the frame can join the batch.
func (b *settleBatch) takes(r *wire.Request) bool {
	return len(b.frames) > 0 && b.topic == r.Topic && b.group == r.Group && b.sameVerdict(&r.Settlement) &&
		(b.sub != nil || leased(r.Settlement.Refs))
}

func (b *settleBatch) sameVerdict(y *eventhub.Settlement) bool {
	x := &b.settlement
	return x.Verdict == y.Verdict && x.Reason == y.Reason && x.Delay == y.Delay && x.Terminal == y.Terminal && x.By == y.By
}

// leased reports whether all deliveries are named by their leases.
func leased(refs []eventhub.Ref) bool {
	for i := range refs {
		if refs[i].Lease.IsZero() {
			return false
		}
	}
	return true
}

// addSettle collects an ACK, NACK or MODACK.
func (s *session) addSettle(r *wire.Request) {
	b := &s.settle
	if !b.takes(r) {
		sub, err := s.target(r)
		if err != nil {
			s.flushSettles() // whose answers come first
			s.refuse(corrOf(r), err)
			return
		}
		// Another topic of the same subscription joins as well.
		if sub == nil || sub != b.sub || !b.sameVerdict(&r.Settlement) {
			s.flushSettles()
			refs := b.settlement.Refs[:0]
			b.sub, b.group, b.settlement = sub, r.Group, r.Settlement
			b.settlement.Refs = refs
		}
		b.topic = r.Topic
	}
	b.sub.ofTopic(r)
	b.settlement.Refs = append(b.settlement.Refs, r.Settlement.Refs...)
	b.frames = append(b.frames, settleFrame{corrOf(r), len(r.Settlement.Refs)})
}

// ofTopic has the deliveries that a frame names be those of its topic alone, where that
// is the events' own and not the name of the subscription.
func (u *subscription) ofTopic(r *wire.Request) {
	if u == nil || r.Topic == u.key.topic {
		return
	}
	for i := range r.Settlement.Refs {
		r.Settlement.Refs[i].Topic = r.Topic
	}
}

// flushSettles hands the collected frames to their group and answers them: an
// OK where corr was given, an ERR always.
func (s *session) flushSettles() {
	b := &s.settle
	if len(b.frames) == 0 {
		return
	}
	s.counts.settled += int64(len(b.settlement.Refs))
	var outcomes []eventhub.Outcome
	var err error
	if b.sub != nil {
		outcomes, err = b.sub.handle.Settle(s.ctx, b.settlement)
	} else {
		outcomes, err = s.access.Subscriber.Settle(s.ctx, b.topic, b.group, b.settlement)
	}
	var failed *eventhub.Error
	if err != nil {
		failed = toError(err, eventhub.CodeAckFailed)
		s.logCause("ACK", failed)
	}
	s.mu.Lock()
	refs := b.settlement.Refs
	for _, f := range b.frames {
		if failed != nil {
			s.appendError(f.to, failed)
			continue
		}
		s.answerSettle(f.to, b.settlement.Verdict, refs[:f.refs], outcomes[:f.refs])
		refs, outcomes = refs[f.refs:], outcomes[f.refs:]
	}
	s.mu.Unlock()
	b.reset()
}

// answerSettle answers one frame. s.mu is held.
func (s *session) answerSettle(to corr, verdict eventhub.Verdict, refs []eventhub.Ref, outcomes []eventhub.Outcome) {
	for i, o := range outcomes {
		switch {
		case o == eventhub.Ambiguous:
			s.appendError(to, eventhub.Errorf(eventhub.CodeBadRequest, "%.64q is of several topics of the subscription; the event's own topic or its lease is expected", refName(&refs[i])))
			return
		case verdict == eventhub.Extend && o != eventhub.Applied:
			s.appendError(to, eventhub.Errorf(eventhub.CodeUnknownID, "%.48q has no lease to extend", refName(&refs[i])))
			return
		}
	}
	if !to.has {
		return
	}
	if c := s.reply(); c != nil {
		at := c.begin()
		c.b = wire.AppendSettleOK(c.b, to.text, to.has, outcomes)
		c.end(at)
	}
}

func refName(r *eventhub.Ref) string {
	if r.ID != "" {
		return r.ID
	}
	return r.Lease.String()
}

// reset empties the batch and keeps its memory, if it is little.
func (b *settleBatch) reset() {
	refs, frames := b.settlement.Refs, b.frames
	clear(refs)
	clear(frames)
	*b = settleBatch{}
	if cap(refs) <= keptRefs {
		b.settlement.Refs = refs[:0]
	}
	if cap(frames) <= keptRefs {
		b.frames = frames[:0]
	}
}
