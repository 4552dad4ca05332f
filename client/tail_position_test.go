package client

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"eventhub"
)

// came makes deliveries of "topic offset age" each; the age is in seconds before
// now.
func came(now time.Time, texts ...string) []eventhub.Delivery {
	var batch []eventhub.Delivery
	for _, text := range texts {
		var d eventhub.Delivery
		var age int64
		if _, err := fmt.Sscan(text, &d.Topic, &d.Offset, &age); err != nil {
			panic(err)
		}
		d.Record = fmt.Appendf(nil, `{"ts":%13d,"id":"x","topic":%q,"payload":1}`, now.UnixMilli()-1000*age, d.Topic)
		batch = append(batch, d)
	}
	return batch
}

// TestTailPositionBegins: topics from which nothing came begin where the tail began,
// whatever came of others.
func TestTailPositionBegins(t *testing.T) {
	now := time.UnixMilli(1723140000000)
	for name, start := range map[string]eventhub.Start{
		"from the latest": eventhub.Latest,
		"from the first":  eventhub.Earliest,
		"from a time":     eventhub.At(now),
	} {
		for _, events := range [][]string{nil, {"a 1 600", "b 1 1723140000"}} {
			position := newTailPosition(start, nil)
			position.known = "known"
			position.advance(came(now, events...))
			if got, known, _, places := position.resume(); got != start || known != "known" || len(places) != len(events) {
				t.Errorf("%s: goes on at %+v, %s, with %d places of %d", name, got, known, len(places), len(events))
			}
		}
	}
}

// TestTailPositionIsBounded: by the number of topics, and by what they take in a frame.
func TestTailPositionIsBounded(t *testing.T) {
	for _, width := range []int{10, 200} {
		tr := newTailPosition(eventhub.Start{}, nil)
		for i := range 2 * eventhub.MaxPlaces {
			tr.advance(came(time.UnixMilli(1723140000000), fmt.Sprintf("%0*d 1 0", width, i)))
		}
		bytes := 0
		_, _, _, places := tr.resume()
		for _, p := range places {
			bytes += placeBytes + len(p.Topic)
		}
		if len(places) > eventhub.MaxPlaces || bytes > maxPositionBytes || bytes != tr.bytes || bytes < maxPositionBytes/2 {
			t.Errorf("%d places take %d bytes; %d are counted", len(places), bytes, tr.bytes)
		}
		if last := fmt.Sprintf("%0*d", width, 2*eventhub.MaxPlaces-1); tr.places[last] == nil {
			t.Errorf("the place of the newest topic is forgotten: %s", strings.TrimLeft(last, "0"))
		}
	}
}

// TestTailPositionOfAState: a tail goes on with what the hub said last of the state, after the last
// event that came, and after the state where none has come since.
func TestTailPositionOfAState(t *testing.T) {
	position := newTailPosition(eventhub.Snapshot, nil)
	part := func(offset uint64, s eventhub.StatePart) eventhub.Delivery {
		d := eventhub.Delivery{Topic: "a", State: &s}
		if !s.IsMark() {
			d.Offset, d.Record = offset, eventhub.Record(`{"ts":1723140000000,"id":"e","topic":"a","payload":1}`)
		}
		return d
	}
	for _, step := range []struct {
		batch    []eventhub.Delivery
		snapshot string
		place    eventhub.Place
	}{
		{[]eventhub.Delivery{part(3, eventhub.StatePart{Snapshot: "s-1"}), part(5, eventhub.StatePart{})}, "s-1", eventhub.Place{Topic: "a", Offset: 5, TS: 1723140000000}},
		{[]eventhub.Delivery{part(7, eventhub.StatePart{}), part(0, eventhub.StatePart{Horizon: 9})}, "s-1", eventhub.Place{Topic: "a", Offset: 7, TS: 1723140000000}},
		{[]eventhub.Delivery{part(8, eventhub.StatePart{}), part(0, eventhub.StatePart{Complete: true, Offset: 20, Snapshot: "c-1"})}, "c-1", eventhub.Place{Topic: "a", Offset: 20}},
		{append(came(time.UnixMilli(1723140000000), "a 21 1"), part(0, eventhub.StatePart{Horizon: 10})), "c-1", eventhub.Place{Topic: "a", Offset: 21, TS: 1723140000001}},
	} {
		position.advance(step.batch)
		start, _, snapshot, places := position.resume()
		if start != eventhub.Snapshot || snapshot != step.snapshot || len(places) != 1 || places[0].Offset != step.place.Offset || places[0].TS == 0 != (step.place.TS == 0) {
			t.Errorf("goes on at %v with %q and %+v; want %q and %+v", start, snapshot, places, step.snapshot, step.place)
		}
	}
}
