package ops

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"eventhub"
	"eventhub/internal/bubble"
)

// states are checks whose outcomes a test sets.
type states map[string]error

func (s states) check(name string, takes time.Duration) Check {
	return Check{Name: name, Check: func(ctx context.Context) error {
		select {
		case <-time.After(takes):
			return s[name]
		case <-ctx.Done():
			return ctx.Err()
		}
	}}
}

func TestReadyz(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := states{}
		cfg := new(rooms).config()
		cfg.Ready = []Check{s.check("store", 2*time.Millisecond), s.check("listeners", 0)}
		h := open(t, cfg)
		wantAnswer := func(target string, status int, body string, header ...string) {
			t.Helper()
			if w := get(h, target, header...); w.Code != status || w.Body.String() != body {
				t.Errorf("%s answered %d %q; want %d %q", target, w.Code, w.Body, status, body)
			}
		}
		for _, target := range []string{"/readyz", "/healthz"} {
			wantAnswer(target, 200, "ok\n")
			wantAnswer(target+"?verbose", 200, "store ok 2.0ms\nlisteners ok 0.0ms\nok\n")
			wantAnswer(target+"?format=json", 200,
				`{"status":"ok","checks":[{"name":"store","status":"ok","time_ms":2},{"name":"listeners","status":"ok","time_ms":0}]}`+"\n")
		}
		s["store"] = errors.New("/var/lib/secret is full")
		wantAnswer("/readyz", 503, "store failed 2.0ms: Internal error; the hub's log has the cause.\nfailed\n")
		s["store"], s["listeners"] = nil, eventhub.Errorf(eventhub.CodeShuttingDown, "stopping")
		wantAnswer("/readyz", 503, "listeners failed 0.0ms: stopping\nfailed\n")
		wantAnswer("/readyz?verbose", 503, "store ok 2.0ms\nlisteners failed 0.0ms: stopping\nfailed\n")
		wantAnswer("/readyz", 503,
			`{"status":"failed","checks":[{"name":"store","status":"ok","time_ms":2},{"name":"listeners","status":"failed","time_ms":0,"error":"stopping"}]}`+"\n",
			"Accept", "text/html, application/json;q=0.9")
		wantAnswer("/livez", 200, "ok\n")
	})
}

// TestReadyzIsBounded: a check that hangs is a failed one.
func TestReadyzIsBounded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		cfg := new(rooms).config()
		cfg.Ready = []Check{states{}.check("store", time.Hour)}
		began := time.Now()
		w := get(open(t, cfg), "/readyz")
		if took := time.Since(began); w.Code != 503 || took != patience {
			t.Errorf("answered %d %s after %s; want 503 after %s", w.Code, w.Body, took, patience)
		}
	})
}

func TestWithoutChecksAHubIsReady(t *testing.T) {
	h := open(t, new(rooms).config())
	if w := get(h, "/readyz?format=json"); w.Code != 200 || w.Body.String() != `{"status":"ok","checks":[]}`+"\n" {
		t.Errorf("answered %d %s", w.Code, w.Body)
	}
}

// TestReadinessIsLoggedWhenItChanges: probes come every second, and the log is
// not to be filled by them.
func TestReadinessIsLoggedWhenItChanges(t *testing.T) {
	s := states{}
	cfg := new(rooms).config()
	cfg.Ready = []Check{s.check("store", 0)}
	log, lines := logged(slog.LevelInfo)
	cfg.Logger = log
	h := open(t, cfg)
	for _, err := range []error{nil, nil, errors.New("no room"), errors.New("no room"), nil, nil} {
		s["store"] = err
		get(h, "/readyz")
		get(h, "/healthz")
	}
	want := []string{`level=WARN msg="the hub is not ready" check=store error="no room"`, `level=INFO msg="a check of readiness is well again" check=store`}
	if got := lines(); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("logged\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
