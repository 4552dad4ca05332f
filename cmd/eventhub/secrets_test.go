package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"
)

// planted are secrets by where they enter, and what the programs have shown.
type planted struct {
	t       *testing.T
	secrets map[string]string
	shown   []struct{ where, text string }
}

// plant makes a secret that is nowhere else.
func (p *planted) plant(where string) string {
	secret := fmt.Sprintf("q%dz", len(p.secrets)) + strings.ReplaceAll(where, " ", "") + fmt.Sprintf("Tk9zUHJp%d", len(p.secrets))
	p.secrets[where] = secret
	return secret
}

// show notes what somebody has got to see.
func (p *planted) show(where, text string) {
	p.shown = append(p.shown, struct{ where, text string }{where, text})
}

// leaks returns where a text shows a secret, or a part that is long enough to guess the rest from.
func (p *planted) leaks(text string) (found []string) {
	for where, secret := range p.secrets {
		for _, form := range []string{
			secret, secret[:min(len(secret), 12)], secret[max(0, len(secret)-16):], url.QueryEscape(secret), hex.EncodeToString([]byte(secret)),
			base64.StdEncoding.EncodeToString([]byte(secret))[:16], base64.RawURLEncoding.EncodeToString([]byte("x" + secret))[3:19],
		} {
			if strings.Contains(text, form) {
				found = append(found, where)
				break
			}
		}
	}
	return found
}

// check reports all that was shown of secrets. Each text has to be one that could show any.
func (p *planted) check() {
	p.t.Helper()
	if len(p.secrets) < 20 {
		p.t.Errorf("only %d secrets were planted", len(p.secrets))
	}
	for _, s := range p.shown {
		if s.text == "" {
			p.t.Errorf("%s shows nothing at all", s.where)
		}
		for _, secret := range p.leaks(s.text) {
			p.t.Errorf("%s shows the secret of %s:\n%.3000s", s.where, secret, s.text)
		}
	}
}

// ask makes a request and shows its answer.
func (p *planted) ask(method, url, body string, headers ...string) (status int) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), watchdog)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		p.t.Fatal(err)
	}
	defer answer.Body.Close()
	var all bytes.Buffer
	fmt.Fprintln(&all, answer.Status, answer.Header)
	if answer.Header.Get("Content-Type") != "text/event-stream" { // which has no end
		if _, err := io.Copy(&all, answer.Body); err != nil {
			p.t.Fatal(err)
		}
	}
	path, _, _ := strings.Cut(r.URL.Path, "?")
	p.show(method+" "+path, all.String())
	return answer.StatusCode
}

// say opens a WebSocket, says frames, and shows the answer to each.
func (p *planted) say(addr string, headers http.Header, frames ...string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), watchdog)
	defer cancel()
	conn, _, _, err := ws.Dialer{Header: ws.HandshakeHeaderHTTP(headers)}.Dial(ctx, "ws://"+addr+"/ws")
	if err != nil {
		p.t.Fatal(err)
	}
	defer conn.Close()
	for _, f := range frames {
		if err := conn.SetDeadline(time.Now().Add(watchdog)); err != nil {
			p.t.Fatal(err)
		}
		if err := wsutil.WriteClientText(conn, []byte(f)); err != nil {
			p.t.Fatal(err)
		}
		said, err := wsutil.ReadServerText(conn)
		if err != nil {
			p.t.Fatal(err)
		}
		p.show("an answer over WebSocket", string(said))
	}
}

// put makes a file.
func (p *planted) put(path, content string) string {
	p.t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		p.t.Fatal(err)
	}
	return path
}

// run runs a command and shows what it prints.
func (p *planted) run(env []string, args ...string) (stdout string) {
	p.t.Helper()
	_, stdout, stderr := runBinary(p.t, env, args...)
	p.show("eventhub "+strings.Join(args[:2], " "), "ran: "+stdout+stderr)
	return stdout
}

