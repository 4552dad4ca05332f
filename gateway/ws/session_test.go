package ws

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	gws "github.com/gobwas/ws"
	"github.com/google/go-cmp/cmp"

	"eventhub"
)

// pub is a PUBLISH of a number.
func pub(corr string, n int) string {
	return fmt.Sprintf(`{"op":"PUBLISH","corr":"%s","topic":"t","payload":%d}`, corr, n)
}

func ack(id, more string) string {
	return `{"op":"ACK","topic":"t","group":"g","id":"` + id + `"` + more + `}`
}

func wantJournal(t *testing.T, f *fixture, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, f.journal.take()); diff != "" {
		t.Fatalf("what the hub was asked (-want +got):\n%s", diff)
	}
}

// TestPublishesOfOneReadAreOneCallAndOneWrite is the batching promise: frames
// that arrive together are enqueued together and answered by one system call.
func TestPublishesOfOneReadAreOneCallAndOneWrite(t *testing.T) {
	f := serve(t, nil)
	c := f.login(t)
	before := f.writes.Load()
	c.send(pub("a", 1), pub("b", 2), pub("c", 3), pub("d", 4), pub("e", 5))
	for i, corr := range []string{"a", "b", "c", "d", "e"} {
		c.expect(map[string]any{"op": "OK", "corr": corr, "offset": float64(i + 1), "id": fmt.Sprintf("id-%d", i+1), "duplicate": nil})
	}
	wantJournal(t, f, "publish 1 2 3 4 5")
	if n := f.writes.Load() - before; n != 1 {
		t.Errorf("5 answers took %d writes; want 1", n)
	}
}

// TestAnswersOfOneReadAreOneWrite has answers of every kind in one read.
func TestAnswersOfOneReadAreOneWrite(t *testing.T) {
	f := serve(t, nil)
	c := f.login(t)
	c.subscribe(f)
	before := f.writes.Load()
	c.write(cat(text(`{"op":"NOPE","corr":"1"}`, ack("x", `,"corr":"2"`), `nonsense`), frame(gws.OpPing, true, "p"), text(pub("3", 1))))
	c.expect(map[string]any{"op": "ERR", "code": "unsupported_op", "corr": "1"})
	c.expect(map[string]any{"op": "ERR", "code": "bad_json", "corr": nil})
	if op, payload := c.read(); op != gws.OpPong || string(payload) != "p" {
		t.Fatalf("got %x %q; want the pong", op, payload)
	}
	c.expect(map[string]any{"op": "OK", "corr": "2"})
	c.expect(map[string]any{"op": "OK", "corr": "3"})
	if n := f.writes.Load() - before; n != 1 {
		t.Errorf("the answers to one read took %d writes; want 1", n)
	}
}

// TestEffectsHappenInTheOrderOfFrames mixes ops in one segment.
func TestEffectsHappenInTheOrderOfFrames(t *testing.T) {
	f := serve(t, nil)
	c := f.login(t)
	c.subscribe(f)
	f.journal.take()
	lease := eventhub.Lease{Runtime: 7, Offset: 3, Serial: 9}.String()
	c.send(
		pub("p1", 1), pub("p2", 2),
		ack("a", ""), ack("b", `,"corr":"b"`), ack("c", ""),
		`{"op":"NACK","topic":"t","group":"g","id":"d","reason":"no"}`,
		`{"op":"NACK","topic":"t","group":"g","id":"e","reason":"no","corr":"e"}`,
		`{"op":"NACK","topic":"t","group":"g","id":"f","reason":"never"}`,
		`{"op":"MODACK","topic":"t","group":"g","id":"h","extend_ms":5000}`,
		`{"op":"ACK","topic":"other","group":"g","lease":"`+lease+`","corr":"l"}`,
		ack("i", ""),
		`{"op":"ACK","topic":"t","group":"g","ids":["j","k"],"corr":"jk"}`,
		pub("p3", 3),
		`{"op":"SUBSCRIBE","topic":"u","group":"g","corr":"u"}`,
		pub("p4", 4),
		`{"op":"UNSUBSCRIBE","topic":"u","group":"g","corr":"un"}`,
		ack("m", `,"corr":"m"`),
	)
	answered := make(map[string]bool)
	for !answered["m"] {
		m := c.message()
		if m["op"] != "OK" {
			t.Fatalf("got %v", m)
		}
		answered[m["corr"].(string)] = true
	}
	wantJournal(t, f,
		"publish 1 2",
		"settle t::g ack a b c",
		"settle t::g nack because no d e",
		"settle t::g nack because never f",
		"settle t::g extend by 5s h",
		"settle by lease other::g ack "+lease,
		"settle t::g ack i j k",
		"publish 3",
		"subscribe u::g",
		"publish 4",
		"settle t::g ack m",
	)
	want := map[string]bool{"p1": true, "p2": true, "b": true, "e": true, "l": true, "jk": true, "p3": true, "u": true, "p4": true, "un": true, "m": true}
	if diff := cmp.Diff(want, answered); diff != "" {
		t.Errorf("answered (-want +got):\n%s", diff)
	}
}

