package rest

import (
	"net/http"
	"strings"

	"eventhub"
)

// A stream that begins with the state of its topic (from=snapshot) has more kinds of
// messages. "snapshot" comes before the first event of a state; where it comes again, so does the
// state. "state" says that the state is complete, and "horizon" that what is at lower offsets was
// removed; "ended" says why a stream is over that would end again. The id of its events is that of any stream of one topic behind what the tail wants to
// have back (StatePart.Snapshot) and a comma:
//
//	s-3w5e1-b4-0-sy,stock:17:lzll2dc0
//
// Before the first event there is no id: who is cut off then begins again.

// placesEnd is between what the tail wants to have back and the place.
const placesEnd = ","

// lastOfState reads where a client of a stream with the state was, and says it in the options.
func lastOfState(r *http.Request, opts *eventhub.TailOptions) (*places, error) {
	p := &places{one: true}
	text := r.Header.Get("Last-Event-ID")
	if text == "" {
		return p, nil
	}
	bad := func(what string) (*places, error) {
		return nil, eventhub.Errorf(eventhub.CodeBadRequest, "Last-Event-ID %.48q %s", text, what)
	}
	if len(text) > maxPlaceBytes {
		return bad("is too long")
	}
	snapshot, rest, ok := strings.Cut(text, placesEnd)
	place, isPlace := parsePlace(rest)
	switch {
	case !ok || !isPlace:
		return bad("is none of a stream that began with the state")
	case place.Topic != opts.Topic:
		return bad("is of another topic")
	}
	p.advance(place.Topic, place.Offset, place.TS)
	opts.Snapshot, opts.Places = snapshot, p.list()
	return p, opts.Validate()
}

// tellState writes what a delivery says of the state, and reports whether there is no event.
// s.mu is held.
func (s *stream) tellState(d *eventhub.Delivery) bool {
	p := d.State
	if p.Snapshot != "" {
		s.snapshot = p.Snapshot
	}
	if p.Snapshot != "" && !p.Complete || p.Complete && p.Count == 0 {
		s.say("snapshot", struct {
			Topic string `json:"topic"`
		}{d.Topic})
	}
	switch {
	case p.Complete:
		s.at.advance(d.Topic, p.Offset, 0)
		s.appendID()
		s.say("state", struct {
			Topic  string `json:"topic"`
			Offset uint64 `json:"offset"`
			Count  int    `json:"count"`
		}{d.Topic, p.Offset, p.Count})
	case p.Horizon != 0:
		s.say("horizon", struct {
			Topic   string `json:"topic"`
			Horizon uint64 `json:"horizon"`
		}{d.Topic, p.Horizon})
	}
	return p.IsMark()
}
