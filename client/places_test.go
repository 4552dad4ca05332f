package client_test

import (
	"slices"
	"testing"

	"eventhub"
	"eventhub/hub"
)

// TestPlacesOfAProgram: a tail goes on after the places that its program has kept, and begins
// at Start in other topics.
func TestPlacesOfAProgram(t *testing.T) {
	h := startHub(t, hub.Config{})
	c := dial(t, h.WSAddr())
	for _, topic := range []string{"t.a", "t.a", "t.b", "t.a"} {
		if _, err := c.Publish(bounded(t), event(topic, `1`)); err != nil {
			t.Fatal(err)
		}
	}
	var second eventhub.Event
	opts := tailFrom("t.*")
	var seen []uint64
	for d, err := range eventhub.Events(bounded(t), c, opts) {
		if err != nil {
			t.Fatal(err)
		}
		if d.Topic == "t.a" && d.Offset == 2 {
			if second, err = d.Event(); err != nil {
				t.Fatal(err)
			}
		}
		if seen = append(seen, d.Offset); len(seen) == 4 {
			break
		}
	}
	opts.Places = []eventhub.Place{{Topic: "t.a", Offset: 2, TS: second.CommitTime().UnixMilli()}}
	var on []string
	for d, err := range eventhub.Events(bounded(t), c, opts) {
		if err != nil {
			t.Fatal(err)
		}
		if on = append(on, d.Topic); d.Topic == "t.a" && d.Offset != 3 {
			t.Errorf("offset %d comes after the place", d.Offset)
		}
		if len(on) == 2 {
			break
		}
	}
	slices.Sort(on)
	if !slices.Equal(on, []string{"t.a", "t.b"}) {
		t.Errorf("events of %v come", on)
	}
	for _, bad := range []eventhub.TailOptions{{Topic: "t", Known: "1-2-3"}, {Topic: "t", Places: []eventhub.Place{{Topic: "t.*", Offset: 1}}}} {
		if _, err := c.Tail(bounded(t), bad, newCollector(1)); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
}
