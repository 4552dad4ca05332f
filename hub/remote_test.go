package hub_test

import (
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"

	"eventhub/hub"
)

// TestProxiesSayWhoComes: with a trusted proxy the log, and those who look at connections, have
// the address that it says, over HTTP and WebSocket; without one they do not.
func TestProxiesSayWhoComes(t *testing.T) {
	for _, trusted := range [][]string{nil, {"10.0.0.0/8"}, {"127.0.0.0/8"}} {
		var log lines
		h := start(t, hub.Config{Store: hub.MemoryStore, AuthToken: "s3cret", TrustedProxies: trusted, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		header := http.Header{"X-Forwarded-For": {"198.51.100.1, 203.0.113.9"}}
		conn, _, _, err := ws.Dialer{Header: ws.HandshakeHeaderHTTP(header)}.Dial(t.Context(), "ws://"+h.WSAddr())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := wsutil.WriteClientText(conn, []byte(`{"op":"AUTH","token":"wrong"}`)); err != nil {
			t.Fatal(err)
		}
		if _, err := wsutil.ReadServerText(conn); err != nil {
			t.Fatal(err)
		}
		if err := wsutil.WriteClientText(conn, []byte(`{"op":"AUTH","token":"s3cret"}`)); err != nil {
			t.Fatal(err)
		}
		if _, err := wsutil.ReadServerText(conn); err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+h.HTTPAddr()+"/v1/topics", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header = header
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		said := log.String()
		for _, line := range []string{`msg="connection opened" remote=`, `msg="a peer was refused" transport=ws remote=`, `msg="a peer was refused" transport=http remote=`} {
			if _, after, ok := strings.Cut(said, line); !ok || strings.HasPrefix(after, "203.0.113.9 ") != (trusted != nil && trusted[0] == "127.0.0.0/8") {
				t.Errorf("trusted are %v: %s%.30s", trusted, line, after)
			}
		}
	}
	err := hub.Config{TrustedProxies: []string{"10.0.0.1/8", "proxy"}}.WithDefaults().Validate()
	for _, part := range []string{`"10.0.0.1/8": the network is 10.0.0.0/8`, `"proxy": want a network`} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%v does not speak of %s", err, part)
		}
	}
}
