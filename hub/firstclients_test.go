package hub_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"eventhub/hub"
)

// attempt is something that a client tries, and whether it may. A subscribe without a group is
// a live tail.
type attempt struct {
	action, topic, group string
	want                 bool
}

// firstClients has the tokens of the programs that the protocol comes from, word for word: the
// claims that their verifier reads, the rules and scopes of their access lists. Where the
// outcome is another one than theirs, the line says why.
var firstClients = []struct {
	name, claims string
	attempts     []attempt
}{
	{"the scopes of the verifier", `{"sub":"agent","scopes":["publish:heartbeat.*","subscribe:process.**"]}`, []attempt{
		{"publish", "heartbeat.received", "", true},
		{"publish", "heartbeat", "", false},
		{"publish", "heartbeat.received.twice", "", false},
		{"publish", "process.state", "", false},
		{"subscribe", "process.state", "dashboard", true},
		{"subscribe", "process", "dashboard", true},
		{"subscribe", "process.host.state", "", true},
		{"subscribe", "heartbeat.received", "projector", false},
		{"subscribe", "heartbeat.received", "", false},
		{"read", "process.state", "", false}, // an action that they had not
		{"admin", "process.state", "", false},
	}},
	{"the same as a policy", `{"policy":{"rules":[{"effect":"allow","action":"publish","topics":["heartbeat.*"]},{"effect":"allow","action":"subscribe","topics":["process.**"]}]}}`, []attempt{
		{"publish", "heartbeat.received", "", true},
		{"publish", "process.state", "", false},
		{"subscribe", "process.state", "dashboard", true},
		{"subscribe", "heartbeat.received", "projector", false},
	}},
	{"the default scopes", `{"scopes":["publish:heartbeat.received","subscribe:process.state"]}`, []attempt{
		{"publish", "heartbeat.received", "", true},
		{"publish", "heartbeat.other", "", false},
		{"subscribe", "process.state", "dashboard", true},
		{"subscribe", "process.state", "", true},
		{"subscribe", "process.state.cpu", "dashboard", false},
	}},
	{"scopes in one text", `{"scope":"publish:heartbeat.received subscribe:process.state"}`, []attempt{
		{"publish", "heartbeat.received", "", true},
		{"publish", "process.state", "", false},
		{"subscribe", "process.state", "dashboard", true},
	}},
	{"all topics", `{"scopes":["publish:**","subscribe:**"]}`, []attempt{
		{"publish", "heartbeat.received", "", true},
		{"publish", "a", "", true},
		{"subscribe", "process.state", "dashboard", true},
		{"subscribe", "process.state", "", true},
		{"subscribe", "system.audit", "dashboard", false}, // they had no topics of the hub's own
		{"read", "process.state", "", false},
	}},
	{"a bare action", `{"scopes":["publish"]}`, []attempt{
		{"publish", "a.b.c", "", true},
		{"subscribe", "a.b.c", "g", false},
	}},
	{"all actions", `{"scopes":["*:orders.**"]}`, []attempt{
		{"publish", "orders.eu", "", true},
		{"subscribe", "orders", "g", true},
		{"subscribe", "orders.eu", "", true},
		{"read", "orders.eu", "", true},
		{"admin", "orders.eu", "", true},
		{"publish", "order", "", false},
		{"subscribe", "invoices", "g", false},
	}},
	{"all actions on all topics", `{"scopes":["*"]}`, []attempt{
		{"publish", "a", "", true}, {"subscribe", "a", "g", true}, {"read", "a", "", true}, {"admin", "a", "", true},
	}},
	{"no scopes", `{"sub":"agent"}`, []attempt{ // their service gave all rights then
		{"publish", "heartbeat.received", "", false}, {"subscribe", "process.state", "dashboard", false}, {"subscribe", "process.state", "", false},
	}},
	{"a policy before scopes", `{"scopes":["*"],"policy":{"rules":[{"effect":"allow","action":"publish","topics":["a"]}]}}`, []attempt{
		{"publish", "a", "", true}, {"publish", "b", "", false}, {"subscribe", "a", "g", false},
	}},
	{"the first rule wins", `{"policy":{"rules":[{"effect":"deny","action":"*","topics":["secret.**"]},{"effect":"allow","action":"subscribe","topics":["**"]},{"effect":"deny","action":"subscribe","topics":["open"]},{"effect":"allow","action":"publish","topics":["secret.a","open"]}]}}`, []attempt{
		{"subscribe", "secret", "g", false},
		{"subscribe", "secret.a", "", false},
		{"publish", "secret.a", "", false},
		{"subscribe", "open", "g", true},
		{"publish", "open", "", true},
		{"publish", "closed", "", false},
	}},
	{"groups", `{"policy":{"rules":[{"effect":"allow","action":"subscribe","topics":["process.state"],"groups":["dashboard","projector"]},{"effect":"allow","action":"subscribe","topics":["heartbeat.*"],"groups":["*"]},{"effect":"allow","action":"*","topics":["kv.set"],"groups":["cache"]},{"effect":"allow","action":"subscribe","topics":["log"],"groups":[]}]}}`, []attempt{
		{"subscribe", "process.state", "dashboard", true},
		{"subscribe", "process.state", "projector", true},
		{"subscribe", "process.state", "other", false},
		{"subscribe", "process.state", "", false},
		{"subscribe", "heartbeat.received", "any", true},
		{"subscribe", "heartbeat.received", "", false},
		{"subscribe", "kv.set", "cache", true},
		{"subscribe", "kv.set", "other", false},
		{"publish", "kv.set", "", true}, // of other actions groups say nothing
		{"subscribe", "log", "any", true},
		{"subscribe", "log", "", true},
	}},
	{"a tail and a rule with groups", `{"policy":{"rules":[{"effect":"deny","action":"subscribe","topics":["a"],"groups":["g"]},{"effect":"allow","action":"subscribe","topics":["a"]}]}}`, []attempt{
		{"subscribe", "a", "g", false},
		{"subscribe", "a", "h", true},
		{"subscribe", "a", "", true}, // they refused a tail at the first rule with groups
	}},
	{"** in the middle", `{"scopes":["publish:a.**.b"]}`, []attempt{
		{"publish", "a.b", "", true},
		{"publish", "a.c.d.b", "", true},
		{"publish", "a.b.c.b", "", true}, // theirs stopped at the first b
		{"publish", "a.b.c", "", false},
	}},
}

