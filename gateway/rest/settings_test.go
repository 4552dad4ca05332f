package rest_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"eventhub/hub"
)

// send makes a request with If-Match, where that is not empty, and returns status, ETag and
// body of the answer.
func (c caller) send(method, target, match, body string) (status int, etag, answer string) {
	c.t.Helper()
	r, err := http.NewRequest(method, "http://"+c.h.HTTPAddr()+target, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	if match != "" {
		r.Header.Set("If-Match", match)
	}
	got, err := http.DefaultClient.Do(r)
	if err != nil {
		c.t.Fatal(err)
	}
	defer got.Body.Close()
	text, err := io.ReadAll(got.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return got.StatusCode, got.Header.Get("ETag"), strings.TrimSuffix(string(text), "\n")
}

func TestSettings(t *testing.T) {
	c := caller{t, startHub(t, hub.MemoryStore)}
	c.publish("orders.eu", "1")
	for _, step := range []struct {
		method, target, match, body string
		status                      int
		etag, answer                string // all of an answer, or a part of a problem
	}{
		{"GET", "/v1/settings", "", "", 200, "", `{"settings":[]}`},
		{"GET", "/v1/topics/orders.eu/settings", "", "", 200, `"0"`, `{"topic":"orders.eu","settings":{},"source":"default","own_version":0}`},
		{"PUT", "/v1/topics/orders.eu", `"0"`, `{"retention":{"age":"72h","bytes":"1GiB"}}`, 200, `"1"`,
			`{"name":"orders.eu","source":"stored","version":1,"settings":{"retention":{"age":"3d","bytes":1073741824}}}`},
		{"PUT", "/v1/topics/orders.eu", `"0"`, `{}`, 412, "", `the settings of \"orders.eu\" have version 1; 0 was expected`},
		{"PUT", "/v1/topics/orders.%2A%2A", "", `{"key_required":true}`, 200, `"2"`, `{"name":"orders.**","source":"stored","version":2,"settings":{"key_required":true}}`},
		{"PUT", "/v1/topics/later.*", `"7"`, `{}`, 412, "", `there are no settings of \"later.*\"; version 7 was expected`},
		{"GET", "/v1/topics/orders.eu/settings", "", "", 200, `"1"`,
			`{"topic":"orders.eu","settings":{"retention":{"age":"3d","bytes":1073741824}},"source":"stored","entry":"orders.eu","version":1,"own_version":1}`},
		{"GET", "/v1/topics/orders.to.come/settings", "", "", 200, `"0"`,
			`{"topic":"orders.to.come","settings":{"key_required":true},"source":"stored","entry":"orders.**","version":2,"own_version":0}`},
		{"GET", "/v1/settings?limit=1", "", "", 200, "",
			`{"settings":[{"name":"orders.**","source":"stored","version":2,"settings":{"key_required":true}}],"next":"orders.**"}`},
		{"GET", "/v1/settings?after=orders.**", "", "", 200, "",
			`{"settings":[{"name":"orders.eu","source":"stored","version":1,"settings":{"retention":{"age":"3d","bytes":1073741824}}}]}`},
		{"DELETE", "/v1/topics/orders.eu/settings", `"2"`, "", 412, "", `have version 1; 2 was expected`},
		{"DELETE", "/v1/topics/orders.eu/settings", `"1"`, "", 204, "", ""},
		{"DELETE", "/v1/topics/orders.eu/settings", "", "", 404, "", `there are no settings of \"orders.eu\"`},
		{"POST", "/publish/orders.eu", "", `1`, 400, "", `"detail":"the event has no key; the settings of topic \"orders.eu\" require one","code":"bad_event"`},
		{"POST", "/v1/publish", "", `{"events":[{"topic":"a","payload":1},{"topic":"orders.eu","payload":1}]}`, 400, "", `"code":"bad_event","index":1`},
		{"POST", "/publish/orders.eu?key=k&id=x", "", `1`, 200, "", `{"id":"x","offset":2}`},

		{"PUT", "/v1/topics/a", "", `{"retention":{"agee":"3d"}}`, 400, "", `retention.agee is not a known name; did you mean age?`},
		{"PUT", "/v1/topics/a", "", `{"retention"`, 400, "", `"code":"bad_json"`},
		{"PUT", "/v1/topics/a", "", ``, 400, "", `"code":"bad_json"`},
		{"PUT", "/v1/topics/a", "", `{"group_idle_expiry":"1ms"}`, 400, "", `group_idle_expiry is 1ms; 1s to 36500d are allowed`},
		{"PUT", "/v1/topics/a", "", `{"rate":{"per_second":1}}`, 501, "", `rate is not supported by this version`},
		{"PUT", "/v1/topics/a", "", `{"snapshot":{"topic":"b.snapshot"}}`, 400, "", `snapshot.topic is \"b.snapshot\"; the snapshots of a topic are in the topic of its name`},
		{"PUT", "/v1/topics/a", `W/"1"`, `{}`, 400, "", `If-Match is W/\"1\"; an ETag of these settings is expected`},
		{"PUT", "/v1/topics/a", `"1`, `{}`, 400, "", `If-Match`},
		{"PUT", "/v1/topics/a?x=1", "", `{}`, 400, "", `the query has \"x\"`},
		{"PUT", "/v1/topics/system.redrive", "", `{}`, 400, "", `\"system.redrive\" cannot have settings`},
		{"PUT", "/v1/topics/*.eu", "", `{}`, 409, "", `patterns \"*.eu\" and \"orders.**\" tie`},
		{"GET", "/v1/topics/orders.*/settings", "", "", 400, "", `"code":"bad_topic"`},
		{"GET", "/v1/settings?after=a+b", "", "", 400, "", `after: `},
	} {
		status, etag, answer := c.send(step.method, step.target, step.match, step.body)
		if status != step.status || etag != step.etag || status < 300 && answer != step.answer || !strings.Contains(answer, step.answer) {
			t.Errorf("%s %s %s %s is answered %d, ETag %s, %s; want %d, ETag %s, %s", step.method, step.target, step.match, step.body,
				status, etag, answer, step.status, step.etag, step.answer)
		}
	}
}

// TestOnlyWhereThereAreNone: If-None-Match is obeyed, or refused, and not passed over.
func TestOnlyWhereThereAreNone(t *testing.T) {
	c := caller{t, startHub(t, hub.MemoryStore)}
	put := func(names map[string]string) int {
		r, err := http.NewRequest("PUT", "http://"+c.h.HTTPAddr()+"/v1/topics/t", strings.NewReader(`{}`))
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range names {
			r.Header.Set(name, value)
		}
		got, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		got.Body.Close()
		return got.StatusCode
	}
	for _, step := range []struct {
		names  map[string]string
		status int
	}{
		{map[string]string{"If-None-Match": `"1"`}, 400},
		{map[string]string{"If-None-Match": "*", "If-Match": `"0"`}, 400},
		{map[string]string{"If-None-Match": "*"}, 200},
		{map[string]string{"If-None-Match": "*"}, 412},
		{map[string]string{"If-Match": `"1"`}, 200},
	} {
		if status := put(step.names); status != step.status {
			t.Errorf("PUT with %v is answered %d; want %d", step.names, status, step.status)
		}
	}
}

// TestTopicHasItsSettings: its description has what counts, and the ETag for a change of its
// own settings.
func TestTopicHasItsSettings(t *testing.T) {
	c := caller{t, startHub(t, hub.MemoryStore)}
	c.publish("t", "1")
	for _, tt := range []struct{ put, etag, answer string }{
		{"", `"0"`, `"settings":{},"settings_from":{"source":"default"}}`},
		{"*", `"0"`, `"settings":{"retention":{"count":5}},"settings_from":{"source":"stored","entry":"*","version":1}}`},
		{"t", `"2"`, `"settings":{"retention":{"count":5}},"settings_from":{"source":"stored","entry":"t","version":2}}`},
	} {
		if tt.put != "" {
			if status, _, answer := c.send("PUT", "/v1/topics/"+tt.put, "", `{"retention":{"count":5}}`); status != 200 {
				t.Fatalf("PUT %s is answered %d %s", tt.put, status, answer)
			}
		}
		if status, etag, answer := c.send("GET", "/v1/topics/t", "", ""); status != 200 || etag != tt.etag || !strings.HasSuffix(answer, tt.answer) {
			t.Errorf("after PUT %q: %d, ETag %s, %s; want ETag %s, …%s", tt.put, status, etag, answer, tt.etag, tt.answer)
		}
	}
}

// TestEraseWithoutALimit: an erasure that names no limit goes beyond the length of a page.
func TestEraseWithoutALimit(t *testing.T) {
	c := caller{t, startHub(t, hub.MemoryStore)}
	lines := strings.Repeat(`{"topic":"t","key":"k","payload":1}`+"\n", 150)
	if status, answer, _ := c.request("POST", "/v1/publish", lines, "Content-Type", "application/x-ndjson"); status != 200 {
		t.Fatal(status, answer)
	}
	for limit, want := range map[string]string{"": `"events":150,`, "&limit=7": `"events":7,`} {
		if status, answer, _ := c.request("POST", "/v1/topics/t/erase?key=k"+limit, ""); status != 200 || !strings.Contains(answer, want) {
			t.Errorf("erase%s is answered %d %s; want %s", limit, status, answer, want)
		}
	}
}
