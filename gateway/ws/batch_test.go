package ws

import (
	"context"
	"fmt"
	"net"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	gws "github.com/gobwas/ws"

	"eventhub"
	"eventhub/wire"
)

// expectAll reads one message that is exactly this.
func (c *client) expectAll(want map[string]any) {
	c.t.Helper()
	if got := c.message(); !reflect.DeepEqual(got, want) {
		c.t.Fatalf("got %v; want %v", got, want)
	}
}

// expectBatch reads one EVENTS with the events of offsets from on, and no others.
func (c *client) expectBatch(from uint64, n int) {
	c.t.Helper()
	op, payload := c.read()
	var d wire.HubDecoder
	var f wire.HubFrame
	if err := d.Decode(payload, &f); err != nil || op != gws.OpText || f.Op != wire.OpEvents || len(f.Deliveries) != n {
		c.t.Fatalf("got %x %.120q with %d events (%v); want an EVENTS with %d", op, payload, len(f.Deliveries), err, n)
	}
	for i := range f.Deliveries {
		if got, want := f.Deliveries[i].Offset, from+uint64(i); got != want {
			c.t.Fatalf("the EVENTS has offset %d at place %d; want %d", got, i, want)
		}
	}
	if n > 1 && len(payload) > wire.MaxEventsBytes {
		c.t.Fatalf("an EVENTS with %d events has %d bytes", n, len(payload))
	}
}

func deliveries(from uint64, sizes ...int) (ds []eventhub.Delivery) {
	for i, n := range sizes {
		ds = append(ds, delivery(from+uint64(i), n))
	}
	return ds
}

// TestBatchIsOnePublication: a batch goes with the other publishes of its read,
// as one, and is answered as one.
func TestBatchIsOnePublication(t *testing.T) {
	f := serve(t, nil)
	c := f.login(t)
	c.send(
		`{"op":"PUBLISH","corr":"1","topic":"t","payload":1}`,
		`{"op":"PUBLISH","corr":"2","events":[{"topic":"t","payload":2},{"topic":"u","payload":3,"opts":{"id":"again-3"}}]}`,
		`{"op":"PUBLISH","corr":"3","events":[{"topic":"t","payload":4}]}`,
		`{"op":"PUBLISH","corr":"4","topic":"t","payload":5,"opts":{"id":"x","deliver_at":9}}`,
		`{"op":"PUBLISH","events":[{"topic":"t","payload":6,"opts":{"id":"y","deliver_at":9}},{"topic":"t","payload":7}]}`,
	)
	c.expectAll(map[string]any{"op": "OK", "corr": "1", "id": "id-1", "offset": 1.0})
	c.expectAll(map[string]any{"op": "OK", "corr": "2", "ids": []any{"id-2", "again-3"}, "offsets": []any{2.0, 3.0}, "duplicates": []any{1.0}})
	c.expectAll(map[string]any{"op": "OK", "corr": "3", "ids": []any{"id-4"}, "offsets": []any{4.0}})
	c.expectAll(map[string]any{"op": "OK", "corr": "4", "id": "x", "deliver_at": 9.0})
	c.expectAll(map[string]any{"op": "OK", "ids": []any{"y", "id-5"}, "offsets": []any{0.0, 5.0}, "deliver_at": []any{9.0, 0.0}})
	wantJournal(t, f, "publish 1 [2 3] 4 5 [6 7]")
}

// TestRequestKeepsNoPayload: what a connection said last does not hold its read
// buffer while it is idle.
func TestRequestKeepsNoPayload(t *testing.T) {
	f := newFixture(t, nil)
	ours, theirs := net.Pipe()
	defer theirs.Close()
	defer ours.Close()
	s := newSession(f.gw, ours, ours.RemoteAddr().String())
	s.access, s.authed = Access{Publisher: f.pub, Subscriber: f.sub}, true
	for _, message := range []string{
		pub("a", 1),
		`{"op":"PUBLISH","events":[{"topic":"t","payload":1},{"topic":"t","payload":2}]}`,
		`{"op":"ACK","topic":"t","group":"g","lease":"1-2-3","publish":[{"topic":"t","payload":1}]}`,
	} {
		s.mu.Lock()
		s.out.flushing = true // nobody is to write
		s.mu.Unlock()
		s.handle([]byte(message))
		s.flushBatches()
		if s.req.Event.Payload != nil || slices.ContainsFunc(s.req.Events, func(e eventhub.Event) bool { return e.Payload != nil }) {
			t.Errorf("after %s the request still has a payload", message)
		}
	}
	if n := len(f.take()); n != 3 {
		t.Errorf("%d of 3 frames arrived", n)
	}
	s.cancel()
}