// TestFirstClientsAtEachDoor: each of their tokens allows and denies over WebSocket and HTTP
// what it says.
func TestFirstClientsAtEachDoor(t *testing.T) {
	h := start(t, hub.Config{Store: hub.MemoryStore, JWTSecret: jwtSecret, JWTAudience: "event-hub", JWTIssuer: "https://issuer.example"})
	for _, tt := range firstClients {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel() // a pull of nothing waits for a moment
			claims := map[string]any{"aud": "event-hub", "iss": "https://issuer.example", "exp": time.Now().Add(time.Hour).Unix()}
			var own map[string]any
			if err := json.Unmarshal([]byte(tt.claims), &own); err != nil {
				t.Fatal(err)
			}
			maps.Copy(claims, own)
			u := userOf(t, h, claims)
			for _, a := range tt.attempts {
				a.overWebSocket(t, u)
				a.overHTTP(t, u)
			}
		})
	}
}

// TestFirstClientsAreRefused: the answers to a client without a token, or with none that verifies,
// have the codes of the first gateway.
func TestFirstClientsAreRefused(t *testing.T) {
	h := start(t, hub.Config{Store: hub.MemoryStore, JWTSecret: jwtSecret, JWTAudience: "event-hub", JWTIssuer: "https://issuer.example"})
	u := &user{t: t, h: h, conn: dial(t, h.WSAddr())}
	defer u.conn.Close()
	claims := fmt.Sprintf(`{"exp":%d,"aud":"event-hub","iss":"https://issuer.example","scopes":["publish"]}`, time.Now().Add(time.Hour).Unix())
	for _, tt := range []struct{ frame, want string }{
		{`{"op":"PUBLISH","topic":"a","payload":1,"corr":"1"}`, `{"op":"ERR","code":"unauthorized","msg":"Call AUTH first.","corr":"1"}`},
		{`{"op":"AUTH","corr":"2"}`, `"code":"no_token"`},
		{`{"op":"AUTH","token":"` + mint(`{"alg":"HS256"}`, strings.Replace(claims, "event-hub", "other-hub", 1)) + `"}`, `"code":"jwt_invalid"`},
		{`{"op":"AUTH","token":"` + mint(`{"alg":"HS256"}`, strings.Replace(claims, "//issuer", "//other", 1)) + `"}`, `"code":"jwt_invalid"`},
		{`{"op":"AUTH","token":"` + mint(`{"alg":"HS256"}`, claims) + `","corr":"3"}`, `"op":"OK"`},
		{`{"op":"PUBLISH","topic":"a","payload":1,"corr":"4"}`, `"op":"OK"`},
		{`{"op":"SUBSCRIBE","topic":"a","group":"g","corr":"5"}`, `"code":"forbidden"`},
	} {
		u.send(tt.frame)
		if said := u.read(); !strings.Contains(said, tt.want) {
			t.Errorf("%.40s: %s; want %s", tt.frame, said, tt.want)
		}
	}
}

