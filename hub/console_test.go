package hub_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"eventhub/hub"
	"eventhub/ops/console"
)

// askAs makes a request with a token, "" for none, and headers in pairs.
func askAs(t *testing.T, token, method, url string, header ...string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

// TestConsoleAsksWhoAsks: at the operations listener everybody gets the page; the API behind it, its
// live stream and what is allowed are for those with a right token, and for no page of elsewhere.
func TestConsoleAsksWhoAsks(t *testing.T) {
	h := start(t, hub.Config{Store: hub.MemoryStore, AuthToken: "right", WSAddr: "127.0.0.1:0", HTTPAddr: "localhost:0", OpsAddr: "127.0.0.2:0"})
	at := "http://" + h.OpsAddr()
	page, text := askAs(t, "", "GET", at+"/")
	if page.StatusCode != 200 || page.Header.Get("Content-Security-Policy") != console.Policy || !strings.Contains(text, "/console/app.js") {
		t.Errorf("the page: %d %v", page.StatusCode, page.Header)
	}
	if r, body := askAs(t, "", "GET", at+"/", "Upgrade", "websocket", "Connection", "Upgrade"); r.StatusCode != 404 || !strings.Contains(body, "operations listener") || !strings.Contains(body, "ws://"+h.WSAddr()) {
		t.Errorf("a client that takes it for the hub: %d %s", r.StatusCode, body)
	}
	for _, path := range []string{"/console/api/v1/topics", "/console/rights", "/console/live", "/console/events?topic=orders", "/console/topics"} {
		for token, want := range map[string]int{"": 401, "wrong": 401} {
			if r, body := askAs(t, token, "GET", at+path); r.StatusCode != want {
				t.Errorf("%s with the token %q: %d %s", path, token, r.StatusCode, body)
			}
		}
		if r, body := askAs(t, "right", "GET", at+path, "Origin", "https://evil.example"); r.StatusCode != 403 {
			t.Errorf("%s of another page: %d %s", path, r.StatusCode, body)
		}
	}
	for path, want := range map[string]string{"/console/api/v1/topics": `"topics"`, "/console/rights": `"admin":true`} {
		if r, body := askAs(t, "right", "GET", at+path, "Origin", at); r.StatusCode != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", path, r.StatusCode, body)
		}
	}
	if r, _ := askAs(t, "right", "POST", at+"/console/api/publish/orders"); r.StatusCode != 400 { // it has no payload
		t.Errorf("a publish: %d", r.StatusCode)
	}
}

// scoped is a token with these scopes.
func scoped(scope string) string {
	return mint(`{"alg":"HS256"}`, fmt.Sprintf(`{"sub":"who","exp":%d,"scope":%q}`, time.Now().Add(time.Hour).Unix(), scope))
}

// TestNoConsole: where it is off nothing is there of it.
func TestNoConsole(t *testing.T) {
	h := start(t, hub.Config{Store: hub.MemoryStore, Console: hub.ConsoleOff, WSAddr: "127.0.0.1:0", HTTPAddr: "localhost:0", OpsAddr: "127.0.0.2:0"})
	for _, path := range []string{"/", "/console/", "/console/app.js", "/console/live", "/console/rights", "/console/events", "/console/api/v1/topics"} {
		if r, body := askAs(t, "", "GET", "http://"+h.OpsAddr()+path); r.StatusCode != 404 || !strings.Contains(body, "operations listener") {
			t.Errorf("%s: %d %s", path, r.StatusCode, body)
		}
	}
}

// TestConsoleRights: a token sees in the console what it may, and is told what it may do.
func TestConsoleRights(t *testing.T) {
	h := start(t, hub.Config{Store: hub.MemoryStore, JWTSecret: jwtSecret})
	at := "http://" + h.OpsAddr()
	for scope, want := range map[string]string{
		"read:orders":                   `"publish":false,"subscribe":false,"read":true,"admin":false`,
		"admin:orders publish:orders":   `"publish":true,"subscribe":false,"read":false,"admin":true`,
		"subscribe:orders admin:others": `"publish":false,"subscribe":true,"read":false,"admin":false`,
	} {
		token := scoped(scope)
		if r, body := askAs(t, token, "GET", at+"/console/rights?topic=orders"); r.StatusCode != 200 || !strings.Contains(body, want) {
			t.Errorf("%q: %d %s", scope, r.StatusCode, body)
		}
		if _, body := askAs(t, token, "GET", at+"/console/rights"); strings.Contains(body, "true") {
			t.Errorf("%q of the hub: %s", scope, body)
		}
	}
	if r, body := askAs(t, scoped("publish:orders"), "GET", at+"/console/live"); r.StatusCode != 403 {
		t.Errorf("a token that may see nothing: %d %s", r.StatusCode, body)
	}
}

// TestStopEndsTheConsole: open pages do not keep the hub from stopping.
func TestStopEndsTheConsole(t *testing.T) {
	h, err := hub.Start(hub.Config{Store: hub.MemoryStore, WSAddr: "127.0.0.1:0", HTTPAddr: "localhost:0", OpsAddr: "127.0.0.2:0"})
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.Get("http://" + h.OpsAddr() + "/console/live")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	lines := bufio.NewReader(r.Body)
	if line, err := lines.ReadString('\n'); err != nil || line != "event: live\n" {
		t.Fatalf("%q, %v", line, err)
	}
	if err := h.Stop(context.Background()); err != nil {
		t.Error(err)
	}
	if _, err := io.Copy(io.Discard, lines); err != nil {
		t.Errorf("the stream did not end in order: %v", err)
	}
	http.DefaultClient.CloseIdleConnections()
}

// somewhere is a listener that says that it is at an address which others reach.
type somewhere struct{ net.Listener }

func (s somewhere) Addr() net.Addr {
	addr := *s.Listener.Addr().(*net.TCPAddr)
	addr.IP = net.IPv4(10, 1, 2, 3)
	return &addr
}

// TestConsoleWidensNothing: a hub that asks for no token, and whose operations listener alone is reached
// by others, lets nobody change anything there.
func TestConsoleWidensNothing(t *testing.T) {
	for name, tt := range map[string]struct {
		http, ops string
		token     string
		status    int
	}{
		"operations outside":            {"127.0.0.1:0", "0.0.0.0:0", "", 403},
		"both outside":                  {"0.0.0.0:0", "0.0.0.0:0", "", 200},
		"both inside":                   {"127.0.0.1:0", "127.0.0.2:0", "", 200},
		"operations outside, for token": {"127.0.0.1:0", "0.0.0.0:0", "right", 200},
	} {
		bound := make(map[string]string)
		start(t, hub.Config{
			Store: hub.MemoryStore, WSAddr: "127.0.0.3:0", HTTPAddr: tt.http, OpsAddr: tt.ops, AuthToken: tt.token, Insecure: true,
			Listen: func(network, addr string) (net.Listener, error) {
				if !strings.HasPrefix(addr, "0.0.0.0") {
					l, err := net.Listen(network, addr)
					if err == nil {
						bound[addr] = l.Addr().String()
					}
					return l, err
				}
				l, err := net.Listen(network, "127.0.0.1:0")
				if err != nil {
					return nil, errors.Join(errors.New("no listener"), err)
				}
				bound[addr] = l.Addr().String()
				return somewhere{l}, nil
			},
		})
		if r, body := askAs(t, tt.token, "GET", "http://"+bound[tt.ops]+"/console/api/v1/topics"); r.StatusCode != tt.status {
			t.Errorf("%s: %d %s; want %d", name, r.StatusCode, body, tt.status)
		}
	}
}
