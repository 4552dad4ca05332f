package bus

import (
	"context"
	"sync"
	"time"

	"eventhub"
	"eventhub/internal/eventid"
	"eventhub/internal/record"
	"eventhub/store"
)

// submission is what one call hands to the committer: independent units that
// wait for the same answer. Submissions of publishers are pooled.
type submission struct {
	units   []store.Unit
	appends []store.Append // of all units, which hold parts of it
	plans   []store.Plan   // of all units, likewise
	planned []plannedEvent // parallel to plans
	buf     []byte         // the records of appends and plans
	cached  bool           // the tail cache holds parts of buf
	bytes   int            // what counts against Options.QueueBytes
	durable bool           // on disk when it is answered, also with Options.SyncEvery

	// prepare, where set, is called by the committer just before the commit and
	// fills in group state; false drops the submission's units.
	prepare func(*submission) bool
	// exchanges, where there are some, are all that the submission has: the
	// committer puts them into a unit of its own (exchange.go).
	exchanges []*exchange
	// drop, where not empty, is a topic to be deleted, between two commits.
	drop string
	// gives: it is a redrive, which writes its group's state and is no exchange.
	gives bool
	// finish is called on the committer's goroutine with the commit's error.
	finish func(*submission, error)

	// Of publishers: pubs[i] became units[unitOf[i]], or was refused (-1).
	pubs    []eventhub.Publication
	unitOf  []int
	done    func([]eventhub.Publication)
	barrier *barrier // where some of them wait for groups
}

var submissions = sync.Pool{New: func() any { return new(submission) }}

// keptBuffer is the largest buffer that goes back into the pool.
const keptBuffer = 1 << 20

func (s *submission) recycle() {
	buf := s.buf[:0]
	if s.cached || cap(buf) > keptBuffer {
		buf = nil
	}
	clear(s.units)
	clear(s.appends)
	clear(s.plans)
	*s = submission{
		units: s.units[:0], appends: s.appends[:0], plans: s.plans[:0],
		planned: s.planned[:0], unitOf: s.unitOf[:0], buf: buf,
	}
	submissions.Put(s)
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
	s := submissions.Get().(*submission)
	s.pubs, s.done, s.finish = pubs, done, finishPublish
	s.barrier = b.newBarrier(ctx, pubs)
	b.encode(s)
	if len(s.units) == 0 {
		s.finish(s, nil)
		return
	}
	err := b.space.check()
	if err == nil {
		err = b.committer.submit(ctx, s)
	}
	if err != nil {
		s.finish(s, err)
	}
}

// encode turns the publications into units. A bad one gets its error and no
// unit, and none of its events stays behind.
func (b *Bus) encode(s *submission) {
	now := b.clock.wall()
	type span struct{ start, end int }
	var few [64]span
	spans := few[:0]
	for i := range s.pubs {
		p := &s.pubs[i]
		p.Err = nil
		first, firstPlan, mark := len(s.appends), len(s.plans), len(s.buf)
		if len(p.WaitFor) > 0 {
			p.Err = b.checkWait(s, p, now)
		}
		for j := range p.Events {
			start := len(s.buf)
			due := p.Events[j].Due(now)
			isPlan := due > now.UnixMilli()
			if p.Err == nil {
				p.Err = s.add(&p.Events[j], now, isPlan)
			}
			if p.Err != nil {
				break
			}
			if isPlan {
				s.planLast(j, start, due, p.Events[j].ID == "")
				continue
			}
			spans = append(spans, span{start, len(s.buf)})
		}
		if p.Err == nil && len(p.WaitFor) > 0 {
			p.Err = b.makeWaited(s, p)
		}
		if p.Err != nil || len(p.Events) == 0 {
			clear(s.appends[first:])
			s.dropPlans(firstPlan)
			s.appends, s.buf, spans = s.appends[:first], s.buf[:mark], spans[:first]
			s.unitOf = append(s.unitOf, -1)
			continue
		}
		s.unitOf = append(s.unitOf, len(s.units))
		s.units = append(s.units, store.Unit{Plans: s.plans[firstPlan:]})
	}
	// Only now do buf and appends stay where they are.
	at := 0
	for i := range s.pubs {
		if u := s.unitOf[i]; u >= 0 {
			n := len(s.pubs[i].Events) - len(s.units[u].Plans)
			s.units[u].Appends = s.appends[at : at+n : at+n]
			at += n
		}
	}
	for i, sp := range spans {
		s.appends[i].Record = eventhub.Record(s.buf[sp.start:sp.end:sp.end])
	}
	s.placePlans()
	s.bytes = len(s.buf)
}

// add validates one event and encodes it at the end of buf. One that is to be a plan
// gets its id now, if it has none.
func (s *submission) add(e *eventhub.Event, now time.Time, isPlan bool) error {
	if err := e.Validate(now); err != nil {
		return err
	}
	if eventhub.HubOnlyTopic(e.Topic) {
		return eventhub.Errorf(eventhub.CodeForbidden, "topic %q is published by the hub alone", e.Topic)
	}
	if isPlan && e.ID == "" {
		withID := *e
		withID.ID = eventid.New()
		e = &withID
	}
	return s.encode(e)
}

func (s *submission) encode(e *eventhub.Event) error { return s.encodeAs(e, false) }

// encodeMade is encode for an event of the hub itself.
func (s *submission) encodeMade(e *eventhub.Event) error { return s.encodeAs(e, true) }

// encodeAs leaves it to the store to make an id for an event without one. It calls the
// encoders by name: through a function value the event would escape, an allocation for
// each.
func (s *submission) encodeAs(e *eventhub.Event, made bool) error {
	withID := *e
	if e.ID == "" {
		withID.ID = eventhub.RecordIDRoom
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

// finishPublish answers the publishers of a submission.
func finishPublish(s *submission, err error) {
	planned := s.planned
	for i := range s.pubs {
		p := &s.pubs[i]
		u := s.unitOf[i]
		switch {
		case u < 0: // refused before, p.Err says why
		case err != nil:
			p.Err = err
		case s.units[u].Err != nil:
			p.Err = unitError(s.units[u].Err)
		default:
			p.Receipts = receipts(p.Receipts, s.units[u].Appends)
			if n := len(s.units[u].Plans); n > 0 {
				p.Receipts = planReceipts(p.Receipts, s.units[u].Plans, planned[:n])
			}
		}
		if u >= 0 {
			planned = planned[len(s.units[u].Plans):]
		}
	}
	pubs, done, barrier := s.pubs, s.done, s.barrier
	s.recycle()
	if barrier != nil {
		barrier.begin(pubs, done)
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
