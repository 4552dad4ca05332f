package bus

import (
	"context"
	"errors"
	"sync"
	"time"

	"eventhub"
	"eventhub/bus/internal/commit"
	"eventhub/internal/eventid"
	"eventhub/internal/record"
	"eventhub/internal/record/layout"
	"eventhub/store"
)

// encoder makes what units append and schedule. Events get their records when
// all are encoded: only then does buf stay where it is.
type encoder struct {
	appends []store.Append
	delays  []store.Delay
	delayed []delayedEvent // parallel to delays
	buf     []byte         // the records of both
}

// publication is the job of one call of Enqueue. They are pooled.
type publication struct {
	commit.Request
	encoder

	// pubs[i] became Units[unitOf[i]], or was refused (-1).
	pubs    []eventhub.Publication
	unitOf  []int
	done    func([]eventhub.Publication)
	ackWait *ackWait // where some of them wait for groups
}

var publications = sync.Pool{New: func() any { return new(publication) }}

// keptBuffer is the largest buffer that goes back into the pool.
const keptBuffer = 1 << 20

func (p *publication) recycle() {
	buf := p.buf[:0]
	if p.Kept || cap(buf) > keptBuffer {
		buf = nil
	}
	clear(p.Units)
	clear(p.appends)
	clear(p.delays)
	*p = publication{
		Request: commit.Request{Units: p.Units[:0]},
		encoder: encoder{appends: p.appends[:0], delays: p.delays[:0], delayed: p.delayed[:0], buf: buf},
		unitOf:  p.unitOf[:0],
	}
	publications.Put(p)
}

// Publish implements eventhub.Publisher.
func (b *Bus) Publish(ctx context.Context, events ...eventhub.Event) ([]eventhub.Receipt, error) {
	if len(events) == 0 {
		return nil, nil
	}
	answered := make(chan struct{})
	pubs := []eventhub.Publication{{Events: events}}
	b.Enqueue(ctx, pubs, func([]eventhub.Publication) { close(answered) })
	select {
	case <-answered:
		return pubs[0].Receipts, pubs[0].Err
	case <-ctx.Done():
		return nil, eventhub.Wrap(eventhub.CodeShuttingDown, ctx.Err(), "gave up waiting; the events may or may not be published")
	}
}

// Enqueue implements eventhub.Publisher.
func (b *Bus) Enqueue(ctx context.Context, pubs []eventhub.Publication, done func([]eventhub.Publication)) {
	p := publications.Get().(*publication)
	p.pubs, p.done = pubs, done
	p.ackWait = b.newAckWait(ctx, pubs)
	p.Plain = p.ackWait == nil
	b.encode(p)
	if len(p.Units) == 0 {
		p.Done(nil)
		return
	}
	err := b.space.Check()
	if err == nil {
		err = b.committer.Submit(ctx, p)
	}
	if err != nil {
		p.Done(err)
	}
}

// encode turns the publications into units. A bad one gets its error and no
// unit, and none of its events stays behind.
func (b *Bus) encode(s *publication) {
	now := b.clock.Wall()
	type span struct{ start, end int }
	var few [64]span
	spans := few[:0]
	for i := range s.pubs {
		p := &s.pubs[i]
		p.Err = nil
		first, firstDelay, mark := len(s.appends), len(s.delays), len(s.buf)
		if len(p.WaitFor) > 0 {
			p.Err = b.checkWait(s, p, now)
		}
		for j := range p.Events {
			start := len(s.buf)
			due := p.Events[j].Due(now)
			isDelayed := due > now.UnixMilli()
			if p.Err == nil {
				if err := s.add(&p.Events[j], now, isDelayed); err != nil {
					p.Err = eventhub.AtIndex(err, "", j) // transports know what their list is called
				}
			}
			if p.Err != nil {
				break
			}
			if isDelayed {
				s.delayLast(j, start, due, p.Events[j].ID == "")
				continue
			}
			spans = append(spans, span{start, len(s.buf)})
		}
		if p.Err == nil && len(p.WaitFor) > 0 {
			p.Err = b.makeWaited(s, p)
		}
		if p.Err != nil || len(p.Events) == 0 {
			clear(s.appends[first:])
			s.forgetDelayed(firstDelay)
			s.appends, s.buf, spans = s.appends[:first], s.buf[:mark], spans[:first]
			s.unitOf = append(s.unitOf, -1)
			continue
		}
		s.unitOf = append(s.unitOf, len(s.Units))
		s.Units = append(s.Units, store.Unit{Delays: s.delays[firstDelay:]})
	}
	// Only now do buf and appends stay where they are.
	at := 0
	for i := range s.pubs {
		if u := s.unitOf[i]; u >= 0 {
			n := len(s.pubs[i].Events) - len(s.Units[u].Delays)
			s.Units[u].Appends = s.appends[at : at+n : at+n]
			at += n
		}
	}
	for i, sp := range spans {
		s.appends[i].Record = eventhub.Record(s.buf[sp.start:sp.end:sp.end])
	}
	s.placeDelayed(s.Units)
	s.Bytes, s.Records = len(s.buf), s.buf
}