// TestLargeBatches: one is handed over as a whole, however large, and does not
// wait for room that there never is.
func TestLargeBatches(t *testing.T) {
	f := serve(t, nil)
	c := f.login(t)
	n := maxUnanswered + 1
	large := `{"op":"PUBLISH","corr":"1","events":[` + strings.Repeat(`{"topic":"t","payload":1},`, n) + `{"topic":"t","payload":2}]}`
	c.send(large, large)
	for range 2 {
		if m := c.expect(map[string]any{"op": "OK", "corr": "1"}); len(m["ids"].([]any)) != n+1 || len(m["offsets"].([]any)) != n+1 {
			t.Errorf("the OK has %d ids and %d offsets; want %d", len(m["ids"].([]any)), len(m["offsets"].([]any)), n+1)
		}
	}
	if lines := f.take(); len(lines) != 2 {
		t.Errorf("there were %d calls; want 2", len(lines))
	}
}

// TestOneBadEventRefusesTheBatch names it, whoever finds it, and publishes nothing.
func TestOneBadEventRefusesTheBatch(t *testing.T) {
	withEngine(t, func(t *testing.T, e *engine) {
		c := e.login()
		for _, tt := range []struct{ bad, code, msg string }{
			{`{"topic":"a b","payload":1}`, "bad_topic", `events[1]: topic "a b"`},
			{`{"topic":"t"}`, "bad_request", "events[1]: payload is missing"},
			{`{"topic":"t","payload":1,"opts":{"id":"a/b"}}`, "bad_event", `events[1]: id "a/b"`},
			{`{"topic":"t","payload":1,"opts":{"delay_ms":-1}}`, "bad_event", "events[1]: delay_ms is -1"},
			{`{"topic":"t","payload":"` + strings.Repeat("x", eventhub.MaxPayloadBytes) + `"}`, "too_large", "events[1]: payload has"},
			{`{"topic":"t","payload":1,"opts":{"ttl":1}}`, "bad_request", "events[1]: opts has the unknown name"},
			{`{"topic":"t","payload":` + strings.Repeat("[", 1001) + strings.Repeat("]", 1001) + `}`, "bad_json", "events[1]: payload: invalid JSON: nested more than 1000 deep"},
		} {
			c.send(`{"op":"PUBLISH","corr":"1","events":[{"topic":"t","payload":1},` + tt.bad + `,{"topic":"u","payload":1}]}`)
			m := c.expect(map[string]any{"op": "ERR", "code": tt.code, "index": 1.0, "corr": "1"})
			if !strings.HasPrefix(m["msg"].(string), tt.msg) {
				t.Errorf("the message is %q; want one that begins with %q", m["msg"], tt.msg)
			}
		}
		if topics, err := e.bus.Topics(t.Context(), "", 10); err != nil || len(topics) != 0 {
			t.Errorf("there are topics %v, %v; want none", topics, err)
		}
	})
}

// TestPlaceInABatch: an error has the index that the publisher gives it, in a list alone;
// any other error is shown as it is.
func TestPlaceInABatch(t *testing.T) {
	f := serve(t, nil)
	f.pub.fail = func(e *eventhub.Event) error {
		if e.Topic == "placed" {
			return eventhub.AtIndex(eventhub.Errorf(eventhub.CodeBadEvent, "not this one"), "", 0)
		}
		return eventhub.Errorf(eventhub.CodeForbidden, "No right to publish to %q.", e.Topic)
	}
	c := f.login(t)
	c.send(`{"op":"PUBLISH","corr":"1","events":[{"topic":"t","payload":1},{"topic":"u","payload":2}]}`)
	c.expect(map[string]any{"op": "ERR", "code": "forbidden", "msg": `No right to publish to "t".`, "index": nil, "corr": "1"})
	c.send(`{"op":"PUBLISH","corr":"2","events":[{"topic":"placed","payload":1}]}`)
	c.expect(map[string]any{"op": "ERR", "code": "bad_event", "msg": "events[0]: not this one", "index": 0.0, "corr": "2"})
	c.send(`{"op":"PUBLISH","corr":"3","topic":"placed","payload":1}`)
	c.expect(map[string]any{"op": "ERR", "code": "bad_event", "msg": "not this one", "index": nil, "corr": "3"})
}

