package rest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/causality"
	"eventhub/internal/causality/linkstest"
	"eventhub/internal/strictjson"
	"eventhub/internal/testsize"
)

// links is a History and an Inspector over events that a test wrote down.
type links struct {
	shelf
	linkstest.Links
}

func (l *links) Replay(context.Context, admin.ReplayQuery, func(string, eventhub.Item) error) error {
	return errors.New("nobody replays here")
}

func (l *links) Life(context.Context, string) (uint64, error) {
	return 0, errors.New("nobody asks for lives here")
}

func (l *links) StateDiff(context.Context, admin.StateDiffQuery) (admin.StateDiffPage, error) {
	return admin.StateDiffPage{}, errors.New("nobody asks for a difference here")
}

func (l *links) KeyHistory(context.Context, admin.KeyHistoryQuery) (admin.KeyHistoryPage, error) {
	return admin.KeyHistoryPage{}, errors.New("nobody asks for a history here")
}

func (l *links) State(context.Context, admin.StateQuery) (admin.StatePage, error) {
	return admin.StatePage{}, errors.New("nobody asks for a state here")
}

func (l *links) EventGroups(ctx context.Context, topic, id string) ([]admin.EventGroup, error) {
	return l.Links.EventGroups(ctx, topic, id)
}

func linked(t *testing.T, l *links) http.Handler {
	_, h := mount(t, Access{Inspector: l, History: l})
	return h
}

// traced asks for a trace.
func traced(t *testing.T, l *links, target string) (trace admin.Trace) {
	t.Helper()
	status, answer, _ := request(linked(t, l), "GET", target, "")
	if status != 200 {
		t.Fatalf("%s: %d %s", target, status, answer)
	}
	if err := json.Unmarshal([]byte(answer), &trace); err != nil {
		t.Fatalf("%s: %v", answer, err)
	}
	return trace
}

// ids lists the nodes of a trace as distance and id.
func ids(trace admin.Trace) string {
	var nodes []string
	for _, n := range trace.Nodes {
		nodes = append(nodes, fmt.Sprintf("%d:%s", n.Distance, n.ID))
	}
	return strings.Join(nodes, " ")
}

// TestTraceParameters: depth and limit reach the walk.
func TestTraceParameters(t *testing.T) {
	l := &links{}
	l.Write("t", "1")
	l.Write("t", "2", "1")
	l.Write("t", "x", "2")
	l.Write("t", "3", "x")
	for query, want := range map[string]string{
		"":                 "0:x -1:2 1:3 -2:1",
		"?depth=1":         "0:x -1:2 1:3",
		"?depth=0":         "0:x",
		"?limit=2":         "0:x -1:2",
		"?limit=1&depth=1": "0:x",
	} {
		trace := traced(t, l, "/v1/events/x/trace"+query)
		if got := ids(trace); got != want || trace.Truncated != (query != "") || len(trace.Edges) != len(trace.Nodes)-1 {
			t.Errorf("%q: %s with %d edges, truncated %v; want %s", query, got, len(trace.Edges), trace.Truncated, want)
		}
	}
	l.GroupsFail = errors.New("broken")
	l.Became = map[string][]admin.EventGroup{"t/x": nil}
	if status, answer, _ := request(linked(t, l), "GET", "/v1/events/x/trace", ""); status != 500 || strings.Contains(answer, "broken") {
		t.Errorf("a failing inspector: %d %s", status, answer)
	}
}

func TestFindEvent(t *testing.T) {
	l := &links{}
	l.Write("b", "x").Payload = []byte(`"<b>"`)
	l.Write("a", "x")
	l.Write("a", "y")
	h := linked(t, l)
	status, answer, _ := request(h, "GET", "/v1/events/x", "")
	want := `{"events":[{"offset":1,"ts":1723140000000,"id":"x","topic":"a","payload":{"of":"x"}},{"offset":1,"ts":1723140000000,"id":"x","topic":"b","payload":"<b>"}]}`
	if status != 200 || strings.TrimSpace(answer) != want {
		t.Errorf("%d %s\nwant %s", status, answer, want)
	}
	if _, answer, _ := request(h, "GET", "/v1/events/x?limit=1", ""); !strings.HasSuffix(answer, `"payload":{"of":"x"}}],"more":true}`+"\n") {
		t.Errorf("one of two: %s", answer)
	}
}

