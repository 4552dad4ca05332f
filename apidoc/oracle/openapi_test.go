package oracle

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"mime"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"eventhub"
	"eventhub/gateway/rest"
	"eventhub/hub"
	"eventhub/internal/measure"
	"eventhub/ops"
)

// operation is one operation of the document.
type operation struct {
	d            *document
	id           string
	method, path string
	at           string   // its pointer
	parameters   []string // theirs, those of its path too
}

func (o *operation) self() object { return o.d.find(o.at).(object) }

func (o *operation) changes() bool { return o.method != "GET" }

// guarded operations ask who asks.
func (o *operation) guarded() bool { return o.self()["security"] == nil }

func (o *operation) ofOps() bool {
	return slices.Contains(o.self()["tags"].([]any), any("operations"))
}

func operations(d *document) (all []*operation) {
	for _, path := range d.names("/paths") {
		item := child("/paths", path)
		for _, method := range d.names(item) {
			if method == "parameters" || method == "servers" {
				continue
			}
			o := &operation{d: d, method: strings.ToUpper(method), path: path, at: child(item, method)}
			o.id = o.self()["operationId"].(string)
			for _, list := range []string{child(item, "parameters"), child(o.at, "parameters")} {
				given, _ := d.find(list).([]any)
				for i := range given {
					p, _ := d.follow(child(list, strconv.Itoa(i)))
					o.parameters = append(o.parameters, p)
				}
			}
			all = append(all, o)
		}
	}
	return all
}

// TestRoutes: the document has the routes that are mounted, and no other.
func TestRoutes(t *testing.T) {
	api, err := rest.New(rest.Config{Authenticate: letIn(nil)})
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	ids := make(map[string]bool)
	for _, o := range operations(openAPI(t)) {
		listed = append(listed, o.method+" "+o.path)
		if ids[o.id] {
			t.Errorf("two operations are %s", o.id)
		}
		ids[o.id] = true
	}
	want := append(api.Routes(), opsWith(t, nil).Routes()...)
	slices.Sort(want)
	slices.Sort(listed)
	for _, route := range listed {
		if !slices.Contains(want, route) {
			t.Errorf("%s is in the document and does not exist", route)
		}
	}
	for _, route := range want {
		if !slices.Contains(listed, route) {
			t.Errorf("%s exists and is not in the document", route)
		}
	}
}

func letIn(err error) func(context.Context, string, bool) (rest.Access, error) {
	return func(context.Context, string, bool) (rest.Access, error) { return rest.Access{}, err }
}

// opsWith returns an operations listener that answers every question with err.
func opsWith(t *testing.T, err error) *ops.Ops {
	t.Helper()
	o, failed := ops.New(ops.Config{
		Engine:  func(context.Context) (m measure.Engine, _ error) { return m, nil },
		Gateway: func() (m measure.Gateway) { return m }, API: func() (m measure.API) { return m },
		Authenticate: func(context.Context, string, bool) (ops.Access, error) { return ops.Access{}, err }, Level: new(slog.LevelVar),
	})
	if failed != nil {
		t.Fatal(failed)
	}
	return o
}

// TestStatuses: each code has the status that the document gives, on both listeners.
func TestStatuses(t *testing.T) {
	d := openAPI(t)
	listed, came := make(map[string]bool), make(map[string]bool) // status and code
	for _, name := range d.names("/components/responses") {
		at := child("/components/responses", name)
		for _, code := range d.find(at + "/content/application~1problem+json/schema/allOf/1/properties/code/enum").([]any) {
			listed[fmt.Sprint(d.find(at+"/x-status"), " ", code)] = true
		}
	}
	delete(listed, "415 bad_request") // of media types, besides 400
	delete(listed, "412 conflict")    // of If-Match, besides 409
	delete(listed, "422 conflict")    // of Idempotency-Key, besides 409
	for _, code := range d.find("/components/schemas/Code/enum").([]any) {
		err := eventhub.Errorf(eventhub.Code(code.(string)), "as it is asked for")
		api, failed := rest.New(rest.Config{Authenticate: letIn(err)})
		if failed != nil {
			t.Fatal(failed)
		}
		mux := http.NewServeMux()
		api.Register(mux)
		opsWith(t, err).Register(mux)
		of := func(target string) string {
			w := httptest.NewRecorder()
			mux.ServeHTTP(w, httptest.NewRequest("GET", target, nil))
			return strconv.Itoa(w.Code)
		}
		if route := of("/v1/topics") + " " + code.(string); !listed[route] {
			t.Errorf("%s is not in the document", route)
		} else {
			came[route] = true
		}
		// Codes that no question has are a bad request there.
		if status := of("/lag"); status != "400" && !listed[status+" "+code.(string)] {
			t.Errorf("the operations listener answers %s with %s, which is not in the document", code, status)
		}
	}
	for route := range listed {
		if !came[route] {
			t.Errorf("%s is in the document and does not come", route)
		}
	}
}

