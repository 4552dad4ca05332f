package ops

import (
	"strings"
	"testing"

	"eventhub"
	"eventhub/admin"
)

// viewed are topics and groups in every state that a view distinguishes.
func viewed() *rooms {
	return &rooms{
		topics: map[string]admin.TopicInfo{
			"orders": {Topic: "orders", HeadID: "e9", Head: 9, HeadTS: 1900},
			"empty":  {Topic: "empty"},
		},
		groupsBy: []admin.GroupInfo{
			{Topic: "empty", Group: "early", Epoch: 4},
			{Topic: "orders", Group: "audit", Cursor: 9, Epoch: 2, LastID: "e9", LastTS: 1900, Head: 9, HeadID: "e9", HeadTS: 1900},
			{Topic: "orders", Group: "billing", Cursor: 6, Epoch: 1, LastID: "e6", LastTS: 1600, Head: 9, HeadID: "e9", HeadTS: 1900, Lag: 2, InFlight: 1, Waiting: 1},
			{Topic: "orders", Group: "fresh", Epoch: 3, Head: 9, HeadID: "e9", HeadTS: 1900, Lag: 9, Paused: true, BlockedBy: &admin.Blocked{Kind: "paused"}},
			{Topic: "orders", Group: "ledger", Epoch: 5, Head: 9, HeadID: "e9", HeadTS: 1900, Lag: 9, InFlight: 1, Held: 8, BlockedBy: &admin.Blocked{
				Kind: "key", Key: "k", Offset: 1, ID: "e1", State: "leased", Member: &eventhub.Peer{Transport: "ws", Name: "127.0.0.1:5"}, SinceTS: 1950}},
		},
		flying: []admin.InFlight{
			{Offset: 7, ID: "e7", Attempt: 2, State: "leased", Member: &eventhub.Peer{Transport: "ws", Name: "127.0.0.1:5"}, SinceTS: 1950, Deadline: 2950},
			{Offset: 8, ID: "e8", Attempt: 1, State: "waiting", DueTS: 2100},
		},
	}
}

func TestViews(t *testing.T) {
	h := open(t, viewed().config())
	billing := `{"topic":"orders","group":"billing","lastCursor":{"topic":"orders","group":"billing","lastId":"e6","lastTs":1600,"offset":6,"epoch":1},"tail":"e9","lagMs":300,"lag":2}`
	audit := `{"topic":"orders","group":"audit","lastCursor":{"topic":"orders","group":"audit","lastId":"e9","lastTs":1900,"offset":9,"epoch":2},"tail":"e9","lagMs":0,"lag":0}`
	fresh := `{"topic":"orders","group":"fresh","lastCursor":{"topic":"orders","group":"fresh","offset":0,"epoch":3},"tail":"e9","lagMs":null,"lag":9,"paused":true,"blocked_by":{"kind":"paused"}}`
	ledger := `{"topic":"orders","group":"ledger","lastCursor":{"topic":"orders","group":"ledger","offset":0,"epoch":5},"tail":"e9","lagMs":null,"lag":9,` +
		`"blocked_by":{"kind":"key","key":"k","offset":1,"id":"e1","state":"leased","member":{"transport":"ws","name":"127.0.0.1:5"},"since_ts":1950}}`
	early := `{"topic":"empty","group":"early","lastCursor":{"topic":"empty","group":"early","offset":0,"epoch":4},"tail":null,"lagMs":null,"lag":0}`
	for _, tt := range []struct{ target, want string }{
		{"/cursors?topic=orders", `{"topic":"orders","cursors":[{"group":"audit","lastId":"e9","lastTs":1900,"offset":9,"epoch":2},` +
			`{"group":"billing","lastId":"e6","lastTs":1600,"offset":6,"epoch":1},{"group":"fresh","offset":0,"epoch":3},{"group":"ledger","offset":0,"epoch":5}]}`},
		{"/cursors?topic=orders&limit=2", `{"topic":"orders","cursors":[{"group":"audit","lastId":"e9","lastTs":1900,"offset":9,"epoch":2},` +
			`{"group":"billing","lastId":"e6","lastTs":1600,"offset":6,"epoch":1}],"next":"billing"}`},
		{"/cursors?topic=orders&limit=3&after=billing", `{"topic":"orders","cursors":[{"group":"fresh","offset":0,"epoch":3},{"group":"ledger","offset":0,"epoch":5}]}`},
		{"/cursors?topic=nothing", `{"topic":"nothing","cursors":[]}`},
		{"/lag?topic=orders&group=billing", billing},
		{"/lag?topic=orders&group=audit", audit},
		{"/lag?topic=orders&group=fresh", fresh},
		{"/lag?topic=orders&group=ledger", ledger},
		{"/lag?topic=empty&group=early", early},
		{"/lag?topic=orders&group=nobody", `{"topic":"orders","group":"nobody","lastCursor":null,"tail":"e9","lagMs":null,"lag":null}`},
		{"/lag?topic=nothing&group=nobody", `{"topic":"nothing","group":"nobody","lastCursor":null,"tail":null,"lagMs":null,"lag":null}`},
		{"/lag", `{"groups":[` + early + `,` + audit + `,` + billing + `,` + fresh + `,` + ledger + `]}`},
		{"/lag?topic=orders", `{"groups":[` + audit + `,` + billing + `,` + fresh + `,` + ledger + `]}`},
		{"/lag?group=early", `{"groups":[` + early + `]}`},
		{"/lag?group=nobody", `{"groups":[]}`},
		{"/lag?limit=2", `{"groups":[` + early + `,` + audit + `],"next":{"after_topic":"orders","after_group":"audit"}}`},
		{"/lag?limit=4&after_topic=orders&after_group=audit", `{"groups":[` + billing + `,` + fresh + `,` + ledger + `]}`},
		{"/inflight?topic=orders&group=billing", `{"topic":"orders","group":"billing","leased":1,"waiting":1,"held":0,"events":[` +
			`{"offset":7,"id":"e7","attempt":2,"state":"leased","member":{"transport":"ws","name":"127.0.0.1:5"},"since_ts":1950,"deadline_ts":2950},` +
			`{"offset":8,"id":"e8","attempt":1,"state":"waiting","due_ts":2100}]}`},
		{"/inflight?topic=orders&group=ledger&limit=1", `{"topic":"orders","group":"ledger","leased":1,"waiting":0,"held":8,"events":[` +
			`{"offset":7,"id":"e7","attempt":2,"state":"leased","member":{"transport":"ws","name":"127.0.0.1:5"},"since_ts":1950,"deadline_ts":2950}]}`},
		{"/inflight?topic=orders&group=billing&limit=1", `{"topic":"orders","group":"billing","leased":1,"waiting":1,"held":0,"events":[` +
			`{"offset":7,"id":"e7","attempt":2,"state":"leased","member":{"transport":"ws","name":"127.0.0.1:5"},"since_ts":1950,"deadline_ts":2950}]}`},
	} {
		w := get(h, tt.target)
		if got := strings.TrimSuffix(w.Body.String(), "\n"); w.Code != 200 || got != tt.want || w.Header().Get("Content-Type") != "application/json" {
			t.Errorf("%s answered %d %s\n%s\nwant\n%s", tt.target, w.Code, w.Header().Get("Content-Type"), got, tt.want)
		}
	}
}

