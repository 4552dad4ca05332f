package publish

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"eventhub"
	"eventhub/bus/internal/commit"
	"eventhub/store"
)

// Batch is a list of publications. Each is one unit or is refused.
type Batch struct {
	commit.Request
	encoder

	delays  []store.Delay
	delayed Delayed // parallel to delays
	pubs    []eventhub.Publication
	parts   []part // parallel to pubs
	// sequences are those of publications with numbers.
	sequences []store.Sequence
}

// part is what became of a publication.
type part struct {
	unit     int // index in Units; -1: it was refused
	delay    int // index of its first in delays
	events   int // of the unit: none of a refused one that has a number for its own
	sequence int // index in sequences; -1: none
}

// Delayed says which events of a publication are delayed. It is parallel to the delays of the
// unit.
type Delayed []delayedEvent

// delayedEvent is the index of an event in its publication, and where in the buffer its
// record is.
type delayedEvent struct{ index, start, end int }

// NewBatch encodes publications, none of which waits for groups. Those that are refused have
// their error.
func NewBatch(pubs []eventhub.Publication, now time.Time, rules Rules) *Batch {
	b := &Batch{pubs: pubs}
	b.encode(now, nil, rules, nil)
	return b
}

// Unit returns the unit of a publication and which of its events are delayed; nil where the
// publication was refused.
func (b *Batch) Unit(i int) (*store.Unit, Delayed) {
	p := b.parts[i]
	if p.unit < 0 {
		return nil, nil
	}
	u := &b.Units[p.unit]
	return u, b.delayed[p.delay : p.delay+len(u.Delays)]
}

// encode turns the publications into units. A bad one gets its error and no
// unit, and none of its events stays in the buffers.
func (b *Batch) encode(now time.Time, full error, rules Rules, waits Waits) {
	var few [64]span
	spans := few[:0]
	for i := range b.pubs {
		p := &b.pubs[i]
		if p.Err, p.SeqUsed = p.Refused, false; p.Err == nil {
			p.Err = full
		}
		first, firstDelay, mark := len(b.appends), len(b.delays), len(b.buf)
		events := len(p.Events)
		if p.Err == nil || p.Producer != nil {
			var err error
			if spans, err = b.encodeOne(p, spans, now, rules, waits); err != nil && p.Err == nil {
				p.Err = err
			}
			if err != nil {
				events = 0
			}
		}
		if p.Err == nil && len(p.WaitFor) > 0 {
			p.Err = waits.Prepare(p)
		}
		if p.Producer == nil && p.Err != nil {
			events = 0
		}
		if events == 0 {
			clear(b.appends[first:])
			clear(b.delays[firstDelay:])
			b.delays, b.delayed = b.delays[:firstDelay], b.delayed[:firstDelay]
			b.appends, b.buf, spans = b.appends[:first], b.buf[:mark], spans[:first]
		}
		if events == 0 && (p.Err == nil || p.Producer == nil) {
			b.parts = append(b.parts, part{unit: -1})
			continue
		}
		b.parts = append(b.parts, part{len(b.Units), firstDelay, events, b.number(p)})
		b.Units = append(b.Units, store.Unit{Delays: b.delays[firstDelay:]})
	}
	for i, sp := range spans {
		b.appends[i].Record = eventhub.Record(b.buf[sp.start:sp.end:sp.end])
	}
	b.place()
	b.Bytes, b.Records = len(b.buf), b.buf
}

// span is where the record of an append is in buf.
type span struct{ start, end int }

// encodeOne encodes the events of a publication, and adds where their records are to spans. Of an
// error some of them stay in the buffers.
func (b *Batch) encodeOne(p *eventhub.Publication, spans []span, now time.Time, rules Rules, waits Waits) ([]span, error) {
	if len(p.WaitFor) > 0 {
		if err := waits.Check(p, now); err != nil {
			return spans, err
		}
	}
	for j := range p.Events {
		start := len(b.buf)
		due := p.Events[j].Due(now)
		isDelayed := due > now.UnixMilli() || p.DelaysPast() && due != 0
		if err := b.add(&p.Events[j], now, rules, isDelayed); err != nil {
			return spans, eventhub.AtIndex(err, "", j) // transports know what their list is called
		}
		if isDelayed {
			b.delayLast(j, start, due, p.Events[j].ID == "")
			continue
		}
		spans = append(spans, span{start, len(b.buf)})
	}
	return spans, nil
}

// number gives a unit the number of its publication. It returns the index in sequences, or -1.
func (b *Batch) number(p *eventhub.Publication) int {
	if p.Producer == nil {
		return -1
	}
	q := store.Sequence{Producer: p.Producer.Name, Epoch: p.Producer.Epoch, Number: p.Seq}
	if p.Err != nil {
		q.Refusal = encodeRefusal(p.Err)
	}
	b.sequences = append(b.sequences, q)
	return len(b.sequences) - 1
}

