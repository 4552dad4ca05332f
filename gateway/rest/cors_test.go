package rest

import (
	"net/http"
	"slices"
	"strings"
	"testing"
)

// TestPagesOfOtherOrigins: a page of an allowed origin may read all answers, refusals too, and
// asks before without a token; a page of another gets none of the headers that let it.
func TestPagesOfOtherOrigins(t *testing.T) {
	h := newAPI(t, &log{})
	for _, tt := range []struct {
		method, path string
		header       []string
		status       int
		allowed      string // the origin that may read
		methods      string
	}{
		{"OPTIONS", "/publish/orders", []string{"Origin", "https://app.example", "Access-Control-Request-Method", "POST"}, 204, "https://app.example", "POST"},
		{"OPTIONS", "/v1/topics/orders/stream", []string{"Origin", "https://APP.example:443", "Access-Control-Request-Method", "GET"}, 204, "https://APP.example:443", "GET, HEAD"},
		{"OPTIONS", "/v1/topics/orders", []string{"Origin", "http://localhost:3000", "Access-Control-Request-Method", "PUT"}, 204, "http://localhost:3000", "DELETE, GET, PUT, HEAD"},
		{"OPTIONS", "/publish/orders", []string{"Origin", "https://evil.example", "Access-Control-Request-Method", "POST"}, 405, "", ""},
		{"OPTIONS", "/publish/orders", []string{"Origin", "null", "Access-Control-Request-Method", "POST"}, 405, "", ""},
		{"OPTIONS", "/publish/orders", []string{"Origin", "https://app.example"}, 405, "https://app.example", ""},
		{"OPTIONS", "/publish/orders", []string{"Access-Control-Request-Method", "POST"}, 405, "", ""},
		{"POST", "/publish/orders", []string{"Origin", "https://app.example"}, 200, "https://app.example", ""},
		{"POST", "/publish/orders", []string{"Origin", "https://app.example", "Authorization", "Bearer wrong"}, 401, "https://app.example", ""},
		{"GET", "/v1/nothing", []string{"Origin", "https://app.example"}, 404, "https://app.example", ""},
		{"GET", "/publish/orders", []string{"Origin", "https://app.example"}, 405, "https://app.example", ""},
		{"POST", "/publish/orders", []string{"Origin", "https://evil.example"}, 403, "", ""},
		{"POST", "/publish/orders", []string{"Origin", "https://app.example.evil.example"}, 403, "", ""},
		{"POST", "/publish/orders", nil, 200, "", ""},
	} {
		status, body, got := request(h, tt.method, tt.path, "1", tt.header...)
		if status != tt.status || got.Get("Access-Control-Allow-Origin") != tt.allowed || got.Get("Access-Control-Allow-Methods") != tt.methods {
			t.Errorf("%s %s %v: %d %v %s", tt.method, tt.path, tt.header, status, got, body)
		}
		if vary := strings.Split(strings.Join(got.Values("Vary"), ", "), ", "); !slices.Contains(vary, "Origin") {
			t.Errorf("%s %s %v: caches may give the answer to another origin: %v", tt.method, tt.path, tt.header, got)
		}
		read := got.Get("Access-Control-Expose-Headers")
		if want := tt.allowed != "" && tt.methods == ""; want != strings.Contains(read, "Retry-After") || want != strings.Contains(read, "ETag") {
			t.Errorf("%s %s %v: the page may read %q", tt.method, tt.path, tt.header, read)
		}
		if got.Get("Access-Control-Allow-Credentials") != "" || tt.allowed == "" && hasCORS(got) {
			t.Errorf("%s %s %v: %v", tt.method, tt.path, tt.header, got)
		}
	}
}

func hasCORS(h http.Header) bool {
	for name := range h {
		if strings.HasPrefix(name, "Access-Control-") {
			return true
		}
	}
	return false
}
