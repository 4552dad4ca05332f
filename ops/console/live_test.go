package console

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/bubble"
	"eventhub/internal/measure"
)

// rooms is an Inspector over what a test says.
type rooms struct {
	admin.Inspector
	groups map[name]admin.GroupInfo
	flying map[name][]admin.InFlight
	topics map[string]admin.TopicInfo
	asked  atomic.Int64 // groups
}

func (r *rooms) Topic(_ context.Context, topic string) (admin.TopicInfo, error) {
	t, ok := r.topics[topic]
	if !ok {
		return t, eventhub.Errorf(eventhub.CodeUnknownID, "there is no topic %q", topic)
	}
	return t, nil
}

func (r *rooms) Group(_ context.Context, topic, group string) (admin.GroupInfo, error) {
	r.asked.Add(1)
	g, ok := r.groups[name{topic, group}]
	if !ok {
		return g, eventhub.Errorf(eventhub.CodeNotSubscribed, "there is no group %q in topic %q", group, topic)
	}
	return g, nil
}

func (r *rooms) InFlight(_ context.Context, topic, group string, limit int) ([]admin.InFlight, error) {
	list := r.flying[name{topic, group}]
	return list[:min(limit, len(list))], nil
}

// pipe is a response that a test reads while it is written.
type pipe struct {
	header http.Header
	status int
	*io.PipeWriter
}

func (p *pipe) Header() http.Header  { return p.header }
func (p *pipe) WriteHeader(code int) { p.status = code }
func (p *pipe) Flush()               {}

// reader is an open page.
type reader struct {
	t     *testing.T
	lines *bufio.Reader
	close context.CancelFunc
	ended chan struct{}
}

// follow opens a page.
func follow(t *testing.T, h http.Handler, query string) *reader {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	out, in := io.Pipe()
	r := &reader{t: t, lines: bufio.NewReaderSize(out, 1<<20), close: func() { cancel(); out.Close() }, ended: make(chan struct{})}
	go func() {
		defer close(r.ended)
		defer in.Close()
		h.ServeHTTP(&pipe{header: http.Header{}, PipeWriter: in}, httptest.NewRequest("GET", "/console/live?"+query, nil).WithContext(ctx))
	}()
	return r
}

// next returns the next event of a page, "" at the end.
func (r *reader) next() (event, data string) {
	r.t.Helper()
	line := func() string {
		text, err := r.lines.ReadString('\n')
		if err != nil {
			return ""
		}
		return strings.TrimSuffix(text, "\n")
	}
	first := line()
	if first == "" {
		return "", ""
	}
	second := line()
	if line() != "" {
		r.t.Fatal("an event has a third line")
	}
	return strings.TrimPrefix(first, "event: "), strings.TrimPrefix(second, "data: ")
}

// seen is a message as a page reads it.
type seen struct {
	message
	View json.RawMessage `json:"view"`
}

func (r *reader) message() (m seen) {
	r.t.Helper()
	event, data := r.next()
	if event != "live" {
		r.t.Fatalf("the event is %q %s", event, data)
	}
	if err := json.Unmarshal([]byte(data), &m); err != nil {
		r.t.Fatal(err)
	}
	return m
}

func group(topic, group string, lag uint64) measure.Group {
	g := measure.NewGroup(topic, group)
	g.Lag = lag
	return g
}

// TestStream: a message at once and one a second; rates are counted from the one before.
func TestStream(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var turn uint64
		cfg := config()
		in := &rooms{}
		cfg.Admit = func(*http.Request) (Access, error) { return Access{Name: "ops", Inspector: in}, nil }
		cfg.Engine = func(context.Context) (measure.Engine, error) {
			turn++
			g := group("orders", "billing", 7)
			g.Members, g.Delivered, g.Acked = 1, 100*turn, 50*turn
			for range 10 * turn {
				g.Latency.Observe(3)
			}
			return measure.Engine{FullIn: -1, Topics: []measure.Topic{{Topic: "orders", Events: 200 * turn}}, Groups: []measure.Group{g}}, nil
		}
		_, mux := open(t, cfg)
		page := follow(t, mux, "")
		first := page.message()
		if first.Totals == nil || first.Totals.Published != nil || first.Totals.Lag != 7 || first.Name != "ops" || first.Version != "v9" {
			t.Errorf("the first message is %+v", first)
		}
		began := time.Now()
		second := page.message()
		if took := time.Since(began); took != Tick {
			t.Errorf("the second message came after %s", took)
		}
		tt := second.Totals
		if *tt.Published != 200 || *tt.Delivered != 100 || *tt.Acked != 50 || *tt.P50 != 5 || *tt.P99 != 5 {
			t.Errorf("rates are %v %v %v, quantiles %v %v", *tt.Published, *tt.Delivered, *tt.Acked, *tt.P50, *tt.P99)
		}
		page.close()
		<-page.ended
	})
}

