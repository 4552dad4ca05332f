package client_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus"
	"eventhub/client"
	"eventhub/gateway/rest"
	"eventhub/hub"
	"eventhub/internal/testsize"
	"eventhub/store/memory"
	"eventhub/wire"
)

// catalogue is an Inspector and Operator over what the test puts there, in order.
type catalogue struct {
	mu       sync.Mutex
	topics   []admin.TopicInfo
	patterns []admin.GroupPattern
	groups   []admin.GroupInfo
	items    map[string]eventhub.Item // topic/id
	inFlight map[string][]admin.InFlight
	became   map[string][]admin.EventGroup // topic/id
	plan     admin.SeekPlan
	changed  []string // what Operator was asked except deletions
	err      error

	deletedTopics []string
}

func (c *catalogue) Topics(_ context.Context, after string, limit int) ([]admin.TopicInfo, error) {
	at := slices.IndexFunc(c.topics, func(t admin.TopicInfo) bool { return t.Topic > after })
	if at < 0 {
		return nil, c.err
	}
	return c.topics[at:min(at+limit, len(c.topics))], c.err
}

func (c *catalogue) Topic(_ context.Context, topic string) (admin.TopicInfo, error) {
	at := slices.IndexFunc(c.topics, func(t admin.TopicInfo) bool { return t.Topic == topic })
	if at < 0 {
		return admin.TopicInfo{}, eventhub.Errorf(eventhub.CodeUnknownID, "there is no topic %q", topic)
	}
	return c.topics[at], c.err
}

func (c *catalogue) Event(_ context.Context, topic, id string) (eventhub.Item, error) {
	item, ok := c.items[topic+"/"+id]
	if !ok {
		return item, eventhub.Errorf(eventhub.CodeUnknownID, "there is no event %q in topic %q", id, topic)
	}
	return item, c.err
}

func (c *catalogue) Groups(_ context.Context, q admin.GroupQuery) ([]admin.GroupInfo, error) {
	var page []admin.GroupInfo
	for _, g := range c.groups {
		after := g.Topic > q.AfterTopic || g.Topic == q.AfterTopic && g.Group > q.AfterGroup
		fits := (q.Topic == "" || q.Topic == g.Topic) && (q.Group == "" || q.Group == g.Group)
		if after && fits && len(page) < q.Limit {
			page = append(page, g)
		}
	}
	return page, c.err
}

func (c *catalogue) find(topic, group string) (int, error) {
	at := slices.IndexFunc(c.groups, func(g admin.GroupInfo) bool { return g.Topic == topic && g.Group == group })
	if at < 0 {
		return 0, eventhub.Errorf(eventhub.CodeNotSubscribed, "topic %q has no group %q", topic, group)
	}
	return at, c.err
}

func (c *catalogue) Group(_ context.Context, topic, group string) (admin.GroupInfo, error) {
	at, err := c.find(topic, group)
	if err != nil {
		return admin.GroupInfo{}, err
	}
	return c.groups[at], nil
}

func (c *catalogue) InFlight(_ context.Context, topic, group string, limit int) ([]admin.InFlight, error) {
	_, err := c.find(topic, group)
	list := c.inFlight[topic+"/"+group]
	return list[:min(limit, len(list))], err
}

func (c *catalogue) EventGroups(_ context.Context, topic, id string) ([]admin.EventGroup, error) {
	groups, ok := c.became[topic+"/"+id]
	if !ok {
		return nil, eventhub.Errorf(eventhub.CodeUnknownID, "there is no event %q in topic %q", id, topic)
	}
	return groups, c.err
}

func (c *catalogue) SeekGroup(_ context.Context, topic, group string, start eventhub.Start, apply bool) (admin.SeekPlan, error) {
	err := c.change(topic, group, fmt.Sprintf("seek %+v %v", start, apply))
	if err != nil {
		return admin.SeekPlan{}, err
	}
	plan := c.plan
	plan.Topic, plan.Group, plan.Applied = topic, group, apply
	return plan, nil
}

func (c *catalogue) SeekGroupIf(_ context.Context, topic, group string, start eventhub.Start, epoch uint64) (admin.SeekPlan, error) {
	err := c.change(topic, group, fmt.Sprintf("seek %+v epoch %d", start, epoch))
	if err != nil {
		return admin.SeekPlan{}, err
	}
	plan := c.plan
	plan.Topic, plan.Group, plan.Applied = topic, group, true
	return plan, nil
}

func (c *catalogue) DeleteTopic(_ context.Context, topic string) error {
	if _, err := c.Topic(context.Background(), topic); err != nil {
		return err
	}
	c.deletedTopics = append(c.deletedTopics, topic)
	return nil
}

func (c *catalogue) PauseGroup(_ context.Context, topic, group string) error {
	return c.change(topic, group, "pause")
}

func (c *catalogue) ResumeGroup(_ context.Context, topic, group string) error {
	return c.change(topic, group, "resume")
}

func (c *catalogue) change(topic, group, what string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.find(topic, group)
	if err == nil {
		c.changed = append(c.changed, topic+"/"+group+" "+what)
	}
	return err
}

func (c *catalogue) DeleteGroup(_ context.Context, topic, group string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if eventhub.IsPattern(topic) {
		return c.deletePattern(topic, group)
	}
	at, err := c.find(topic, group)
	if err == nil {
		c.groups = slices.Delete(c.groups, at, at+1)
	}
	return err
}

