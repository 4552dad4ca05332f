package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestSeveralURLs: the commands take the URLs of all hubs of a cluster, and find the one that leads; what is about one hub says so.
func TestSeveralURLs(t *testing.T) {
	hub := startHub(t, "--store", "memory:")
	standby := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte(`{"type":"about:blank","title":"Service Unavailable","status":503,"detail":"this hub is a standby","code":"not_active","error":"this hub is a standby"}`)) // the caller may be gone
	}))
	t.Cleanup(standby.Close)
	urls := fmt.Sprintf("ws://127.0.0.1:1, %s,%s", strings.TrimPrefix(standby.URL, "http://"), hub.ws)
	for _, tt := range []struct {
		args string
		code int
		says string
	}{
		{"pub a.b 1", 0, ""},
		{"topic ls", 0, "a.b"},
		{"check", 0, "ws://" + hub.ws},
		{"status --ops " + hub.ops, 0, "ws://" + hub.ws},
		{"cluster status", exitUsage, "--url names several hubs; --ops says"},
		{"cluster status --ops " + hub.ops, exitFailed, "shares no journal"},
		{"bench publish", exitUsage, "--url names several hubs, and one is measured"},
	} {
		code, stdout, stderr := runBinary(t, []string{"EVENTHUB_URL=" + urls}, strings.Fields(tt.args)...)
		if code != tt.code || !strings.Contains(stdout+stderr, tt.says) {
			t.Errorf("%s: exit code %d, %s%s; want %d with %q", tt.args, code, stdout, stderr, tt.code, tt.says)
		}
	}
	if code, _, stderr := runBinary(t, nil, "topic", "ls", "--url", "ws://"+hub.ws+","); code != exitUsage || !strings.Contains(stderr, `url "" has no port`) {
		t.Errorf("a comma without a URL: exit code %d, %s", code, stderr)
	}
}
