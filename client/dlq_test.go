package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/client"
	"eventhub/hub"
)

// deadLetter has a group of a hub give up n events.
func deadLetter(t *testing.T, h *hub.Hub, topic, group string, n int) {
	t.Helper()
	c := dial(t, h.WSAddr())
	for i := range n {
		if _, err := c.Publish(bounded(t), eventhub.Event{Topic: topic, Key: fmt.Sprint("k", i%2), Payload: fmt.Appendf(nil, `{"n":%d.0}`, i+1)}); err != nil {
			t.Fatal(err)
		}
	}
	got := newCollector(1 << 20)
	sub, err := c.Subscribe(bounded(t), earliest(topic, group), got)
	if err != nil {
		t.Fatal(err)
	}
	s := eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true, Reason: "no"}
	for range n {
		await(t, "an event", got.came)
	}
	for _, lease := range got.leases {
		s.Refs = append(s.Refs, eventhub.Ref{Lease: lease})
	}
	if _, err := sub.Settle(bounded(t), s); err != nil {
		t.Fatal(err)
	}
	if err := sub.Unsubscribe(bounded(t)); err != nil {
		t.Fatal(err)
	}
	letters := newCollector(1 << 20) // which are made after the answer
	if _, err := c.Tail(bounded(t), tailFrom(topic+".dlq"), letters); err != nil {
		t.Fatal(err)
	}
	for range n {
		await(t, "a dead letter", letters.came)
	}
}

// redrivenReceiver hands out what it gets.
type redrivenReceiver chan eventhub.Delivery

func (r redrivenReceiver) Deliver(batch []eventhub.Delivery) int {
	for _, d := range batch {
		d.Record = slices.Clone(d.Record)
		r <- d
	}
	return len(batch)
}

func (redrivenReceiver) Ended(error) {}