// TestWaitingHoldsNobodyUp: a publish that waits goes alone, and what comes after
// it is answered before.
func TestWaitingHoldsNobodyUp(t *testing.T) {
	f := serve(t, nil)
	f.pub.hold = make(chan func(), 10)
	c := f.login(t)
	c.send(
		`{"op":"PUBLISH","corr":"1","topic":"t","payload":1}`,
		`{"op":"PUBLISH","corr":"2","topic":"t","payload":2,"opts":{"wait_for":["g","h"],"wait_ms":2000}}`,
		`{"op":"PUBLISH","corr":"3","events":[{"topic":"t","payload":3},{"topic":"t","payload":4}],"opts":{"wait_for":["g"]}}`,
		`{"op":"PUBLISH","corr":"4","topic":"t","payload":5}`,
		`{"op":"PUBLISH","corr":"5","topic":"t","payload":6}`,
	)
	var answers []func()
	for range 4 {
		answers = append(answers, receive(t, "call", f.pub.hold))
	}
	wantJournal(t, f, "publish 1", "publish 2 for g,h within 2s", "publish [3 4] for g within 0s", "publish 5 6")
	answers[3]()
	c.expect(map[string]any{"op": "OK", "corr": "4", "offset": 5.0})
	c.expect(map[string]any{"op": "OK", "corr": "5", "offset": 6.0})
	answers[2]()
	c.expectAll(map[string]any{"op": "OK", "corr": "3", "ids": []any{"id-3", "id-4"}, "offsets": []any{3.0, 4.0}})
	answers[0]()
	c.expect(map[string]any{"op": "OK", "corr": "1"})
	answers[1]()
	c.expectAll(map[string]any{"op": "OK", "corr": "2", "id": "id-2", "offset": 2.0})
}

// TestWaitTimeout: an ERR names who has not acked, and what the events have got all the
// same; of what is refused it says nothing of the kind.
func TestWaitTimeout(t *testing.T) {
	f := serve(t, nil)
	f.pub.late = eventhub.Errorf(eventhub.CodeWaitTimeout, "h has not acked within 2s")
	f.pub.fail = func(e *eventhub.Event) error {
		if e.Topic == "nowhere" {
			return eventhub.Errorf(eventhub.CodeNotSubscribed, "no such group")
		}
		return nil
	}
	c := f.login(t)
	c.send(`{"op":"PUBLISH","corr":"1","topic":"t","payload":2,"opts":{"wait_for":["g","h"],"wait_ms":2000}}`)
	c.expectAll(map[string]any{"op": "ERR", "corr": "1", "code": "wait_timeout", "msg": "h has not acked within 2s", "id": "id-1", "offset": 1.0})
	c.send(`{"op":"PUBLISH","corr":"2","events":[{"topic":"t","payload":3},{"topic":"t","payload":4}],"opts":{"wait_for":["h"]}}`)
	c.expectAll(map[string]any{"op": "ERR", "corr": "2", "code": "wait_timeout", "msg": "h has not acked within 2s", "ids": []any{"id-2", "id-3"}, "offsets": []any{2.0, 3.0}})
	c.send(`{"op":"PUBLISH","corr":"3","topic":"nowhere","payload":2,"opts":{"wait_for":["h"]}}`)
	c.expectAll(map[string]any{"op": "ERR", "corr": "3", "code": "not_subscribed", "msg": "no such group"})
}

// TestWaitingIsBounded by number and by size; and it does not count where the
// reader waits for answers.
func TestWaitingIsBounded(t *testing.T) {
	const waiting = `{"op":"PUBLISH","corr":"w","topic":"t","payload":"%s","opts":{"wait_for":["g"]}}`
	for name, tt := range map[string]struct{ size, most int }{
		"by number": {1, maxWaiting},
		"by size":   {900_000, maxWaitingBytes / 900_000},
	} {
		t.Run(name, func(t *testing.T) {
			f := serve(t, nil)
			f.pub.hold = make(chan func(), 2*maxWaiting)
			c := f.login(t)
			frame := fmt.Sprintf(waiting, strings.Repeat("x", tt.size))
			for range tt.most {
				c.send(frame)
			}
			c.send(frame)
			m := c.expect(map[string]any{"op": "ERR", "code": "overloaded", "corr": "w"})
			if !strings.HasPrefix(m["msg"].(string), fmt.Sprint(tt.most)) || m["retry_after_ms"] == nil {
				t.Errorf("refused with %v; want the message to name %d", m, tt.most)
			}
			c.send(`{"op":"PUBLISH","corr":"p","topic":"t","payload":1}`) // is not held up
			var answers []func()
			for range tt.most + 1 {
				answers = append(answers, receive(t, "call", f.pub.hold))
			}
			answers[tt.most]()
			c.expect(map[string]any{"op": "OK", "corr": "p"})
			answers[0]()
			c.expect(map[string]any{"op": "OK", "corr": "w"})
			c.send(frame) // there is room for one again
			answers = append(answers, receive(t, "call", f.pub.hold))
			for _, answer := range slices.Concat(answers[1:tt.most], answers[tt.most+1:]) {
				answer()
				c.expect(map[string]any{"op": "OK", "corr": "w"})
			}
			s := f.onlySession(t)
			s.mu.Lock()
			defer s.mu.Unlock()
			if o := &s.out; o.unanswered != 0 || o.waiting != 0 || o.waitingBytes != 0 {
				t.Errorf("in the end %d are unanswered and %d wait, of %d bytes", o.unanswered, o.waiting, o.waitingBytes)
			}
		})
	}
}

