package ws

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"eventhub"
)

// same publishes an event with the id x to each topic, one after the other.
func (e *engine) same(topics ...string) {
	e.t.Helper()
	for _, topic := range topics {
		if _, err := e.bus.Publish(e.t.Context(), eventhub.Event{Topic: topic, ID: "x", Payload: []byte("1")}); err != nil {
			e.t.Fatal(err)
		}
		synctest.Wait()
	}
}

// deliveries reads n EVENTs and returns "topic/id#attempt" of each, in order, and
// their leases.
func (c *client) deliveries(n int) (came, leases []string) {
	c.t.Helper()
	for range n {
		m := c.expect(map[string]any{"op": "EVENT"})
		event, ctx := m["event"].(map[string]any), m["ctx"].(map[string]any)
		came = append(came, fmt.Sprintf("%v/%v#%v", event["topic"], event["id"], ctx["attempt"]))
		leases = append(leases, fmt.Sprint(ctx["lease"]))
	}
	return came, leases
}

// TestSettleByTheEventsTopic: a verdict that names the event's own topic is about the
// event there and about no other, whatever else has the same id.
func TestSettleByTheEventsTopic(t *testing.T) {
	for _, verdict := range []string{
		`"op":"ACK"`, `"op":"NACK","delay_ms":100`, `"op":"NACK","terminal":true`, `"op":"MODACK","extend_ms":3000000`,
		`"op":"ACK","publish":[{"topic":"r","payload":1}]`,
	} {
		for _, topics := range [][2]string{{"tri.a", "tri.b"}, {"tri.b", "tri.a"}} {
			for _, named := range []string{`"id":"x"`, `"ids":["x"]`} {
				t.Run(verdict+topics[0]+named, func(t *testing.T) {
					withEngine(t, func(t *testing.T, e *engine) { testSettleByTopic(t, e, verdict+","+named, topics[0], topics[1]) })
				})
			}
		}
	}
}

func testSettleByTopic(t *testing.T, e *engine, verdict, meant, other string) {
	c := e.login()
	c.ok(`{"op":"SUBSCRIBE","topic":"tri.*","group":"g","corr":"s"}`)
	e.same("tri.a", "tri.b")
	c.deliveries(2)
	was, others := e.inFlight(meant), e.inFlight(other)
	c.send(fmt.Sprintf(`{%s,"topic":%q,"group":"g","corr":"v"}`, verdict, meant))
	c.expect(map[string]any{"op": "OK", "corr": "v", "stale": nil})
	synctest.Wait()
	if now := e.inFlight(meant); now == was {
		t.Errorf("the event of %s has changed nothing: %s", meant, now)
	}
	if now := e.inFlight(other); now != others {
		t.Errorf("the event of %s, which was not meant, was %s and is %s", other, others, now)
	}
}

// inFlight returns the events of a topic that the group g is at.
func (e *engine) inFlight(topic string) string {
	e.t.Helper()
	list, err := e.bus.InFlight(e.t.Context(), topic, "g", 10)
	if err != nil {
		e.t.Fatal(err)
	}
	text, err := json.Marshal(list)
	if err != nil {
		e.t.Fatal(err)
	}
	return string(text)
}

