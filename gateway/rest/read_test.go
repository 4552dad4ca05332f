package rest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/measure"
)

// shelf is an Inspector and Admin over what the test puts there, in order.
type shelf struct {
	topics   []admin.TopicInfo
	groups   []admin.GroupInfo
	items    map[string]eventhub.Item // topic/id
	inFlight []admin.InFlight
	err      error

	became   map[string][]admin.EventGroup // topic/id
	plan     admin.SeekPlan
	patterns []admin.GroupPattern
	planned  []admin.Scheduled

	mu       sync.Mutex
	deleted  []string
	operated []string // what Admin was asked, except deletions
}

func (s *shelf) Topics(_ context.Context, after string, limit int) ([]admin.TopicInfo, error) {
	var page []admin.TopicInfo
	for _, t := range s.topics {
		if t.Topic > after && len(page) < limit {
			page = append(page, t)
		}
	}
	return page, s.err
}

func (s *shelf) Topic(_ context.Context, topic string) (admin.TopicInfo, error) {
	for _, t := range s.topics {
		if t.Topic == topic {
			return t, s.err
		}
	}
	return admin.TopicInfo{}, eventhub.Errorf(eventhub.CodeUnknownID, "topic %q does not exist", topic)
}

func (s *shelf) Event(_ context.Context, topic, id string) (eventhub.Item, error) {
	item, ok := s.items[topic+"/"+id]
	if !ok {
		return item, eventhub.Errorf(eventhub.CodeUnknownID, "topic %q has no event %q", topic, id)
	}
	return item, s.err
}

func (s *shelf) Groups(_ context.Context, q admin.GroupQuery) ([]admin.GroupInfo, error) {
	var page []admin.GroupInfo
	for _, g := range s.groups {
		follows := g.Topic > q.AfterTopic || g.Topic == q.AfterTopic && g.Group > q.AfterGroup
		fits := (q.Topic == "" || q.Topic == g.Topic) && (q.Group == "" || q.Group == g.Group)
		if follows && fits && len(page) < q.Limit {
			page = append(page, g)
		}
	}
	return page, s.err
}

func (s *shelf) Group(_ context.Context, topic, group string) (admin.GroupInfo, error) {
	for _, g := range s.groups {
		if g.Topic == topic && g.Group == group {
			return g, s.err
		}
	}
	return admin.GroupInfo{}, eventhub.Errorf(eventhub.CodeNotSubscribed, "topic %q has no group %q", topic, group)
}

func (s *shelf) InFlight(ctx context.Context, topic, group string, limit int) ([]admin.InFlight, error) {
	if _, err := s.Group(ctx, topic, group); err != nil {
		return nil, err
	}
	return s.inFlight[:min(limit, len(s.inFlight))], s.err
}

func (s *shelf) EventGroups(_ context.Context, topic, id string) ([]admin.EventGroup, error) {
	groups, ok := s.became[topic+"/"+id]
	if !ok {
		return nil, eventhub.Errorf(eventhub.CodeUnknownID, "topic %q has no event %q", topic, id)
	}
	return groups, s.err
}

func (s *shelf) Patterns(_ context.Context, group string) ([]admin.GroupPattern, error) {
	var found []admin.GroupPattern
	for _, p := range s.patterns {
		if group == "" || group == p.Group {
			found = append(found, p)
		}
	}
	return found, s.err
}

func (s *shelf) Scheduled(_ context.Context, q admin.ScheduleQuery) ([]admin.Scheduled, error) {
	var page []admin.Scheduled
	for _, e := range s.planned {
		follows := e.DeliverAt > q.AfterAt || e.DeliverAt == q.AfterAt && e.Seq > q.AfterSeq
		if follows && (q.Topic == "" || q.Topic == e.Topic) && len(page) < q.Limit {
			page = append(page, e)
		}
	}
	return page, s.err
}

func (s *shelf) Cancel(_ context.Context, topic, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.planned {
		if e.Topic == topic && e.ID == id {
			s.deleted = append(s.deleted, topic+"/"+id)
			return s.err
		}
	}
	return eventhub.Errorf(eventhub.CodeUnknownID, "topic %q has no scheduled event %q", topic, id)
}

