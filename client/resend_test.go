package client

import (
	"io"
	"log/slog"
	"net"
	"testing"

	"eventhub"
	"eventhub/wire"
)

// TestWhatWasSentBefore: a request counts as sent again only if an earlier
// connection may have taken it.
func TestWhatWasSentBefore(t *testing.T) {
	c := &Client{cfg: config{logger: slog.New(slog.DiscardHandler)}, pending: make(map[uint64]slot), subs: make(map[subKey]*subscription)}
	c.changed.L = &c.mu
	e := newExchange(ackPublish)
	e.number(c, 1)
	e.add(wire.AppendCancel(e.frames, e.next(), "t", "x"), 0)
	if err := c.submit(e); err != nil {
		t.Fatal(err)
	}
	lost := eventhub.Errorf(eventhub.CodeLeaseLost, "gone")
	for attempt, want := range []bool{false, true, true} {
		near, far := net.Pipe()
		n := &conn{net: near, gone: make(chan struct{})}
		n.wake.L = &c.mu
		drained := make(chan struct{})
		go func() {
			_, _ = io.Copy(io.Discard, far)
			close(drained)
		}()
		c.attach(n)
		if got := e.doubt(lost) != error(lost); got != want {
			t.Errorf("over connection %d: doubt %v; want %v", attempt+1, got, want)
		}
		c.detach(n)
		<-drained
		far.Close()
	}
}

// TestAcksOfALostConnection are forgotten, and do not keep those of the next back.
func TestAcksOfALostConnection(t *testing.T) {
	c := &Client{}
	c.changed.L = &c.mu
	k := &keeper{c: c, opts: eventhub.GroupOptions{Topic: "t", Group: "g"}}
	for attempt := range 2 {
		near, far := net.Pipe()
		defer far.Close()
		n := &conn{net: near, gone: make(chan struct{})}
		n.wake.L = &c.mu
		c.conn = n
		c.ack(k, eventhub.Ref{Lease: eventhub.Lease{Runtime: 1, Offset: uint64(attempt), Serial: 1}})
		if attempt == 1 {
			n.appendAcks()
			if one := len(wire.AppendSettle(nil, 0, "t", "g", &eventhub.Settlement{}, eventhub.Ref{Lease: eventhub.Lease{Runtime: 1, Serial: 1}})); len(n.out.b) < one || len(n.out.b) >= 2*one {
				t.Errorf("%d bytes are to be sent; one ack has %d", len(n.out.b), one)
			}
		}
		c.detach(n)
	}
}

// TestMembersComeBackPaused: the PAUSE of a subscription is next to its SUBSCRIBE, so that
// nothing is delivered in between.
func TestMembersComeBackPaused(t *testing.T) {
	c := &Client{pending: make(map[uint64]slot), subs: make(map[subKey]*subscription)}
	for _, topic := range []string{"a", "b", "c", "d", "e"} {
		s := &subscription{c: c, joined: true, paused: true}
		s.opts.Topic, s.opts.Group = topic, "g"
		c.subs[subKey{topic, "g"}] = s
	}
	c.resubscribe()
	order := c.inOrder()
	if len(order) != 2*len(c.subs) {
		t.Fatalf("%d frames for %d subscriptions", len(order), len(c.subs))
	}
	for i := 0; i < len(order); i += 2 {
		first, second := c.pending[order[i]], c.pending[order[i+1]]
		if first.of != second.of || first.at != 0 || second.at != 1 {
			t.Errorf("frames %d and %d are %d of %s and %d of %s", i, i+1, first.at, first.of.sub.opts.Topic, second.at, second.of.sub.opts.Topic)
		}
	}
}