// request is one that the document makes possible.
type request struct {
	o           *operation
	what        string // what is special about it
	query       url.Values
	path        string
	header      http.Header
	body        []byte
	contentType string
	accept      string
	waits       bool // for groups that do not ack
}

// bare returns the request with what is required, and the first example of a body
// where one is.
func (o *operation) bare() *request {
	r := &request{o: o, what: "bare", query: url.Values{}, header: http.Header{}, path: o.path}
	for _, at := range o.parameters {
		p := o.d.find(at).(object)
		switch {
		case p["in"] == "path":
			r.path = strings.Replace(r.path, "{"+p["name"].(string)+"}", url.PathEscape(fmt.Sprint(p["example"])), 1)
		case p["required"] == true:
			r.set(p["in"], p["name"].(string), p["example"])
		}
	}
	if o.d.find(child(o.at, "requestBody", "required")) == true {
		r.takeBody(o.bodies()[0])
	}
	return r
}

func (r *request) set(in any, name string, value any) {
	list, ok := value.([]any)
	if !ok {
		list = []any{value}
	}
	for i, v := range list {
		if in == "header" {
			r.header.Add(name, fmt.Sprint(v))
		} else if i == 0 {
			r.query.Set(name, fmt.Sprint(v))
		} else {
			r.query.Add(name, fmt.Sprint(v))
		}
	}
}

// bodies returns the pointers of the examples of bodies, those of JSON first.
func (o *operation) bodies() (all []string) {
	content := child(o.at, "requestBody", "content")
	for _, kind := range o.d.names(content) {
		for _, name := range o.d.names(child(content, kind, "examples")) {
			all = append(all, child(content, kind, "examples", name))
		}
	}
	slices.SortStableFunc(all, func(a, b string) int {
		return cmp.Compare(strings.Index(b, "/application~1json/"), strings.Index(a, "/application~1json/"))
	})
	return all
}

func (r *request) takeBody(example string) {
	names := strings.Split(example, "/")
	r.contentType = strings.ReplaceAll(names[len(names)-3], "~1", "/")
	value := r.o.d.find(child(example, "value"))
	if text, ok := value.(string); ok && !strings.Contains(r.contentType, "json") || ok && strings.Contains(r.contentType, "nd") || ok && strings.Contains(r.contentType, "jsonl") {
		r.body = []byte(text)
		return
	}
	body, err := json.Marshal(value)
	if err != nil {
		r.o.d.tb.Fatal(err)
	}
	r.body = body
}

// requests returns the bare one, one for each example of a body, for each parameter,
// and for each kind of answer.
func (o *operation) requests() []*request {
	all := []*request{}
	if len(o.bodies()) == 0 {
		all = append(all, o.bare())
	}
	for _, example := range o.bodies() {
		r := o.bare()
		r.what = example[strings.Index(example, "/examples"):]
		r.takeBody(example)
		all = append(all, r)
	}
	for _, at := range o.parameters {
		p := o.d.find(at).(object)
		if p["in"] == "path" || p["required"] == true {
			continue
		}
		name := p["name"].(string)
		r := o.bare()
		r.what = "with " + name
		r.set(p["in"], name, p["example"])
		with, _ := p["x-with"].(object)
		for other, value := range with {
			if other != name {
				r.set(p["in"], other, value)
			}
		}
		r.waits = strings.Contains(strings.ToLower(name), "wait") && name != "wait_ms" || with["wait_for"] != nil
		all = append(all, r)
	}
	kinds := child(o.at, "responses", "200", "content")
	if o.self()["responses"].(object)["200"] != nil {
		for _, kind := range o.d.names(kinds) {
			r := o.bare()
			if len(o.bodies()) > 0 {
				r.takeBody(o.bodies()[0])
			}
			if needed := oneOf[o.id]; needed.name != "" {
				r.query.Set(needed.name, needed.value)
			}
			r.what, r.accept = "as "+kind, kind
			all = append(all, r)
		}
	}
	if oneOf[o.id].name != "" {
		return all[1:] // the bare one is refused
	}
	return all
}

