package hub_test

import (
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gobwas/ws/wsutil"

	"eventhub"
	"eventhub/hub"
	"eventhub/wire"
)

// row is what the table of docs/security.md says of an operation.
type row struct {
	all, any []string // actions
	shown    bool     // it shows what is allowed, and refuses nothing
}

// rightsTable reads the table of operations.
func rightsTable(t *testing.T) map[string]row {
	t.Helper()
	page, err := os.ReadFile("../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(page), "| Operation | Action | On |\n|---|---|---|\n")
	if !ok {
		t.Fatal("the page has no table of operations")
	}
	table := make(map[string]row)
	for line := range strings.Lines(rest) {
		cells := strings.Split(strings.TrimSuffix(strings.TrimSpace(line), "|"), " | ")
		if !strings.HasPrefix(line, "| ") {
			break
		}
		var r row
		switch action := strings.TrimSpace(cells[1]); {
		case action == "none":
		case strings.Contains(action, " or "):
			r.any = strings.Split(action, " or ")
		default:
			r.all = strings.Split(action, " and ")
		}
		r.shown = len(cells) > 2 && strings.Contains(cells[2], "that is shown")
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[0], -1) {
			if _, twice := table[name[1]]; twice {
				t.Errorf("%s is in the table twice", name[1])
			}
			table[name[1]] = r
		}
	}
	return table
}

// frames returns the ops that clients may send.
func frames(t *testing.T) (ops []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../wire/wire.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var dec wire.Decoder
	ast.Inspect(file, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok || !strings.HasPrefix(v.Names[0].Name, "Op") || len(v.Values) == 0 {
			return true
		}
		op, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		err = dec.Decode(fmt.Appendf(nil, `{"op":%q}`, op), new(wire.Request))
		if eventhub.ErrorCode(err) != eventhub.CodeUnsupportedOp {
			ops = append(ops, op)
		}
		return true
	})
	return ops
}

// TestEveryOperationIsInTheTable: each frame and each route has a row of the page that says
// what it needs, and no row is of anything else.
func TestEveryOperationIsInTheTable(t *testing.T) {
	h := start(t, hub.Config{Store: hub.MemoryStore, LogLevel: new(slog.LevelVar)})
	table := rightsTable(t)
	operations := append(h.Routes(), frames(t)...)
	if len(operations) < 60 {
		t.Errorf("only %d operations were found", len(operations))
	}
	for _, name := range operations {
		if _, ok := table[name]; !ok {
			t.Errorf("%s has no row: what does it need?", name)
		}
	}
	for name := range table {
		if !slices.Contains(operations, name) {
			t.Errorf("the table has %s, and the hub has not", name)
		}
	}
}

// bodies and queries make requests of routes that can be answered, about open.a.
var (
	bodies = map[string]string{
		"POST /publish/{topic}":                         `1`,
		"POST /v1/publish":                              `{"events":[{"topic":"open.a","payload":1}]}`,
		"POST /v1/import":                               `{"id":"imported","ts":1723140000000,"topic":"open.a","payload":1}` + "\n",
		"POST /v1/topics/{topic}/groups/{group}/ack":    `{"leases":["1-1-1"]}`,
		"POST /v1/topics/{topic}/groups/{group}/nack":   `{"leases":["1-1-1"]}`,
		"POST /v1/topics/{topic}/groups/{group}/modack": `{"leases":["1-1-1"],"extend_ms":1000}`,
		"POST /v1/topics/{topic}/groups/{group}/seek":   `{"from":"latest"}`,
		"PUT /v1/topics/{topic}":                        `{}`,
		"POST /v1/topics/{topic}/settings/plan":         `{}`,
		"POST /v1/dlq/{topic}/{offset}/requeue":         `1`,
		"PUT /log-level":                                `info`,
	}
	queries = map[string]string{
		"GET /replay": "topic=open.a", "GET /export": "topic=open.a", "GET /v1/events": "caused_by=id1",
		"POST /v1/topics/{topic}/trim": "keep=1", "POST /v1/topics/{topic}/erase": "offset=1",
		"DELETE /v1/patterns": "group=g&pattern=open.*", "GET /cursors": "topic=open.a", "GET /inflight": "topic=open.a&group=g",
		"GET /latest-by-key": "topic=open.a&key=k",
		"GET /snapshots":     "topic=open.a",
		"POST /v1/topics/{topic}/groups/{group}/pull": "wait_ms=0",
	}
	sayings = map[string]string{
		"PUBLISH": `"topic":"open.a","payload":1`, "CANCEL": `"topic":"open.a","id":"nobody"`,
		"SUBSCRIBE": `"topic":"open.a","group":"g"`, "UNSUBSCRIBE": `"topic":"open.a","group":"g"`,
		"PAUSE": `"topic":"open.a","group":"g"`, "RESUME": `"topic":"open.a","group":"g"`,
		"ACK": `"topic":"open.a","group":"g","lease":"1-1-1"`, "NACK": `"topic":"open.a","group":"g","lease":"1-1-1"`,
		"MODACK": `"topic":"open.a","group":"g","lease":"1-1-1","extend_ms":1000`,
	}
)

