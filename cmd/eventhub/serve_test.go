package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gobwas/ws"
)

// TestSeedClient speaks to the hub as the seeds' clients do, frame for frame.
func TestSeedClient(t *testing.T) {
	hub := startHub(t, "--store", "memory:", "--auth-token", "devtoken")
	c := dial(t, hub.ws, "devtoken")
	c.sayText([]byte(`{"op":"SUBSCRIBE","topic":"heartbeat.received","group":"ops","opts":{"from":"earliest","batchSize":100},"corr":"a1"}`))
	if f := c.hear(); f.Op != "OK" || f.Corr != "a1" {
		t.Fatalf("SUBSCRIBE was answered by %+v", f)
	}
	c.sayText([]byte(`{"op":"PUBLISH","topic":"heartbeat.received","payload":{"pid":12345,"name":"stt","host":"dev","cpu_pct":12.3,"mem_mb":256},"opts":{"tags":["#duck","#stt"]}}`))
	var ok, event frame
	for range 2 { // the OK and the EVENT, in either order
		if f := c.hear(); f.Op == "OK" {
			ok = f
		} else {
			event = f
		}
	}
	if ok.ID == "" || ok.Offset != 1 || event.Op != "EVENT" || event.Event.ID != ok.ID ||
		event.Topic != "heartbeat.received" || event.Group != "ops" || event.Ctx.Attempt != 1 {
		t.Fatalf("got %+v and %+v", ok, event)
	}
	if string(event.Event.Payload) != `{"pid":12345,"name":"stt","host":"dev","cpu_pct":12.3,"mem_mb":256}` {
		t.Errorf("payload came back as %s", event.Event.Payload)
	}
	c.sayText(fmt.Appendf(nil, `{"op":"MODACK","topic":"heartbeat.received","group":"ops","id":%q,"extend_ms":60000,"corr":"m"}`, ok.ID))
	if f := c.hear(); f.Op != "OK" || f.Corr != "m" {
		t.Errorf("MODACK was answered by %+v", f)
	}
	c.sayText(fmt.Appendf(nil, `{"op":"ACK","topic":"heartbeat.received","group":"ops","id":%q}`, ok.ID))
	c.sayText([]byte(`{"op":"UNSUBSCRIBE","topic":"heartbeat.received","group":"ops","corr":"u"}`))
	if f := c.hear(); f.Op != "OK" || f.Corr != "u" {
		t.Errorf("UNSUBSCRIBE was answered by %+v; the ACK without corr has no answer", f)
	}
}