// TestWaitingEndsWithTheConnection, and a hub that stops answers those whose wait
// is over soon.
func TestWaitingEndsWithTheConnection(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.pub.hold = make(chan func(), 10)
		c := f.pipe(t)
		c.auth()
		c.send(`{"op":"PUBLISH","corr":"1","topic":"t","payload":1,"opts":{"wait_for":["g"]}}`)
		answer := <-f.pub.hold
		if f.pub.ctx.Err() != nil {
			t.Error("the wait is over before the connection is")
		}
		c.conn.Close()
		<-f.pub.ctx.Done()
		answer()
		<-f.log.closed
	})
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.pub.hold = make(chan func(), 10)
		c := f.pipe(t)
		c.auth()
		c.send(`{"op":"PUBLISH","corr":"1","topic":"t","payload":1,"opts":{"wait_for":["g"]}}`)
		answer := <-f.pub.hold
		stopped := make(chan error)
		go func() { stopped <- f.gw.Shutdown(t.Context()) }()
		time.Sleep(f.gw.cfg.CloseWait / 2)
		answer()
		c.expect(map[string]any{"op": "OK", "corr": "1"})
		c.expectClose(wire.CloseGoingAway)
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	})
}

func TestCancel(t *testing.T) {
	f := serve(t, nil)
	c := f.login(t)
	c.send(`{"op":"CANCEL","topic":"t","id":"x","corr":"1"}`)
	c.expect(map[string]any{"op": "ERR", "code": "unsupported_op", "corr": "1"})

	f = serve(t, func(cfg *Config) {
		authenticate := cfg.Authenticate
		cfg.Authenticate = func(ctx context.Context, token string, has bool) (Access, error) {
			access, err := authenticate(ctx, token, has)
			if err != nil {
				return access, err
			}
			access.Scheduler = &fakeScheduler{journal: access.Publisher.(*fakePublisher).journal, known: "mail-3"}
			return access, nil
		}
	})
	c = f.login(t)
	c.send(
		`{"op":"CANCEL","topic":"t","id":"mail-3","corr":"2"}`,
		`{"op":"CANCEL","topic":"t.u","id":"mail-4","corr":"3"}`,
		`{"op":"CANCEL","topic":"t","id":"mail-3"}`,
	)
	c.expectAll(map[string]any{"op": "OK", "corr": "2"})
	c.expectAll(map[string]any{"op": "ERR", "corr": "3", "code": "unknown_id", "msg": `nothing with the id "mail-4" is scheduled`})
	c.expectAll(map[string]any{"op": "OK"})
	wantJournal(t, f, "cancel t mail-3", "cancel t.u mail-4", "cancel t mail-3")
}

