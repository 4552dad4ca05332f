package client_test

import (
	"fmt"
	"testing"

	"eventhub"
	"eventhub/hub"
	"eventhub/wire"
)

// said notes what a scripted hub was asked, and says OK to all of it.
func said(into chan<- string) scripted {
	return func(r *wire.Request) ([]string, bool) {
		into <- saying(r)
		return []string{ok(r)}, true
	}
}

func saying(r *wire.Request) string {
	text := string(r.Op) + " " + r.Topic + "::" + r.Group
	if r.Op == wire.OpSubscribe && r.Subscribe.Ordering != "" {
		text += " by " + r.Subscribe.Ordering
	}
	return text
}

func wantSaid(t *testing.T, heard <-chan string, want ...string) {
	t.Helper()
	for _, w := range want {
		if got := await(t, w, heard); got != w {
			t.Errorf("the hub heard %q; want %q", got, w)
		}
	}
}

// TestPausedMember: the events that a paused member would have had go to the
// others, and RESUME gives it its part again.
func TestPausedMember(t *testing.T) {
	const events = 50
	h := startHub(t, hub.Config{})
	paused, other := newCollector(1<<20), newCollector(1<<20)
	c := dial(t, h.WSAddr())
	sub, err := c.Subscribe(bounded(t), earliest("t", "g"), paused)
	if err != nil {
		t.Fatal(err)
	}
	if err := sub.Pause(bounded(t)); err != nil {
		t.Fatal(err)
	}
	o := earliest("t", "g")
	o.MaxInFlight = events
	otherSub, err := dial(t, h.WSAddr()).Subscribe(bounded(t), o, other)
	if err != nil {
		t.Fatal(err)
	}
	for range events {
		if _, err := c.Publish(bounded(t), event("t", `1`)); err != nil {
			t.Fatal(err)
		}
	}
	for range events {
		await(t, "an event of the other member", other.came)
	}
	if err := otherSub.Pause(bounded(t)); err != nil {
		t.Fatal(err)
	}
	if err := sub.Resume(bounded(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Publish(bounded(t), event("t", `1`)); err != nil {
		t.Fatal(err)
	}
	if at := await(t, "an event after Resume", paused.came); at != events+1 {
		t.Errorf("the paused member got offset %d", at)
	}
}

// TestPauseOverLostConnections: a member that comes back is paused as it was, and
// asks for the ordering that it asked for.
func TestPauseOverLostConnections(t *testing.T) {
	heard := make(chan string, 99)
	h := startScripted(t, said(heard), said(heard), said(heard), said(heard))
	p := startProxy(t, h)
	c := dial(t, p.addr())
	opts := earliest("t", "g")
	opts.Ordering = eventhub.OrderingKey
	sub, err := c.Subscribe(bounded(t), opts, newCollector(9))
	if err != nil {
		t.Fatal(err)
	}
	const subscribe, pause, resume = "SUBSCRIBE t::g by key", "PAUSE t::g", "RESUME t::g"
	ask := func(do func(eventhub.Subscription) error) {
		t.Helper()
		if err := do(sub); err != nil {
			t.Fatal(err)
		}
	}
	ask(func(s eventhub.Subscription) error { return s.Pause(bounded(t)) })
	wantSaid(t, heard, subscribe, pause)
	p.cut(1, nil)
	wantSaid(t, heard, subscribe, pause)
	ask(func(s eventhub.Subscription) error { return s.Resume(bounded(t)) })
	wantSaid(t, heard, resume)
	p.cut(1, nil)
	wantSaid(t, heard, subscribe)

	p.aim("127.0.0.1:1") // nobody is there
	p.cut(1, nil)
	accepted := p.accepted()
	ask(func(s eventhub.Subscription) error { return s.Pause(bounded(t)) })
	p.aim(h)
	wantSaid(t, heard, subscribe, pause)
	if p.accepted() == accepted {
		t.Error("the connection was not lost")
	}
}

// TestHubsThatCanNotPause: the refusal is passed on, and not asked for again.
func TestHubsThatCanNotPause(t *testing.T) {
	heard := make(chan string, 99)
	addr := startScripted(t, func(r *wire.Request) ([]string, bool) {
		heard <- saying(r)
		if r.Op == wire.OpPause {
			return []string{refusal(r, eventhub.CodeUnsupportedOp)}, true
		}
		return []string{ok(r)}, true
	}, said(heard))
	p := startProxy(t, addr)
	sub, err := dial(t, p.addr()).Subscribe(bounded(t), earliest("t", "g"), newCollector(9))
	if err != nil {
		t.Fatal(err)
	}
	wantCode(t, sub.Pause(bounded(t)), eventhub.CodeUnsupportedOp)
	p.cut(1, nil)
	wantSaid(t, heard, "SUBSCRIBE t::g", "PAUSE t::g", "SUBSCRIBE t::g")
	if err := sub.Resume(bounded(t)); err != nil {
		t.Error(err)
	}
	wantSaid(t, heard, "RESUME t::g")
}

// TestPausedMemberThatIsNotTakenBack ends, whichever of the two frames the hub
// refuses.
func TestPausedMemberThatIsNotTakenBack(t *testing.T) {
	for _, refused := range []wire.Op{wire.OpSubscribe, wire.OpPause} {
		heard := make(chan string, 99)
		addr := startScripted(t, said(heard), func(r *wire.Request) ([]string, bool) {
			if r.Op == refused {
				return []string{refusal(r, eventhub.CodeForbidden)}, true
			}
			if r.Op == wire.OpPause {
				return []string{refusal(r, eventhub.CodeNotSubscribed)}, true
			}
			return []string{ok(r)}, true
		})
		p := startProxy(t, addr)
		r := newCollector(9)
		c := dial(t, p.addr())
		sub, err := c.Subscribe(bounded(t), earliest("t", "g"), r)
		if err != nil {
			t.Fatal(err)
		}
		if err := sub.Pause(bounded(t)); err != nil {
			t.Fatal(err)
		}
		p.cut(1, nil)
		wantCode(t, await(t, fmt.Sprintf("the end by a refused %s", refused), r.ended), eventhub.CodeForbidden)
		c.Close()
	}
}

// TestPausedMemberThatIsLostAgain: a hub that takes it back and loses it at once
// has not refused it.
func TestPausedMemberThatIsLostAgain(t *testing.T) {
	heard := make(chan string, 99)
	var subscribed string
	p := startProxy(t, startScripted(t, said(heard), func(r *wire.Request) ([]string, bool) {
		if r.Op == wire.OpSubscribe {
			subscribed = ok(r)
			return nil, true
		}
		return []string{subscribed, `{"op":"ERR","code":"internal","msg":"lost it","topic":"t","group":"g"}`, refusal(r, eventhub.CodeNotSubscribed)}, true
	}, said(heard)))
	sub, err := dial(t, p.addr()).Subscribe(bounded(t), earliest("t", "g"), newCollector(9))
	if err != nil {
		t.Fatal(err)
	}
	if err := sub.Pause(bounded(t)); err != nil {
		t.Fatal(err)
	}
	wantSaid(t, heard, "SUBSCRIBE t::g", "PAUSE t::g")
	p.cut(1, nil)
	wantSaid(t, heard, "SUBSCRIBE t::g", "PAUSE t::g")
	if err := sub.Resume(bounded(t)); err != nil {
		t.Fatal(err)
	}
	wantSaid(t, heard, "RESUME t::g")
}

// TestSought: what the hub says of a seek reaches the receiver.
func TestSought(t *testing.T) {
	frame := func(offset int, rest string) string {
		return fmt.Sprintf(`{"op":"EVENT","topic":"t","group":"g","event":{"offset":%d,"ts":1723140000000,"id":"e","topic":"t","partition":0,"payload":1},`+
			`"ctx":{"attempt":1,"max_attempts":5,"ack_deadline_ms":30000,"lease":"1-1-1"%s}}`, offset, rest)
	}
	addr := startScripted(t, func(r *wire.Request) ([]string, bool) {
		return []string{ok(r), frame(1, ``), frame(2, `,"sought":true`), frame(3, ``)}, true
	})
	r := &soughtReceiver{came: make(chan bool, 3)}
	if _, err := dial(t, addr).Subscribe(bounded(t), earliest("t", "g"), r); err != nil {
		t.Fatal(err)
	}
	for i, want := range []bool{false, true, false} {
		if got := await(t, "a delivery", r.came); got != want {
			t.Errorf("delivery %d says %v; want %v", i+1, got, want)
		}
	}
}

type soughtReceiver struct{ came chan bool }

func (r *soughtReceiver) Deliver(batch []eventhub.Delivery) int {
	for i := range batch {
		r.came <- batch[i].Sought
	}
	return len(batch)
}

func (r *soughtReceiver) Ended(error) {}