// filled is a catalogue with two topics, odd names, and every field of every
// answer set.
func filled() *catalogue {
	record := eventhub.Record(`{"committed_ts":1723140000000,"id":"..","ts":5,"topic":"a.b","partition":3,"key":"<k>\u2028","payload":{"offset":1.0, "x":[1e400]}}`)
	member := admin.MemberInfo{Peer: eventhub.Peer{Transport: "ws", Name: "billing <127.0.0.1:5>"}, InFlight: 1, MaxInFlight: 100, SinceTS: 5}
	failed := []admin.Attempt{{Attempt: 1, Member: &member.Peer, SinceTS: 1, EndedTS: 2, Why: "nacked", Reason: "<no>\n"}, {Attempt: 2, SinceTS: 3, EndedTS: 4, Why: "expired"}}
	return &catalogue{
		topics: []admin.TopicInfo{{Topic: "a.b", FirstOffset: 1, Head: 9, FirstTS: 1, HeadTS: 2, HeadID: "..", Groups: 2}, {Topic: "a.b.dlq"}},
		groups: []admin.GroupInfo{
			{Topic: "a.b", Group: "..", Members: []admin.MemberInfo{}},
			{Topic: "a.b", Group: "g:1", Cursor: 1, Epoch: 2, LastID: "x", LastTS: 3, Head: 9, HeadID: "..", HeadTS: 4, Lag: 5, OldestTS: 6, InFlight: 7, Waiting: 8, Held: 12, Paused: true,
				BlockedBy: &admin.Blocked{Kind: "key", Key: "<k>\u2028", Offset: 13, ID: "..", State: "leased", Member: &member.Peer, SinceTS: 14},
				Ordering:  "key", MaxAttempts: 9, MinBackoffMS: 10, MaxBackoffMS: 11, Members: []admin.MemberInfo{member, {}}},
		},
		items: map[string]eventhub.Item{"a.b/..": {Offset: eventhub.MaxOffset, Record: record}},
		inFlight: map[string][]admin.InFlight{"a.b/g:1": {
			{Offset: 7, ID: "..", Attempt: 2, State: "leased", Member: &member.Peer, SinceTS: 5, Deadline: 9}, {Offset: 8, Attempt: 1, State: "waiting", DueTS: 12, History: failed}}},
		became: map[string][]admin.EventGroup{
			"a.b/..": {{Group: "..", InFlight: admin.InFlight{Offset: 7, ID: "..", State: "done"}}, {Group: "g:1", InFlight: admin.InFlight{Offset: 7, ID: "..", Attempt: 1, State: "waiting", DueTS: 3, History: failed}}},
			"a.b/x":  {},
		},
		plan: admin.SeekPlan{From: 1, To: 2, Head: 3, Again: 4, Skipped: 5, Voided: 6, Epoch: 7},
	}
}

// serveAPI mounts the HTTP API over a catalogue; token, where not empty, is
// needed.
func serveAPI(tb testing.TB, c *catalogue, token string) http.Handler {
	return gateway(tb, rest.Access{Inspector: c, Operator: c}, token)
}

func gateway(tb testing.TB, access rest.Access, token string) http.Handler {
	tb.Helper()
	api, err := rest.New(rest.Config{Authenticate: func(_ context.Context, got string, given bool) (rest.Access, error) {
		switch {
		case token != "" && !given:
			return rest.Access{}, eventhub.Errorf(eventhub.CodeNoToken, "this hub wants a token")
		case token != "" && got != token:
			return rest.Access{}, eventhub.Errorf(eventhub.CodeBadToken, "the token is not valid here")
		}
		return access, nil
	}})
	if err != nil {
		tb.Fatal(err)
	}
	mux := http.NewServeMux()
	api.Register(mux)
	return mux
}

func serve(tb testing.TB, h http.Handler) (url string) {
	srv := httptest.NewServer(h)
	tb.Cleanup(srv.Close)
	return srv.URL
}

func newAdmin(tb testing.TB, url string, opts ...client.Option) *client.Admin {
	tb.Helper()
	adm, err := client.NewAdmin(url, opts...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { adm.Close() })
	return adm
}

// same asks both and compares what they say.
func same[T any](t *testing.T, what string, ask func(admin.Inspector) (T, error), remote, local admin.Inspector) {
	t.Helper()
	got, err := ask(remote)
	want, wantErr := ask(local)
	if eventhub.ErrorCode(err) != eventhub.ErrorCode(wantErr) || err != nil && eventhub.AsError(err).Message != eventhub.AsError(wantErr).Message {
		t.Errorf("%s: error %v; want %v", what, err, wantErr)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s differs (-want +got):\n%s", what, diff)
	}
}

// TestAdminSaysWhatTheHubSays: through HTTP and back everything is what it was.
func TestAdminSaysWhatTheHubSays(t *testing.T) {
	c := filled()
	adm := newAdmin(t, serve(t, serveAPI(t, c, "")))
	ctx := bounded(t)
	same(t, "topics", func(i admin.Inspector) ([]admin.TopicInfo, error) { return i.Topics(ctx, "", 1000) }, adm, c)
	same(t, "one topic", func(i admin.Inspector) ([]admin.TopicInfo, error) { return i.Topics(ctx, "a.b", 1) }, adm, c)
	for _, topic := range []string{"a.b", "a.b.dlq", "nobody"} {
		same(t, topic, func(i admin.Inspector) (admin.TopicInfo, error) { return i.Topic(ctx, topic) }, adm, c)
	}
	for _, id := range []string{"..", "nothing", "."} {
		same(t, "event "+id, func(i admin.Inspector) (eventhub.Item, error) { return i.Event(ctx, "a.b", id) }, adm, c)
	}
	for _, id := range []string{"..", "x", "nothing"} {
		same(t, "groups of event "+id, func(i admin.Inspector) ([]admin.EventGroup, error) { return i.EventGroups(ctx, "a.b", id) }, adm, c)
	}
	for _, q := range []admin.GroupQuery{{Limit: 1000}, {Topic: "a.b", Group: "..", Limit: 1}, {AfterTopic: "a.b", AfterGroup: "..", Limit: 5}} {
		same(t, fmt.Sprintf("groups %+v", q), func(i admin.Inspector) ([]admin.GroupInfo, error) { return i.Groups(ctx, q) }, adm, c)
	}
	if groups, err := adm.Groups(ctx, admin.GroupQuery{}); len(groups) != 2 || err != nil {
		t.Errorf("groups without a limit: %v, %v", groups, err)
	}
	for _, group := range []string{"g:1", "..", "nobody", "."} {
		same(t, group, func(i admin.Inspector) (admin.GroupInfo, error) { return i.Group(ctx, "a.b", group) }, adm, c)
	}
	for _, limit := range []int{1, 1000} {
		same(t, "in flight", func(i admin.Inspector) ([]admin.InFlight, error) { return i.InFlight(ctx, "a.b", "g:1", limit) }, adm, c)
	}
	if none, err := adm.InFlight(ctx, "a.b", "..", 1); len(none) != 0 || err != nil {
		t.Errorf("in flight: %v, %v", none, err)
	}
	_, err := adm.InFlight(ctx, "a.b", "nobody", 1)
	wantCode(t, err, eventhub.CodeNotSubscribed)
	_, err = adm.Topics(ctx, "", 0)
	wantCode(t, err, eventhub.CodeBadRequest)

	wantCode(t, adm.DeleteGroup(ctx, "a.b", "nobody"), eventhub.CodeNotSubscribed)
	if err := adm.DeleteGroup(ctx, "a.b", ".."); err != nil || len(c.groups) != 1 {
		t.Errorf("delete: %v; %d groups are left", err, len(c.groups))
	}
}

