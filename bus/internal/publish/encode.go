package publish

import (
	"bytes"
	"slices"
	"time"

	"eventhub"
	"eventhub/bus/internal/commit"
	"eventhub/internal/eventid"
	"eventhub/internal/record"
	"eventhub/internal/record/layout"
	"eventhub/store"
)

// encoder encodes events, one after the other, into one buffer. The appends have no records
// until all are encoded.
type encoder struct {
	appends []store.Append
	buf     []byte // the records
}

// add validates one event of a client and encodes it at the end of buf. One that is delayed
// gets its id now, if it has none.
func (s *encoder) add(e *eventhub.Event, now time.Time, rules Rules, isDelayed bool) error {
	if err := e.Validate(now); err != nil {
		return err
	}
	if eventhub.HubOnlyTopic(e.Topic) {
		return eventhub.Errorf(eventhub.CodeForbidden, "topic %q is published by the hub alone", e.Topic)
	}
	if err := obey(rules, e); err != nil {
		return err
	}
	if isDelayed && e.ID == "" {
		withID := *e
		withID.ID = eventid.New()
		e = &withID
	}
	return s.encode(e, false)
}

// encode encodes an event of a client or, where made says so, of the hub itself. It leaves
// it to the store to make an id for an event without one. It calls the encoders by name:
// through a function value the event would escape, an allocation for each.
func (s *encoder) encode(e *eventhub.Event, made bool) error {
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
	s.appends = append(s.appends, store.Append{Topic: e.Topic, ID: e.ID, NewID: e.ID == "", Key: e.Key, Expect: e.Expect})
	s.linkLast(e)
	return nil
}

// linkLast gives the event encoded last its links.
func (s *encoder) linkLast(e *eventhub.Event) {
	a := &s.appends[len(s.appends)-1]
	a.CausedBy = slices.Clone(e.CausedBy)
	if len(e.Headers) > 0 {
		a.Correlation = eventhub.Correlation(e.Headers)
	}
}

// mayLink reports whether a record may have links. It is cheap, and right for most records
// without links.
func mayLink(r eventhub.Record) bool {
	return bytes.Contains(r, []byte(`"caused_by":`)) || bytes.Contains(r, []byte(`"headers":`))
}

// Link gives an event its links that is known by its record alone.
func Link(a *store.Append) {
	if !mayLink(a.Record) {
		return
	}
	// The record is the hub's own; one that can not be read has no links.
	if e, err := a.Record.Event(0); err == nil {
		a.CausedBy, a.Correlation = e.CausedBy, eventhub.Correlation(e.Headers)
	}
}

// Events are the events of one unit, which are added one by one.
type Events struct {
	encoder
	ends []int // of each record in buf
}

// Add adds an event of a client, as it would be published now.
func (s *Events) Add(e *eventhub.Event, now time.Time, rules Rules) error {
	return s.end(s.add(e, now, rules, false))
}

// AddMade adds an event that the hub made.
func (s *Events) AddMade(e *eventhub.Event) error { return s.end(s.encode(e, true)) }

func (s *Events) end(err error) error {
	if err == nil {
		s.ends = append(s.ends, len(s.buf))
	}
	return err
}

// Fill makes one unit of all events, the only one of a job. Nothing is added afterwards.
func (s *Events) Fill(r *commit.Request) {
	r.Units = []store.Unit{s.Unit()}
	r.Bytes, r.Records = len(s.buf), s.buf
}

// Bytes returns the size of the records together.
func (s *Events) Bytes() int { return len(s.buf) }

// Unit returns the unit of all events. Nothing is added afterwards.
func (s *Events) Unit() store.Unit {
	start := 0
	for i, end := range s.ends {
		s.appends[i].Record = eventhub.Record(s.buf[start:end:end])
		start = end
	}
	return store.Unit{Appends: s.appends}
}
