package hub_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"eventhub/hub"
)

// TestEveryAnswerIsShared: whatever a page asks the doors of clients for, the page of an allowed
// origin may read the answer, and caches are told that it depends on the origin, once. The
// operations listener says nothing of this.
func TestEveryAnswerIsShared(t *testing.T) {
	h := start(t, hub.Config{Store: hub.MemoryStore, WSAddr: "127.0.0.1:0", HTTPAddr: "localhost:0", OpsAddr: "127.0.0.2:0", Origins: []string{"https://app.example"}})
	paths := []string{"/", "/ws", "/foo", "/v1", "/v1//topics", "/v1/topics/../x", "/v1/nothing", "/publish", "/replay/", "/export/a/b", "/topics", "/metrics"}
	for _, route := range h.Routes() {
		_, path, _ := strings.Cut(route, " ")
		paths = append(paths, strings.NewReplacer("{topic}", "a", "{group}", "g", "{id}", "i", "{offset}", "1", "{key}", "k").Replace(path))
	}
	for _, addr := range []string{h.WSAddr(), h.HTTPAddr(), h.OpsAddr()} {
		for _, path := range paths {
			for _, method := range []string{"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"} {
				ctx, cancel := context.WithCancel(t.Context())
				r, err := http.NewRequestWithContext(ctx, method, "http://"+addr+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set("Origin", "https://app.example")
				answer, err := http.DefaultTransport.RoundTrip(r)
				if err != nil {
					t.Fatalf("%s %s: %v", method, path, err)
				}
				cancel() // a stream would go on
				answer.Body.Close()
				names := 0
				for name := range strings.SplitSeq(strings.Join(answer.Header.Values("Vary"), ", "), ", ") {
					if name == "Origin" {
						names++
					}
				}
				allowed, want := answer.Header.Values("Access-Control-Allow-Origin"), addr != h.OpsAddr()
				if want != (len(allowed) == 1 && allowed[0] == "https://app.example" && names == 1) || !want && len(allowed)+names > 0 {
					t.Errorf("%s %s%s: %s %v", method, addr, path, answer.Status, answer.Header)
				}
			}
		}
	}
}

// TestEveryErrorIsAProblem: what no route takes is answered with problem details at every
// listener, with a hint where one is known.
func TestEveryErrorIsAProblem(t *testing.T) {
	h := start(t, hub.Config{Store: hub.MemoryStore, WSAddr: "127.0.0.1:0", HTTPAddr: "localhost:0", OpsAddr: "127.0.0.2:0"})
	for _, r := range []struct {
		addr, method, path string
		status             int
		allow              string
		hints              []string
	}{
		{h.HTTPAddr(), "GET", "/topics", 404, "", []string{`"/topics"`, "did you mean /v1/topics?"}},
		{h.WSAddr(), "GET", "/topics/orders", 404, "", []string{"did you mean /v1/topics/orders?"}},
		{h.HTTPAddr(), "HEAD", "/topics", 404, "", nil},
		{h.HTTPAddr(), "POST", "/v1/topics/orders/groups/g/seeek", 404, "", []string{"seeek"}},
		{h.HTTPAddr(), "GET", "/v1/publish/orders", 404, "", []string{"did you mean /publish/orders?"}},
		{h.HTTPAddr(), "GET", "/else", 404, "", []string{`"/else"`}},
		{h.HTTPAddr(), "GET", "/metrics", 404, "", []string{`"/metrics"`, "http://" + h.OpsAddr() + "/metrics"}},
		{h.HTTPAddr(), "POST", "/", 405, "GET, HEAD", []string{"POST"}},
		{h.WSAddr(), "DELETE", "/ws", 405, "GET, HEAD", []string{"DELETE"}},
		{h.HTTPAddr(), "PUT", "/v1/topics", 405, "GET, HEAD", []string{"PUT"}},
		{h.HTTPAddr(), "GET", "/", 426, "", []string{"WebSocket", "/v1/topics"}},
		{h.OpsAddr(), "GET", "/else", 404, "", []string{`"/else"`, "operations listener", "ws://" + h.WSAddr(), "http://" + h.HTTPAddr(), "/metrics"}},
		{h.OpsAddr(), "GET", "/v1/topics", 404, "", []string{"operations listener", "http://" + h.HTTPAddr()}},
		{h.OpsAddr(), "POST", "/", 405, "GET, HEAD", []string{"POST"}},
		{h.OpsAddr(), "GET", "/console/api/v1/else", 404, "", []string{"/v1/else"}},
		{h.OpsAddr(), "GET", "/console/api/else", 404, "", []string{"API for the console"}},
		{h.OpsAddr(), "PUT", "/console/api/v1/topics", 405, "GET, HEAD", []string{"PUT"}},
		{h.OpsAddr(), "HEAD", "/else", 404, "", nil},
		{h.OpsAddr(), "POST", "/lag", 405, "GET, HEAD", []string{"POST"}},
	} {
		req, err := http.NewRequestWithContext(t.Context(), r.method, "http://"+r.addr+r.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		what := r.method + " " + r.addr + r.path
		if resp.StatusCode != r.status || resp.Header.Get("Content-Type") != "application/problem+json" || resp.Header.Get("Allow") != r.allow {
			t.Errorf("%s: %s, %q, Allow %q: %s", what, resp.Status, resp.Header.Get("Content-Type"), resp.Header.Get("Allow"), body)
			continue
		}
		if r.method == http.MethodHead {
			if len(body) > 0 {
				t.Errorf("%s has a body: %s", what, body)
			}
			continue
		}
		var p struct {
			Type, Title, Detail, Code string
			Status                    int
		}
		if err := json.Unmarshal(body, &p); err != nil || p.Status != r.status || p.Title != http.StatusText(r.status) || p.Code == "" {
			t.Errorf("%s: %s: %v", what, body, err)
		}
		for _, hint := range r.hints {
			if !strings.Contains(p.Detail, hint) {
				t.Errorf("%s: %q does not say %q", what, p.Detail, hint)
			}
		}
	}
}