// oneOf has, of operations that need one of several parameters, one of them.
var oneOf = map[string]struct{ name, value string }{
	"listEvents": {"caused_by", "cart-9"}, "trimTopic": {"keep", "1"}, "eraseEvents": {"id", "order-17"},
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	kind   string
	body   []byte
}

// send sends a request to a hub, with what the examples can not know in its place.
func (r *request) send(w *world, method, bearer string) (*answer, error) {
	real := strings.NewReplacer(anyLease, w.lease, anyLetter, w.letter, anyConnection, w.connection)
	target := "http://" + w.HTTPAddr() + real.Replace(r.path)
	if len(r.query) > 0 {
		target += "?" + real.Replace(r.query.Encode())
	}
	ctx, cancel := context.WithTimeout(r.o.d.tb.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, target, strings.NewReader(real.Replace(string(r.body))))
	if err != nil {
		return nil, err
	}
	req.Header = r.header.Clone()
	for name, value := range map[string]string{"Content-Type": r.contentType, "Accept": r.accept} {
		if value != "" {
			req.Header.Set(name, value)
		}
	}
	if bearer != "" {
		req.Header.Set("Authorization", "Bearer "+bearer)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	a := &answer{status: resp.StatusCode, header: resp.Header}
	a.kind, _, _ = mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if len(resp.Trailer) > 0 {
		a.header.Set("Trailer", fmt.Sprint(slices.Sorted(maps.Keys(resp.Trailer))))
	}
	if a.kind == "text/event-stream" && method == "GET" {
		a.body, err = firstEvents(w, resp.Body)
	} else {
		a.body, err = io.ReadAll(resp.Body)
	}
	return a, err
}

var client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1}}

// firstEvents reads a stream up to its first event, which is published for it when it
// has begun.
func firstEvents(w *world, from io.Reader) (all []byte, err error) {
	begun := false
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return all, err
		}
		all = append(all, line...)
		if len(line) == 1 && !begun {
			begun = true
			if _, err := w.Bus().Publish(context.Background(), order("")); err != nil {
				return all, err
			}
		}
		if bytes.HasPrefix(line, []byte("data:")) {
			return all, nil
		}
	}
}

// check holds an answer against what the document says of that status.
func (a *answer) check(o *operation) error {
	at := child(o.at, "responses", strconv.Itoa(a.status))
	if o.d.find(at) == nil {
		return fmt.Errorf("status %d is not in the document: %.200s", a.status, a.body)
	}
	at, response := o.d.follow(at)
	for _, name := range o.d.names(child(at, "headers")) {
		_, header := o.d.follow(child(at, "headers", name))
		value := a.header.Get(name)
		if header["required"] == true && value == "" {
			return fmt.Errorf("status %d has no %s", a.status, name)
		}
	}
	if response["content"] == nil {
		if len(a.body) > 0 {
			return fmt.Errorf("status %d has a body: %.200s", a.status, a.body)
		}
		return nil
	}
	media := child(at, "content", a.kind)
	if o.d.find(media) == nil {
		return fmt.Errorf("status %d as %q is not in the document", a.status, a.kind)
	}
	return a.checkBody(o, media)
}

func (a *answer) checkBody(o *operation, media string) error {
	if o.d.find(child(media, "x-item")) != nil {
		n := 0
		for line := range bytes.Lines(a.body) {
			if a.kind == "text/event-stream" {
				data, ok := bytes.CutPrefix(line, []byte("data: "))
				if line = data; !ok {
					continue
				}
			}
			n++
			if err := judgeJSON(o.d, child(media, "x-item"), line); err != nil {
				return err
			}
		}
		if n == 0 {
			return fmt.Errorf("no item came: %.200s", a.body)
		}
		return nil
	}
	if strings.HasSuffix(a.kind, "json") && o.path != "/openapi.json" && o.path != "/asyncapi.json" {
		return judgeJSON(o.d, child(media, "schema"), a.body)
	}
	return nil
}

func judgeJSON(d *document, schema string, text []byte) error {
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err == nil {
		err = d.judge(schema, v)
	}
	if err != nil {
		return fmt.Errorf("%.500s: %w", text, err)
	}
	return nil
}

