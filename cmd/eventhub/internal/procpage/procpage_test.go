package procpage

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const hubURL = "ws://127.0.0.1:8090"

// get asks the handler for a path by a name of this machine.
func get(t *testing.T, h http.Handler, method, path, host string) *http.Response {
	t.Helper()
	r := httptest.NewRequest(method, path, nil)
	r.Host = host
	// As a server has it: names are judged where requests come over loopback.
	r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8083}))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func body(t *testing.T, r *http.Response) []byte {
	t.Helper()
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestPolicy: every answer, refusals too, forbids the page to load and to call anything but what it is
// made for.
func TestPolicy(t *testing.T) {
	for hub, calls := range map[string]string{
		hubURL:                 "connect-src 'self' ws://127.0.0.1:8090 http://127.0.0.1:8090;",
		"wss://127.0.0.1:4433": "connect-src 'self' wss://127.0.0.1:4433 https://127.0.0.1:4433;",
		"ws://[::1]:8090":      "connect-src 'self' ws://[::1]:8090 http://[::1]:8090;",
	} {
		h, err := newHandler(hub)
		if err != nil {
			t.Fatal(err)
		}
		for path, code := range map[string]int{"/": 200, "/app.js": 200, "/hub.json": 200, "/none": 404} {
			r := get(t, h, "GET", path, "127.0.0.1:8083")
			policy := r.Header.Get("Content-Security-Policy")
			for _, part := range []string{"default-src 'none';", "script-src 'self';", "style-src 'self';", calls, "frame-ancestors 'none'", "form-action 'none'", "base-uri 'none'"} {
				if !strings.Contains(policy+";", part) {
					t.Errorf("%s of %s: the policy %q has no %q", path, hub, policy, part)
				}
			}
			if strings.Contains(policy, "unsafe") || strings.Contains(policy, "*") {
				t.Errorf("%s of %s: the policy is %q", path, hub, policy)
			}
			if r.StatusCode != code || r.Header.Get("X-Content-Type-Options") != "nosniff" || r.Header.Get("Referrer-Policy") != "no-referrer" {
				t.Errorf("%s of %s: %d %v", path, hub, r.StatusCode, r.Header)
			}
		}
	}
	for _, hub := range []string{"", "127.0.0.1:8090", "http://127.0.0.1:8090", "ws://"} {
		if _, err := newHandler(hub); err == nil {
			t.Errorf("%q was taken for the URL of a hub", hub)
		}
	}
}

// TestFiles: what the files name is there with its type, nothing is inline, and nothing comes
// from elsewhere.
func TestFiles(t *testing.T) {
	h, err := newHandler(hubURL)
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`(?:src|href)="([^"#]+)"|(?:from|import) "\./([^"]+)"|fetch\("([^"]+)"`)
	todo, seen := []string{"/"}, map[string]bool{"/": true}
	for len(todo) > 0 {
		path := todo[0]
		todo = todo[1:]
		r := get(t, h, "GET", path, "localhost:8083")
		text := string(body(t, r))
		if r.StatusCode != 200 || text == "" {
			t.Errorf("%s, which a file names: %d", path, r.StatusCode)
		}
		if kind := kinds[filepath.Ext(path)]; path != "/" && r.Header.Get("Content-Type") != kind {
			t.Errorf("%s is of the type %q; want %q", path, r.Header.Get("Content-Type"), kind)
		}
		if strings.HasSuffix(path, ".min.js") {
			continue
		}
		for _, bad := range []string{"<script>", "<style", " style=", " onclick=", "https://", "innerHTML", "eval("} {
			if strings.Contains(text, bad) {
				t.Errorf("%s has %q, which its policy forbids", path, bad)
			}
		}
		for _, m := range named.FindAllStringSubmatch(text, -1) {
			name := "/" + strings.TrimPrefix(m[1]+m[2]+m[3], "/")
			if !seen[name] {
				seen[name] = true
				todo = append(todo, name)
			}
		}
	}
	for path := range h.files {
		if !seen[path] && path != "/index.html" {
			t.Errorf("%s is served, and no file names it", path)
		}
	}
	if len(seen) < 8 {
		t.Errorf("only %d files were found: %v", len(seen), seen)
	}
}