// TestAckAndPublish: ACKs with publish reach their subscription together, in their
// turn, and are answered one by one.
func TestAckAndPublish(t *testing.T) {
	f := serve(t, nil)
	c := f.login(t)
	sub := c.subscribe(f)
	sub.failOver = func(h *eventhub.AckPublish) error {
		if h.Refs[0].ID == "late" {
			return eventhub.Errorf(eventhub.CodeLeaseLost, "\"late\" is not held any more")
		}
		for i := range h.Events {
			if err := h.Events[i].Validate(time.Now()); err != nil {
				return eventhub.AtIndex(err, "", i)
			}
		}
		return nil
	}
	f.take()
	c.send(
		`{"op":"PUBLISH","corr":"1","topic":"t","payload":1}`,
		`{"op":"ACK","corr":"2","topic":"t","group":"g","id":"a","publish":[{"topic":"u","payload":2},{"topic":"v","payload":3}]}`,
		`{"op":"ACK","topic":"t","group":"g","id":"b","publish":[{"topic":"u","payload":4}]}`,
		`{"op":"ACK","topic":"t","group":"g","ids":["late","c"],"publish":[{"topic":"u","payload":5}]}`,
		`{"op":"ACK","corr":"5","topic":"t","group":"g","ids":["d","e"],"publish":[{"topic":"u","payload":6}]}`,
		`{"op":"ACK","corr":"6","topic":"t","group":"g","id":"f","publish":[{"topic":"u","payload":7},{"topic":"a b","payload":8}]}`,
		`{"op":"ACK","corr":"7","topic":"t","group":"g","id":"g","publish":[]}`,
		`{"op":"PUBLISH","corr":"8","topic":"t","payload":9}`,
		`{"op":"ACK","corr":"9","topic":"t","group":"g","id":"h","publish":[{"topic":"u","payload":10}]}`,
		`{"op":"ACK","corr":"10","topic":"t","group":"other","id":"h","publish":[{"topic":"u","payload":10}]}`,
		`{"op":"ACK","corr":"11","topic":"t","group":"other","lease":"1-2-3","publish":[{"topic":"u","payload":11}]}`,
		`{"op":"ACK","corr":"12","topic":"t","group":"g","id":"i","publish":[{"topic":"u","payload":12}]}`,
		`{"op":"PUBLISH","corr":"13","topic":"t","payload":13}`,
	)
	c.expect(map[string]any{"op": "OK", "corr": "1"})
	c.expectAll(map[string]any{"op": "OK", "corr": "2", "ids": []any{"r-2", "r-3"}, "offsets": []any{1.0, 2.0}})
	c.expectAll(map[string]any{"op": "ERR", "code": "lease_lost", "msg": `"late" is not held any more`})
	c.expectAll(map[string]any{"op": "OK", "corr": "5", "ids": []any{"r-6"}, "offsets": []any{1.0}})
	m := c.expect(map[string]any{"op": "ERR", "corr": "6", "code": "bad_topic"})
	if !strings.HasPrefix(m["msg"].(string), `publish[1]: topic "a b"`) {
		t.Errorf("the message is %q", m["msg"])
	}
	c.expectAll(map[string]any{"op": "OK", "corr": "7"})
	c.expect(map[string]any{"op": "OK", "corr": "8"})
	c.expect(map[string]any{"op": "OK", "corr": "9"})
	c.expectAll(map[string]any{"op": "ERR", "corr": "10", "code": "not_subscribed", "msg": `this connection has no subscription of topic "t" as group "other"`})
	c.expectAll(map[string]any{"op": "OK", "corr": "11", "ids": []any{"r-11"}, "offsets": []any{1.0}})
	c.expect(map[string]any{"op": "OK", "corr": "12"})
	c.expect(map[string]any{"op": "OK", "corr": "13"})
	wantJournal(t, f,
		"publish 1",
		"hand over t::g ack a u=2 v=3", "hand over t::g ack b u=4", "hand over t::g ack late c u=5", "hand over t::g ack d e u=6", "hand over t::g ack f u=7 a b=8",
		"settle t::g ack g",
		"publish 9",
		"hand over t::g ack h u=10",
		"hand over by lease t::other ack 1-2-3 u=11",
		"hand over t::g ack i u=12",
		"publish 13")
}

// TestLargeAckAndPublish: an ACK with more events than a connection keeps memory for
// publishes all of them, and the ACK after it in the same read its own.
func TestLargeAckAndPublish(t *testing.T) {
	f := serve(t, nil)
	c := f.login(t)
	c.subscribe(f)
	f.take()
	var events, published []string
	var ids, offsets []any
	for i := range keptEvents + 1 {
		events = append(events, fmt.Sprintf(`{"topic":"u","payload":%d}`, i))
		published = append(published, fmt.Sprint("u=", i))
		ids, offsets = append(ids, fmt.Sprint("r-", i)), append(offsets, float64(i+1))
	}
	c.send(
		`{"op":"ACK","corr":"1","topic":"t","group":"g","id":"a","publish":[`+strings.Join(events, ",")+`]}`,
		`{"op":"ACK","corr":"2","topic":"t","group":"g","id":"b","publish":[{"topic":"v","payload":9}]}`,
	)
	c.expectAll(map[string]any{"op": "OK", "corr": "1", "ids": ids, "offsets": offsets})
	c.expectAll(map[string]any{"op": "OK", "corr": "2", "ids": []any{"r-9"}, "offsets": []any{1.0}})
	wantJournal(t, f, "hand over t::g ack a "+strings.Join(published, " "), "hand over t::g ack b v=9")
}

