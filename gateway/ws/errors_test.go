package ws

import (
	"strings"
	"testing"

	"eventhub"
)

// TestErrorsAreSentences: whatever a frame can be refused for, msg names the value in
// question and says in words what is wrong with it.
func TestErrorsAreSentences(t *testing.T) {
	withEngine(t, func(t *testing.T, e *engine) {
		c := e.login()
		c.ok(`{"op":"PUBLISH","topic":"x","payload":1,"opts":{"id":"one"}}`)
		c.ok(`{"op":"SUBSCRIBE","topic":"x","group":"g"}`)
		c.ok(`{"op":"SUBSCRIBE","topic":"x"}`)
		c.ok(`{"op":"SUBSCRIBE","topic":"p.*","group":"h"}`)
		c.ok(`{"op":"SUBSCRIBE","topic":"p.**","group":"h"}`)
		c.ok(`{"op":"SUBSCRIBE","topic":"idle","group":"slow"}`)
		for _, r := range []struct {
			code   eventhub.Code
			frame  string
			values []string
		}{
			{eventhub.CodeBadJSON, `{"op":"PUBLISH","op":"ACK"}`, []string{`"op"`}},
			{eventhub.CodeBadRequest, `{"op":"SUBSCRIBE","topic":"x","group":"a b"}`, []string{`"a b"`}},
			{eventhub.CodeBadTopic, `{"op":"PUBLISH","topic":"a b","payload":1}`, []string{`"a b"`}},
			{eventhub.CodeBadEvent, `{"op":"PUBLISH","topic":"x","payload":1,"opts":{"id":"a b"}}`, []string{`"a b"`}},
			{eventhub.CodeForbidden, `{"op":"PUBLISH","topic":"x.dlq","payload":1}`, []string{`"x.dlq"`}},
			{eventhub.CodeUnsupportedOp, `{"op":"FETCH"}`, []string{`"FETCH"`}},
			{eventhub.CodeAlreadySubscribed, `{"op":"SUBSCRIBE","topic":"x","group":"g"}`, []string{`"x"`, `"g"`}},
			{eventhub.CodeAlreadySubscribed, `{"op":"SUBSCRIBE","topic":"x"}`, []string{`"x"`, "live tail"}},
			{eventhub.CodeNotSubscribed, `{"op":"ACK","topic":"x","group":"g2","id":"one"}`, []string{`"x"`, `"g2"`}},
			{eventhub.CodeNotSubscribed, `{"op":"UNSUBSCRIBE","topic":"x","group":"g2"}`, []string{`"x"`, `"g2"`}},
			{eventhub.CodeNotSubscribed, `{"op":"PAUSE","topic":"y"}`, []string{`"y"`, "live tail"}},
			{eventhub.CodeNotSubscribed, `{"op":"PUBLISH","topic":"x","payload":1,"opts":{"wait_for":["nobody"]}}`, []string{`"x"`, `"nobody"`}},
			{eventhub.CodeBadRequest, `{"op":"ACK","topic":"p.a","group":"h","id":"one"}`, []string{`"p.a"`, `"h"`}},
			{eventhub.CodeUnknownID, `{"op":"SUBSCRIBE","topic":"x","group":"k","opts":{"from":"after_id","after_id":"two"}}`, []string{`"two"`, `"x"`}},
			{eventhub.CodeUnknownID, `{"op":"MODACK","topic":"x","group":"g","id":"two"}`, []string{`"two"`}},
			{eventhub.CodeLeaseLost, `{"op":"ACK","topic":"x","group":"g","id":"two","publish":[{"topic":"x","payload":1}]}`, []string{`"two"`}},
			{eventhub.CodeWaitTimeout, `{"op":"PUBLISH","topic":"idle","payload":1,"opts":{"id":"late","wait_for":["slow"],"wait_ms":1}}`, []string{`"slow"`, `"late"`, `"idle"`}},
			{eventhub.CodeGroupMismatch, `{"op":"SUBSCRIBE","topic":"x","group":"g","opts":{"ordering":"key"}}`, []string{`"key"`, `"g"`}},
		} {
			if r.code == eventhub.CodeGroupMismatch { // of what another connection asks for
				c = e.login()
			}
			c.send(r.frame)
			m := c.message()
			for m["op"] != "ERR" && m["op"] != "OK" {
				m = c.message() // an event of the tail
			}
			msg, _ := m["msg"].(string)
			if m["code"] != string(r.code) || len(strings.Fields(msg)) < 4 {
				t.Errorf("%s is answered %v; want %s and a sentence", r.frame, m, r.code)
			}
			for _, value := range r.values {
				if !strings.Contains(msg, value) {
					t.Errorf("%s is answered %q, without %s", r.frame, msg, value)
				}
			}
		}
	})
}
