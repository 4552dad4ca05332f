package ws

import (
	"context"
	"strconv"
	"sync"
	"time"

	"eventhub"
	"eventhub/wire"
)

const (
	// maxBatch bounds the events of one Enqueue, except those of one PUBLISH; more
	// than one read usually brings.
	maxBatch = 512
	// maxWaiting, maxWaitingBytes and maxAwaited bound the publishes of one
	// connection that wait for groups: their number, the size of their frames, and
	// the acks that they wait for, one of each event by each group.
	maxWaiting      = 1024
	maxWaitingBytes = 4 << 20
	maxAwaited      = 1 << 16
	// keptEvents is how many events of a frame a connection keeps memory for.
	keptEvents = 80
)

// publishBatch is the consecutive PUBLISHes of one read, handed to the
// publisher in one call and answered in one go. It is pooled: its memory, and
// the callback bound to it, serve one batch after another, so that a publish
// costs no allocation here. From Enqueue until finish it belongs to the
// publisher.
type publishBatch struct {
	s        *session
	events   []eventhub.Event // of all frames
	frames   []publishFrame
	receipts []eventhub.Receipt
	pubs     []eventhub.Publication
	done     func([]eventhub.Publication)
	waits    int  // size of the frame where it waits for groups and is alone, else 0
	empty    int  // frames without events
	awaited  int  // how many acks it waits for then
	landed   bool // it is known to be committed while it waits; guarded by s.mu
}

// publishFrame is one PUBLISH, with how many of the batch's events are its.
type publishFrame struct {
	to      corr
	events  int
	batch   bool // it had a list of events, and its OK has lists too
	seq     uint64
	refused *eventhub.Error // before the engine has it; the engine uses its number up
	waitFor []string        // of one that is refused
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
	if cap(b.events) > 4*maxBatch {
		return // it was large, and the next one need not be
	}
	clear(b.events)
	clear(b.frames)
	clear(b.receipts)
	clear(b.pubs)
	b.s, b.waits, b.empty, b.awaited, b.landed = nil, 0, 0, 0, false
	b.events, b.frames, b.receipts, b.pubs = b.events[:0], b.frames[:0], b.receipts[:0], b.pubs[:0]
	publishBatches.Put(b)
}

// add takes the events out of a frame, which is refused already where refused is not nil. The
// request keeps none: an idle connection is not to hold on to the buffer in which their
// payloads are.
func (b *publishBatch) add(r *wire.Request, refused *eventhub.Error) {
	n := 1
	if r.Batch {
		n = len(r.Events)
		b.events = append(b.events, r.Events...)
		forgetEvents(r)
		if n == 0 {
			b.empty++
		}
	} else {
		b.events = append(b.events, r.Event)
		r.Event = eventhub.Event{}
	}
	b.frames = append(b.frames, publishFrame{to: corrOf(r), events: n, batch: r.Batch, seq: r.Seq, refused: refused})
	if refused != nil {
		b.frames[len(b.frames)-1].waitFor = r.WaitFor
	}
}

// forgetEvents forgets the events of a frame, and their memory where it is much.
func forgetEvents(r *wire.Request) {
	clear(r.Events)
	if cap(r.Events) > keptEvents {
		r.Events = nil
	}
}

// addPublish collects a PUBLISH. Its payloads lie in the read buffer, which
// stays as it is until the batch is flushed.
func (s *session) addPublish(r *wire.Request) {
	if s.metered(r) {
		s.collect(r, nil)
	}
}

// addRefused collects a PUBLISH that is refused, and has a number. What could not be read has no
// events.
func (s *session) addRefused(r *wire.Request, err error) {
	forgetEvents(r)
	r.Events, r.Event, r.Batch = r.Events[:0], eventhub.Event{}, true
	s.collect(r, eventhub.AsError(err))
}

func (s *session) collect(r *wire.Request, refused *eventhub.Error) {
	b := s.publish
	if b == nil {
		b = newPublishBatch(s)
		s.publish = b
	}
	b.add(r, refused)
	if len(b.events) >= maxBatch || len(b.frames) >= maxBatch {
		s.flushPublishes()
	}
}

// metered takes from the connection's limit what a PUBLISH has, or refuses it.
func (s *session) metered(r *wire.Request) bool {
	if s.meter == nil {
		return true
	}
	n := 1
	if r.Batch {
		n = len(r.Events)
	}
	err := s.meter.Take(n, s.lastRead)
	if err == nil {
		return true
	}
	if r.Seq != 0 {
		s.collect(r, toError(err, eventhub.CodeRateLimited))
		return false
	}
	forgetEvents(r)
	r.Event = eventhub.Event{}
	s.refuse(corrOf(r), toError(err, eventhub.CodeRateLimited))
	return false
}

// flushPublishes hands the collected PUBLISHes to the publisher, waiting while
// too many others are unanswered.
func (s *session) flushPublishes() {
	b := s.publish
	if b == nil {
		return
	}
	s.publish = nil
	if s.tooEarly(b) {
		b.recycle()
		return
	}
	if !s.awaitAnswers(len(b.events) + b.empty) {
		b.recycle()
		return
	}
	s.enqueue(s.ctx, b, nil, 0)
}