// user speaks to a hub with a token.
type user struct {
	t     *testing.T
	h     *hub.Hub
	token string
	conn  net.Conn // of WebSocket, once there is one
}

func newUser(t *testing.T, h *hub.Hub, scopes ...string) *user {
	t.Helper()
	return userOf(t, h, map[string]any{"sub": "ann", "exp": time.Now().Add(time.Hour).Unix(), "scopes": scopes})
}

// userOf is newUser with claims.
func userOf(t *testing.T, h *hub.Hub, claims map[string]any) *user {
	t.Helper()
	text, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	u := &user{t: t, h: h, token: mint(`{"alg":"HS256"}`, string(text))}
	t.Cleanup(func() {
		if u.conn != nil {
			u.conn.Close()
		}
	})
	return u
}

// do does an operation, and reports what was said and whether it is forbidden.
func (u *user) do(name string) (said string, forbidden bool) {
	if !strings.Contains(name, " ") {
		return u.say(name, sayings[name])
	}
	return u.ask(name, queries[name])
}

// say sends a frame and returns its answer.
func (u *user) say(op, rest string) (said string, forbidden bool) {
	u.t.Helper()
	if u.conn == nil {
		u.conn = dial(u.t, u.h.WSAddr())
		u.send(`{"op":"AUTH","token":"` + u.token + `"}`)
		if said := u.read(); !strings.Contains(said, `"op":"OK"`) {
			u.t.Fatal(said)
		}
	}
	u.send(fmt.Sprintf(`{"op":%q,"corr":"x",%s}`, op, rest))
	for !strings.Contains(said, `"corr":"x"`) {
		said = u.read()
	}
	return said, strings.Contains(said, `"code":"forbidden"`)
}

func (u *user) send(frame string) {
	u.t.Helper()
	if _, err := u.conn.Write(masked([]byte(frame))); err != nil {
		u.t.Fatal(err)
	}
}

func (u *user) read() string {
	u.t.Helper()
	said, err := wsutil.ReadServerText(u.conn)
	if err != nil {
		u.t.Fatal(err)
	}
	return string(said)
}

// ask makes a request and returns its answer; of a stream the beginning alone. HEAD has to be
// forbidden where GET is.
func (u *user) ask(route, query string) (said string, forbidden bool) {
	u.t.Helper()
	if rest, ok := strings.CutPrefix(route, "GET "); ok {
		_, without := u.request("HEAD "+rest, query)
		if said, forbidden = u.request(route, query); forbidden != without {
			u.t.Errorf("%s is forbidden: %v; HEAD: %v", route, forbidden, without)
		}
		return said, forbidden
	}
	return u.request(route, query)
}

// request is ask of one method alone.
func (u *user) request(route, query string) (said string, forbidden bool) {
	u.t.Helper()
	method, path, _ := strings.Cut(route, " ")
	path = strings.NewReplacer("{topic}", "open.a", "{group}", "g", "{id}", "id1", "{offset}", "1").Replace(path)
	if path == "/v1/connections/id1" {
		path = "/v1/connections/zzz-1" // of no run
	}
	ctx, cancel := context.WithCancel(u.t.Context())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://"+u.h.HTTPAddr()+path+"?"+query, strings.NewReader(bodies[route]))
	if err != nil {
		u.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+u.token)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		u.t.Fatal(err)
	}
	defer answer.Body.Close()
	if strings.HasSuffix(path, "/stream") && answer.StatusCode == http.StatusOK {
		return "", false
	}
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		u.t.Fatal(err)
	}
	return string(body), answer.StatusCode == http.StatusForbidden
}