// TestSettleAnswers covers what the outcomes and errors of a Settle become.
func TestSettleAnswers(t *testing.T) {
	f := serve(t, nil)
	c := f.login(t)
	sub := c.subscribe(f)
	sub.outcome = func(r eventhub.Ref) eventhub.Outcome {
		switch r.ID {
		case "stale":
			return eventhub.Stale
		case "unknown":
			return eventhub.Unknown
		}
		return eventhub.Applied
	}
	extend := func(id string) string {
		return `{"op":"MODACK","topic":"t","group":"g","id":"` + id + `","extend_ms":5000,"corr":"x"}`
	}
	for _, tt := range []struct {
		send string
		want map[string]any
	}{
		{ack("ok", `,"corr":"x"`), map[string]any{"op": "OK", "corr": "x", "stale": nil}},
		{ack("stale", `,"corr":"x"`), map[string]any{"op": "OK", "corr": "x", "stale": true}},
		{`{"op":"NACK","topic":"t","group":"g","id":"stale","corr":"x"}`, map[string]any{"op": "OK", "corr": "x", "stale": true}},
		{`{"op":"ACK","topic":"t","group":"g","ids":["ok","stale"],"corr":"x"}`, map[string]any{"op": "OK", "corr": "x", "stale": true}},
		{extend("ok"), map[string]any{"op": "OK", "corr": "x", "stale": nil}},
		{extend("stale"), map[string]any{"op": "ERR", "code": "unknown_id", "corr": "x", "msg": `"stale" has no lease to extend`}},
		{extend("unknown"), map[string]any{"op": "ERR", "code": "unknown_id", "corr": "x"}},
		{`{"op":"ACK","topic":"t","group":"other","id":"i","corr":"x"}`, map[string]any{"op": "ERR", "code": "not_subscribed", "msg": `this connection has no subscription of topic "t" as group "other"`, "corr": "x"}},
		{`{"op":"ACK","topic":"t","group":"other","id":"i"}`, map[string]any{"op": "ERR", "code": "not_subscribed", "msg": `this connection has no subscription of topic "t" as group "other"`, "corr": nil}},
	} {
		c.send(tt.send)
		c.expect(tt.want)
	}

	// The answers of one Settle go to the frames that asked.
	c.send(ack("ok", `,"corr":"1"`), ack("stale", `,"corr":"2"`), ack("ok", ""), ack("ok", `,"corr":"3"`))
	c.expect(map[string]any{"op": "OK", "corr": "1", "stale": nil})
	c.expect(map[string]any{"op": "OK", "corr": "2", "stale": true})
	c.expect(map[string]any{"op": "OK", "corr": "3", "stale": nil})

	for _, tt := range []struct {
		err  error
		code string
	}{
		{eventhub.Errorf(eventhub.CodeBadRequest, "no"), "bad_request"},
		{eventhub.Errorf("odd", "no"), "ack_failed"},
		{errors.New("disk on fire"), "ack_failed"},
	} {
		sub.settleErr = tt.err
		c.send(ack("ok", `,"corr":"x"`), ack("ok", ""))
		got := c.expect(map[string]any{"op": "ERR", "code": tt.code, "corr": "x"})
		if strings.Contains(fmt.Sprint(got), "fire") {
			t.Errorf("the cause is shown: %v", got)
		}
		c.expect(map[string]any{"op": "ERR", "code": tt.code, "corr": nil})
	}
	if !strings.Contains(f.log.text.String(), "disk on fire") {
		t.Error("the cause is not in the log")
	}
}

