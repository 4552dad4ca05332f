package console

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"eventhub"
	"eventhub/internal/measure"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// config is that of a console over an empty hub which lets everybody in.
func config() Config {
	return Config{
		Engine:    func(context.Context) (measure.Engine, error) { return measure.Engine{FullIn: -1}, nil },
		Gateway:   func() measure.Gateway { return measure.Gateway{} },
		Closed:    func() bool { return false },
		WhyClosed: func() error { return eventhub.Errorf(eventhub.CodeNotActive, "this hub does not lead") },
		Ready:     func(context.Context) []Check { return []Check{{Name: "serving"}} },
		Admit:     func(*http.Request) (Access, error) { return Access{}, nil },
		Refuse: func(w http.ResponseWriter, err error) {
			http.Error(w, string(eventhub.ErrorCode(err))+" "+err.Error(), http.StatusForbidden)
		},
		Version: "v9",
	}
}

// open returns a console and its routes.
func open(t *testing.T, cfg Config) (*Console, *http.ServeMux) {
	t.Helper()
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	c.Register(mux)
	return c, mux
}

func do(h http.Handler, method, target string, header ...string) *http.Response {
	r := httptest.NewRequest(method, target, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func body(t *testing.T, r *http.Response) string {
	t.Helper()
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestFiles: every file is there as what it is, for everybody, under the one policy, and is not sent
// again to who has it.
func TestFiles(t *testing.T) {
	cfg := config()
	cfg.Admit = func(*http.Request) (Access, error) { return Access{}, errors.New("nobody is let in") }
	_, mux := open(t, cfg)
	err := filepath.WalkDir("static", func(name string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		want, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		at := "/console/" + strings.TrimPrefix(filepath.ToSlash(name), "static/")
		r := do(mux, "GET", at)
		if got := body(t, r); r.StatusCode != 200 || got != string(want) {
			t.Errorf("%s: %d, %d bytes; want 200, %d", name, r.StatusCode, len(got), len(want))
		}
		kind := r.Header.Get("Content-Type")
		if kind == "" || kind != kinds[filepath.Ext(name)] {
			t.Errorf("%s has the type %q", name, kind)
		}
		if again := do(mux, "GET", at, "If-None-Match", r.Header.Get("ETag")); again.StatusCode != 304 {
			t.Errorf("%s was sent again: %d", name, again.StatusCode)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	index := httptest.NewRecorder()
	Index(index, httptest.NewRequest("GET", "/", nil))
	for _, r := range []*http.Response{do(mux, "GET", "/console/"), do(mux, "HEAD", "/console/app.js"), do(mux, "GET", "/console/none"), do(mux, "POST", "/console/app.js"), index.Result()} {
		h := r.Header
		if h.Get("Content-Security-Policy") != Policy || h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Referrer-Policy") != "no-referrer" {
			t.Errorf("%d with %v", r.StatusCode, h)
		}
	}
	if got := do(mux, "GET", "/console/none").StatusCode; got != 404 {
		t.Errorf("what is not there: %d", got)
	}
	if got := do(mux, "POST", "/console/app.js").StatusCode; got != 405 {
		t.Errorf("POST of a file: %d", got)
	}
}

// TestPolicy: nothing but own files, own origin, and no markup out of text.
func TestPolicy(t *testing.T) {
	for _, part := range []string{"default-src 'none';", "script-src 'self';", "style-src 'self';", "connect-src 'self';", "frame-ancestors 'none'", "require-trusted-types-for 'script'"} {
		if !strings.Contains(Policy, part) {
			t.Errorf("the policy has no %q", part)
		}
	}
	for _, bad := range []string{"unsafe", "*", "http", "data:", "blob:"} {
		if strings.Contains(Policy, bad) {
			t.Errorf("the policy has %q", bad)
		}
	}
}

// TestAssetsAreSmallAndOurOwn: all files together stay small, and name no other host to load
// anything from; the page has no script or style of its own in it.
func TestAssetsAreSmallAndOurOwn(t *testing.T) {
	const most = 200 << 10
	var packed bytes.Buffer
	total := 0
	foreign := regexp.MustCompile(`(?i)(?:src|href|import|from|url)\s*[=(]?\s*["'(]\s*(?:https?:)?//`)
	for name, f := range files.by {
		packed.Reset()
		z, _ := gzip.NewWriterLevel(&packed, gzip.BestCompression)
		if _, err := z.Write(f.body); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		if name != "" { // the page again
			total += packed.Len()
		}
		if at := foreign.FindString(string(f.body)); at != "" && filepath.Ext(name) != ".txt" {
			t.Errorf("%s loads %q", name, at)
		}
	}
	t.Logf("%d files, %d bytes with gzip", len(files.by)-1, total)
	if total > most {
		t.Errorf("the files have %d bytes with gzip; at most %d are allowed", total, most)
	}
	index := string(files.by["index.html"].body)
	for name := range files.by {
		// One after the other they would take a round trip for each import of an import.
		if filepath.Ext(name) == ".js" && name != "vendor/graph.js" && !strings.Contains(index, `"/console/`+name+`"`) {
			t.Errorf("index.html does not load %s beforehand", name)
		}
	}
	if at := regexp.MustCompile(`(?i)<script(?:[^>]*)>[^<]|<style|\son\w+=|\sstyle=|javascript:`).FindString(index); at != "" {
		t.Errorf("index.html has %q", at)
	}
}

// TestVendoredAreNamed: each library has its licence beside it, and a row in the list of
// dependencies with its version.
func TestVendoredAreNamed(t *testing.T) {
	list, err := os.ReadFile("../../docs/dependencies.md")
	if err != nil {
		t.Fatal(err)
	}
	licences := string(files.by["vendor/LICENSES.txt"].body)
	found := regexp.MustCompile(`(?m)^(\S+) (\d+\.\d+\.\d+) \(([\w.-]+)\)$`).FindAllStringSubmatch(licences, -1)
	if len(found) < 5 {
		t.Errorf("the licences name %d libraries: %q", len(found), found)
	}
	for _, f := range found {
		if row := fmt.Sprintf("| %s | %s", f[1], f[2]); !strings.Contains(string(list), row) {
			t.Errorf("docs/dependencies.md has no row %q", row)
		}
	}
}

func TestConfigurationIsComplete(t *testing.T) {
	for name, without := range map[string]func(*Config){
		"Engine": func(c *Config) { c.Engine = nil }, "Gateway": func(c *Config) { c.Gateway = nil }, "Closed": func(c *Config) { c.Closed = nil }, "WhyClosed": func(c *Config) { c.WhyClosed = nil },
		"Ready": func(c *Config) { c.Ready = nil }, "Admit": func(c *Config) { c.Admit = nil }, "Refuse": func(c *Config) { c.Refuse = nil },
	} {
		cfg := config()
		without(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("without %s: %v", name, err)
		}
	}
}