// TestAdminChangesWhatTheHubChanges: every start and every answer comes through.
func TestAdminChangesWhatTheHubChanges(t *testing.T) {
	remote, local := filled(), filled()
	adm := newAdmin(t, serve(t, serveAPI(t, remote, "")))
	ctx := bounded(t)
	for _, start := range []eventhub.Start{
		{}, {Kind: eventhub.StartEarliest}, {Kind: eventhub.StartTime, TS: 1723140000000}, {Kind: eventhub.StartTime},
		{Kind: eventhub.StartAfterID, AfterID: "a:.-_"}, {Kind: eventhub.StartOffset, Offset: eventhub.MaxOffset}, {Kind: eventhub.StartOffset},
	} {
		for _, group := range []string{"..", "g:1", "nobody"} {
			for _, apply := range []bool{false, true} {
				got, err := adm.SeekGroup(ctx, "a.b", group, start, apply)
				want, wantErr := local.SeekGroup(ctx, "a.b", group, start, apply)
				if diff := cmp.Diff(want, got); diff != "" || eventhub.ErrorCode(err) != eventhub.ErrorCode(wantErr) {
					t.Errorf("%+v, apply %v: %v; want %v (-want +got):\n%s", start, apply, err, wantErr, diff)
				}
			}
		}
	}
	for _, group := range []string{"g:1", "nobody"} {
		got, err := adm.SeekGroupIf(ctx, "a.b", group, eventhub.FromOffset(3), 7)
		want, wantErr := local.SeekGroupIf(ctx, "a.b", group, eventhub.FromOffset(3), 7)
		if diff := cmp.Diff(want, got); diff != "" || eventhub.ErrorCode(err) != eventhub.ErrorCode(wantErr) {
			t.Errorf("with an epoch: %v; want %v (-want +got):\n%s", err, wantErr, diff)
		}
	}
	for _, group := range []string{"..", "g:1", "nobody"} {
		for _, operator := range []admin.Operator{adm, local} {
			err, again := operator.PauseGroup(ctx, "a.b", group), operator.ResumeGroup(ctx, "a.b", group)
			if want := map[string]eventhub.Code{"nobody": eventhub.CodeNotSubscribed}[group]; eventhub.ErrorCode(err) != want || eventhub.ErrorCode(again) != want {
				t.Errorf("%s of %T: %v, %v; want code %q", group, operator, err, again, want)
			}
		}
	}
	if diff := cmp.Diff(local.changed, remote.changed); diff != "" {
		t.Errorf("asked for something else (-want +got):\n%s", diff)
	}
}

// TestAdminOverTheEngine: what the engine says in process comes over HTTP alike,
// the errors too.
func TestAdminOverTheEngine(t *testing.T) {
	engine, err := bus.New(bus.Options{Store: memory.Open(memory.Options{})})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { engine.Close() })
	ctx := bounded(t)
	receipts, err := engine.Publish(ctx, eventhub.Event{Topic: "a", ID: "..", Key: "k", TS: 5, Payload: []byte(`{ "n":1.0 }`)}, event("a", `2`), event("b", `3`))
	if err != nil {
		t.Fatal(err)
	}
	a, b := newCollector(9), newCollector(9)
	for r, opts := range map[*collector]eventhub.GroupOptions{a: earliest("a", "g"), b: earliest("b", "..")} {
		opts.Peer = eventhub.Peer{Transport: "ws", Name: "me"}
		if _, err := engine.Subscribe(ctx, opts, r); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range []*collector{a, a, b} {
		await(t, "a delivery", r.came)
	}
	if _, err := engine.Settle(ctx, "a", "g", eventhub.Settlement{Verdict: eventhub.Nack, Reason: "not now", Delay: time.Hour, Refs: []eventhub.Ref{{Lease: a.leases[0]}}}); err != nil {
		t.Fatal(err)
	}
	adm := newAdmin(t, serve(t, gateway(t, rest.Access{Inspector: engine, Operator: engine}, "")))
	same(t, "topics", func(i admin.Inspector) ([]admin.TopicInfo, error) { return i.Topics(ctx, "", 9) }, adm, engine)
	same(t, "groups", func(i admin.Inspector) ([]admin.GroupInfo, error) { return i.Groups(ctx, admin.GroupQuery{}) }, adm, engine)
	for _, topic := range []string{"a", "nobody", "a b", ""} {
		same(t, "topic "+topic, func(i admin.Inspector) (admin.TopicInfo, error) { return i.Topic(ctx, topic) }, adm, engine)
		for _, id := range []string{"..", receipts[1].ID, "nothing", "a b"} {
			same(t, "event "+id+" of "+topic, func(i admin.Inspector) (eventhub.Item, error) { return i.Event(ctx, topic, id) }, adm, engine)
			same(t, "groups of event "+id+" of "+topic, func(i admin.Inspector) ([]admin.EventGroup, error) { return i.EventGroups(ctx, topic, id) }, adm, engine)
		}
	}
	if groups, err := adm.EventGroups(ctx, "a", ".."); err != nil || len(groups) != 1 || groups[0].State != "waiting" || len(groups[0].History) != 1 || groups[0].History[0].Reason != "not now" {
		t.Errorf("of the nacked event: %+v, %v", groups, err)
	}
	for _, at := range [][2]string{{"a", "g"}, {"b", ".."}, {"a", "nobody"}, {"nobody", "g"}} {
		same(t, at[0]+"::"+at[1], func(i admin.Inspector) (admin.GroupInfo, error) { return i.Group(ctx, at[0], at[1]) }, adm, engine)
		same(t, "in flight", func(i admin.Inspector) ([]admin.InFlight, error) { return i.InFlight(ctx, at[0], at[1], 9) }, adm, engine)
	}
	if err := adm.DeleteGroup(ctx, "b", ".."); err != nil {
		t.Error(err)
	}
	wantCode(t, await(t, "the end of the member", b.ended), eventhub.CodeNotSubscribed)
	for _, operator := range []admin.Operator{adm, engine} {
		wantCode(t, operator.DeleteGroup(ctx, "b", ".."), eventhub.CodeNotSubscribed)
	}
}