// publishAndWait hands over a PUBLISH that waits for groups. It goes alone, so
// that it holds no other up, and is not one of those that the reader waits for;
// therefore there is a bound beyond which it is refused.
func (s *session) publishAndWait(r *wire.Request, size int) {
	if !s.metered(r) {
		return
	}
	awaited := max(1, len(r.Events)) * len(r.WaitFor)
	s.mu.Lock()
	o := &s.out
	if o.waiting == maxWaiting || o.waiting > 0 && (o.waitingBytes+size > maxWaitingBytes || o.awaited+awaited > maxAwaited) {
		n := o.waiting
		s.mu.Unlock()
		err := &eventhub.Error{
			Code: eventhub.CodeOverloaded, Message: strconv.Itoa(n) + " publishes of this connection wait for groups; more are not allowed",
			RetryAfter: time.Second,
		}
		if r.Seq != 0 {
			s.collect(r, err)
			return
		}
		s.refuse(corrOf(r), err)
		return
	}
	o.waiting++
	o.uncommitted++
	o.waitingBytes += size
	o.awaited += awaited
	ctx := s.waitContext()
	s.mu.Unlock()
	b := newPublishBatch(s)
	b.add(r, nil)
	b.waits, b.awaited = size, awaited
	s.enqueue(ctx, b, r.WaitFor, r.WaitUpTo)
}

// waitContext returns the context of those that wait for groups, which ends before
// the conversation does: they are still answered. s.mu is held.
func (s *session) waitContext() context.Context {
	o := &s.out
	if o.waits == nil {
		o.waits, o.stopWaits = context.WithCancelCause(s.ctx)
		if o.ending != nil {
			o.stopWaits(o.ending.cause())
		}
	}
	return o.waits
}

// committed notes that the batch, which waits for groups, has its place in the log.
func (b *publishBatch) committed() {
	s := b.s
	s.mu.Lock()
	defer s.mu.Unlock()
	b.land()
	s.changed.Broadcast()
}

// land counts the batch as committed, once. s.mu is held.
func (b *publishBatch) land() {
	if !b.landed {
		b.landed = true
		b.s.out.uncommitted--
	}
}

// enqueue hands a batch over whose answers are counted.
func (s *session) enqueue(ctx context.Context, b *publishBatch, waitFor []string, upTo time.Duration) {
	for range b.events {
		b.receipts = append(b.receipts, eventhub.Receipt{})
	}
	at := 0
	for i := range b.frames {
		f := &b.frames[i]
		end := at + f.events
		b.pubs = append(b.pubs, eventhub.Publication{
			Events: b.events[at:end:end], Receipts: b.receipts[at:at:end], WaitFor: waitFor, WaitUpTo: upTo,
		})
		if f.seq != 0 {
			b.pubs[i].Producer, b.pubs[i].Seq, b.pubs[i].Refused = s.producer.Producer, f.seq, f.refusal()
			if f.refused != nil {
				b.pubs[i].WaitFor = f.waitFor
			}
		}
		if len(waitFor) > 0 {
			b.pubs[i].Committed = b.committed
		}
		at = end
	}
	s.counts.published += int64(len(b.events))
	s.access.Publisher.Enqueue(ctx, b.pubs, b.done)
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

// awaitCommitted waits until all that was taken to be published is in the log, or
// refused: what asks for a place there has to find it. It is false when the session
// ends before.
func (s *session) awaitCommitted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.out.unanswered+s.out.uncommitted > 0 && !s.out.closing {
		s.changed.Wait()
	}
	return !s.out.closing
}

// answered takes back what awaitAnswers counted, and sends the answers. s.mu is
// held.
func (s *session) answered(n int) {
	s.out.unanswered -= n
	if s.out.ending != nil && s.out.idle() {
		s.closeAsEnding()
	}
	s.kick()
	s.changed.Broadcast()
}

// finish answers the batch. It may run on any goroutine, before Enqueue has
// returned, and after the connection is gone.
func (b *publishBatch) finish(pubs []eventhub.Publication) {
	s := b.s
	var cause *eventhub.Error // one of a batch is enough for the log
	s.mu.Lock()
	for i := range pubs {
		p, f := &pubs[i], &b.frames[i]
		if p.Err != nil {
			cause = f.failure(p)
			s.noteTurn(cause)
			if (b.waits > 0 || f.refused != nil) && len(p.Receipts) > 0 && (len(p.Receipts) == f.events || f.events == 0) {
				s.appendPublishError(f, cause, p.Receipts)
			} else {
				s.appendError(f.to, cause)
			}
			continue
		}
		c := s.reply()
		if c == nil {
			continue
		}
		at := c.begin()
		if f.batch {
			c.b = wire.AppendBatchOK(c.b, f.to.text, f.to.has, p.Receipts)
		} else {
			c.b = wire.AppendPublishOK(c.b, f.to.text, f.to.has, p.Receipts[0])
		}
		c.end(at)
	}
	n := len(b.events) + b.empty
	if b.waits > 0 {
		n = 0
		b.land() // also where it was refused
		s.out.waiting--
		s.out.waitingBytes -= b.waits
		s.out.awaited -= b.awaited
	}
	s.answered(n)
	s.mu.Unlock()
	if cause != nil {
		s.logCause(string(wire.OpPublish), cause)
	}
	b.recycle()
}

// appendPublishError answers a PUBLISH whose events are in the log, and whose wait for
// groups has failed. s.mu is held.
func (s *session) appendPublishError(f *publishFrame, err *eventhub.Error, receipts []eventhub.Receipt) {
	c := s.reply()
	if c == nil {
		return
	}
	s.out.countError(err.Code)
	at := c.begin()
	c.b = wire.AppendPublishError(c.b, f.to.text, f.to.has, err, receipts, f.batch)
	c.end(at)
}

// ofEvent says which event of the list the error is about, where it is about one. What
// was published alone had no list.
func ofEvent(err *eventhub.Error, list string, isList bool) *eventhub.Error {
	if err.Index == nil {
		return err
	}
	named, i := *err, *err.Index
	named.Index = nil
	if !isList {
		return &named
	}
	return eventhub.AtIndex(&named, list, i)
}