// TestNoSecretIsShown plants a secret in each place where one can enter a hub, good and bad ones,
// has clients of all transports use them rightly and wrongly, and then looks for them in all that
// the hub has shown to anybody: its log at level debug, answers, metrics, views, the audit,
// configurations, and the dump of goroutines when it is aborted.
func TestNoSecretIsShown(t *testing.T) {
	p := &planted{t: t, secrets: make(map[string]string)}
	dir := t.TempDir()
	static, inFile := p.plant("static token"), p.plant("tokens file")
	secret := p.plant("jwt secret in the config file") + "0123456789abcdef"
	tokens := p.put(filepath.Join(dir, "tokens.yaml"), "tokens:\n- {name: ops, token: "+inFile+", scopes: ['*']}\n")
	config := p.put(filepath.Join(dir, "hub.yaml"), "jwt_secret: "+secret+"\nauth_query_token: true\n")
	env := []string{"AUTH_TOKEN=" + static, "EVENTHUB_TOKEN=" + p.plant("variable of a client")}
	settings := []string{"--config", config, "--auth-tokens-file", tokens, "--log-level", "debug"}

	// Programs that show settings and tokens, and what is wrong with them.
	for _, command := range [][]string{{"config", "print"}, {"config", "print", "--sources", "-o", "json"}, {"config", "check"}} {
		p.run(env, append(command, settings...)...)
	}
	garbage := p.put(filepath.Join(dir, "garbage"), "tokens: [{name: a, token: '"+p.plant("bad tokens file")+"\n-----BEGIN PRIVATE KEY-----\n"+p.plant("bad key file")+"\n")
	for _, flag := range []string{"--auth-tokens-file", "--jwt-key-file", "--config"} {
		p.run(nil, "config", "check", flag, garbage)
	}
	p.run(nil, "config", "check", "--tls-cert-file", garbage, "--tls-key-file", garbage)
	p.run(nil, "config", "check", "--auth-token", p.plant("flag")+" with spaces")
	p.run([]string{"JWT_SECRET=" + p.plant("variable"), "JWT_SECRET_FILE=" + garbage}, "config", "print")
	mint := func(scope string) string {
		_, out, _ := runBinary(t, nil, "token", "mint", "--sub", "ann", "--scope", scope, "--ttl", "1h", "--config", config)
		return strings.TrimSpace(out)
	}
	full, few := mint("*"), mint("publish:open.**")
	for name, token := range map[string]string{"JSON Web Token": full, "JSON Web Token of few rights": few} {
		p.secrets[name] = token[strings.LastIndex(token, ".")+1:]
		p.run([]string{"EVENTHUB_TOKEN=" + token}, "token", "inspect", "--config", config)
	}

	cmd := exec.Command(binary, append([]string{"serve", "--store", "memory:", "--ws", "127.0.0.1:0", "--http", "localhost:0", "--ops", "127.0.0.2:0"}, settings...)...)
	cmd.Env = cleanEnv(env...)
	h := launch(t, cmd)
	if !h.serves() {
		t.Fatal(h.logged())
	}
	api, ops := "http://"+h.http, "http://"+h.ops
	good := func(token string) string { return "Authorization: Bearer " + token }
	p.knock(h)
	p.use(api, h.ws, map[string]string{"static": static, "file": inFile, "full": full}, few)

	// A file that is spoilt while the hub runs is an error in the log.
	p.put(tokens, "tokens:\n- {name: a, token: "+p.plant("spoilt tokens file")+"}\n- {name: a, token: x}\n")
	h.logs(t, "a file could not be read again")
	p.put(config, "jwt_secret: "+p.plant("new secret")+"\nauth_token: '"+p.plant("broken config file")+"\n")
	if err := h.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	h.logs(t, "configuration not taken over")

	// All that shows the state of the hub.
	for _, path := range []string{
		"/v1/topics", "/v1/topics/open.a", "/v1/groups", "/v1/connections", "/v1/settings", "/v1/patterns", "/v1/scheduled", "/v1/dlq",
		"/replay?topic=system.audit&limit=1000",
	} {
		if status := p.ask("GET", api+path, "", good(static)); status != http.StatusOK {
			t.Errorf("%s: %d", path, status)
		}
	}
	for _, path := range []string{"/metrics", "/cursors?topic=open.a", "/lag", "/inflight?topic=open.a&group=g", "/log-level", "/readyz?verbose", "/openapi.json", "/asyncapi.json"} {
		if status := p.ask("GET", ops+path, "", good(static)); status != http.StatusOK {
			t.Errorf("%s: %d", path, status)
		}
	}
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/goroutine?debug=2", "/debug/vars"} {
		for _, at := range []string{ops, api} {
			if status := p.ask("GET", at+path, "", good(static)); status != http.StatusNotFound {
				t.Errorf("%s: %d; a hub has no such page", path, status)
			}
		}
	}
	if err := h.cmd.Process.Signal(syscall.SIGQUIT); err != nil { // which dumps the goroutines
		t.Fatal(err)
	}
	h.exitCode()
	log := h.logged()
	for _, want := range []string{"level=DEBUG", "msg=audit", "a peer was refused", "goroutine ", "SIGQUIT"} {
		if !strings.Contains(log, want) {
			t.Errorf("the log has no %q", want)
		}
	}
	p.show("the log", log)
	p.check()
	if len(p.leaks("a token: "+static)) == 0 || len(p.leaks("half a token: "+inFile[:15])) == 0 || len(p.leaks("encoded: "+base64.StdEncoding.EncodeToString([]byte(static)))) == 0 {
		t.Error("this test does not see a secret that is shown")
	}
}