// TestRedriver: the API does to dead letters what the engine does.
func TestRedriver(t *testing.T) {
	h := startHub(t, hub.Config{})
	deadLetter(t, h, "a.b", "g", 5)
	adm := adminOf(t, "http://"+h.HTTPAddr())
	topics, err := adm.DeadLetterTopics(bounded(t), "", 10)
	if err != nil || len(topics) != 1 || topics[0].Topic != "a.b" || topics[0].DLQ != "a.b.dlq" || topics[0].Count != 5 || topics[0].Open != 5 || len(topics[0].Groups) != 1 || topics[0].Groups[0].Open != 5 || topics[0].HeadTS == 0 {
		t.Fatalf("the topics are %+v, %v", topics, err)
	}
	list := func(q admin.DeadLetterQuery) (offsets []uint64) {
		t.Helper()
		q.Topic = "a.b"
		if err := adm.DeadLetters(bounded(t), q, func(d *admin.DeadLetter) error {
			offsets = append(offsets, d.Offset)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return offsets
	}
	whole, err := adm.DeadLetter(bounded(t), "a.b", "2")
	if err != nil || whole.Offset != 2 || whole.Event != 2 || len(whole.History) != 1 || whole.History[0].Reason != "no" ||
		!strings.Contains(string(whole.Original.Record), `"payload":{"n":2.0}`) || !strings.Contains(string(whole.JSON), `{"n":2.0}`) {
		t.Fatalf("a dead letter is %+v, %v", whole, err)
	}
	now := time.Now().UnixMilli()
	for _, tt := range []struct {
		q    admin.DeadLetterQuery
		want string
	}{
		{admin.DeadLetterQuery{}, "[1 2 3 4 5]"},
		{admin.DeadLetterQuery{Group: "nobody"}, "[]"},
		{admin.DeadLetterQuery{Offsets: []uint64{4}, IDs: []string{whole.ID}}, "[2 4]"},
		{admin.DeadLetterQuery{FromTS: 1, ToTS: 2}, "[]"},
		{admin.DeadLetterQuery{ToTS: now + 60_000, After: 1, Limit: 2}, "[2 3]"},
		{admin.DeadLetterQuery{Filter: &eventhub.Filter{Key: "k0", CEL: "event.payload.event.payload.n > 1.0"}}, "[3 5]"},
	} {
		if got := fmt.Sprint(list(tt.q)); got != tt.want {
			t.Errorf("%+v lists %s; want %s", tt.q, got, tt.want)
		}
		tt.q.Topic = "a.b.dlq"
		dry, err := adm.Redrive(bounded(t), admin.RedriveQuery{DeadLetterQuery: tt.q})
		var samples []uint64
		for _, d := range dry.Samples {
			samples = append(samples, d.Offset)
		}
		if got := fmt.Sprint(samples); err != nil || dry.Applied || got != tt.want {
			t.Errorf("%+v would redrive %s, %v; want %s", tt.q, got, err, tt.want)
		}
	}
	enough := errors.New("enough")
	if err := adm.DeadLetters(bounded(t), admin.DeadLetterQuery{Topic: "a.b"}, func(*admin.DeadLetter) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("a visit's error became %v", err)
	}

	// At 2 a second it takes two seconds, and progress is reported meanwhile.
	reports := 0
	done, err := adm.Redrive(bounded(t), admin.RedriveQuery{DeadLetterQuery: admin.DeadLetterQuery{Topic: "a.b", Limit: 4}, Apply: true, Rate: 2,
		Progress: func(r admin.RedriveResult) { reports++ }})
	if err != nil || !done.Applied || done.Redriven != 4 || done.Groups["g"] != 4 || done.After != 4 || reports == 0 {
		t.Errorf("redriven: %+v, %v; reported %d times", done, err, reports)
	}
	if got := fmt.Sprint(list(admin.DeadLetterQuery{}), list(admin.DeadLetterQuery{All: true})); got != "[5] [1 2 3 4 5]" {
		t.Errorf("open, and all: %s", got)
	}
	got := make(redrivenReceiver, 10)
	if _, err := dial(t, h.WSAddr()).Subscribe(bounded(t), eventhub.GroupOptions{Topic: "a.b", Group: "g"}, got); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		if d := await(t, "a redriven event", got); d.Redriven != 1 || d.Attempt != 1 {
			t.Errorf("it came as %+v", d)
		}
	}

	first, err := adm.Requeue(bounded(t), "a.b", 5, []byte(`{"n":6}`), "")
	if err != nil || first.Offset != 6 || first.Duplicate {
		t.Fatalf("requeued: %+v, %v", first, err)
	}
	if d := await(t, "the requeued event", got); d.Redriven != 0 || d.ID() != first.ID || d.Offset != 6 {
		t.Errorf("it came as %+v", d)
	}
	if again, err := adm.Requeue(bounded(t), "a.b.dlq", 5, []byte(`{"n":6}`), ""); err != nil || again.ID != first.ID || !again.Duplicate {
		t.Errorf("again: %+v, %v", again, err)
	}
}

// TestRequeueIf: who has not seen what was done is refused.
func TestRequeueIf(t *testing.T) {
	h := startHub(t, hub.Config{})
	deadLetter(t, h, "t", "g", 1)
	adm := adminOf(t, "http://"+h.HTTPAddr())
	for _, step := range []struct {
		marks int
		want  eventhub.Code
	}{{0, ""}, {0, eventhub.CodeConflict}, {1, ""}, {1, eventhub.CodeConflict}, {admin.MaxRedriveMarks, ""}} {
		if _, err := adm.RequeueIf(bounded(t), "t", 1, fmt.Append(nil, time.Now().UnixNano()), step.marks, ""); eventhub.ErrorCode(err) != step.want {
			t.Errorf("with %d marks: %v; want %q", step.marks, err, step.want)
		}
	}
}

// TestRedriverRefusals: the hub's codes, and what needs no hub.
func TestRedriverRefusals(t *testing.T) {
	h := startHub(t, hub.Config{})
	deadLetter(t, h, "t", "g", 1)
	adm := adminOf(t, "http://"+h.HTTPAddr())
	of := func(topic string) admin.DeadLetterQuery { return admin.DeadLetterQuery{Topic: topic} }
	nothing := func(*admin.DeadLetter) error { return nil }
	redrive := func(q admin.RedriveQuery) error {
		_, err := adm.Redrive(bounded(t), q)
		return err
	}
	_, requeued := adm.Requeue(bounded(t), "t", 7, []byte("1"), "")
	_, badly := adm.Requeue(bounded(t), "t", 1, []byte("{"), "")
	_, shown := adm.DeadLetter(bounded(t), "t", "nobody")
	for name, c := range map[string]struct {
		err  error
		code eventhub.Code
	}{
		"list unknown":    {adm.DeadLetters(bounded(t), of("nope"), nothing), eventhub.CodeUnknownID},
		"list bad topic":  {adm.DeadLetters(bounded(t), of("a b"), nothing), eventhub.CodeBadTopic},
		"list by tag":     {adm.DeadLetters(bounded(t), admin.DeadLetterQuery{Topic: "t", Filter: &eventhub.Filter{Tags: []string{"x"}}}, nothing), eventhub.CodeUnsupportedOp},
		"redrive unknown": {redrive(admin.RedriveQuery{DeadLetterQuery: of("nope"), Apply: true}), eventhub.CodeUnknownID},
		"redrive fast":    {redrive(admin.RedriveQuery{DeadLetterQuery: of("t"), Apply: true, Rate: 1_000_000}), eventhub.CodeBadRequest},
		"redrive bad":     {redrive(admin.RedriveQuery{DeadLetterQuery: of("t/x"), Apply: true}), eventhub.CodeBadTopic},
		"requeue unknown": {requeued, eventhub.CodeUnknownID},
		"requeue badly":   {badly, eventhub.CodeBadJSON},
		"show unknown":    {shown, eventhub.CodeUnknownID},
	} {
		if got := eventhub.ErrorCode(c.err); got != c.code {
			t.Errorf("%s: %v; want %s", name, c.err, c.code)
		}
	}
}

// TestRedrivesThatAreNotWhole: whatever the answer is, what it reported is not lost.
func TestRedrivesThatAreNotWhole(t *testing.T) {
	const progress = `{"progress":{"topic":"t","applied":true,"matched":7,"redriven":6,"skipped":{"gone":1},"after":9}}` + "\n"
	for _, tt := range []struct {
		name, answer, says string
		status             int
		code               eventhub.Code
		redriven           int
		after              uint64
	}{
		{"cut", progress, "unexpected EOF", 200, eventhub.CodeInternal, 6, 9},
		{"no redrive", progress + "{}\n", "is \"{}\"", 200, eventhub.CodeInternal, 6, 9},
		{"no JSON", progress + "oops\n", "oops", 200, eventhub.CodeInternal, 6, 9},
		{"a problem after it", progress + `{"status":503,"detail":"full","code":"overloaded","topic":"t","applied":true,"matched":9,"redriven":8,"after":11}` + "\n", "full", 200, eventhub.CodeOverloaded, 8, 11},
		{"a problem that says nothing", progress + `{"status":500,"detail":"oh","code":"internal"}` + "\n", "oh", 200, eventhub.CodeInternal, 6, 9},
		{"a problem", `{"status":503,"detail":"full","code":"overloaded","topic":"t","applied":true,"matched":9,"redriven":8,"after":11}`, "full", 503, eventhub.CodeOverloaded, 8, 11},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/x-ndjson")
				if tt.status != 200 {
					w.Header().Set("Content-Type", "application/problem+json")
				}
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, tt.answer)
			}))
			defer s.Close()
			adm, err := client.NewAdmin(s.URL)
			if err != nil {
				t.Fatal(err)
			}
			defer adm.Close()
			got, err := adm.Redrive(t.Context(), admin.RedriveQuery{DeadLetterQuery: admin.DeadLetterQuery{Topic: "t"}, Apply: true})
			if err == nil || !strings.Contains(err.Error(), tt.says) || eventhub.ErrorCode(err) != tt.code || got.Redriven != tt.redriven || got.After != tt.after {
				t.Errorf("%+v, %v; want %d up to %d, and %s with %q", got, err, tt.redriven, tt.after, tt.code, tt.says)
			}
		})
	}
}

