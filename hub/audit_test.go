package hub_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/hub"
)

// acts are the operations of administrators that the audit has, by their routes; plans and
// listings, which it has not, are empty.
var acts = map[string]struct{ action, query string }{
	"DELETE /v1/topics/{topic}":                     {"topic_delete", ""},
	"POST /v1/topics/{topic}/trim":                  {"trim", "keep=1&apply=1"},
	"POST /v1/topics/{topic}/erase":                 {"erase", "offset=2&apply=1"},
	"DELETE /v1/topics/{topic}/groups/{group}":      {"group_delete", ""},
	"POST /v1/topics/{topic}/groups/{group}/seek":   {"group_seek", "apply=1"},
	"POST /v1/topics/{topic}/groups/{group}/pause":  {"group_pause", ""},
	"POST /v1/topics/{topic}/groups/{group}/resume": {"group_resume", ""},
	"PUT /v1/topics/{topic}":                        {"settings_set", ""},
	"DELETE /v1/topics/{topic}/settings":            {"settings_unset", ""},
	"DELETE /v1/patterns":                           {"group_delete", "group=g&pattern=open.*"},
	"POST /v1/import":                               {"import", ""},
	"POST /v1/dlq/{topic}/redrive":                  {"redrive", "apply=1"},
	"POST /v1/dlq/{topic}/{offset}/requeue":         {"requeue", ""},
	"GET /v1/backup":                                {"backup", ""},
	"DELETE /v1/connections/{id}":                   {"connection_close", ""},
	"PUT /log-level":                                {"log_level", ""},
	"POST /v1/topics/{topic}/settings/plan":         {},
	"GET /v1/connections":                           {},
	"GET /log-level":                                {},
	"GET /cluster":                                  {},
}

// audited follows system.audit and returns the first mark for which is holds.
func (u *user) audited(is func(m *admin.AuditMark) bool) (found admin.AuditMark) {
	u.t.Helper()
	if err := u.conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		u.t.Fatal(err)
	}
	for {
		var frame struct {
			Op    string
			Event struct{ Payload admin.AuditMark }
		}
		said := u.read()
		if err := json.Unmarshal([]byte(said), &frame); err != nil {
			u.t.Fatalf("%s: %v", said, err)
		}
		if frame.Op == "EVENT" && is(&frame.Event.Payload) {
			return frame.Event.Payload
		}
	}
}

// follows returns somebody who reads the audit from its beginning.
func follows(t *testing.T, h *hub.Hub) *user {
	t.Helper()
	u := newUser(t, h, "*")
	if said, _ := u.say("SUBSCRIBE", `"topic":"system.audit","opts":{"from":"earliest"}`); !strings.Contains(said, `"op":"OK"`) {
		t.Fatal(said)
	}
	return u
}

// TestEveryActIsAudited: each operation that needs admin leaves a mark, with who did it, from
// where, and what came of it, whether it succeeded or not; plans and listings leave none.
func TestEveryActIsAudited(t *testing.T) {
	var wanted []string
	for name, row := range rightsTable(t) {
		if slices.Contains(row.all, "admin") {
			if _, ok := acts[name]; !ok {
				t.Errorf("%s needs admin, and nothing says how it is audited", name)
			}
			wanted = append(wanted, name)
		}
	}
	if len(wanted) != len(acts) {
		t.Errorf("%d operations need admin; %d are known", len(wanted), len(acts))
	}
	slices.Sort(wanted)
	slices.Reverse(wanted) // the topic is deleted last
	h := start(t, hub.Config{Store: hub.MemoryStore, JWTSecret: jwtSecret, LogLevel: new(slog.LevelVar)})
	if _, err := h.Bus().Publish(t.Context(), eventhub.Event{Topic: "open.a", ID: "id1", Payload: []byte("1")}, eventhub.Event{Topic: "open.a", ID: "id2", Payload: []byte("2")}); err != nil {
		t.Fatal(err)
	}
	reader, ann := follows(t, h), newUser(t, h, "*")
	if said, _ := ann.say("SUBSCRIBE", `"topic":"open.a","group":"g","opts":{"from":"earliest"}`); !strings.Contains(said, `"op":"OK"`) {
		t.Fatal(said)
	}
	missing := make(map[string]int)
	outcomes := make(map[string]bool)
	for _, name := range append(wanted, "POST /v1/topics/{topic}/erase") { // the second one erases nothing
		answer, _ := ann.ask(name, acts[name].query)
		transport, outcome := "http", "ok"
		if at := strings.Index(answer, `"code":"`); at >= 0 {
			outcome, _, _ = strings.Cut(answer[at+len(`"code":"`):], `"`)
		}
		outcomes[outcome] = true
		if strings.HasSuffix(name, "log-level") {
			transport = "ops" // on the one listener that there is
		}
		action := acts[name].action
		if action == "" || action == "erase" && outcome == "ok" { // which has a mark of its own
			continue
		}
		missing[fmt.Sprint(action, " ", transport, " ", outcome)]++
	}
	if !outcomes["ok"] || len(outcomes) < 3 {
		t.Errorf("all outcomes are %v", outcomes)
	}
	reader.audited(func(m *admin.AuditMark) bool {
		if m.Action == "auth" || m.Transport == "" {
			return false
		}
		key := fmt.Sprint(m.Action, " ", m.Transport, " ", m.Outcome)
		if m.By != "ann" || m.Remote != "127.0.0.1" || missing[key] < m.Count {
			t.Fatalf("not expected: %+v; missing are %v", m, missing)
		}
		if missing[key] -= m.Count; missing[key] == 0 {
			delete(missing, key)
		}
		return len(missing) == 0
	})
}

