package ws

import (
	"sync"

	"eventhub"
	"eventhub/wire"
)

// ackPublishBatch is the consecutive ACKs with publish of one read that are about
// deliveries of the same subscription, handed over in one call and answered in one
// go. It is pooled as a publishBatch is, and belongs to the subscription from
// AckAndPublish until finish.
type ackPublishBatch struct {
	s            *session
	sub          *subscription // nil: the deliveries are named by their leases
	topic, group string
	events       []eventhub.Event // of all frames
	frames       []ackPublishFrame
	receipts     []eventhub.Receipt
	hs           []eventhub.AckPublish
	done         func([]eventhub.AckPublish)
}

// ackPublishFrame is one of them, with how many of the batch's events are its.
type ackPublishFrame struct {
	to     corr
	refs   []eventhub.Ref
	events int
}

var ackPublishBatches sync.Pool

func newAckPublishBatch(s *session) *ackPublishBatch {
	b, _ := ackPublishBatches.Get().(*ackPublishBatch)
	if b == nil {
		b = new(ackPublishBatch)
		b.done = b.finish
	}
	b.s = s
	return b
}

func (b *ackPublishBatch) recycle() {
	if cap(b.events) > 4*maxBatch {
		return // it was large, and the next one need not be
	}
	clear(b.events)
	clear(b.frames)
	clear(b.receipts)
	clear(b.hs)
	*b = ackPublishBatch{
		events: b.events[:0], frames: b.frames[:0], receipts: b.receipts[:0], hs: b.hs[:0], done: b.done,
	}
	ackPublishBatches.Put(b)
}

// addAckPublish collects an ACK with publish. Its payloads lie in the read buffer,
// which stays as it is until the batch is flushed.
func (s *session) addAckPublish(r *wire.Request) {
	sub, err := s.target(r)
	if err != nil {
		s.flushAckPublishes() // which were asked for before
		s.refuse(corrOf(r), err)
		return
	}
	b := s.ackPublish
	if b != nil && (b.sub != sub || b.topic != r.Topic || b.group != r.Group) {
		s.flushAckPublishes()
		b = nil
	}
	if b == nil {
		b = newAckPublishBatch(s)
		b.sub, b.topic, b.group = sub, r.Topic, r.Group
		s.ackPublish = b
	}
	sub.ofTopic(r)
	b.events = append(b.events, r.Events...)
	b.frames = append(b.frames, ackPublishFrame{corrOf(r), r.Settlement.Refs, len(r.Events)})
	forgetEvents(r) // see publishBatch.add
	if len(b.events) >= maxBatch {
		s.flushAckPublishes()
	}
}

// flushAckPublishes hands the collected frames to their group, waiting while too
// many publishes are unanswered.
func (s *session) flushAckPublishes() {
	b := s.ackPublish
	if b == nil {
		return
	}
	s.ackPublish = nil
	if !s.awaitAnswers(len(b.events)) {
		b.recycle()
		return
	}
	for range b.events {
		b.receipts = append(b.receipts, eventhub.Receipt{})
	}
	at := 0
	for _, f := range b.frames {
		end := at + f.events
		b.hs = append(b.hs, eventhub.AckPublish{Refs: f.refs, Events: b.events[at:end:end], Receipts: b.receipts[at:at:end]})
		s.counts.settled += int64(len(f.refs))
		at = end
	}
	s.counts.published += int64(len(b.events))
	if b.sub != nil {
		b.sub.acks.AckAndPublish(s.ctx, b.hs, b.done)
		return
	}
	s.access.Subscriber.AckAndPublish(s.ctx, b.topic, b.group, b.hs, b.done)
}

// finish answers the batch: an OK where corr was given, an ERR always. It may run
// on any goroutine, before AckAndPublish has returned, and after the connection is gone.
func (b *ackPublishBatch) finish(hs []eventhub.AckPublish) {
	s := b.s
	var cause *eventhub.Error // one of a batch is enough for the log
	s.mu.Lock()
	for i := range hs {
		h, to := &hs[i], b.frames[i].to
		if h.Err != nil {
			cause = ofEvent(toError(h.Err, eventhub.CodeAckFailed), "publish", true)
			s.appendError(to, cause)
			continue
		}
		if !to.has {
			continue
		}
		if c := s.reply(); c != nil {
			at := c.begin()
			c.b = wire.AppendBatchOK(c.b, to.text, to.has, h.Receipts)
			c.end(at)
		}
	}
	s.answered(len(b.events))
	s.mu.Unlock()
	if cause != nil {
		s.logCause(string(wire.OpAck), cause)
	}
	b.recycle()
}
