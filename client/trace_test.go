package client_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus"
	"eventhub/gateway/rest"
	"eventhub/store/memory"
)

// traceable is an engine with events that cause one another, and its API.
func traceable(t *testing.T) (*bus.Bus, string) {
	t.Helper()
	store := memory.Open(memory.Options{})
	engine, err := bus.New(bus.Options{Store: store})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := engine.Close(); err != nil {
			t.Error(err)
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	cart := map[string]string{eventhub.CorrelationHeader: "cart 1&2"}
	events := []eventhub.Event{
		{Topic: "a", ID: "..", Payload: []byte(`"<1>"`)},
		{Topic: "b.c", ID: "..", Payload: []byte(`1.0`), CausedBy: []string{"gone"}},
	}
	for i := range 7 {
		events = append(events, eventhub.Event{Topic: fmt.Sprint("t", i%2), ID: fmt.Sprint("e", i), CausedBy: []string{".."}, Headers: cart, Payload: []byte(`null`)})
	}
	if _, err := engine.Publish(t.Context(), events...); err != nil {
		t.Fatal(err)
	}
	return engine, serve(t, gateway(t, rest.Access{Inspector: engine, History: engine}, ""))
}

// TestLinksSayWhatTheHubSays: what is found through HTTP is what the engine finds.
func TestLinksSayWhatTheHubSays(t *testing.T) {
	engine, url := traceable(t)
	adm := newAdmin(t, url)
	ctx := t.Context()
	type found = []admin.Found
	check := func(what string, want found, wantErr error, got found, err error) {
		t.Helper()
		if diff := cmp.Diff(want, got); diff != "" || err != nil || wantErr != nil {
			t.Errorf("%s: %v, %v (-want +got):\n%s", what, err, wantErr, diff)
		}
	}
	want, wantErr := engine.Find(ctx, "..", 9)
	got, err := adm.Find(ctx, "..", 9)
	check("find", want, wantErr, got, err)
	if len(got) != 2 {
		t.Errorf("found %d events", len(got))
	}
	for _, after := range []eventhub.Place{{}, {Topic: "t0", Offset: 2}, {Topic: "t1", Offset: 3}} {
		for _, limit := range []int{1, 4, 9} {
			what := fmt.Sprintf("at most %d after %+v", limit, after)
			want, wantErr := engine.Effects(ctx, "..", after, limit)
			got, err := adm.Effects(ctx, "..", after, limit)
			if len(want) == 0 {
				want = nil
			}
			check("effects, "+what, want, wantErr, got, err)
			want, wantErr = engine.Correlated(ctx, "cart 1&2", after, limit)
			got, err = adm.Correlated(ctx, "cart 1&2", after, limit)
			if len(want) == 0 {
				want = nil
			}
			check("correlated, "+what, want, wantErr, got, err)
		}
	}
	trace, err := adm.Trace(ctx, "..", admin.MaxTraceDepth, admin.MaxTraceNodes)
	if err != nil || len(trace.Nodes) != 10 || len(trace.Edges) != 15 || trace.Truncated {
		t.Errorf("the trace is %+v, %v", trace, err)
	}
	if trace, err := adm.Trace(ctx, "e1", 1, 2); err != nil || len(trace.Nodes) != 2 || !trace.Truncated {
		t.Errorf("a short trace is %+v, %v", trace, err)
	}
	for what, code := range map[string]eventhub.Code{"none": eventhub.CodeUnknownID, "a b": eventhub.CodeBadEvent} {
		_, err := adm.Find(ctx, what, 1)
		_, traceErr := adm.Trace(ctx, what, 1, 1)
		if eventhub.ErrorCode(err) != code || eventhub.ErrorCode(traceErr) != code {
			t.Errorf("%q: %v and %v; want %s", what, err, traceErr, code)
		}
	}
	if _, err := adm.Effects(ctx, "..", eventhub.Place{}, 1001); eventhub.ErrorCode(err) != eventhub.CodeBadRequest {
		t.Errorf("a page too long: %v", err)
	}
}

// TestShortPagesAreFilled: a hub ends a page early where events are large.
func TestShortPagesAreFilled(t *testing.T) {
	var asked []string
	event := func(offset int) string {
		return fmt.Sprintf(`{"offset":%d,"ts":1723140000000,"id":"e%d","topic":"t","payload":1}`, offset, offset)
	}
	pages := []string{
		`{"events":[` + event(3) + `],"next":{"after_topic":"t","after_offset":3}}`,
		`{"events":[` + event(4) + `,` + event(5) + `],"next":{"after_topic":"t","after_offset":5}}`,
		`{"events":[` + event(6) + `]}`,
	}
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, pages[len(asked)])
		asked = append(asked, r.URL.RawQuery)
	})
	events, err := newAdmin(t, serve(t, h)).Effects(t.Context(), "x", eventhub.Place{Topic: "t", Offset: 2}, 5)
	if err != nil || len(events) != 4 || events[3].Offset != 6 || events[3].Topic != "t" {
		t.Errorf("%d events, %v", len(events), err)
	}
	want := []string{"after_offset=2&after_topic=t&caused_by=x&limit=5", "after_offset=3&after_topic=t&caused_by=x&limit=4", "after_offset=5&after_topic=t&caused_by=x&limit=2"}
	if !slices.Equal(asked, want) {
		t.Errorf("asked for %q; want %q", asked, want)
	}
}

// TestStrangeTraces: answers that no hub gives are no events and no traces.
func TestStrangeTraces(t *testing.T) {
	const event = `{"offset":1,"ts":1723140000000,"id":"x","topic":"t","payload":1}`
	for _, answer := range []string{
		`{}`, `{"events":[{"id":"x"}]}`, `{"events":["x"]}`,
		`{"events":[` + strings.Replace(event, `"x"`, `"y"`, 1) + `]}`, // another id; and after the place it is none
		`{"id":"x","nodes":[]}`, `{"id":"y","nodes":[{"id":"y"}]}`,
		`{"id":"x","nodes":[{"id":"x"}],"edges":[{"cause":0,"effect":1}]}`,
		`{"id":"x","nodes":[{"id":"x"}],"edges":[{"cause":-1,"effect":0}]}`,
	} {
		adm := newAdmin(t, serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, answer)
		})))
		if events, err := adm.Find(t.Context(), "x", 5); err == nil || events != nil {
			t.Errorf("%s: found %v, %v", answer, events, err)
		}
		if events, err := adm.Effects(t.Context(), "x", eventhub.Place{Topic: "t", Offset: 1}, 5); err == nil || events != nil {
			t.Errorf("%s: effects %v, %v", answer, events, err)
		}
		if trace, err := adm.Trace(t.Context(), "x", 5, 5); err == nil {
			t.Errorf("%s: traced %v", answer, trace)
		}
	}
}