// knock has strangers try what is not let in.
func (p *planted) knock(h *hubProcess) {
	p.t.Helper()
	api := "http://" + h.http
	for _, header := range []string{
		"Authorization: Bearer " + p.plant("wrong token"), "Authorization: Bearer " + p.plant("wrong JWT") + ".eyJhIjoxfQ.c2ln",
		"Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("ann:"+p.plant("password"))), "Authorization: " + p.plant("no scheme"),
		"Cookie: session=" + p.plant("cookie"), "X-Api-Key: " + p.plant("other header"), "X-Forwarded-For: " + p.plant("forwarded"),
	} {
		for _, url := range []string{api + "/v1/topics", "http://" + h.ops + "/metrics"} {
			if status := p.ask("GET", url, "", header); status != http.StatusUnauthorized {
				p.t.Errorf("%.24s…: %d", header, status)
			}
		}
	}
	if status := p.ask("GET", "http://"+h.ws+"/ws", "", "Connection: Upgrade", "Upgrade: websocket", "Origin: https://elsewhere.example", "Authorization: Bearer "+p.plant("header of a foreign page")); status != http.StatusForbidden {
		p.t.Errorf("an upgrade for a foreign page: %d", status)
	}
	for _, query := range []string{"access_token=" + p.plant("token in a URL"), "token=" + p.plant("token under another name")} {
		p.ask("GET", api+"/v1/topics?"+query, "")
		p.ask("GET", api+"/v1/topics/open.a/stream?"+query, "")
		p.ask("GET", api+"/?"+query, "")
		p.ask("GET", "http://"+h.ops+"/lag?"+query, "")
	}
	p.say(h.ws, http.Header{"Authorization": {"Bearer " + p.plant("header of an upgrade")}, "Sec-Websocket-Protocol": {p.plant("subprotocol")}},
		`{"op":"PUBLISH","topic":"a","payload":"`+p.plant("payload before AUTH")+`"}`,
		`{"op":"AUTH","token":"`+p.plant("wrong token over WebSocket")+`"}`,
		`{"op":"AUTH","token":{"a":"`+p.plant("token that is no string")+`"}}`,
		`{"op":"AUTH","password":"`+p.plant("password in AUTH")+`"}`,
		`{"op":"AUTH","token":"`+p.plant("broken AUTH"),
	)
	conn, err := net.Dial("tcp", h.http)
	if err != nil {
		p.t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET / HTTP/9.9\r\nAuthorization: Bearer %s\r\n\r\n", p.plant("broken request"))
	said, _ := io.ReadAll(conn) // an error means that the hub has hung up
	p.show("the answer to a broken request", string(said))
}

// use has those who are let in do what is right and what is wrong.
func (p *planted) use(api, wsAddr string, tokens map[string]string, few string) {
	p.t.Helper()
	payload := func(where string) string { return `{"password":"` + p.plant(where) + `"}` }
	for name, token := range tokens {
		auth := "Authorization: Bearer " + token
		if status := p.ask("POST", api+"/publish/open.a", payload("payload by the "+name), auth, "X-Secret: "+p.plant("header by the "+name)); status != http.StatusOK {
			p.t.Errorf("publish by the %s: %d", name, status)
		}
		if status := p.ask("GET", api+"/v1/topics/open.a/stream?access_token="+token, ""); status != http.StatusOK {
			p.t.Errorf("a stream by the %s: %d", name, status)
		}
		p.ask("GET", api+"/v1/topics?access_token="+token, "", auth)
		p.say(wsAddr, nil, `{"op":"AUTH","token":"`+token+`"}`, `{"op":"SUBSCRIBE","topic":"open.a","group":"g"}`)
	}
	auth := "Authorization: Bearer " + few
	for _, r := range []struct{ path, body string }{
		{"/publish/secret.a", payload("payload that is forbidden")}, {"/publish/bad..topic", payload("payload for a bad topic")},
		{"/publish/open.a", `{"password":"` + p.plant("payload that is no JSON")}, {"/publish/open.a", `"` + strings.Repeat(p.plant("payload that is too large"), 50_000)[:1<<20] + `"`},
		{"/v1/publish", `{"events":[{"topic":"open.a","payload":` + payload("payload of a batch") + `},{"topic":"secret.a","payload":1}]}`},
		{"/v1/publish", `{"events":[{"topic":"open.a","payload":` + payload("payload with an unknown field") + `,"else":"` + p.plant("unknown field") + `"}]}`},
		{"/v1/import", `{"topic":"open.a","payload":` + payload("payload of an import") + `}`},
	} {
		if status := p.ask("POST", api+r.path, r.body, auth, "Content-Type: application/json", "X-Secret: "+p.plant("header of "+r.path+fmt.Sprint(len(r.body)))); status < 400 {
			p.t.Errorf("%s: %d", r.path, status)
		}
	}
	p.say(wsAddr, nil, `{"op":"AUTH","token":"`+few+`"}`,
		`{"op":"PUBLISH","topic":"secret.a","payload":`+payload("payload that is forbidden over WebSocket")+`}`,
		`{"op":"PUBLISH","topic":"open.a","payload":`+payload("payload with a bad header")+`,"opts":{"headers":{"a b":"`+p.plant("value of a bad header")+`"}}}`,
		`{"op":"PUBLISH","topic":"open.a","payload":`+payload("payload with a bad option")+`,"opts":{"delay_ms":-1}}`,
		`{"op":"PUBLISH","topic":"open.a","payload":"`+p.plant("broken frame"),
		`{"op":"SUBSCRIBE","topic":"secret.**","group":"g","opts":{"filter":{"expr":"event.payload.password == '`+p.plant("filter that is forbidden")+`'"}}}`,
		`{"op":"AUTH","token":"`+p.plant("wrong token later")+`"}`,
	)
}

// logs waits until the log has a text.
func (p *hubProcess) logs(t *testing.T, text string) {
	t.Helper()
	late := time.After(watchdog)
	for !strings.Contains(p.logged(), text) {
		select {
		case <-p.more:
		case <-late:
			t.Fatalf("the log has no %q:\n%s", text, p.logged())
		}
	}
}
