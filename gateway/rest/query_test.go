package rest_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"eventhub"
	"eventhub/hub"
	"eventhub/internal/naming"
)

// TestAliases: a query and a body mean the same with an alias in place of a name, and
// are refused with both.
func TestAliases(t *testing.T) {
	c := caller{t, startHub(t, hub.MemoryStore)}
	c.deadLetter("t", "g", 3)
	if _, err := c.h.Bus().Publish(t.Context(), eventhub.Event{Topic: "t", Headers: map[string]string{"x-correlation-id": "c"},
		CausedBy: []string{"early"}, Payload: []byte("1")}); err != nil {
		t.Fatal(err)
	}
	used := make(map[string]bool)
	for _, tt := range []struct{ target, body string }{
		{"/replay?topic=t&after_id=none", ""},
		{"/replay?topic=t&from=after_id&after_id=none", ""},
		{"/export?topic=t&from_ts=2&to_ts=1", ""},
		{"/v1/events?correlation_id=c", ""},
		{"/v1/events?caused_by=early", ""},
		{"/v1/dlq/t?from_ts=1&to_ts=2", ""},
		{"/v1/dlq/t/redrive", `{"from_ts":1,"to_ts":2}`},
		{"/v1/topics/t/groups/g/seek?from=after_id&after_id=none", ""},
		{"/v1/topics/t/groups/g/seek", `{"from":"after_id","after_id":"none"}`},
		{"/v1/topics/t/groups/g/pull", `{"ack_timeout_ms":999}`},
		{"/v1/topics/t/groups/g/pull", `{"max_attempts":0}`},
		{"/v1/topics/t/groups/g/pull", `{"backoff":{"min_ms":-1}}`},
		{"/v1/topics/t/groups/g/pull", `{"backoff":{"max_ms":-1}}`},
		{"/publish/a%20b?caused_by=early", "1"},
		{"/v1/publish", `{"events":[{"topic":"a b","payload":1,"caused_by":["early"]}]}`},
		{"/v1/topics/t/groups/g/ack", `{"leases":["1-1-1"],"publish":[{"topic":"a b","payload":1,"opts":{"caused_by":["x"]}}]}`},
		{"/v1/topics/settings.of", `{"retention_days":0}`},
		{"/v1/topics/settings.of", `{"snapshot":{"batch_keys":["a"],"key_source":"event.key","interval_ms":0}}`},
	} {
		method := "POST"
		if tt.body == "" && !strings.Contains(tt.target, "/seek") {
			method = "GET"
		} else if tt.target == "/v1/topics/settings.of" {
			method = "PUT"
		}
		_, want, _ := c.request(method, tt.target, tt.body)
		for _, a := range naming.Aliases {
			target := strings.NewReplacer("?"+a.Name+"=", "?"+a.Alias+"=", "&"+a.Name+"=", "&"+a.Alias+"=", "from="+a.Name, "from="+a.Alias).Replace(tt.target)
			body := strings.NewReplacer(`"`+a.Name+`":`, `"`+a.Alias+`":`, `"from":"`+a.Name, `"from":"`+a.Alias).Replace(tt.body)
			if target == tt.target && body == tt.body {
				continue
			}
			used[a.Name] = true
			if _, got, _ := c.request(method, target, body); got != want {
				t.Errorf("%s %s is answered %s; %s %s is answered %s", target, body, got, tt.target, tt.body, want)
			}
			target, body = tt.target, strings.Replace(tt.body, `"`+a.Name+`":`, `"`+a.Alias+`":[],"`+a.Name+`":`, 1)
			if body == tt.body {
				target += "&" + a.Alias + "=1"
			}
			if status, got, _ := c.request(method, target, body); status != 400 || !strings.Contains(got, a.Both()) {
				t.Errorf("%s %s is answered %d %s", target, body, status, got)
			}
		}
	}
	for _, a := range naming.Aliases {
		if strings.Contains("batch_size max_in_flight manual_ack", a.Name) == used[a.Name] {
			t.Errorf("%s in HTTP: %v", a.Name, used[a.Name])
		}
	}
}

