package rest_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/hub"
)

// deadLetter publishes events whose payloads are their numbers, from 1, and has a group give
// them all up.
func (c caller) deadLetter(topic, group string, n int) {
	c.t.Helper()
	for i := 1; i <= n; i++ {
		if _, err := c.h.Bus().Publish(c.t.Context(), eventhub.Event{Topic: topic, ID: fmt.Sprint("e", i), Key: fmt.Sprint("k", i%2),
			Headers: map[string]string{"x-h": "v"}, Payload: fmt.Appendf(nil, `{"n":%d.0,"s":"<>"}`, i)}); err != nil {
			c.t.Fatal(err)
		}
	}
	c.giveUp(topic, group, n)
	c.awaitLetters(topic, n)
}

// giveUp nacks n events of a group for good.
func (c caller) giveUp(topic, group string, n int) {
	c.t.Helper()
	leases := c.pullFrom(topic, group, n)
	c.want(topic+"/groups/"+group+"/nack", fmt.Sprintf(`{"leases":["%s"],"terminal":true,"reason":"no <way>"}`, strings.Join(leases, `","`)), 200)
}

// counter counts deliveries.
type counter chan struct{}

func (c counter) Deliver(batch []eventhub.Delivery) int {
	for range batch {
		c <- struct{}{}
	}
	return len(batch)
}

func (counter) Ended(error) {}

// awaitLetters waits until a topic has n dead letters: they are made after the answer
// to a nack.
func (c caller) awaitLetters(topic string, n int) {
	c.t.Helper()
	letters := make(counter, 100)
	sub, err := c.h.Bus().Tail(c.t.Context(), eventhub.TailOptions{Topic: eventhub.DeadLetterTopic(topic), Start: eventhub.Earliest}, letters)
	if err != nil {
		c.t.Fatal(err)
	}
	defer sub.Drop(0)
	late := time.After(patience)
	for i := range n {
		select {
		case <-letters:
		case <-late:
			c.t.Fatalf("%d dead letters have come; %d must", i, n)
		}
	}
}

// pullFrom returns the leases of n deliveries.
func (c caller) pullFrom(topic, group string, n int) (leases []string) {
	c.t.Helper()
	for len(leases) < n {
		_, answer := c.ask(topic+"/groups/"+group+"/pull?max=1000&wait_ms=60000", `{"from":"earliest"}`)
		var got pulled
		if err := json.Unmarshal([]byte(answer), &got); err != nil || len(got.Deliveries) == 0 {
			c.t.Fatalf("pulled %s, %v", answer, err)
		}
		for _, d := range got.Deliveries {
			leases = append(leases, d.Ctx.Lease)
		}
	}
	return leases
}

// dlq asks for a path below /v1/dlq.
func (c caller) dlq(method, path, body string, header ...string) (status int, answer string, headers http.Header) {
	c.t.Helper()
	return c.request(method, "/v1/dlq"+path, body, header...)
}