// TestNoEventsInFlight: the list is there, and empty.
func TestNoEventsInFlight(t *testing.T) {
	f := viewed()
	f.flying = nil
	w := get(open(t, f.config()), "/inflight?topic=orders&group=audit")
	if want := `"leased":0,"waiting":0,"held":0,"events":[]}`; !strings.Contains(w.Body.String(), want) {
		t.Errorf("answered %s; want %s", w.Body, want)
	}
}

func TestViewRefusals(t *testing.T) {
	h := open(t, viewed().config())
	for _, tt := range []struct {
		target string
		status int
		code   eventhub.Code
		says   string
	}{
		{"/cursors", 400, eventhub.CodeBadRequest, "topic required"},
		{"/cursors?topic=", 400, eventhub.CodeBadRequest, "topic required"},
		{"/cursors?topic=a+b", 400, eventhub.CodeBadTopic, `"a b"`},
		{"/cursors?topic=a&group=g", 400, eventhub.CodeBadRequest, `"group"`},
		{"/lag?topic=orders&groop=g", 400, eventhub.CodeBadRequest, `"groop"`},
		{"/lag?topic=a&topic=b", 400, eventhub.CodeBadRequest, "topic is given 2 times"},
		{"/lag?topic=orders&group=a%20b", 400, eventhub.CodeBadRequest, `"a b"`},
		{"/lag?topic=a..b", 400, eventhub.CodeBadTopic, "empty segment"},
		{"/lag?limit=0", 400, eventhub.CodeBadRequest, `limit is "0"; 1 to 1000`},
		{"/lag?limit=1001", 400, eventhub.CodeBadRequest, `"1001"`},
		{"/lag?limit=", 400, eventhub.CodeBadRequest, `""`},
		{"/lag?limit=1e3", 400, eventhub.CodeBadRequest, `"1e3"`},
		{"/lag?topic=%zz", 400, eventhub.CodeBadRequest, `%zz`},
		{"/inflight?topic=orders", 400, eventhub.CodeBadRequest, "topic and group required"},
		{"/inflight?group=billing", 400, eventhub.CodeBadRequest, "topic and group required"},
		{"/inflight?topic=orders&group=nobody", 404, eventhub.CodeNotSubscribed, `"nobody"`},
		{"/inflight?topic=orders&group=billing&limit=-1", 400, eventhub.CodeBadRequest, `"-1"`},
	} {
		t.Run(tt.target, func(t *testing.T) {
			wantProblem(t, get(h, tt.target), tt.status, tt.code, tt.says)
		})
	}
}