// TestSDK: the page has the committed builds of the SDK, byte for byte, and learns the hub and the topic
// from the server.
func TestSDK(t *testing.T) {
	h, err := newHandler(hubURL)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"eventhub.min.js", "eventhub-http.min.js"} {
		want, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "sdk", "js", "dist", name))
		if err != nil {
			t.Fatal(err)
		}
		if got := body(t, get(t, h, "GET", "/"+name, "localhost")); !bytes.Equal(got, want) {
			t.Errorf("the page's %s has %d bytes and is not that of sdk/js/dist, which has %d", name, len(got), len(want))
		}
	}
	var config struct{ Hub, Topic string }
	if err := json.Unmarshal(body(t, get(t, h, "GET", "/hub.json", "localhost")), &config); err != nil {
		t.Fatal(err)
	}
	if config.Hub != hubURL || config.Topic != "process.state" {
		t.Errorf("hub.json says %+v", config)
	}
}

// TestRefusals: the page answers to names of this machine alone, and nothing can be sent to it.
func TestRefusals(t *testing.T) {
	h, err := newHandler(hubURL)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		method, path, host string
		code               int
	}{
		{"GET", "/", "127.0.0.1:8083", 200},
		{"HEAD", "/", "localhost:8083", 200},
		{"GET", "/", "[::1]:8083", 200},
		{"GET", "/", "evil.example:8083", 421},
		{"GET", "/hub.json", "evil.example", 421},
		{"GET", "/", "", 421},
		{"POST", "/", "localhost:8083", 405},
		{"OPTIONS", "/hub.json", "localhost:8083", 405},
		{"GET", "/../procpage.go", "localhost:8083", 404},
		{"GET", "/static/index.html", "localhost:8083", 404},
	} {
		r := get(t, h, tt.method, tt.path, tt.host)
		if r.StatusCode != tt.code {
			t.Errorf("%s %s of %q: %d; want %d", tt.method, tt.path, tt.host, r.StatusCode, tt.code)
		}
		if tt.code == 405 && r.Header.Get("Allow") != "GET, HEAD" {
			t.Errorf("%s: Allow is %q", tt.method, r.Header.Get("Allow"))
		}
	}
}

// TestListen: only addresses of this machine alone are taken, and an error names the one that is not.
func TestListen(t *testing.T) {
	for _, text := range []string{"0", "127.0.0.1:0", "localhost:0"} {
		addr, err := Address(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		p, err := Listen(t.Context(), addr)
		if err != nil {
			t.Errorf("%s: %v", addr, err)
			continue
		}
		if !regexp.MustCompile(`^http://127\.0\.0\.1:[1-9]\d*/$|^http://\[::1\]:[1-9]\d*/$`).MatchString(p.URL()) {
			t.Errorf("%s: the URL is %s", addr, p.URL())
		}
		_, port, _ := net.SplitHostPort(p.listener.Addr().String())
		if _, err := Listen(t.Context(), p.listener.Addr().String()); err == nil || !strings.Contains(err.Error(), port) {
			t.Errorf("an address that is in use: %v", err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if err := p.Close(); err != nil {
			t.Errorf("the second Close: %v", err)
		}
	}
	for addr, says := range map[string]string{
		"0.0.0.0:0": "loopback", ":0": "loopback", "[::]:0": "loopback", "192.0.2.1:0": "loopback", "example.org:0": "loopback",
		"": "port", "x": "port", "127.0.0.1:70000": "70000", "-1": "-1", "::1": "host:port",
	} {
		got, err := Address(addr)
		if err == nil {
			t.Errorf("%q was taken as %q", addr, got)
		} else if !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v; want something about %q", addr, err, says)
		}
	}
}

func TestHubURL(t *testing.T) {
	for _, tt := range []struct {
		addr string
		tls  bool
		want string
	}{
		{"127.0.0.1:8090", false, "ws://127.0.0.1:8090"},
		{"192.0.2.1:8090", true, "wss://192.0.2.1:8090"},
		{"0.0.0.0:8090", false, "ws://127.0.0.1:8090"},
		{"[::]:8090", false, "ws://localhost:8090"},
		{"[::1]:8090", false, "ws://[::1]:8090"},
	} {
		if got := HubURL(tt.addr, tt.tls); got != tt.want {
			t.Errorf("%s: %s; want %s", tt.addr, got, tt.want)
		}
	}
}

// TestServe: the page is there until the context ends, and then its address is free.
func TestServe(t *testing.T) {
	p, err := Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Serve(ctx, hubURL) }()
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	r, err := client.Get(p.URL())
	if err != nil {
		t.Fatal(err)
	}
	if text := body(t, r); r.StatusCode != 200 || !bytes.Contains(text, []byte("<title>Processes")) {
		t.Errorf("%d: %.100s", r.StatusCode, text)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	again, err := Listen(t.Context(), p.listener.Addr().String())
	if err != nil {
		t.Fatalf("after the end: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
	if err := p.Serve(t.Context(), hubURL); err == nil || !strings.Contains(err.Error(), p.URL()) {
		t.Errorf("a closed listener: %v", err)
	}
}