// TestInterruptedRedrive ends, on both sides, and says how far it was.
func TestInterruptedRedrive(t *testing.T) {
	h := startHub(t, hub.Config{})
	deadLetter(t, h, "t", "g", 50)
	adm := adminOf(t, "http://"+h.HTTPAddr())
	ctx, cancel := context.WithCancel(t.Context())
	got, err := adm.Redrive(ctx, admin.RedriveQuery{DeadLetterQuery: admin.DeadLetterQuery{Topic: "t"}, Apply: true, Rate: 1,
		Progress: func(r admin.RedriveResult) {
			if r.Redriven > 0 {
				cancel()
			}
		}})
	if !errors.Is(err, context.Canceled) || got.Redriven == 0 || got.Redriven > 10 || got.After != uint64(got.Redriven) {
		t.Errorf("%+v, %v", got, err)
	}
	// It goes on from there.
	rest, err := adm.Redrive(t.Context(), admin.RedriveQuery{DeadLetterQuery: admin.DeadLetterQuery{Topic: "t"}, Apply: true})
	info, infoErr := adm.Group(bounded(t), "t", "g")
	if err != nil || infoErr != nil || rest.Redriven+got.Redriven > 50 || rest.Redriven < 40 || info.Redriven != 50 {
		t.Errorf("%+v, %v; the group is %+v, %v", rest, err, info, infoErr)
	}
}