// delayLast makes the event encoded last, that of the given index in its publication, a
// delayed one. isFresh says that its id is new.
func (b *Batch) delayLast(index, start int, at int64, isFresh bool) {
	last := len(b.appends) - 1
	a := &b.appends[last]
	b.delays = append(b.delays, store.Delay{Topic: a.Topic, ID: a.ID, FreshID: isFresh, Key: a.Key, At: at})
	b.delayed = append(b.delayed, delayedEvent{index, start, len(b.buf)})
	b.appends[last] = store.Append{}
	b.appends = b.appends[:last]
}

// place gives the units their events, now that buf, appends and delays stay where they are.
// Until then a unit has as many delays as it will have.
func (b *Batch) place() {
	for i, d := range b.delayed {
		b.delays[i].Record = eventhub.Record(b.buf[d.start:d.end:d.end])
	}
	at := 0
	for _, p := range b.parts {
		if p.unit < 0 {
			continue
		}
		u := &b.Units[p.unit]
		delays := len(u.Delays)
		appends := p.events - delays
		u.Appends = b.appends[at : at+appends : at+appends]
		u.Delays = b.delays[p.delay : p.delay+delays : p.delay+delays]
		at += appends
		if p.sequence >= 0 {
			u.Sequence = &b.sequences[p.sequence]
		}
	}
}

// Receipts returns the receipts of a unit that was committed, in the order of the events of
// its publication, in the room of into.
func Receipts(into []eventhub.Receipt, u *store.Unit, delayed Delayed) []eventhub.Receipt {
	into = slices.Grow(into[:0], len(u.Appends)+len(delayed))
	for i := range u.Appends {
		a := &u.Appends[i]
		into = append(into, eventhub.Receipt{ID: a.ID, Offset: a.Offset, Duplicate: a.Duplicate})
	}
	if len(delayed) == 0 {
		return into
	}
	return delayedReceipts(into, u.Delays, delayed)
}

// delayedReceipts adds the receipts of delayed events to those of the appends of the same
// publication, in the order of its events. delayed is parallel to delays, and receipts have
// room for all.
func delayedReceipts(receipts []eventhub.Receipt, delays []store.Delay, delayed Delayed) []eventhub.Receipt {
	appended := len(receipts)
	receipts = receipts[:appended+len(delays)] // there is room
	// From the end, so that none is overwritten before it has moved.
	for at, p := len(receipts)-1, len(delays)-1; p >= 0; at-- {
		if delayed[p].index != at {
			appended--
			receipts[at] = receipts[appended]
			continue
		}
		d := &delays[p]
		receipts[at] = eventhub.Receipt{ID: d.ID, DeliverAt: time.UnixMilli(d.At), Duplicate: d.Duplicate}
		if d.Duplicate && d.Seq == 0 {
			receipts[at].DeliverAt, receipts[at].Offset = time.Time{}, d.Offset
		}
		p--
	}
	return receipts
}

// RefusedError translates why the store refused the unit of a publication, whose delayed events
// are given.
func RefusedError(u *store.Unit, delayed Delayed) error {
	if u.Sequence != nil {
		if err := sequenceError(u); err != nil {
			return err
		}
	}
	var c *store.ConflictError
	if !errors.As(u.Err, &c) {
		return UnitError(u.Err)
	}
	a := &u.Appends[c.Append]
	what := fmt.Sprintf("the last offset of topic %q", a.Topic)
	if c.Expect.Kind == eventhub.ExpectKeyOffset {
		what = fmt.Sprintf("the newest offset of the event's key in topic %q", a.Topic)
	}
	conflict := eventhub.Wrap(eventhub.CodeConflict, u.Err, "%s is %d; %d was expected", what, c.Present, c.Expect.Offset)
	conflict.Present = &c.Present
	return eventhub.AtIndex(conflict, "", delayed.place(c.Append)) // transports know what their list is called
}

// place returns the index of an append's event in its publication.
func (delayed Delayed) place(of int) int {
	for _, d := range delayed { // they are in order
		if d.index <= of {
			of++
		}
	}
	return of
}

// UnitError translates why the store refused one unit.
func UnitError(err error) error {
	if errors.Is(err, store.ErrTopicLimit) {
		return eventhub.Wrap(eventhub.CodeOverloaded, err, "the hub holds as many topics as it may; no topic was created")
	}
	return eventhub.Wrap(eventhub.CodePublishFailed, err, "the store refused the events: %v", err)
}