// TestUnansweredAckAndPublishAreBounded: their events count among those of the
// publishes; and a hub that stops answers them before.
func TestUnansweredAckAndPublishAreBounded(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		c := f.pipe(t)
		c.auth()
		sub := c.subscribe(f)
		sub.holdOver = make(chan func(), 10_000)
		f.take()
		const asked = maxUnanswered/2 + 500
		go func() {
			var b []byte
			for range asked {
				b = append(b, text(`{"op":"ACK","corr":"h","topic":"t","group":"g","id":"a","publish":[{"topic":"u","payload":1},{"topic":"u","payload":1}]}`)...)
			}
			c.conn.Write(b)
		}()
		synctest.Wait()
		if n := len(f.take()); n > maxUnanswered/2 || n < maxUnanswered/2-maxBatch {
			t.Errorf("%d ack-and-publishes of 2 events are unanswered; want nearly %d", n, maxUnanswered/2)
		}
		answered := make(chan struct{})
		go func() {
			for range asked {
				c.expect(map[string]any{"op": "OK", "corr": "h"})
			}
			close(answered)
		}()
		for done := false; !done; {
			select {
			case answer := <-sub.holdOver:
				answer()
			case <-answered:
				done = true
			}
		}
		c.send(`{"op":"ACK","corr":"last","topic":"t","group":"g","id":"a","publish":[{"topic":"u","payload":1}]}`)
		answer := <-sub.holdOver
		stopped := make(chan error)
		go func() { stopped <- f.gw.Shutdown(t.Context()) }()
		synctest.Wait()
		answer()
		c.expect(map[string]any{"op": "OK", "corr": "last"})
		c.expectClose(wire.CloseGoingAway)
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	})
}

// TestOptionsOfSubscribe: what a SUBSCRIBE asks for is asked of the subscriber.
func TestOptionsOfSubscribe(t *testing.T) {
	f := serve(t, nil)
	c := f.login(t)
	c.ok(`{"op":"SUBSCRIBE","topic":"p.*","group":"g","opts":{"topics":["q"],"filter":{"key":"k*"}}}`)
	got := (<-f.sub.joined).opts
	if got.Topic != "p.*" || !slices.Equal(got.Topics, []string{"q"}) || got.Filter == nil || got.Filter.Key != "k*" {
		t.Errorf("asked for %+v", got)
	}
	c.ok(`{"op":"SUBSCRIBE","topic":"**","opts":{"filter":"event.key == 'a'","conflate":{"every_ms":250}}}`)
	if got = (<-f.sub.joined).opts; got.Conflate != 250*time.Millisecond || got.Filter == nil || got.Filter.CEL != "event.key == 'a'" {
		t.Errorf("asked for %+v", got)
	}
}

