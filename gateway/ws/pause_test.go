package ws

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"eventhub"
)

// TestPauseAndResume: PAUSE and RESUME reach the subscription that they name, in their
// turn, and are refused where there is none.
func TestPauseAndResume(t *testing.T) {
	f := serve(t, nil)
	c := f.login(t)
	member := c.subscribe(f)
	c.send(`{"op":"SUBSCRIBE","topic":"t","corr":"1"}`)
	c.expect(map[string]any{"op": "OK", "corr": "1"})
	f.take()

	c.send(
		`{"op":"ACK","topic":"t","group":"g","id":"x"}`,
		`{"op":"PAUSE","topic":"t","group":"g","corr":"2"}`,
		`{"op":"RESUME","topic":"t","corr":"3"}`,
		`{"op":"RESUME","topic":"t","group":"g"}`,
		`{"op":"PAUSE","topic":"t","group":"other","corr":"5"}`,
		`{"op":"RESUME","topic":"u","corr":"6"}`,
	)
	c.expect(map[string]any{"op": "OK", "corr": "2"})
	c.expect(map[string]any{"op": "OK", "corr": "3"})
	c.expect(map[string]any{"op": "OK", "corr": nil})
	c.expect(map[string]any{"op": "ERR", "code": "not_subscribed", "msg": `this connection has no subscription of topic "t" as group "other"`, "corr": "5"})
	c.expect(map[string]any{"op": "ERR", "code": "not_subscribed", "msg": `this connection has no live tail of topic "u"`, "corr": "6"})
	if got, want := f.take(), []string{"settle t::g ack x", "pause t::g", "resume t::", "resume t::g"}; !slices.Equal(got, want) {
		t.Errorf("asked for %q; want %q", got, want)
	}

	member.pauseErr = eventhub.Errorf(eventhub.CodeShuttingDown, "The hub stops.")
	c.send(`{"op":"PAUSE","topic":"t","group":"g","corr":"7"}`)
	c.expect(map[string]any{"op": "ERR", "code": "shutting_down", "msg": "The hub stops.", "corr": "7"})
	member.pauseErr = errors.New("secret")
	c.send(`{"op":"RESUME","topic":"t","group":"g","corr":"8"}`)
	c.expect(map[string]any{"op": "ERR", "code": "internal", "msg": "It failed on the hub's side; its log has the cause.", "corr": "8"})

	c.send(`{"op":"UNSUBSCRIBE","topic":"t","group":"g","corr":"9"}`, `{"op":"PAUSE","topic":"t","group":"g","corr":"10"}`)
	c.expect(map[string]any{"op": "OK", "corr": "9"})
	c.expect(map[string]any{"op": "ERR", "code": "not_subscribed", "corr": "10"})
}

// TestUnsentOfWhatIsCounted: each member is notified of its own deliveries, whatever
// is between them in the buffer.
func TestUnsentOfWhatIsCounted(t *testing.T) {
	t.Run("EVENT", func(t *testing.T) { testUnsentOf(t, false) })
	t.Run("EVENTS", func(t *testing.T) { testUnsentOf(t, true) })
}

func testUnsentOf(t *testing.T, many bool) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		c := f.pipe(t)
		c.auth()
		c.ok(`{"op":"SUBSCRIBE","topic":"t","group":"g","opts":{"batch":%v}}`, many)
		member := <-f.sub.joined
		c.send(`{"op":"SUBSCRIBE","topic":"t","corr":"1"}`)
		c.expect(map[string]any{"op": "OK", "corr": "1"})
		tail := <-f.sub.joined
		member.receiver.Deliver([]eventhub.Delivery{delivery(1, 10), delivery(2, 10)})
		if many {
			c.expectBatch(1, 2)
		} else {
			c.expectEvents(1, 2)
		}
		member.receiver.Deliver([]eventhub.Delivery{delivery(3, 10), delivery(4, 10)})
		synctest.Wait() // these are in a write that never ends
		c.send(`{"op":"PAUSE","topic":"t","group":"g","corr":"2"}`)
		for n := range 30 {
			member.receiver.Deliver([]eventhub.Delivery{delivery(uint64(5+2*n), 1000*n), delivery(uint64(6+2*n), 1)})
			if n%3 == 0 {
				tail.receiver.Deliver([]eventhub.Delivery{tailDelivery(uint64(5+n), 1)})
			}
		}
		c.conn.Close()
		<-f.log.closed
		if sent := member.sent.Load(); sent != 2 {
			t.Errorf("%d deliveries were reported as sent; want the 2 that came", sent)
		}
		for _, want := range []struct {
			sub    *fakeSubscription
			unsent int
		}{{member, 62}, {tail, 0}} { // a tail has nothing to give back
			if how := <-want.sub.left; how != "drop" || want.sub.unsent != want.unsent {
				t.Errorf("left by %s with %d unsent; want drop with %d", how, want.sub.unsent, want.unsent)
			}
		}
	})
}