// TestBadFrames: each is answered by its code, and the connection lives on.
func TestBadFrames(t *testing.T) {
	hub := startHub(t, "--store", "memory:")
	c := dialOnly(t, hub.ws)
	for _, tt := range []struct{ text, code, says string }{
		{`{"op":"PUBLISH","topic":"t","payload":1,"corr":"x"}`, "unauthorized", "Call AUTH first."},
		{`{"op":"AUTH","corr":"x"}`, "", ""},
		{`{"op":`, "bad_json", ""},
		{`[]`, "bad_json", ""},
		{`{"op":"PUBLISH","op":"AUTH","corr":"x"}`, "bad_json", "op"},
		{`{"op":"PUBLISH","corr":"x","topic":"t","payload":{"a":1,"a":2}}`, "bad_json", "a"},
		{`{"op":"DANCE","corr":"x"}`, "unsupported_op", "DANCE"},
		{`{"corr":"x"}`, "bad_request", "op"},
		{`{"op":"PUBLISH","corr":"x","payload":1}`, "bad_topic", "topic"},
		{`{"op":"PUBLISH","corr":"x","topic":"a b","payload":1}`, "bad_topic", "a b"},
		{`{"op":"PUBLISH","corr":"x","topic":"t"}`, "bad_request", "payload"},
		{`{"op":"PUBLISH","corr":"x","topic":"t","payload":1,"opts":{"id":7}}`, "bad_request", "id"},
		{`{"op":"PUBLISH","corr":"x","topic":"t","payload":1,"opts":{"id":"a b"}}`, "bad_event", "a b"},
		{`{"op":"PUBLISH","corr":"x","topic":"t","payload":1,"opts":{"nonsense":1}}`, "bad_request", "nonsense"},
		{`{"op":"PUBLISH","corr":"x","topic":"t.dlq","payload":1}`, "forbidden", "t.dlq"},
		{`{"op":"SUBSCRIBE","corr":"x","topic":"a.b*","group":"g"}`, "bad_topic", "b*"},
		{`{"op":"SUBSCRIBE","corr":"x","topic":"a.**.**","group":"g"}`, "bad_topic", "twice"},
		{`{"op":"SUBSCRIBE","corr":"x","topic":"a.*","group":"g","opts":{"filter":"event.key =="}}`, "bad_request", "1:13"},
		{`{"op":"PUBLISH","corr":"x","topic":"t","payload":1,"opts":{"delay_ms":-1}}`, "bad_event", "delay_ms"},
		{`{"op":"PUBLISH","corr":"x","topic":"t","payload":1,"opts":{"delay_ms":31536000001}}`, "bad_event", "a year"},
		{`{"op":"PUBLISH","corr":"x","topic":"t","payload":1,"opts":{"wait_for":["nobody"]}}`, "not_subscribed", "nobody"},
		{`{"op":"PUBLISH","corr":"x","events":[{"topic":"t","payload":1},{"topic":"a b","payload":1}]}`, "bad_topic", "events[1]"},
		{`{"op":"CANCEL","corr":"x","topic":"t","id":"nobody"}`, "unknown_id", "nobody"},
		{`{"op":"SUBSCRIBE","corr":"x","topic":"t","group":"g","opts":{"from":"after_id","after_id":"nobody"}}`, "unknown_id", "nobody"},
		{`{"op":"SUBSCRIBE","corr":"x","topic":"t","group":"g","opts":{"ack_timeout_ms":1}}`, "bad_request", "ack_timeout_ms"},
		{`{"op":"ACK","corr":"x","topic":"t","group":"g","id":"i"}`, "not_subscribed", `topic "t" as group "g"`},
		{`{"op":"UNSUBSCRIBE","corr":"x","topic":"t","group":"g"}`, "not_subscribed", `topic "t" as group "g"`},
		{`{"op":"SUBSCRIBE","corr":"x","topic":"t","group":"g"}`, "", ""},
		{`{"op":"SUBSCRIBE","corr":"x","topic":"t","group":"g"}`, "already_subscribed", `topic "t" as group "g"`},
		{`{"op":"MODACK","corr":"x","topic":"t","group":"g","id":"i"}`, "unknown_id", ""},
		{`{"op":"PUBLISH","corr":"x","topic":"u","payload":null}`, "", ""},
	} {
		c.sayText([]byte(tt.text))
		f := c.hear()
		want := "ERR"
		if tt.code == "" {
			want = "OK"
		}
		if f.Op != want || f.Code != tt.code || !strings.Contains(f.Msg, tt.says) {
			t.Errorf("%s\n\tanswered by %+v; want %s %s with %q", tt.text, f, want, tt.code, tt.says)
		}
		if strings.Contains(tt.text, `"corr":"x"`) && !strings.Contains(tt.text, `"op":"AUTH","corr"`) && f.Corr != "x" && f.Code != "bad_json" {
			t.Errorf("%s\n\tanswered without its corr: %+v", tt.text, f)
		}
	}
	// Too large: closed with 1009, and the hub goes on.
	big := fmt.Appendf(nil, `{"op":"PUBLISH","topic":"t","payload":%q}`, strings.Repeat("x", 1<<21))
	_ = ws.WriteFrame(c.Conn, ws.MaskFrame(ws.NewTextFrame(big))) // the hub closes while it is written
	if code := closeCode(t, c); code != 1009 {
		t.Errorf("closed with %d after an oversized frame; want 1009", code)
	}
	dial(t, hub.ws, "")
}