// TestVerdictsOfPatternedSubscriptions: they name it as it was subscribed or by a
// topic of its own; where that is in several, the lease decides.
func TestVerdictsOfPatternedSubscriptions(t *testing.T) {
	f := serve(t, nil)
	c := f.login(t)
	c.ok(`{"op":"SUBSCRIBE","topic":"p.*","group":"g","opts":{"topics":["q"]}}`)
	f.take()
	c.send(
		`{"op":"ACK","topic":"p.a","group":"g","id":"1"}`,
		`{"op":"ACK","topic":"p.*","group":"g","id":"2","corr":"2"}`,
		`{"op":"ACK","topic":"q","group":"g","lease":"1-2-3"}`,
		`{"op":"NACK","topic":"p.a","group":"g","id":"4"}`,
		`{"op":"ACK","topic":"p.b","group":"g","id":"5","corr":"5"}`,
		`{"op":"ACK","topic":"p.a.b","group":"g","id":"6","corr":"6"}`,
		`{"op":"ACK","topic":"p.dlq","group":"g","id":"7","corr":"7"}`,
		`{"op":"ACK","topic":"p.a.b","group":"g","lease":"1-2-4","corr":"8"}`,
		`{"op":"ACK","topic":"p.a","group":"h","id":"9","corr":"9"}`,
		`{"op":"ACK","topic":"*.a","group":"g","id":"10","corr":"10"}`,
		`{"op":"ACK","topic":"p.a","group":"g","id":"11","publish":[{"topic":"u","payload":1}],"corr":"11"}`,
	)
	c.expect(map[string]any{"op": "OK", "corr": "2"})
	c.expect(map[string]any{"op": "OK", "corr": "5"})
	c.expect(map[string]any{"op": "ERR", "code": "not_subscribed", "msg": `this connection has no subscription of topic "p.a.b" as group "g"`, "corr": "6"})
	c.expect(map[string]any{"op": "ERR", "code": "not_subscribed", "msg": `this connection has no subscription of topic "p.dlq" as group "g"`, "corr": "7"})
	c.expect(map[string]any{"op": "OK", "corr": "8"})
	c.expect(map[string]any{"op": "ERR", "code": "not_subscribed", "msg": `this connection has no subscription of topic "p.a" as group "h"`, "corr": "9"})
	c.expect(map[string]any{"op": "ERR", "code": "not_subscribed", "msg": `this connection has no subscription of topic "*.a" as group "g"`, "corr": "10"})
	c.expect(map[string]any{"op": "OK", "corr": "11"})
	wantJournal(t, f, "settle p.*::g ack 1 2 1-2-3", "settle p.*::g nack 4", "settle p.*::g ack 5",
		"settle by lease p.a.b::g ack 1-2-4", "hand over p.*::g ack 11 u=1")

	// A second one that has the same topics, and one that has it by name.
	c.ok(`{"op":"SUBSCRIBE","topic":"**","group":"g"}`)
	f.take()
	c.send(
		`{"op":"ACK","topic":"p.a","group":"g","id":"1","corr":"1"}`,
		`{"op":"ACK","topic":"p.a","group":"g","ids":["1","2"],"lease":["1-2-3",null],"corr":"2"}`,
		`{"op":"ACK","topic":"p.a","group":"g","id":"1","lease":"1-2-3","corr":"3"}`,
		`{"op":"ACK","topic":"**","group":"g","id":"4","corr":"4"}`,
		`{"op":"ACK","topic":"z","group":"g","id":"5","corr":"5"}`,
		`{"op":"ACK","topic":"x.*","group":"g","id":"6","corr":"6"}`, // is no topic, though ** would match it
	)
	for _, corr := range []string{"1", "2"} {
		m := c.expect(map[string]any{"op": "ERR", "code": "bad_request", "corr": corr})
		if !strings.HasPrefix(m["msg"].(string), `topic "p.a" is in several subscriptions`) {
			t.Errorf("the message is %q", m["msg"])
		}
	}
	for _, corr := range []string{"3", "4", "5"} {
		c.expect(map[string]any{"op": "OK", "corr": corr})
	}
	c.expect(map[string]any{"op": "ERR", "code": "not_subscribed", "msg": `this connection has no subscription of topic "x.*" as group "g"`, "corr": "6"})
	wantJournal(t, f, "settle by lease p.a::g ack 1", "settle **::g ack 4 5")
	c.ok(`{"op":"SUBSCRIBE","topic":"p.a","group":"g"}`)
	f.take()
	c.ok(`{"op":"ACK","topic":"p.a","group":"g","id":"1","corr":"1"}`)
	wantJournal(t, f, "settle p.a::g ack 1")
}

// TestEventsFrames: deliveries to a subscription that wants EVENTS come together,
// up to their size and to the room that there is.
func TestEventsFrames(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		c := f.pipe(t)
		c.auth()
		c.ok(`{"op":"SUBSCRIBE","topic":"t","group":"g","opts":{"batch":true}}`)
		sub := <-f.sub.joined
		synctest.Wait()
		if n := sub.receiver.Deliver(deliveries(1, 60_000, 60_000, 60_000, 60_000, 60_000, 1, 300_000, 1, 1)); n != 9 {
			t.Errorf("%d deliveries were taken; want all 9", n)
		}
		c.expectBatch(1, 4)
		c.expectBatch(5, 2)
		c.expectBatch(7, 1)
		c.expectBatch(8, 2)
		c.conn.Close()
		<-f.log.closed
	})
	inBubble(t, func(c *Config) { c.OutboundBytes = 5000 }, func(t *testing.T, f *fixture) {
		c := f.pipe(t)
		c.auth()
		c.ok(`{"op":"SUBSCRIBE","topic":"t","group":"g","opts":{"batch":true}}`)
		sub := <-f.sub.joined
		synctest.Wait()
		if n := sub.receiver.Deliver(deliveries(1, 8000, 10)); n != 1 {
			t.Errorf("%d of a large and a small event were taken; want 1", n)
		}
		c.expectBatch(1, 1)
		<-sub.ready
		if n := sub.receiver.Deliver(deliveries(2, 1000, 1000, 1000, 3000, 10)); n != 3 {
			t.Errorf("%d deliveries were taken; want the 3 that fit", n)
		}
		if queued := f.onlySession(t).queuedNow(); queued > 5000 {
			t.Errorf("%d bytes are queued; at most 5000 are allowed", queued)
		}
		c.expectBatch(2, 3)
		<-sub.ready
		c.conn.Close()
		<-f.log.closed
	})
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		c := f.pipe(t)
		c.auth()
		c.ok(`{"op":"SUBSCRIBE","topic":"t.*","opts":{"batch":true}}`)
		sub := <-f.sub.joined
		synctest.Wait()
		sub.receiver.Deliver([]eventhub.Delivery{tailDelivery(1, 1), tailDelivery(2, 1)})
		_, payload := c.read()
		if want := `{"op":"EVENTS","topic":"t.*","events":[{"event":{"offset":1,`; !strings.HasPrefix(string(payload), want) || strings.Contains(string(payload), "ctx") {
			t.Errorf("got %s; want a frame that begins with %s and has no ctx", payload, want)
		}
		c.conn.Close()
		<-f.log.closed
	})
}

