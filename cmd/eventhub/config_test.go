package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"eventhub/cmd/eventhub/internal/config"
	"eventhub/hub"
)

var updateDocs = flag.Bool("update-configuration", false, "write the table and the output of docs/configuration.md")

// sentinel is the secret that must show nowhere.
const sentinel = "S3NTINEL"

// keyValues has, for every key, what file, environment and flag give in turn,
// and what a hub is then configured with. A key without a row fails.
var keyValues = map[string]struct {
	file, env, flag string
	want            [3]any
}{
	"ws":                  {"9001", "9002", "h:9003", [3]any{"127.0.0.1:9001", "127.0.0.1:9002", "h:9003"}},
	"http":                {"9001", "9002", "h:9003", [3]any{"127.0.0.1:9001", "127.0.0.1:9002", "h:9003"}},
	"ops":                 {"9001", "9002", "h:9003", [3]any{"127.0.0.1:9001", "127.0.0.1:9002", "h:9003"}},
	"store":               {"a", "'b'", "c d", [3]any{"a", "'b'", "c d"}},
	"auth_token":          {"0123", "b", "c", [3]any{"0123", "b", "c"}},
	"auth_token_file":     {"testdata/token-a", "testdata/token-b", "testdata/token-c", [3]any{"from a", "from b", "from c"}},
	"auth_tokens_file":    {"a.yaml", "b.yaml", "c.yaml", [3]any{"a.yaml", "b.yaml", "c.yaml"}},
	"jwt_secret":          {"a", "b", "c", [3]any{"a", "b", "c"}},
	"jwt_secret_file":     {"testdata/token-a", "testdata/token-b", "testdata/token-c", [3]any{"from a", "from b", "from c"}},
	"jwt_jwks_url":        {"https://a", "https://b", "https://c", [3]any{"https://a", "https://b", "https://c"}},
	"jwt_key_file":        {"a.pem", "b.pem", "c d.pem", [3]any{"a.pem", "b.pem", "c d.pem"}},
	"jwt_aud":             {"a", "b", "c", [3]any{"a", "b", "c"}},
	"jwt_iss":             {"https://a", "https://b", "https://c", [3]any{"https://a", "https://b", "https://c"}},
	"tls_cert_file":       {"a.pem", "b.pem", "c d.pem", [3]any{"a.pem", "b.pem", "c d.pem"}},
	"tls_key_file":        {"a.pem", "b.pem", "c d.pem", [3]any{"a.pem", "b.pem", "c d.pem"}},
	"insecure":            {"true", "false", "true", [3]any{true, false, true}},
	"origin":              {"[http://a, http://b]", "http://c,http://d", "http://e", [3]any{[]string{"http://a", "http://b"}, []string{"http://c", "http://d"}, []string{"http://e"}}},
	"trusted_proxies":     {"[10.0.0.0/8, 192.0.2.1]", "192.0.2.2,2001:db8::/32", "192.0.2.3", [3]any{[]string{"10.0.0.0/8", "192.0.2.1"}, []string{"192.0.2.2", "2001:db8::/32"}, []string{"192.0.2.3"}}},
	"auth_query_token":    {"true", "false", "true", [3]any{true, false, true}},
	"limits_file":         {"a.yaml", "b.yaml", "c d.yaml", [3]any{"a.yaml", "b.yaml", "c d.yaml"}},
	"console":             {"off", "on", "OFF", [3]any{"off", "on", "off"}},
	"maintenance":         {"off", "on", "OFF", [3]any{"off", "on", "off"}},
	"durability":          {"interval", "sync", "INTERVAL", [3]any{"interval", "sync", "interval"}},
	"topics_file":         {"a.yaml", "b.yaml", "c d.yaml", [3]any{"a.yaml", "b.yaml", "c d.yaml"}},
	"max_unauthenticated": {"1_000", "2", "3", [3]any{1000, 2, 3}},
	"max_publish_wait":    {"1m", "2s", "3s", [3]any{time.Minute, 2 * time.Second, 3 * time.Second}},
	"max_topics":          {"1_000", "2", "3", [3]any{1000, 2, 3}},
	"max_producers":       {"1_000", "2", "3", [3]any{1000, 2, 3}},
	"producers_kept":      {"1h", "2h", "3m", [3]any{time.Hour, 2 * time.Hour, 3 * time.Minute}},
	"memory_limit":        {"400", "500", "600", [3]any{400, 500, 600}},
	"max_message_memory":  {"40", "50", "60", [3]any{40, 50, 60}},
	"metrics_labels":      {"4", "5", "6", [3]any{4, 5, 6}},
	"metrics_histograms":  {"7", "8", "9", [3]any{7, 8, 9}},
	"outbox":              {"sqlite:a", "sqlite:///b", "postgres://h/c", [3]any{"sqlite:a", "sqlite:///b", "postgres://h/c"}},
	"outbox_order":        {"topic", "key", "TOPIC", [3]any{"topic", "key", "topic"}},
	"outbox_keep":         {"1h", "2h", "3m", [3]any{time.Hour, 2 * time.Hour, 3 * time.Minute}},
	"journal":             {"nats://a:1/s", "nats://b:2/s", "none", [3]any{"nats://a:1/s", "nats://b:2/s", "none"}},
	"member_id":           {"a", "b", "c", [3]any{"a", "b", "c"}},
	"member_url":          {"ws://a:1", "ws://b:2", "ws://c:3", [3]any{[]string{"ws://a:1"}, []string{"ws://b:2"}, []string{"ws://c:3"}}},
	"member_token":        {"a", "b", "c", [3]any{"a", "b", "c"}},
	"member_token_file":   {"testdata/token-a", "testdata/token-b", "testdata/token-c", [3]any{"from a", "from b", "from c"}},
	"member_ca_file":      {"a.pem", "b.pem", "c d.pem", [3]any{"a.pem", "b.pem", "c d.pem"}},
	"lease":               {"1s", "2s", "3m", [3]any{time.Second, 2 * time.Second, 3 * time.Minute}},
	"project":             {"off", "on", "OFF", [3]any{"off", "on", "off"}},
	"project_state":       {"a", "b.*", "c", [3]any{[]string{"a"}, []string{"b.*"}, []string{"c"}}},
	"grace":               {"1s", "2s", "3m", [3]any{time.Second, 2 * time.Second, 3 * time.Minute}},
	"drain":               {"4s", "5s", "6m", [3]any{4 * time.Second, 5 * time.Second, 6 * time.Minute}},
	"log_format":          {"json", "text", "JSON", [3]any{"json", "text", "json"}},
	"log_level":           {"debug", "WARN", "error", [3]any{slog.LevelDebug, slog.LevelWarn, slog.LevelError}},
}

