package ws

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"eventhub"
)

// tailDelivery makes one as a live tail gets it.
func tailDelivery(offset uint64, n int) eventhub.Delivery {
	d := delivery(offset, n)
	d.Lease, d.AckTimeout, d.MaxAttempts = eventhub.Lease{}, 0, 0
	return d
}

// TestTail: a SUBSCRIBE without group is a subscription of its own next to those
// of groups, named by its topic; its frames have neither group nor ctx.
func TestTail(t *testing.T) {
	f := serve(t, nil)
	c := f.login(t)
	member := c.subscribe(f)
	c.send(`{"op":"SUBSCRIBE","topic":"t","opts":{"from":"earliest"},"corr":"1"}`)
	c.expect(map[string]any{"op": "OK", "corr": "1"})
	tail := <-f.sub.joined
	if o := tail.opts; o.Topic != "t" || o.Group != "" || !o.AutoAck || o.Start.Kind != eventhub.StartEarliest {
		t.Errorf("subscribed with %+v", o)
	}
	for _, sub := range []*fakeSubscription{member, tail} {
		want := eventhub.Peer{Transport: "ws", Name: "tester " + c.conn.LocalAddr().String()}
		if diff := cmp.Diff(want, sub.opts.Peer); diff != "" {
			t.Errorf("peer (-want +got):\n%s", diff)
		}
	}
	c.send(`{"op":"SUBSCRIBE","topic":"t","corr":"2"}`)
	c.expect(map[string]any{"op": "ERR", "code": "already_subscribed", "msg": `this connection has a live tail of topic "t" already`, "corr": "2"})

	if n := tail.receiver.Deliver([]eventhub.Delivery{tailDelivery(7, 3)}); n != 1 {
		t.Fatalf("took %d deliveries; want 1", n)
	}
	want := map[string]any{"op": "EVENT", "topic": "t",
		"event": map[string]any{"offset": 7.0, "id": "ev-7", "ts": 1723140000000.0, "topic": "t", "payload": "xxx"}}
	if diff := cmp.Diff(want, c.message()); diff != "" {
		t.Errorf("EVENT (-want +got):\n%s", diff)
	}
	c.send(`{"op":"ACK","topic":"t","id":"ev-7","corr":"3"}`)
	c.expect(map[string]any{"op": "ERR", "code": "bad_request", "msg": "group is missing", "corr": "3"})

	c.send(`{"op":"UNSUBSCRIBE","topic":"t","corr":"4"}`, `{"op":"UNSUBSCRIBE","topic":"t","corr":"5"}`)
	c.expect(map[string]any{"op": "OK", "corr": "4"})
	c.expect(map[string]any{"op": "ERR", "code": "not_subscribed", "msg": `this connection has no live tail of topic "t"`, "corr": "5"})
	if how := <-tail.left; how != "unsubscribe" {
		t.Errorf("left by %s", how)
	}
	if n := member.receiver.Deliver([]eventhub.Delivery{delivery(1, 1)}); n != 1 {
		t.Error("the member of the group went with the tail")
	}
	c.expect(map[string]any{"op": "EVENT", "group": "g"})

	c.send(`{"op":"SUBSCRIBE","topic":"t","corr":"6"}`)
	c.expect(map[string]any{"op": "OK", "corr": "6"})
	(<-f.sub.joined).receiver.Ended(errors.New("disk on fire"))
	c.expect(map[string]any{"op": "ERR", "code": "internal", "msg": "the live tail of topic \"t\" has ended: It failed on the hub's side; its log has the cause.", "corr": nil})
}

// TestSlowTail: a peer that does not read makes its tail wait; when it reads
// again everything comes, in order.
func TestSlowTail(t *testing.T) {
	const events, size = 500, 1000
	inBubble(t, func(c *Config) { c.OutboundBytes = 20_000 }, func(t *testing.T, f *fixture) {
		c := f.pipe(t)
		c.auth()
		c.send(`{"op":"SUBSCRIBE","topic":"t","corr":"1"}`)
		c.expect(map[string]any{"op": "OK", "corr": "1"})
		tail := <-f.sub.joined
		batch := make([]eventhub.Delivery, events)
		for i := range batch {
			batch[i] = tailDelivery(uint64(i+1), size)
		}
		first := tail.receiver.Deliver(batch)
		if first < 10 || first > 20 {
			t.Errorf("%d events of %d bytes were taken into 20,000 bytes", first, size)
		}
		rest := batch[first:]
		go func() { // the engine, which goes on whenever there is room
			for len(rest) > 0 {
				<-tail.ready
				rest = rest[tail.receiver.Deliver(rest):]
			}
		}()
		c.expectEvents(1, events)
		synctest.Wait()
		c.conn.Close()
		<-f.log.closed
	})
}

