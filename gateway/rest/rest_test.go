package rest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"eventhub"
	stored "eventhub/internal/record"
)

// log is a Publisher that keeps what it is given. Its clock is at 1000.
type log struct {
	events  []eventhub.Event
	batches int // publishes that got in
	err     error

	waits []string                    // what publishes waited for
	wait  func(context.Context) error // how that ends; nil: well
}

// judge refuses a bad event as the engine does.
func judge(events []eventhub.Event) error {
	for i := range events {
		e := &events[i]
		err := e.Validate(time.Now())
		if err == nil && eventhub.HubOnlyTopic(e.Topic) {
			err = eventhub.Errorf(eventhub.CodeForbidden, "topic %q is published by the hub alone", e.Topic)
		}
		if err == nil {
			_, err = stored.Append(nil, e)
		}
		if err != nil {
			return eventhub.AtIndex(err, "", i)
		}
	}
	return nil
}

func (l *log) Publish(_ context.Context, events ...eventhub.Event) ([]eventhub.Receipt, error) {
	if l.err != nil {
		return nil, l.err
	}
	if err := judge(events); err != nil {
		return nil, err
	}
	l.batches++
	var receipts []eventhub.Receipt
	for _, e := range events {
		if e.ID == "" {
			e.ID = "made"
		}
		l.events = append(l.events, e)
		rc := eventhub.Receipt{ID: e.ID, Offset: uint64(len(l.events)), Duplicate: e.ID == "again"}
		if at := e.Due(time.UnixMilli(1000)); at > 1000 {
			rc.Offset, rc.DeliverAt = 0, time.UnixMilli(at)
		}
		receipts = append(receipts, rc)
	}
	return receipts, nil
}

func (l *log) Enqueue(ctx context.Context, pubs []eventhub.Publication, done func([]eventhub.Publication)) {
	for i := range pubs {
		p := &pubs[i]
		l.waits = append(l.waits, fmt.Sprintf("%v %v", p.WaitFor, p.WaitUpTo))
		p.Receipts, p.Err = l.Publish(ctx, p.Events...)
		if p.Err == nil && l.wait != nil {
			p.Err = l.wait(ctx)
		}
	}
	done(pubs)
}

func newAPI(t *testing.T, l *log) http.Handler {
	_, h := mount(t, Access{Publisher: l})
	return h
}

// mount gives the API a mux that has the hub's other patterns too.
func mount(t *testing.T, access Access) (*API, http.Handler) {
	t.Helper()
	api, err := New(Config{
		Origins: []string{"https://app.example"},
		Authenticate: func(_ context.Context, token string, given bool) (Access, error) {
			if given && token != "right" {
				return Access{}, eventhub.Errorf(eventhub.CodeBadToken, "the token is not valid here")
			}
			return access, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	for _, pattern := range []string{"GET /{$}", "GET /ws", "GET /livez"} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	}
	api.Register(mux)
	return api, mux
}

func do(h http.Handler, target, body string, header ...string) (status int, answer string, headers http.Header) {
	return request(h, "POST", target, body, header...)
}

func request(h http.Handler, method, target, body string, header ...string) (status int, answer string, headers http.Header) {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	local := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8081}
	r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, local))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	b, _ := io.ReadAll(w.Body)
	return w.Code, string(b), w.Result().Header
}