// effect returns what the hub or its logger is configured with.
func effect(s *config.Settings, key string) any {
	c := hubConfig(s)
	switch key {
	case "ws":
		return c.WSAddr
	case "http":
		return c.HTTPAddr
	case "ops":
		return c.OpsAddr
	case "store":
		return c.Store
	case "auth_token", "auth_token_file":
		return c.AuthToken
	case "auth_tokens_file":
		return c.AuthTokensFile
	case "jwt_secret", "jwt_secret_file":
		return c.JWTSecret
	case "member_token", "member_token_file":
		return c.MemberToken
	case "member_ca_file":
		return c.MemberCAFile
	case "jwt_jwks_url":
		return c.JWKSURL
	case "jwt_key_file":
		return c.JWTKeyFile
	case "jwt_aud":
		return c.JWTAudience
	case "jwt_iss":
		return c.JWTIssuer
	case "tls_cert_file":
		return c.TLSCertFile
	case "tls_key_file":
		return c.TLSKeyFile
	case "trusted_proxies":
		return c.TrustedProxies
	case "auth_query_token":
		return c.AuthQueryToken
	case "limits_file":
		return c.LimitsFile
	case "insecure":
		return c.Insecure
	case "origin":
		return c.Origins
	case "console":
		return c.Console
	case "maintenance":
		return c.Maintenance
	case "durability":
		return c.Durability
	case "topics_file":
		return c.TopicsFile
	case "max_unauthenticated":
		return c.MaxUnauthenticated
	case "max_publish_wait":
		return c.MaxPublishWait
	case "max_topics":
		return c.MaxTopics
	case "max_producers":
		return c.MaxProducers
	case "producers_kept":
		return c.ProducersKept
	case "memory_limit":
		return c.MemoryLimit
	case "max_message_memory":
		return c.MaxMessageMemory
	case "metrics_labels":
		return c.MetricsLabels
	case "metrics_histograms":
		return c.MetricsHistograms
	case "outbox":
		return c.Outbox
	case "outbox_order":
		return c.OutboxOrder
	case "outbox_keep":
		return c.OutboxKeep
	case "journal":
		return c.Journal
	case "member_id":
		return c.MemberID
	case "member_url":
		return c.MemberURLs
	case "lease":
		return c.Lease
	case "project":
		return c.Project
	case "project_state":
		return c.ProjectState
	case "drain":
		return c.Drain
	case "grace":
		return c.Grace
	case "log_level":
		return logLevel(s)
	case "log_format":
		var b bytes.Buffer
		newLogger(&b, s, new(slog.LevelVar)).Error("x")
		if json.Valid(b.Bytes()) {
			return "json"
		}
		return "text"
	}
	return nil
}