// add validates one event and encodes it at the end of buf. One that is delayed
// gets its id now, if it has none.
func (s *encoder) add(e *eventhub.Event, now time.Time, isDelayed bool) error {
	if err := e.Validate(now); err != nil {
		return err
	}
	if eventhub.HubOnlyTopic(e.Topic) {
		return eventhub.Errorf(eventhub.CodeForbidden, "topic %q is published by the hub alone", e.Topic)
	}
	if isDelayed && e.ID == "" {
		withID := *e
		withID.ID = eventid.New()
		e = &withID
	}
	return s.encode(e)
}

func (s *encoder) encode(e *eventhub.Event) error { return s.encodeAs(e, false) }

// encodeMade is encode for an event of the hub itself.
func (s *encoder) encodeMade(e *eventhub.Event) error { return s.encodeAs(e, true) }

// encodeAs leaves it to the store to make an id for an event without one. It calls the
// encoders by name: through a function value the event would escape, an allocation for
// each.
func (s *encoder) encodeAs(e *eventhub.Event, made bool) error {
	withID := *e
	if e.ID == "" {
		withID.ID = layout.IDRoom
	}
	var buf []byte
	var err error
	if made {
		buf, err = record.AppendChecked(s.buf, &withID)
	} else {
		buf, err = record.Append(s.buf, &withID)
	}
	if err != nil {
		return err
	}
	s.buf = buf
	s.appends = append(s.appends, store.Append{Topic: e.Topic, ID: e.ID, NewID: e.ID == "", Key: e.Key})
	s.linkLast(e)
	return nil
}

// seal gives the events that were encoded their records, which end at ends in buf, and
// makes one unit of them.
func (s *encoder) seal(r *commit.Request, ends []int) {
	start := 0
	for i, end := range ends {
		s.appends[i].Record = eventhub.Record(s.buf[start:end:end])
		start = end
	}
	r.Units = []store.Unit{{Appends: s.appends}}
	r.Bytes, r.Records = len(s.buf), s.buf
}

// Done implements commit.Job: it answers the publishers.
func (s *publication) Done(err error) {
	delayed := s.delayed
	for i := range s.pubs {
		p := &s.pubs[i]
		u := s.unitOf[i]
		switch {
		case u < 0: // refused before, p.Err says why
		case err != nil:
			p.Err = err
		case s.Units[u].Err != nil:
			p.Err = unitError(s.Units[u].Err)
		default:
			p.Receipts = receipts(p.Receipts, s.Units[u].Appends)
			if n := len(s.Units[u].Delays); n > 0 {
				p.Receipts = delayedReceipts(p.Receipts, s.Units[u].Delays, delayed[:n])
			}
		}
		if u >= 0 {
			delayed = delayed[len(s.Units[u].Delays):]
		}
	}
	pubs, done, ackWait := s.pubs, s.done, s.ackWait
	s.recycle()
	if ackWait != nil {
		ackWait.begin(pubs, done)
		return
	}
	done(pubs)
}

func receipts(into []eventhub.Receipt, appends []store.Append) []eventhub.Receipt {
	into = into[:0]
	for i := range appends {
		a := &appends[i]
		into = append(into, eventhub.Receipt{ID: a.ID, Offset: a.Offset, Duplicate: a.Duplicate})
	}
	return into
}

// unitError translates why the store refused one unit.
func unitError(err error) error {
	if errors.Is(err, store.ErrTopicLimit) {
		return eventhub.Wrap(eventhub.CodeOverloaded, err, "the hub holds as many topics as it may; no topic was created")
	}
	return eventhub.Wrap(eventhub.CodePublishFailed, err, "the store refused the events: %v", err)
}