// closeCode reads until the hub's close frame.
func closeCode(t *testing.T, c *conn) ws.StatusCode {
	t.Helper()
	for {
		h, err := ws.ReadHeader(c.Conn)
		if err != nil {
			t.Fatalf("no close frame: %v", err)
		}
		payload := make([]byte, min(h.Length, 1<<20))
		if _, err := io.ReadFull(c.Conn, payload); err != nil {
			t.Fatal(err)
		}
		if h.OpCode == ws.OpClose {
			code, _ := ws.ParseCloseFrameData(payload)
			return code
		}
	}
}

func TestGracefulStop(t *testing.T) {
	dir := t.TempDir()
	hub := startHub(t, "--store", dir)
	resp, err := http.Get("http://" + hub.ops + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Errorf("/readyz: %d %s", resp.StatusCode, body)
	}
	c := dial(t, hub.ws, "")
	c.sayText([]byte(`{"op":"SUBSCRIBE","topic":"t","group":"g","opts":{"from":"earliest"}}`))
	c.hear()
	c.sayText([]byte(`{"op":"PUBLISH","topic":"t","payload":1,"opts":{"id":"a"}}`))
	for range 2 {
		c.hear()
	}
	c.sayText([]byte(`{"op":"ACK","topic":"t","group":"g","id":"a","corr":"k"}`))
	c.hear()
	if err := hub.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := closeCode(t, c); code != 1001 {
		t.Errorf("closed with %d; want 1001", code)
	}
	if code := hub.exitCode(); code != 0 {
		t.Errorf("exit code %d:\n%s", code, hub.logged())
	}
	// The ack that was answered just before is on disk.
	again := startHub(t, "--store", dir)
	c = dial(t, again.ws, "")
	c.sayText([]byte(`{"op":"SUBSCRIBE","topic":"t","group":"g"}`))
	c.hear()
	c.sayText([]byte(`{"op":"PUBLISH","topic":"t","payload":2,"opts":{"id":"b"}}`))
	for range 2 {
		if f := c.hear(); f.Op == "EVENT" && f.Event.ID != "b" {
			t.Errorf("%s was delivered again", f.Event.ID)
		}
	}
}

// TestDeadMember: the leases of a member whose connection breaks go to the
// other member at once.
func TestDeadMember(t *testing.T) {
	hub := startHub(t, "--store", "memory:")
	subscribe := `{"op":"SUBSCRIBE","topic":"t","group":"g","opts":{"from":"earliest","max_in_flight":1000,"ack_timeout_ms":3600000}}`
	dying := dial(t, hub.ws, "")
	dying.sayText([]byte(subscribe))
	dying.hear()
	publisher := dial(t, hub.ws, "")
	const n = 200
	for range n {
		publisher.sayText([]byte(`{"op":"PUBLISH","topic":"t","payload":1}`))
		publisher.hear()
	}
	for range n {
		dying.hear()
	}
	heir := dial(t, hub.ws, "")
	heir.sayText([]byte(subscribe))
	heir.hear()
	dying.Close() // no close frame: as a process that dies
	seen := make(map[uint64]bool)
	for range n {
		f := heir.hear() // the leases would run for an hour
		if f.Ctx.Attempt != 2 {
			t.Fatalf("attempt %d", f.Ctx.Attempt)
		}
		seen[f.Event.Offset] = true
	}
	if len(seen) != n {
		t.Errorf("%d of %d events reached the other member", len(seen), n)
	}
}