// TestPagesShareMeasurements: many pages cost one measurement a second, and none costs none.
func TestPagesShareMeasurements(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var measured atomic.Int64
		cfg := config()
		cfg.Engine = func(context.Context) (measure.Engine, error) {
			measured.Add(1)
			return measure.Engine{FullIn: -1}, nil
		}
		_, mux := open(t, cfg)
		var pages []*reader
		for range 10 {
			pages = append(pages, follow(t, mux, ""))
		}
		for range 5 {
			for _, p := range pages {
				p.message()
			}
		}
		if got := measured.Load(); got != 5 {
			t.Errorf("five seconds of ten pages took %d measurements", got)
		}
		for _, p := range pages {
			p.close()
			<-p.ended
		}
		time.Sleep(time.Minute)
		if got := measured.Load(); got != 5 {
			t.Errorf("after the pages were closed %d more were made", got-5)
		}
	})
}

// TestStreamsEnd: with the token, when it is taken back, and with the hub; more than there may be are
// refused.
func TestStreamsEnd(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		access := Access{Expires: time.Now().Add(2500 * time.Millisecond)}
		cfg := config()
		cfg.Admit = func(*http.Request) (Access, error) { return access, nil }
		c, mux := open(t, cfg)
		last := func(page *reader) (messages int, event, data string) {
			for {
				if event, data = page.next(); event != "live" {
					<-page.ended
					return messages, event, data
				}
				messages++
			}
		}
		if n, event, data := last(follow(t, mux, "")); n != 3 || event != "ended" || !strings.Contains(data, "expired") {
			t.Errorf("a page of a token of 2.5 s: %d messages, then %q %s", n, event, data)
		}
		revoked, revoke := context.WithCancel(context.Background())
		access = Access{Revoked: revoked}
		page := follow(t, mux, "")
		page.message()
		revoke()
		if _, event, data := last(page); event != "ended" || !strings.Contains(data, string(eventhub.CodeBadToken)) {
			t.Errorf("a token that was taken back: %q %s", event, data)
		}
		access = Access{}
		pages := make([]*reader, MaxStreams)
		for i := range pages {
			pages[i] = follow(t, mux, "")
			pages[i].message()
		}
		if r := do(mux, "GET", "/console/live"); !strings.Contains(body(t, r), string(eventhub.CodeOverloaded)) {
			t.Error("one page too many was served")
		}
		c.Stop()
		for _, p := range pages {
			if _, event, _ := last(p); event != "" {
				t.Errorf("the hub stops: %q", event)
			}
		}
	})
}

// TestRefusals: who is not let in gets neither stream nor rights; a view that there is not is refused.
func TestRefusals(t *testing.T) {
	cfg := config()
	_, mux := open(t, cfg)
	for _, query := range []string{"view=none", "view=groups&sort=x", "view=groups&from=-1", "view=groups&rows=101", "view=group&topic=a", "view=group&group=g", "view=topic", "view=topics&topic=a..b", "view=topics" + strings.Repeat("&topic=a", maxNames+1)} {
		if r := do(mux, "GET", "/console/live?"+query); r.StatusCode != 403 || !strings.HasPrefix(body(t, r), "bad_") {
			t.Errorf("%s: %d", query, r.StatusCode)
		}
	}
	cfg.Admit = func(*http.Request) (Access, error) {
		return Access{}, eventhub.Errorf(eventhub.CodeNoToken, "a token is needed")
	}
	_, mux = open(t, cfg)
	for _, path := range []string{"/console/live", "/console/rights"} {
		if r := do(mux, "GET", path); r.StatusCode != 403 || !strings.HasPrefix(body(t, r), "no_token") {
			t.Errorf("%s: %d", path, r.StatusCode)
		}
	}
}

