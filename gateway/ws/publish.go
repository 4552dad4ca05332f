package ws

import (
	"sync"

	"eventhub"
	"eventhub/wire"
)

// maxBatch bounds the PUBLISHes of one Enqueue; more than one read usually
// brings.
const maxBatch = 512

// publishBatch is the consecutive PUBLISHes of one read, handed to the
// publisher in one call and answered in one go. It is pooled: its memory, and
// the callback bound to it, serve one batch after another, so that a publish
// costs no allocation here. From Enqueue until finish it belongs to the
// publisher.
type publishBatch struct {
	s        *session
	events   []eventhub.Event
	corrs    []corr
	receipts []eventhub.Receipt
	pubs     []eventhub.Publication
	done     func([]eventhub.Publication)
}

var publishBatches sync.Pool

func newPublishBatch(s *session) *publishBatch {
	b, _ := publishBatches.Get().(*publishBatch)
	if b == nil {
		b = new(publishBatch)
		b.done = b.finish
	}
	b.s = s
	return b
}

func (b *publishBatch) recycle() {
	clear(b.events)
	clear(b.corrs)
	clear(b.receipts)
	clear(b.pubs)
	b.s = nil
	b.events, b.corrs, b.receipts, b.pubs = b.events[:0], b.corrs[:0], b.receipts[:0], b.pubs[:0]
	publishBatches.Put(b)
}

// addPublish collects a PUBLISH. Its payload lies in the read buffer, which
// stays as it is until the batch is flushed.
func (s *session) addPublish(r *wire.Request) {
	b := s.publish
	if b == nil {
		b = newPublishBatch(s)
		s.publish = b
	}
	b.events = append(b.events, r.Event)
	b.corrs = append(b.corrs, corrOf(r))
	if len(b.events) == maxBatch {
		s.flushPublishes()
	}
}

// flushPublishes hands the collected PUBLISHes to the publisher, waiting while
// too many others are unanswered.
func (s *session) flushPublishes() {
	b := s.publish
	if b == nil {
		return
	}
	s.publish = nil
	n := len(b.events)
	if !s.awaitAnswers(n) {
		b.recycle()
		return
	}
	for i := range n {
		b.receipts = append(b.receipts, eventhub.Receipt{})
		b.pubs = append(b.pubs, eventhub.Publication{Events: b.events[i : i+1 : i+1]})
	}
	for i := range n { // receipts has stopped moving
		b.pubs[i].Receipts = b.receipts[i : i : i+1]
	}
	s.counts.published += int64(n)
	s.access.Publisher.Enqueue(s.ctx, b.pubs, b.done)
}

// awaitAnswers waits until n more publishes may be unanswered. It is false when
// the session ends before.
func (s *session) awaitAnswers(n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.out.unanswered > 0 && s.out.unanswered+n > maxUnanswered && !s.out.closing {
		s.kick()
		s.changed.Wait()
	}
	if s.out.closing {
		return false
	}
	s.out.unanswered += n
	return true
}

// finish answers the batch. It may run on any goroutine, before Enqueue has
// returned, and after the connection is gone.
func (b *publishBatch) finish(pubs []eventhub.Publication) {
	s := b.s
	var cause *eventhub.Error // one of a batch is enough for the log
	s.mu.Lock()
	s.out.unanswered -= len(pubs)
	for i := range pubs {
		to := b.corrs[i]
		if pubs[i].Err != nil {
			cause = toError(pubs[i].Err, eventhub.CodePublishFailed)
			s.appendError(to, cause)
			continue
		}
		if c := s.reply(); c != nil {
			at := c.begin()
			c.b = wire.AppendPublishOK(c.b, to.text, to.has, pubs[i].Receipts[0])
			c.end(at)
		}
	}
	if s.out.stopping && s.out.unanswered == 0 {
		s.closeForStop()
	}
	s.kick()
	s.changed.Broadcast()
	s.mu.Unlock()
	if cause != nil {
		s.logCause(string(wire.OpPublish), cause)
	}
	b.recycle()
}
