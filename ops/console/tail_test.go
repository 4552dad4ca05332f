package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/bubble"
	"eventhub/internal/measure"
	"eventhub/internal/record"
)

// river is a Tailer that a test lets flow.
type river struct {
	eventhub.Subscription
	opts    []eventhub.TailOptions
	to      eventhub.Receiver
	dropped int
	err     error
}

func (r *river) Tail(_ context.Context, opts eventhub.TailOptions, to eventhub.Receiver) (eventhub.Subscription, error) {
	r.opts = append(r.opts, opts)
	r.to = to
	return r, r.err
}

func (r *river) Drop(int) { r.dropped++ }

// flow delivers events from an offset on, as many at once.
func (r *river) flow(t *testing.T, from, n int, payload string) {
	t.Helper()
	rec, err := record.Append(nil, &eventhub.Event{Topic: "orders", ID: "e", Key: "k", Payload: []byte(payload)})
	if err != nil {
		t.Fatal(err)
	}
	batch := make([]eventhub.Delivery, n)
	for i := range batch {
		batch[i] = eventhub.Delivery{Topic: "orders", Offset: uint64(from + i), Record: rec}
	}
	if taken := r.to.Deliver(batch); taken != n {
		t.Errorf("%d of %d were taken", taken, n)
	}
}

func tailing(r *river) Config {
	cfg := config()
	in := &rooms{topics: map[string]admin.TopicInfo{"orders": {Topic: "orders", Head: 7}}}
	cfg.Admit = func(*http.Request) (Access, error) { return Access{Name: "ops", Inspector: in, Tailer: r}, nil }
	return cfg
}

// TestTail: a live tail comes once a second, the newest events of what is more than a page can show, begins at
// the end, goes on where another stream stopped, and is given up with the page.
func TestTail(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := &river{}
		_, mux := open(t, tailing(r))
		page := follow(t, mux, "view=tail&topic=orders&filter=true&key=k")
		next := func() (v tailView) {
			t.Helper()
			m := page.message()
			if m.Problem != nil {
				t.Fatalf("%+v", m.Problem)
			}
			if err := json.Unmarshal(m.View, &v); err != nil {
				t.Fatal(err)
			}
			return v
		}
		if v := next(); v.Head != 7 || v.Tail.After != 7 || len(v.Tail.Events) != 0 {
			t.Errorf("%+v", v)
		}
		if o := r.opts[0]; o.Topic != "orders" || o.Start != eventhub.FromOffset(8) || o.Filter.CEL != "true" || o.Filter.Key != "k" || o.Peer.Name != "ops" {
			t.Errorf("the tail is %+v", o)
		}
		r.flow(t, 8, 2, `{"a":1}`)
		v := next()
		want := tailRow{Topic: "orders", Offset: 8, TS: v.Tail.Events[0].TS, ID: "e", Key: "k", Preview: `{"a":1}`}
		if len(v.Tail.Events) != 2 || v.Tail.Events[0] != want || v.Tail.Events[1].Offset != 9 || v.Tail.Left != 0 || v.Tail.After != 9 {
			t.Errorf("%+v", v.Tail)
		}
		if v := next(); len(v.Tail.Events) != 0 || v.Tail.After != 9 {
			t.Errorf("nothing came: %+v", v.Tail)
		}
		r.flow(t, 10, 950, `1`)
		r.flow(t, 960, 50, `2`)
		v = next()
		if n := len(v.Tail.Events); n != tailRows || v.Tail.Left != 1000-tailRows || v.Tail.Events[0].Offset != 910 || v.Tail.Events[n-1].Offset != 1009 || v.Tail.Events[n-1].Preview != "2" {
			t.Errorf("%d events, %d left, %+v", n, v.Tail.Left, v.Tail.Events[0])
		}
		page.close()
		<-page.ended
		if r.dropped != 1 || len(r.opts) != 1 {
			t.Errorf("dropped %d times, began %d times", r.dropped, len(r.opts))
		}
		page = follow(t, mux, "view=tail&topic=orders&after=5")
		next()
		if o := r.opts[1]; o.Start != eventhub.FromOffset(6) || o.Filter != nil {
			t.Errorf("it goes on at %+v", o.Start)
		}
		r.to.Ended(eventhub.Errorf(eventhub.CodeShuttingDown, "the hub stops"))
		if m := page.message(); m.Problem == nil || m.Problem.Code != eventhub.CodeShuttingDown || r.dropped != 2 {
			t.Errorf("%+v, dropped %d times", m.Problem, r.dropped)
		}
		next() // it has begun again
		if o := r.opts[2]; o.Start != eventhub.FromOffset(6) {
			t.Errorf("it goes on at %+v", o.Start)
		}
		page.close()
		<-page.ended
	})
}

// TestTailIsBounded: whatever comes, a message is within its bounds, and large events are not kept.
func TestTailIsBounded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := &river{}
		_, mux := open(t, tailing(r))
		page := follow(t, mux, "view=tail&topic=orders")
		page.message()
		for _, payload := range []string{`"` + strings.Repeat("<é\\u0000", 200) + `"`, `"` + strings.Repeat("x", 1<<20) + `"`, `null`} {
			r.flow(t, 8, 500, payload)
			_, data := page.next()
			var m struct{ View tailView }
			if err := json.Unmarshal([]byte(data), &m); err != nil || len(data) > MaxMessage || len(m.View.Tail.Events) < 30 || m.View.Tail.Left+uint64(len(m.View.Tail.Events)) != 500 {
				t.Errorf("%.20s: %d bytes, %d events, %d left, %v", payload, len(data), len(m.View.Tail.Events), m.View.Tail.Left, err)
			}
		}
		kept := 0
		for i := range r.to.(*tail).slots {
			kept += cap(r.to.(*tail).slots[i].record)
		}
		if kept > 2*tailRows*keptRecord {
			t.Errorf("%d bytes are kept", kept)
		}
		page.close()
		<-page.ended
	})
}