// TestGapsAreReported: the OK of a tail says where the log does not continue after its places.
func TestGapsAreReported(t *testing.T) {
	withEngine(t, func(t *testing.T, e *engine) {
		c := e.login()
		e.publish("t.a", 1, 3)
		c.send(`{"op":"SUBSCRIBE","topic":"t.*","corr":"1","opts":{"places":[{"topic":"t.a","offset":1},{"topic":"t.b","offset":0},{"topic":"u","offset":4}]}}`)
		known, _ := c.message()["known"].(string)
		if known == "" {
			t.Error("the OK of a tail does not say what is known")
		}
		c.expect(map[string]any{"op": "EVENT"})
		c.expect(map[string]any{"op": "EVENT"})
		c.send(`{"op":"SUBSCRIBE","topic":"t.a","corr":"2","opts":{"places":[{"topic":"t.a","offset":9,"ts":5}]}}`)
		c.expectAll(map[string]any{"op": "OK", "corr": "2", "known": known, "gaps": []any{
			map[string]any{"topic": "t.a", "after": 9.0, "first": 0.0}}})
		for range 3 {
			c.expect(map[string]any{"op": "EVENT"})
		}
		c.send(`{"op":"SUBSCRIBE","topic":"*.*","corr":"3","opts":{"places":[{"topic":"t.z","offset":7},{"topic":"t.a","offset":3},{"topic":"t.c","offset":9}]}}`)
		c.expectAll(map[string]any{"op": "OK", "corr": "3", "known": known, "gaps": []any{
			map[string]any{"topic": "t.c", "after": 9.0, "first": 0.0}, map[string]any{"topic": "t.z", "after": 7.0, "first": 0.0}}})
	})
}

// TestRemovedIsReported: what was removed when a tail begins is in its OK; what is removed
// later, before the tail has it, is in the ctx of its next event, and in no other.
func TestRemovedIsReported(t *testing.T) {
	withEngine(t, func(t *testing.T, e *engine) {
		gap := func(after, first float64) map[string]any { return map[string]any{"after": after, "first": first} }
		c := e.login()
		e.publish("t", 1, 4)
		e.trim("t", 3)
		c.send(`{"op":"SUBSCRIBE","topic":"t","corr":"1","opts":{"from":"offset","offset":2}}`)
		if m := c.message(); !reflect.DeepEqual(m["gaps"], []any{map[string]any{"topic": "t", "after": 1.0, "first": 3.0}}) {
			t.Errorf("the OK is %v", m)
		}
		for range 2 {
			if m := c.message(); m["op"] != "EVENT" || m["ctx"] != nil {
				t.Errorf("came %v; want an event without ctx", m)
			}
		}
		for _, batch := range []bool{false, true} {
			c := e.login()
			c.ok(`{"op":"SUBSCRIBE","topic":"t","corr":"1","opts":{"batch":%v}}`, batch)
			c.ok(`{"op":"PAUSE","topic":"t","corr":"2"}`)
			head, err := e.store.Head(context.Background(), "t")
			if err != nil {
				t.Fatal(err)
			}
			e.publish("t", int(head)+1, 4)
			synctest.Wait()
			e.trim("t", head+3)
			c.ok(`{"op":"RESUME","topic":"t","corr":"3"}`)
			want := map[string]any{"gap": gap(float64(head), float64(head+3))}
			var came []map[string]any
			for len(came) < 2 {
				m := c.message()
				if !batch {
					came = append(came, m)
					continue
				}
				for _, event := range m["events"].([]any) {
					came = append(came, event.(map[string]any))
				}
			}
			first, second := came[0], came[1]
			if !reflect.DeepEqual(first["ctx"], want) || second["ctx"] != nil {
				t.Errorf("the first event is %v, the second %v; want that the first has the ctx %v", first, second, want)
			}
		}
	})
}
