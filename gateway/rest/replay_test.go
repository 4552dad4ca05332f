package rest

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"eventhub"
	"eventhub/admin"
)

// TestReplay: a page is the events as they are stored, and says where the next one
// begins unless it is the last.
func TestReplay(t *testing.T) {
	events := chronicle(3, `{"n": 1.0}`)
	stored := make([]string, len(events))
	for i, e := range events {
		stored[i] = string(e.Record.AppendJSON(nil, e.Offset))
	}
	for _, tt := range []struct {
		name, query string
		asked       admin.ReplayQuery
		want        string
	}{
		{"all", "topic=t", admin.ReplayQuery{Topic: "t", Start: eventhub.Earliest, Limit: 101},
			`{"topic":"t","count":3,"events":[` + strings.Join(stored, ",") + `]}`},
		{"as many as there are", "topic=t&limit=3&from=earliest", admin.ReplayQuery{Topic: "t", Start: eventhub.Earliest, Limit: 4},
			`{"topic":"t","count":3,"events":[` + strings.Join(stored, ",") + `]}`},
		{"a page", "topic=t&limit=2&offset=1", admin.ReplayQuery{Topic: "t", Start: eventhub.Start{Kind: eventhub.StartOffset, Offset: 1}, Limit: 3},
			`{"topic":"t","count":2,"events":[` + strings.Join(stored[:2], ",") + `],"next":{"from":"offset","offset":6,"life":7}}`},
		{"by time", "topic=t.dlq&limit=1&ts=5", admin.ReplayQuery{Topic: "t.dlq", Start: eventhub.Start{Kind: eventhub.StartTime, TS: 5}, Limit: 2},
			`{"topic":"t.dlq","count":1,"events":[` + stored[0] + `],"next":{"from":"offset","offset":4,"life":7}}`},
		{"of a life", "topic=t&limit=2&offset=6&life=9", admin.ReplayQuery{Topic: "t", Start: eventhub.Start{Kind: eventhub.StartOffset, Offset: 6}, Limit: 3, Life: 9},
			`{"topic":"t","count":2,"events":[` + strings.Join(stored[:2], ",") + `],"next":{"from":"offset","offset":6,"life":9}}`},
		{"after an id", "topic=t&limit=1000&from=after_id&after_id=x", admin.ReplayQuery{Topic: "t", Start: eventhub.Start{Kind: eventhub.StartAfterID, AfterID: "x"}, Limit: 1001},
			`{"topic":"t","count":3,"events":[` + strings.Join(stored, ",") + `]}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &past{events: events}
			_, h := mount(t, p.access())
			status, answer, header := request(h, "GET", "/replay?"+tt.query, "")
			if status != 200 || answer != tt.want+"\n" || header.Get("Content-Type") != "application/json" {
				t.Errorf("answered %d %v\n%s", status, header, cmp.Diff(tt.want+"\n", answer))
			}
			if tt.asked.Life == 0 {
				tt.asked.Life = pastLife // which was looked up
			}
			if diff := cmp.Diff([]admin.ReplayQuery{tt.asked}, p.asked); diff != "" {
				t.Errorf("asked for: %s", diff)
			}
		})
	}
	late := &past{events: events, late: true}
	_, h := mount(t, late.access())
	if status, answer, _ := request(h, "GET", "/replay?topic=t&limit=2", ""); status != 200 || answer != `{"topic":"t","count":0,"events":[]}`+"\n" {
		t.Errorf("a topic that is created meanwhile is answered as %d %s", status, answer)
	}
	empty := &past{}
	_, h = mount(t, empty.access())
	if status, answer, _ := request(h, "GET", "/replay?topic=t", ""); status != 200 || answer != `{"topic":"t","count":0,"events":[]}`+"\n" {
		t.Errorf("nothing is answered as %d %s", status, answer)
	}
}

// TestReplayAsCloudEvents: the batch is the answer, and what came with it is a
// link.
func TestReplayAsCloudEvents(t *testing.T) {
	p := &past{events: chronicle(3, "1")}
	_, h := mount(t, p.access())
	status, answer, header := request(h, "GET", "/replay?topic=t&limit=2&ts=5", "", "Accept", "application/cloudevents-batch+json")
	var events []struct {
		ID          string `json:"id"`
		SpecVersion string `json:"specversion"`
	}
	if err := json.Unmarshal([]byte(answer), &events); err != nil || status != 200 || len(events) != 2 || events[1].SpecVersion != "1.0" {
		t.Errorf("answered %d %s: %v", status, answer, err)
	}
	if link := header.Get("Link"); link != `<?from=offset&life=7&limit=2&offset=6&topic=t>; rel="next"` {
		t.Errorf("Link %s", link)
	}
}

func TestPastProblems(t *testing.T) {
	for _, tt := range []struct {
		target string
		status int
		code   eventhub.Code
		says   string
	}{
		{"/replay", 400, "bad_request", "topic is missing"},
		{"/replay?topic=a%20b", 400, "bad_topic", `"a b"`},
		{"/replay?topic=a.*", 400, "bad_topic", "is a pattern"},
		{"/replay?topic=t&limit=0", 400, "bad_request", `limit "0"`},
		{"/replay?topic=t&limit=1001", 400, "bad_request", `"1001" is not a number from 1 to 1000`},
		{"/replay?topic=t&from=latest", 400, "bad_request", "nothing to replay"},
		{"/replay?topic=t&from=now", 400, "bad_request", `from is "now"`},
		{"/replay?topic=t&from=ts", 400, "bad_request", "ts is missing"},
		{"/replay?topic=t&from=earliest&ts=5", 400, "bad_request", "ts is given"},
		{"/replay?topic=t&ts=5&offset=5", 400, "bad_request", "more than one of ts, after_id and offset"},
		{"/replay?topic=t&ts=yesterday", 400, "bad_request", `ts: "yesterday" is not a time`},
		{"/replay?topic=t&offset=-1", 400, "bad_request", `offset is "-1"`},
		{"/replay?topic=t&after_id=a%20b", 400, "bad_request", `"a b"`},
		{"/replay?topic=t&life=0", 400, "bad_request", `life is "0"`},
		{"/replay?topic=t&life=9007199254740992", 400, "bad_request", `"9007199254740992"`},
		{"/replay?topic=t&to=5", 400, "bad_request", `"to"`},
		{"/replay?topic=t&after_id=gone", 404, "unknown_id", "gone"},
		{"/replay/t", 404, "unsupported_op", "/replay/t"},
		{"/export", 400, "bad_request", "topic is missing"},
		{"/export?topic=a.***", 400, "bad_topic", "***"},
		{"/export?topic=t&limit=0", 400, "bad_request", `limit "0"`},
		{"/export?topic=t&from_ts=yesterday", 400, "bad_request", `from_ts: "yesterday" is not a time`},
		{"/export?topic=t&from_ts=-1", 400, "bad_request", "-1"},
		{"/export?topic=t&to_ts=0", 400, "bad_request", `to_ts is "0"`},
		{"/export?topic=t&from_ts=1&after_id=x", 400, "bad_request", "more than one of from_ts, after_id and offset"},
		{"/export?topic=a.*&after_id=x", 400, "bad_request", "places in one topic"},
		{"/export?topic=a.*&offset=1", 400, "bad_request", "places in one topic"},
		{"/export?topic=t&ndjson=please", 400, "bad_request", `ndjson is "please"`},
		{"/export?topic=t&from=earliest", 400, "bad_request", `"from"`},
		{"/export?topic=t&after_id=gone", 404, "unknown_id", "gone"},
		{"/export/t", 404, "unsupported_op", "/export/t"},
		{"/v1/backup?dir=x", 400, "bad_request", `"dir"`},
	} {
		p := &past{err: eventhub.Errorf(eventhub.CodeUnknownID, "event %q is gone", "gone")}
		_, h := mount(t, p.access())
		status, answer, header := request(h, "GET", tt.target, "", "Accept-Encoding", "zstd")
		var got problem
		if err := json.Unmarshal([]byte(answer), &got); err != nil {
			t.Fatalf("%s: %d %s: %v", tt.target, status, answer, err)
		}
		if status != tt.status || got.Code != tt.code || !strings.Contains(got.Detail, tt.says) {
			t.Errorf("%s: %d %+v; want %d %s with %q", tt.target, status, got, tt.status, tt.code, tt.says)
		}
		if header.Get("Content-Type") != "application/problem+json" || header.Get("Content-Encoding") != "" || header.Get("Trailer") != "" {
			t.Errorf("%s: header %v", tt.target, header)
		}
	}
	for _, target := range []string{"GET /replay?topic=t", "GET /export?topic=t", "GET /v1/backup", "POST /v1/import"} {
		_, h := mount(t, Access{})
		method, path, _ := strings.Cut(target, " ")
		if status, answer, _ := request(h, method, path, ""); status != http.StatusNotImplemented || !strings.Contains(answer, "unsupported_op") {
			t.Errorf("without what it needs, %s is answered by %d %s", target, status, answer)
		}
	}
}
