package rest_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"eventhub"
	"eventhub/admin"
	"eventhub/hub"
)

// stateAsker asks a hub for states.
type stateAsker struct {
	t    *testing.T
	base string
}

// ask returns what a request for a path under the topic "t" is answered with.
func (s *stateAsker) ask(path string, header ...string) (status int, body, tag string) {
	s.t.Helper()
	r, err := http.NewRequest("GET", s.base+"/v1/topics/"+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer.StatusCode, string(text), answer.Header.Get("ETag")
}

// state returns "key/offset" of a page, with its offset, and what the next one is asked for by.
func (s *stateAsker) state(path string) (seen, next string) {
	s.t.Helper()
	status, body, _ := s.ask(path)
	var page struct {
		Topic     string
		At, Count uint64
		Life      uint64
		Events    []eventhub.Event
		Next      string
	}
	if err := json.Unmarshal([]byte(body), &page); err != nil || status != 200 || page.Life == 0 || int(page.Count) != len(page.Events) {
		s.t.Fatalf("%s: %d %s (%v)", path, status, body, err)
	}
	for _, e := range page.Events {
		seen += fmt.Sprintf("%s/%d ", e.Key, e.Offset)
	}
	return fmt.Sprintf("%sat %d", seen, page.At), page.Next
}

func (s *stateAsker) want(path, want string) {
	s.t.Helper()
	if got, next := s.state(path); got != want || next != "" {
		s.t.Errorf("%s is %q, next %q; want %q", path, got, next, want)
	}
}

func (s *stateAsker) wantRefused(path string, status int, code eventhub.Code, says string) {
	s.t.Helper()
	got, body, _ := s.ask(path)
	var problem struct {
		Code   eventhub.Code
		Detail string
	}
	if err := json.Unmarshal([]byte(body), &problem); err != nil || got != status || problem.Code != code || !strings.Contains(problem.Detail, says) {
		s.t.Errorf("%s: %d %s; want %d %s with %q", path, got, body, status, code, says)
	}
}

func statesOf(t *testing.T, h *hub.Hub) *stateAsker {
	t.Helper()
	var events []eventhub.Event
	for _, e := range [][2]string{{"b/é", "1"}, {"a", "1"}, {".", "1"}, {"a", "null"}, {"a b", "1"}, {"b/é", "2"}} {
		events = append(events, eventhub.Event{Topic: "t", Key: e[0], Payload: json.RawMessage(e[1])})
	}
	if _, err := h.Bus().Publish(t.Context(), events...); err != nil {
		t.Fatal(err)
	}
	return &stateAsker{t: t, base: "http://" + h.HTTPAddr()}
}

func TestStateOverHTTP(t *testing.T) {
	s := statesOf(t, startHub(t, hub.MemoryStore))
	s.want("t/state", "./3 a b/5 b/é/6 at 6")
	s.want("t/state?at=3", "./3 a/2 b/é/1 at 3")
	s.want("t/state?at=0s&prefix=a", "a b/5 at 6")
	s.want("t/state?at=1h", "at 0")
	s.want("t/state?keys=b%2F%C3%A9&keys=a&keys=none&min_offset=6", "b/é/6 at 6")
	first, next := s.state("t/state?limit=2")
	if first != "./3 a b/5 at 6" || next == "" {
		t.Errorf("the first page is %q, next %q", first, next)
	}
	s.want("t/state?limit=2&page="+url.QueryEscape(next), "b/é/6 at 6")
	for path, offset := range map[string]int{
		"t/state/b%2F%C3%A9": 6, "t/state?key=b%2F%C3%A9": 6, "t/state/a%20b": 5, "t/state?key=.": 3, "t/state/a?at=3": 2, "t/state/a?at=2": 2,
	} {
		status, body, tag := s.ask(path)
		if !strings.HasPrefix(body, fmt.Sprintf(`{"offset":%d,`, offset)) || status != 200 {
			t.Errorf("%s: %d %s; want offset %d", path, status, body, offset)
		}
		for _, given := range []string{tag, "W/" + tag, `"other", ` + tag, "*"} {
			if status, body, again := s.ask(path, "If-None-Match", given); status != 304 || body != "" || again != tag {
				t.Errorf("%s again, with %s: %d %s, %s", path, given, status, body, again)
			}
		}
		if status, _, _ := s.ask(path, "If-None-Match", `"other"`); status != 200 {
			t.Errorf("%s with another tag: %d", path, status)
		}
	}
}

// TestStateTags: a page has another tag as soon as it has something else.
func TestStateTags(t *testing.T) {
	h := startHub(t, hub.MemoryStore)
	s := statesOf(t, h)
	tags := make(map[string]string)
	for _, path := range []string{"t/state", "t/state?at=5", "t/state?at=3", "t/state?limit=1", "t/state?prefix=a"} {
		_, _, tag := s.ask(path)
		if other := tags[tag]; tag == "" || other != "" {
			t.Errorf("%s and %s have the tag %s", path, other, tag)
		}
		tags[tag] = path
		if status, _, _ := s.ask(path, "If-None-Match", tag); status != 304 {
			t.Errorf("%s again: %d", path, status)
		}
	}
	for _, key := range []string{"", "c"} { // the first of these changes the offset alone
		_, _, before := s.ask("t/state")
		if _, err := h.Bus().Publish(t.Context(), eventhub.Event{Topic: "t", Key: key, Payload: json.RawMessage("1")}); err != nil {
			t.Fatal(err)
		}
		if status, _, _ := s.ask("t/state", "If-None-Match", before); status != 200 {
			t.Errorf("after a publish with the key %q: %d", key, status)
		}
	}
	_, _, before := s.ask("t/state?at=6")
	if _, err := h.Bus().Erase(t.Context(), "t", admin.EraseQuery{Offset: 6, Apply: true}); err != nil {
		t.Fatal(err)
	}
	if status, body, _ := s.ask("t/state?at=6", "If-None-Match", before); status != 200 || !strings.Contains(body, `{"offset":1,`) {
		t.Errorf("after an erasure of the newest event of a key: %d %s", status, body)
	}
}

func TestStateProblems(t *testing.T) {
	h := startHub(t, hub.MemoryStore)
	s := statesOf(t, h)
	_, next := s.state("t/state?limit=1")
	next = url.QueryEscape(next)
	if _, err := h.Bus().Publish(t.Context(), eventhub.Event{Topic: "u", Payload: json.RawMessage("1")}); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("k", eventhub.MaxKeyBytes+1)
	const bad = eventhub.CodeBadRequest
	for _, tt := range []struct {
		path   string
		status int
		code   eventhub.Code
		says   string
	}{
		{"t/state/none", 404, eventhub.CodeUnknownID, `"none"`},
		{"t/state/a", 404, eventhub.CodeUnknownID, `"a"`},
		{"none/state", 404, eventhub.CodeUnknownID, `"none"`},
		{"t/state?at=7", 400, bad, "up to 6"},
		{"t/state?at=2999-01-01T00:00:00Z", 400, bad, "at is the time 2999-01-01T00:00:00.000Z, which is in the future: it is 20"},
		{"t/state?at=soon", 400, bad, `"soon"`},
		{"t/state?at=0", 400, bad, "begin at 1"},
		{"t/state?at=", 400, bad, "at"},
		{"t/state/" + long, 400, bad, "1025 bytes"},
		{"t/state?key=" + long, 400, bad, "1025 bytes"},
		{"t/state?prefix=" + long, 400, bad, "1025 bytes"},
		{"t/state?key=", 400, bad, "empty"},
		{"t/state?key=a&limit=1", 400, bad, "limit"},
		{"t/state?key=a&keys=b", 400, bad, "one of both"},
		{"t/state?keys=a&prefix=b", 400, bad, "one of both"},
		{"t/state?limit=1001", 400, bad, "1001"},
		{"t/state?page=nonsense", 400, bad, "nonsense"},
		{"t/state?page=", 400, bad, "page is empty"},
		{"u/state?page=" + next, 400, bad, `page is of topic "t"`},
		{"t/state?at=3&page=" + next, 400, bad, "its own offset"},
		{"t/state?min_offset=x", 400, bad, `"x"`},
		{"t/state?wait_ms=1", 400, bad, "min_offset"},
		{"t/state?min_offset=9&wait_ms=20001", 400, bad, "20001"},
		{"t/state?min_offset=9&wait_ms=1", 504, eventhub.CodeWaitTimeout, "its head is 6"},
		{"t/state?pages=1", 400, bad, "pages"},
	} {
		s.wantRefused(tt.path, tt.status, tt.code, tt.says)
	}
	if _, err := h.Bus().Trim(t.Context(), "t", admin.TrimQuery{Keep: 3}, true); err != nil {
		t.Fatal(err)
	}
	s.wantRefused("t/state?at=3", 410, eventhub.CodeGone, "from offset 4 on")
	s.wantRefused("t/state/a?at=3", 410, eventhub.CodeGone, "from offset 4 on")
	s.want("t/state?at=4", "at 4")
	if err := h.Bus().DeleteTopic(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	s.wantRefused("t/state?page="+next, 404, eventhub.CodeUnknownID, `"t"`)
	statesOf(t, h)
	s.wantRefused("t/state?page="+next, 404, eventhub.CodeUnknownID, "an earlier topic")
}

// diff returns "change key/from/to" of all pages of a difference, with its offsets.
func (s *stateAsker) diff(path string) (seen string) {
	s.t.Helper()
	for next := ""; ; {
		status, body, _ := s.ask(path + next)
		var page struct {
			Topic                 string
			From, To, Life, Count uint64
			Changes               []struct {
				Change, Key string
				From, To    eventhub.Event
			}
			Next string
		}
		if err := json.Unmarshal([]byte(body), &page); err != nil || status != 200 || page.Life == 0 || int(page.Count) != len(page.Changes) {
			s.t.Fatalf("%s: %d %s (%v)", path, status, body, err)
		}
		for _, c := range page.Changes {
			seen += fmt.Sprintf("%s %s/%d/%d ", c.Change, c.Key, c.From.Offset, c.To.Offset)
		}
		if page.Next == "" {
			return fmt.Sprintf("%sfrom %d to %d", seen, page.From, page.To)
		}
		path, _, _ = strings.Cut(path, "?")
		next = "?limit=1&page=" + url.QueryEscape(page.Next)
	}
}

func TestStateDiffOverHTTP(t *testing.T) {
	h := startHub(t, hub.MemoryStore)
	s := statesOf(t, h)
	for path, want := range map[string]string{
		"t/state-diff?from=2":                 "added ./0/3 removed a/2/0 added a b/0/5 changed b/é/1/6 from 2 to 6",
		"t/state-diff?from=2&limit=1":         "added ./0/3 removed a/2/0 added a b/0/5 changed b/é/1/6 from 2 to 6",
		"t/state-diff?from=2&to=4":            "added ./0/3 removed a/2/0 from 2 to 4",
		"t/state-diff?from=2&to=0s&prefix=a":  "removed a/2/0 added a b/0/5 from 2 to 6",
		"t/state-diff?from=1h&to=1&limit=100": "added b/é/0/1 from 0 to 1",
		"t/state-diff?from=6":                 "from 6 to 6",
		"t/state-diff?to=2":                   "added a/0/2 added b/é/0/1 from 0 to 2",
	} {
		if got := s.diff(path); got != want {
			t.Errorf("%s is %q; want %q", path, got, want)
		}
	}
	if _, body, _ := s.ask("t/state-diff?from=5"); !strings.HasPrefix(body, `{"topic":"t","life":1,"from":5,"to":6,"count":1,"changes":[{"change":"changed","key":"b/é","from":{"offset":1,`) {
		t.Errorf("a difference is %s", body)
	}
	const bad = eventhub.CodeBadRequest
	for _, tt := range []struct {
		path   string
		status int
		code   eventhub.Code
		says   string
	}{
		{"t/state-diff?from=7", 400, bad, "up to 6"},
		{"t/state-diff?from=1&to=7", 400, bad, "to is the offset 7"},
		{"t/state-diff?from=3&to=2", 400, bad, "which is after to"},
		{"t/state-diff?from=1h&to=2h", 400, bad, "which is after to"},
		{"t/state-diff?from=2999-01-01T00:00:00Z", 400, bad, "from is the time"},
		{"t/state-diff?from=1&to=2999-01-01T00:00:00Z", 400, bad, "to is the time 2999-01-01T00:00:00.000Z, which is in the future: it is 20"},
		{"t/state-diff?from=soon", 400, bad, `from: "soon"`},
		{"t/state-diff?from=1&to=", 400, bad, "to: "},
		{"t/state-diff?from=1&limit=0", 400, bad, "limit"},
		{"t/state-diff?from=1&page=", 400, bad, "page is empty"},
		{"t/state-diff?page=nonsense", 400, bad, "nonsense"},
		{"t/state-diff?from=1&at=2", 400, bad, `"at"`},
		{"none/state-diff?from=1", 404, eventhub.CodeUnknownID, `"none"`},
	} {
		s.wantRefused(tt.path, tt.status, tt.code, tt.says)
	}
	if _, err := h.Bus().Trim(t.Context(), "t", admin.TrimQuery{Keep: 3}, true); err != nil {
		t.Fatal(err)
	}
	s.wantRefused("t/state-diff?from=3", 410, eventhub.CodeGone, "from offset 4 on")
}

func TestKeyHistoryOverHTTP(t *testing.T) {
	h := startHub(t, hub.MemoryStore)
	s := statesOf(t, h)
	if _, err := h.Bus().Publish(t.Context(), eventhub.Event{Topic: "t", ID: "last", Key: "a", CausedBy: []string{"none"}, Payload: json.RawMessage("2")}); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"t/state-history?key=b%2F%C3%A9": "changed/6/1 added/1/0 ",
		"t/state-history?key=.":          "added/3/0 ",
		"t/state-history?key=a":          "added/7/4 removed/4/2 added/2/0 ",
		"t/state-history?key=a&limit=2":  "added/7/4 removed/4/2 next 4",
		"t/state-history?key=a&before=4": "added/2/0 ",
		"t/state-history?key=nobody":     "",
	} {
		status, body, _ := s.ask(path)
		var page struct {
			Topic, Key    string
			Life, Horizon uint64
			Count         int
			Changes       []struct {
				Change        string
				Event, Before struct{ Offset uint64 }
			}
			Next uint64
		}
		if err := json.Unmarshal([]byte(body), &page); err != nil || status != 200 || page.Count != len(page.Changes) || page.Horizon != 1 || page.Life == 0 {
			t.Fatalf("%s: %d %s (%v)", path, status, body, err)
		}
		got := ""
		for _, c := range page.Changes {
			got += fmt.Sprintf("%s/%d/%d ", c.Change, c.Event.Offset, c.Before.Offset)
		}
		if page.Next != 0 {
			got += fmt.Sprint("next ", page.Next)
		}
		if got != want {
			t.Errorf("%s is %q; want %q", path, got, want)
		}
	}
	if _, body, _ := s.ask("t/state-history?key=a&limit=1"); !strings.HasPrefix(body, `{"topic":"t","key":"a","life":1,"horizon":1,"count":1,"changes":[{"change":"added","event":{"offset":7,`) ||
		!strings.HasSuffix(body, `,"causes":[{"id":"none","missing":true}]}],"next":7}`+"\n") {
		t.Errorf("a history is %s", body)
	}
	const bad = eventhub.CodeBadRequest
	s.wantRefused("t/state-history", 400, bad, "key is empty")
	s.wantRefused("t/state-history?key=", 400, bad, "key is empty")
	s.wantRefused("t/state-history?key="+strings.Repeat("k", 1025), 400, bad, "1025 bytes")
	s.wantRefused("t/state-history?key=a&before=0", 400, bad, `before "0"`)
	s.wantRefused("t/state-history?key=a&before=x", 400, bad, `before "x"`)
	s.wantRefused("t/state-history?key=a&limit=1001", 400, bad, "limit")
	s.wantRefused("t/state-history?key=a&at=1", 400, bad, `"at"`)
	s.wantRefused("none/state-history?key=a", 404, eventhub.CodeUnknownID, `"none"`)
	if _, err := h.Bus().Trim(t.Context(), "t", admin.TrimQuery{Keep: 3}, true); err != nil {
		t.Fatal(err)
	}
	if _, body, _ := s.ask("t/state-history?key=b%2F%C3%A9"); !strings.Contains(body, `"horizon":5,"count":1,"changes":[{"change":"set",`) || !strings.Contains(body, `"before_gone":true`) {
		t.Errorf("a history whose beginning is gone is %s", body)
	}
}