func TestRights(t *testing.T) {
	cfg := config()
	cfg.Admit = func(*http.Request) (Access, error) {
		return Access{Name: "reader", Expires: time.UnixMilli(77), May: func(topic string) Permitted { return Permitted{Read: topic == "orders"} }}, nil
	}
	_, mux := open(t, cfg)
	for query, want := range map[string]string{
		"":              `{"name":"reader","version":"v9","expires_ts":77,"publish":false,"subscribe":false,"read":false,"admin":false}`,
		"?topic=orders": `{"name":"reader","version":"v9","expires_ts":77,"publish":false,"subscribe":false,"read":true,"admin":false}`,
	} {
		if got := body(t, do(mux, "GET", "/console/rights"+query)); strings.TrimSpace(got) != want {
			t.Errorf("%q: %s; want %s", query, got, want)
		}
	}
	if r := do(mux, "GET", "/console/rights?topic=a..b"); r.StatusCode != 403 {
		t.Errorf("a name that is none: %d", r.StatusCode)
	}
}

// TestOnlyWhatMayBeSeen: totals, what is wrong and lists leave out topics that do not show.
func TestOnlyWhatMayBeSeen(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		cfg := config()
		in := &rooms{groups: map[name]admin.GroupInfo{}}
		for _, topic := range []string{"open", "secret"} {
			in.groups[name{topic, "g"}] = admin.GroupInfo{Topic: topic, Group: "g", Lag: 5, BlockedBy: &admin.Blocked{Kind: "no_members"}}
		}
		cfg.Admit = func(*http.Request) (Access, error) {
			return Access{Inspector: in, Shows: func(topic string) bool { return topic == "open" }}, nil
		}
		cfg.Engine = func(context.Context) (measure.Engine, error) {
			open, secret := group("open", "g", 5), group("secret", "g", 50)
			secret.OpenLetters = 9
			return measure.Engine{FullIn: -1, Topics: []measure.Topic{{Topic: "open", Events: 1}, {Topic: "secret", Events: 10}}, Groups: []measure.Group{open, secret}}, nil
		}
		_, mux := open(t, cfg)
		for query, want := range map[string]string{"": `"no_members"`, "view=groups": `"total":1,`} {
			page := follow(t, mux, query)
			_, data := page.next()
			var m message
			if err := json.Unmarshal([]byte(data), &m); err != nil {
				t.Fatal(err)
			}
			if tt := m.Totals; tt.Lag != 5 || tt.Topics != 1 || tt.Groups != 1 || tt.Letters != 0 {
				t.Errorf("%q: the totals are %+v", query, *tt)
			}
			if strings.Contains(data, "secret") || !strings.Contains(data, `"lag":5,`) || !strings.Contains(data, want) {
				t.Errorf("%q: the message is %s", query, data)
			}
			page.close()
			<-page.ended
		}
	})
}

// TestMessagesAreBounded: ten thousand topics with a stuck group each, whose names and texts are as
// long as they may be, make a message of no more than MaxMessage, and few questions.
func TestMessagesAreBounded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const many = 10_000
		long := strings.Repeat("<b>\u00fc", 400)
		in := &rooms{groups: map[name]admin.GroupInfo{}, flying: map[name][]admin.InFlight{}}
		engine := measure.Engine{FullIn: -1}
		peer := &eventhub.Peer{Transport: "ws", Name: long, Client: long}
		for i := range many {
			topic, g := fmt.Sprintf("t%05d.%s", i, strings.Repeat("x", 220)), strings.Repeat("g", eventhub.MaxGroupBytes)
			engine.Topics = append(engine.Topics, measure.Topic{Topic: topic, Events: 1})
			counted := group(topic, g, uint64(i+1))
			counted.OpenLetters, counted.Waiting = 1, 1
			engine.Groups = append(engine.Groups, counted)
			info := admin.GroupInfo{Topic: topic, Group: g, Lag: uint64(i + 1), MaxAttempts: 5, BlockedBy: &admin.Blocked{Kind: "key", Key: long, State: "waiting", Member: peer}}
			var flying []admin.InFlight
			for offset := range 20 {
				history := []admin.Attempt{{Attempt: 1, Member: peer, Reason: long}, {Attempt: 2, Member: peer, Reason: long}}
				flying = append(flying, admin.InFlight{Offset: uint64(offset), ID: strings.Repeat("i", 64), Attempt: 3, State: "leased", Member: peer, History: history})
			}
			for range 200 {
				info.Members = append(info.Members, admin.MemberInfo{Peer: *peer})
			}
			in.groups[name{topic, g}], in.flying[name{topic, g}] = info, flying
		}
		cfg := config()
		cfg.Admit = func(*http.Request) (Access, error) { return Access{Inspector: in}, nil }
		cfg.Engine = func(context.Context) (measure.Engine, error) { return engine, nil }
		_, mux := open(t, cfg)
		last := engine.Groups[many-1]
		for _, query := range []string{"", "view=groups&rows=100", "view=group&topic=" + last.Topic + "&group=" + last.Group} {
			in.asked.Store(0)
			page := follow(t, mux, query)
			_, data := page.next()
			t.Logf("%.20q: %d bytes", query, len(data))
			if len(data) > MaxMessage-64 {
				t.Errorf("a message of %.20q has %d bytes", query, len(data))
			}
			var m message
			if err := json.Unmarshal([]byte(data), &m); err != nil || query == "" && (m.WrongN != 2*many || len(m.Wrong) < 10 || len(m.Wrong) > maxWrong) || query != "" && m.View == nil {
				t.Errorf("%.20q: %v: %d of %d are said to be wrong; the problem is %+v", query, err, len(m.Wrong), m.WrongN, m.Problem)
			}
			if got := in.asked.Load(); got > maxCandidates+1 {
				t.Errorf("%d groups were asked for", got)
			}
			page.close()
			<-page.ended
		}
	})
}

