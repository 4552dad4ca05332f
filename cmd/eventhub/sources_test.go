package main

import (
	"net"
	"os/exec"
	"strings"
	"testing"
)

// TestSourcesAreNamed: the line of a hub that is up, and every refusal to start, say which
// flag, variable or file a setting came from, since a variable may be another program's.
func TestSourcesAreNamed(t *testing.T) {
	file := writeFile(t, "hub.yaml", "drain: 0s\ngrace: 3s\n")
	cmd := exec.Command(binary, "serve", "--config", file, "--ws", "127.0.0.1:0", "--ops", "127.0.0.2:0", "--store", "memory:")
	cmd.Env = cleanEnv("HTTP_PORT=0", "EVENTHUB_LOG_FORMAT=text", "EVENTHUB_AUTH_TOKEN="+sentinel)
	p := launch(t, cmd)
	if !p.serves() {
		t.Fatalf("the hub ended at once:\n%s", p.logged())
	}
	for _, part := range []string{
		`settings="ws from flag --ws, http from env HTTP_PORT, ops from flag --ops, store from flag --store, ` +
			`auth_token from env EVENTHUB_AUTH_TOKEN, grace from file ` + file + `:2, drain from file ` + file + `:1, ` +
			`log_format from env EVENTHUB_LOG_FORMAT; all others are defaults"`,
	} {
		if !strings.Contains(p.logged(), part) {
			t.Errorf("the log lacks %s:\n%s", part, p.logged())
		}
	}
	if strings.Contains(p.logged(), sentinel) {
		t.Errorf("the log shows a secret:\n%s", p.logged())
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	free := []string{"--ws", "127.0.0.1:0", "--http", "localhost:0", "--ops", "127.0.0.2:0"}
	for _, r := range []struct {
		env, args []string
		code      int
		says      []string
	}{
		{[]string{"HTTP_PORT=" + taken.Addr().String()}, []string{"--ws", "127.0.0.1:0", "--ops", "127.0.0.2:0", "--store", "memory:"}, 1,
			[]string{"can not listen on " + taken.Addr().String(), "(http from env HTTP_PORT)"}},
		{nil, []string{"--ws", taken.Addr().String(), "--http", "localhost:0", "--ops", "127.0.0.2:0", "--store", "memory:"}, 1,
			[]string{"can not listen on", "(ws from flag --ws)"}},
		{[]string{"MONGO_URL=mongodb://u:" + sentinel + "@h/a.b"}, free, 2, []string{`journal: the database is "a.b"`, "(journal from env MONGO_URL)"}},
		{[]string{"EVENTHUB_STORE=mongodb://u:" + sentinel + "@h/x"}, free, 2, []string{"store mongodb://…", "(store from env EVENTHUB_STORE)"}},
		{[]string{"EVENTHUB_STORE=/proc/nowhere"}, free, 1, []string{"/proc/nowhere", "(store from env EVENTHUB_STORE)"}},
		{[]string{"WS_PORT=0.0.0.0:1"}, nil, 2, []string{`ws address "0.0.0.0:1"`, "(ws from env WS_PORT)"}},
		{[]string{"WS_TOKEN=two words"}, nil, 2, []string{"auth_token: it has at byte 3", "(auth_token from env WS_TOKEN)"}},
		{[]string{"EVENTHUB_MAX_MESSAGE_MEMORY=99999999999999"}, nil, 2, []string{"max message memory", "(max_message_memory from env EVENTHUB_MAX_MESSAGE_MEMORY)"}},
	} {
		code, stdout, stderr := runBinary(t, r.env, append([]string{"serve"}, r.args...)...)
		if code != r.code || strings.Contains(stdout+stderr, sentinel) {
			t.Errorf("%v %v: exit code %d; want %d\n%s", r.env, r.args, code, r.code, stderr)
		}
		for _, part := range r.says {
			if !strings.Contains(stderr, part) {
				t.Errorf("%v %v: lacks %q:\n%s", r.env, r.args, part, stderr)
			}
		}
	}
	code, stdout, stderr := runBinary(t, []string{"HTTP_PORT=9001"}, "config", "check", "--store", "memory:")
	if want := "http 127.0.0.1:9001 (env HTTP_PORT), ops 127.0.0.1:8082 (default)\n"; code != 0 || !strings.HasSuffix(stdout, want) {
		t.Errorf("config check: %d, %q; want %q\n%s", code, stdout, want, stderr)
	}
}