func loadSettings(t *testing.T, file string, environ []string, args ...string) (*config.Settings, error) {
	t.Helper()
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	hubSchema().Register(flags)
	if file != "" {
		args = append(args, "--config", writeFile(t, "hub.yaml", file))
	}
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	return hubSchema().Load(flags, environ)
}

func writeFile(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestEveryKey: default, file, each variable from the weakest on, flag: each
// beats what was before, for every key there is.
func TestEveryKey(t *testing.T) {
	dir := t.TempDir()
	for _, x := range []string{"a", "b", "c"} {
		if err := os.WriteFile(filepath.Join(dir, "token-"+x), []byte("from "+x+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	here := func(s string) string { return strings.Replace(s, "testdata", dir, 1) }
	defaults, err := loadSettings(t, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := hubConfig(defaults).WithDefaults(), (hub.Config{}).WithDefaults(); !reflect.DeepEqual(userPart(got), userPart(want)) {
		t.Errorf("without any source: %+v; the hub's own default is %+v", got, want)
	}
	for _, k := range hubSchema().Keys() {
		values, ok := keyValues[k.Name]
		if !ok {
			t.Errorf("%s: no row in keyValues", k.Name)
			continue
		}
		file := k.Name + ": " + here(values.file) + "\n"
		expect := func(step, source string, want any, environ []string, args ...string) {
			s, err := loadSettings(t, file, environ, args...)
			if err != nil {
				t.Errorf("%s, %s: %v", k.Name, step, err)
			} else if got := effect(s, k.Name); !reflect.DeepEqual(got, want) {
				t.Errorf("%s, %s: %v; want %v", k.Name, step, got, want)
			} else if from := s.Source(k.Name).String(); !strings.Contains(from, source) {
				t.Errorf("%s, %s: comes from %s", k.Name, step, from)
			}
		}
		expect("file", "hub.yaml:1", values.want[0], nil)
		var environ []string
		for _, variable := range slices.Backward(k.Variables()) {
			environ = append(environ, variable+"="+here(values.env))
			expect("environment", "env "+variable, values.want[1], environ)
		}
		expect("flag", "flag --"+k.Flag(), values.want[2], environ, "--"+k.Flag()+"="+here(values.flag))
	}
	if len(keyValues) != len(hubSchema().Keys()) {
		t.Errorf("keyValues has %d rows for %d keys", len(keyValues), len(hubSchema().Keys()))
	}
}

// userPart leaves out what is not for a user to configure.
func userPart(c hub.Config) hub.Config {
	c.Logger, c.Version, c.Sources, c.Listen = nil, "", nil, nil
	for _, list := range []*[]string{&c.Origins, &c.TrustedProxies, &c.MemberURLs, &c.ProjectState} {
		if len(*list) == 0 {
			*list = nil
		}
	}
	return c
}

// TestEveryFieldHasAKey: what a hub can be configured with, a user can say.
func TestEveryFieldHasAKey(t *testing.T) {
	s, err := loadSettings(t, "ws: 1\nhttp: 2\nops: 3\nstore: x\nauth-token: x\nauth-tokens-file: x\njwt-secret: x\njwt-jwks-url: x\njwt-key-file: x\njwt-aud: x\njwt-iss: x\ntls-cert-file: x\ntls-key-file: x\ninsecure: true\norigin: http://a\ntrusted-proxies: 192.0.2.1\nauth-query-token: true\nlimits-file: x\nmax-unauthenticated: 4\nmemory-limit: 4\nmax-topics: 4\ntopics-file: x\noutbox: sqlite:x\njournal: nats://h:1/s\nmember-id: x\nmember-url: ws://h\nmember-token: x\nmember-ca-file: x\nproject: off\nproject-state: x\ngrace: 5s\ndrain: 6s\n", nil)
	if err != nil {
		t.Fatal(err)
	}
	c := reflect.ValueOf(hubConfig(s))
	for i := range c.NumField() {
		switch name := c.Type().Field(i).Name; name {
		case "Logger", "LogLevel", "Version", "OpenStore", "OpenJournal", "Listen", "Topics", "CompactEvery":
		default:
			if c.Field(i).IsZero() {
				t.Errorf("hub.Config.%s is not set by any key", name)
			}
		}
	}
}

// TestNothingIsHidden: every flag is shown, with the names of its variables.
func TestNothingIsHidden(t *testing.T) {
	for _, cmd := range []*cobra.Command{serveCommand(), demoCommand(), configPrintCommand(), configCheckCommand()} {
		if cmd.Example == "" {
			t.Errorf("%s has no example", cmd.Name())
		}
		for _, k := range hubSchema().Keys() {
			f := cmd.Flags().Lookup(k.Flag())
			if f == nil || f.Hidden || f.Deprecated != "" {
				t.Errorf("%s has no flag --%s that is shown", cmd.Name(), k.Flag())
				continue
			}
			for _, variable := range k.Variables() {
				if !strings.Contains(f.Usage, "$"+variable) {
					t.Errorf("%s --%s does not mention %s", cmd.Name(), k.Flag(), variable)
				}
			}
		}
	}
}

func TestConfigPrint(t *testing.T) {
	file := writeFile(t, "hub.yaml", "grace: 3s\nauth-token: "+sentinel+"\n")
	env := []string{"EVENTHUB_CONFIG=" + file, "HTTP_PORT=9001", "EVENTHUB_NONSENSE=" + sentinel}
	code, first, stderr := runBinary(t, env, "config", "print", "--sources", "--insecure")
	if code != 0 || !strings.Contains(stderr, "EVENTHUB_NONSENSE is unknown") {
		t.Fatalf("%d %s", code, stderr)
	}
	for _, line := range []string{"grace: 3s|# file " + file + ":1", "http: 127.0.0.1:9001|# env HTTP_PORT", "insecure: true|# flag --insecure", "ws: 127.0.0.1:8090|# default", "# auth_token: '[redacted]'|# file " + file + ":2"} {
		left, right, _ := strings.Cut(line, "|")
		if !slices.ContainsFunc(strings.Split(first, "\n"), func(l string) bool {
			return strings.HasPrefix(l, left+" ") && strings.HasSuffix(l, " "+right)
		}) {
			t.Errorf("no line %q:\n%s", line, first)
		}
	}
	// It is a configuration file: checked, and printed again, it is the same.
	again := writeFile(t, "again.yaml", first)
	if code, stdout, stderr := runBinary(t, nil, "config", "check", again); code != 0 || !strings.HasPrefix(stdout, "ok: ") {
		t.Errorf("%d %s%s", code, stdout, stderr)
	}
	_, plain, _ := runBinary(t, env, "config", "print", "--insecure")
	_, second, _ := runBinary(t, nil, "config", "print", "--config", again)
	if want := strings.Replace(plain, "# auth_token: '[redacted]'", "# auth_token: not set", 1); second != want {
		t.Errorf("printed again it is\n%s; it was\n%s", second, want)
	}
	code, asJSON, stderr := runBinary(t, env, "config", "print", "-o", "json", "--insecure")
	if code != 0 || !json.Valid([]byte(asJSON)) {
		t.Fatalf("%d %s%s", code, asJSON, stderr)
	}
	if _, third, stderr := runBinary(t, nil, "config", "print", "--config", writeFile(t, "hub.json", asJSON)); third != second {
		t.Errorf("by JSON it is\n%s%s; it was\n%s", third, stderr, second)
	}
}

func TestConfigCheck(t *testing.T) {
	bad := writeFile(t, "bad.yaml", "grace: soon\nauth_tokn: "+sentinel+"\nstore: mongodb://u:"+sentinel+"@h/\nws: 0.0.0.0:1\n")
	good := writeFile(t, "good.yaml", "grace: 1s\n")
	secret := writeFile(t, "secret", sentinel)
	if err := os.Chmod(secret, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		env  []string
		args []string
		code int
		says []string
	}{
		{"defaults", nil, nil, 0, []string{"ok: defaults"}},
		{"file", nil, []string{good}, 0, []string{"ok: " + good}},
		{"file by flag", nil, []string{"--config", good}, 0, []string{"ok: " + good}},
		{"file by variable", []string{"EVENTHUB_CONFIG=" + good}, nil, 0, []string{"ok: " + good}},
		{"argument beats variable", []string{"EVENTHUB_CONFIG=" + bad}, []string{good}, 0, []string{"ok: " + good}},
		{"file twice", nil, []string{good, "--config", good}, 2, []string{"once"}},
		{"two files", nil, []string{good, good}, 2, []string{"at most 1"}},
		{"all errors at once", nil, []string{bad}, 2, []string{"4 errors", "bad.yaml:2", "did you mean auth_token?",
			`grace: "soon"`, "bad.yaml:1", `ws address "0.0.0.0:1"`, "mongodb://… is not supported"}},
		{"unreadable secret is no open door", []string{"AUTH_TOKEN_FILE=/nonexistent"}, []string{"--ws", "0.0.0.0:1"}, 2,
			[]string{"configuration: auth_token_file: open /nonexistent"}},
		{"open", nil, []string{"--insecure", "--ws", "0.0.0.0:1"}, 0, []string{"warning: allowed by insecure alone", "0.0.0.0:1"}},
		{"memory", nil, []string{"--store", "memory:"}, 0, []string{"warning: store memory: keeps nothing"}},
		{"parent of the store", nil, []string{"--store", "/nonexistent/hub/data"}, 0, []string{"warning: store", "no directory /nonexistent/hub;"}},
		{"secret for all eyes", []string{"AUTH_TOKEN_FILE=" + secret}, nil, 0, []string{"warning: " + secret, "0644"}},
		{"journal that is away", nil, []string{"--journal", "nats://u:" + sentinel + "@127.0.0.1:1/s"}, 3, []string{"the journal is not reached", "127.0.0.1:1/s"}},
		{"journal that is not asked", nil, []string{"--journal", "nats://127.0.0.1:1/s", "--offline"}, 0, []string{"ok: defaults"}},
		{"secret as a flag", nil, []string{"--auth-token", sentinel}, 0, []string{"warning: auth_token", "flag"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, stdout, stderr := runBinary(t, tt.env, append([]string{"config", "check"}, tt.args...)...)
			if code != tt.code || (code == 0) != strings.HasPrefix(stdout, "ok: ") || (code == 0) != (stdout != "") {
				t.Errorf("exit code %d; want %d\n%s%s", code, tt.code, stdout, stderr)
			}
			if strings.Contains(stdout+stderr, sentinel) {
				t.Errorf("shows a secret:\n%s%s", stdout, stderr)
			}
			if tt.code == 0 && len(tt.says) == 1 && strings.Contains(stderr, "warning") != strings.HasPrefix(tt.says[0], "warning") {
				t.Errorf("warns: %s", stderr)
			}
			for _, part := range tt.says {
				if !strings.Contains(stdout+stderr, part) {
					t.Errorf("lacks %q:\n%s%s", part, stdout, stderr)
				}
			}
		})
	}
	for _, args := range [][]string{{"config", "print", "-o", "toml"}, {"config", "print", "x"}, {"config", "dance"}} {
		if code, stdout, stderr := runBinary(t, nil, args...); code != 2 || stdout != "" {
			t.Errorf("%v: %d %s%s", args, code, stdout, stderr)
		}
	}
}

// TestSecretsStayHidden: a token in whatever place is in nothing that the
// program writes.
func TestSecretsStayHidden(t *testing.T) {
	secret := writeFile(t, "secret", sentinel+"\n")
	twice := writeFile(t, "twice", sentinel+"\n"+sentinel+"\n")
	inFile := writeFile(t, "hub.yaml", "auth_token: "+sentinel+"\nlog-level: debug\n")
	for _, source := range []struct{ env, args []string }{
		{[]string{"AUTH_TOKEN=" + sentinel}, nil},
		{[]string{"WS_TOKEN=" + sentinel, "EVENTHUB_TOKENS=" + sentinel}, nil},
		{[]string{"AUTH_TOKEN_FILE=" + secret}, nil},
		{[]string{"AUTH_TOKEN_FILE=" + twice}, nil},
		{[]string{"AUTH_TOKEN=" + sentinel, "AUTH_TOKEN_FILE=" + secret}, nil},
		{nil, []string{"--config", inFile}},
		{nil, []string{"--auth-token", sentinel}},
		{[]string{"MONGO_URL=mongodb://u:" + sentinel + "@127.0.0.1:1/?appName=" + sentinel}, nil},
		{[]string{"JWT_JWKS_URL=http://127.0.0.1:1/keys?key=" + sentinel}, nil},
		{nil, []string{"--jwt-jwks-url", "ftp://127.0.0.1:1/keys?key=" + sentinel}},
		{nil, []string{"--jwt-jwks-url", "https://ann:" + sentinel + "@127.0.0.1:1/keys"}},
	} {
		for _, command := range [][]string{
			{"config", "print"}, {"config", "print", "--sources"}, {"config", "print", "-o", "json"},
			{"config", "print", "-o", "json", "--sources"}, {"config", "check"}, {"serve", "--help"},
			{"serve", "--store", "/proc/nonexistent", "--ws", "127.0.0.1:0", "--http", "127.0.0.1:0", "--ops", "127.0.0.1:0", "--log-level", "debug"},
			{"serve", "--grace", "soon"},
		} {
			args := append(command, source.args...)
			var stdout, stderr string
			if command[0] == "serve" && len(source.env) > 0 && strings.HasPrefix(source.env[0], "MONGO_URL=") && command[1] == "--store" {
				stdout = runUntil(t, source.env, "the journal is not reached", args...) // it waits for that
			} else {
				_, stdout, stderr = runBinary(t, source.env, args...)
			}
			if strings.Contains(stdout+stderr, sentinel) {
				t.Errorf("%v, with %v %v, shows:\n%s%s", command, source.env, source.args, stdout, stderr)
			}
		}
	}
	hub := startHub(t, "--store", "memory:", "--config", inFile)
	dial(t, hub.ws, sentinel)
	stranger := dialOnly(t, hub.ws)
	stranger.say(map[string]any{"op": "AUTH", "token": sentinel + "2"})
	if f := stranger.hear(); f.Op != "ERR" || f.Code != "bad_token" {
		t.Errorf("a wrong token was answered by %+v", f)
	}
	if code := hub.stop(); code != 0 || strings.Contains(hub.logged(), sentinel) || !strings.Contains(hub.logged(), "reason=bad_token") {
		t.Errorf("exit code %d, log:\n%s", code, hub.logged())
	}
}

// TestHangup sends SIGHUP to the real hub.
func TestHangup(t *testing.T) {
	file := writeFile(t, "hub.yaml", "store: 'memory:'\nlog-level: info\n")
	cmd := exec.Command(binary, "serve", "--config", file, "--ws", "127.0.0.1:0", "--http", "127.0.0.1:0", "--ops", "127.0.0.1:0")
	cmd.Env = cleanEnv("EVENTHUB_SERVICE_HOST=x")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	alarm := time.AfterFunc(watchdog, func() { cmd.Process.Kill() })
	defer alarm.Stop()
	var log strings.Builder
	lines := bufio.NewScanner(stderr)
	await := func(parts ...string) {
		t.Helper()
		for lines.Scan() {
			fmt.Fprintln(&log, lines.Text())
			if !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(lines.Text(), p) }) {
				return
			}
		}
		t.Fatalf("no line with %q:\n%s", parts, log.String())
	}
	hangup := func(content string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	levelAtOps := func(want string) {
		t.Helper()
		resp, err := http.Get("http://" + up.FindStringSubmatch(log.String())[3] + "/log-level")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if body, err := io.ReadAll(resp.Body); err != nil || strings.TrimSpace(string(body)) != want {
			t.Errorf("/log-level: %d %s %v; want %s", resp.StatusCode, body, err, want)
		}
	}
	await("level=WARN", "EVENTHUB_SERVICE_HOST is unknown")
	await("hub is up")
	levelAtOps("info")
	hangup("store: 'memory:'\nlog-level: debug\ngrace: 3s\nauth-token: " + sentinel + "\n")
	await("level=INFO", "read again", "log_level=debug", file+":2")
	await("level=WARN", "need a restart", "keys=auth_token,grace")
	hangup("log_level: loud\n")
	await("level=ERROR", "not taken over", "loud")
	levelAtOps("debug")
	hangup("store: 'memory:'\nlog-level: error\n")
	await("log_level=error")
	hangup("store: 'memory:'\n")
	await("log_level=info", "from=default")
	levelAtOps("info")
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	await("hub stopped")
	for lines.Scan() {
		fmt.Fprintln(&log, lines.Text())
	}
	if err := cmd.Wait(); err != nil || strings.Contains(log.String(), sentinel) {
		t.Errorf("%v:\n%s", err, log.String())
	}
}

// TestReload: the level follows the sources, and stays where they are wrong or
// can not be read a second time.
func TestReload(t *testing.T) {
	start, err := loadSettings(t, "log_level: info\n", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, now string
		fails     error
		want      slog.Level
		says      []string
	}{
		{"same", "log_level: info", nil, slog.LevelInfo, []string{"log_level=info"}},
		{"more", "log_level: debug", nil, slog.LevelDebug, []string{"log_level=debug"}},
		{"less, which is logged first", "log_level: error", nil, slog.LevelError, []string{"log_level=error"}},
		{"wrong", "", errors.New("oops"), slog.LevelInfo, []string{"level=ERROR", "oops"}},
		{"others", "log_level: info\nws: 1\norigin: http://a", nil, slog.LevelInfo, []string{"restart", "keys=ws,origin"}},
	} {
		var log bytes.Buffer
		level := new(slog.LevelVar)
		logger := newLogger(&log, start, level)
		reload(logger, level, start, func() (*config.Settings, error) {
			now, err := loadSettings(t, tt.now, nil)
			return now, errors.Join(err, tt.fails)
		})
		if level.Level() != tt.want {
			t.Errorf("%s: level %v; want %v", tt.name, level.Level(), tt.want)
		}
		for _, part := range tt.says {
			if !strings.Contains(log.String(), part) {
				t.Errorf("%s: the log lacks %q:\n%s", tt.name, part, log.String())
			}
		}
		if tt.name != "others" && strings.Contains(log.String(), "restart") {
			t.Errorf("%s: %s", tt.name, log.String())
		}
	}
}

// TestDocumentedPrint: the page shows what the command prints for the example of the page.
func TestDocumentedPrint(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "configuration.md")
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```yaml\n")
	example, _, _ := strings.Cut(rest, "```")
	head := "```\n$ HTTP_PORT=9001 eventhub config print --config hub.yaml --sources --grace 90s\n"
	before, rest, ok := strings.Cut(string(page), head)
	shown, after, end := strings.Cut(rest, "```\n")
	if !ok || !end {
		t.Fatalf("%s does not show what config print prints", path)
	}
	file := writeFile(t, "hub.yaml", example)
	code, want, stderr := runBinary(t, []string{"HTTP_PORT=9001"}, "config", "print", "--config", file, "--sources", "--grace", "90s")
	if want = strings.ReplaceAll(want, file, "hub.yaml"); code != 0 || stderr != "" {
		t.Fatalf("%d %s", code, stderr)
	}
	if *updateDocs {
		if err := os.WriteFile(path, []byte(before+head+want+"```\n"+after), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if shown != want {
		t.Errorf("%s does not show what is printed; go test -run %s -update-configuration writes it:\n%s", path, t.Name(), want)
	}
}

// TestDocumentedKeys: the table in the documentation is the schema's, and its
// example is right.
func TestDocumentedKeys(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "configuration.md")
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head := "| Key | Environment | Default | |\n|---|---|---|---|\n"
	before, rest, ok := strings.Cut(string(page), head)
	table, after, end := strings.Cut(rest, "\n\n")
	if !ok || !end {
		t.Fatalf("%s has no table", path)
	}
	var rows []string
	for _, k := range hubSchema().Keys() {
		fallback := ""
		if k.Default != "" {
			fallback = "`" + k.Default + "`"
		}
		rows = append(rows, fmt.Sprintf("| `%s` | `%s` | %s | %s |", k.Name, strings.Join(k.Variables(), "`, `"), fallback, k.Usage))
	}
	want := strings.Join(rows, "\n")
	if *updateDocs {
		if err := os.WriteFile(path, []byte(before+head+want+"\n\n"+after), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if table != want {
		t.Errorf("the table of %s is not current; go test -run %s -update-configuration writes it:\n%s", path, t.Name(), want)
	}
	_, rest, _ = strings.Cut(string(page), "```yaml\n")
	example, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatalf("%s has no example", path)
	}
	for _, k := range hubSchema().Keys() {
		if !strings.Contains(example, k.Name+":") {
			t.Errorf("the example does not mention %s", k.Name)
		}
	}
	code, stdout, stderr := runBinary(t, nil, "config", "check", writeFile(t, "example.yaml", example))
	if code != 0 || stderr != "" {
		t.Errorf("%d %s%s", code, stdout, stderr)
	}
	// What is commented out there is right too, when it is put in.
	all := regexp.MustCompile(`\n#(\w)`).ReplaceAllString(example, "\n$1")
	s, err := loadSettings(t, strings.ReplaceAll(all, "/run/secrets/eventhub", writeFile(t, "secret", "x")), nil)
	if err != nil {
		t.Fatalf("with what is commented out: %v", err)
	}
	if c := hubConfig(s); c.AuthToken != "x" || c.JWTSecret != "x" || c.JWTKeyFile == "" || c.JWKSURL == "" || c.TopicsFile == "" {
		t.Errorf("with what is commented out: %+v", c)
	}
}