// request asks for any path.
func (c caller) request(method, path, body string, header ...string) (status int, answer string, headers http.Header) {
	c.t.Helper()
	r, err := http.NewRequestWithContext(c.t.Context(), method, "http://"+c.h.HTTPAddr()+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	got, err := http.DefaultClient.Do(r)
	if err != nil {
		c.t.Fatal(err)
	}
	defer got.Body.Close()
	b, err := io.ReadAll(got.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return got.StatusCode, string(b), got.Header
}

// dlqInto decodes an answer that has to be a 200.
func (c caller) dlqInto(into any, method, path, body string) {
	c.t.Helper()
	status, answer, _ := c.dlq(method, path, body)
	if err := json.Unmarshal([]byte(answer), into); status != 200 || err != nil {
		c.t.Fatalf("%s %s %s was answered %d %s, %v", method, path, body, status, answer, err)
	}
}

// letters is an answer to a listing.
type letters struct {
	Topic       string
	DeadLetters []admin.DeadLetter `json:"dead_letters"`
	Next        uint64
}

func (c caller) letters(path string) (l letters) {
	c.t.Helper()
	c.dlqInto(&l, "GET", path, "")
	return l
}

func (c caller) redrive(path, body string) (r admin.RedriveResult) {
	c.t.Helper()
	c.dlqInto(&r, "POST", path, body)
	return r
}

// words are values with spaces between them.
func words(values ...any) string { return strings.TrimSuffix(fmt.Sprintln(values...), "\n") }

func check(t *testing.T, what string, got any, want string) {
	t.Helper()
	if text := fmt.Sprint(got); text != want {
		t.Errorf("%s: %s; want %s", what, text, want)
	}
}

// TestRedriveOverHTTP: a dead letter is found, shown, given back to its group, and
// reports that redrive.
func TestRedriveOverHTTP(t *testing.T) {
	c := caller{t, startHub(t, hub.MemoryStore)}
	c.deadLetter("a.b", "g", 3)
	c.giveUp("a.b", "h", 3)
	c.awaitLetters("a.b", 6)

	status, answer, _ := c.dlq("GET", "", "")
	if status != 200 || !strings.HasPrefix(answer, `{"topics":[{"topic":"a.b","dlq":"a.b.dlq","count":6,"open":6,"redriven":0,"done":0,"requeued":0,"groups":[{"group":"g","open":3,"redriven":0,"done":0,"requeued":0},{"group":"h","open":3,"redriven":0,"done":0,"requeued":0}],"head":6,"first_ts":`) {
		t.Errorf("the topics are %d %s", status, answer)
	}
	list := c.letters("/a.b?group=h")
	check(t, "topic", list.Topic, "a.b")
	if len(list.DeadLetters) != 3 || list.Next != 0 {
		t.Fatalf("the list is %+v", list)
	}
	d := list.DeadLetters[1]
	check(t, "a dead letter", words(d.Offset, d.Topic, d.Group, d.Event, d.EventID, d.Key, d.Attempts, d.Reason, d.Marks), "5 a.b h 2 e2 k0 1 no <way> []")

	for _, name := range []string{"5", d.ID} {
		status, answer, headers := c.dlq("GET", "/a.b.dlq/"+name, "")
		if status != 200 || headers.Get("Content-Type") != "application/json" || !strings.HasPrefix(answer, `{"offset":5,"id":"`+d.ID+`","ts":`) {
			t.Errorf("%s is shown as %d %s", name, status, answer)
		}
		if !strings.Contains(answer, `,"history":[{"attempt":1,`) || !strings.Contains(answer, `,"key":"k0","headers":{"x-h":"v"},"payload":{"n":2.0,"s":"<>"}}}`+"\n") {
			t.Errorf("the original of %s is shown as %s", name, answer)
		}
	}

	dry := c.redrive("/a.b/redrive?group=h", "")
	check(t, "dry run", words(dry.Topic, dry.Applied, dry.Matched, dry.Redriven, dry.Groups, len(dry.Samples), dry.After), "a.b false 3 3 map[h:3] 3 6")
	check(t, "after a dry run", len(c.letters("/a.b").DeadLetters), "6")
	done := c.redrive("/a.b.dlq/redrive?apply=1", `{"ids":["`+d.ID+`"],"offsets":[4],"rate":100000}`)
	check(t, "redriven", words(done.Applied, done.Matched, done.Redriven, done.Groups, done.After), "true 2 2 map[h:2] 5")
	done = c.redrive("/a.b.dlq/redrive?apply=1", `{"ids":["`+d.ID+`"],"offsets":[4],"rate":100000}`)
	check(t, "redriven again", words(done.Applied, done.Matched, done.Redriven), "true 0 0")
	check(t, "open", len(c.letters("/a.b").DeadLetters), "4")
	marked := c.letters("/a.b?all=1&offsets=4,5").DeadLetters
	if len(marked) != 2 || len(marked[1].Marks) != 1 {
		t.Fatalf("marked are %+v", marked)
	}
	m := marked[1].Marks[0]
	if m.Redriven != 1 || m.Topic != "a.b" || m.Group != "h" || m.Offset != 2 || m.DeadLetter.Offset != 5 || !strings.HasPrefix(m.By, "anonymous at 127.0.0.1:") {
		t.Errorf("the mark is %+v", m)
	}
	c.want("a.b/groups/h/pull", "", 200, `"id":"e1"`, `"id":"e2"`, `,"lease":"`, `","redriven":1}}`)
	_, answer = c.ask("a.b/groups/g/pull", "")
	check(t, "to the other group", answer, `{"deliveries":[]}`+"\n")
}

// TestDeadLetterQueries: each choice is obeyed, in the list, and in a redrive by query
// and by body.
func TestDeadLetterQueries(t *testing.T) {
	c := caller{t, startHub(t, hub.MemoryStore)}
	c.deadLetter("t", "g", 5)
	all := c.letters("/t").DeadLetters
	if len(all) != 5 {
		t.Fatalf("the list is %+v", all)
	}
	late := all[4].TS + 1
	for _, tt := range []struct{ query, body, want string }{
		{"group=g", `{"group":"g"}`, "1 2 3 4 5"},
		{"group=other", `{"group":"other"}`, ""},
		{"offsets=4,%202", `{"offsets":[4,2]}`, "2 4"},
		{"ids=" + all[0].ID, `{"ids":["` + all[0].ID + `"]}`, "1"},
		{"key=k1", `{"filter":{"key":"k1"}}`, "1 3 5"},
		{"filter=event.payload.event.payload.n%20%3E%203.0", `{"filter":"event.payload.event.payload.n > 3.0"}`, "4 5"},
		{"filter=event.payload.event.payload.n%20%3E%203.0&key=k1", `{"filter":{"key":"k1","cel":"event.payload.event.payload.n > 3.0"}}`, "5"},
		{fmt.Sprint("from_ts=", late), fmt.Sprintf(`{"from_ts":%d}`, late), ""},
		{fmt.Sprint("from_ts=1&to_ts=", late), fmt.Sprintf(`{"from_ts":1,"to_ts":%d}`, late), "1 2 3 4 5"},
		{fmt.Sprint("to_ts=", all[0].TS), fmt.Sprintf(`{"to_ts":%d}`, all[0].TS), ""},
		{"after=3", `{"after":3,"filter":null}`, "4 5"},
		{"after=1&limit=2", `{"after":1,"limit":2}`, "2 3"},
		{"all=1&limit=1", `{"all":true,"limit":1}`, "1"},
	} {
		var offsets []string
		for _, d := range c.letters("/t?" + tt.query).DeadLetters {
			offsets = append(offsets, fmt.Sprint(d.Offset))
		}
		check(t, "listed by "+tt.query, strings.Join(offsets, " "), tt.want)
		for _, result := range []admin.RedriveResult{c.redrive("/t/redrive?"+tt.query, ""), c.redrive("/t/redrive", tt.body)} {
			offsets = nil
			for _, d := range result.Samples {
				offsets = append(offsets, fmt.Sprint(d.Offset))
			}
			check(t, "would be redriven by "+tt.query+" or "+tt.body, strings.Join(offsets, " "), tt.want)
		}
	}
}

func TestDeadLetterPages(t *testing.T) {
	c := caller{t, startHub(t, hub.MemoryStore)}
	for i, topic := range []string{"c", "a", "b.b"} {
		c.deadLetter(topic, "g", i+1)
	}
	c.publish("d.e", "x")
	var names []string
	for next := ""; ; {
		var page struct {
			Topics []struct {
				Topic, DLQ string
				Count      int
			}
			Next string
		}
		c.dlqInto(&page, "GET", "?limit=1&after="+next, "")
		for _, topic := range page.Topics {
			names = append(names, fmt.Sprint(topic.Topic, "=", topic.DLQ, "=", topic.Count))
		}
		if next = page.Next; next == "" {
			break
		}
	}
	check(t, "topics", names, "[a=a.dlq=2 b.b=b.b.dlq=3 c=c.dlq=1]")
	check(t, "letters after none", c.letters("/b.b?limit=3").Next, "0")
	list := c.letters("/b.b?limit=2")
	check(t, "a page", words(len(list.DeadLetters), list.Next), "2 2")
	list = c.letters(fmt.Sprint("/b.b?limit=2&after=", list.Next))
	check(t, "the last page", words(len(list.DeadLetters), list.DeadLetters[0].Offset, list.Next), "1 3 0")
	check(t, "of a topic without", len(c.letters("/d.e").DeadLetters), "0")
}

// TestRequeueOverHTTP: the event comes again with another payload, once, unless its caller has seen that.
func TestRequeueOverHTTP(t *testing.T) {
	c := caller{t, startHub(t, hub.MemoryStore)}
	c.deadLetter("t", "g", 2)
	var first, second eventhub.Receipt
	c.dlqInto(&first, "POST", "/t/2/requeue", " {\"n\": 7.0}\n")
	status, answer, _ := c.dlq("POST", "/t.dlq/"+c.letters("/t?all=1&offsets=2").DeadLetters[0].ID+"/requeue", `{"n":7.0}`)
	check(t, "the same again", words(status, answer), fmt.Sprintf(`200 {"id":%q,"offset":3,"duplicate":true}`+"\n", first.ID))
	status, answer, _ = c.dlq("POST", "/t/2/requeue", `null`)
	check(t, "another payload", words(status, strings.Contains(answer, `"code":"conflict"`), strings.Contains(answer, "has requeued the dead letter at offset 2")), "409 true true")
	c.dlqInto(&second, "POST", "/t/2/requeue?marks=1", `null`)
	check(t, "another", words(second.Offset, second.ID != first.ID), "4 true")
	item, err := c.h.Bus().Event(t.Context(), "t", first.ID)
	if err != nil {
		t.Fatal(err)
	}
	e, err := item.Event()
	check(t, "the new event", words(e.Key, e.Headers, e.CausedBy, string(e.Payload), err), `k0 map[x-h:v] [e2] {"n":7.0} <nil>`)
	marks := c.letters("/t?all=1").DeadLetters[1].Marks
	if len(marks) != 2 || marks[0].RequeuedAs != first.ID || !strings.HasPrefix(marks[0].By, "anonymous at ") {
		t.Errorf("the marks are %+v", marks)
	}
	check(t, "open", len(c.letters("/t").DeadLetters), "1")
}

// TestDeadLetterProblems: every refusal is a problem with its code, and has changed
// nothing.
func TestDeadLetterProblems(t *testing.T) {
	c := caller{t, startHub(t, hub.MemoryStore)}
	c.deadLetter("t", "g", 2)
	c.publish("bare", "x")
	large := `"` + strings.Repeat("x", eventhub.MaxPayloadBytes) + `"`
	for _, tt := range []struct {
		method, path, body string
		status             int
		code, says         string
	}{
		{"GET", "?limit=0", "", 400, "bad_request", `limit "0"`},
		{"GET", "?after=a%20b", "", 400, "bad_request", "after: "},
		{"GET", "?topic=t", "", 400, "bad_request", `"topic"`},
		{"GET", "/nope", "", 404, "unknown_id", `"nope"`},
		{"GET", "/nope.dlq", "", 404, "unknown_id", `"nope.dlq"`},
		{"GET", "/a%20b", "", 400, "bad_topic", `"a b"`},
		{"GET", "/*", "", 400, "bad_topic", `"*"`},
		{"GET", "/t?limit=1001", "", 400, "bad_request", "1 to 1000"},
		{"GET", "/t?group=", "", 400, "bad_request", "group is empty"},
		{"GET", "/t?group=a%20b", "", 400, "bad_request", `"a b"`},
		{"GET", "/t?from_ts=soon", "", 400, "bad_request", `from_ts: "soon" is not a time`},
		{"GET", "/t?from_ts=-1", "", 400, "bad_request", `from_ts: "-1" is before 1970`},
		{"GET", "/t?to_ts=0", "", 400, "bad_request", "to_ts is 0"},
		{"GET", "/t?from_ts=5&to_ts=5", "", 400, "bad_request", "from_ts is 5, which is not before to_ts, 5"},
		{"GET", "/t?after=-1", "", 400, "bad_request", `after is "-1"`},
		{"GET", "/t?after=9007199254740992", "", 400, "bad_request", "at most 9007199254740991"},
		{"GET", "/t?all=perhaps", "", 400, "bad_request", `all is "perhaps"`},
		{"GET", "/t?filter=event.", "", 400, "bad_request", "filter.cel"},
		{"GET", "/t?filter=", "", 400, "bad_request", "filter is empty"},
		{"GET", "/t?key=", "", 400, "bad_request", "key is empty"},
		{"GET", "/t?ids=", "", 400, "bad_request", "ids[0]: id is empty"},
		{"GET", "/t?ids=nobody", "", 404, "unknown_id", `"nobody"`},
		{"GET", "/t?offsets=1,x", "", 400, "bad_request", `offsets has "x"`},
		{"GET", "/t?offsets=0", "", 400, "bad_request", "offsets[0] is 0"},
		{"GET", "/t?offsets=7", "", 404, "unknown_id", "offset 7"},
		{"GET", "/t?cel=true", "", 400, "bad_request", `"cel"`},
		{"GET", "/t?limit=1&limit=2", "", 400, "bad_request", "limit is given 2 times"},
		{"GET", "/t/7", "", 404, "unknown_id", "offset 7"},
		{"GET", "/t/0", "", 400, "bad_request", "offset is 0"},
		{"GET", "/t/9007199254740992", "", 400, "bad_request", "offset is 9007199254740992"},
		{"GET", "/t/nobody", "", 404, "unknown_id", `"nobody"`},
		{"GET", "/t/a%20b", "", 400, "bad_event", `"a b"`},
		{"GET", "/t/1?all=1", "", 400, "bad_request", `"all"`},
		{"GET", "/bare/1", "", 404, "unknown_id", "bare.dlq"},
		{"GET", "/bare/x", "", 404, "unknown_id", `"x"`},
		{"GET", "/nope/1", "", 404, "unknown_id", `"nope"`},
		{"GET", "/t/redrive", "", 405, "unsupported_op", "POST"},
		{"POST", "/t/redrive?apply=yes", "", 400, "bad_request", `apply is "yes"`},
		{"POST", "/t/redrive?apply=1&rate=0", "", 400, "bad_request", "rate is 0"},
		{"POST", "/t/redrive?apply=1&rate=100001", "", 400, "bad_request", "1 to 100000"},
		{"POST", "/t/redrive?apply=1&rate=fast", "", 400, "bad_request", `rate is "fast"`},
		{"POST", "/t/redrive?apply=1&limit=0", "", 400, "bad_request", "limit is 0"},
		{"POST", "/t/redrive?apply=1&limit=many", "", 400, "bad_request", `limit is "many"`},
		{"POST", "/t/redrive?apply=1&grup=g", "", 400, "bad_request", `"grup"`},
		{"POST", "/t/redrive?apply=1&ids=nobody", "", 404, "unknown_id", `"nobody"`},
		{"POST", "/t/redrive?apply=1&filter=1%20%2B%201", "", 400, "bad_request", "filter.cel"},
		{"POST", "/t/redrive?apply=1", `{"rate":-1}`, 400, "bad_request", "rate is -1"},
		{"POST", "/t/redrive?apply=1", `{"limit":-1}`, 400, "bad_request", "limit is -1"},
		{"POST", "/t/redrive?apply=1", `{"ids":[]}`, 400, "bad_request", "ids is empty"},
		{"POST", "/t/redrive?apply=1", `{"offsets":[]}`, 400, "bad_request", "offsets is empty"},
		{"POST", "/t/redrive?apply=1", `{"ids":"x"}`, 400, "bad_request", "/ids"},
		{"POST", "/t/redrive?apply=1", `{"offsets":["1"]}`, 400, "bad_request", "/offsets/0"},
		{"POST", "/t/redrive?apply=1", `{"group":1}`, 400, "bad_request", "/group"},
		{"POST", "/t/redrive?apply=1", `{"group":""}`, 400, "bad_request", "group is empty"},
		{"POST", "/t/redrive?apply=1", `{"filter":{"kee":"k"}}`, 400, "bad_request", "kee"},
		{"POST", "/t/redrive?apply=1", `{"filter":7}`, 400, "bad_request", "filter"},
		{"POST", "/t/redrive?apply=1", `{"apply":true}`, 400, "bad_request", "/apply"},
		{"POST", "/t/redrive?apply=1", `{"group":"g","group":"h"}`, 400, "bad_json", `"group"`},
		{"POST", "/t/redrive?apply=1", `{"group":`, 400, "bad_json", "byte"},
		{"POST", "/t/redrive?apply=1", `[]`, 400, "bad_request", "array"},
		{"POST", "/t/redrive?apply=1&group=g", `{"limit":1}`, 400, "bad_request", "in the query and in the body"},
		{"POST", "/t/redrive?apply=1", strings.Repeat(" ", 256<<10+1), 413, "too_large", "262144 bytes"},
		{"POST", "/t/redrive?apply=1", `{"offsets":[` + strings.Repeat("1,", admin.MaxPage) + `1]}`, 400, "bad_request", "at most 1000"},
		{"POST", "/nope/redrive?apply=1", "", 404, "unknown_id", `"nope"`},
		{"POST", "/t/1/requeue", "", 400, "bad_request", "payload is missing"},
		{"POST", "/t/1/requeue", `{"a":`, 400, "bad_json", "payload"},
		{"POST", "/t/1/requeue", `{"a":1,"a":2}`, 400, "bad_json", `"a"`},
		{"POST", "/t/1/requeue", "1 2", 400, "bad_json", "payload"},
		{"POST", "/t/1/requeue", large, 413, "too_large", "1048576"},
		{"POST", "/t/1/requeue", large + strings.Repeat(" ", 128<<10), 413, "too_large", "the body has more than"},
		{"POST", "/t/1/requeue?key=k", "1", 400, "bad_request", `"key"`},
		{"POST", "/t/1/requeue?marks=-1", "1", 400, "bad_request", `marks is "-1"`},
		{"POST", "/t/7/requeue", "1", 404, "unknown_id", "offset 7"},
		{"POST", "/t/nobody/requeue", "1", 404, "unknown_id", `"nobody"`},
		{"POST", "/nope/1/requeue", "1", 404, "unknown_id", `"nope"`},
		{"GET", "/t/1/requeue", "", 405, "unsupported_op", "POST"},
		{"POST", "/t/1/redrive", "", 404, "unsupported_op", "/v1/dlq/t/1/redrive"},
	} {
		t.Run(tt.method+" "+tt.path+" "+tt.body[:min(len(tt.body), 40)], func(t *testing.T) {
			for _, accept := range []string{"*/*", "application/x-ndjson"} {
				status, answer, headers := caller{t, c.h}.dlq(tt.method, tt.path, tt.body, "Accept", accept)
				var p struct{ Code, Detail string }
				if err := json.Unmarshal([]byte(answer), &p); err != nil || headers.Get("Content-Type") != "application/problem+json" {
					t.Fatalf("answered %d %s %v, %v", status, answer, headers, err)
				}
				if status != tt.status || p.Code != tt.code || !strings.Contains(p.Detail, tt.says) {
					t.Errorf("answered %d %+v; want %d %s with %q", status, p, tt.status, tt.code, tt.says)
				}
			}
		})
	}
	check(t, "open", len(c.letters("/t").DeadLetters), "2")
	if info, err := c.h.Bus().Topic(t.Context(), "t"); err != nil || info.Head != 2 {
		t.Errorf("the topic is %+v, %v", info, err)
	}
}
