package hub_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gobwas/ws"

	"eventhub/hub"
)

// TestLimitsOfPublishes: of a connection, a principal and a topic, over WebSocket and HTTP, as
// the file says it at the time; a frame goes as a whole.
func TestLimitsOfPublishes(t *testing.T) {
	dir := t.TempDir()
	path, tokens := filepath.Join(dir, "limits.yaml"), filepath.Join(dir, "tokens.yaml")
	put := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(tokens, "tokens: [{name: a, token: ta, scopes: ['*']}, {name: b, token: tb, scopes: ['publish:**']}, {name: c, token: tc, scopes: ['publish:many']}]\n")
	put(path, "publish: {connection: {per_second: 1, burst: 4}, principal: {per_second: 1, burst: 6}, topics: {few: {per_second: 0.5}}}")
	inBubble(t, hub.Config{WSAddr: "127.0.0.1:1", HTTPAddr: "127.0.0.1:2", OpsAddr: "127.0.0.1:3", AuthTokensFile: tokens, LimitsFile: path}, func(b *hubInBubble) {
		publish := func(p *peer, answer, topic string, n int) {
			t.Helper()
			event := fmt.Sprintf(`{"topic":%q,"payload":1}`, topic)
			frame := strings.Replace(event, "{", `{"op":"PUBLISH",`, 1)
			if n > 1 {
				frame = `{"op":"PUBLISH","events":[` + strings.TrimSuffix(strings.Repeat(event+",", n), ",") + "]}"
			}
			if _, err := p.conn.Write(masked([]byte(frame))); err != nil {
				t.Fatal(err)
			}
			p.came(answer)
		}
		const ok = `"op":"OK"`
		p, q := b.join("ta"), b.join("ta")
		publish(p, ok, "many", 3)
		publish(p, `"code":"rate_limited"`, "many", 2)
		publish(p, ok, "many", 1)
		publish(p, `"retry_after_ms":1000`, "many", 1)
		p.ok(`{"op":"AUTH","token":"ta"}`)
		publish(p, `"code":"rate_limited"`, "many", 1) // another AUTH gives nothing back
		publish(q, `"code":"too_large"`, "many", 5)
		publish(q, `"code":"rate_limited"`, "many", 3) // of the principal
		s := b.join("tc")
		publish(s, `"code":"forbidden"`, "few", 1) // who may not publish to a topic takes nothing of it
		publish(s, `"code":"forbidden"`, "few", 3)
		r := b.join("tb")
		publish(r, ok, "few", 1)
		publish(r, `"retry_after_ms":2000`, "few", 1)
		publish(r, ok, "many", 2)

		post := func(status int, retry string) {
			t.Helper()
			c := http.Client{Transport: &http.Transport{DialContext: b.network.Dial, DisableKeepAlives: true}}
			req, err := http.NewRequest(http.MethodPost, "http://"+b.HTTPAddr()+"/publish/few", strings.NewReader("1"))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer tb")
			resp, err := c.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if body, _ := io.ReadAll(resp.Body); resp.StatusCode != status || resp.Header.Get("Retry-After") != retry {
				t.Errorf("POST: %s, Retry-After %q: %s; want %d, %q", resp.Status, resp.Header.Get("Retry-After"), body, status, retry)
			}
		}
		post(http.StatusTooManyRequests, "2")
		for series, want := range map[string]string{`eventhub_limit_refused_total{limit="publish_connection",pattern=""}`: "4", `eventhub_limit_refused_total{limit="publish_principal",pattern=""}`: "1",
			`eventhub_limit_refused_total{limit="publish_topic",pattern="few"}`: "2", `eventhub_limit_events_per_second{limit="publish_topic",pattern="few"}`: "0.5"} {
			if metrics := b.metricsAs("ta"); !strings.Contains(metrics, "\n"+series+" "+want+"\n") {
				t.Errorf("%s is not %s", series, want)
			}
		}

		put(path, "publish: {topics: {few: {per_second: -1}}}")
		b.Look()
		publish(r, `"code":"rate_limited"`, "few", 1)
		put(path, "publish: {topics: {few: {per_second: 100}}}")
		b.Look() // as SIGHUP does
		publish(r, ok, "few", 50)
		put(path, "publish: {topics: {few: {per_second: 1}}}")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		publish(r, ok, "few", 1)
		publish(r, `"code":"rate_limited"`, "few", 1)
		publish(p, ok, "many", 100)
	})
	err := hub.Config{LimitsFile: path + ".old"}.WithDefaults().Validate()
	if err == nil || !strings.HasPrefix(err.Error(), "limits_file: ") {
		t.Errorf("no such file: %v", err)
	}
	put(path, "publish:\n  principal: {per_second: no}\n")
	if err := (hub.Config{LimitsFile: path}).WithDefaults().Validate(); err == nil || !strings.Contains(err.Error(), "limits_file: "+path+":2: per_second") {
		t.Errorf("a file that is wrong: %v", err)
	}
}