// TestAdminChangesAnEngine: a group goes where it is sent, and only when it is to go;
// pausing holds its events back.
func TestAdminChangesAnEngine(t *testing.T) {
	engine, err := bus.New(bus.Options{Store: memory.Open(memory.Options{})})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { engine.Close() })
	ctx := bounded(t)
	receipts, err := engine.Publish(ctx, event("a", `1`), event("a", `2`), event("a", `3`))
	if err != nil {
		t.Fatal(err)
	}
	opts := earliest("a", "g")
	opts.AutoAck = true
	r := newCollector(100)
	if _, err := engine.Subscribe(ctx, opts, r); err != nil {
		t.Fatal(err)
	}
	came := func(offsets ...uint64) {
		t.Helper()
		for _, want := range offsets {
			if got := await(t, "a delivery", r.came); got != want {
				t.Errorf("offset %d was delivered; want %d", got, want)
			}
		}
	}
	came(1, 2, 3)
	adm := newAdmin(t, serve(t, gateway(t, rest.Access{Inspector: engine, Operator: engine}, "")))

	start := eventhub.Start{Kind: eventhub.StartAfterID, AfterID: receipts[0].ID}
	plan, err := adm.SeekGroup(ctx, "a", "g", start, false)
	want := admin.SeekPlan{Topic: "a", Group: "g", From: 3, To: 1, Head: 3, Again: 2, Epoch: plan.Epoch}
	if err != nil || plan != want {
		t.Errorf("the plan is %+v, %v; want %+v", plan, err, want)
	}
	if g, err := adm.Group(ctx, "a", "g"); err != nil || g.Cursor != 3 || g.Epoch != plan.Epoch {
		t.Errorf("after a dry run the group is %+v, %v", g, err)
	}
	if err := adm.PauseGroup(ctx, "a", "g"); err != nil {
		t.Fatal(err)
	}
	plan, err = adm.SeekGroup(ctx, "a", "g", start, true)
	if want.Applied, want.Epoch = true, want.Epoch+1; err != nil || plan != want {
		t.Errorf("applied, the plan is %+v, %v; want %+v", plan, err, want)
	}
	if g, err := adm.Group(ctx, "a", "g"); err != nil || g.Cursor != 1 || !g.Paused || g.BlockedBy == nil || g.BlockedBy.Kind != "paused" || len(r.came) != 0 {
		t.Errorf("paused, the group is %+v, %v; %d were delivered", g, err, len(r.came))
	}
	if err := adm.ResumeGroup(ctx, "a", "g"); err != nil {
		t.Fatal(err)
	}
	came(2, 3)

	for _, operator := range []admin.Operator{adm, engine} {
		_, err := operator.SeekGroup(ctx, "a", "g", eventhub.Start{Kind: eventhub.StartAfterID, AfterID: "nothing"}, true)
		wantCode(t, err, eventhub.CodeUnknownID)
		_, err = operator.SeekGroup(ctx, "a", "g", eventhub.Start{Kind: eventhub.StartTime, TS: -1}, true)
		wantCode(t, err, eventhub.CodeBadRequest)
		_, err = operator.SeekGroup(ctx, "a", "nobody", start, true)
		wantCode(t, err, eventhub.CodeNotSubscribed)
		wantCode(t, operator.PauseGroup(ctx, "nobody", "g"), eventhub.CodeNotSubscribed)
		wantCode(t, operator.ResumeGroup(ctx, "a", "nobody"), eventhub.CodeNotSubscribed)
	}
}

// TestAdminOfAHub: one URL and one token serve both doors of a hub.
func TestAdminOfAHub(t *testing.T) {
	h := startHub(t, hub.Config{AuthToken: "s3cret"})
	for i, url := range []string{"ws://" + h.WSAddr(), "http://" + h.WSAddr(), "http://" + h.HTTPAddr()} {
		c, err := client.Dial(bounded(t), url, client.WithToken("s3cret"))
		if err != nil {
			t.Fatal(err)
		}
		receipts, err := c.Publish(bounded(t), event("t", `{"n":1}`))
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		adm := newAdmin(t, url, client.WithToken("s3cret"))
		item, err := adm.Event(bounded(t), "t", receipts[0].ID)
		if e, _ := item.Event(); err != nil || e.Offset != receipts[0].Offset || string(e.Payload) != `{"n":1}` {
			t.Errorf("%s: %+v, %v", url, e, err)
		}
		if info, err := adm.Topic(bounded(t), "t"); err != nil || info.Head != uint64(i+1) {
			t.Errorf("%s: %+v, %v", url, info, err)
		}
		_, err = newAdmin(t, url).Topics(bounded(t), "", 1)
		wantCode(t, err, eventhub.CodeNoToken)
	}
}