// TestAuthAndDenialsAreAudited at each door, with the address and the reason; what is done by
// right, and the token, are no part of it.
func TestAuthAndDenialsAreAudited(t *testing.T) {
	log := new(lines)
	h := start(t, hub.Config{
		Store: hub.MemoryStore, JWTSecret: jwtSecret, WSAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0", OpsAddr: "127.0.0.1:0",
		Logger: slog.New(slog.NewTextHandler(log, nil)),
	})
	const wrong = "guessed.by.somebody"
	reader, ann := follows(t, h), newUser(t, h, "publish:open.**")
	for _, url := range []string{"http://" + h.HTTPAddr() + "/v1/topics", "http://" + h.OpsAddr() + "/metrics"} {
		for _, token := range []string{wrong, ann.token} {
			answer := get(t, url, token)
			answer.Body.Close()
			if want := map[string]int{wrong: http.StatusUnauthorized}[token]; want != 0 && answer.StatusCode != want {
				t.Errorf("%s: %d", url, answer.StatusCode)
			}
		}
	}
	for _, topic := range []string{"open.a", "secret.a", "secret.b", "secret.c"} {
		said, denied := ann.say("PUBLISH", fmt.Sprintf(`"topic":%q,"payload":"hidden"`, topic))
		if denied == (topic == "open.a") {
			t.Errorf("%s: %s", topic, said)
		}
	}
	stranger := dial(t, h.WSAddr())
	defer stranger.Close()
	for _, frame := range []string{`{"op":"PAUSE"}`, `{"op":"AUTH","token":"` + wrong + `"}`} {
		if _, err := stranger.Write(masked([]byte(frame))); err != nil {
			t.Fatal(err)
		}
	}
	missing := map[string]int{
		"auth ann ws  ok":         2, // the reader too
		"auth  http  jwt_invalid": 1, "auth  ops  jwt_invalid": 1, "auth  ws  jwt_invalid": 1, "auth  ws  unauthorized": 1,
		"denied ann ops read forbidden": 1, "denied ann ws publish forbidden": 3,
	}
	denials := make(map[string]bool)
	reader.audited(func(m *admin.AuditMark) bool {
		key := fmt.Sprintf("%s %s %s %s %s", m.Action, m.By, m.Transport, m.Right, m.Outcome)
		if m.Remote != "127.0.0.1" || missing[key] < m.Count {
			t.Fatalf("not expected: %+v", m)
		}
		if m.Topic != "" {
			denials[m.Topic] = true
		}
		if missing[key] -= m.Count; missing[key] == 0 {
			delete(missing, key)
		}
		return len(missing) == 0
	})
	if !denials["secret.a"] {
		t.Errorf("the topics are %v; want the first one that was denied", denials)
	}
	if text := log.String(); !strings.Contains(text, "level=INFO msg=audit action=denied by=ann transport=ws remote=127.0.0.1 right=publish topic=secret.a outcome=forbidden count=") ||
		strings.Contains(text, wrong) || strings.Contains(text, ann.token) || strings.Contains(text, "hidden") {
		t.Errorf("the log is\n%s", text)
	}
}

// TestOpenHubAudits what is done to it by anonymous clients, and not that they come.
func TestOpenHubAudits(t *testing.T) {
	h := start(t, hub.Config{Store: hub.MemoryStore})
	conn := connect(t, h.WSAddr())
	defer conn.Close()
	u := &user{t: t, h: h, conn: conn, token: "any"}
	if said, _ := u.say("SUBSCRIBE", `"topic":"system.audit","opts":{"from":"earliest"}`); !strings.Contains(said, `"op":"OK"`) {
		t.Fatal(said)
	}
	u.ask("PUT /v1/topics/{topic}", "")
	want := admin.AuditMark{Action: "settings_set", By: "anonymous", Transport: "http", Remote: "127.0.0.1", Topic: "open.a", Outcome: "ok", Count: 1}
	if got := u.audited(func(*admin.AuditMark) bool { return true }); got != want {
		t.Errorf("the first mark is %+v; want %+v", got, want)
	}
}
