package client

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"eventhub"
)

// said is a Receiver that takes so many of each batch, and notes what says Sought.
type said struct {
	room int
	all  []string
}

func (s *said) Deliver(batch []eventhub.Delivery) int {
	n := min(s.room, len(batch))
	for _, d := range batch[:n] {
		s.all = append(s.all, fmt.Sprint(d.Topic, d.Offset, d.Sought))
	}
	return n
}

func (s *said) Ended(error) {}

// TestEpochsOverConnections: a delivery with another epoch than its topic had before says
// Sought, over whichever connection that was; one that is lost before the receiver has it
// leaves that to the next.
func TestEpochsOverConnections(t *testing.T) {
	r := &said{room: 9}
	s := &subscription{receiver: r}
	deliver := func(topic string, offset, epoch uint64) {
		s.deliver([]eventhub.Delivery{{Topic: topic, Offset: offset, Epoch: epoch, Record: eventhub.Record("{}")}})
	}
	deliver("t", 1, 7)
	deliver("t", 2, 0)
	s.lost()
	deliver("t", 3, 7)
	deliver("u", 1, 9)
	s.lost()
	deliver("t", 4, 8)
	deliver("t", 5, 0)
	deliver("u", 2, 9)
	s.lost()
	r.room = 0
	deliver("t", 6, 5) // made again
	s.lost()
	r.room = 9
	deliver("t", 7, 5)
	s.lost()
	deliver("t", 8, 5)
	want := []string{"t1 false", "t2 false", "t3 false", "u1 false", "t4 true", "t5 false", "u2 false", "t7 true", "t8 false"}
	if !slices.Equal(r.all, want) {
		t.Errorf("%v\nwant %v", r.all, want)
	}
}

// TestEpochsAreBounded: a subscription remembers some topics, and the newest is one of them.
func TestEpochsAreBounded(t *testing.T) {
	var e epochs
	for i := range maxEpochs + 2 {
		e.note(&eventhub.Delivery{Topic: fmt.Sprint("t", i), Epoch: 7})
	}
	d := eventhub.Delivery{Topic: fmt.Sprint("t", maxEpochs+1), Epoch: 8}
	if e.note(&d); len(e) != maxEpochs || !d.Sought {
		t.Errorf("%d topics are kept; the newest was sought: %v", len(e), d.Sought)
	}
}

// TestSoughtThatIsNotBegun: a delivery that says Sought and waits for a handler until its
// connection is lost, or its lease runs out, leaves it to the next one of its topic.
func TestSoughtThatIsNotBegun(t *testing.T) {
	k := &keeper{Receiver: taker(9), held: make(map[spot]hold)}
	says := func(what string, batch []eventhub.Delivery, want ...bool) {
		t.Helper()
		fresh, _ := k.note(batch, time.Now())
		var got []bool
		for i := range fresh {
			got = append(got, fresh[i].Sought)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v; want %v", what, got, want)
		}
	}
	first, leased, after := dealt(1, 2), dealt(2, 1), dealt(3, 2)
	first[0].Sought = true
	says("as the hub says it", first, true, false)
	says("another lease", leased, true)
	k.Forget()
	elsewhere := dealt(3, 1)
	elsewhere[0].Topic = "u"
	elsewhere[0].Lease.Runtime = 9
	says("another topic", elsewhere, false)
	says("another connection", after, true, false)
	k.begin(&after[0])
	k.Forget()
	says("a handler has seen it", dealt(4, 2)[1:], false)
}