func TestAdminPagesToTheEnd(t *testing.T) {
	c := &catalogue{}
	for i := range 2345 {
		name := fmt.Sprintf("t%04d", i)
		c.topics = append(c.topics, admin.TopicInfo{Topic: name})
		c.groups = append(c.groups, admin.GroupInfo{Topic: fmt.Sprintf("t%04d", i/7), Group: name, Members: []admin.MemberInfo{}})
	}
	adm := newAdmin(t, serve(t, serveAPI(t, c, "")))
	for _, limit := range []int{469, 1000} { // the first divides their number
		var topics []admin.TopicInfo
		for page, after := make([]admin.TopicInfo, limit), ""; len(page) == limit; {
			var err error
			if page, err = adm.Topics(bounded(t), after, limit); err != nil {
				t.Fatal(err)
			}
			if topics = append(topics, page...); len(page) > 0 {
				after = page[len(page)-1].Topic
			}
		}
		var groups []admin.GroupInfo
		q := admin.GroupQuery{Limit: limit}
		for page := make([]admin.GroupInfo, limit); len(page) == limit; {
			var err error
			if page, err = adm.Groups(bounded(t), q); err != nil {
				t.Fatal(err)
			}
			if groups = append(groups, page...); len(page) > 0 {
				q.AfterTopic, q.AfterGroup = page[len(page)-1].Topic, page[len(page)-1].Group
			}
		}
		if diff := cmp.Diff(c.topics, topics) + cmp.Diff(c.groups, groups); diff != "" {
			t.Errorf("pages of %d (-want +got):\n%s", limit, diff)
		}
	}
}

// TestAdminProblems: every code comes through with its message and its time.
func TestAdminProblems(t *testing.T) {
	c := filled()
	adm := newAdmin(t, serve(t, serveAPI(t, c, "")))
	for _, code := range []eventhub.Code{
		eventhub.CodeBadJSON, eventhub.CodeBadRequest, eventhub.CodeBadTopic, eventhub.CodeBadEvent, eventhub.CodeTooLarge,
		eventhub.CodeUnauthorized, eventhub.CodeNoToken, eventhub.CodeBadToken, eventhub.CodeForbidden, eventhub.CodeRateLimited,
		eventhub.CodePublishFailed, eventhub.CodeAckFailed, eventhub.CodeAlreadySubscribed, eventhub.CodeNotSubscribed,
		eventhub.CodeGroupMismatch, eventhub.CodeUnknownID, eventhub.CodeUnsupportedOp, eventhub.CodeOverloaded,
		eventhub.CodeShuttingDown, eventhub.CodeInternal, "of_tomorrow",
	} {
		for _, retry := range []time.Duration{0, 2500 * time.Millisecond} {
			c.err = &eventhub.Error{Code: code, Message: "so it is: \"<é>\"", RetryAfter: retry, Err: errors.New("secret")}
			_, err := adm.Topic(bounded(t), "a.b")
			var e *eventhub.Error
			if !errors.As(err, &e) || e.Code != code || e.Message != "so it is: \"<é>\"" || errors.Is(err, client.ErrUnreachable) {
				t.Errorf("%s became %v", code, err)
				continue
			}
			want := map[bool]time.Duration{true: 3 * time.Second}[retry > 0]
			if passing := code == eventhub.CodeRateLimited || code == eventhub.CodeOverloaded || code == eventhub.CodeShuttingDown; passing && retry == 0 {
				want = time.Second
			}
			if e.RetryAfter != want {
				t.Errorf("%s with %v is to be tried again after %v; want %v", code, retry, e.RetryAfter, want)
			}
			if err := adm.DeleteGroup(bounded(t), "a.b", "g:1"); eventhub.ErrorCode(err) != code {
				t.Errorf("of DeleteGroup %s became %v", code, err)
			}
		}
	}
}

// TestAdminNamesThatCanNotBe are refused as in process, without asking anybody.
func TestAdminNamesThatCanNotBe(t *testing.T) {
	adm := newAdmin(t, "http://127.0.0.1:1")
	ctx := bounded(t)
	for _, topic := range []string{"", "..", "a/b", "a\nb", "a b", "ä"} {
		_, err := adm.Topic(ctx, topic)
		wantCode(t, err, eventhub.CodeBadTopic)
		_, err = adm.Event(ctx, topic, "x")
		wantCode(t, err, eventhub.CodeBadTopic)
		_, err = adm.Group(ctx, topic, "g")
		wantCode(t, err, eventhub.CodeBadTopic)
	}
	for _, name := range []string{"", "a/b", "a?b", "%2e", "ä"} {
		_, err := adm.Event(ctx, "t", name)
		wantCode(t, err, eventhub.CodeBadEvent)
		_, err = adm.InFlight(ctx, "t", name, 1)
		wantCode(t, err, eventhub.CodeBadRequest)
		wantCode(t, adm.DeleteGroup(ctx, "t", name), eventhub.CodeBadRequest)
		wantCode(t, adm.PauseGroup(ctx, "t", name), eventhub.CodeBadRequest)
		_, err = adm.SeekGroup(ctx, "t", name, eventhub.Start{}, true)
		wantCode(t, err, eventhub.CodeBadRequest)
		_, err = adm.SeekGroup(ctx, "t", "g", eventhub.Start{Kind: eventhub.StartAfterID, AfterID: name}, true)
		wantCode(t, err, eventhub.CodeBadRequest)
		_, err = adm.EventGroups(ctx, "t", name)
		wantCode(t, err, eventhub.CodeBadEvent)
	}
}

