package client

import (
	"slices"
	"strings"
	"time"

	"eventhub"
)

const (
	// trailMargin is how far the topics of a tail may be apart, and how far ahead of
	// the hub's clock this machine's may be.
	trailMargin = 30 * time.Second
	// maxTrail bounds the topics whose places are known.
	maxTrail = 1 << 16
)

// trail is how far a tail over several topics has come. A SUBSCRIBE names one
// place for all of them, and events of different topics come in no order, so it
// goes on at a time before which all has come for certain, and takes out what
// comes again: in one topic events come in the order of their offsets.
//
// While the topics are near each other, that time is trailMargin before the
// newest event. While some are behind, which shows in events that are older than
// that when they come, it is where the tail began. So no event comes twice, and
// none is left out but one that a hub had held back for longer than trailMargin
// without any other sign.
//
// Of a conflated tail, whose events come in no order at all, nothing is taken out.
type trail struct {
	ordered bool
	origin  eventhub.Start // where the tail began, a time as soon as there is one
	newest  int64          // commit time of the newest event, epoch ms; 0: none came
	late    time.Time      // when an event of the past came last
	places  map[string]place
}

// place is how far one topic is.
type place struct {
	offset uint64
	at     int64 // commit time, epoch ms
}

func newTrail(start eventhub.Start, ordered bool, now time.Time) *trail {
	t := &trail{ordered: ordered, origin: start, places: make(map[string]place)}
	if start.Kind != eventhub.StartLatest {
		t.late = now
	}
	return t
}

// fresh notes a batch and takes out what came before.
func (t *trail) fresh(batch []eventhub.Delivery, now time.Time) []eventhub.Delivery {
	return slices.DeleteFunc(batch, func(d eventhub.Delivery) bool {
		at := d.Record.CommitTime()
		if t.newest == 0 && t.origin.Kind == eventhub.StartLatest {
			t.origin = eventhub.Start{Kind: eventhub.StartTime, TS: at}
		}
		t.newest = max(t.newest, at)
		if now.UnixMilli()-at > trailMargin.Milliseconds() {
			t.late = now
		}
		if !t.ordered {
			return false
		}
		seen, ok := t.places[d.Topic]
		if ok && d.Offset <= seen.offset {
			return true
		}
		if !ok {
			t.makeRoom()
		}
		t.places[strings.Clone(d.Topic)] = place{d.Offset, at}
		return false
	})
}

// makeRoom forgets topics that a tail that goes on near the newest event does not
// come back to, or any one where there are none.
func (t *trail) makeRoom() {
	if len(t.places) < maxTrail {
		return
	}
	for topic, p := range t.places {
		if p.at < t.newest-trailMargin.Milliseconds() {
			delete(t.places, topic)
		}
	}
	for topic := range t.places {
		if len(t.places) < maxTrail {
			break
		}
		delete(t.places, topic)
	}
}

// resume says where the next SUBSCRIBE begins.
func (t *trail) resume(now time.Time) eventhub.Start {
	if t.newest == 0 || now.Sub(t.late) <= trailMargin {
		return t.origin
	}
	at := max(t.newest-trailMargin.Milliseconds(), 0)
	if t.origin.Kind == eventhub.StartTime {
		at = max(at, t.origin.TS)
	}
	return eventhub.Start{Kind: eventhub.StartTime, TS: at}
}

// restart is for a hub that does not have the place any more: what is published
// from now on comes.
func (t *trail) restart() {
	t.origin, t.newest, t.late = eventhub.Start{}, 0, time.Time{}
}