// TestTailRefused: what can be no tail is refused at once, and a filter or rights in the messages.
func TestTailRefused(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := &river{err: eventhub.Errorf(eventhub.CodeForbidden, "no")}
		_, mux := open(t, tailing(r))
		for _, query := range []string{"view=tail", "view=tail&topic=a..b", "view=tail&topic=orders&after=-1", "view=tail&topic=orders&after=x"} {
			if answer := do(mux, "GET", "/console/live?"+query); answer.StatusCode != http.StatusForbidden {
				t.Errorf("%s: %d", query, answer.StatusCode)
			}
		}
		for query, code := range map[string]eventhub.Code{"topic=orders": eventhub.CodeForbidden, "topic=none": eventhub.CodeUnknownID, "topic=orders&filter=" + strings.Repeat("x", eventhub.MaxFilterBytes+1): eventhub.CodeBadRequest} {
			page := follow(t, mux, "view=tail&"+query)
			if m := page.message(); m.Problem == nil || m.Problem.Code != code {
				t.Errorf("%.40s: %+v", query, m.Problem)
			}
			page.close()
			<-page.ended
		}
		if r.dropped != 0 {
			t.Errorf("what never began was dropped %d times", r.dropped)
		}
	})
}

type closes struct{}

func (closes) CloseConnection(context.Context, string) error { return errors.New("nobody closes here") }

// peers shows connections as a test says.
type peers struct {
	closes
	list []admin.ConnectionInfo
	err  error
}

func (p *peers) Connections(_ context.Context, after string, limit int) ([]admin.ConnectionInfo, error) {
	from := 0
	for i := range p.list {
		if p.list[i].ID == after {
			from = i + 1
		}
	}
	return p.list[from:min(from+limit, len(p.list))], p.err
}

// TestConnections: a window of them, live, with those that have ended; for who may see them.
func TestConnections(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		now := time.Now()
		gateway := measure.Gateway{Connections: 120}
		p := &peers{}
		for i := range 120 {
			p.list = append(p.list, admin.ConnectionInfo{ID: fmt.Sprint("c", i), Client: strings.Repeat("<", 5000), Name: strings.Repeat("é", 5000), Remote: "127.0.0.1:1"})
		}
		for i := range measure.MaxEnded + 3 {
			gateway.Ended = append(gateway.Ended, measure.Ended{ID: fmt.Sprint("e", i), Client: strings.Repeat("<", 5000), Name: "n", At: now, Since: now.Add(-time.Second), Code: 1001, Why: "because"})
		}
		cfg := config()
		cfg.Gateway = func() measure.Gateway { return gateway }
		cfg.Admit = func(*http.Request) (Access, error) { return Access{Inspector: &rooms{}, Connections: p}, nil }
		_, mux := open(t, cfg)
		for after, want := range map[string]struct {
			first, next string
			n           int
		}{"": {"c0", "c49", 50}, "c49": {"c50", "c99", 50}, "c99": {"c100", "", 20}} {
			page := follow(t, mux, "view=connections&after="+after)
			_, data := page.next()
			var m struct{ View connectionsView }
			if err := json.Unmarshal([]byte(data), &m); err != nil {
				t.Fatal(err)
			}
			v := m.View
			if len(data) > MaxMessage || v.Total != 120 || len(v.Connections) != want.n || v.Connections[0].ID != want.first || v.Next != want.next || len(v.Ended) != maxEnded || v.Ended[0].ID != "e0" || v.Ended[0].EndedTS-v.Ended[0].SinceTS != 1000 || v.Ended[0].Why != "because" {
				t.Errorf("after %q: %d bytes, %d of %d, next %q, %d ended, %+v", after, len(data), len(v.Connections), v.Total, v.Next, len(v.Ended), v.Ended[0])
			}
			page.close()
			<-page.ended
		}
		p.err = eventhub.Errorf(eventhub.CodeForbidden, "no")
		page := follow(t, mux, "view=connections")
		if m := page.message(); m.Problem == nil || m.Problem.Code != eventhub.CodeForbidden || m.View != nil {
			t.Errorf("who may not see them is told %+v", m.Problem)
		}
		page.close()
		<-page.ended
	})
}

// TestTailOfATopicWithoutEvents: it goes on where it stopped, which is before the first event.
func TestTailOfATopicWithoutEvents(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := &river{}
		cfg := tailing(r)
		in := &rooms{topics: map[string]admin.TopicInfo{"orders": {Topic: "orders"}}}
		cfg.Admit = func(*http.Request) (Access, error) { return Access{Name: "ops", Inspector: in, Tailer: r}, nil }
		_, mux := open(t, cfg)
		for _, query := range []string{"view=tail&topic=orders", "view=tail&topic=orders&after=0"} {
			page := follow(t, mux, query)
			page.message()
			page.close()
			<-page.ended
			in.topics["orders"] = admin.TopicInfo{Topic: "orders", Head: 3}
		}
		for i, o := range r.opts {
			if o.Start != eventhub.FromOffset(1) {
				t.Errorf("the tail %d starts at %+v", i, o.Start)
			}
		}
	})
}
