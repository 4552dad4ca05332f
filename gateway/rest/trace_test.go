package rest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"eventhub"
	encode "eventhub/internal/record"
	"eventhub/internal/strictjson"
)

// links is a History over events that a test wrote down, and an Inspector that says
// of each what became of it in its topic's groups.
type links struct {
	shelf
	events []eventhub.Event
	looked int // calls
	most   int // events a call returns at most; 0: as many as asked for
	fails  error
}

func (l *links) Replay(context.Context, eventhub.ReplayQuery, func(string, eventhub.Item) error) error {
	return errors.New("nobody replays here")
}

func (l *links) Life(context.Context, string) (uint64, error) {
	return 0, errors.New("nobody asks for lives here")
}

func (l *links) EventGroups(_ context.Context, topic, id string) ([]eventhub.EventGroup, error) {
	groups, ok := l.became[topic+"/"+id]
	if !ok {
		return nil, eventhub.Errorf(eventhub.CodeUnknownID, "gone")
	}
	return slices.Clone(groups), l.err
}

// write adds an event: topic, id, and what caused it.
func (l *links) write(topic, id string, causes ...string) *eventhub.Event {
	l.events = append(l.events, eventhub.Event{Topic: topic, ID: id, CausedBy: causes, Payload: []byte(`{"of":"` + id + `"}`)})
	return &l.events[len(l.events)-1]
}

func (l *links) pick(after eventhub.Place, limit int, fits func(*eventhub.Event) bool) ([]eventhub.Found, error) {
	l.looked++
	var found []eventhub.Found
	offsets := make(map[string]uint64)
	for _, e := range l.events {
		offsets[e.Topic]++
		at := offsets[e.Topic]
		if !fits(&e) || e.Topic < after.Topic || e.Topic == after.Topic && at <= after.Offset {
			continue
		}
		rec, err := encode.Append(nil, &e)
		if err != nil {
			return nil, err
		}
		eventhub.Record(rec).SetCommitTime(1723140000000)
		found = append(found, eventhub.Found{Topic: e.Topic, Item: eventhub.Item{Offset: at, Record: rec}})
	}
	slices.SortFunc(found, func(a, b eventhub.Found) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Offset, b.Offset))
	})
	if l.most > 0 {
		limit = min(limit, l.most)
	}
	return found[:min(limit, len(found))], l.fails
}

func (l *links) Find(_ context.Context, id string, limit int) ([]eventhub.Found, error) {
	return l.pick(eventhub.Place{}, limit, func(e *eventhub.Event) bool { return e.ID == id })
}

func (l *links) Effects(_ context.Context, id string, after eventhub.Place, limit int) ([]eventhub.Found, error) {
	return l.pick(after, limit, func(e *eventhub.Event) bool { return slices.Contains(e.CausedBy, id) })
}

func (l *links) Correlated(_ context.Context, of string, after eventhub.Place, limit int) ([]eventhub.Found, error) {
	return l.pick(after, limit, func(e *eventhub.Event) bool { return e.Headers[eventhub.CorrelationHeader] == of })
}

func linked(t *testing.T, l *links) http.Handler {
	_, h := mount(t, Access{Inspector: l, History: l})
	return h
}