func answering(status int, kind, body string, header ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	})
}

// TestAdminOfSomebodyElse: what is no answer of a hub is an error with URL, status and
// content type, whatever it looks like.
func TestAdminOfSomebodyElse(t *testing.T) {
	const page = "<html>hello</html>"
	for name, tt := range map[string]struct {
		h           http.Handler
		says        []string
		code        eventhub.Code // "" for none
		unreachable bool
	}{
		"page":                       {answering(200, "text/html; charset=utf-8", page), []string{"status 200", "text/html"}, "", false},
		"not found":                  {answering(404, "text/plain", "404 page not found"), []string{"status 404", "text/plain"}, "", false},
		"no type":                    {answering(500, "", ""), []string{"status 500", "no content type"}, "", false},
		"wants a login":              {answering(401, "text/html", page), []string{"status 401", "text/html"}, eventhub.CodeForbidden, false},
		"forbids":                    {answering(403, "text/html", page), []string{"status 403"}, eventhub.CodeForbidden, false},
		"redirects":                  {answering(302, "text/html", page, "Location", "https://login.example/"), []string{"status 302", "https://login.example/"}, "", false},
		"hub behind a proxy is gone": {answering(502, "text/html", page), []string{"status 502", "text/html"}, "", true},
		"gateway timeout":            {answering(504, "text/html", page), []string{"status 504"}, "", true},
		"JSON of another":            {answering(200, "application/json", `{"status":"ok"}`), []string{"status 200", "not what was asked for"}, "", false},
		"other JSON":                 {answering(200, "application/json", `[1]`), []string{"status 200", "array"}, "", false},
		"broken JSON":                {answering(200, "application/json", `{"topic":`), []string{"status 200", "JSON"}, "", false},
		"problem of another":         {answering(409, "application/problem+json", `{"title":"Conflict","detail":"x"}`), []string{"status 409", "problem+json"}, "", false},
		"broken problem":             {answering(404, "application/problem+json", `{"code":"unknown_id"`), []string{"status 404"}, "", false},
		"without content":            {answering(204, "", ""), []string{"status 204"}, "", false},
		"endless": {http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			for chunk := bytes.Repeat([]byte(" "), 1<<20); ; {
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
		}), []string{"status 200", "more than 33554432 bytes"}, "", false},
		"breaks off": {answering(200, "application/json", `{"topic":"a.b"`, "Content-Length", "99"), []string{"broke off after 14 bytes"}, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			url := serve(t, tt.h)
			adm := newAdmin(t, url)
			_, err := adm.Topic(bounded(t), "a.b")
			if err == nil {
				t.Fatal("no error")
			}
			for _, part := range append(tt.says, url) {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q is not in %q", part, err)
				}
			}
			var e *eventhub.Error
			if tt.code == "" && errors.As(err, &e) || tt.code != "" && eventhub.ErrorCode(err) != tt.code {
				t.Errorf("%v; want code %q", err, tt.code)
			}
			if errors.Is(err, client.ErrUnreachable) != tt.unreachable {
				t.Errorf("unreachable: %v", err)
			}
			if name == "endless" && testsize.Small() { // one such answer is 32 MiB
				return
			}
			if _, err := adm.Topics(bounded(t), "", 1); err == nil {
				t.Error("taken for a list of topics")
			}
			if _, err := adm.Event(bounded(t), "a.b", "x"); err == nil {
				t.Error("taken for an event")
			}
		})
	}
}

// TestAdminAnswersForAnother: a sound answer about something else is no answer.
func TestAdminAnswersForAnother(t *testing.T) {
	for body, ask := range map[string]func(*client.Admin, context.Context) error{
		`{"topic":"b"}`:                            func(a *client.Admin, ctx context.Context) error { _, err := a.Topic(ctx, "a"); return err },
		`{"topic":"a","group":"h"}`:                func(a *client.Admin, ctx context.Context) error { _, err := a.Group(ctx, "a", "g"); return err },
		`{"topic":"a","group":"h","in_flight":[]}`: func(a *client.Admin, ctx context.Context) error { _, err := a.InFlight(ctx, "a", "g", 1); return err },
		`{"topic":"a","id":"y","groups":[]}`:       func(a *client.Admin, ctx context.Context) error { _, err := a.EventGroups(ctx, "a", "x"); return err },
		`{"topic":"a","id":"x"}`:                   func(a *client.Admin, ctx context.Context) error { _, err := a.EventGroups(ctx, "a", "x"); return err },
		`{"topic":"a","group":"h"} `:               func(a *client.Admin, ctx context.Context) error { return a.PauseGroup(ctx, "a", "g") },
		`{"topic":"a","group":"g","applied":false}`: func(a *client.Admin, ctx context.Context) error {
			_, err := a.SeekGroup(ctx, "a", "g", eventhub.Start{}, true)
			return err
		},
		`{"topic":"a","group":"g","applied":true}`: func(a *client.Admin, ctx context.Context) error {
			_, err := a.SeekGroup(ctx, "a", "g", eventhub.Start{}, false)
			return err
		},
		`{"offset":1,"ts":1723140000000,"id":"y","topic":"a","payload":1}`:  func(a *client.Admin, ctx context.Context) error { _, err := a.Event(ctx, "a", "x"); return err },
		`{"offset":-1,"ts":1723140000000,"id":"x","topic":"a","payload":1}`: func(a *client.Admin, ctx context.Context) error { _, err := a.Event(ctx, "a", "x"); return err },
	} {
		if err := ask(newAdmin(t, serve(t, answering(200, "application/json", body))), bounded(t)); err == nil || !strings.Contains(err.Error(), "not what was asked for") {
			t.Errorf("%s was taken: %v", body, err)
		}
	}
	if err := newAdmin(t, serve(t, answering(200, "application/json", `{}`))).DeleteGroup(bounded(t), "a", "g"); err == nil {
		t.Error("{} was taken for the answer to a DELETE")
	}
}