// TestExamples: the examples of bodies and parameters are what their schemas say, and
// have every name that there is.
func TestExamples(t *testing.T) {
	d := openAPI(t)
	for _, o := range operations(d) {
		for _, p := range o.parameters {
			if err := d.judge(child(p, "schema"), d.find(child(p, "example"))); err != nil {
				t.Errorf("%s: %s: %v", o.id, p, err)
			}
		}
		for _, example := range o.bodies() {
			media := example[:strings.Index(example, "/examples")]
			value := d.find(child(example, "value"))
			if d.find(child(media, "x-item")) == nil {
				if err := d.judge(child(media, "schema"), value); err != nil {
					t.Errorf("%s: %s: %v", o.id, example, err)
				}
				continue
			}
			for line := range strings.Lines(value.(string)) {
				if err := judgeJSON(d, child(media, "x-item"), []byte(line)); err != nil {
					t.Errorf("%s: %s: %v", o.id, example, err)
				}
			}
		}
	}
	for _, o := range operations(d) {
		for _, kind := range d.names(child(o.at, "requestBody", "content")) {
			for _, part := range []string{"schema", "x-item"} {
				for _, name := range d.unseen(child(o.at, "requestBody", "content", kind, part), func(string) bool { return false }) {
					t.Errorf("%s: no example has %s", o.id, name)
				}
			}
		}
	}
}

// TestOperations sends every request that the document makes possible to a hub. It has
// to be taken, and the answer has to be what the document says. Then it looks at what
// of the answers it has never seen.
func TestOperations(t *testing.T) {
	d := openAPI(t)
	shared := begin(t, t.TempDir()) // on disk, for a backup
	t.Cleanup(client.CloseIdleConnections)
	for _, o := range operations(d) {
		t.Run(o.id, func(t *testing.T) {
			for _, r := range o.requests() {
				w := shared
				if o.changes() {
					w = begin(t, hub.MemoryStore)
				}
				if r.query.Has("epoch") { // the hub has chosen it
					group, err := w.Bus().Group(t.Context(), "orders", "billing")
					if err != nil {
						t.Fatal(err)
					}
					r.query.Set("epoch", strconv.FormatUint(group.Epoch, 10))
				}
				r.taken(t, w)
			}
		})
	}
	furtherAnswers(t, d)
	shown := map[string]bool{"Problem": true, "Event": true, "CloudEvent": true, "Headers": true, "Payload": true} // by TestFields and the CloudEvents oracle
	for _, name := range []string{"FilterObject", "TopicInfo", "GroupInfo", "GroupPattern", "MemberInfo", "Peer", "Blocked", "Attempt", "InFlight",
		"EventGroup", "Scheduled", "SeekPlan", "Trace", "TraceNode", "TraceEdge", "Place", "DeadLetter", "RedriveMark", "RedriveResult",
		"TopicSettings", "SettingsSource", "TrimPlan", "TopicUsage", "TopicRemoval", "TopicCompaction", "TopicSnapshots", "SnapshotInfo", "OvertakenGroup", "EraseResult", "SettingsPlan", "TopicLoss",
		"IdleGroup", "TopicIdle", "EndedGroup", "GroupIdle", "Cause",
		"StreamState"} { // by TestStateStreamThroughCuts of gateway/rest
		shown[name] = true
	}
	for _, o := range operations(d) {
		for status := range o.self()["responses"].(object) {
			if status[0] != '2' {
				continue
			}
			content := child(o.at, "responses", status, "content")
			for _, kind := range d.names(content) {
				for _, part := range []string{"schema", "x-item"} {
					for _, name := range d.unseen(child(content, kind, part), func(name string) bool { return shown[name] }) {
						t.Errorf("%s: no answer had %s", o.id, name)
					}
				}
			}
		}
	}
}

