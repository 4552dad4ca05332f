package rest

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"eventhub"
	"eventhub/internal/cloudevents"
)

var (
	binaryHeader     = []string{"Ce-Specversion", "1.0", "Ce-Id", "i", "Ce-Source", "/s", "Ce-Type", "t.x", "Ce-Subject", "k", "Content-Type", "application/json"}
	structuredHeader = []string{"Content-Type", "application/cloudevents+json; charset=utf-8"}
	batchHeader      = []string{"Content-Type", "application/cloudevents-batch+json"}
)

const cloudEvent = `{"specversion":"1.0","id":"i","source":"/s","type":"t.x","subject":"k","data":{"n": 1.0}}`

func TestPublishCloudEvents(t *testing.T) {
	want := eventhub.Event{ID: "i", Topic: "a.b", Key: "k", Headers: map[string]string{"ce-source": "/s", "ce-type": "t.x", "x-own": "1"}, Payload: []byte(`{"n": 1.0}`)}
	for _, tt := range []struct {
		name, body string
		header     []string
		want       []eventhub.Event
		answer     string
	}{
		{"binary", ` {"n": 1.0} `, binaryHeader, []eventhub.Event{want}, `{"id":"i","offset":1}`},
		{"structured", cloudEvent, append([]string{"Ce-Type", "not this", "Ce-Other", "nor this"}, structuredHeader...), []eventhub.Event{want}, `{"id":"i","offset":1}`},
		{"batch", "[" + cloudEvent + "," + strings.Replace(cloudEvent, `"i"`, `"again"`, 1) + "]", batchHeader,
			[]eventhub.Event{want, {ID: "again", Topic: want.Topic, Key: "k", Headers: want.Headers, Payload: want.Payload}},
			`{"count":2,"receipts":[{"id":"i","offset":1},{"id":"again","offset":2,"duplicate":true}],"duplicates":[1]}`},
		{"empty batch", " [ ] ", batchHeader, nil, `{"count":0,"receipts":[]}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := &log{}
			status, answer, _ := do(newAPI(t, l), "/publish/a.b", tt.body, append([]string{"X-Own", "1"}, tt.header...)...)
			if status != 200 || strings.TrimSpace(answer) != tt.answer {
				t.Errorf("answered %d %s; want %s", status, answer, tt.answer)
			}
			if diff := cmp.Diff(tt.want, l.events); diff != "" || l.batches > 1 {
				t.Errorf("%d publishes (-want +got):\n%s", l.batches, diff)
			}
		})
	}
}

// TestCloudEventsTakeAttributes: what a publish may say besides, it may say of a
// CloudEvent too.
func TestCloudEventsTakeAttributes(t *testing.T) {
	l := &log{}
	status, answer, _ := do(newAPI(t, l), "/publish/a?key=given&tags=%23t&caused_by=c1&delay_ms=60000&wait_for=g", strings.Replace(cloudEvent, `"data"`, `"causedby":"c2","data"`, 1), structuredHeader...)
	if status != 202 || !strings.Contains(answer, `"deliver_at":`) || len(l.waits) != 1 {
		t.Fatalf("%d %s, waits %v", status, answer, l.waits)
	}
	if e := l.events[0]; e.Key != "given" || e.Headers["ce-subject"] != "k" || cmp.Diff(e.CausedBy, []string{"c1", "c2"}) != "" || len(e.Tags) != 1 {
		t.Errorf("published %+v", e)
	}
	if status, answer, _ := do(newAPI(t, l), "/publish/a?wait_for=g", "["+cloudEvent+"]", batchHeader...); status != 200 || len(l.waits) != 2 {
		t.Errorf("a batch that waits: %d %s, waits %v", status, answer, l.waits)
	}
}

func TestCloudEventProblems(t *testing.T) {
	for _, tt := range []struct {
		name, target, body string
		header             []string
		status             int
		code, says         string
	}{
		{"version", "/publish/a", strings.Replace(cloudEvent, "1.0", "0.3", 1), structuredHeader, 400, "bad_event", `specversion is \"0.3\"`},
		{"another format", "/publish/a", "x", []string{"Content-Type", "application/cloudevents+avro"}, 415, "bad_request", "cloudevents+avro"},
		{"data of another type", "/publish/a", "x", append([]string{"Content-Type", "text/plain"}, binaryHeader[:10]...), 415, "bad_request", "text/plain"},
		{"data of another type in a batch", "/publish/a", `[` + strings.Replace(cloudEvent, `"data"`, `"datacontenttype":"text/xml","data"`, 1) + `]`, batchHeader, 415, "bad_request", "events[0]: the data is"},
		{"data that is not what it says", "/publish/a?id=x", "x", binaryHeader, 400, "bad_request", "id or ts is given with a CloudEvent"},
		{"ts", "/publish/a?ts=5", "x", binaryHeader, 400, "bad_request", "id or ts"},
		{"attribute of an event for a batch", "/publish/a?key=k", "[]", batchHeader, 400, "bad_request", `\"key\"`},
		{"one in a batch", "/publish/a", `[` + cloudEvent + `,{"specversion":"1.0","id":"a b","source":"s","type":"t"}]`, batchHeader, 400, "bad_event", `events[1]: id \"a b\"`},
		{"no batch", "/publish/a", cloudEvent, batchHeader, 400, "bad_request", "object"},
		{"broken", "/publish/a", `[` + cloudEvent, batchHeader, 400, "bad_json", "byte"},
		{"a hub's topic", "/publish/a.dlq", "[]", batchHeader, 403, "forbidden", "a.dlq"},
		{"a bad topic", "/publish/a%20b", "[]", batchHeader, 400, "bad_topic", "a b"},
		{"too large", "/publish/a", cloudEvent + strings.Repeat(" ", cloudevents.MaxEventBytes), structuredHeader, 413, "too_large", "bytes"},
		{"no topic", "/v1/publish", "[" + cloudEvent + "]", batchHeader, 400, "bad_request", "POST them to /publish/"},
		{"no topic, and another format", "/v1/publish", "x", []string{"Content-Type", "application/cloudevents+avro"}, 415, "bad_request", "avro"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := &log{}
			status, answer, _ := do(newAPI(t, l), tt.target, tt.body, tt.header...)
			if status != tt.status || !strings.Contains(answer, `"code":"`+tt.code+`"`) || !strings.Contains(answer, tt.says) || len(l.events) > 0 {
				t.Errorf("%d %s; %d events", status, answer, len(l.events))
			}
		})
	}
}