var allActions = []string{"publish", "subscribe", "read", "admin"}

// without returns scopes of all topics and all actions but some.
func without(actions ...string) (scopes []string) {
	return slices.DeleteFunc(slices.Clone(allActions), func(a string) bool { return slices.Contains(actions, a) })
}

// TestEveryOperationNeedsItsRight: with the actions of its row alone an operation is not
// forbidden; without one of them, or with all of them on other topics, it is.
func TestEveryOperationNeedsItsRight(t *testing.T) {
	h := start(t, hub.Config{Store: hub.MemoryStore, JWTSecret: jwtSecret, LogLevel: new(slog.LevelVar)})
	users := make(map[string]*user)
	as := func(scopes ...string) *user {
		key := strings.Join(scopes, " ")
		if users[key] == nil {
			users[key] = newUser(t, h, scopes...)
		}
		return users[key]
	}
	expect := func(name string, forbidden bool, scopes ...string) {
		t.Helper()
		if said, got := as(scopes...).do(name); got != forbidden {
			t.Errorf("%s with %v: %s; want it forbidden: %v", name, scopes, said, forbidden)
		} else if got && !strings.Contains(said, "the token does not allow") {
			t.Errorf("%s with %v: %s; it does not say what is not allowed", name, scopes, said)
		}
	}
	table := rightsTable(t)
	for name, needs := range table {
		if name == "AUTH" {
			continue
		}
		for _, a := range needs.any {
			expect(name, false, a+":**")
		}
		if len(needs.all) > 0 {
			expect(name, false, needs.all...)
		}
		switch {
		case needs.shown && name != "GET /metrics":
			expect(name, false)
		case len(needs.any) > 0:
			expect(name, true, without(needs.any...)...)
			if name != "GET /metrics" {
				expect(name, true, "*:other.**")
			}
		case len(needs.all) == 0:
			expect(name, false)
		}
		for _, a := range needs.all {
			if !needs.shown {
				expect(name, true, without(a)...)
				expect(name, true, "*:other.**")
			}
		}
	}
	// Of rules the first one counts, and of other actions than subscribe groups say nothing.
	claims := func(rules string) map[string]any {
		return map[string]any{"sub": "ann", "exp": time.Now().Add(time.Hour).Unix(), "policy": json.RawMessage(`{"rules":[` + rules + `]}`)}
	}
	const all = `{"effect":"allow","action":"*","topics":["**"],"groups":["*"]}`
	nobody, anybody := userOf(t, h, claims(`{"effect":"deny","action":"*","topics":["**"]},`+all)), userOf(t, h, claims(all))
	for name, needs := range table {
		if name == "AUTH" || needs.shown && name != "GET /metrics" || len(needs.all)+len(needs.any) == 0 {
			continue
		}
		if said, forbidden := nobody.do(name); !forbidden {
			t.Errorf("%s with a rule before that denies all: %.200s", name, said)
		}
		if said, forbidden := anybody.do(name); forbidden != (name == "GET /v1/topics/{topic}/stream") { // a tail has no group
			t.Errorf("%s with a rule for all groups: %.200s; want it forbidden: %v", name, said, !forbidden)
		}
	}
}