// furtherAnswers are those that take more than one step.
func furtherAnswers(t *testing.T, d *document) {
	by := make(map[string]*operation)
	for _, o := range operations(d) {
		by[o.id] = o
	}
	w := begin(t, hub.MemoryStore)
	does := func(id, from, to string, query ...string) {
		t.Helper()
		r := by[id].bare()
		r.what, r.path = id, strings.Replace(r.path, from, to, 1)
		for i := 0; i < len(query); i += 2 {
			r.query.Set(query[i], query[i+1])
		}
		if id == "redriveDeadLetters" {
			r.accept = "application/x-ndjson"
		}
		r.taken(t, w)
	}
	gapped := by["streamEvents"].bare()
	gapped.what = "streamEvents after an event that is not there"
	gapped.header.Set("Last-Event-ID", "orders:9999")
	gapped.taken(t, w)
	does("pauseGroup", "", "")
	does("getLag", "", "", "topic", "orders", "group", "billing")
	does("redriveDeadLetters", "", "", "apply", "1", "rate", "1") // which takes more than a second
	does("pullEvents", "workers", "shipping", "max", "1")
	w.giveUpAgain(t)
	overtaken := begin(t, hub.MemoryStore)
	overtaken.overtake(t, "orders", "billing")
	r := by["pullEvents"].bare()
	r.what, r.path = "pullEvents after events that were removed", strings.Replace(r.path, "workers", "billing", 1)
	r.taken(t, overtaken)
	other := order("order-20")
	other.Key, other.CausedBy = "customer-8", []string{"order-17"}
	if _, err := w.Bus().Publish(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	does("getStateDiff", "", "", "limit", "1")
	does("getKeyHistory", "", "", "key", "customer-8")
	compacted := begin(t, hub.MemoryStore)
	compacted.compact(t, "orders", "billing")
	r.what = "pullEvents after events that were compacted"
	r.taken(t, compacted)
	history := by["getKeyHistory"].bare()
	history.what = "getKeyHistory of a compacted topic"
	history.taken(t, compacted)
	page := by["replayEvents"].bare()
	page.what = "replayEvents of a compacted topic"
	page.taken(t, compacted)
	page.accept = "application/cloudevents-batch+json"
	page.taken(t, compacted)
	late := by["streamEvents"].bare()
	late.what = "streamEvents at a place that was compacted"
	late.set("query", "from", "offset")
	late.set("query", "offset", 1)
	late.taken(t, compacted)
	ended := begin(t, hub.MemoryStore)
	ended.endIdle(t, "orders", "shipping")
	r = by["pullEvents"].bare()
	r.what, r.path = "pullEvents by a group that had ended", strings.Replace(r.path, "workers", "shipping", 1)
	r.taken(t, ended)
	does("getDeadLetter", "", "")
	does("getDeadLetter", "orders/1", "orders/4")
	later := by["putSettings"].bare()
	later.body = []byte(`{"rate":{"per_second":1}}`)
	if a, err := later.send(w, "PUT", token); err != nil || a.status != 501 || a.check(later.o) != nil {
		t.Errorf("settings of a later version are answered %+v, %v", a, err)
	}

	h := http.NewServeMux()
	failing, err := ops.New(ops.Config{
		Engine:  func(context.Context) (m measure.Engine, _ error) { return m, nil },
		Gateway: func() (m measure.Gateway) { return m }, API: func() (m measure.API) { return m },
		Authenticate: func(context.Context, string, bool) (ops.Access, error) { return ops.Access{}, nil },
		Ready:        []ops.Check{{Name: "store", Check: func(context.Context) error { return eventhub.Errorf(eventhub.CodeInternal, "it is broken") }}},
	})
	if err != nil {
		t.Fatal(err)
	}
	failing.Register(h)
	for _, target := range []string{"/readyz", "/readyz?format=json"} {
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequest("GET", target, nil))
		a := &answer{status: rec.Code, header: rec.Header(), body: rec.Body.Bytes()}
		a.kind, _, _ = mime.ParseMediaType(rec.Header().Get("Content-Type"))
		if err := a.check(by["getReadiness"]); err != nil || a.status != 503 {
			t.Errorf("%s of a hub that is not ready: %d, %v", target, a.status, err)
		}
	}
	ofMembers(t, by)
}

