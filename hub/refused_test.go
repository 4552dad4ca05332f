package hub_test

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/gobwas/ws/wsutil"

	"eventhub/hub"
)

// lines is a writer for the log of a hub.
type lines struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

// TestRefusedPeers: who has no right token is a warning in the log, once for an address and
// a reason, and is counted, at each door; the log never has a token.
func TestRefusedPeers(t *testing.T) {
	const right, wrong = "s3cret", "guessed-by-somebody"
	log := new(lines)
	h := start(t, hub.Config{Store: hub.MemoryStore, AuthToken: right, WSAddr: "127.0.0.1:0", HTTPAddr: "localhost:0", OpsAddr: "127.0.0.2:0",
		Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelInfo}))})
	ask := func(url, header string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if header != "" {
			r.Header.Set("Authorization", header)
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, string(body)
	}
	topics, metrics := "http://"+h.HTTPAddr()+"/v1/topics", "http://"+h.OpsAddr()+"/metrics"
	for _, tt := range []struct{ url, header string }{
		{topics, "Bearer " + wrong}, {topics, "Bearer " + wrong}, {topics, ""}, {topics, "Basic " + wrong}, {metrics, "Bearer " + wrong},
	} {
		if status, body := ask(tt.url, tt.header); status != http.StatusUnauthorized {
			t.Errorf("%s with %q: %d %s", tt.url, tt.header, status, body)
		}
	}
	conn := dial(t, h.WSAddr())
	defer conn.Close()
	for _, say := range []string{`{"op":"LIST"}`, `{"op":"AUTH","token":"` + wrong + `"}`, `{"op":"AUTH","token":"` + wrong + `2"}`, `{"op":"AUTH","token":"` + right + `"}`} {
		if _, err := conn.Write(masked([]byte(say))); err != nil {
			t.Fatal(err)
		}
		if _, err := wsutil.ReadServerText(conn); err != nil {
			t.Fatal(err)
		}
	}
	_, scrape := ask(metrics, "Bearer "+right)
	for _, want := range []struct {
		transport, reason, host string
		n                       int
	}{
		{"http", "bad_token", "127.0.0.1", 3}, {"http", "no_token", "127.0.0.1", 1}, {"ops", "bad_token", "127.0.0.", 1},
		{"ws", "unauthorized", "127.0.0.1", 1}, {"ws", "bad_token", "127.0.0.1", 2},
	} {
		if series := fmt.Sprintf("eventhub_auth_refused_total{reason=%q,transport=%q} %d\n", want.reason, want.transport, want.n); !strings.Contains(scrape, series) {
			t.Errorf("the metrics lack %s", series)
		}
		found := 0
		for line := range strings.Lines(log.String()) {
			if strings.Contains(line, "level=WARN msg=\"a peer was refused\" transport="+want.transport+" remote="+want.host) && strings.HasSuffix(line, " reason="+want.reason+"\n") {
				found++
			}
		}
		if found != 1 {
			t.Errorf("%d lines say that %s refused %s; want 1", found, want.transport, want.reason)
		}
	}
	if text := log.String(); strings.Contains(text, wrong) || strings.Contains(text, right) || t.Failed() {
		t.Errorf("the log is\n%s", text)
	}
}
