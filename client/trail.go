package client

import (
	"strings"
	"time"

	"eventhub"
)

const (
	// trailMargin is how far apart the events of different topics may come that were
	// committed together.
	trailMargin = time.Second
	// maxTrailBytes bounds the places as a SUBSCRIBE has them. A frame of the hub holds
	// more.
	maxTrailBytes = 1 << 20
	// placeBytes is what a place takes there, beside its topic.
	placeBytes = 64
)

// trail is how far a tail has come: behind which event in each topic that it had. In
// all others it goes on where it began, or, of one that began at
// the latest event, shortly before the first event that came.
//
// Of more topics than there is room for some are forgotten; they come again from there.
type trail struct {
	origin eventhub.Start
	known  string // the topics that there were then, as the hub says it; all later ones begin at their first event
	places map[string]*place
	bytes  int // of the places in a SUBSCRIBE, at most
}

// place is how far one topic is.
type place struct {
	offset uint64
	at     int64 // commit time, epoch ms
}

func newTrail(start eventhub.Start) *trail {
	return &trail{origin: start, places: make(map[string]*place)}
}

// advance notes a batch.
func (t *trail) advance(batch []eventhub.Delivery) {
	for i := range batch {
		d := &batch[i]
		if t.origin.Kind == eventhub.StartLatest {
			t.origin = eventhub.Start{Kind: eventhub.StartTime, TS: max(d.Record.CommitTime()-trailMargin.Milliseconds(), 0)}
		}
		if i+1 < len(batch) && batch[i+1].Topic == d.Topic {
			continue // that one says it
		}
		p := t.places[d.Topic]
		if p == nil {
			p = t.add(strings.Clone(d.Topic))
		}
		p.offset, p.at = d.Offset, d.Record.CommitTime()
	}
}

func (t *trail) add(topic string) *place {
	p := &place{}
	t.bytes += placeBytes + len(topic)
	for other := range t.places {
		if t.bytes <= maxTrailBytes && len(t.places) < eventhub.MaxPlaces {
			break
		}
		t.bytes -= placeBytes + len(other)
		delete(t.places, other)
	}
	t.places[topic] = p
	return p
}

// resume says where the next SUBSCRIBE begins.
func (t *trail) resume() (start eventhub.Start, known string, places []eventhub.Place) {
	places = make([]eventhub.Place, 0, len(t.places))
	for topic, p := range t.places {
		places = append(places, eventhub.Place{Topic: topic, Offset: p.offset, TS: p.at})
	}
	return t.origin, t.known, places
}
