package console

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"eventhub/admin"
	"eventhub/internal/bubble"
)

// shelf is an Inspector of many topics, which counts how often they are listed.
type shelf struct {
	rooms
	names  []string
	listed int
}

func (s *shelf) Topics(_ context.Context, after string, limit int) ([]admin.TopicInfo, error) {
	s.listed++
	at, found := slices.BinarySearch(s.names, after)
	if found {
		at++
	}
	var list []admin.TopicInfo
	for _, name := range s.names[at:min(at+limit, len(s.names))] {
		list = append(list, admin.TopicInfo{Topic: name})
	}
	return list, nil
}

// TestTopicsAreAWindow: a page has the rows in sight, of those that a search finds, however many there are; who is shown
// all topics shares the list of their names for a while, and nobody else does.
func TestTopicsAreAWindow(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := &shelf{rooms: rooms{topics: map[string]admin.TopicInfo{}}}
		for i := range 2500 {
			name := fmt.Sprintf("fleet.t%04d", i)
			s.names = append(s.names, name)
			s.topics[name] = admin.TopicInfo{Topic: name, Head: uint64(i)}
		}
		var shows func(string) bool
		cfg := config()
		cfg.Admit = func(*http.Request) (Access, error) { return Access{Inspector: s, Shows: shows}, nil }
		_, mux := open(t, cfg)
		window := func(query string) string {
			t.Helper()
			var w topicsWindow
			if text := body(t, do(mux, "GET", "/console/topics?"+query)); json.Unmarshal([]byte(text), &w) != nil {
				t.Fatalf("%s: %s", query, text)
			}
			parts := []string{fmt.Sprint(w.Total, w.From, len(w.Rows))}
			if len(w.Rows) > 0 {
				parts = append(parts, w.Rows[0].Topic, fmt.Sprint(w.Rows[len(w.Rows)-1].Head))
			}
			return strings.Join(parts, " ")
		}
		for query, want := range map[string]string{
			"":                          "2500 0 50 fleet.t0000 49",
			"from=1000&rows=60":         "2500 1000 60 fleet.t1000 1059",
			"from=2490&rows=40":         "2500 2460 40 fleet.t2460 2499",
			"search=T001+FLEET":         "10 0 10 fleet.t0010 19",
			"search=t001&from=7&rows=5": "10 5 5 fleet.t0015 19",
			"search=nothing":            "0 0 0",
		} {
			if got := window(query); got != want {
				t.Errorf("%q: %s; want %s", query, got, want)
			}
		}
		was := s.listed
		if got := window("first=1&rows=60"); got != "60 0 60 fleet.t0000 59" || s.listed != was+1 {
			t.Errorf("the first: %s; listed %d times", got, s.listed-was)
		}
		if was != 3 {
			t.Errorf("they were listed %d times, a page of them at a time", s.listed)
		}
		time.Sleep(namesFor)
		s.names = append(s.names, "new")
		if got := window("search=new"); got != "1 0 1 new 0" {
			t.Errorf("a topic that is new: %s", got)
		}
		shows = func(string) bool { return true }
		s.names = s.names[:1]
		if got := window(""); got != "1 0 1 fleet.t0000 0" {
			t.Errorf("who is shown some of them has %s", got)
		}
		for query, want := range map[string]string{"rows=61": `"61"`, "from=x": `"x"`} {
			if r := do(mux, "GET", "/console/topics?"+query); r.StatusCode < 400 || !strings.Contains(body(t, r), want) {
				t.Errorf("%s: %d", query, r.StatusCode)
			}
		}
	})
}