// traced asks for a trace.
func traced(t *testing.T, l *links, target string) (trace eventhub.Trace) {
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

// drawn writes a trace so that a test can say what it is: nodes as distance and id,
// with ? where they are missing, and edges by the ids of their ends, with ! where
// they close a cycle.
func drawn(trace eventhub.Trace) string {
	var b strings.Builder
	for _, n := range trace.Nodes {
		fmt.Fprintf(&b, "%d:%s ", n.Distance, n.ID+map[bool]string{true: "?"}[n.Missing])
	}
	for _, e := range trace.Edges {
		fmt.Fprintf(&b, "%s>%s%s ", trace.Nodes[e.Cause].ID, trace.Nodes[e.Effect].ID, map[bool]string{true: "!"}[e.Cycle])
	}
	if trace.Truncated {
		b.WriteString("truncated")
	}
	return strings.TrimSpace(b.String())
}

func TestTraceShapes(t *testing.T) {
	for _, tt := range []struct {
		name   string
		write  func(*links)
		target string
		want   string
	}{
		{"alone", func(l *links) { l.write("t", "x") }, "x/trace", "0:x"},
		{"up and down", func(l *links) {
			l.write("a", "1")
			l.write("b", "2", "1")
			l.write("b", "x", "2")
			l.write("a", "3", "x")
			l.write("c", "4", "3")
			l.write("c", "aside", "1")
		}, "x/trace", "0:x -1:2 1:3 -2:1 2:4 x>3 2>x 3>4 1>2"},
		{"several causes and effects", func(l *links) {
			l.write("a", "1")
			l.write("a", "2")
			l.write("b", "x", "2", "1", "2")
			l.write("b", "e", "x", "1")
			l.write("a", "f", "x", "e")
		}, "x/trace", "0:x -1:2 -1:1 1:f 1:e x>f x>e 2>x 1>x 1>e e>f"},
		{"in two topics", func(l *links) {
			l.write("b", "x", "1")
			l.write("a", "x")
			l.write("c", "e", "x")
			l.write("c", "1")
		}, "x/trace", "0:x 0:x -1:1 1:e x>e x>e 1>x"},
		{"a missing cause", func(l *links) { l.write("t", "x", "gone", "gone2"); l.write("t", "e", "x", "gone") },
			"x/trace", "0:x -1:gone? -1:gone2? 1:e x>e gone>x gone>e gone2>x"},
		{"gone with effects", func(l *links) { l.write("t", "e", "x"); l.write("t", "f", "e") }, "x/trace", "0:x? 1:e 2:f x>e e>f"},
		{"its own cause", func(l *links) { l.write("t", "x", "x") }, "x/trace", "0:x x>x!"},
		{"a cycle", func(l *links) { l.write("t", "x", "z"); l.write("t", "y", "x"); l.write("t", "z", "y") },
			"x/trace", "0:x -1:z 1:y x>y z>x! y>z"},
		{"a cycle below a cause", func(l *links) { l.write("t", "1"); l.write("t", "x", "1", "y"); l.write("t", "y", "x") },
			"x/trace", "0:x -1:1 -1:y x>y 1>x y>x!"},
		{"depth", func(l *links) {
			l.write("t", "1")
			l.write("t", "2", "1")
			l.write("t", "x", "2")
			l.write("t", "3", "x")
		}, "x/trace?depth=1", "0:x -1:2 1:3 x>3 2>x truncated"},
		{"depth below", func(l *links) { l.write("t", "x"); l.write("t", "3", "x"); l.write("t", "4", "3") }, "x/trace?depth=1", "0:x 1:3 x>3 truncated"},
		{"depth just enough", func(l *links) { l.write("t", "1"); l.write("t", "x", "1"); l.write("t", "3", "x", "1") }, "x/trace?depth=1", "0:x -1:1 1:3 x>3 1>x 1>3"},
		{"no depth", func(l *links) { l.write("t", "x", "1") }, "x/trace?depth=0", "0:x truncated"},
		{"limit", func(l *links) {
			l.write("t", "1")
			l.write("t", "x", "1")
			for i := range 5 {
				l.write("t", fmt.Sprint("e", i), "x")
			}
		}, "x/trace?limit=4", "0:x -1:1 1:e0 1:e1 x>e0 x>e1 1>x truncated"},
		{"limit just enough", func(l *links) { l.write("t", "x"); l.write("t", "e", "x") }, "x/trace?limit=2", "0:x 1:e x>e"},
		{"limit for the event alone", func(l *links) { l.write("a", "x"); l.write("b", "x") }, "x/trace?limit=1", "0:x truncated"},
		{"more than one look", func(l *links) {
			l.most = 2
			l.write("t", "x")
			for i := range 5 {
				l.write("t", fmt.Sprint("e", i), "x")
			}
		}, "x/trace", "0:x 1:e0 1:e1 1:e2 1:e3 1:e4 x>e0 x>e1 x>e2 x>e3 x>e4"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := &links{}
			tt.write(l)
			if got := drawn(traced(t, l, "/v1/events/"+tt.target)); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

// TestTraceTellsWhatBecame: nodes have what the page says, and a dead letter of the
// event shows in the group whose it is.
func TestTraceTellsWhatBecame(t *testing.T) {
	l := &links{}
	e := l.write("a.b", "x", "cause")
	e.TS, e.Key, e.Payload = 5, "k", []byte(`"`+strings.Repeat("é", 100)+`"`)
	l.write("a.b.dlq", "d1", "x").Payload = []byte(`{"topic":"a.b","offset":1,"group":"g2","reason":"no"}`)
	l.write("a.b.dlq", "d2", "x").Payload = []byte(`{"topic":"z","offset":1,"group":"g1"}`) // of another topic
	l.write("a.b.dlq", "d3", "x").Payload = []byte(`[1]`)
	state := func(group, state string) eventhub.EventGroup {
		return eventhub.EventGroup{Group: group, InFlight: eventhub.InFlight{Offset: 1, ID: "x", State: state}}
	}
	l.became = map[string][]eventhub.EventGroup{"a.b/x": {state("g1", "done"), state("g2", "done"), state("g3", "leased")}}
	got := traced(t, l, "/v1/events/x/trace").Nodes[0]
	want := eventhub.TraceNode{
		ID: "x", Topic: "a.b", Offset: 1, TS: 5, Key: "k", CausedBy: []string{"cause"}, Preview: `"` + strings.Repeat("é", 79),
		Groups: []eventhub.EventGroup{state("g1", "done"), state("g2", "dead_lettered"), state("g3", "leased")},
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	l.err = errors.New("broken")
	if status, answer, _ := request(linked(t, l), "GET", "/v1/events/x/trace", ""); status != 500 || strings.Contains(answer, "broken") {
		t.Errorf("a failing inspector: %d %s", status, answer)
	}
}

// TestTraceIsBounded: what is connected with everything ends, at the limits.
func TestTraceIsBounded(t *testing.T) {
	l := &links{}
	var causes []string
	for i := range 64 {
		causes = append(causes, fmt.Sprint("c", i))
	}
	for _, id := range causes {
		l.write("t", id, causes...)
	}
	trace := traced(t, l, "/v1/events/c0/trace?limit=64")
	if len(trace.Nodes) != 64 || len(trace.Edges) != 64*edgesPerNode || !trace.Truncated {
		t.Errorf("%d nodes, %d edges, truncated %v", len(trace.Nodes), len(trace.Edges), trace.Truncated)
	}
	if l.looked > 64*3+64 {
		t.Errorf("looked %d times for 64 ids", l.looked)
	}
}

func TestFindEvent(t *testing.T) {
	l := &links{}
	l.write("b", "x").Payload = []byte(`"<b>"`)
	l.write("a", "x")
	l.write("a", "y")
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
	l := &links{most: 2}
	for i := range 5 {
		l.write("t", fmt.Sprint("e", i), "x").Headers = map[string]string{eventhub.CorrelationHeader: "cart 1"}
	}
	l.write("s", "other", "y")
	h := linked(t, l)
	for _, by := range []string{"correlationId=cart+1", "causedBy=x"} {
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
	if _, answer, _ := request(h, "GET", "/v1/events?causedBy=nobody", ""); answer != "{\"events\":[]}\n" {
		t.Errorf("no events: %s", answer)
	}
	// A page ends where it is large enough.
	l.most = 0
	for i := range l.events {
		l.events[i].Payload = []byte(`"` + strings.Repeat("x", foundBytes/2) + `"`)
	}
	if _, answer, _ := request(h, "GET", "/v1/events?causedBy=x", ""); !strings.HasSuffix(answer, `],"next":{"after_topic":"t","after_offset":2}}`+"\n") {
		t.Errorf("a page of large events ends with %s", answer[len(answer)-80:])
	}
}

func TestTraceProblems(t *testing.T) {
	l := &links{}
	l.write("t", "x")
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
		{"/v1/events/x/trace?limit=1001", 400, `limit \"1001\"`},
		{"/v1/events/x/trace?up=1", 400, `\"up\"`},
		{"/v1/events/x?limit=0", 400, "limit"},
		{"/v1/events", 400, "one of correlationId and causedBy"},
		{"/v1/events?correlationId=a&causedBy=b", 400, "one of correlationId and causedBy"},
		{"/v1/events?causedBy=a%20b", 400, "causedBy"},
		{"/v1/events?correlationId=" + strings.Repeat("x", 257), 400, "correlationId has 257 bytes; at most 256"},
		{"/v1/events?causedBy=x&after_topic=t", 400, "after_offset"},
		{"/v1/events?causedBy=x&after_offset=1", 400, "after_topic"},
		{"/v1/events?causedBy=x&after_topic=a%20b&after_offset=1", 400, "after_topic"},
	} {
		status, answer, _ := request(linked(t, l), "GET", tt.target, "")
		if status != tt.status || !strings.Contains(answer, tt.says) {
			t.Errorf("%s: %d %s", tt.target, status, answer)
		}
	}
	l.fails = eventhub.Errorf(eventhub.CodeOverloaded, "not now")
	for _, target := range []string{"/v1/events/x", "/v1/events/x/trace", "/v1/events?causedBy=x"} {
		if status, answer, _ := request(linked(t, l), "GET", target, ""); status != 503 {
			t.Errorf("%s of a failing store: %d %s", target, status, answer)
		}
	}
}

// TestTheExampleOfATrace: the one in docs/protocol.md has the fields that the answer
// has.
func TestTheExampleOfATrace(t *testing.T) {
	file, err := os.ReadFile("../../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	_, example, _ := strings.Cut(string(file), "the nearest first:\n\n```json\n")
	example, _, _ = strings.Cut(example, "```")
	var trace eventhub.Trace
	if err := strictjson.Unmarshal([]byte(example), &trace); err != nil {
		t.Fatalf("%v in %s", err, example)
	}
	if got := drawn(trace); got != "0:order-17 -1:cart-9? 1:bill-3 order-17>bill-3 cart-9>order-17" {
		t.Errorf("the example is %s", got)
	}
}
