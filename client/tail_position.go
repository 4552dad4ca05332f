package client

import (
	"strings"

	"eventhub"
)

const (
	// maxPositionBytes bounds the places as a SUBSCRIBE has them. A frame of the hub holds
	// more.
	maxPositionBytes = 1 << 20
	// placeBytes is the size of a place there, without its topic.
	placeBytes = 64
)

// tailPosition is how far a tail is: after which event in each topic that it had. In all
// other topics it continues where it began. If that was the latest event, what the hub
// calls known has the time.
//
// If there are more topics than there is room for, some are deleted; in these the tail
// continues as in the other topics, and some events come again.
type tailPosition struct {
	origin eventhub.Start
	known  string // the topics that existed then, and the time, as the hub names them; later ones begin at their first event
	// snapshot, of a tail with the state, is what the hub said last of how much of that came.
	snapshot string
	places   map[string]*place
	bytes    int // of the places in a SUBSCRIBE, at most
}

// place is how far one topic is.
type place struct {
	offset uint64
	at     int64 // commit time, epoch ms
}

// newTailPosition is where a tail begins: at start, but after the places in topics that its
// program had before.
func newTailPosition(start eventhub.Start, places []eventhub.Place) *tailPosition {
	t := &tailPosition{origin: start, places: make(map[string]*place)}
	for _, at := range places {
		p := t.of(at.Topic)
		p.offset, p.at = at.Offset, at.TS
	}
	return t
}

// advance notes a batch.
func (t *tailPosition) advance(batch []eventhub.Delivery) {
	for i := range batch {
		d := &batch[i]
		if d.State != nil && !t.advanceState(d.State, d.Topic) {
			continue
		}
		if i+1 < len(batch) && batch[i+1].State != nil {
			t.note(d)
			continue
		}
		if i+1 < len(batch) && batch[i+1].Topic == d.Topic {
			continue // that one says it
		}
		t.note(d)
	}
}

// note notes an event.
func (t *tailPosition) note(d *eventhub.Delivery) {
	p := t.of(d.Topic)
	p.offset, p.at = d.Offset, d.Record.CommitTime()
}

// advanceState notes what a delivery says of the state, and reports whether it has an event.
func (t *tailPosition) advanceState(s *eventhub.StatePart, topic string) bool {
	if s.Snapshot != "" {
		t.snapshot = s.Snapshot
	}
	if s.Complete { // all up to there came
		p := t.of(topic)
		p.offset, p.at = s.Offset, 0
	}
	return !s.IsMark()
}

// of returns the place in a topic.
func (t *tailPosition) of(topic string) *place {
	if p := t.places[topic]; p != nil {
		return p
	}
	return t.add(strings.Clone(topic))
}

func (t *tailPosition) add(topic string) *place {
	p := &place{}
	t.bytes += placeBytes + len(topic)
	for other := range t.places {
		if t.bytes <= maxPositionBytes && len(t.places) < eventhub.MaxPlaces {
			break
		}
		t.bytes -= placeBytes + len(other)
		delete(t.places, other)
	}
	t.places[topic] = p
	return p
}

// resume says where the next SUBSCRIBE begins.
func (t *tailPosition) resume() (start eventhub.Start, known, snapshot string, places []eventhub.Place) {
	places = make([]eventhub.Place, 0, len(t.places))
	for topic, p := range t.places {
		places = append(places, eventhub.Place{Topic: topic, Offset: p.offset, TS: p.at})
	}
	return t.origin, t.known, t.snapshot, places
}
