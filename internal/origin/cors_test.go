package origin

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestPreflight: of what a page wants to send it may what the API understands.
func TestPreflight(t *testing.T) {
	policy, err := New([]string{"https://app.example"})
	if err != nil {
		t.Fatal(err)
	}
	for asked, want := range map[string]string{
		"":                            "",
		"authorization":               "authorization",
		"Authorization, If-Match":     "authorization, if-match",
		"last-event-id,content-type":  "last-event-id, content-type",
		"idempotency-key":             "idempotency-key",
		"x-eventhub-key, ce-id, x-":   "x-eventhub-key, ce-id, x-",
		"traceparent, tracestate":     "traceparent, tracestate",
		"cookie, sec-x, proxy-x, ce":  "",
		"x-a b, x-\"q\", x-é, x-a:b":  "",
		"authorization\x00, x-n\r\nl": "",
	} {
		r := httptest.NewRequest(http.MethodOptions, "/v1/topics", nil)
		r.Header.Set("Origin", "https://app.example")
		r.Header.Set("Access-Control-Request-Method", "PUT")
		r.Header["Access-Control-Request-Headers"] = []string{asked}
		w := httptest.NewRecorder()
		policy.Share(w, r)
		policy.Preflight(w, r, "GET, PUT")
		h := w.Header()
		if got := h.Get("Access-Control-Allow-Headers"); got != want {
			t.Errorf("asked for %q: %q; want %q", asked, got, want)
		}
		if w.Code != 204 || h.Get("Access-Control-Allow-Origin") != "https://app.example" || h.Get("Access-Control-Allow-Methods") != "GET, PUT" ||
			h.Get("Access-Control-Allow-Credentials") != "" || !strings.Contains(strings.Join(h.Values("Vary"), ", "), "Origin") {
			t.Errorf("asked for %q: %d %v", asked, w.Code, h)
		}
	}
}