// overWebSocket does what the first clients did: PUBLISH and SUBSCRIBE. Theirs had no more.
func (a *attempt) overWebSocket(t *testing.T, u *user) {
	t.Helper()
	var said string
	switch a.action {
	case "publish":
		said, _ = u.say("PUBLISH", fmt.Sprintf(`"topic":%q,"payload":{"n":1}`, a.topic))
	case "subscribe":
		group := ""
		if a.group != "" {
			group = fmt.Sprintf(`,"group":%q`, a.group)
		}
		said, _ = u.say("SUBSCRIBE", fmt.Sprintf(`"topic":%q%s`, a.topic, group))
	default:
		return
	}
	want := `"op":"OK"`
	if !a.want {
		want = `"code":"forbidden"`
	}
	if !strings.Contains(said, want) {
		t.Errorf("%+v over WebSocket: %s; want %s", *a, said, want)
	}
}

// overHTTP has a request for each action.
func (a *attempt) overHTTP(t *testing.T, u *user) {
	t.Helper()
	method, path, body := http.MethodPost, "/publish/"+a.topic, `{"n":1}`
	switch {
	case a.action == "subscribe" && a.group == "":
		method, path, body = http.MethodGet, "/v1/topics/"+a.topic+"/stream", ""
	case a.action == "subscribe":
		path, body = "/v1/topics/"+a.topic+"/groups/"+a.group+"/pull", ""
	case a.action == "read":
		method, path, body = http.MethodGet, "/replay?topic="+a.topic, ""
	case a.action == "admin":
		path, body = "/v1/topics/"+a.topic+"/trim?keep=1", "" // a plan
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://"+u.h.HTTPAddr()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+u.token)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if isOK := answer.StatusCode == http.StatusOK; isOK || a.want { // a stream has no end
		if isOK != a.want {
			t.Errorf("%+v over HTTP: status %d", *a, answer.StatusCode)
		}
		return
	}
	said, err := io.ReadAll(io.LimitReader(answer.Body, 1<<10))
	if err != nil || answer.StatusCode != http.StatusForbidden || !strings.Contains(string(said), `"code":"forbidden"`) {
		t.Errorf("%+v over HTTP: status %d, %s, %v; want 403, forbidden", *a, answer.StatusCode, said, err)
	}
}
