package client_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"eventhub/client"
	"eventhub/hub"
)

// proxied is a TLS server in front of a hub that asks for a token. Once it is stopped,
// requests to the HTTP API are not passed on: they wait until they are given up.
type proxied struct {
	url     string
	trusted client.Option
	stopped atomic.Bool
	waiting chan struct{}
}

func startProxied(t *testing.T) *proxied {
	h := startHub(t, hub.Config{AuthToken: "s3cret"})
	target, err := url.Parse("http://" + h.WSAddr())
	if err != nil {
		t.Fatal(err)
	}
	p := &proxied{waiting: make(chan struct{}, 1)}
	forward := httputil.NewSingleHostReverseProxy(target)
	forward.ErrorLog = log.New(io.Discard, "", 0)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.stopped.Load() && strings.HasPrefix(r.URL.Path, "/v1/") {
			p.waiting <- struct{}{}
			<-r.Context().Done()
			return
		}
		forward.ServeHTTP(w, r)
	}))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0) // Close cuts connections
	srv.StartTLS()
	t.Cleanup(srv.Close)
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	p.url, p.trusted = srv.URL, client.WithTLS(&tls.Config{RootCAs: roots})
	return p
}

// unused returns an address where nobody listens.
func unused(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// TestAdminOfClient: it has the URLs, the TLS configuration, the tokens and the logger of
// its client, and ends with it.
func TestAdminOfClient(t *testing.T) {
	p := startProxied(t)
	var asked atomic.Int64
	var logged bytes.Buffer
	var mu sync.Mutex
	c, err := client.Dial(bounded(t), "ws://"+unused(t), client.WithURLs(p.url), p.trusted,
		client.WithReconnect(time.Millisecond, 50*time.Millisecond),
		client.WithTokenSource(func(context.Context) (string, error) { asked.Add(1); return "s3cret", nil }),
		client.WithLogger(slog.New(slog.NewTextHandler(writerFunc(func(b []byte) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			return logged.Write(b)
		}), nil))))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Publish(bounded(t), event("t", `1`)); err != nil {
		t.Fatal(err)
	}
	before := asked.Load()
	if info, err := c.Admin().Topic(bounded(t), "t"); err != nil || info.Head != 1 {
		t.Fatalf("topic t is %+v, %v", info, err)
	}
	if n := asked.Load() - before; n != 1 {
		t.Errorf("one request asked %d times for a token", n)
	}
	mu.Lock()
	if !strings.Contains(logged.String(), "HTTP API") {
		t.Errorf("the URL that was not reached is not in the log: %s", logged.String())
	}
	mu.Unlock()
	if first, second := c.Admin(), c.Admin(); first != second {
		t.Error("a client has two of them")
	}

	p.stopped.Store(true)
	for what, call := range map[string]func() error{
		"short": func() error { _, err := c.Admin().Topic(bounded(t), "t"); return err },
		"long":  func() error { _, err := c.Admin().BackupTo(bounded(t), io.Discard); return err },
	} {
		failed := make(chan error, 1)
		go func() { failed <- call() }()
		await(t, what+" request", p.waiting)
		c.Close()
		if err := await(t, "end of the "+what+" request", failed); !errors.Is(err, client.ErrClosed) {
			t.Errorf("%s request under way: %v", what, err)
		}
		if err := call(); !errors.Is(err, client.ErrClosed) {
			t.Errorf("%s request after Close: %v", what, err)
		}
		if c, err = client.Dial(bounded(t), p.url, p.trusted, client.WithToken("s3cret")); err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// webSocketOptions are those that NewAdmin refuses; bothOptions those that it takes.
var (
	webSocketOptions = map[string]client.Option{
		"WithName":            client.WithName("billing"),
		"WithMaxPending":      client.WithMaxPending(1),
		"WithSingleEvents":    client.WithSingleEvents(),
		"WithReconnect":       client.WithReconnect(time.Second, time.Second),
		"WithoutReconnect":    client.WithoutReconnect(),
		"WithRateLimitErrors": client.WithRateLimitErrors(),
	}
	bothOptions = map[string]client.Option{
		"WithURLs":        client.WithURLs("http://127.0.0.1:2"),
		"WithToken":       client.WithToken("x"),
		"WithTokenSource": client.WithTokenSource(func(context.Context) (string, error) { return "x", nil }),
		"WithLogger":      client.WithLogger(slog.New(slog.DiscardHandler)),
		"WithTokenFile":   client.WithTokenFile("token"),
		"WithTLS":         client.WithTLS(&tls.Config{}),
	}
)

// TestNewAdminRefusesOptions: an option that would have no effect is an error with its
// name. Every option of the package is in one of the two lists.
func TestNewAdminRefusesOptions(t *testing.T) {
	var all []client.Option
	for name, option := range webSocketOptions {
		_, err := client.NewAdmin("http://127.0.0.1:1", option)
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
		all = append(all, option)
	}
	_, err := client.NewAdmin("http://127.0.0.1:1", all...)
	for name := range webSocketOptions {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s among others: %v", name, err)
		}
	}
	for name, option := range bothOptions {
		if adm, err := client.NewAdmin("http://127.0.0.1:1", option); err != nil || adm.Close() != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range optionsOfThePackage(t) {
		if webSocketOptions[name] == nil && bothOptions[name] == nil {
			t.Errorf("nothing says whether NewAdmin takes %s", name)
		}
	}
}

// optionsOfThePackage lists the functions that return an Option.
func optionsOfThePackage(t *testing.T) (names []string) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.DeleteFunc(files, func(name string) bool { return strings.HasSuffix(name, "_test.go") }) {
		parsed, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range parsed.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || !f.Name.IsExported() || f.Type.Results == nil {
				continue
			}
			if result, ok := f.Type.Results.List[0].Type.(*ast.Ident); ok && result.Name == "Option" {
				names = append(names, f.Name.Name)
			}
		}
	}
	if len(names) < len(bothOptions) {
		t.Errorf("the package has the options %q", names)
	}
	return names
}
