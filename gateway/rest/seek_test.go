package rest

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"eventhub"
	"eventhub/admin"
)

// TestSeek: the start is what query or body say, and without apply it is only
// asked what would be.
func TestSeek(t *testing.T) {
	for _, tt := range []struct {
		query, body string
		start       eventhub.Start
		apply       bool
	}{
		{"", `{"from":"earliest"}`, eventhub.Earliest, false},
		{"", `{"from":"latest","ts":null}`, eventhub.Start{}, false},
		{"apply=1", ` {"from":"ts","ts":1723140000000} `, eventhub.Start{Kind: eventhub.StartTime, TS: 1723140000000}, true},
		{"apply=true", `{"from":"after_id","after_id":".."}`, eventhub.Start{Kind: eventhub.StartAfterID, AfterID: ".."}, true},
		{"apply=0", `{"from":"offset","offset":0}`, eventhub.Start{Kind: eventhub.StartOffset}, false},
		{"from=earliest", "", eventhub.Earliest, false},
		{"from=latest&apply=1", "", eventhub.Start{}, true},
		{"from=ts&ts=0", "", eventhub.Start{Kind: eventhub.StartTime}, false},
		{"from=after_id&after_id=a:1&apply=", "\n", eventhub.Start{Kind: eventhub.StartAfterID, AfterID: "a:1"}, false},
		{"from=offset&offset=9007199254740991&apply=1", "", eventhub.Start{Kind: eventhub.StartOffset, Offset: eventhub.MaxOffset}, true},
	} {
		s := stocked()
		s.plan = admin.SeekPlan{From: 9, To: 3, Head: 12, Again: 6, Skipped: 1, Voided: 2, Epoch: 5}
		_, h := mount(t, Access{Inspector: s, Operator: s})
		status, answer, headers := do(h, "/v1/topics/a.b/groups/h:1/seek?"+tt.query, tt.body)
		want := fmt.Sprintf(`{"topic":"a.b","group":"h:1","from":9,"to":3,"head":12,"again":6,"skipped":1,"voided":2,"applied":%v,"epoch":5}`+"\n", tt.apply)
		if status != 200 || answer != want || headers.Get("Content-Type") != "application/json" {
			t.Errorf("?%s %s was answered %d %s; want %s", tt.query, tt.body, status, answer, want)
		}
		if asked := fmt.Sprintf("a.b/h:1 seek %+v apply %v", tt.start, tt.apply); !slices.Equal(s.operated, []string{asked}) {
			t.Errorf("?%s %s asked for %q; want %q", tt.query, tt.body, s.operated, asked)
		}
	}
}

// TestSeekOfAnEpoch: the epoch of a plan reaches the engine.
func TestSeekOfAnEpoch(t *testing.T) {
	s := stocked()
	_, h := mount(t, Access{Inspector: s, Operator: s})
	if status, answer, _ := do(h, "/v1/topics/a.b/groups/h:1/seek?from=earliest&apply=1&epoch=4", ""); status != 200 {
		t.Errorf("%d %s", status, answer)
	}
	if asked := fmt.Sprintf("a.b/h:1 seek %+v epoch 4", eventhub.Earliest); !slices.Equal(s.operated, []string{asked}) {
		t.Errorf("asked for %q; want %q", s.operated, asked)
	}
}

func TestPauseAndResume(t *testing.T) {
	s := stocked()
	_, h := mount(t, Access{Inspector: s, Operator: s})
	paused := strings.Replace(groupG, `"waiting":0,`, `"waiting":0,"paused":true,`, 1)
	for _, step := range [][2]string{{"pause", paused}, {"pause", paused}, {"resume", groupG}, {"resume", groupG}} {
		status, answer, _ := do(h, "/v1/topics/a.b/groups/g/"+step[0], "")
		if status != 200 || answer != step[1]+"\n" {
			t.Errorf("%s was answered %d %s; want %s", step[0], status, answer, step[1])
		}
	}
	if len(s.operated) != 4 {
		t.Errorf("asked for %q", s.operated)
	}
}

func TestEventGroups(t *testing.T) {
	s := stocked()
	s.became = map[string][]admin.EventGroup{
		"a.b/..": {
			{Group: "g", InFlight: admin.InFlight{Offset: 7, ID: "..", Attempt: 2, State: "waiting", DueTS: 12, History: []admin.Attempt{
				{Attempt: 1, Member: &eventhub.Peer{Transport: "ws", Name: "x"}, SinceTS: 5, EndedTS: 6, Why: "nacked", Reason: "<no>"}}}},
			{Group: "h:1", InFlight: admin.InFlight{Offset: 7, ID: "..", State: "done"}},
		},
		"c/x": nil,
	}
	for target, want := range map[string]string{
		"/v1/topics/a.b/events/%2E%2E/groups": `{"topic":"a.b","id":"..","groups":[` +
			`{"group":"g","offset":7,"id":"..","attempt":2,"state":"waiting","due_ts":12,"history":[{"attempt":1,"member":{"transport":"ws","name":"x"},"since_ts":5,"ended_ts":6,"why":"nacked","reason":"\u003cno\u003e"}]},` +
			`{"group":"h:1","offset":7,"id":"..","attempt":0,"state":"done"}]}`,
		"/v1/topics/c/events/x/groups": `{"topic":"c","id":"x","groups":[]}`,
	} {
		_, h := mount(t, Access{Inspector: s})
		if status, answer, _ := request(h, "GET", target, ""); status != 200 || answer != want+"\n" {
			t.Errorf("GET %s was answered %d\n%swant\n%s", target, status, answer, want)
		}
	}
}