func TestCloudEventsOut(t *testing.T) {
	l := &links{}
	e := l.Write("a.b", "x", "c")
	e.Headers = map[string]string{"ce-type": "t.x", "x-correlation-id": "cart"}
	l.Write("a.c", "y", "c")
	found, err := l.Find(t.Context(), "x", 1)
	if err != nil {
		t.Fatal(err)
	}
	l.items = map[string]eventhub.Item{"a.b/x": found[0].Item}
	h := linked(t, l)
	one := `{"specversion":"1.0","id":"x","source":"/eventhub/a.b","type":"t.x","time":"2024-08-08T18:00:00.000Z","datacontenttype":"application/json",` +
		`"causedby":"c","correlationid":"cart","eventhuboffset":"1","eventhubtopic":"a.b","data":{"of":"x"}}`
	const structured, batch = "application/cloudevents+json", "application/cloudevents-batch+json"
	for _, tt := range []struct{ target, accept, kind, want string }{
		{"/v1/topics/a.b/events/x", structured, structured, one},
		{"/v1/topics/a.b/events/x", batch, batch, "[" + one + "]"},
		{"/v1/topics/a.b/events/x", "*/*", "application/json", string(found[0].Record.AppendJSON(nil, 1))},
		{"/v1/events/x", batch, batch, "[" + one + "]"},
		{"/v1/events/x", structured, "application/json", `{"events":[` + string(found[0].Record.AppendJSON(nil, 1)) + "]}"},
		{"/v1/events?correlation_id=cart", batch, batch, "[" + one + "]"},
		{"/v1/events?correlation_id=none", batch, batch, "[]"},
	} {
		status, answer, header := request(h, "GET", tt.target, "", "Accept", tt.accept)
		if status != 200 || header.Get("Content-Type") != tt.kind || strings.TrimSpace(answer) != tt.want {
			t.Errorf("%s as %s: %d %s %s\nwant %s", tt.target, tt.accept, status, header.Get("Content-Type"), answer, tt.want)
		}
	}
	_, _, header := request(h, "GET", "/v1/events?caused_by=c&limit=1", "", "Accept", batch)
	if got := header.Get("Link"); got != `<?after_offset=1&after_topic=a.b&caused_by=c&limit=1>; rel="next"` {
		t.Errorf("Link: %s", got)
	}
	status, answer, header := request(h, "GET", "/v1/topics/a.b/events/none", "", "Accept", structured)
	if status != 404 || header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("an error is %d %s %s", status, header.Get("Content-Type"), answer)
	}
}