func TestExitCodes(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	held := t.TempDir()
	startHub(t, "--store", held)
	other := t.TempDir()
	if err := os.WriteFile(filepath.Join(other, "precious"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(other, "precious")
	free := []string{"--ws", "127.0.0.1:0", "--http", "127.0.0.1:0", "--ops", "127.0.0.1:0"}
	serve := func(args ...string) []string { return append(append([]string{"serve"}, free...), args...) }
	for _, tt := range []struct {
		name string
		env  []string
		args []string
		code int
		says []string
	}{
		{"version", nil, []string{"version"}, 0, nil},
		{"help", nil, []string{"--help"}, 0, nil},
		{"unknown flag", nil, []string{"serve", "--nonsense"}, 2, []string{"--nonsense"}},
		{"unknown command", nil, []string{"dance"}, 2, []string{"dance"}},
		{"superfluous argument", nil, []string{"serve", "now"}, 2, []string{"now"}},
		{"bad port", nil, []string{"serve", "--ws", "127.0.0.1:99999"}, 2, []string{"--ws", "99999"}},
		{"bad environment", []string{"WS_PORT=many"}, []string{"serve"}, 2, []string{"WS_PORT", "many"}},
		{"bad grace", []string{"EVENTHUB_GRACE=soon"}, []string{"serve"}, 2, []string{"EVENTHUB_GRACE", "soon"}},
		{"bad log level", nil, serve("--log-level", "loud"), 2, []string{"loud"}},
		{"bad journal", []string{"MONGO_URL=mongodb://127.0.0.1/a.b"}, serve(), 2, []string{"journal", `"a.b"`, "MONGO_URL"}},
		{"journal without a disk", []string{"MONGO_URL=mongodb://127.0.0.1/x"}, serve("--store", "memory:"), 2, []string{"a journal needs a store on the disk", "MONGO_URL"}},
		{"open to the network", nil, []string{"serve", "--ws", "0.0.0.0:0"}, 2, []string{"0.0.0.0", "AUTH_TOKEN", "--insecure"}},
		{"port in use", nil, []string{"serve", "--store", "memory:", "--http", "127.0.0.1:0", "--ops", "127.0.0.1:0", "--ws", taken.Addr().String()}, 1, []string{taken.Addr().String(), "in use"}},
		{"store locked", nil, serve("--store", held), 1, []string{held}},
		{"foreign directory", nil, serve("--store", other), 1, []string{other}},
		{"store is a file", nil, serve("--store", file), 1, []string{file}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, stdout, stderr := runBinary(t, tt.env, tt.args...)
			if code != tt.code {
				t.Errorf("exit code %d; want %d\n%s", code, tt.code, stderr)
			}
			for _, part := range tt.says {
				if !strings.Contains(stderr, part) {
					t.Errorf("stderr lacks %q:\n%s", part, stderr)
				}
			}
			if tt.code != 0 && stdout != "" {
				t.Errorf("stdout of a failure: %s", stdout)
			}
		})
	}
}

// TestHTTPPublish: what is posted over HTTP is delivered over WebSocket.
func TestHTTPPublish(t *testing.T) {
	hub := startHub(t, "--store", "memory:", "--auth-token", "s3cret")
	c := dial(t, hub.ws, "s3cret")
	c.sayText([]byte(`{"op":"SUBSCRIBE","topic":"t","group":"g","opts":{"from":"earliest","manual_ack":false}}`))
	c.hear()
	post := func(path, body, token string) (int, string) {
		t.Helper()
		r, err := http.NewRequest("POST", "http://"+hub.http+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		answer, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(answer)
	}
	if status, answer := post("/publish/t", `1`, "wrong"); status != 401 || !strings.Contains(answer, "bad_token") {
		t.Errorf("a wrong token was answered by %d %s", status, answer)
	}
	if status, answer := post("/publish/t?id=first&key=k", `{"n":1.0}`, "s3cret"); status != 200 || strings.TrimSpace(answer) != `{"id":"first","offset":1}` {
		t.Errorf("answered %d %s", status, answer)
	}
	if status, answer := post("/v1/publish", `{"events":[{"topic":"t","payload":2},{"topic":"t.dlq","payload":3}]}`, "s3cret"); status != 403 {
		t.Errorf("a batch with an event for a topic of the hub's own was answered by %d %s", status, answer)
	}
	if status, answer := post("/v1/publish", `{"events":[{"topic":"t","payload":4},{"topic":"t","payload":5}]}`, "s3cret"); status != 200 || !strings.Contains(answer, `"offset":3`) {
		t.Errorf("answered %d %s", status, answer)
	}
	for offset, payload := range []string{`{"n":1.0}`, `4`, `5`} {
		if f := c.hear(); f.Event.Offset != uint64(offset+1) || string(f.Event.Payload) != payload {
			t.Errorf("event %d is %+v", offset+1, f)
		}
	}
}