func TestAdminToken(t *testing.T) {
	url := serve(t, serveAPI(t, filled(), "s3cret"))
	broken := errors.New("vault is shut")
	for _, tt := range []struct {
		opts []client.Option
		code eventhub.Code
	}{
		{nil, eventhub.CodeNoToken},
		{[]client.Option{client.WithToken("")}, eventhub.CodeNoToken},
		{[]client.Option{client.WithToken("wr0ng")}, eventhub.CodeBadToken},
		{[]client.Option{client.WithToken("s3cret\n")}, eventhub.CodeBadToken},
		{[]client.Option{client.WithToken("s3cret")}, ""},
		{[]client.Option{client.WithTokenSource(func(context.Context) (string, error) { return "s3cret", nil })}, ""},
	} {
		_, err := newAdmin(t, url, tt.opts...).Topic(bounded(t), "a.b")
		if eventhub.ErrorCode(err) != tt.code || err != nil && strings.Contains(err.Error(), "cret") {
			t.Errorf("%v; want code %q", err, tt.code)
		}
	}
	_, err := newAdmin(t, url, client.WithTokenSource(func(context.Context) (string, error) { return "", broken })).Topic(bounded(t), "a.b")
	if !errors.Is(err, broken) || !errors.Is(err, client.ErrUnreachable) {
		t.Errorf("with a source that fails: %v", err)
	}
}

// deaf takes connections, reads a request and cuts them.
func deaf(tb testing.TB) (url string, requests *atomic.Int64) {
	requests = new(atomic.Int64)
	return serve(tb, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			conn.Close()
		}
	})), requests
}

// TestAdminHubGone: the next URL serves, and goes on serving; when there is none
// left, all are named.
func TestAdminHubGone(t *testing.T) {
	gone := serve(t, answering(200, "", ""))
	vacant, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := "http://" + vacant.Addr().String()
	vacant.Close()
	cut, requests := deaf(t)
	live := serve(t, serveAPI(t, filled(), ""))

	adm := newAdmin(t, dead, client.WithURLs(cut, live, gone))
	for range 3 {
		if info, err := adm.Topic(bounded(t), "a.b"); err != nil || info.Head != 9 {
			t.Fatalf("%+v, %v", info, err)
		}
	}
	if n := requests.Load(); n != 1 {
		t.Errorf("the hub that cuts was asked %d times; want 1, the next one served", n)
	}
	_, err = newAdmin(t, dead, client.WithURLs(cut)).Topic(bounded(t), "a.b")
	if !errors.Is(err, client.ErrUnreachable) || !strings.Contains(err.Error(), dead) || !strings.Contains(err.Error(), cut) {
		t.Errorf("with no hub left: %v", err)
	}
}

// TestAdminChangesOnce: a change whose answer was lost is not tried elsewhere, where
// a deletion would find nothing and a seek would void what was delivered since; one
// that was never sent is.
func TestAdminChangesOnce(t *testing.T) {
	for name, change := range map[string]func(*client.Admin) error{
		"delete": func(a *client.Admin) error { return a.DeleteGroup(bounded(t), "a.b", "g:1") },
		"seek": func(a *client.Admin) error {
			_, err := a.SeekGroup(bounded(t), "a.b", "g:1", eventhub.Start{}, true)
			return err
		},
		"pause":  func(a *client.Admin) error { return a.PauseGroup(bounded(t), "a.b", "g:1") },
		"resume": func(a *client.Admin) error { return a.ResumeGroup(bounded(t), "a.b", "g:1") },
	} {
		c := filled()
		changes := func() int { return 2 - len(c.groups) + len(c.changed) }
		live := serve(t, serveAPI(t, c, ""))
		cut, requests := deaf(t)
		err := change(newAdmin(t, cut, client.WithURLs(live)))
		if !errors.Is(err, client.ErrUnreachable) || requests.Load() != 1 || changes() != 0 {
			t.Errorf("%s: %v; asked %d times, %d changes", name, err, requests.Load(), changes())
		}
		err = change(newAdmin(t, "http://127.0.0.1:1", client.WithURLs(live)))
		if err != nil || changes() != 1 {
			t.Errorf("%s: %v; %d changes", name, err, changes())
		}
	}
}

// TestAdminContext: who gives up gets that as the error, and not that the hub is gone.
func TestAdminContext(t *testing.T) {
	asked, release := make(chan bool, 1), make(chan struct{})
	url := serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		asked <- true
		<-release
	}))
	t.Cleanup(func() { close(release) }) // before the server's end
	ctx, cancel := context.WithCancel(bounded(t))
	done := make(chan error, 1)
	go func() {
		_, err := newAdmin(t, url, client.WithURLs("http://127.0.0.1:1")).Topic(ctx, "a.b")
		done <- err
	}()
	await(t, "the request", asked)
	cancel()
	if err := await(t, "the answer", done); !errors.Is(err, context.Canceled) || errors.Is(err, client.ErrUnreachable) {
		t.Errorf("%v", err)
	}
}