func (s *shelf) SeekGroup(ctx context.Context, topic, group string, start eventhub.Start, apply bool) (admin.SeekPlan, error) {
	err := s.operate(ctx, topic, group, fmt.Sprintf("seek %+v apply %v", start, apply))
	plan := s.plan
	plan.Topic, plan.Group, plan.Applied = topic, group, apply
	return plan, err
}

func (s *shelf) SeekGroupIf(ctx context.Context, topic, group string, start eventhub.Start, epoch uint64) (admin.SeekPlan, error) {
	err := s.operate(ctx, topic, group, fmt.Sprintf("seek %+v epoch %d", start, epoch))
	plan := s.plan
	plan.Topic, plan.Group, plan.Applied = topic, group, true
	return plan, err
}

func (s *shelf) DeleteTopic(ctx context.Context, topic string) error {
	if _, err := s.Topic(ctx, topic); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deleted = append(s.deleted, topic)
	return nil
}

func (s *shelf) PauseGroup(ctx context.Context, topic, group string) error {
	return s.operate(ctx, topic, group, "pause")
}

func (s *shelf) ResumeGroup(ctx context.Context, topic, group string) error {
	return s.operate(ctx, topic, group, "resume")
}

// operate notes what is to be done, and pauses or resumes.
func (s *shelf) operate(ctx context.Context, topic, group, what string) error {
	if _, err := s.Group(ctx, topic, group); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.groups {
		if g := &s.groups[i]; g.Topic == topic && g.Group == group && !strings.HasPrefix(what, "seek") {
			g.Paused = what == "pause"
		}
	}
	s.operated = append(s.operated, topic+"/"+group+" "+what)
	return s.err
}

