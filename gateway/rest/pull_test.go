package rest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"eventhub"
	"eventhub/hub"
)

// caller asks one hub over HTTP.
type caller struct {
	t *testing.T
	h *hub.Hub
}

func (c caller) publish(topic string, ids ...string) {
	c.t.Helper()
	for _, id := range ids {
		if _, err := c.h.Bus().Publish(c.t.Context(), eventhub.Event{Topic: topic, ID: id, Payload: json.RawMessage("1.50")}); err != nil {
			c.t.Fatal(err)
		}
	}
}

// ask posts to a path below /v1/topics/.
func (c caller) ask(path, body string) (status int, answer string) {
	c.t.Helper()
	r, err := http.Post("http://"+c.h.HTTPAddr()+"/v1/topics/"+path, "application/json", strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return r.StatusCode, string(b)
}

func (c caller) want(path, body string, status int, parts ...string) {
	c.t.Helper()
	got, answer := c.ask(path, body)
	if got != status {
		c.t.Errorf("%s %s was answered %d %s; want %d", path, body, got, answer, status)
	}
	for _, part := range parts {
		if !strings.Contains(answer, part) {
			c.t.Errorf("%s %s was answered %s; want %s", path, body, answer, part)
		}
	}
}

// pull returns the leases by id.
func (c caller) pull(path, body string, ids ...string) map[string]string {
	c.t.Helper()
	status, answer := c.ask(path, body)
	var got pulled
	if err := json.Unmarshal([]byte(answer), &got); status != 200 || err != nil {
		c.t.Fatalf("%s was answered %d %s", path, status, answer)
	}
	leases := make(map[string]string)
	for i, d := range got.Deliveries {
		leases[d.Event.ID] = d.Ctx.Lease
		if i >= len(ids) || d.Event.ID != ids[i] {
			c.t.Errorf("%s has %s at %d; want %q", path, d.Event.ID, i, ids)
		}
	}
	if len(leases) != len(ids) {
		c.t.Errorf("%s has %d deliveries; want %q", path, len(leases), ids)
	}
	return leases
}

func (c caller) cursor(topic, group string, want uint64) {
	c.t.Helper()
	info, err := c.h.Bus().Group(c.t.Context(), topic, group)
	if err != nil || info.Cursor != want {
		c.t.Errorf("the cursor of %s in %s is %d, %v; want %d", group, topic, info.Cursor, err, want)
	}
}

func leasesBody(more string, leases ...string) string {
	b, _ := json.Marshal(leases) // strings
	return fmt.Sprintf(`{"leases":%s%s}`, b, more)
}

const fromEarliest = `{"from":"earliest"}`

// TestPull: the answer byte for byte, and what max, wait_ms and the options do.
func TestPull(t *testing.T) {
	c := caller{t, startHub(t, hub.MemoryStore)}
	c.publish("t", "a", "b", "c")
	status, answer := c.ask("t/groups/g/pull?max=1", `{"from":"earliest","ack_timeout_ms":5000,"max_attempts":7,"filter":{"cel":"event.id != 'b'"}}`)
	head, rest, _ := strings.Cut(answer, `"lease":"`)
	lease, tail, _ := strings.Cut(rest, `"`)
	item, err := c.h.Bus().Event(t.Context(), "t", "a")
	if err != nil {
		t.Fatal(err)
	}
	want := `{"deliveries":[{"event":` + string(item.Record.AppendJSON(nil, 1)) + `,"ctx":{"attempt":1,"max_attempts":7,"ack_deadline_ms":5000,`
	if status != 200 || head != want || tail != "}}]}\n" {
		t.Errorf("answered %d %s; want %s", status, answer, want)
	}
	if _, err := eventhub.ParseLease(lease); err != nil {
		t.Error(err)
	}
	c.pull("t/groups/g/pull", "", "c")
	c.pull("t/groups/g/pull?max=1000&wait_ms=1", "{}")
	c.pull("t/groups/latest/pull", "")
	c.cursor("t", "latest", 3)
	c.want("t/groups/g/pull", `{"max_attempts":8}`, 409, "group_mismatch", "max_attempts")

	// A pull waits for what comes.
	got := make(chan map[string]string, 1)
	go func() { got <- c.pull("t/groups/latest/pull?wait_ms=60000", "", "d") }()
	for info, err := c.h.Bus().Group(t.Context(), "t", "latest"); len(info.Members) == 0; info, err = c.h.Bus().Group(t.Context(), "t", "latest") {
		if err != nil {
			t.Fatal(err)
		}
	}
	c.publish("t", "d")
	if leases := <-got; leases["d"] == "" {
		t.Errorf("the pull got %v", leases)
	}
}

// TestPullPattern: leases of a pattern are settled under the pattern and under the
// topic of the event.
func TestPullPattern(t *testing.T) {
	c := caller{t, startHub(t, hub.MemoryStore)}
	c.pull("eu.*/groups/g/pull", "")
	c.publish("eu.a", "a")
	c.publish("eu.b", "b")
	leases := make(map[string]string)
	for len(leases) < 2 { // a pull ends with the first that comes
		var got pulled
		if err := post(t.Context(), "http://"+c.h.HTTPAddr()+"/v1/topics/eu.*/groups/g/pull?wait_ms=60000", "", &got); err != nil || len(got.Deliveries) == 0 {
			t.Fatal(got, err)
		}
		for _, d := range got.Deliveries {
			leases[d.Event.ID] = d.Ctx.Lease
		}
	}
	c.want("eu.*/groups/g/ack", leasesBody("", leases["a"]), 200, `{"results":[{"lease":"`+leases["a"]+`"}]}`)
	c.want("eu.b/groups/g/ack", leasesBody("", leases["b"]), 200, `{"results":[{"lease":"`+leases["b"]+`"}]}`)
	c.cursor("eu.a", "g", 1)
	c.cursor("eu.b", "g", 1)
}

// TestSettlePulled: ack, nack and modack, and what they say of leases that do not
// count any more.
func TestSettlePulled(t *testing.T) {
	c := caller{t, startHub(t, hub.MemoryStore)}
	c.publish("t", "a", "b", "c", "d")
	first := c.pull("t/groups/g/pull", `{"from":"earliest","backoff":{"min_ms":600000,"max_ms":600000}}`, "a", "b", "c", "d")

	c.want("t/groups/g/ack", leasesBody("", first["a"], first["b"]), 200,
		`{"results":[{"lease":"`+first["a"]+`"},{"lease":"`+first["b"]+`"}]}`)
	c.cursor("t", "g", 2)
	c.want("t/groups/g/ack", leasesBody("", first["b"], first["c"]), 200,
		`{"results":[{"lease":"`+first["b"]+`","stale":true},{"lease":"`+first["c"]+`"}]}`)
	c.want("t/groups/g/modack", leasesBody(`,"extend_ms":60000`, first["c"], first["d"]), 200,
		`{"results":[{"lease":"`+first["c"]+`","code":"unknown_id"},{"lease":"`+first["d"]+`"}]}`)
	c.want("t/groups/g/modack", leasesBody("", first["d"]), 200, `{"results":[{"lease":"`+first["d"]+`"}]}`)
	c.want("t/groups/g/modack", leasesBody("", first["c"]), 404, "unknown_id", first["c"])
	if events, err := c.h.Bus().InFlight(t.Context(), "t", "g", 10); err != nil || len(events) != 1 || events[0].State != "leased" {
		t.Errorf("in flight are %+v, %v", events, err)
	}

	c.want("t/groups/g/nack", leasesBody(`,"delay_ms":0,"reason":"no stock"`, first["d"]), 200, `{"results":[{"lease":"`+first["d"]+`"}]}`)
	again := c.pull("t/groups/g/pull?wait_ms=1000", "", "d")
	c.want("t/groups/g/ack", leasesBody("", first["d"]), 200, `"stale":true`)
	c.want("t/groups/g/nack", leasesBody(`,"terminal":true,"reason":"broken"`, again["d"]), 200, `{"results":[{"lease":"`+again["d"]+`"}]}`)
	c.want("t.dlq/groups/look/pull?wait_ms=60000", fromEarliest, 200, `"reason":"broken"`, `"reason":"no stock"`)
}

// TestAckAndPublishPulled: events and acks are one step.
func TestAckAndPublishPulled(t *testing.T) {
	c := caller{t, startHub(t, hub.MemoryStore)}
	c.publish("t", "a", "b")
	leases := c.pull("t/groups/g/pull", fromEarliest, "a", "b")
	publish := `,"publish":[{"topic":"out","payload":{"n":1.0},"opts":{"id":"x","key":"k"}},{"topic":"out","payload":null,"opts":{"id":"y","delay_ms":60000}}]`
	c.want("t/groups/g/ack", leasesBody(publish, leases["a"]), 200,
		`{"results":[{"lease":"`+leases["a"]+`"}],"receipts":[{"id":"x","offset":1},{"id":"y","deliver_at":`)
	c.cursor("t", "g", 1)
	item, err := c.h.Bus().Event(t.Context(), "out", "x")
	if err != nil || !strings.Contains(string(item.Record), `"key":"k"`) || !strings.Contains(string(item.Record), `"payload":{"n":1.0}`) {
		t.Errorf("published %s, %v", item.Record, err)
	}
	late := `,"publish":[{"topic":"out","payload":1,"opts":{"id":"z"}}]`
	c.want("t/groups/g/ack", leasesBody(late, leases["a"], leases["b"]), 409, "lease_lost")
	if _, err := c.h.Bus().Event(t.Context(), "out", "z"); eventhub.ErrorCode(err) != eventhub.CodeUnknownID {
		t.Errorf("what came too late was published: %v", err)
	}
	c.cursor("t", "g", 1)
	c.want("t/groups/g/ack", leasesBody(`,"publish":[]`, leases["b"]), 200, `{"results":[{"lease":"`+leases["b"]+`"}]}`)
	c.cursor("t", "g", 2)
}

func TestPullRefusals(t *testing.T) {
	c := caller{t, startHub(t, hub.MemoryStore)}
	c.publish("t", "a")
	lease := c.pull("t/groups/g/pull", fromEarliest, "a")["a"]
	const made = "1-1-1"
	for _, tt := range []struct {
		path, body string
		status     int
		parts      []string
	}{
		{"t/groups/g/pull?max=0", "", 400, []string{`max \"0\" is not a number from 1 to 1000`}},
		{"t/groups/g/pull?max=1001", "", 400, []string{"1001"}},
		{"t/groups/g/pull?wait_ms=60001", "", 400, []string{`wait_ms \"60001\" is not a number from 0 to 60000`}},
		{"t/groups/g/pull?wait=1", "", 400, []string{`\"wait\"`}},
		{"t/groups/g%20/pull", "", 400, []string{"bad_request", `\"g \"`}},
		{"t%20/groups/g/pull", "", 400, []string{"bad_topic"}},
		{"t/groups/g/pull", "[]", 400, []string{"bad_request"}},
		{"t/groups/g/pull", `{"from":"earliest"`, 400, []string{"bad_json"}},
		{"t/groups/g/pull", `{} {}`, 400, []string{"bad_json"}},
		{"t/groups/g/pull", `{"from":"latest","from":"latest"}`, 400, []string{"bad_json"}},
		{"t/groups/g/pull", `{"from":"now"}`, 400, []string{`\"now\"`}},
		{"t/groups/g/pull", `{"max_in_flight":5}`, 400, []string{`\"max_in_flight\"`}},
		{"t/groups/g/pull", `{"manual_ack":false}`, 400, []string{`\"manual_ack\"`}},
		{"t/groups/g/pull", `{"topics":["u"]}`, 400, []string{`\"topics\"`}},
		{"t/groups/g/pull", `{"ack_timeout_ms":999}`, 400, []string{"ack_timeout_ms is 999"}},
		{"t/groups/new/pull", `{"filter":"1 +"}`, 400, []string{"filter"}},
		{"t/groups/new/pull", `{"from":"after_id","after_id":"none"}`, 404, []string{"unknown_id"}},

		{"t/groups/g/ack", "", 400, []string{"bad_json"}},
		{"t/groups/g/ack", "{}", 400, []string{"leases has 0 entries"}},
		{"t/groups/g/ack", leasesBody("", make([]string, 1001)...), 400, []string{"leases has 1001 entries"}},
		{"t/groups/g/ack", leasesBody("", lease, "made up"), 400, []string{`leases[1]: lease \"made up\" is not a lease token`}},
		{"t/groups/g/ack", leasesBody("", "0-0-0"), 400, []string{"leases[0]", "names nothing"}},
		{"t/groups/g/ack?x", leasesBody("", lease), 400, []string{`\"x\"`}},
		{"t/groups/g/ack", leasesBody(`,"terminal":true`, lease), 400, []string{"/terminal is not a known name"}},
		{"t/groups/g/ack", leasesBody(`,"publish":{}`, lease), 400, []string{"publish"}},
		{"t/groups/g/ack", leasesBody(`,"publish":[{"topic":"u"}]`, lease), 400, []string{"publish[0]: payload is missing"}},
		{"t/groups/g/ack", leasesBody(`,"publish":[{"topic":"u","payload":1},{"topic":"a b","payload":1}]`, lease), 400, []string{"bad_topic", "publish[1]:"}},
		{"t/groups/g/ack", leasesBody(`,"publish":[{"topic":"u.dlq","payload":1}]`, lease), 403, []string{"publish[0]:"}},
		{"t/groups/nobody/ack", leasesBody("", lease), 404, []string{"not_subscribed"}},
		{"t/groups/g/nack", leasesBody(`,"delay_ms":-1`, lease), 400, []string{"delay_ms is -1; 0 to 86400000"}},
		{"t/groups/g/nack", leasesBody(`,"delay_ms":86400001`, lease), 400, []string{"delay_ms is 86400001"}},
		{"t/groups/g/nack", leasesBody(`,"reason":"`+strings.Repeat("x", 1025)+`"`, lease), 400, []string{"reason has 1025 bytes"}},
		{"t/groups/g/nack", leasesBody(`,"publish":[]`, lease), 400, []string{"/publish is not a known name"}},
		{"t/groups/g/modack", leasesBody(`,"extend_ms":999`, lease), 400, []string{"extend_ms is 999; 1000 to 3600000"}},
		{"t/groups/g/modack", leasesBody(`,"extend_ms":3600001`, lease), 400, []string{"extend_ms is 3600001"}},

		{"t/groups/g/ack", leasesBody("", made), 200, []string{`{"results":[{"lease":"1-1-1","stale":true}]}`}},
		{"t/groups/g/nack", leasesBody("", made), 200, []string{`{"results":[{"lease":"1-1-1","stale":true}]}`}},
		{"t/groups/g/modack", leasesBody("", made), 404, []string{"unknown_id"}},
		{"t/groups/g/ack", leasesBody(`,"publish":[{"topic":"u","payload":1}]`, made), 409, []string{"lease_lost"}},
	} {
		c.want(tt.path, tt.body, tt.status, tt.parts...)
	}
	// Nothing of it did anything.
	c.want("t/groups/g/ack", leasesBody("", lease), 200, `{"results":[{"lease":"`+lease+`"}]}`)
	if _, err := c.h.Bus().Topic(t.Context(), "u"); eventhub.ErrorCode(err) != eventhub.CodeUnknownID {
		t.Errorf("a refused ack has published: %v", err)
	}
}

// TestPullGivenUp: a client that goes away while it waits has nothing leased, and
// costs no attempt.
func TestPullGivenUp(t *testing.T) {
	c := caller{t, startHub(t, hub.MemoryStore)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- post(ctx, "http://"+c.h.HTTPAddr()+"/v1/topics/t/groups/g/pull?wait_ms=60000", "", &pulled{})
	}()
	members := func(n int) {
		t.Helper()
		for began := time.Now(); ; {
			info, err := c.h.Bus().Group(t.Context(), "t", "g")
			if err == nil && len(info.Members) == n {
				return
			}
			if time.Since(began) > patience {
				t.Fatalf("the group is %+v, %v; want %d members", info, err, n)
			}
		}
	}
	members(1)
	cancel()
	<-ended
	members(0)
	c.publish("t", "a")
	c.want("t/groups/g/pull?wait_ms=1000", "", 200, `"id":"a"`, `"attempt":1`)
}

// TestPullEndsWithTheHub: the answer to who waits says to come again, at once.
func TestPullEndsWithTheHub(t *testing.T) {
	h, err := hub.Start(hub.Config{Store: hub.MemoryStore, WSAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0", OpsAddr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	ended := make(chan error, 1)
	go func() {
		ended <- post(t.Context(), "http://"+h.HTTPAddr()+"/v1/topics/t/groups/g/pull?wait_ms=60000", "", &pulled{})
	}()
	for info, err := h.Bus().Group(t.Context(), "t", "g"); err != nil || len(info.Members) == 0; info, err = h.Bus().Group(t.Context(), "t", "g") {
		if time.Since(began) > patience {
			t.Fatal(err)
		}
	}
	if err := h.Stop(context.Background()); err != nil {
		t.Error(err)
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "503") || !strings.Contains(err.Error(), "shutting_down") {
		t.Errorf("the pull was answered %v", err)
	}
	if since := time.Since(began); since > 30*time.Second {
		t.Errorf("the hub waited for the pull: %v", since)
	}
}