// TestPublishErrors covers what becomes of a publish that fails among others
// that do not.
func TestPublishErrors(t *testing.T) {
	f := serve(t, nil)
	f.pub.fail = func(e *eventhub.Event) error {
		switch string(e.Payload) {
		case "1":
			return eventhub.Errorf(eventhub.CodeBadTopic, "no such thing")
		case "2":
			return errors.New("disk on fire")
		case "3":
			return eventhub.Errorf("odd", "something odd")
		case "4":
			return eventhub.Errorf("rate_limited", "slow down")
		case "5":
			return fmt.Errorf("wrapped: %w", context.Canceled)
		}
		return nil
	}
	c := f.login(t)
	c.send(pub("a", 0), pub("b", 1), pub("c", 2), pub("d", 3), pub("e", 4), pub("f", 5), pub("g", 6))
	for _, want := range []map[string]any{
		{"op": "OK", "corr": "a", "offset": 1.0},
		{"op": "ERR", "corr": "b", "code": "bad_topic", "msg": "no such thing"},
		{"op": "ERR", "corr": "c", "code": "publish_failed"},
		{"op": "ERR", "corr": "d", "code": "publish_failed", "msg": "something odd"},
		{"op": "ERR", "corr": "e", "code": "rate_limited"},
		{"op": "ERR", "corr": "f", "code": "shutting_down"},
		{"op": "OK", "corr": "g", "offset": 2.0},
	} {
		if got := c.expect(want); strings.Contains(fmt.Sprint(got), "fire") {
			t.Errorf("the cause is shown: %v", got)
		}
	}
}

// TestPublishAnsweredLater has done run on another goroutine, the second batch
// first, and a third after its connection is gone.
func TestPublishAnsweredLater(t *testing.T) {
	f := serve(t, nil)
	f.pub.hold = make(chan func(), 8)
	c := f.login(t)
	c.send(pub("a", 1))
	first := receive(t, "publish", f.pub.hold)
	c.send(pub("b", 2), pub("c", 3))
	second := receive(t, "publish", f.pub.hold)
	c.send(pub("d", 4))
	third := receive(t, "publish", f.pub.hold)
	second()
	c.expect(map[string]any{"op": "OK", "corr": "b", "offset": 2.0})
	c.expect(map[string]any{"op": "OK", "corr": "c", "offset": 3.0})
	first()
	c.expect(map[string]any{"op": "OK", "corr": "a", "offset": 1.0})
	c.conn.Close()
	receive(t, "closed connection", f.log.closed)
	third()
}

func TestAuth(t *testing.T) {
	var second *fakePublisher
	f := serve(t, func(c *Config) {
		inner := c.Authenticate
		c.Authenticate = func(ctx context.Context, token string, has bool) (Access, error) {
			if token == "other" {
				return Access{Publisher: second, Subscriber: newFixture(t, nil).sub, Name: "other"}, nil
			}
			if token == "broken" {
				return Access{}, errors.New("the key server is on fire")
			}
			return inner(ctx, token, has)
		}
	})
	second = &fakePublisher{journal: f.journal, name: "second publisher"}
	c := f.dial(t)

	// Before: nothing but AUTH.
	for _, send := range []string{
		pub("x", 1), `{"op":"SUBSCRIBE","topic":"t","group":"g","corr":"x"}`, `{"op":"NOPE","corr":"x"}`, `{"op":"PUBLISH","corr":"x"}`,
	} {
		c.send(send)
		c.expect(map[string]any{"op": "ERR", "code": "unauthorized", "msg": "Call AUTH first.", "corr": "x"})
	}
	// What is no frame gets the answer that it gets later.
	c.send(`{"corr":"x"`)
	c.expect(map[string]any{"op": "ERR", "code": "bad_json", "corr": "x"})
	c.send(`{}`, `[1]`, `{"op":7}`)
	c.expect(map[string]any{"op": "ERR", "code": "bad_request", "msg": "op is missing"})
	c.expect(map[string]any{"op": "ERR", "code": "bad_json"})
	c.expect(map[string]any{"op": "ERR", "code": "bad_request"})
	c.send(`{"op":"AUTH","corr":"x"}`)
	c.expect(map[string]any{"op": "ERR", "code": "no_token", "corr": "x"})
	c.send(`{"op":"AUTH","token":"wrong-token","corr":"x"}`)
	c.expect(map[string]any{"op": "ERR", "code": "bad_token", "corr": "x"})
	c.send(`{"op":"AUTH","token":"broken","corr":"x"}`)
	c.expect(map[string]any{"op": "ERR", "code": "internal", "corr": "x"})
	c.send(pub("x", 1))
	c.expect(map[string]any{"op": "ERR", "code": "unauthorized"})

	c.send(`{"op":"AUTH","token":"` + goodToken + `"}`)
	ok := c.expect(map[string]any{"op": "OK", "corr": nil, "hub": "eventhub", "durability": "none"})
	want := map[string]any{"max_frame_bytes": 1310720.0, "max_payload_bytes": 1048576.0, "max_subscriptions": 128.0}
	if diff := cmp.Diff(want, ok["limits"]); diff != "" {
		t.Errorf("limits (-want +got):\n%s", diff)
	}
	sub := c.subscribe(f)

	// A failed renewal changes nothing, one that succeeds takes effect at once
	// and leaves subscriptions alone.
	f.journal.take()
	c.send(pub("1", 1), `{"op":"AUTH","token":"wrong-token","corr":"2"}`, pub("3", 3), `{"op":"AUTH","token":"other","corr":"4"}`, pub("5", 5), ack("a", `,"corr":"6"`))
	c.expect(map[string]any{"op": "OK", "corr": "1"})
	c.expect(map[string]any{"op": "ERR", "code": "bad_token", "corr": "2"})
	c.expect(map[string]any{"op": "OK", "corr": "3"})
	c.expect(map[string]any{"op": "OK", "corr": "4"})
	c.expect(map[string]any{"op": "OK", "corr": "5"})
	c.expect(map[string]any{"op": "OK", "corr": "6"})
	wantJournal(t, f, "publish 1", "publish 3", "second publisher 5", "settle t::g ack a")
	if n := sub.receiver.Deliver([]eventhub.Delivery{delivery(1, 10)}); n != 1 {
		t.Errorf("the subscription took %d deliveries after the renewal; want 1", n)
	}
	c.expect(map[string]any{"op": "EVENT"})

	c.conn.Close()
	receive(t, "closed connection", f.log.closed)
	for _, secret := range []string{goodToken, "wrong-token", `"payload"`} {
		if strings.Contains(f.log.text.String(), secret) {
			t.Errorf("the log holds %q", secret)
		}
	}
}