// TestClientThatAcksByIDs goes over all events of an EVENTS at once.
func TestClientThatAcksByIDs(t *testing.T) {
	withEngine(t, func(t *testing.T, e *engine) {
		c := e.login()
		c.ok(`{"op":"SUBSCRIBE","topic":"t","group":"g","opts":{"batch":true}}`)
		e.publish("t", 1, 5)
		c.expectBatch(1, 5)
		c.send(`{"op":"ACK","corr":"1","topic":"t","group":"g","ids":["e1","e2","e4"]}`)
		c.expectAll(map[string]any{"op": "OK", "corr": "1"})
		if at := e.cursor("t", "g"); at != 2 {
			t.Errorf("the cursor is %d; want 2", at)
		}
		c.send(`{"op":"ACK","corr":"2","topic":"t","group":"g","ids":["e4","e3","e1"]}`)
		c.expectAll(map[string]any{"op": "OK", "corr": "2", "stale": true, "stale_at": []any{0.0, 2.0}})
		if at := e.cursor("t", "g"); at != 4 {
			t.Errorf("the cursor is %d; want 4", at)
		}
		c.send(`{"op":"ACK","corr":"3","topic":"t","group":"g","ids":["e4","e3"]}`)
		c.expectAll(map[string]any{"op": "OK", "corr": "3", "stale": true})
		c.send(`{"op":"MODACK","corr":"4","topic":"t","group":"g","ids":["e5","e3"],"extend_ms":5000}`)
		c.expectAll(map[string]any{"op": "ERR", "corr": "4", "code": "unknown_id", "msg": `"e3" has no lease to extend`})
		c.send(`{"op":"NACK","corr":"5","topic":"t","group":"g","ids":["e5"],"delay_ms":0}`)
		c.expectAll(map[string]any{"op": "OK", "corr": "5"})
		c.expectBatch(5, 1)
		c.conn.Close()
		<-e.log.closed
	})
}

// TestPatternedSubscription: events of all topics come over one subscription, and
// are acked by their own topic, by the pattern, and by lease from elsewhere.
func TestPatternedSubscription(t *testing.T) {
	withEngine(t, func(t *testing.T, e *engine) {
		e.publish("p.a", 1, 1)
		c := e.login()
		c.ok(`{"op":"SUBSCRIBE","topic":"p.*","group":"g","opts":{"topics":["q"],"from":"earliest"}}`)
		e.publish("p.b", 2, 1) // is created later
		e.publish("q", 3, 1)
		e.publish("r", 4, 1) // is none of them
		leases := make(map[string]any)
		for range 3 {
			m := c.expect(map[string]any{"op": "EVENT", "topic": "p.*", "group": "g"})
			leases[m["event"].(map[string]any)["topic"].(string)] = m["ctx"].(map[string]any)["lease"]
		}
		if len(leases) != 3 || leases["p.a"] == nil || leases["p.b"] == nil || leases["q"] == nil {
			t.Fatalf("events came of %v", leases)
		}
		c.send(`{"op":"ACK","topic":"p.a","group":"g","id":"e1","corr":"1"}`, `{"op":"ACK","topic":"p.*","group":"g","id":"e2","corr":"2"}`)
		c.expectAll(map[string]any{"op": "OK", "corr": "1"})
		c.expectAll(map[string]any{"op": "OK", "corr": "2"})
		elsewhere := e.login()
		elsewhere.send(fmt.Sprintf(`{"op":"ACK","topic":"q","group":"g","lease":%q,"corr":"3"}`, leases["q"]))
		elsewhere.expectAll(map[string]any{"op": "OK", "corr": "3"})
		for _, topic := range []string{"p.a", "p.b", "q"} {
			if at := e.cursor(topic, "g"); at != 1 {
				t.Errorf("the cursor in %s is %d; want 1", topic, at)
			}
		}
		for _, c := range []*client{c, elsewhere} {
			c.conn.Close()
			<-e.log.closed
		}
	})
}
