package ops

import (
	"log/slog"
	"strings"
	"testing"

	"eventhub"
)

func TestLogLevel(t *testing.T) {
	level := new(slog.LevelVar)
	log, lines := logged(level)
	cfg := new(rooms).config()
	cfg.Level, cfg.Logger = level, log
	h := open(t, cfg)
	if w := get(h, "/log-level"); w.Code != 200 || w.Body.String() != "info\n" {
		t.Errorf("the level is shown as %d %q", w.Code, w.Body)
	}
	for i, tt := range []struct {
		body string
		want slog.Level
	}{
		{"debug", slog.LevelDebug},
		{" ERROR\r\n", slog.LevelError},
		{"warn", slog.LevelWarn},
		{"info", slog.LevelInfo},
	} {
		name := strings.ToLower(strings.TrimSpace(tt.body))
		w := do(h, "PUT", "/log-level", tt.body)
		if w.Code != 200 || w.Body.String() != name+"\n" || level.Level() != tt.want {
			t.Errorf("PUT %q answered %d %q and set %s; want %s", tt.body, w.Code, w.Body, level.Level(), tt.want)
		}
		// Also what makes the log say less is said in it.
		got := lines()
		if len(got) != i+1 || !strings.Contains(got[i], "to="+name+" remote=192.0.2.1:1234") {
			t.Errorf("after PUT %q the log has\n%s", tt.body, strings.Join(got, "\n"))
		}
	}
}

func TestLogLevelRefusals(t *testing.T) {
	level := new(slog.LevelVar)
	cfg := new(rooms).config()
	cfg.Level = level
	h := open(t, cfg)
	for _, tt := range []struct {
		name, body string
		header     []string
		status     int
		code       eventhub.Code
		says       string
	}{
		{"unknown", "verbose", nil, 400, eventhub.CodeBadRequest, `"verbose"`},
		{"empty", "", nil, 400, eventhub.CodeBadRequest, `""`},
		{"a number between two levels", "INFO+1", nil, 400, eventhub.CodeBadRequest, "info+1"},
		{"too long", "debug" + strings.Repeat(" ", 60), nil, 413, eventhub.CodeTooLarge, "64"},
		{"encoded", "debug", []string{"Content-Encoding", "gzip"}, 415, eventhub.CodeBadRequest, `"gzip"`},
		{"cross-site page", "debug", []string{"Sec-Fetch-Site", "cross-site"}, 403, eventhub.CodeForbidden, "another site"},
		{"page on another port", "debug", []string{"Sec-Fetch-Site", "same-site", "Origin", "http://localhost:3000"}, 403, eventhub.CodeForbidden, "other sites"},
		{"old browser, page on another port", "debug", []string{"Origin", "http://localhost:3000"}, 403, eventhub.CodeForbidden, "other sites"},
		{"page that may look", "debug", []string{"Sec-Fetch-Site", "cross-site", "Origin", "https://app.example"}, 403, eventhub.CodeForbidden, "other sites"},
		{"foreign name that resolves to this machine", "debug", []string{"Sec-Fetch-Site", "same-origin", "Origin", "http://example.com"}, 403, eventhub.CodeForbidden, "example.com"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			wantProblem(t, do(h, "PUT", "/log-level", tt.body, tt.header...), tt.status, tt.code, tt.says)
			if level.Level() != slog.LevelInfo {
				t.Errorf("the level is %s", level.Level())
			}
		})
	}
	if w := do(h, "PUT", "/log-level", "debug", "Content-Encoding", "gzip"); w.Header().Get("Accept-Encoding") != "identity" {
		t.Errorf("an encoded body is refused with the header %v", w.Header())
	}
	if w := do(h, "PUT", "/log-level", "debug", "Content-Encoding", "identity"); w.Code != 200 {
		t.Errorf("a body that says it is not encoded got %d %s", w.Code, w.Body)
	}
	if w := do(h, "PUT", "/log-level", "debug", "Sec-Fetch-Site", "same-origin", "Origin", "http://localhost:8082"); w.Code != 200 {
		t.Errorf("the hub's own page got %d %s", w.Code, w.Body)
	}
}

func TestWithoutALevelThereIsNoRoute(t *testing.T) {
	if w := get(open(t, new(rooms).config()), "/log-level"); w.Code != 404 {
		t.Errorf("answered %d %s", w.Code, w.Body)
	}
}