// ofMembers asks hubs that share a journal.
func ofMembers(t *testing.T, by map[string]*operation) {
	t.Helper()
	m := &measure.Cluster{ID: "hub1", Leads: true, Epoch: 2, Active: "hub1", Position: 7, Last: 9, Durability: "replicated", Used: 4096, Now: time.UnixMilli(1_700_000_001_000),
		Members: []measure.Member{{ID: "hub1", URLs: []string{"ws://hub1:8090"}, Synced: 7, Layout: 1, Seen: time.Now()}, {ID: "hub2", Seen: time.Now(), Released: true}}}
	h := http.NewServeMux()
	o, err := ops.New(ops.Config{
		Engine:  func(context.Context) (m measure.Engine, _ error) { return m, nil },
		Gateway: func() (m measure.Gateway) { return m }, API: func() (m measure.API) { return m },
		Authenticate: func(context.Context, string, bool) (ops.Access, error) { return ops.Access{}, nil },
		Cluster:      func() *measure.Cluster { return m },
		Standby:      []ops.Check{{Name: "standby", Check: func(context.Context) error { return nil }}},
	})
	if err != nil {
		t.Fatal(err)
	}
	o.Register(h)
	for range 2 {
		for target, id := range map[string]string{"/cluster": "getCluster", "/readyz?role=standby": "getReadiness", "/healthz?role=standby": "getHealth"} {
			rec := httptest.NewRecorder()
			h.ServeHTTP(rec, httptest.NewRequest("GET", target, nil))
			a := &answer{status: rec.Code, header: rec.Header(), body: rec.Body.Bytes()}
			a.kind, _, _ = mime.ParseMediaType(rec.Header().Get("Content-Type"))
			if err := a.check(by[id]); err != nil || a.status != 200 {
				t.Errorf("%s of a member: %d, %v", target, a.status, err)
			}
		}
		m = &measure.Cluster{ID: "hub3"} // that has not reached its journal yet
	}
}

// taken sends a request that the hub has to take, and its HEAD where it is a GET.
func (r *request) taken(t *testing.T, w *world) {
	t.Helper()
	a, err := r.send(w, r.o.method, token)
	if err != nil {
		t.Errorf("%s: %v", r.what, err)
		return
	}
	if err := a.check(r.o); err != nil {
		t.Errorf("%s: %v", r.what, err)
	}
	alone := a.status == 501 && r.o.id == "getCluster" || a.status == 503 && r.query.Has("role") // ofMembers asks others
	if a.status >= 300 && !alone && !(r.waits && (a.status == 504 || a.status == 404)) {
		t.Errorf("%s is answered %d %.300s", r.what, a.status, a.body)
	}
	if r.accept != "" && a.kind != r.accept && !alone {
		t.Errorf("%s is answered as %q", r.what, a.kind)
	}
	if r.o.method != "GET" {
		return
	}
	if head, err := r.send(w, "HEAD", token); err != nil || head.status != a.status || len(head.body) > 0 {
		t.Errorf("HEAD, %s: %+v, %v", r.what, head, err)
	}
}

// TestRefusals: who is not let in, and who says what an operation does not know, is
// refused as the document says.
func TestRefusals(t *testing.T) {
	d := openAPI(t)
	w := begin(t, hub.MemoryStore)
	t.Cleanup(client.CloseIdleConnections)
	refused := func(t *testing.T, r *request, bearer string, status int) {
		t.Helper()
		a, err := r.send(w, r.o.method, bearer)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.check(r.o); err != nil || a.status != status || a.kind != "application/problem+json" {
			t.Errorf("%s: answered %d as %q: %v", r.what, a.status, a.kind, err)
		}
	}
	for _, o := range operations(d) {
		t.Run(o.id, func(t *testing.T) {
			if !o.guarded() {
				return // they refuse nobody
			}
			refused(t, o.bare(), "", 401)
			refused(t, o.bare(), "wrong", 401)
			if o.looksAtQuery() {
				r := o.bare()
				r.what = "nonsense in the query"
				r.query.Set("nonsense", "1")
				refused(t, r, token, 400)
			}
			if d.find(child(o.at, "requestBody")) != nil {
				r := o.bare()
				r.what, r.body = "half a body", []byte("{")
				refused(t, r, token, 400)
			}
		})
	}
}

// TestRanges: the least and the most that the document allows for a number are taken,
// and what lies beyond is refused.
func TestRanges(t *testing.T) {
	d := openAPI(t)
	w := begin(t, hub.MemoryStore)
	t.Cleanup(client.CloseIdleConnections)
	count := 0
	for _, o := range operations(d) {
		for _, at := range o.parameters {
			_, s := d.follow(child(at, "schema"))
			for bound, step := range map[string]int64{"minimum": -1, "maximum": 1} {
				limit, ok := s[bound].(json.Number)
				if !ok {
					continue
				}
				n, err := limit.Int64()
				if err != nil {
					t.Fatal(err)
				}
				count++
				o.tryNumber(t, w, at, n, true)
				o.tryNumber(t, w, at, n+step, false)
			}
		}
	}
	if count < 60 {
		t.Errorf("only %d bounds were tried", count)
	}
}