// TestNobodyKeepsOthersOut: requests of tokens without rights that are never finished, as many as
// a place is for of any kind, keep nobody from an operation. Where others have all its places
// such a request is still forbidden.
func TestNobodyKeepsOthersOut(t *testing.T) {
	inBubble(t, hub.Config{WSAddr: "127.0.0.1:1", HTTPAddr: "127.0.0.1:2", OpsAddr: "127.0.0.1:3", JWTSecret: jwtSecret, LogLevel: new(slog.LevelVar)}, func(b *hubInBubble) {
		ends := b.began.Add(time.Hour).Unix()
		nobody, all := mint(`{"alg":"HS256"}`, fmt.Sprintf(`{"sub":"bob","exp":%d,"scopes":[]}`, ends)), full(ends)
		table := rightsTable(t)
		at := func(route string) string {
			return strings.NewReplacer("{topic}", "open.a", "{group}", "g", "{id}", "id1", "{offset}", "1").Replace(route) + "?" + queries[route]
		}
		for _, route := range slices.Sorted(maps.Keys(table)) {
			needs := table[route]
			if method, _, of := strings.Cut(route, " "); !of || method == "GET" && route != "GET /v1/backup" || len(needs.all) == 0 || route == "PUT /log-level" {
				continue // it has no body, or is of the other listener
			}
			body := strings.Replace(bodies[route], "1723140000000", "1", 1) // the bubble's clock is behind
			for range 5 {
				b.ask(nobody, at(route), len(body)+1, body)
			}
			select {
			case answer := <-b.ask(all, at(route), len(body), body):
				if strings.HasPrefix(answer, "503 ") || strings.HasPrefix(answer, "429 ") {
					t.Errorf("%s next to requests of a token without rights: %s", route, answer)
				}
			case <-time.After(time.Second):
				t.Errorf("%s waits for requests of a token without rights", route)
			}
		}
		for range 5 {
			b.ask(all, "POST /v1/import", 2, "\n")
		}
		b.wantAnswer(b.ask(all, "POST /v1/import", 2, "\n"), "503 ", "4 imports are under way")
		b.wantAnswer(b.ask(nobody, "POST /v1/import", 2, "\n"), "403 ", "the token does not allow admin on any topic")
	})
}

// TestNothingOfOtherTopicsIsSaid: whoever has no right to a topic does not learn of it by any
// operation, nor by what comes of patterns.
func TestNothingOfOtherTopicsIsSaid(t *testing.T) {
	limits := filepath.Join(t.TempDir(), "limits.yaml")
	if err := os.WriteFile(limits, []byte("publish: {topics: {'secret.*': {per_second: 1000}, 'open.*': {per_second: 1000}}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	h := start(t, hub.Config{Store: hub.MemoryStore, JWTSecret: jwtSecret, LimitsFile: limits, LogLevel: new(slog.LevelVar)})
	all, some := newUser(t, h, "*"), newUser(t, h, "*:open.**")
	for _, topic := range []string{"open.a", "secret.a"} {
		for _, said := range []string{
			fmt.Sprintf(`"topic":%q,"payload":1,"opts":{"id":"id1"}`, topic),
			fmt.Sprintf(`"topic":%q,"payload":2,"opts":{"caused_by":["id1"],"headers":{"x-correlation-id":"corr"}}`, topic),
			fmt.Sprintf(`"topic":%q,"payload":3,"opts":{"delay_ms":1000000}`, topic),
		} {
			if said, _ := all.say("PUBLISH", said); !strings.Contains(said, `"OK"`) {
				t.Fatal(said)
			}
		}
		if said, _ := all.say("SUBSCRIBE", fmt.Sprintf(`"topic":%q,"group":"group-of-%s"`, strings.TrimSuffix(topic, "a")+"**", topic)); !strings.Contains(said, `"OK"`) {
			t.Fatal(said)
		}
	}
	routes := h.Routes()
	asked := 0
	for _, route := range routes {
		if !strings.HasPrefix(route, "GET ") || strings.HasSuffix(route, ".json") {
			continue
		}
		for _, query := range []string{queries[route], "topic=**", "correlation_id=corr"} {
			said, _ := some.ask(route, query)
			asked++
			if strings.Contains(said, "secret") {
				t.Errorf("%s?%s says %.300s", route, query, said)
			}
		}
	}
	for _, route := range []string{"GET /v1/topics", "GET /v1/groups", "GET /v1/patterns", "GET /v1/scheduled", "GET /export", "GET /metrics", "GET /v1/events/{id}", "GET /lag"} {
		query := map[string]string{"GET /export": "topic=**"}[route]
		said, _ := all.ask(route, query)
		if !strings.Contains(said, "secret") {
			t.Errorf("%s with full rights does not say it: %.300s", route, said)
		}
		if said, _ := some.ask(route, query); !strings.Contains(said, "open") {
			t.Errorf("%s does not say what is allowed: %.300s", route, said)
		}
	}
	if said, _ := some.ask("GET /metrics", ""); !strings.Contains(said, `pattern="open.*"`) {
		t.Errorf("the limit of a pattern that is allowed does not show: %s", said)
	}
	trace, _ := some.ask("GET /v1/events/{id}/trace", "")
	if !strings.Contains(trace, `"hidden":true`) {
		t.Errorf("the trace does not say that something is hidden: %s", trace)
	}
	if asked < 60 {
		t.Errorf("only %d questions were asked", asked)
	}
}