// TestUnknownNames: the problem suggests the name that is nearest.
func TestUnknownNames(t *testing.T) {
	c := caller{t, startHub(t, hub.MemoryStore)}
	for _, tt := range []struct{ method, target, body, says string }{
		{"GET", "/replay?topic=t&after-id=x", "", `\"after-id\", which this path does not know; did you mean after_id?`},
		{"GET", "/v1/topics?limits=5", "", "did you mean limit?"},
		{"POST", "/publish/t?delay-ms=5", "1", "did you mean delay_ms?"},
		{"POST", "/v1/publish", `{"event":[]}`, "/event is not a known name; did you mean events?"},
		{"POST", "/v1/publish", `{"events":[{"topic":"t","payload":1,"causedby":[]}]}`, "did you mean caused_by?"},
		{"POST", "/v1/topics/t/groups/g/seek", `{"form":"earliest"}`, "/form is not a known name; did you mean from?"},
		{"POST", "/v1/topics/t/groups/g/pull", `{"maxattempts":3}`, "did you mean max_attempts?"},
		{"POST", "/v1/topics/t/groups/g/nack", `{"lease":["1-1-1"]}`, "did you mean leases?"},
		{"POST", "/v1/topics/t/groups/g/seek?from=lates", "", "did you mean latest?"},
		{"GET", "/v1/topics?zebra=5", "", `which this path does not know"`},
	} {
		if status, got, _ := c.request(tt.method, tt.target, tt.body); status != 400 || !strings.Contains(got, tt.says) {
			t.Errorf("%s %s is answered %d %s; want %s", tt.target, tt.body, status, got, tt.says)
		}
	}
}

// TestTimes: a time in a query is in epoch milliseconds, RFC 3339 or some time ago.
func TestTimes(t *testing.T) {
	c := caller{t, startHub(t, hub.MemoryStore)}
	c.deadLetter("t", "g", 1)
	for _, tt := range []struct{ target, past, future string }{
		{"/replay?topic=t&ts=", `"count":1`, `"count":0`},
		{"/replay?topic=t&from=ts&ts=", `"count":1`, `"count":0`},
		{"/export?topic=t&ndjson=0&from_ts=", `"id":"e1"`, "[]"},
		{"/export?topic=t&ndjson=0&from_ts=0&to_ts=", "[]", `"id":"e1"`},
		{"/v1/dlq/t?from_ts=", `"event_id":"e1"`, `"dead_letters":[]`},
		{"/v1/dlq/t?from_ts=0&to_ts=", `"dead_letters":[]`, `"event_id":"e1"`},
	} {
		for _, past := range []string{"1000", "1h", "2d%20ago", "2001-09-09T01:46:40Z", "2001-09-09T01:46:40+02:00", "2001-09-09T01:46:40%2B02:00"} {
			if status, got, _ := c.request("GET", tt.target+past, ""); status != 200 || !strings.Contains(got, tt.past) {
				t.Errorf("%s%s is answered %d %s; want %s", tt.target, past, status, got, tt.past)
			}
		}
		for _, future := range []string{"4102444800000", "2100-01-01T00:00:00Z"} {
			if status, got, _ := c.request("GET", tt.target+future, ""); status != 200 || !strings.Contains(got, tt.future) {
				t.Errorf("%s%s is answered %d %s; want %s", tt.target, future, status, got, tt.future)
			}
		}
	}
	at := time.Now().Add(time.Hour).Truncate(time.Second)
	want := fmt.Sprintf(`"deliver_at":%d`, at.UnixMilli())
	for _, form := range []string{at.UTC().Format(time.RFC3339), fmt.Sprint(at.UnixMilli())} {
		if status, got, _ := c.request("POST", "/publish/later?deliver_at="+form, "1"); status != 202 || !strings.Contains(got, want) {
			t.Errorf("deliver_at %s is answered %d %s; want %s", form, status, got, want)
		}
	}
	if status, got, _ := c.request("POST", "/publish/t?id=timed&ts=2001-09-09T01:46:40Z", "1"); status != 200 {
		t.Errorf("ts: %d %s", status, got)
	}
	if _, got, _ := c.request("GET", "/v1/topics/t/events/timed", ""); !strings.Contains(got, `"ts":1000000000000`) {
		t.Errorf("the event with a time is %s", got)
	}
}