// TestWindow: the list of groups is sorted, searched and cut by the hub.
func TestWindow(t *testing.T) {
	cfg := config()
	cfg.Admit = func(*http.Request) (Access, error) { return Access{Inspector: &rooms{}}, nil }
	cfg.Engine = func(context.Context) (measure.Engine, error) {
		tail := group("b", "", 0) // of live tails
		one, two, three := group("a", "one", 1), group("b", "two", 9), group("c", "Three", 5)
		one.Members, two.OpenLetters, three.InFlight = 3, 4, map[string]int{"ws": 2}
		return measure.Engine{FullIn: -1, Groups: []measure.Group{tail, one, two, three}}, nil
	}
	for query, want := range map[string]string{
		"": "3: b/two c/Three a/one", "sort=name": "3: a/one b/two c/Three", "sort=members": "3: a/one b/two c/Three",
		"sort=letters": "3: b/two a/one c/Three", "sort=flight": "3: c/Three a/one b/two", "search=T": "2: b/two c/Three",
		"search=two+b": "1: b/two", "search=x": "0:", "topic=c": "1: c/Three", "from=1&rows=1": "3: c/Three", "from=9": "3:",
	} {
		bubble.Test(t, func(t *testing.T) {
			_, mux := open(t, cfg)
			page := follow(t, mux, "view=groups&"+query)
			var v struct {
				Total int
				Rows  []groupRow
			}
			if err := json.Unmarshal(page.message().View, &v); err != nil {
				t.Fatal(err)
			}
			got := fmt.Sprintf("%d:", v.Total)
			for _, r := range v.Rows {
				got += " " + r.Topic + "/" + r.Group
			}
			if got != want {
				t.Errorf("%q: %s; want %s", query, got, want)
			}
			page.close()
			<-page.ended
		})
	}
}