func (o *operation) tryNumber(t *testing.T, w *world, parameter string, n int64, taken bool) {
	t.Helper()
	p := o.d.find(parameter).(object)
	name := p["name"].(string)
	if o.id == "pullEvents" && name == "wait_ms" && n == eventhub.MaxPullWait.Milliseconds() {
		return // it would be waited for
	}
	if o.id == "trimTopic" && name == "before" && taken && n > 1 {
		return // the topic has no such head
	}
	r := o.bare()
	with, _ := p["x-with"].(object)
	for other, value := range with {
		r.set(p["in"], other, value)
	}
	r.set(p["in"], name, n)
	method := o.method
	if method == "GET" && taken {
		method = "HEAD" // a stream may have nothing to say
	}
	a, err := r.send(w, method, token)
	if err != nil {
		t.Fatal(err)
	}
	if taken != (a.status != 400) {
		t.Errorf("%s: %s %d: answered %d %.200s", o.id, name, n, a.status, a.body)
	}
	if !taken && a.check(o) != nil {
		t.Errorf("%s: %s %d: %v", o.id, name, n, a.check(o))
	}
}

// looksAtQuery reports whether an operation refuses names that it does not know.
func (o *operation) looksAtQuery() bool {
	return o.guarded() && (!o.ofOps() || o.d.find(child(o.at, "parameters")) != nil)
}

// TestNoOtherNames: no operation takes a name, in its query or its body, that the
// document does not list. Tried are all that are in the hub's sources.
func TestNoOtherNames(t *testing.T) {
	d := openAPI(t)
	w := begin(t, hub.MemoryStore)
	t.Cleanup(client.CloseIdleConnections)
	inQuery, inBody := words(t, "gateway/rest", "ops"), words(t, ".", "gateway/rest", "wire")
	if !slices.Contains(inQuery, "after_topic") || !slices.Contains(inBody, "committed_ts") {
		t.Fatalf("the sources have the words %q and %q", inQuery, inBody)
	}
	for _, o := range operations(d) {
		t.Run(o.id, func(t *testing.T) {
			listed := make(map[string]bool)
			for _, at := range o.parameters {
				if p := d.find(at).(object); p["in"] == "query" {
					listed[p["name"].(string)] = true
				}
			}
			for _, word := range inQuery {
				if !o.looksAtQuery() || listed[word] {
					continue
				}
				r := o.bare()
				r.query.Set(word, "1")
				r.unknown(t, w, "query: "+word)
			}
			o.tryBodies(t, w, inBody)
		})
	}
}

// tryBodies adds each word to the JSON objects that a body is made of.
func (o *operation) tryBodies(t *testing.T, w *world, all []string) {
	for _, example := range o.bodies() {
		media := example[:strings.Index(example, "/examples")]
		r := o.bare()
		r.takeBody(example)
		at, item := child(media, "schema"), o.d.find(child(media, "x-item")) != nil
		if item {
			at = child(media, "x-item")
		}
		_, s := o.d.follow(at)
		if s["additionalProperties"] != false {
			continue
		}
		listed := o.d.properties(at)
		for _, word := range all {
			if listed[word] {
				continue
			}
			changed := *r
			changed.body = append([]byte(fmt.Sprintf(`{%q:null,`, word)), r.body[1:]...)
			changed.unknown(t, w, "body: "+word)
		}
		if events := child(at, "properties", "events", "items"); o.d.find(events) != nil {
			listed := o.d.properties(events)
			for _, word := range all {
				if !listed[word] {
					changed := *r
					changed.body = bytes.Replace(r.body, []byte(`"events":[{`), []byte(fmt.Sprintf(`"events":[{%q:null,`, word)), 1)
					changed.unknown(t, w, "event: "+word)
				}
			}
		}
	}
}

func (r *request) unknown(t *testing.T, w *world, what string) {
	t.Helper()
	a, err := r.send(w, r.o.method, token)
	if err != nil {
		t.Fatal(err)
	}
	for _, say := range []string{"does not know", "is unknown", "is not a known name", "no option of a pull"} {
		if a.status == 400 && bytes.Contains(a.body, []byte(say)) {
			return
		}
	}
	t.Errorf("%s is not in the document and not unknown: %d %.200s", what, a.status, a.body)
}