func TestSubscribe(t *testing.T) {
	f := serve(t, func(c *Config) { c.MaxSubscriptions = 2 })
	c := f.login(t)
	c.send(`{"op":"SUBSCRIBE","topic":"t","group":"g","opts":{"max_in_flight":7,"from":"earliest"},"corr":"1"}`)
	c.expect(map[string]any{"op": "OK", "corr": "1"})
	sub := <-f.sub.joined
	if sub.opts.Topic != "t" || sub.opts.Group != "g" || sub.opts.MaxInFlight != 7 || sub.opts.Start.Kind != eventhub.StartEarliest {
		t.Errorf("subscribed with %+v", sub.opts)
	}
	c.send(`{"op":"SUBSCRIBE","topic":"t","group":"g","corr":"2"}`)
	c.expect(map[string]any{"op": "ERR", "code": "already_subscribed", "msg": `this connection has a subscription of topic "t" as group "g" already`, "corr": "2"})

	f.sub.onSubscribe = func(context.Context, *fakeSubscription) error {
		return eventhub.Errorf(eventhub.CodeGroupMismatch, "max_attempts is 5")
	}
	c.send(`{"op":"SUBSCRIBE","topic":"u","group":"g","corr":"3"}`)
	c.expect(map[string]any{"op": "ERR", "code": "group_mismatch", "msg": "max_attempts is 5", "corr": "3"})
	f.sub.onSubscribe = nil

	c.send(`{"op":"SUBSCRIBE","topic":"u","group":"g","corr":"4"}`, `{"op":"SUBSCRIBE","topic":"v","group":"g","corr":"5"}`)
	c.expect(map[string]any{"op": "OK", "corr": "4"})
	c.expect(map[string]any{"op": "ERR", "code": "bad_request", "corr": "5"})

	d := delivery(42, 5)
	if n := sub.receiver.Deliver([]eventhub.Delivery{d, delivery(43, 5)}); n != 2 {
		t.Fatalf("took %d deliveries; want 2", n)
	}
	got := c.expect(map[string]any{"op": "EVENT", "topic": "t", "group": "g"})
	wantEvent := map[string]any{"offset": 42.0, "id": "ev-42", "ts": 1723140000000.0, "topic": "t", "payload": "xxxxx"}
	wantCtx := map[string]any{"attempt": 1.0, "max_attempts": 5.0, "ack_deadline_ms": 30000.0, "lease": d.Lease.String()}
	if diff := cmp.Diff(wantEvent, got["event"]); diff != "" {
		t.Errorf("event (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(wantCtx, got["ctx"]); diff != "" {
		t.Errorf("ctx (-want +got):\n%s", diff)
	}
	c.expect(map[string]any{"op": "EVENT"})

	// Nothing comes after the OK of UNSUBSCRIBE.
	c.send(`{"op":"UNSUBSCRIBE","topic":"t","group":"g","corr":"6"}`)
	c.expect(map[string]any{"op": "OK", "corr": "6"})
	if how := <-sub.left; how != "unsubscribe" {
		t.Errorf("left by %s", how)
	}
	if n := sub.receiver.Deliver([]eventhub.Delivery{d}); n != 0 {
		t.Errorf("took %d deliveries after UNSUBSCRIBE", n)
	}
	sub.receiver.Ended(errors.New("too late to matter"))
	c.send(`{"op":"UNSUBSCRIBE","topic":"t","group":"g","corr":"7"}`)
	c.expect(map[string]any{"op": "ERR", "code": "not_subscribed", "msg": `this connection has no subscription of topic "t" as group "g"`, "corr": "7"})
}

// TestDeliveriesBeforeTheAnswer has the group deliver, and another one end,
// while their SUBSCRIBE is still under way.
func TestDeliveriesBeforeTheAnswer(t *testing.T) {
	f := serve(t, nil)
	c := f.login(t)
	f.sub.onSubscribe = func(_ context.Context, sub *fakeSubscription) error {
		if n := sub.receiver.Deliver([]eventhub.Delivery{delivery(1, 5)}); n != 0 {
			t.Errorf("took %d deliveries before the OK; want 0", n)
		}
		return nil
	}
	sub := c.subscribe(f) // its OK is the next frame
	receive(t, "Ready", sub.ready)
	if n := sub.receiver.Deliver([]eventhub.Delivery{delivery(1, 5)}); n != 1 {
		t.Errorf("took %d deliveries after the OK; want 1", n)
	}
	c.expect(map[string]any{"op": "EVENT"})

	f.sub.onSubscribe = func(_ context.Context, sub *fakeSubscription) error {
		sub.receiver.Ended(eventhub.Errorf(eventhub.CodeShuttingDown, "The hub stops."))
		return nil
	}
	c.send(`{"op":"SUBSCRIBE","topic":"u","group":"g","corr":"2"}`)
	c.expect(map[string]any{"op": "ERR", "code": "shutting_down", "msg": "The hub stops.", "corr": "2"})
	c.send(`{"op":"UNSUBSCRIBE","topic":"u","group":"g","corr":"3"}`)
	c.expect(map[string]any{"op": "ERR", "code": "not_subscribed", "corr": "3"})
}

// TestSubscriptionEndsByItself: an ERR says which and why, and may come
// again.
func TestSubscriptionEndsByItself(t *testing.T) {
	f := serve(t, nil)
	c := f.login(t)
	sub := c.subscribe(f)
	sub.receiver.Ended(eventhub.Errorf(eventhub.CodeShuttingDown, "The hub stops."))
	c.expect(map[string]any{"op": "ERR", "code": "shutting_down", "msg": `the subscription of topic "t" as group "g" has ended: The hub stops.`, "topic": "t", "group": "g", "corr": nil})
	broken := c.subscribe(f)
	broken.receiver.Ended(errors.New("disk on fire"))
	if got := c.expect(map[string]any{"op": "ERR", "code": "internal"}); strings.Contains(fmt.Sprint(got), "fire") {
		t.Errorf("the cause is shown: %v", got)
	}
	if !strings.Contains(f.log.text.String(), "disk on fire") {
		t.Error("the cause is not in the log")
	}
	if n := sub.receiver.Deliver([]eventhub.Delivery{delivery(1, 5)}); n != 0 {
		t.Errorf("took %d deliveries after the end", n)
	}
	again := c.subscribe(f)
	c.write(closing(1000, ""))
	c.expectClose(1000)
	if how := receive(t, "end of the subscription", again.left); how != "drop" {
		t.Errorf("left by %s; want drop", how)
	}
	receive(t, "closed connection", f.log.closed)
	select {
	case how := <-sub.left:
		t.Errorf("the subscription that ended by itself was left again: %s", how)
	default:
	}
}