func TestListEvents(t *testing.T) {
	l := &links{}
	l.Most = 2
	for i := range 5 {
		l.Write("t", fmt.Sprint("e", i), "x").Headers = map[string]string{eventhub.CorrelationHeader: "cart 1"}
	}
	l.Write("s", "other", "y")
	h := linked(t, l)
	for _, by := range []string{"correlation_id=cart+1", "caused_by=x"} {
		var ids []string
		place := ""
		for range 4 {
			status, answer, _ := request(h, "GET", "/v1/events?limit=2&"+by+place, "")
			var page struct {
				Events []eventhub.Event
				Next   *struct {
					AfterTopic  string `json:"after_topic"`
					AfterOffset uint64 `json:"after_offset"`
				}
			}
			if err := json.Unmarshal([]byte(answer), &page); err != nil || status != 200 {
				t.Fatalf("%d %s: %v", status, answer, err)
			}
			for _, e := range page.Events {
				ids = append(ids, e.ID)
			}
			if page.Next == nil {
				break
			}
			place = fmt.Sprintf("&after_topic=%s&after_offset=%d", page.Next.AfterTopic, page.Next.AfterOffset)
		}
		if got := strings.Join(ids, " "); got != "e0 e1 e2 e3 e4" {
			t.Errorf("%s lists %s", by, got)
		}
	}
	if _, answer, _ := request(h, "GET", "/v1/events?caused_by=nobody", ""); answer != "{\"events\":[]}\n" {
		t.Errorf("no events: %s", answer)
	}
	// A page ends where it is large enough. The race detector looks at all bytes of it.
	if testsize.Small() {
		return
	}
	l.Most = 0
	for i := range l.Events {
		l.Events[i].Payload = []byte(`"` + strings.Repeat("x", causality.PageBytes/2) + `"`)
	}
	if _, answer, _ := request(h, "GET", "/v1/events?caused_by=x", ""); !strings.HasSuffix(answer, `],"next":{"after_topic":"t","after_offset":2}}`+"\n") {
		t.Errorf("a page of large events ends with %s", answer[len(answer)-80:])
	}
}

func TestTraceProblems(t *testing.T) {
	l := &links{}
	l.Write("t", "x")
	for _, tt := range []struct {
		target string
		status int
		says   string
	}{
		{"/v1/events/none", 404, `no topic has the event \"none\"`},
		{"/v1/events/none/trace", 404, `no topic has the event \"none\"`},
		{"/v1/events/a%20b/trace", 400, `id \"a b\"`},
		{"/v1/events/x/trace?depth=17", 400, `depth \"17\" is not a number from 0 to 16`},
		{"/v1/events/x/trace?depth=-1", 400, "depth"},
		{"/v1/events/x/trace?limit=10001", 400, `limit \"10001\" is not a number from 1 to 10000`},
		{"/v1/events/x/trace?up=1", 400, `\"up\"`},
		{"/v1/events/x?limit=0", 400, "limit"},
		{"/v1/events", 400, "one of correlation_id and caused_by"},
		{"/v1/events?correlation_id=a&caused_by=b", 400, "one of correlation_id and caused_by"},
		{"/v1/events?caused_by=a%20b", 400, "caused_by"},
		{"/v1/events?correlation_id=" + strings.Repeat("x", 257), 400, "correlation_id has 257 bytes; at most 256"},
		{"/v1/events?caused_by=x&after_topic=t", 400, "after_offset"},
		{"/v1/events?caused_by=x&after_offset=1", 400, "after_topic"},
		{"/v1/events?caused_by=x&after_topic=a%20b&after_offset=1", 400, "after_topic"},
	} {
		status, answer, _ := request(linked(t, l), "GET", tt.target, "")
		if status != tt.status || !strings.Contains(answer, tt.says) {
			t.Errorf("%s: %d %s", tt.target, status, answer)
		}
	}
	l.Fails = eventhub.Errorf(eventhub.CodeOverloaded, "not now")
	for _, target := range []string{"/v1/events/x", "/v1/events/x/trace", "/v1/events?caused_by=x"} {
		if status, answer, _ := request(linked(t, l), "GET", target, ""); status != 503 {
			t.Errorf("%s of a failing store: %d %s", target, status, answer)
		}
	}
}

// TestTheExampleOfATrace: the one in docs/http.md has the fields that the answer
// has.
func TestTheExampleOfATrace(t *testing.T) {
	file, err := os.ReadFile("../../docs/http.md")
	if err != nil {
		t.Fatal(err)
	}
	_, example, _ := strings.Cut(string(file), "the nearest first:\n\n```json\n")
	example, _, _ = strings.Cut(example, "```")
	var trace admin.Trace
	if err := strictjson.Unmarshal([]byte(example), &trace); err != nil {
		t.Fatalf("%v in %s", err, example)
	}
	want := []admin.TraceEdge{{Cause: 0, Effect: 2}, {Cause: 1, Effect: 0}}
	if got := ids(trace); got != "0:order-17 -1:cart-9 1:bill-3" || !trace.Nodes[1].Missing || !slices.Equal(trace.Edges, want) {
		t.Errorf("the example is %s with edges %v", got, trace.Edges)
	}
}