// TestLimitsOfConnections: one too many is refused at the upgrade, and comes in when another has
// gone.
func TestLimitsOfConnections(t *testing.T) {
	path := filepath.Join(t.TempDir(), "limits.yaml")
	if err := os.WriteFile(path, []byte("connections: {total: 3, address: 2}"), 0o600); err != nil {
		t.Fatal(err)
	}
	inBubble(t, hub.Config{WSAddr: "127.0.0.1:1", HTTPAddr: "127.0.0.1:2", OpsAddr: "127.0.0.1:3", TrustedProxies: []string{"127.0.0.1"}, LimitsFile: path}, func(b *hubInBubble) {
		from := func(addr string, status int, code string) net.Conn {
			t.Helper()
			refused := 0
			said := ""
			d := ws.Dialer{NetDial: b.network.Dial, Header: ws.HandshakeHeaderHTTP{"X-Forwarded-For": {addr}},
				OnStatusError: func(s int, _ []byte, resp io.Reader) {
					refused = s
					answer, err := http.ReadResponse(bufio.NewReader(resp), nil)
					if err != nil {
						t.Fatal(err)
					}
					text, _ := io.ReadAll(answer.Body)
					said = answer.Header.Get("Retry-After") + " " + string(text)
				}}
			conn, _, _, err := d.Dial(context.Background(), "ws://"+b.WSAddr())
			if refused != status || (err == nil) != (status == 0) || status != 0 && (!strings.HasPrefix(said, "1 ") || !strings.Contains(said, code)) {
				t.Errorf("from %s: %d, %v: %s; want %d", addr, refused, err, said, status)
			}
			return conn
		}
		first := from("203.0.113.9", 0, "")
		defer from("203.0.113.9", 0, "").Close()
		from("203.0.113.9", 429, `"code":"rate_limited"`)
		defer from("198.51.100.1", 0, "").Close()
		from("198.51.100.2", 503, `"code":"overloaded"`)
		first.Close()
		synctest.Wait()
		defer from("203.0.113.9", 0, "").Close()
		if metrics := b.metrics(); !strings.Contains(metrics, "\n"+`eventhub_limit_refused_total{limit="connections_address",pattern=""} 1`+"\n") ||
			!strings.Contains(metrics, "\n"+`eventhub_limit_connections{limit="connections_total"} 3`+"\n") || !strings.Contains(metrics, "\neventhub_connections_refused_total 2\n") {
			t.Error("the metrics do not have them")
		}
	})
}

