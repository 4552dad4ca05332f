package ws

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"eventhub"
	"eventhub/auth/guard"
	"eventhub/auth/policy"
)

// withRights is withEngine for tokens that are scopes, behind guards.
func withRights(t *testing.T, test func(*testing.T, *engine)) {
	withEngine(t, func(t *testing.T, e *engine) {
		e.gw.cfg.Authenticate = func(_ context.Context, token string, _ bool) (Access, error) {
			limited := guard.For(e.bus, policy.Scopes(strings.Fields(token)), nil)
			return Access{
				Publisher: limited, Subscriber: limited, Scheduler: limited, Name: "tester",
				Adopt: func(sub eventhub.Subscription, patterns []eventhub.Pattern, group string) (eventhub.Subscription, error) {
					return guard.Adopt(limited, sub, patterns, group)
				},
			}, nil
		}
		test(t, e)
	})
}

// TestRenewedRights: another AUTH ends the subscriptions that are forbidden from then on, with
// an ERR that names them, before its OK; all others go on, and what their acks may publish is
// what the new token says.
func TestRenewedRights(t *testing.T) {
	for _, first := range []string{"*", "subscribe publish:out.*", "subscribe:a subscribe:p.** publish:out.*"} {
		t.Run(first, func(t *testing.T) {
			withRights(t, func(t *testing.T, e *engine) {
				c := e.pipe(t)
				c.ok(`{"op":"AUTH","token":%q}`, first)
				for _, of := range []string{`"topic":"a","group":"g"`, `"topic":"p.*","group":"g"`, `"topic":"p.x","group":"g"`, `"topic":"p.x"`} {
					c.ok(`{"op":"SUBSCRIBE",%s}`, of)
				}
				c.send(`{"op":"AUTH","token":"subscribe:a subscribe:p.x publish:new.*"}`)
				c.expect(map[string]any{"op": "ERR", "code": "forbidden", "topic": "p.*", "group": "g", "corr": nil})
				c.expect(map[string]any{"op": "OK", "hub": "eventhub"})
				c.ok(`{"op":"PAUSE","topic":"p.x","group":"g"}`) // it goes on, as the tail does
				e.publish("a", 1, 1)
				c.wantAttempts("e1#1")
				c.send(`{"op":"ACK","topic":"a","group":"g","id":"e1","corr":"1","publish":[{"topic":"out.x","payload":1}]}`)
				err := c.expect(map[string]any{"op": "ERR", "code": "forbidden", "corr": "1"})
				if text := err["msg"].(string); !strings.Contains(text, "publish") || !strings.Contains(text, `"out.x"`) {
					t.Errorf("%s does not name the action and the topic", text)
				}
				c.ok(`{"op":"ACK","topic":"a","group":"g","id":"e1","corr":"2","publish":[{"topic":"new.x","payload":1}]}`)
				c.send(`{"op":"ACK","topic":"p.*","group":"g","id":"e1","corr":"3"}`)
				c.expect(map[string]any{"op": "ERR", "code": "not_subscribed"})
				e.publish("p.y", 2, 1)
				e.publish("p.x", 3, 1)
				event := c.expect(map[string]any{"op": "EVENT", "topic": "p.x"})
				if event["group"] != nil {
					t.Errorf("%v; the tail alone was to get it", event)
				}
				synctest.Wait()
				c.send(`{"op":"AUTH","token":"publish:new.*","corr":"none"}`)
				for _, of := range []map[string]any{{"topic": "a", "group": "g"}, {"topic": "p.x"}, {"topic": "p.x", "group": "g"}} {
					of["op"], of["code"] = "ERR", "forbidden"
					c.expect(of)
				}
				c.expect(map[string]any{"op": "OK", "corr": "none"})
				if subs := len(e.gw.open()[0].subs); subs != 0 {
					t.Errorf("%d subscriptions are left", subs)
				}
			})
		})
	}
}

// TestRenewedWithTheSameRights: patterns go on, and topics that are created later join.
func TestRenewedWithTheSameRights(t *testing.T) {
	withRights(t, func(t *testing.T, e *engine) {
		c := e.pipe(t)
		for _, token := range []string{"subscribe:p.*", "subscribe:p.* publish:x", "subscribe:p.** read:x", "*", "subscribe:p.*"} {
			c.ok(`{"op":"AUTH","token":%q}`, token)
			if token == "subscribe:p.*" && len(e.gw.open()[0].subs) == 0 {
				c.ok(`{"op":"SUBSCRIBE","topic":"**","group":"g"}`)
			}
		}
		e.publish("p.x", 1, 1)
		e.publish("q", 2, 1)
		c.wantAttempts("e1#1")
	})
}
