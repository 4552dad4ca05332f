package rest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestUncleanPaths: what a mux by itself redirects is a problem, and nothing else
// is touched, over a real connection.
func TestUncleanPaths(t *testing.T) {
	s := stocked()
	_, mux := mount(t, Access{Inspector: s, Operator: s})
	redirecting, clean := httptest.NewServer(mux), httptest.NewServer(CleanPaths(mux, nil))
	defer redirecting.Close()
	defer clean.Close()
	for target, want := range map[string]string{
		"/v1//topics":                    "/v1/topics",
		"//v1/topics":                    "/v1/topics",
		"/v1/./topics":                   "/v1/topics",
		"/v1/../v1/topics":               "/v1/topics",
		"/v1/topics//":                   "/v1/topics/",
		"/v1/topics/a.b/events/x/../..":  "/v1/topics/a.b",
		"/publish//a":                    "/publish/a",
		"/publish/../livez":              "/livez",
		"//":                             "/",
		"//evil.example/%2e%2e":          "/evil.example/%2e%2e",
		"/v1/topics/a.b//groups/g/pause": "/v1/topics/a.b/groups/g/pause",
	} {
		for _, method := range []string{"GET", "POST", "DELETE"} {
			if status, _ := ask(t, redirecting, method, target); status != 307 {
				t.Errorf("a mux answers %s %s by %d: it need not be kept from it", method, target, status)
			}
			status, answer := ask(t, clean, method, target)
			var p problem
			if err := json.Unmarshal([]byte(answer), &p); err != nil {
				t.Fatalf("%s %s: %d %s: %v", method, target, status, answer, err)
			}
			if status != 404 || p.Status != 404 || p.Code != "unsupported_op" || !strings.Contains(p.Detail, fmt.Sprintf("is %q meant", want)) {
				t.Errorf("%s %s was answered %d %+v; want 404 and %s", method, target, status, p, want)
			}
		}
	}
	if len(s.operated) != 0 {
		t.Errorf("asked for %q", s.operated)
	}
	for target, want := range map[string]int{
		"/":                                 418,
		"/livez":                            418,
		"/v2":                               404,
		"/v1/topics?x=//":                   400,
		"/v1/topics/":                       404,
		"/v1/topics/a.b":                    200,
		"/v1/topics/a%2Eb":                  200,
		"/v1/topics/a%2F%2Fb":               400,
		"/v1/topics/a.b/events/%2E%2E":      200,
		"/v1/topics/a.b/groups/g/inflight?": 200,
	} {
		status, answer := ask(t, clean, "GET", target)
		if as, same := ask(t, redirecting, "GET", target); status != want || as != status || same != answer {
			t.Errorf("GET %s was answered %d %s; want %d, as a mux does: %d %s", target, status, answer, want, as, same)
		}
	}
}

// ask sends a request line as it is, which a client of net/http would correct,
// and returns the answer.
func ask(t *testing.T, srv *httptest.Server, method, target string) (status int, body string) {
	t.Helper()
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n", method, target); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var b strings.Builder
	if _, err := bufio.NewReader(answer.Body).WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, b.String()
}