// TestLimitsOfConnectionsOfPrincipals: an AUTH is refused where the principal has as many, says
// when to try again, on the same connection too, and leaves who was somebody else before as they
// were.
func TestLimitsOfConnectionsOfPrincipals(t *testing.T) {
	dir := t.TempDir()
	path, tokens := filepath.Join(dir, "limits.yaml"), filepath.Join(dir, "tokens.yaml")
	for path, text := range map[string]string{
		path:   "connections: {principal: 1}",
		tokens: "tokens: [{name: a, token: ta, scopes: ['*']}, {name: b, token: tb, scopes: ['publish:t']}]",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var log lines
	cfg := hub.Config{WSAddr: "127.0.0.1:1", HTTPAddr: "127.0.0.1:2", OpsAddr: "127.0.0.1:3", AuthTokensFile: tokens, LimitsFile: path,
		Logger: slog.New(slog.NewTextHandler(&log, nil))}
	inBubble(t, cfg, func(b *hubInBubble) {
		const auth, refused, publish = `{"op":"AUTH","token":"%s"}`, `"code":"rate_limited"`, `{"op":"PUBLISH","topic":"%s","payload":1}`
		a, other := b.join("ta"), b.join("tb")
		say := func(p *peer, answer, format string, arg any) {
			t.Helper()
			if _, err := p.conn.Write(masked(fmt.Appendf(nil, format, arg))); err != nil {
				t.Fatal(err)
			}
			p.came(answer)
		}
		say(a, `"op":"OK"`, auth, "ta") // it has its place
		say(other, refused, auth, "ta")
		say(other, `"op":"OK"`, publish, "t")
		say(other, `"code":"forbidden"`, publish, "u") // with the rights that it had

		third := b.connect()
		say(third, `"retry_after_ms":1000`, auth, "ta")
		say(third, `"code":"unauthorized"`, publish, "t")
		a.conn.Close()
		synctest.Wait()
		say(third, `"op":"OK"`, auth, "ta")

		fourth := b.connect()
		say(fourth, refused, auth, "tb")
		time.Sleep(5 * time.Second)
		fourth.wantEnd("1008", "AUTH did not come in time.")
		other.conn.Close()
		synctest.Wait()
		say(third, `"op":"OK"`, auth, "tb") // and ta is free
		b.join("ta")

		if metrics := b.metricsAs("ta"); !strings.Contains(metrics, "\n"+`eventhub_limit_refused_total{limit="connections_principal",pattern=""} 3`+"\n") ||
			!strings.Contains(metrics, "\n"+`eventhub_limit_connections{limit="connections_principal"} 1`+"\n") || strings.Contains(metrics, `eventhub_auth_refused_total{reason="rate_limited"`) {
			t.Error("the metrics do not have them")
		}
		time.Sleep(2 * time.Second) // the audit sums
		synctest.Wait()
		said := log.String()
		for line, want := range map[string]int{"by=a transport=ws remote=127.0.0.1 outcome=rate_limited": 2, "by=b transport=ws remote=127.0.0.1 outcome=rate_limited": 1} {
			if n := strings.Count(said, line); n == 0 || n > want {
				t.Errorf("%d lines %s:\n%s", n, line, said)
			}
		}
	})
}

// TestLimitsOfStreams: an event stream counts like a WebSocket, by all limits, until it ends.
func TestLimitsOfStreams(t *testing.T) {
	dir := t.TempDir()
	path, tokens := filepath.Join(dir, "limits.yaml"), filepath.Join(dir, "tokens.yaml")
	put := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(tokens, "tokens: [{name: a, token: ta, scopes: ['*']}, {name: b, token: tb, scopes: ['*']}]")
	put(path, "connections: {principal: 1}")
	cfg := hub.Config{WSAddr: "127.0.0.1:1", HTTPAddr: "127.0.0.1:2", OpsAddr: "127.0.0.1:3", AuthTokensFile: tokens, LimitsFile: path}
	inBubble(t, cfg, func(b *hubInBubble) {
		open := func(token string, status int, part string) net.Conn {
			t.Helper()
			conn, err := b.network.Dial(context.Background(), "tcp", b.HTTPAddr())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := fmt.Fprintf(conn, "GET /v1/topics/a/stream HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n", token); err != nil {
				t.Fatal(err)
			}
			answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil || answer.StatusCode != status {
				t.Fatalf("%s: %+v, %v; want %d", token, answer, err, status)
			}
			if status == http.StatusOK {
				return conn
			}
			if text, _ := io.ReadAll(answer.Body); answer.Header.Get("Retry-After") != "1" || !strings.Contains(string(text), part) {
				t.Errorf("%s: Retry-After %q: %s; want %s", token, answer.Header.Get("Retry-After"), text, part)
			}
			conn.Close()
			return nil
		}
		stream := open("ta", 200, "")
		open("ta", 429, "(limit connections_principal)")
		open("tb", 200, "").Close()
		socket := b.connect()
		if _, err := socket.conn.Write(masked([]byte(`{"op":"AUTH","token":"ta"}`))); err != nil {
			t.Fatal(err)
		}
		socket.came(`"code":"rate_limited"`) // a stream has the place
		put(path, "connections: {address: 2}")
		b.Look()
		open("tb", 429, "(limit connections_address)")
		put(path, "connections: {total: 2}")
		b.Look()
		open("tb", 503, "(limit connections_total)")
		stream.Close()
		synctest.Wait()
		socket.ok(`{"op":"AUTH","token":"ta"}`)
		put(path, "connections: {total: 2, principal: 1}")
		b.Look()
		open("ta", 429, "(limit connections_principal)")
		open("tb", 200, "").Close() // what was refused took no place
	})
}