// TestSettleByThePattern: the name of a subscription leaves the topic open. An id that
// it has in one topic is enough; where it has it in several, nothing is settled.
func TestSettleByThePattern(t *testing.T) {
	withEngine(t, func(t *testing.T, e *engine) {
		c := e.login()
		c.ok(`{"op":"SUBSCRIBE","topic":"tri.*","group":"g","corr":"s"}`)
		e.same("tri.a", "tri.b")
		e.publish("tri.a", 1, 1)
		c.deliveries(3)
		for _, verdict := range []string{`"op":"ACK"`, `"op":"NACK"`, `"op":"NACK","terminal":true`, `"op":"MODACK"`, `"op":"ACK","publish":[{"topic":"r","payload":1}]`} {
			c.send(fmt.Sprintf(`{%s,"topic":"tri.*","group":"g","id":"x","corr":"v"}`, verdict))
			c.expect(map[string]any{"op": "ERR", "code": "bad_request", "corr": "v"})
		}
		// Those of the list that are clear are done.
		c.send(`{"op":"ACK","topic":"tri.*","group":"g","ids":["x","e1","nobody"],"corr":"v"}`)
		c.expect(map[string]any{"op": "ERR", "code": "bad_request", "corr": "v"})
		if a, b := e.cursor("tri.a", "g"), e.cursor("tri.b", "g"); a != 0 || b != 0 {
			t.Errorf("the cursors are %d and %d; want that nothing is done in front of x", a, b)
		}
		c.ok(`{"op":"ACK","topic":"tri.a","group":"g","id":"x","corr":"v"}`)
		if a, b := e.cursor("tri.a", "g"), e.cursor("tri.b", "g"); a != 2 || b != 0 {
			t.Errorf("the cursors are %d and %d; want 2 and 0", a, b)
		}
		// Now one topic alone has it.
		c.ok(`{"op":"ACK","topic":"tri.*","group":"g","id":"x","corr":"v"}`)
		if b := e.cursor("tri.b", "g"); b != 1 {
			t.Errorf("the cursor is %d; want 1", b)
		}
	})
}

// TestSettleOfAnotherTopicsLease: a lease with another event's topic names nothing.
func TestSettleOfAnotherTopicsLease(t *testing.T) {
	withEngine(t, func(t *testing.T, e *engine) {
		c := e.login()
		c.ok(`{"op":"SUBSCRIBE","topic":"tri.*","group":"g","corr":"s"}`)
		e.same("tri.a", "tri.b")
		came, leases := c.deliveries(2)
		c.send(fmt.Sprintf(`{"op":"ACK","topic":"tri.b","group":"g","lease":%q,"corr":"v"}`, leases[slices.Index(came, "tri.a/x#1")]))
		c.expect(map[string]any{"op": "OK", "corr": "v", "stale": true})
		c.send(fmt.Sprintf(`{"op":"ACK","topic":"tri.a","group":"g","lease":%q,"corr":"v"}`, leases[slices.Index(came, "tri.a/x#1")]))
		c.expect(map[string]any{"op": "OK", "corr": "v", "stale": nil})
	})
}

// TestSettleOverTheLivesOfATopic: what is said of a topic that was deleted has no
// effect, in a list with others too, and an id means the event of the topic's present
// life.
func TestSettleOverTheLivesOfATopic(t *testing.T) {
	withEngine(t, func(t *testing.T, e *engine) {
		c := e.login()
		c.ok(`{"op":"SUBSCRIBE","topic":"tri.*","group":"g","corr":"s"}`)
		e.same("tri.a", "tri.b")
		came, leases := c.deliveries(2)
		first := leases[slices.Index(came, "tri.a/x#1")]
		if err := e.bus.DeleteTopic(t.Context(), "tri.a"); err != nil {
			t.Fatal(err)
		}
		c.send(`{"op":"ACK","topic":"tri.a","group":"g","id":"x","corr":"v"}`)
		c.expect(map[string]any{"op": "OK", "corr": "v", "stale": true})
		e.publish("tri.a", 1, 3)
		e.same("tri.a")
		c.deliveries(4)
		c.send(fmt.Sprintf(`{"op":"ACK","topic":"tri.*","group":"g","lease":[%q],"corr":"v"}`, first))
		c.expect(map[string]any{"op": "OK", "corr": "v", "stale": true})
		c.send(`{"op":"ACK","topic":"tri.a","group":"g","ids":["e1","e2","x","e3"],"corr":"v"}`)
		c.expect(map[string]any{"op": "OK", "corr": "v", "stale": nil})
		if a, b := e.cursor("tri.a", "g"), e.cursor("tri.b", "g"); a < 4 || b != 0 {
			t.Errorf("the cursors are %d and %d; want all of tri.a and nothing of tri.b", a, b)
		}
	})
}