func (s *shelf) DeleteGroup(ctx context.Context, topic, group string) error {
	named := func(p admin.GroupPattern) bool { return p.Pattern == topic && p.Group == group }
	if _, err := s.Group(ctx, topic, group); err != nil && !slices.ContainsFunc(s.patterns, named) {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deleted = append(s.deleted, topic+"/"+group)
	return s.err
}

func stocked() *shelf {
	record := eventhub.Record(`{"ts":1723140000000,"id":"..","topic":"a.b","key":"<k>","payload":{"n": 1.0}}`)
	return &shelf{
		topics: []admin.TopicInfo{{Topic: "a.b", FirstOffset: 1, Head: 1, FirstTS: 1723140000000, HeadTS: 1723140000000, HeadID: "..", Groups: 2}, {Topic: "a.b.dlq"}, {Topic: "c"}},
		groups: []admin.GroupInfo{
			{Topic: "a.b", Group: "g", Head: 1, HeadID: "..", HeadTS: 1723140000000, Lag: 1, InFlight: 1, Ordering: "none", MaxAttempts: 5, MinBackoffMS: 1000, MaxBackoffMS: 600000,
				Members: []admin.MemberInfo{{Peer: eventhub.Peer{Transport: "ws", Name: "x"}, InFlight: 1, MaxInFlight: 100, SinceTS: 5}}},
			{Topic: "a.b", Group: "h:1", Ordering: "none"},
			{Topic: "c", Group: "g", Ordering: "none"},
		},
		items: map[string]eventhub.Item{"a.b/..": {Offset: 7, Record: record}},
		patterns: []admin.GroupPattern{
			{Group: "g", Pattern: "a.**", Topics: 1, Ordering: "key", Filter: &eventhub.Filter{Key: "k*"}, MaxAttempts: 5, MinBackoffMS: 1000, MaxBackoffMS: 600000},
			{Group: "h:1", Pattern: "*.b", Ordering: "none"},
		},
		planned: []admin.Scheduled{
			{Topic: "a.b", ID: "..", Key: "<k>", DeliverAt: 2000, Seq: 3},
			{Topic: "c", ID: "x", DeliverAt: 2000, Seq: 4},
			{Topic: "a.b", ID: "y", DeliverAt: 3000, Seq: 2},
		},
		inFlight: []admin.InFlight{{Offset: 7, ID: "..", Attempt: 2, State: "leased", Member: &eventhub.Peer{Transport: "ws", Name: "x"}, SinceTS: 5, Deadline: 9}, {Offset: 8, Attempt: 1, State: "waiting", DueTS: 12}},
	}
}

const (
	topicAB  = `{"topic":"a.b","first_offset":1,"head":1,"horizon":0,"first_ts":1723140000000,"head_ts":1723140000000,"head_id":"..","groups":2}`
	topicDLQ = `{"topic":"a.b.dlq","first_offset":0,"head":0,"horizon":0,"groups":0}`
	topicC   = `{"topic":"c","first_offset":0,"head":0,"horizon":0,"groups":0}`
	groupG   = `{"topic":"a.b","group":"g","cursor":0,"epoch":0,"head":1,"head_id":"..","head_ts":1723140000000,"lag":1,"in_flight":1,"waiting":0,"ordering":"none","max_attempts":5,"backoff_min_ms":1000,"backoff_max_ms":600000,"members":[{"transport":"ws","name":"x","in_flight":1,"max_in_flight":100,"since_ts":5}]}`
	groupH   = `{"topic":"a.b","group":"h:1","cursor":0,"epoch":0,"head":0,"lag":0,"in_flight":0,"waiting":0,"ordering":"none","max_attempts":0,"backoff_min_ms":0,"backoff_max_ms":0,"members":[]}`
	groupC   = `{"topic":"c","group":"g","cursor":0,"epoch":0,"head":0,"lag":0,"in_flight":0,"waiting":0,"ordering":"none","max_attempts":0,"backoff_min_ms":0,"backoff_max_ms":0,"members":[]}`
	leased   = `{"offset":7,"id":"..","attempt":2,"state":"leased","member":{"transport":"ws","name":"x"},"since_ts":5,"deadline_ts":9}`
	patternA = `{"group":"g","pattern":"a.**","topics":1,"ordering":"key","filter":{"key":"k*"},"max_attempts":5,"backoff_min_ms":1000,"backoff_max_ms":600000}`
	patternB = `{"group":"h:1","pattern":"*.b","topics":0,"ordering":"none","max_attempts":0,"backoff_min_ms":0,"backoff_max_ms":0}`
	later1   = `{"topic":"a.b","id":"..","key":"\u003ck\u003e","deliver_at":2000,"seq":3}`
	later2   = `{"topic":"c","id":"x","deliver_at":2000,"seq":4}`
	later3   = `{"topic":"a.b","id":"y","deliver_at":3000,"seq":2}`
	waiting  = `{"offset":8,"attempt":1,"state":"waiting","due_ts":12}`
)

// TestReading: every route, to the byte, and its HEAD.
func TestReading(t *testing.T) {
	for target, want := range map[string]string{
		"/v1/topics":                                 `{"topics":[` + topicAB + `,` + topicDLQ + `,` + topicC + `]}`,
		"/v1/topics?limit=2":                         `{"topics":[` + topicAB + `,` + topicDLQ + `],"next":"a.b.dlq"}`,
		"/v1/topics?after=a.b.dlq":                   `{"topics":[` + topicC + `]}`,
		"/v1/topics?limit=3":                         `{"topics":[` + topicAB + `,` + topicDLQ + `,` + topicC + `]}`, // full, and the last
		"/v1/topics?after=c&limit=1":                 `{"topics":[]}`,
		"/v1/topics/a.b":                             topicAB,
		"/v1/topics/a%2Eb":                           topicAB,
		"/v1/topics/a.b/events/%2E%2E":               `{"offset":7,"ts":1723140000000,"id":"..","topic":"a.b","key":"<k>","payload":{"n": 1.0}}`,
		"/v1/groups":                                 `{"groups":[` + groupG + `,` + groupH + `,` + groupC + `]}`,
		"/v1/groups?group=g":                         `{"groups":[` + groupG + `,` + groupC + `]}`,
		"/v1/groups?group=g&limit=1":                 `{"groups":[` + groupG + `],"next":{"after_topic":"a.b","after_group":"g"}}`,
		"/v1/groups?topic=a.b&limit=2":               `{"groups":[` + groupG + `,` + groupH + `]}`,
		"/v1/groups?after_topic=a.b&after_group=h:1": `{"groups":[` + groupC + `]}`,
		"/v1/groups?topic=nobody":                    `{"groups":[]}`,
		"/v1/topics/a.b/groups/g":                    groupG,
		"/v1/topics/a.b/groups/h:1":                  groupH,
		"/v1/topics/a.b/groups/g/inflight":           `{"topic":"a.b","group":"g","in_flight":[` + leased + `,` + waiting + `]}`,
		"/v1/topics/a.b/groups/g/inflight?limit=1":   `{"topic":"a.b","group":"g","in_flight":[` + leased + `]}`,
		"/v1/patterns":                               `{"patterns":[` + patternA + `,` + patternB + `]}`,
		"/v1/patterns?group=h:1":                     `{"patterns":[` + patternB + `]}`,
		"/v1/patterns?group=nobody":                  `{"patterns":[]}`,
		"/v1/scheduled":                              `{"scheduled":[` + later1 + `,` + later2 + `,` + later3 + `]}`,
		"/v1/scheduled?limit=2":                      `{"scheduled":[` + later1 + `,` + later2 + `],"next":{"after_at":2000,"after_seq":4}}`,
		"/v1/scheduled?after_at=2000&after_seq=3":    `{"scheduled":[` + later2 + `,` + later3 + `]}`,
		"/v1/scheduled?after_at=2001&limit=1":        `{"scheduled":[` + later3 + `]}`, // full, and the last
		"/v1/scheduled?topic=a.b&limit=1":            `{"scheduled":[` + later1 + `],"next":{"after_at":2000,"after_seq":3}}`,
		"/v1/scheduled?topic=c&limit=1":              `{"scheduled":[` + later2 + `]}`,
		"/v1/scheduled?topic=nobody":                 `{"scheduled":[]}`,
	} {
		s := stocked()
		_, h := mount(t, Access{Inspector: s, Scheduler: s})
		status, answer, headers := request(h, "GET", target, "")
		if status != 200 || answer != want+"\n" {
			t.Errorf("GET %s was answered %d\n%swant\n%s", target, status, answer, want)
		}
		if headers.Get("Content-Type") != "application/json" || headers.Get("Cache-Control") != "no-store" {
			t.Errorf("GET %s: headers %v", target, headers)
		}
		_, _, head := request(h, "HEAD", target, "")
		if diff := cmp.Diff(headers, head); diff != "" || head.Get("Content-Length") != fmt.Sprint(len(answer)) {
			t.Errorf("HEAD %s differs (-GET +HEAD):\n%s%v", target, diff, head)
		}
	}
}

func TestNothingInFlight(t *testing.T) {
	s := stocked()
	s.inFlight = nil
	_, h := mount(t, Access{Inspector: s})
	if _, answer, _ := request(h, "GET", "/v1/topics/c/groups/g/inflight", ""); answer != `{"topic":"c","group":"g","in_flight":[]}`+"\n" {
		t.Errorf("answered %s", answer)
	}
}

func TestDeleteGroup(t *testing.T) {
	s := stocked()
	_, h := mount(t, Access{Inspector: s, Operator: s})
	status, answer, headers := request(h, "DELETE", "/v1/topics/a.b/groups/h:1", "")
	if status != 204 || answer != "" || headers.Get("Content-Type") != "" || fmt.Sprint(s.deleted) != "[a.b/h:1]" {
		t.Errorf("answered %d %q %v; deleted %v", status, answer, headers, s.deleted)
	}
}

func TestDeleteTopic(t *testing.T) {
	s := stocked()
	_, h := mount(t, Access{Inspector: s, Operator: s})
	status, answer, _ := request(h, "DELETE", "/v1/topics/a.b", "")
	if status != 204 || answer != "" || fmt.Sprint(s.deleted) != "[a.b]" {
		t.Errorf("answered %d %q; deleted %v", status, answer, s.deleted)
	}
	for target, want := range map[string]int{"/v1/topics/nobody": 404, "/v1/topics/a..b": 400, "/v1/topics/a.b?force=1": 400} {
		if status, answer, _ := request(h, "DELETE", target, ""); status != want {
			t.Errorf("DELETE %s was answered %d %q", target, status, answer)
		}
	}
	if len(s.deleted) != 1 {
		t.Errorf("deleted %v", s.deleted)
	}
}

func TestDeletePattern(t *testing.T) {
	for target, want := range map[string]string{
		"/v1/patterns?group=g&pattern=a.**":      "[a.**/g]",
		"/v1/patterns?pattern=%2A.b&group=h%3A1": "[*.b/h:1]",
		"/v1/topics/a.b/scheduled/%2E%2E":        "[a.b/..]", // and what is scheduled
		"/v1/topics/c/scheduled/x":               "[c/x]",
	} {
		s := stocked()
		_, h := mount(t, Access{Inspector: s, Operator: s, Scheduler: s})
		status, answer, headers := request(h, "DELETE", target, "")
		if status != 204 || answer != "" || headers.Get("Content-Type") != "" || fmt.Sprint(s.deleted) != want {
			t.Errorf("DELETE %s was answered %d %q %v; deleted %v", target, status, answer, headers, s.deleted)
		}
	}
}

// TestNoScheduler: a hub without one says so.
func TestNoScheduler(t *testing.T) {
	_, h := mount(t, Access{})
	for _, r := range [][2]string{{"GET", "/v1/scheduled"}, {"DELETE", "/v1/topics/a/scheduled/x"}} {
		if status, answer, _ := request(h, r[0], r[1], ""); status != 501 || !strings.Contains(answer, `"code":"unsupported_op"`) {
			t.Errorf("%s %s was answered %d %s", r[0], r[1], status, answer)
		}
	}
}

// TestRefusals: whatever is wrong under the API's paths is a problem with a
// code, also what net/http would answer by itself.
func TestRefusals(t *testing.T) {
	long := strings.Repeat("x", 300)
	for _, tt := range []struct {
		method, target string
		status         int
		code, says     string
	}{
		{"GET", "/v1/topics?limt=1", 400, "bad_request", `"limt"`},
		{"GET", "/v1/topics?limit=1&limit=2", 400, "bad_request", "limit is given 2 times"},
		{"GET", "/v1/topics?limit=0", 400, "bad_request", `"0" is not a number from 1 to 1000`},
		{"GET", "/v1/topics?limit=1001", 400, "bad_request", `"1001"`},
		{"GET", "/v1/topics?limit=", 400, "bad_request", `""`},
		{"GET", "/v1/topics?limit=ten", 400, "bad_request", `"ten"`},
		{"GET", "/v1/topics?after=a%00b", 400, "bad_request", `after: topic "a\x00b"`},
		{"GET", "/v1/topics?after=%zz", 400, "bad_request", "%zz"},
		{"GET", "/v1/topics/a%2Fb", 400, "bad_topic", `"a/b"`},
		{"GET", "/v1/topics/" + long, 400, "bad_topic", "300 bytes"},
		{"GET", "/v1/topics/%2E%2E", 400, "bad_topic", "empty segment"},
		{"GET", "/v1/topics/a.b?after=x", 400, "bad_request", `"after"`},
		{"GET", "/v1/topics/nobody", 404, "unknown_id", `"nobody"`},
		{"GET", "/v1/topics/a.b/events/a%20b", 400, "bad_event", `id "a b"`},
		{"GET", "/v1/topics/a.b/events/x", 404, "unknown_id", `"x"`},
		{"GET", "/v1/topics/a.b/events/x/groups", 404, "unknown_id", `"x"`},
		{"GET", "/v1/topics/a.b/events/a%20b/groups", 400, "bad_event", `id "a b"`},
		{"GET", "/v1/topics/a.b/events/x/groups?limit=1", 400, "bad_request", `"limit"`},
		{"GET", "/v1/topics/nobody/events/x", 404, "unknown_id", `"nobody"`},
		{"GET", "/v1/groups?after=x", 400, "bad_request", `"after"`},
		{"GET", "/v1/groups?topic=a..b", 400, "bad_request", `topic: topic "a..b"`},
		{"GET", "/v1/groups?group=%0a", 400, "bad_request", `group: group "\n"`},
		{"GET", "/v1/groups?after_group=%2F", 400, "bad_request", "after_group: "},
		{"GET", "/v1/groups?limit=-1", 400, "bad_request", `"-1"`},
		{"GET", "/v1/topics/a.b/groups/nobody", 404, "not_subscribed", `"nobody"`},
		{"GET", "/v1/topics/a.b/groups/a%20b", 400, "bad_request", `"a b"`},
		{"GET", "/v1/topics/a.b/groups/g?x=1", 400, "bad_request", `"x"`},
		{"GET", "/v1/topics/a.b/groups/g/inflight?limit=9999", 400, "bad_request", `"9999"`},
		{"GET", "/v1/topics/a.b/groups/nobody/inflight", 404, "not_subscribed", `"nobody"`},
		{"DELETE", "/v1/topics/a.b/groups/nobody", 404, "not_subscribed", `"nobody"`},
		{"DELETE", "/v1/topics/a.b/groups/g?force=1", 400, "bad_request", `"force"`},
		{"GET", "/v1/patterns?group=a%20b", 400, "bad_request", `"a b"`},
		{"GET", "/v1/patterns?pattern=a.*", 400, "bad_request", `"pattern"`},
		{"DELETE", "/v1/patterns", 400, "bad_request", "group is missing"},
		{"DELETE", "/v1/patterns?group=g", 400, "bad_request", "pattern is missing"},
		{"DELETE", "/v1/patterns?group=a/b&pattern=a.*", 400, "bad_request", `group "a/b"`},
		{"DELETE", "/v1/patterns?group=g&pattern=a.*b", 400, "bad_topic", `"*b"`},
		{"DELETE", "/v1/patterns?group=g&pattern=**.**", 400, "bad_topic", "twice"},
		{"DELETE", "/v1/patterns?group=g&pattern=a.b", 400, "bad_request", "names one topic"},
		{"DELETE", "/v1/patterns?group=g&pattern=z.*", 404, "not_subscribed", `"g"`},
		{"GET", "/v1/scheduled?limit=0", 400, "bad_request", `"0"`},
		{"GET", "/v1/scheduled?topic=a.*", 400, "bad_request", `topic: topic "a.*"`},
		{"GET", "/v1/scheduled?after_at=now", 400, "bad_request", `"now"`},
		{"GET", "/v1/scheduled?after_at=-1", 400, "bad_request", `"-1"`},
		{"GET", "/v1/scheduled?after_at=1&after_seq=-1", 400, "bad_request", `"-1"`},
		{"GET", "/v1/scheduled?after_seq=1", 400, "bad_request", "after_at is not"},
		{"DELETE", "/v1/topics/a.b/scheduled/nothing", 404, "unknown_id", `"nothing"`},
		{"DELETE", "/v1/topics/a.b/scheduled/a%20b", 400, "bad_event", `id "a b"`},
		{"DELETE", "/v1/topics/a.*/scheduled/x", 400, "bad_topic", `"a.*"`},
		{"DELETE", "/v1/topics/a.b/scheduled/y?force=1", 400, "bad_request", `"force"`},
		{"GET", "/v1", 404, "unsupported_op", `"/v1"`},
		{"GET", "/v1/", 404, "unsupported_op", `"/v1/"`},
		{"GET", "/v1/topics/", 404, "unsupported_op", `"/v1/topics/"`},
		{"PUT", "/v1/topics/a/b/c/d/e", 404, "unsupported_op", "/v1/topics/a/b/c/d/e"},
		{"POST", "/publish", 404, "unsupported_op", `"/publish"`},
		{"POST", "/publish/a/b", 404, "unsupported_op", `"/publish/a/b"`},
	} {
		t.Run(tt.method+" "+tt.target, func(t *testing.T) {
			s := stocked()
			_, h := mount(t, Access{Inspector: s, Operator: s, Scheduler: s})
			status, answer, headers := request(h, tt.method, tt.target, "")
			var p problem
			if err := json.Unmarshal([]byte(answer), &p); err != nil {
				t.Fatalf("%d %s: %v", status, answer, err)
			}
			if status != tt.status || p.Status != tt.status || string(p.Code) != tt.code || !strings.Contains(p.Detail, tt.says) {
				t.Errorf("answered %d %+v; want %d %s with %q", status, p, tt.status, tt.code, tt.says)
			}
			if headers.Get("Content-Type") != "application/problem+json" || headers.Get("Cache-Control") != "no-store" {
				t.Errorf("headers %v", headers)
			}
			if len(s.deleted) != 0 {
				t.Errorf("%v were deleted", s.deleted)
			}
		})
	}
}

func TestWrongMethods(t *testing.T) {
	for path, want := range map[string]map[string]string{
		"/publish/a":                     {"GET": "POST", "HEAD": "POST", "DELETE": "POST"},
		"/v1/publish":                    {"PUT": "POST"},
		"/v1/topics":                     {"POST": "GET, HEAD", "OPTIONS": "GET, HEAD"},
		"/v1/groups":                     {"DELETE": "GET, HEAD"},
		"/v1/topics/a":                   {"POST": "DELETE, GET, PUT, HEAD", "PROPFIND": "DELETE, GET, PUT, HEAD"},
		"/v1/topics/a/trim":              {"GET": "POST"},
		"/v1/topics/a/erase":             {"DELETE": "POST"},
		"/v1/topics/a/groups/g":          {"POST": "DELETE, GET, HEAD"},
		"/v1/topics/a/events/x":          {"DELETE": "GET, HEAD"},
		"/v1/topics/a/groups/g/inflight": {"POST": "GET, HEAD"},
		"/v1/topics/a/groups/g/seek":     {"GET": "POST", "PUT": "POST"},
		"/v1/topics/a/groups/g/pause":    {"GET": "POST", "DELETE": "POST"},
		"/v1/topics/a/groups/g/resume":   {"HEAD": "POST"},
		"/v1/topics/a/events/x/groups":   {"POST": "GET, HEAD"},
		"/v1/topics/a/scheduled/x":       {"GET": "DELETE", "POST": "DELETE"},
		"/v1/scheduled":                  {"DELETE": "GET, HEAD"},
		"/v1/patterns":                   {"POST": "DELETE, GET, HEAD"},
	} {
		for method, allow := range want {
			_, h := mount(t, Access{})
			status, answer, headers := request(h, method, path, "")
			if status != 405 || headers.Get("Allow") != allow || headers.Get("Content-Type") != "application/problem+json" ||
				!strings.Contains(answer, `"code":"unsupported_op"`) {
				t.Errorf("%s %s was answered %d %v %s; want Allow: %s", method, path, status, headers, answer, allow)
			}
		}
	}
}

// TestReadingIsGuarded: by the token and against foreign pages, as publishing is.
func TestReadingIsGuarded(t *testing.T) {
	for _, tt := range []struct {
		header []string
		status int
	}{
		{nil, 200},
		{[]string{"Authorization", "Bearer right"}, 200},
		{[]string{"Authorization", "Bearer wrong"}, 401},
		{[]string{"Origin", "https://evil.example"}, 403},
	} {
		_, h := mount(t, Access{Inspector: stocked()})
		if status, answer, _ := request(h, "GET", "/v1/topics", "", tt.header...); status != tt.status {
			t.Errorf("with %v: %d %s; want %d", tt.header, status, answer, tt.status)
		}
	}
}

// TestInspectorFails: a failure of the engine shows nothing of its cause.
func TestInspectorFails(t *testing.T) {
	for _, target := range []string{"/v1/topics", "/v1/topics/c", "/v1/topics/a.b/events/%2E%2E", "/v1/groups", "/v1/topics/c/groups/g", "/v1/topics/c/groups/g/inflight",
		"/v1/patterns", "/v1/scheduled"} {
		s := stocked()
		s.err = errors.New("disk on fire")
		_, h := mount(t, Access{Inspector: s, Scheduler: s})
		status, answer, _ := request(h, "GET", target, "")
		if status != 500 || !strings.Contains(answer, `"code":"internal"`) || strings.Contains(answer, "fire") {
			t.Errorf("GET %s was answered %d %s", target, status, answer)
		}
	}
}

// TestNeighboursOnTheMux: what is not the API's is served by whoever it belongs
// to.
func TestNeighboursOnTheMux(t *testing.T) {
	_, h := mount(t, Access{})
	for target, want := range map[string]int{"/": 418, "/ws": 418, "/livez": 418, "/v2": 404} {
		if status, _, _ := request(h, "GET", target, ""); status != want {
			t.Errorf("GET %s was answered %d; want %d", target, status, want)
		}
	}
}

// TestMeasure: requests count by route and status, also over real connections
// and many at a time, and a client can not make up routes.
func TestMeasure(t *testing.T) {
	api, h := mount(t, Access{Publisher: &log{err: eventhub.Errorf(eventhub.CodeRateLimited, "slower")}, Inspector: stocked(), Operator: stocked()})
	srv := httptest.NewServer(h)
	defer srv.Close()
	var group sync.WaitGroup
	for worker := range 4 {
		group.Go(func() {
			for i := range 5 {
				for _, r := range [][2]string{
					{"GET", "/v1/topics"}, {"HEAD", "/v1/topics"}, {"GET", "/v1/topics?x"}, {"PATCH", "/v1/topics"},
					{"GET", fmt.Sprintf("/v1/topics/made.up-%d-%d", worker, i)}, {"GET", fmt.Sprintf("/v1/made/up/%d", i)},
					{"POST", "/publish/t"}, {"DELETE", "/v1/topics/c/groups/g"},
				} {
					call(t, r[0], srv.URL+r[1])
				}
			}
		})
	}
	group.Wait()
	want := measure.API{Requests: []measure.Requests{
		{Route: "/v1/", Status: 404, Count: 20},
		{Route: "/v1/topics", Status: 405, Count: 20},
		{Route: "DELETE /v1/topics/{topic}/groups/{group}", Status: 204, Count: 20},
		{Route: "GET /v1/topics", Status: 200, Count: 40},
		{Route: "GET /v1/topics", Status: 400, Count: 20},
		{Route: "GET /v1/topics/{topic}", Status: 404, Count: 20},
		{Route: "POST /publish/{topic}", Status: 429, Count: 20},
	}}
	if diff := cmp.Diff(want, api.Measure()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestThePageOfTheProtocol: docs/http.md names every route, says which
// status a code has, and its examples have the fields that the answers have.
func TestThePageOfTheProtocol(t *testing.T) {
	file, err := os.ReadFile("../../docs/http.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(file)
	var api API
	for path, m := range api.resources() {
		for method := range m {
			if route := "`" + method + " " + path; !strings.Contains(page, route) && (method != "GET" || !strings.Contains(page, "\n| `"+path)) {
				t.Errorf("the page does not know %s %s", method, path)
			}
		}
	}
	for code, status := range statuses {
		row := regexp.MustCompile(fmt.Sprintf("(?m)^\\| %d.*`%s`", status, code))
		if !row.MatchString(page) {
			t.Errorf("the page does not say that %s is a %d", code, status)
		}
	}
	for title, values := range map[string][]any{
		"as they come:":          {&admin.TopicInfo{}, &admin.GroupInfo{}, &admin.GroupInfo{}, &admin.InFlight{}, &admin.InFlight{}, &admin.EventGroup{}},
		"and a scheduled event:": {&admin.GroupPattern{}, &admin.Scheduled{}},
	} {
		_, examples, _ := strings.Cut(page, title+"\n\n```json\n")
		examples, _, _ = strings.Cut(examples, "```")
		decoder := json.NewDecoder(strings.NewReader(examples))
		decoder.DisallowUnknownFields()
		for _, into := range values {
			if err := decoder.Decode(into); err != nil {
				t.Errorf("the example of a %T: %v", into, err)
			}
		}
	}
}

func call(t *testing.T, method, url string) {
	r, err := http.NewRequest(method, url, nil)
	if err != nil {
		t.Error(err)
		return
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Error(err)
		return
	}
	answer.Body.Close()
}