// TestURLs: the URL of one door leads to the other, with its path.
func TestURLs(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle("/", serveAPI(t, filled(), ""))
	catalogue := serveAPI(t, filled(), "")
	mux.HandleFunc("/hubs/a%20b/", func(w http.ResponseWriter, r *http.Request) {
		u, err := url.Parse(strings.TrimPrefix(r.URL.EscapedPath(), "/hubs/a%20b"))
		if err != nil {
			t.Error(err)
			return
		}
		r.URL = u
		catalogue.ServeHTTP(w, r)
	})
	host := strings.TrimPrefix(serve(t, mux), "http://")
	for _, target := range []string{"http://" + host, "HTTP://" + host + "/", "ws://" + host, "ws://" + host + "/ws", "ws://" + host + "/ws/",
		"http://" + host + "/hubs/a%20b", "ws://" + host + "/hubs/a%20b/", "ws://" + host + "/hubs/a%20b/ws"} {
		if _, err := newAdmin(t, target).Event(bounded(t), "a.b", ".."); err != nil {
			t.Errorf("%s: %v", target, err)
		}
	}
	for target, says := range map[string]string{
		host:                             "write ws://" + host,
		"localhost":                      "write ws://localhost",
		"":                               "no scheme",
		"ftp://" + host:                  "ftp://",
		"ws://":                          "write ws://host:port",
		"http:///x":                      "no host",
		"ws://" + host + "?token=s3cret": "WithToken",
		"ws://" + host + "#x":            "more than host",
		"ws://me:s3cret@" + host:         "WithToken",
		"ws://me:s3cret@" + host + "x":   "port",
	} {
		_, err := client.NewAdmin(target, client.WithURLs("gopher://x"))
		_, dialErr := client.Dial(bounded(t), target, client.WithURLs("gopher://x"))
		for _, err := range []error{err, dialErr} {
			if err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "gopher") || strings.Contains(err.Error(), "s3cret") {
				t.Errorf("%q: %v; want one that says %q", target, err, says)
			}
		}
	}
}

// TestDialTakesHTTPURLs and finds the WebSocket below them.
func TestDialTakesHTTPURLs(t *testing.T) {
	h := startHub(t, hub.Config{})
	for _, url := range []string{"http://" + h.WSAddr(), "http://" + h.WSAddr() + "/", "ws://" + h.WSAddr() + "/ws"} {
		c, err := client.Dial(bounded(t), url)
		if err != nil {
			t.Fatalf("%s: %v", url, err)
		}
		if _, err := c.Publish(bounded(t), event("t", `1`)); err != nil {
			t.Errorf("%s: %v", url, err)
		}
		c.Close()
	}
}

// TestTLS: both doors, with the certificate that WithTLS trusts, and not without.
func TestTLS(t *testing.T) {
	srv := httptest.NewUnstartedServer(serveAPI(t, filled(), ""))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0) // it does not like what this test does
	srv.StartTLS()
	t.Cleanup(srv.Close)
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	trusted := client.WithTLS(&tls.Config{RootCAs: roots})
	for _, url := range []string{srv.URL, strings.Replace(srv.URL, "https", "wss", 1)} {
		if _, err := newAdmin(t, url, trusted).Topic(bounded(t), "a.b"); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
	if _, err := newAdmin(t, srv.URL).Topic(bounded(t), "a.b"); !errors.Is(err, client.ErrUnreachable) || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("with an unknown certificate: %v", err)
	}
	plain := srv.Listener.Addr().String()
	if _, err := newAdmin(t, "http://"+plain).Topic(bounded(t), "a.b"); err == nil || !strings.Contains(err.Error(), "it speaks TLS: its URL begins with https://") {
		t.Errorf("without TLS: %v", err)
	}
	if _, err := client.Dial(bounded(t), "ws://"+plain); !errors.Is(err, client.ErrUnreachable) || !strings.Contains(err.Error(), "it may speak TLS: its URL then begins with wss://") {
		t.Errorf("without TLS: %v", err)
	}
	if _, err := client.Dial(bounded(t), strings.Replace(serve(t, answering(404, "text/plain", "")), "http", "wss", 1)); !errors.Is(err, client.ErrUnreachable) || !strings.Contains(err.Error(), "it speaks no TLS: its URL begins with ws://") {
		t.Errorf("with TLS, and the hub without: %v", err)
	}

	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: srv.TLS.Certificates})
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serveScript(conn, func(r *wire.Request) ([]string, bool) {
				return []string{fmt.Sprintf(`{"op":"OK","corr":%q,"id":%q,"offset":7}`, r.Corr, r.Event.ID)}, true
			})
		}
	})
	t.Cleanup(serving.Wait)
	t.Cleanup(func() { l.Close() })
	for _, scheme := range []string{"wss://", "https://"} {
		c, err := client.Dial(bounded(t), scheme+l.Addr().String(), trusted)
		if err != nil {
			t.Fatalf("%s: %v", scheme, err)
		}
		if got, err := c.Publish(bounded(t), event("t", `1`)); err != nil || got[0].Offset != 7 {
			t.Errorf("%s: %+v, %v", scheme, got, err)
		}
		c.Close()
	}
	if _, err := client.Dial(bounded(t), "wss://"+l.Addr().String()); !errors.Is(err, client.ErrUnreachable) || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("with an unknown certificate: %v", err)
	}
}

// TestProblemHasAnIndex: the place of the event that a problem is about.
func TestProblemHasAnIndex(t *testing.T) {
	for body, want := range map[string]int{
		`{"code":"bad_topic","detail":"publish[3]: topic is missing","index":3}`: 3,
		`{"code":"bad_topic","detail":"topic is missing"}`:                       -1,
		`{"code":"bad_topic","detail":"topic is missing","index":-2}`:            -1,
		`{"code":"bad_topic","detail":"topic is missing","index":99999999}`:      -1,
	} {
		adm := newAdmin(t, serve(t, answering(400, "application/problem+json", body)))
		_, err := adm.Topic(bounded(t), "a.b")
		e, got := eventhub.AsError(err), -1
		if e != nil && e.Index != nil {
			got = *e.Index
		}
		if got != want || eventhub.ErrorCode(err) != eventhub.CodeBadTopic {
			t.Errorf("%s: %v at %d; want %d", body, err, got, want)
		}
	}
}