// TestSeekRefusals: what is refused has changed nothing.
func TestSeekRefusals(t *testing.T) {
	const seek = "/v1/topics/a.b/groups/g/seek"
	for _, tt := range []struct {
		target, body string
		status       int
		code, says   string
	}{
		{seek, "", 400, "bad_request", "from is missing"},
		{seek + "?apply=1", "{}", 400, "bad_request", "from is missing"},
		{seek, "null", 400, "bad_request", "from is missing"},
		{seek, "[1]", 400, "bad_request", "the value can not be"},
		{seek, `{"from":1}`, 400, "bad_request", "/from can not be"},
		{seek, `{"from":"earliest","apply":true}`, 400, "bad_request", "/apply is not a known name"},
		{seek, `{"From":"earliest"}`, 400, "bad_request", "/From is not a known name"},
		{seek, `{"from":"earliest","from":"latest"}`, 400, "bad_json", `"from"`},
		{seek, `{"from":"earliest"`, 400, "bad_json", "byte"},
		{seek, strings.Repeat(" ", maxStartBody+1), 413, "too_large", "4096 bytes"},
		{seek, `{"from":"now"}`, 400, "bad_request", `"now"`},
		{seek + "?from=earliest", `{"from":"earliest"}`, 400, "bad_request", "in the query and in the body"},
		{seek + "?ts=1", `{"from":"earliest"}`, 400, "bad_request", "in the query and in the body"},
		{seek + "?from=earliest&form=x", "", 400, "bad_request", `"form"`},
		{seek + "?from=earliest&apply=yes", "", 400, "bad_request", `apply is "yes"`},
		{seek + "?from=earliest&apply=1&apply=0", "", 400, "bad_request", "apply is given 2 times"},
		{seek + "?from=earliest&apply=1&epoch=x", "", 400, "bad_request", `epoch is "x"`},
		{seek + "?from=earliest&epoch=1", "", 400, "bad_request", "epoch is given without apply"},
		{seek + "?from=", "", 400, "bad_request", `from is ""`},
		{seek + "?offset=5", "", 400, "bad_request", "from is missing"},
		{seek + "?from=ts", "", 400, "bad_request", `from is "ts" but ts is missing`},
		{seek + "?from=after_id", "", 400, "bad_request", "after_id is missing"},
		{seek + "?from=offset", "", 400, "bad_request", "offset is missing"},
		{seek + "?from=offset&offset=1&ts=5", "", 400, "bad_request", `ts is given but from is "offset"`},
		{seek + "?from=ts&ts=yesterday", "", 400, "bad_request", `"yesterday"`},
		{seek + "?from=ts&ts=-1", "", 400, "bad_request", "-1"},
		{seek + "?from=offset&offset=-1", "", 400, "bad_request", `"-1"`},
		{seek + "?from=offset&offset=9007199254740992", "", 400, "bad_request", "at most 9007199254740991"},
		{seek + "?from=after_id&after_id=a%20b", "", 400, "bad_request", `"a b"`},
		{"/v1/topics/a%20b/groups/g/seek?from=earliest", "", 400, "bad_topic", `"a b"`},
		{"/v1/topics/a.b/groups/a%20b/seek?from=earliest", "", 400, "bad_request", `"a b"`},
		{"/v1/topics/a.b/groups/nobody/seek?from=earliest&apply=1", "", 404, "not_subscribed", `"nobody"`},
		{"/v1/topics/a.b/groups/nobody/pause", "", 404, "not_subscribed", `"nobody"`},
		{"/v1/topics/a.b/groups/nobody/resume", "", 404, "not_subscribed", `"nobody"`},
		{"/v1/topics/a.b/groups/g/pause?for=5m", "", 400, "bad_request", `"for"`},
		{"/v1/topics/a..b/groups/g/resume", "", 400, "bad_topic", "empty segment"},
	} {
		t.Run(tt.target+" "+tt.body[:min(len(tt.body), 30)], func(t *testing.T) {
			s := stocked()
			_, h := mount(t, Access{Inspector: s, Operator: s})
			status, answer, _ := do(h, tt.target, tt.body)
			var p problem
			if err := json.Unmarshal([]byte(answer), &p); err != nil {
				t.Fatalf("%d %s: %v", status, answer, err)
			}
			if status != tt.status || string(p.Code) != tt.code || !strings.Contains(p.Detail, tt.says) {
				t.Errorf("answered %d %+v; want %d %s with %q", status, p, tt.status, tt.code, tt.says)
			}
			if len(s.operated) != 0 {
				t.Errorf("asked for %q", s.operated)
			}
		})
	}
}

// TestSeekIsGuarded: by the token and against foreign pages.
func TestSeekIsGuarded(t *testing.T) {
	for _, path := range []string{"seek?from=earliest&apply=1", "pause", "resume"} {
		for want, header := range map[int][]string{401: {"Authorization", "Bearer wrong"}, 403: {"Origin", "https://evil.example"}} {
			s := stocked()
			_, h := mount(t, Access{Inspector: s, Operator: s})
			if status, answer, _ := do(h, "/v1/topics/a.b/groups/g/"+path, "", header...); status != want || len(s.operated) != 0 {
				t.Errorf("%s with %v: %d %s, asked for %q", path, header, status, answer, s.operated)
			}
		}
	}
}

func TestAdminFails(t *testing.T) {
	for _, path := range []string{"seek?from=earliest", "pause", "resume"} {
		s := stocked()
		s.err = errors.New("disk on fire")
		_, h := mount(t, Access{Inspector: s, Operator: s})
		status, answer, _ := do(h, "/v1/topics/a.b/groups/g/"+path, "")
		if status != 500 || !strings.Contains(answer, `"code":"internal"`) || strings.Contains(answer, "fire") {
			t.Errorf("%s was answered %d %s", path, status, answer)
		}
	}
}
