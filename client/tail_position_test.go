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

// TestTailPositionBegins: where topics begin of which nothing came, for each way to begin.
func TestTailPositionBegins(t *testing.T) {
	now := time.UnixMilli(1723140000000)
	at := func(ms int64) eventhub.Start { return eventhub.Start{Kind: eventhub.StartTime, TS: ms} }
	for name, tt := range map[string]struct {
		start  eventhub.Start
		events []string
		want   eventhub.Start
	}{
		"nothing came":              {want: eventhub.Start{}},
		"from the latest":           {events: []string{"a 1 600", "b 1 700"}, want: at(now.UnixMilli() - 601_000)},
		"from the latest, long ago": {events: []string{"a 1 1723140000"}, want: at(0)},
		"from the first":            {start: eventhub.Earliest, events: []string{"a 1 600"}, want: eventhub.Earliest},
		"from a time":               {start: at(7), events: []string{"a 1 600"}, want: at(7)},
	} {
		tr := newTailPosition(tt.start)
		tr.advance(came(now, tt.events...))
		if got, _, places := tr.resume(); got != tt.want || len(places) != len(tt.events) {
			t.Errorf("%s: goes on at %+v with %d places; want %+v", name, got, len(places), tt.want)
		}
	}
}

// TestTailPositionIsBounded: by the number of topics, and by what they take in a frame.
func TestTailPositionIsBounded(t *testing.T) {
	for _, width := range []int{10, 200} {
		tr := newTailPosition(eventhub.Start{})
		for i := range 2 * eventhub.MaxPlaces {
			tr.advance(came(time.UnixMilli(1723140000000), fmt.Sprintf("%0*d 1 0", width, i)))
		}
		bytes := 0
		_, _, places := tr.resume()
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
