package causality_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/causality"
	"eventhub/internal/causality/linkstest"
)

// drawn writes a trace so that a test can say what it is: nodes as distance and id,
// with ? where they are missing and ! where they are hidden, and edges by the ids of their ends, with ! where
// they close a cycle.
func drawn(trace *admin.Trace) string {
	var b strings.Builder
	for _, n := range trace.Nodes {
		fmt.Fprintf(&b, "%d:%s ", n.Distance, n.ID+map[bool]string{true: "?"}[n.Missing]+map[bool]string{true: "!"}[n.Hidden])
	}
	for _, e := range trace.Edges {
		fmt.Fprintf(&b, "%s>%s%s ", trace.Nodes[e.Cause].ID, trace.Nodes[e.Effect].ID, map[bool]string{true: "!"}[e.Cycle])
	}
	if trace.Truncated {
		b.WriteString("truncated")
	}
	return strings.TrimSpace(b.String())
}

func walked(t *testing.T, l *linkstest.Links, id string, depth, limit int) *admin.Trace {
	t.Helper()
	trace, err := causality.Walk(t.Context(), l, l, id, depth, limit)
	if err != nil {
		t.Fatal(err)
	}
	return trace
}

func TestWalkShapes(t *testing.T) {
	const deep, many = admin.MaxTraceDepth, admin.MaxTraceNodes
	for _, tt := range []struct {
		name  string
		write func(*linkstest.Links)
		depth int
		limit int
		want  string
	}{
		{"alone", func(l *linkstest.Links) { l.Write("t", "x") }, deep, many, "0:x"},
		{"up and down", func(l *linkstest.Links) {
			l.Write("a", "1")
			l.Write("b", "2", "1")
			l.Write("b", "x", "2")
			l.Write("a", "3", "x")
			l.Write("c", "4", "3")
			l.Write("c", "aside", "1")
		}, deep, many, "0:x -1:2 1:3 -2:1 2:4 x>3 2>x 3>4 1>2"},
		{"several causes and effects", func(l *linkstest.Links) {
			l.Write("a", "1")
			l.Write("a", "2")
			l.Write("b", "x", "2", "1", "2")
			l.Write("b", "e", "x", "1")
			l.Write("a", "f", "x", "e")
		}, deep, many, "0:x -1:2 -1:1 1:f 1:e x>f x>e 2>x 1>x 1>e e>f"},
		{"in two topics", func(l *linkstest.Links) {
			l.Write("b", "x", "1")
			l.Write("a", "x")
			l.Write("c", "e", "x")
			l.Write("c", "1")
		}, deep, many, "0:x 0:x -1:1 1:e x>e x>e 1>x"},
		{"a missing cause", func(l *linkstest.Links) { l.Write("t", "x", "gone", "gone2"); l.Write("t", "e", "x", "gone") },
			deep, many, "0:x -1:gone? -1:gone2? 1:e x>e gone>x gone>e gone2>x"},
		{"gone with effects", func(l *linkstest.Links) { l.Write("t", "e", "x"); l.Write("t", "f", "e") }, deep, many, "0:x? 1:e 2:f x>e e>f"},
		{"its own cause", func(l *linkstest.Links) { l.Write("t", "x", "x") }, deep, many, "0:x x>x!"},
		{"a cycle", func(l *linkstest.Links) { l.Write("t", "x", "z"); l.Write("t", "y", "x"); l.Write("t", "z", "y") },
			deep, many, "0:x -1:z 1:y x>y z>x! y>z"},
		{"a cycle below a cause", func(l *linkstest.Links) { l.Write("t", "1"); l.Write("t", "x", "1", "y"); l.Write("t", "y", "x") },
			deep, many, "0:x -1:1 -1:y x>y 1>x y>x!"},
		{"depth", func(l *linkstest.Links) {
			l.Write("t", "1")
			l.Write("t", "2", "1")
			l.Write("t", "x", "2")
			l.Write("t", "3", "x")
		}, 1, many, "0:x -1:2 1:3 x>3 2>x truncated"},
		{"depth below", func(l *linkstest.Links) { l.Write("t", "x"); l.Write("t", "3", "x"); l.Write("t", "4", "3") }, 1, many, "0:x 1:3 x>3 truncated"},
		{"depth just enough", func(l *linkstest.Links) { l.Write("t", "1"); l.Write("t", "x", "1"); l.Write("t", "3", "x", "1") }, 1, many, "0:x -1:1 1:3 x>3 1>x 1>3"},
		{"no depth", func(l *linkstest.Links) { l.Write("t", "x", "1") }, 0, many, "0:x truncated"},
		{"limit", func(l *linkstest.Links) {
			l.Write("t", "1")
			l.Write("t", "x", "1")
			for i := range 5 {
				l.Write("t", fmt.Sprint("e", i), "x")
			}
		}, deep, 4, "0:x -1:1 1:e0 1:e1 x>e0 x>e1 1>x truncated"},
		{"limit just enough", func(l *linkstest.Links) { l.Write("t", "x"); l.Write("t", "e", "x") }, deep, 2, "0:x 1:e x>e"},
		{"limit for the event alone", func(l *linkstest.Links) { l.Write("a", "x"); l.Write("b", "x") }, deep, 1, "0:x truncated"},
		{"more than one look", func(l *linkstest.Links) {
			l.Most = 2
			l.Write("t", "x")
			for i := range 5 {
				l.Write("t", fmt.Sprint("e", i), "x")
			}
		}, deep, many, "0:x 1:e0 1:e1 1:e2 1:e3 1:e4 x>e0 x>e1 x>e2 x>e3 x>e4"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := &linkstest.Links{}
			tt.write(l)
			if got := drawn(walked(t, l, "x", tt.depth, tt.limit)); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

// concealing is a history whose caller may not see topics that begin with secret.
type concealing struct{ *linkstest.Links }

func isSecret(f admin.Found) bool { return strings.HasPrefix(f.Topic, "secret") }

func (c concealing) Find(ctx context.Context, id string, limit int) ([]admin.Found, error) {
	found, err := c.Links.Find(ctx, id, limit)
	return slices.DeleteFunc(found, isSecret), err
}

func (c concealing) Effects(ctx context.Context, id string, after eventhub.Place, limit int) ([]admin.Found, error) {
	found, err := c.Links.Effects(ctx, id, after, admin.MaxPage)
	found = slices.DeleteFunc(found, isSecret)
	return found[:min(limit, len(found))], err
}

func (c concealing) ConcealsEvent(ctx context.Context, id string) (bool, error) {
	found, err := c.Links.Find(ctx, id, admin.MaxPage)
	return slices.ContainsFunc(found, isSecret), err
}

func (c concealing) ConcealsEffects(ctx context.Context, id string) (bool, error) {
	found, err := c.Links.Effects(ctx, id, eventhub.Place{}, admin.MaxPage)
	return slices.ContainsFunc(found, isSecret), err
}

// TestWalkConceals: of topics that the caller may not see a trace says that something is
// there: by its id where an event that it sees names that, and nothing of what follows.
func TestWalkConceals(t *testing.T) {
	const deep, many = admin.MaxTraceDepth, admin.MaxTraceNodes
	for _, tt := range []struct {
		name  string
		write func(*linkstest.Links)
		want  string // "" for unknown_id
	}{
		{"a cause", func(l *linkstest.Links) {
			l.Write("t", "x", "s")
			l.Write("secret", "s", "beyond")
			l.Write("t", "beyond")
		}, "0:x -1:s! s>x"},
		{"effects", func(l *linkstest.Links) {
			l.Write("t", "x")
			l.Write("secret.a", "s1", "x")
			l.Write("secret.b", "s2", "x")
			l.Write("t", "e", "x")
			l.Write("t", "beyond", "s1")
		}, "0:x 1:e 1:! x>e x>"},
		{"of an effect", func(l *linkstest.Links) { l.Write("t", "x"); l.Write("t", "e", "x"); l.Write("secret", "s", "e") }, "0:x 1:e 2:! x>e e>"},
		{"the event itself in another topic", func(l *linkstest.Links) { l.Write("t", "x"); l.Write("secret", "x") }, "0:x 0:x!"},
		{"the event, which another one names", func(l *linkstest.Links) {
			l.Write("secret", "x", "cause")
			l.Write("t", "e", "x")
			l.Write("secret", "f", "x")
		}, "0:x! 1:e x>e"},
		{"effects of what is gone", func(l *linkstest.Links) { l.Write("t", "e", "x"); l.Write("secret", "f", "x") }, "0:x? 1:e 1:! x>e x>"},
		{"effects of what is gone, none of which shows", func(l *linkstest.Links) { l.Write("secret", "f", "x") }, ""},
		{"the event", func(l *linkstest.Links) { l.Write("secret", "x") }, ""},
		{"the event and its effects", func(l *linkstest.Links) { l.Write("secret", "x"); l.Write("secret", "e", "x") }, ""},
		{"nothing", func(l *linkstest.Links) { l.Write("t", "x", "gone"); l.Write("t", "e", "x") }, "0:x -1:gone? 1:e x>e gone>x"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := concealing{&linkstest.Links{}}
			tt.write(l.Links)
			trace, err := causality.Walk(t.Context(), l, l, "x", deep, many)
			if eventhub.ErrorCode(err) == eventhub.CodeUnknownID && tt.want == "" {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := drawn(trace); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			text, err := json.Marshal(trace)
			if err != nil || strings.Contains(string(text), "secret") || strings.Contains(string(text), "beyond") {
				t.Errorf("%s, %v; it says more than that something is hidden", text, err)
			}
		})
	}
}

var seed = flag.Uint64("seed", 0, "of the random test; 0 draws one")

// TestWalkConcealsAtRandom: of every event on the way down from the one that is asked for, there or
// gone, a trace says that it has hidden effects if, and only if, it has some; of an event that is
// hidden itself it says no more.
func TestWalkConcealsAtRandom(t *testing.T) {
	s := *seed
	if s == 0 {
		s = rand.Uint64()
	}
	t.Logf("-seed=%d", s)
	r := rand.New(rand.NewPCG(s, 0))
	ids := []string{"x", "a", "b", "c", "d"}
	hidden, gone := 0, 0
	for range 3000 {
		l := concealing{&linkstest.Links{}}
		for range 1 + r.IntN(7) {
			var causes []string
			for r.IntN(2) == 0 && len(causes) < 3 {
				causes = append(causes, ids[r.IntN(len(ids))])
			}
			l.Write([]string{"t", "u", "secret"}[r.IntN(3)], ids[r.IntN(len(ids))], causes...)
		}
		trace, err := causality.Walk(t.Context(), l, l, "x", admin.MaxTraceDepth, admin.MaxTraceNodes)
		visible := func(id string) bool {
			return slices.ContainsFunc(l.Events, func(e eventhub.Event) bool { return e.ID == id && e.Topic != "secret" })
		}
		secret := func(id string) bool {
			return slices.ContainsFunc(l.Events, func(e eventhub.Event) bool { return e.ID == id && e.Topic == "secret" })
		}
		effects := func(of string, topic bool) (ids []string) {
			for _, e := range l.Events {
				if slices.Contains(e.CausedBy, of) && (e.Topic == "secret") == topic {
					ids = append(ids, e.ID)
				}
			}
			return ids
		}
		if !visible("x") && len(effects("x", false)) == 0 {
			if eventhub.ErrorCode(err) != eventhub.CodeUnknownID {
				t.Fatalf("%+v: %v", l.Events, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		want := make(map[string]bool)
		seen := map[string]bool{}
		for next := []string{"x"}; len(next) > 0; next = next[1:] {
			id := next[0]
			if seen[id] {
				continue
			}
			seen[id] = true
			next = append(next, effects(id, false)...)
			if len(effects(id, true)) > 0 && (visible(id) || !secret(id)) {
				want[id] = true
				hidden++
				if !visible(id) {
					gone++
				}
			}
		}
		got := make(map[string]bool)
		for _, n := range trace.Nodes {
			if n.Hidden && n.ID == "" {
				got[n.CausedBy[0]] = true
			}
		}
		if !maps.Equal(got, want) {
			t.Fatalf("%+v: %s; hidden effects are said of %v, and there are some of %v", l.Events, drawn(trace), got, want)
		}
	}
	if hidden < 300 || gone < 30 {
		t.Errorf("only %d events had hidden effects, and %d that were gone", hidden, gone)
	}
}

// TestWalkSaysWhatBecame: nodes have what the page says, and a dead letter of the
// event shows in the group whose it is.
func TestWalkSaysWhatBecame(t *testing.T) {
	l := &linkstest.Links{}
	e := l.Write("a.b", "x", "cause")
	e.TS, e.Key, e.Payload = 5, "k", []byte(`"`+strings.Repeat("é", 100)+`"`)
	l.Write("a.b.dlq", "d1", "x").Payload = []byte(`{"topic":"a.b","offset":1,"group":"g2","reason":"no"}`)
	l.Write("a.b.dlq", "d2", "x").Payload = []byte(`{"topic":"z","offset":1,"group":"g1"}`) // of another topic
	l.Write("a.b.dlq", "d3", "x").Payload = []byte(`[1]`)
	state := func(group, state string) admin.EventGroup {
		return admin.EventGroup{Group: group, InFlight: admin.InFlight{Offset: 1, ID: "x", State: state}}
	}
	l.Became = map[string][]admin.EventGroup{"a.b/x": {state("g1", "done"), state("g2", "done"), state("g3", "leased")}}
	got := walked(t, l, "x", admin.MaxTraceDepth, admin.MaxTraceNodes).Nodes[0]
	want := admin.TraceNode{
		ID: "x", Topic: "a.b", Offset: 1, TS: 5, Key: "k", CausedBy: []string{"cause"}, Preview: `"` + strings.Repeat("é", 79),
		Groups: []admin.EventGroup{state("g1", "done"), state("g2", "dead_lettered"), state("g3", "leased")},
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	l.GroupsFail = errors.New("broken")
	if _, err := causality.Walk(t.Context(), l, l, "x", 1, 1); !errors.Is(err, l.GroupsFail) {
		t.Errorf("groups that fail: %v", err)
	}
}

// TestWalkIsBounded: what is connected with everything ends, at the limits.
func TestWalkIsBounded(t *testing.T) {
	l := &linkstest.Links{}
	var causes []string
	for i := range 64 {
		causes = append(causes, fmt.Sprint("c", i))
	}
	for _, id := range causes {
		l.Write("t", id, causes...)
	}
	trace := walked(t, l, "c0", admin.MaxTraceDepth, 64)
	if len(trace.Nodes) != 64 || len(trace.Edges) != 64*16 || !trace.Truncated {
		t.Errorf("%d nodes, %d edges, truncated %v", len(trace.Nodes), len(trace.Edges), trace.Truncated)
	}
	if l.Looked > 64*3+64 {
		t.Errorf("looked %d times for 64 ids", l.Looked)
	}
}

// TestWalkIsBoundedInBytes: large events, and large stories of what became of them, end a trace as many do.
func TestWalkIsBoundedInBytes(t *testing.T) {
	l := &linkstest.Links{}
	causes := []string{"x"}
	for i := range 60 {
		causes = append(causes, fmt.Sprintf("%064d", i))
	}
	l.Write("t", "x")
	const all = 3000
	for i := range all {
		l.Write("t", fmt.Sprint("e", i), causes...)
	}
	trace := walked(t, l, "x", 1, admin.MaxTraceNodes)
	text, err := json.Marshal(trace.Nodes)
	if n := len(trace.Nodes); n < all/3 || n > all-all/5 || !trace.Truncated || len(text) > admin.MaxTraceBytes || err != nil {
		t.Errorf("%d nodes of %d bytes, truncated %v, %v", n, len(text), trace.Truncated, err)
	}

	l = &linkstest.Links{Became: make(map[string][]admin.EventGroup)}
	attempt := admin.Attempt{Why: "nacked", Reason: strings.Repeat("r", 1000)}
	l.Write("t", "x")
	for i := range 40 {
		l.Write("t", fmt.Sprint("e", i), "x")
		l.Became[fmt.Sprint("t/e", i)] = slices.Repeat([]admin.EventGroup{{Group: "g", InFlight: admin.InFlight{History: slices.Repeat([]admin.Attempt{attempt}, 5)}}}, 50)
	}
	trace = walked(t, l, "x", 1, admin.MaxTraceNodes)
	said := 0
	for _, n := range trace.Nodes {
		if len(n.Groups) > 0 {
			said++
		}
	}
	text, err = json.Marshal(trace.Nodes)
	if len(trace.Nodes) != 41 || said < 20 || said > 35 || !trace.Truncated || len(text) > admin.MaxTraceBytes || err != nil {
		t.Errorf("%d nodes, %d with groups, of %d bytes, truncated %v, %v", len(trace.Nodes), said, len(text), trace.Truncated, err)
	}
}

// TestWalkLeavesTopicsOut: an event that is in more topics than one look finds is said to have more.
func TestWalkLeavesTopicsOut(t *testing.T) {
	l := &linkstest.Links{}
	for i := range admin.MaxPage + 1 {
		l.Write(fmt.Sprint("t", i), "x")
	}
	if trace := walked(t, l, "x", 1, admin.MaxTraceNodes); len(trace.Nodes) != admin.MaxPage || !trace.Truncated {
		t.Errorf("%d nodes, truncated %v", len(trace.Nodes), trace.Truncated)
	}
}

func TestWalkFails(t *testing.T) {
	l := &linkstest.Links{}
	l.Write("t", "x")
	if _, err := causality.Walk(t.Context(), l, l, "none", 1, 1); eventhub.ErrorCode(err) != eventhub.CodeUnknownID {
		t.Errorf("an event nobody knows: %v", err)
	}
	l.Fails = eventhub.Errorf(eventhub.CodeOverloaded, "not now")
	if _, err := causality.Walk(t.Context(), l, l, "x", 1, 1); !errors.Is(err, l.Fails) {
		t.Errorf("lookups that fail: %v", err)
	}
}

// TestPage: a page ends at its limit or where it is large enough, and says whether more
// follows, however few events a lookup returns.
func TestPage(t *testing.T) {
	l := &linkstest.Links{Most: 2}
	for i := range 5 {
		l.Write("t", fmt.Sprint("e", i), "x")
	}
	page := func(after uint64, limit int) string {
		t.Helper()
		events, more, err := causality.Page(t.Context(), l.Effects, "x", eventhub.Place{Topic: "t", Offset: after}, limit)
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		for _, e := range events {
			fmt.Fprint(&b, e.Offset, " ")
		}
		fmt.Fprint(&b, more)
		return b.String()
	}
	for _, tt := range []struct {
		after uint64
		limit int
		want  string
	}{{0, 5, "1 2 3 4 5 false"}, {0, 9, "1 2 3 4 5 false"}, {0, 4, "1 2 3 4 true"}, {0, 1, "1 true"}, {3, 3, "4 5 false"}, {5, 3, "false"}} {
		if got := page(tt.after, tt.limit); got != tt.want {
			t.Errorf("%d events after %d: %s; want %s", tt.limit, tt.after, got, tt.want)
		}
	}
	l.Most = 0
	for i := range l.Events {
		l.Events[i].Payload = []byte(`"` + strings.Repeat("x", causality.PageBytes/2) + `"`)
	}
	if got := page(0, 5); got != "1 2 true" {
		t.Errorf("a page of large events: %s; want 1 2 true", got)
	}
}
