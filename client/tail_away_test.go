package client_test

import (
	"fmt"
	"net"
	"testing"

	"eventhub"
	"eventhub/hub"
)

// old returns an event of an import, from long before any tail.
func old(topic string, offset uint64) eventhub.Event {
	e := event(topic, `1`)
	e.ID, e.Offset, e.TS = fmt.Sprint("old-", offset), offset, 1_000_000_000_000+int64(offset)
	return e
}

// TestTailHasTopicsThatCameWhileItWasAway from their first event on, whatever their
// times; of the topics that were there before it has nothing that lies before it.
func TestTailHasTopicsThatCameWhileItWasAway(t *testing.T) {
	for _, tt := range []struct {
		name  string
		start eventhub.Start
		seen  bool // something came before the connection was lost
		times uint64
	}{
		{"from a time on", eventhub.Start{Kind: eventhub.StartTime, TS: 1_500_000_000_000}, true, 3},
		{"from now on", eventhub.Start{}, true, 3},
		{"from now on, with nothing seen", eventhub.Start{}, false, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := startHub(t, hub.Config{})
			nowhere, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			nowhere.Close()
			imports := func(events ...eventhub.Event) {
				if _, err := h.Bus().Import(bounded(t), events...); err != nil {
					t.Fatal(err)
				}
			}
			publish := func(topic string) {
				if _, err := h.Bus().Publish(bounded(t), event(topic, `1`)); err != nil {
					t.Fatal(err)
				}
			}
			imports(old("t.before", 1), old("t.before", 2))
			p := startProxy(t, h.WSAddr())
			r := newCollector(1 << 20)
			if _, err := dial(t, p.addr()).Tail(bounded(t), eventhub.TailOptions{Topic: "t.*", Start: tt.start}, r); err != nil {
				t.Fatal(err)
			}
			if tt.seen {
				publish("t.a")
				wantOffsets(t, r, 1, 1)
			}
			for round := range tt.times { // what is known goes on over each of them
				topic := fmt.Sprint("t.away-", round)
				p.aim(nowhere.Addr().String())
				p.cut(1, nil)
				imports(old(topic, 10*round+11), old(topic, 10*round+12))
				p.aim(h.WSAddr())
				wantOffsets(t, r, 10*round+11, 10*round+12)
			}
			publish("t.before") // nothing of it came that is old
			wantOffsets(t, r, 3, 3)
		})
	}
}

// TestTailFromNowOnContinuesThere: a tail that began at the latest event has what was
// published while it was away, and nothing from before it, whatever the time of the first
// event that came.
func TestTailFromNowOnContinuesThere(t *testing.T) {
	for name, imported := range map[string]bool{"with nothing seen": false, "after an import": true} {
		t.Run(name, func(t *testing.T) {
			h := startHub(t, hub.Config{})
			nowhere, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			nowhere.Close()
			imports := func(events ...eventhub.Event) {
				if _, err := h.Bus().Import(bounded(t), events...); err != nil {
					t.Fatal(err)
				}
			}
			imports(old("t.before", 1), old("t.before", 2), old("t.other", 1))
			p := startProxy(t, h.WSAddr())
			r := newCollector(1 << 20)
			if _, err := dial(t, p.addr()).Tail(bounded(t), eventhub.TailOptions{Topic: "t.*"}, r); err != nil {
				t.Fatal(err)
			}
			if imported {
				imports(old("t.other", 10))
				wantOffsets(t, r, 10, 10)
			}
			for round := range uint64(2) {
				p.aim(nowhere.Addr().String())
				p.cut(1, nil)
				if _, err := h.Bus().Publish(bounded(t), event("t.before", `1`)); err != nil {
					t.Fatal(err)
				}
				p.aim(h.WSAddr())
				wantOffsets(t, r, 3+round, 3+round)
			}
		})
	}
}