func TestAccepted(t *testing.T) {
	for accept, want := range map[string]string{
		"":                           "a/j",
		"*/*":                        "a/j",
		"a/b":                        "a/b",
		"text/html":                  "a/j",
		"a/j, a/b":                   "a/j",
		"a/b, a/j":                   "a/b",
		"a/j;q=0.5, a/b":             "a/b",
		"a/j, a/b;q=0.9":             "a/j",
		"a/b;q=0":                    "a/j",
		"A/B; charset=utf-8":         "a/b",
		"a/b;q=much, ;;, */*;q=0.1":  "a/j",
		"*/*;q=0.8, a/b;q=0.7":       "a/j",
		"text/html, a/b;q=0.1, x/y ": "a/b",
	} {
		r := httptest.NewRequest("GET", "/", nil)
		if accept != "" {
			r.Header.Set("Accept", accept)
		}
		if got := accepted(r, "a/j", "a/b"); got != want {
			t.Errorf("%q gets %s; want %s", accept, got, want)
		}
	}
}

// TestDeliveredCloudEvents: streams and pulls have CloudEvents in them where Accept
// names them.
func TestDeliveredCloudEvents(t *testing.T) {
	f := newTails()
	f.deliver = []eventhub.Delivery{tailEvent("a", 6, `"x"`), {Topic: "a", Offset: 7, Record: eventhub.Record(`{"ts":}`)}}
	_, h := mount(t, Access{Subscriber: f, Inspector: f})
	const cloudEvent = `{"specversion":"1.0","id":"e","source":"/eventhub/a","type":"a","time":"2024-08-08T18:00:00.000Z","datacontenttype":"application/json","eventhuboffset":"6","eventhubtopic":"a","data":"x"}`
	_, answer, header := request(h, "GET", "/v1/topics/a/stream", "", "Accept", "text/event-stream, application/cloudevents+json")
	if !strings.Contains(answer, "\ndata: "+cloudEvent+"\n\n") || header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("the stream is %s", answer)
	}
	if !strings.Contains(answer, "\ndata: {\"offset\":7,") {
		t.Errorf("what is no event is left out of %s", answer)
	}
	d := tailEvent("a", 6, `"x"`)
	d.Gap = &eventhub.Gap{Topic: "a", After: 2, First: 6}
	r := httptest.NewRequest("POST", "/", nil)
	for accept, want := range map[string]string{
		"application/json, application/cloudevents+json;q=0.5": `{"event":` + cloudEvent + `,"ctx":{`,
		"application/json": `{"event":` + string(d.Record.AppendJSON(nil, 6)) + `,"ctx":{`,
		"*/*":              `{"event":` + string(d.Record.AppendJSON(nil, 6)) + `,"ctx":{`,
	} {
		r.Header.Set("Accept", accept)
		if got := string(appendDelivery(nil, &d, deliveredAs(r))); !strings.HasPrefix(got, want) || !strings.HasSuffix(got, `,"gap":{"after":2,"first":6}}}`) {
			t.Errorf("pulled with Accept %s: %s", accept, got)
		}
	}
}