// TestViews: what one group and topics show, and what is said of those that are not there.
func TestViews(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		in := &rooms{
			groups: map[name]admin.GroupInfo{{"orders", "billing"}: {Topic: "orders", Group: "billing", Lag: 3, Cursor: 4}},
			flying: map[name][]admin.InFlight{{"orders", "billing"}: {{Offset: 5, State: "leased", History: []admin.Attempt{{Attempt: 1}, {Attempt: 2, Reason: "last"}}}}},
			topics: map[string]admin.TopicInfo{"orders": {Topic: "orders", Head: 7, FirstOffset: 2, Groups: 1, Kept: &admin.TopicUsage{Events: 6, Bytes: 9000, AtLeast: true}}},
		}
		cfg := config()
		cfg.Admit = func(*http.Request) (Access, error) { return Access{Inspector: in}, nil }
		turn := uint64(0)
		cfg.Engine = func(context.Context) (measure.Engine, error) {
			turn++
			g := group("orders", "billing", 3)
			g.Acked = 10 * turn
			return measure.Engine{FullIn: -1, Topics: []measure.Topic{{Topic: "orders", Events: 30 * turn, Bytes: 300 * turn}}, Groups: []measure.Group{g}}, nil
		}
		_, mux := open(t, cfg)
		for query, want := range map[string][]string{
			"view=group&topic=orders&group=billing": {`"cursor":4`, `"acked":10,`, `"published":30,`, `"reason":"last"`, `"flying":[{"offset":5`},
			"view=topics&topic=orders&topic=none":   {`{"rows":[{"topic":"orders","first_offset":2,"head":7,"groups":1,"kept_events":6,"size_bytes":9000,"size_at_least":true,"published":30,"bytes":300}]}`},
			"view=topic&topic=orders":               {`"head":7`, `"published":30`},
		} {
			page := follow(t, mux, query)
			page.message()
			m := page.message()
			for _, part := range want {
				if !strings.Contains(string(m.View), part) {
					t.Errorf("%s: %s has no %s", query, m.View, part)
				}
			}
			if m.Problem != nil || strings.Contains(string(m.View), `"attempt":1`) {
				t.Errorf("%s: %+v, %s", query, m.Problem, m.View)
			}
			page.close()
			<-page.ended
		}
		for query, code := range map[string]eventhub.Code{"view=group&topic=orders&group=none": eventhub.CodeNotSubscribed, "view=topic&topic=none": eventhub.CodeUnknownID} {
			page := follow(t, mux, query)
			if m := page.message(); m.Problem == nil || m.Problem.Code != code || m.View != nil {
				t.Errorf("%s: %+v", query, m.Problem)
			}
			page.close()
			<-page.ended
		}
	})
}

// TestClosed: a hub whose store is closed, as that of a standby, says how it is and nothing of its
// rooms; one that can not be measured says so.
func TestClosed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		cfg := config()
		cfg.Closed = func() bool { return true }
		cfg.Engine = func(context.Context) (measure.Engine, error) { panic("the rooms are closed") }
		cfg.Cluster = func() *measure.Cluster {
			return &measure.Cluster{ID: "hub2", Active: "hub1", Last: 9, Position: 7, Now: time.UnixMilli(9000), Members: []measure.Member{{ID: "hub1", Seen: time.UnixMilli(8000)}, {ID: "hub2"}}}
		}
		cfg.Ready = func(context.Context) []Check { return []Check{{Name: "store", Error: "this hub is a standby"}} }
		_, mux := open(t, cfg)
		page := follow(t, mux, "view=groups")
		m := page.message()
		if !m.Closed || m.Totals != nil || m.Cluster.Role != "standby" || m.Cluster.Behind != 2 || m.Cluster.NowTS != 9000 || m.Cluster.Members[0].SeenTS != 8000 || len(m.Wrong) != 0 {
			t.Errorf("a standby says %+v", m)
		}
		page.close()
		<-page.ended

		cfg = config()
		cfg.Engine = func(context.Context) (measure.Engine, error) { return measure.Engine{}, errors.New("the disk is gone") }
		_, mux = open(t, cfg)
		page = follow(t, mux, "")
		if m := page.message(); len(m.Wrong) != 1 || m.Wrong[0].Kind != "not_measured" || m.Totals != nil {
			t.Errorf("a hub that can not be measured says %+v", m)
		}
		page.close()
		<-page.ended
	})
}

// TestStoreOpensUnderAPage: a page that came while the store was being opened, or to a standby, has all that it
// shows as soon as the rooms are open.
func TestStoreOpensUnderAPage(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var opened atomic.Bool
		cfg := config()
		cfg.Closed = func() bool { return !opened.Load() }
		cfg.Admit = func(*http.Request) (Access, error) {
			if !opened.Load() {
				return Access{Name: "ops"}, nil
			}
			return Access{Name: "ops", Inspector: &rooms{}}, nil
		}
		_, mux := open(t, cfg)
		page := follow(t, mux, "")
		for range 2 {
			if m := page.message(); !m.Closed || m.Totals != nil {
				t.Errorf("while the store is closed the page is told %+v", m)
			}
		}
		opened.Store(true)
		page.message() // was perhaps made before
		if m := page.message(); m.Closed || m.Totals == nil {
			t.Errorf("when the store is open the page is told %+v", m)
		}
		page.close()
		<-page.ended
	})
}