func TestPublishOne(t *testing.T) {
	for _, tt := range []struct {
		name, target, body string
		header             []string
		want               eventhub.Event
		answer             string
	}{
		{"plain", "/publish/a.b", " {\"n\": 1.0}\n", nil,
			eventhub.Event{ID: "made", Topic: "a.b", Payload: []byte(`{"n": 1.0}`)}, `{"id":"made","offset":1}`},
		{"query", "/publish/t?id=again&key=k%201&tags=a,b&tags=c&caused_by=x&sid=s&ts=5", "null", nil,
			eventhub.Event{ID: "again", Topic: "t", Key: "k 1", Tags: []string{"a", "b", "c"}, CausedBy: []string{"x"}, SID: "s", TS: 5, Payload: []byte(`null`)},
			`{"id":"again","offset":1,"duplicate":true}`},
		{"headers", "/publish/t", "1", []string{"X-Eventhub-Key", "k", "X-Eventhub-Caused-By", "x, y", "X-Trace", "1", "X-Trace", "2",
			"Traceparent", "00-a-b-01", "Ce-Type", "t", "Authorization", "Bearer right", "Cookie", "secret=1", "X-Forwarded-For", "10.0.0.1", "Accept", "*/*"},
			eventhub.Event{ID: "made", Topic: "t", Key: "k", CausedBy: []string{"x", "y"}, Payload: []byte(`1`),
				Headers: map[string]string{"x-trace": "1, 2", "traceparent": "00-a-b-01", "ce-type": "t"}}, `{"id":"made","offset":1}`},
		{"condition", "/publish/t?key=k&expect_key_offset=0", "1", nil,
			eventhub.Event{ID: "made", Topic: "t", Key: "k", Expect: eventhub.IfKeyOffset(0), Payload: []byte(`1`)}, `{"id":"made","offset":1}`},
		{"condition in a header", "/publish/t", "1", []string{"X-Eventhub-Expect-Topic-Offset", "9007199254740991"},
			eventhub.Event{ID: "made", Topic: "t", Expect: eventhub.IfTopicOffset(eventhub.MaxOffset), Payload: []byte(`1`)}, `{"id":"made","offset":1}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := &log{}
			status, answer, _ := do(newAPI(t, l), tt.target, tt.body, tt.header...)
			if status != 200 || strings.TrimSpace(answer) != tt.answer {
				t.Errorf("answered %d %s; want %s", status, answer, tt.answer)
			}
			if len(l.events) != 1 {
				t.Fatalf("%d events", len(l.events))
			}
			if diff := cmp.Diff(tt.want, l.events[0]); diff != "" {
				t.Errorf("event differs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPublishBatch(t *testing.T) {
	l := &log{}
	h := newAPI(t, l)
	status, answer, _ := do(h, "/v1/publish", `{"events":[{"topic":"a","payload":1,"id":"x"},{"topic":"b","payload":null,"headers":{"h":"v"}}]}`)
	if want := `{"count":2,"receipts":[{"id":"x","offset":1},{"id":"made","offset":2}]}`; l.batches != 1 || status != 200 || strings.TrimSpace(answer) != want {
		t.Errorf("answered %d %s; want %s", status, answer, want)
	}
	status, answer, _ = do(h, "/v1/publish", "{\"topic\":\"a\",\"payload\":1}\r\n\n{\"topic\":\"b\",\"payload\":2}", "Content-Type", "application/x-ndjson; charset=utf-8")
	if status != 200 || !strings.Contains(answer, `"count":2`) || len(l.events) != 4 || l.batches != 2 {
		t.Errorf("NDJSON was answered by %d %s; %d events in %d publishes", status, answer, len(l.events), l.batches)
	}
}

// TestIndexOfAProblem: an error about an event of a list has its place as index, whoever has
// found it; that of an event alone has none.
func TestIndexOfAProblem(t *testing.T) {
	deep := strings.Repeat("[", 1001) + strings.Repeat("]", 1001)
	for _, tt := range []struct {
		target, kind, body, detail string
		index                      any
	}{
		{"/v1/publish", "application/json", `{"events":[{"topic":"a b","payload":1}]}`, `events[0]: topic "a b"`, 0.0},
		{"/v1/publish", "application/json", `{"events":[{"topic":"a","payload":1},{"payload":1}]}`, "events[1]: topic is missing", 1.0},
		{"/v1/publish", "application/json", `{"events":[{"topic":"a","payload":1},{"topic":"a","payload":` + deep + `}]}`, "events[1]: payload: invalid JSON: nested", 1.0},
		{"/v1/publish", "application/x-ndjson", "\n\n{\"topic\":\"a\",\"payload\":1}\n\n{\"topic\":\"a b\",\"payload\":1}", `line 5: topic "a b"`, 1.0},
		{"/v1/publish", "application/x-ndjson", "{\"topic\":\"a\",\"payload\":1}\n\n{\"topic\":\"a\",\"kee\":1}", "line 3: /kee", 1.0},
		{"/v1/publish", "application/json", `{"events":[]}`, "the batch has 0 events", nil},
		{"/publish/a", "application/cloudevents-batch+json", `[` + cloudEvent + `,{"id":"x"}]`, "events[1]: ", 1.0},
		{"/publish/a.dlq", "application/json", "1", `topic "a.dlq" is published by the hub alone`, nil},
		{"/publish/a", "application/json", deep, "payload: invalid JSON: nested", nil},
	} {
		l := &log{}
		_, answer, _ := do(newAPI(t, l), tt.target, tt.body, "Content-Type", tt.kind)
		var problem map[string]any
		if err := json.Unmarshal([]byte(answer), &problem); err != nil {
			t.Fatal(err)
		}
		if problem["index"] != tt.index || !strings.HasPrefix(fmt.Sprint(problem["detail"]), tt.detail) || l.batches > 0 {
			t.Errorf("%s %.99s: %s; want index %v and %q", tt.target, tt.body, answer, tt.index, tt.detail)
		}
	}
}

// TestProblems: every refusal is a problem with its code, and nothing of it was
// published.
func TestProblems(t *testing.T) {
	ndjson := []string{"Content-Type", "application/x-ndjson"}
	for _, tt := range []struct {
		name, target, body string
		header             []string
		status             int
		code, says         string
	}{
		{"bad topic in a batch", "/v1/publish", `{"events":[{"topic":"a","payload":1},{"topic":"a b","payload":1}]}`, nil, 400, "bad_topic", `events[1]: topic "a b"`},
		{"no payload", "/v1/publish", `{"events":[{"topic":"a"}]}`, nil, 400, "bad_request", "events[0]: payload is missing"},
		{"empty batch", "/v1/publish", `{"events":[]}`, nil, 400, "bad_request", "0 events"},
		{"unknown name", "/v1/publish", `{"events":[{"topic":"a","payload":1,"kee":"k"}]}`, nil, 400, "bad_request", "events[0]: /kee"},
		{"not an object", "/v1/publish", `[]`, nil, 400, "bad_request", "array"},
		{"broken JSON", "/v1/publish", `{"events":`, nil, 400, "bad_json", "byte 10"},
		{"broken line", "/v1/publish", "{\"topic\":\"a\",\"payload\":1}\n\n{\"topic\":", ndjson, 400, "bad_json", "line 3: "},
		{"bad line", "/v1/publish", "{\"topic\":\"a\",\"payload\":1}\n{\"topic\":\"a\",\"payload\":1,\"tags\":[\"\"]}", ndjson, 400, "bad_event", "line 2: tags[0] is empty"},
		{"too many lines", "/v1/publish", strings.Repeat("{\"topic\":\"a\",\"payload\":1}\n", maxBatchEvents+1), ndjson, 400, "bad_request", "line 10001"},
		{"unknown query", "/publish/a?kee=k", "1", nil, 400, "bad_request", `"kee"`},
		{"twice", "/publish/a?key=k&key=l", "1", nil, 400, "bad_request", "key"},
		{"query and header", "/publish/a?key=k", "1", []string{"X-Eventhub-Key", "l"}, 400, "bad_request", "key is given in"},
		{"unknown header", "/publish/a", "1", []string{"X-Eventhub-Kee", "l"}, 400, "bad_request", `"kee"`},
		{"trim before 1970", "/v1/topics/a/trim?before_ts=0", "", nil, 400, "bad_request", `before_ts is "0"`},
		{"bad ts", "/publish/a?ts=now", "1", nil, 400, "bad_event", `"now"`},
		{"empty id", "/publish/a?id=", "1", nil, 400, "bad_event", "id is empty"},
		{"hub's own topic in a batch", "/v1/publish", `{"events":[{"topic":"a","payload":1},{"topic":"a.dlq","payload":1}]}`, nil, 403, "forbidden", `events[1]: topic "a.dlq"`},
		{"hub's own topic in a line", "/v1/publish", "{\"topic\":\"a\",\"payload\":1}\n{\"topic\":\"system.x\",\"payload\":1}", ndjson, 403, "forbidden", `line 2: topic "system.x"`},
		{"negative delay", "/publish/a?delay_ms=-1", "1", nil, 400, "bad_event", "delay_ms is -1; 0 to 31536000000"},
		{"delay beyond a year", "/publish/a?delay_ms=31536000001", "1", nil, 400, "bad_event", "31536000001"},
		{"delay beyond all", "/publish/a", "1", []string{"X-Eventhub-Delay-Ms", "9223372036854775807"}, 400, "bad_event", "9223372036854775807"},
		{"no delay", "/publish/a?delay_ms=5s", "1", nil, 400, "bad_event", `"5s"`},
		{"no time", "/publish/a?deliver_at=tomorrow", "1", nil, 400, "bad_event", `"tomorrow"`},
		{"both times", "/publish/a?delay_ms=0", "1", []string{"X-Eventhub-Deliver-At", "5"}, 400, "bad_event", "both delay_ms and deliver_at"},
		{"bad delay in a batch", "/v1/publish", `{"events":[{"topic":"a","payload":1},{"topic":"a","payload":1,"delay_ms":-5}]}`, nil, 400, "bad_event", "events[1]: delay_ms is -5"},
		{"far time in a line", "/v1/publish", `{"topic":"a","payload":1,"deliver_at":9999999999999}`, ndjson, 400, "bad_event", "line 1: deliver_at is 9999999999999, more than a year"},
		{"both times in a batch", "/v1/publish", `{"events":[{"topic":"a","payload":1,"delay_ms":0,"deliver_at":5}]}`, nil, 400, "bad_event", "events[0]: both"},
		{"expected offset", "/publish/a?key=k&expect_key_offset=-1", "1", nil, 400, "bad_request", `expect_key_offset "-1" is not an offset: 0 to 9007199254740991`},
		{"large expected offset", "/publish/a?expect_topic_offset=9007199254740992", "1", nil, 400, "bad_request", "9007199254740992"},
		{"expected offset of no key", "/publish/a", "1", []string{"X-Eventhub-Expect-Key-Offset", "3"}, 400, "bad_request", "the event has no key"},
		{"two expected offsets", "/publish/a?key=k&expect_topic_offset=1", "1", []string{"X-Eventhub-Expect-Key-Offset", "3"}, 400, "bad_request", "both expect_key_offset and expect_topic_offset"},
		{"expected offset of a delayed event", "/publish/a?expect_topic_offset=1&delay_ms=5", "1", nil, 400, "bad_request", "delayed event"},
		{"expected offset for a batch", "/v1/publish?expect_topic_offset=1", `{"events":[{"topic":"a","payload":1}]}`, nil, 400, "bad_request", `"expect_topic_offset"`},
		{"two expected offsets in a batch", "/v1/publish", `{"events":[{"topic":"a","payload":1},{"topic":"a","key":"k","payload":1,"expect":{"key_offset":1,"topic_offset":1}}]}`, nil, 400, "bad_request", "events[1]: expect: both"},
		{"no expected offset in a line", "/v1/publish", `{"topic":"a","payload":1,"expect":{}}`, ndjson, 400, "bad_request", "line 1: expect is empty"},
		{"unknown expectation in a line", "/v1/publish", `{"topic":"a","payload":1,"expect":{"offset":1}}`, ndjson, 400, "bad_request", "line 1: /expect/offset"},
		{"no group to wait for", "/publish/a?wait_for=", "1", nil, 400, "bad_request", "wait_for: group is empty"},
		{"bad group to wait for", "/publish/a?wait_for=g,a%20b", "1", nil, 400, "bad_request", `wait_for: group "a b"`},
		{"too many to wait for", "/publish/a?wait_for=" + strings.Repeat("g,", 16) + "g", "1", nil, 400, "bad_request", "wait_for has 17 groups"},
		{"wait for nobody", "/publish/a?wait_ms=5", "1", nil, 400, "bad_request", "wait_for is not"},
		{"no wait", "/publish/a?wait_for=g&wait_ms=0", "1", nil, 400, "bad_request", `wait_ms "0" is not a number from 1 to 300000`},
		{"long wait", "/v1/publish?wait_for=g&wait_ms=300001", `{"events":[{"topic":"a","payload":1}]}`, nil, 400, "bad_request", `"300001"`},
		{"attribute of an event for a batch", "/v1/publish?key=k", `{"events":[{"topic":"a","payload":1}]}`, nil, 400, "bad_request", `"key"`},
		{"header of an event for a batch", "/v1/publish", `{"events":[{"topic":"a","payload":1}]}`, []string{"X-Eventhub-Id", "i"}, 400, "bad_request", `"id"`},
		{"too large", "/publish/a", strings.Repeat(" ", maxPayloadBody+1), nil, 413, "too_large", "bytes"},
		{"too large a batch", "/v1/publish", strings.Repeat(" ", maxBatchBody+1), nil, 413, "too_large", "16777216 bytes"},
		{"too many bytes of lines", "/v1/publish", strings.Repeat(strings.Repeat(" ", 1<<10)+"\n", maxBatchBody>>10), ndjson, 413, "too_large", "16777216 bytes"},
		{"wrong token", "/publish/a", "1", []string{"Authorization", "Bearer wrong"}, 401, "bad_token", "token"},
		{"basic auth", "/publish/a", "1", []string{"Authorization", "Basic eDp5"}, 401, "bad_token", "Bearer"},
		{"foreign page", "/publish/a", "1", []string{"Origin", "https://evil.example"}, 403, "forbidden", "evil.example"},
		{"cloud event without a topic", "/v1/publish", "{}", []string{"Content-Type", "application/cloudevents+json"}, 400, "bad_request", "POST them to /publish/"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := &log{}
			status, answer, headers := do(newAPI(t, l), tt.target, tt.body, tt.header...)
			var p problem
			if err := json.Unmarshal([]byte(answer), &p); err != nil {
				t.Fatalf("%d %s: %v", status, answer, err)
			}
			if status != tt.status || p.Status != tt.status || string(p.Code) != tt.code || !strings.Contains(p.Detail, tt.says) {
				t.Errorf("answered %d %+v; want %d %s with %q", status, p, tt.status, tt.code, tt.says)
			}
			if headers.Get("Content-Type") != "application/problem+json" || (status == 401) != (headers.Get("WWW-Authenticate") != "") {
				t.Errorf("headers %v", headers)
			}
			if len(l.events) != 0 {
				t.Errorf("%d events were published", len(l.events))
			}
		})
	}
}

// TestEncodedBodies: whatever takes a body says that it does not take an encoded one, and
// names the coding.
func TestEncodedBodies(t *testing.T) {
	s := stocked()
	_, h := mount(t, Access{Publisher: &log{}, Inspector: s, Operator: s})
	for _, target := range []string{
		"/publish/a", "/v1/publish", "/v1/topics/a/groups/g/pull", "/v1/topics/a/groups/g/ack", "/v1/topics/a/groups/g/nack",
		"/v1/topics/a/groups/g/modack", "/v1/topics/a/groups/g/seek", "/v1/dlq/a.dlq/1/requeue", "/v1/dlq/a.dlq/redrive",
	} {
		for _, coding := range []string{"gzip", "BR", "gzip, identity"} {
			status, answer, headers := do(h, target, "\x1f\x8b", "Content-Encoding", coding)
			if status != 415 || !strings.Contains(answer, `"bad_request"`) || !strings.Contains(answer, strings.ToLower(coding)) || headers.Get("Accept-Encoding") != "identity" {
				t.Errorf("%s: a body in %s was answered %d %s", target, coding, status, answer)
			}
		}
		if status, answer, _ := do(h, target, "\x1f\x8b", "Content-Encoding", "identity"); status == 415 {
			t.Errorf("%s: a body in identity was answered %d %s", target, status, answer)
		}
	}
}

func TestPublisherErrors(t *testing.T) {
	for _, tt := range []struct {
		err    error
		status int
		retry  string
		hides  string
	}{
		{&eventhub.Error{Code: eventhub.CodeOverloaded, Message: "full", RetryAfter: 1500 * time.Millisecond}, 503, "2", ""},
		{eventhub.Errorf(eventhub.CodeShuttingDown, "bye"), 503, "1", ""},
		{eventhub.Errorf(eventhub.CodeRateLimited, "slower"), 429, "1", ""},
		{&eventhub.Error{Code: eventhub.CodeRateLimited, Message: "slower", RetryAfter: 3 * time.Second}, 429, "3", ""},
		{eventhub.Errorf(eventhub.CodeForbidden, "no"), 403, "", ""},
		{errors.New("disk on fire"), 500, "", "fire"},
	} {
		status, answer, headers := do(newAPI(t, &log{err: tt.err}), "/publish/t", "1")
		if status != tt.status || headers.Get("Retry-After") != tt.retry {
			t.Errorf("%v: %d, Retry-After %q; want %d, %q", tt.err, status, headers.Get("Retry-After"), tt.status, tt.retry)
		}
		if tt.hides != "" && strings.Contains(answer, tt.hides) {
			t.Errorf("the answer shows the cause: %s", answer)
		}
	}
}

// TestConflict: the problem of a condition has the present offset, and the index in a list alone.
func TestConflict(t *testing.T) {
	conflict := func(present uint64) error {
		err := eventhub.Errorf(eventhub.CodeConflict, "the last offset is %d", present)
		err.Present = &present
		return eventhub.AtIndex(err, "", 1)
	}
	for _, tt := range []struct {
		target, body string
		present      uint64
		want         string
	}{
		{"/publish/t?expect_topic_offset=3", "1", 7, `{"type":"about:blank","title":"Conflict","status":409,"detail":"the last offset is 7","code":"conflict","present":7}`},
		{"/publish/t?expect_topic_offset=3", "1", 0, `{"type":"about:blank","title":"Conflict","status":409,"detail":"the last offset is 0","code":"conflict","present":0}`},
		{"/v1/publish", `{"events":[{"topic":"t","payload":1},{"topic":"t","payload":1,"expect":{"topic_offset":3}}]}`, 7,
			`{"type":"about:blank","title":"Conflict","status":409,"detail":"events[1]: the last offset is 7","code":"conflict","index":1,"present":7}`},
	} {
		status, answer, _ := do(newAPI(t, &log{err: conflict(tt.present)}), tt.target, tt.body)
		if status != 409 || strings.TrimSpace(answer) != tt.want {
			t.Errorf("%s: %d %s; want %s", tt.target, status, answer, tt.want)
		}
	}
	l := &log{}
	do(newAPI(t, l), "/v1/publish", `{"events":[{"topic":"t","key":"k","payload":1,"expect":{"key_offset":3}},{"topic":"t","payload":1,"expect":{"topic_offset":0}},{"topic":"t","payload":1,"expect":null}]}`)
	want := []eventhub.Expect{eventhub.IfKeyOffset(3), eventhub.IfTopicOffset(0), {}}
	for i := range want {
		if len(l.events) != len(want) || l.events[i].Expect != want[i] {
			t.Fatalf("a batch has %+v; want the conditions %+v", l.events, want)
		}
	}
}

// TestPages: pages of this machine and listed ones may publish.
func TestPages(t *testing.T) {
	for origin, want := range map[string]int{"http://localhost:3000": 200, "https://app.example": 200, "https://app.example:444": 403, "null": 403} {
		if status, answer, _ := do(newAPI(t, &log{}), "/publish/t", "1", "Origin", origin); status != want {
			t.Errorf("Origin %s: %d %s; want %d", origin, status, answer, want)
		}
	}
}

// TestRebinding: a page whose name was made to resolve to this machine, and which
// therefore sends no Origin, gets nothing of a hub that asks for no token; a hub
// that asks for one may have any name.
func TestRebinding(t *testing.T) {
	for _, tt := range []struct {
		open   bool
		host   string
		status int
	}{
		{true, "evil.example:8081", 403},
		{true, "app.example", 200}, // of a listed origin
		{true, "localhost:8081", 200},
		{true, "127.0.0.1:8081", 200},
		{false, "hub.internal:8081", 200},
	} {
		s := stocked()
		api, err := New(Config{Open: tt.open, Origins: []string{"https://app.example"},
			Authenticate: func(context.Context, string, bool) (Access, error) { return Access{Inspector: s, Operator: s}, nil }})
		if err != nil {
			t.Fatal(err)
		}
		mux := http.NewServeMux()
		api.Register(mux)
		for _, method := range []string{"GET", "HEAD", "DELETE"} {
			want := tt.status
			if method == "DELETE" && want == 200 {
				want = 204
			}
			// Whatever token the page brings.
			status, answer, _ := request(mux, method, "http://"+tt.host+"/v1/topics/a.b/groups/g", "", "Authorization", "Bearer x")
			if status != want || status == 403 && method == "GET" && !strings.Contains(answer, `\"evil.example:8081\" is not known`) {
				t.Errorf("%s of %s, open %v: %d %s; want %d", method, tt.host, tt.open, status, answer, want)
			}
		}
		if tt.status == 403 && len(s.deleted) != 0 {
			t.Errorf("%v were deleted", s.deleted)
		}
	}
}

func TestConfigIsChecked(t *testing.T) {
	_, err := New(Config{Origins: []string{"app.example", "https://x/y"}})
	for _, part := range []string{"Authenticate", "app.example", "https://x/y"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("New = %v; it does not speak of %s", err, part)
		}
	}
}
