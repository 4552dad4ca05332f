package ops

import (
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"eventhub"
	"eventhub/apidoc"
)

func TestDocuments(t *testing.T) {
	h := openAll(t)
	for target, d := range map[string]apidoc.Document{"/openapi.json": apidoc.OpenAPI, "/asyncapi.json": apidoc.AsyncAPI} {
		w := get(h, target)
		if w.Code != 200 || w.Body.String() != string(d.JSON) || w.Header().Get("Content-Type") != "application/json" ||
			w.Header().Get("Cache-Control") != "private, no-cache" || w.Header().Get("ETag") != d.ETag {
			t.Errorf("%s: %d with %d bytes and %v", target, w.Code, w.Body.Len(), w.Header())
		}
		if w := get(h, target, "If-None-Match", d.ETag); w.Code != http.StatusNotModified || w.Body.Len() > 0 {
			t.Errorf("%s, which the client has: %d with %d bytes", target, w.Code, w.Body.Len())
		}
		if w := get(h, target, "If-None-Match", `"another"`); w.Code != 200 {
			t.Errorf("%s, while the client has another one: %d", target, w.Code)
		}
		if w := do(h, "HEAD", target, ""); w.Code != 200 || w.Body.Len() > 0 {
			t.Errorf("HEAD %s: %d with %d bytes", target, w.Code, w.Body.Len())
		}
		w = get(h, target, "Authorization", "Bearer wrong")
		wantProblem(t, w, 401, eventhub.CodeBadToken, "not valid")
		if w.Header().Get("Cache-Control") != "no-store" || w.Header().Get("ETag") != "" {
			t.Errorf("%s, refused: %v", target, w.Header())
		}
	}
}

// TestRoutes: the routes that are listed are those that are mounted.
func TestRoutes(t *testing.T) {
	cfg := filled().config()
	cfg.Level = new(slog.LevelVar)
	o, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	o.Register(mux)
	if len(o.Routes()) < len(guarded)+3 {
		t.Errorf("the routes are %q", o.Routes())
	}
	for _, route := range o.Routes() {
		method, path, _ := strings.Cut(route, " ")
		r, err := http.NewRequest(method, path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, pattern := mux.Handler(r); pattern != route {
			t.Errorf("%s is mounted as %q", route, pattern)
		}
	}
}
