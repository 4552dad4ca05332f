package ops

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/measure"
)

// guarded are all routes that ask who asks, with a request that they answer.
var guarded = []struct{ method, target, body string }{
	{"GET", "/metrics", ""},
	{"GET", "/cursors?topic=orders", ""},
	{"GET", "/lag?topic=orders&group=billing", ""},
	{"GET", "/inflight?topic=orders&group=billing", ""},
	{"GET", "/cluster", ""},
	{"GET", "/log-level", ""},
	{"PUT", "/log-level", "warn"},
}

func openAll(t *testing.T) http.Handler {
	f := filled()
	f.groupsBy = []admin.GroupInfo{{Topic: "orders", Group: "billing"}}
	cfg := f.config()
	cfg.Level = new(slog.LevelVar)
	return open(t, cfg)
}

func TestWhoIsLetIn(t *testing.T) {
	h := openAll(t)
	for _, route := range guarded {
		for _, tt := range []struct {
			name   string
			header []string
			status int
			code   eventhub.Code
			says   string
		}{
			{"no token", nil, 200, "", ""},
			{"right token", []string{"Authorization", "bearer right"}, 200, "", ""},
			{"wrong token", []string{"Authorization", "Bearer wrong"}, 401, eventhub.CodeBadToken, "not valid"},
			{"empty token", []string{"Authorization", "Bearer "}, 401, eventhub.CodeBadToken, "not valid"},
			{"basic", []string{"Authorization", "Basic eDp5"}, 401, eventhub.CodeBadToken, "Bearer"},
			{"foreign page", []string{"Origin", "https://evil.example"}, 403, eventhub.CodeForbidden, "evil.example"},
			{"page of a name that resolves to this machine", []string{"Origin", "http://example.com"}, 403, eventhub.CodeForbidden, "example.com"},
		} {
			t.Run(route.method+" "+route.target+" "+tt.name, func(t *testing.T) {
				w := do(h, route.method, route.target, route.body, tt.header...)
				if got := w.Header().Get("Cache-Control"); got != "no-store" {
					t.Errorf("Cache-Control is %q", got)
				}
				if tt.status != 200 {
					wantProblem(t, w, tt.status, tt.code, tt.says)
				} else if w.Code != 200 {
					t.Errorf("answered %d %s", w.Code, w.Body)
				}
			})
		}
	}
	for _, probe := range []string{"/livez", "/readyz", "/healthz"} {
		if w := get(h, probe, "Authorization", "Bearer wrong"); w.Code != 200 {
			t.Errorf("%s answered %d %s to a wrong token", probe, w.Code, w.Body)
		}
	}
}

// TestPages: a listed page and one of this machine may look.
func TestPages(t *testing.T) {
	h := openAll(t)
	for _, from := range []string{"https://app.example", "http://localhost:3000"} {
		if w := get(h, "/lag", "Origin", from); w.Code != 200 {
			t.Errorf("a page of %s got %d %s", from, w.Code, w.Body)
		}
	}
}

// TestRebinding: a page whose name was made to resolve to this machine, and which
// therefore sends no Origin, sees nothing of a hub that asks for no token but
// whether it lives; a hub that asks for one may have any name.
func TestRebinding(t *testing.T) {
	for _, tt := range []struct {
		open   bool
		host   string
		status int
	}{
		{true, "evil.example:8082", 403},
		{true, "app.example", 200}, // of a listed origin
		{true, "localhost:8082", 200},
		{false, "hub.internal:8082", 200},
	} {
		cfg := viewed().config()
		cfg.Open, cfg.Level, cfg.Cluster = tt.open, new(slog.LevelVar), func() *measure.Cluster { return new(measure.Cluster) }
		h := open(t, cfg)
		for _, target := range []string{"/cursors?topic=orders", "/lag", "/inflight?topic=orders&group=billing", "/metrics", "/cluster", "/log-level"} {
			w := get(h, "http://"+tt.host+target, "Authorization", "Bearer right")
			if w.Code != tt.status {
				t.Errorf("%s of %s, open %v: %d %s; want %d", target, tt.host, tt.open, w.Code, w.Body, tt.status)
			}
			if tt.status == 403 {
				wantProblem(t, w, 403, eventhub.CodeForbidden, `"evil.example:8082" is not known`)
			}
		}
		if w := get(h, "http://"+tt.host+"/livez"); w.Code != 200 {
			t.Errorf("/livez of %s: %d", tt.host, w.Code)
		}
	}
}

func TestOnlyKnownMethods(t *testing.T) {
	h := openAll(t)
	for _, target := range []string{"/livez", "/readyz", "/metrics", "/cursors", "/lag", "/inflight", "/cluster", "/log-level"} {
		if w := do(h, "POST", target, "debug"); w.Code != 405 {
			t.Errorf("POST %s answered %d %s", target, w.Code, w.Body)
		}
		if w := do(h, "HEAD", target, ""); w.Code == 405 {
			t.Errorf("HEAD %s answered %d", target, w.Code)
		}
	}
}

func TestConfigIsChecked(t *testing.T) {
	check := Check{Name: "store", Check: func(context.Context) error { return nil }}
	_, err := New(Config{Origins: []string{"app.example"}, MaxLabels: -1, MaxHistograms: -2, Ready: []Check{check, check, {Name: "empty"}}})
	for _, part := range []string{"Engine", "Gateway", "API", "Authenticate", "app.example", "MaxLabels is -1", "MaxHistograms is -2", `Ready[1] "store"`, `Ready[2] "empty"`} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("New = %v; it does not speak of %s", err, part)
		}
	}
}

// TestFailuresOfTheHub: the client learns the code and, of what is not its
// business, no more; the log has the cause.
func TestFailuresOfTheHub(t *testing.T) {
	for _, tt := range []struct {
		err    error
		status int
		code   eventhub.Code
		retry  string
		logs   int
	}{
		{errors.New("disk on fire"), 500, eventhub.CodeInternal, "", 1},
		{eventhub.Errorf(eventhub.CodeShuttingDown, "bye"), 503, eventhub.CodeShuttingDown, "1", 0},
		{&eventhub.Error{Code: eventhub.CodeRateLimited, Message: "slow down", RetryAfter: 2100e6}, 429, eventhub.CodeRateLimited, "3", 0},
	} {
		f := &rooms{broken: tt.err}
		cfg := f.config()
		log, lines := logged(slog.LevelInfo)
		cfg.Logger = log
		h := open(t, cfg)
		w := get(h, "/lag?topic=t&group=g")
		wantProblem(t, w, tt.status, tt.code, "")
		if got := w.Header().Get("Retry-After"); got != tt.retry {
			t.Errorf("%v: Retry-After is %q; want %q", tt.err, got, tt.retry)
		}
		if strings.Contains(w.Body.String(), "fire") {
			t.Errorf("the answer shows the cause: %s", w.Body)
		}
		if got := lines(); len(got) != tt.logs || tt.logs > 0 && !strings.Contains(got[0], "fire") {
			t.Errorf("%v: logged %q", tt.err, got)
		}
	}
}
