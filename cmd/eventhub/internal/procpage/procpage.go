// Package procpage serves the demo's page: a live table of processes in a browser, which
// reads process.state from the hub through the JavaScript SDK. The demo command uses it;
// nothing else does.
//
// The server gives out files alone, the same to everybody, and no secret: the page is a client
// of the hub like any other, and brings its own token where the hub asks for one. The page may load
// nothing but these files and talk to nobody but its hub (Content-Security-Policy).
package procpage

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"eventhub/internal/demo/process"
	"eventhub/internal/origin"
	sdk "eventhub/sdk/js"
)

//go:embed static
var static embed.FS

// DefaultAddr is where the page is unless somebody says otherwise.
const DefaultAddr = "127.0.0.1:8083"

// stopWait bounds how long a stop waits for answers on their way.
const stopWait = time.Second

// Page is a listener that is open and serves nothing yet.
type Page struct{ listener net.Listener }

// Address reads the address of the page, host:port or a port of 127.0.0.1; the port 0 is any free
// one. Only addresses of this machine alone are taken: the hub lets pages from there connect
// without being told, and others not. The error names what is wrong with the text.
func Address(text string) (string, error) {
	addr := text
	if !strings.Contains(addr, ":") {
		addr = net.JoinHostPort("127.0.0.1", addr)
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", fmt.Errorf("%q is neither host:port nor a port", text)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return "", fmt.Errorf("port %q is not a number from 0 to 65535", port)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return "", fmt.Errorf("%q is no loopback address: the page is for browsers of this machine", text)
	}
	return addr, nil
}

// Listen opens an address that [Address] returned. The caller calls Serve or Close.
func Listen(ctx context.Context, addr string) (*Page, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return &Page{listener: listener}, nil
}

// URL is what a browser opens.
func (p *Page) URL() string { return "http://" + p.listener.Addr().String() + "/" }

// Close gives the address back. After Serve it does nothing.
func (p *Page) Close() error {
	if err := p.listener.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// Serve serves the page of the hub whose WebSocket has this URL until ctx ends, when it
// returns nil, or until the listener fails.
func (p *Page) Serve(ctx context.Context, hub string) error {
	handler, err := newHandler(hub)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopWait)
		defer cancel()
		if server.Shutdown(bounded) != nil {
			server.Close()
		}
	})
	err = server.Serve(p.listener)
	if !stop() {
		<-stopped // answers that are on their way arrive
	}
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the page at %s: %w", p.URL(), err)
	}
	return nil
}

// HubURL is the URL of a hub's WebSocket for a browser of this machine. A hub that
// listens on all addresses is reached over loopback.
func HubURL(addr string, tls bool) string {
	scheme := "ws"
	if tls {
		scheme = "wss"
	}
	host, port, err := net.SplitHostPort(addr)
	if ip := net.ParseIP(host); err == nil && ip.IsUnspecified() {
		if host = "127.0.0.1"; ip.To4() == nil {
			host = "localhost" // the listener has one of both families, or both
		}
		addr = net.JoinHostPort(host, port)
	}
	return scheme + "://" + addr
}

// file is one thing that the page consists of.
type file struct {
	kind string // its media type
	body []byte
}

// handler serves the files. It is safe for concurrent use: nothing in it changes.
type handler struct {
	files  map[string]file // by path
	policy string          // Content-Security-Policy
	names  *origin.Policy
}

// kinds are the media types of the files, by the end of the name.
var kinds = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
	".json": "application/json", ".svg": "image/svg+xml",
}

func newHandler(hub string) (*handler, error) {
	u, err := url.Parse(hub)
	if err != nil || u.Scheme != "ws" && u.Scheme != "wss" || u.Host == "" {
		return nil, fmt.Errorf("%q is not the URL of a WebSocket", hub)
	}
	names, err := origin.New(nil)
	if err != nil {
		return nil, err
	}
	h := &handler{names: names, files: map[string]file{
		"/eventhub.min.js":      {kinds[".js"], sdk.OneFile},
		"/eventhub-http.min.js": {kinds[".js"], sdk.HTTPFile},
	}}
	err = fs.WalkDir(static, "static", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := static.ReadFile(name)
		h.files[strings.TrimPrefix(name, "static")] = file{kinds[path.Ext(name)], body}
		return err
	})
	if err != nil {
		return nil, err
	}
	h.files["/"] = h.files["/index.html"]
	config, err := json.Marshal(map[string]string{"hub": hub, "topic": process.StateTopic})
	if err != nil {
		return nil, err
	}
	h.files["/hub.json"] = file{kinds[".json"], config}
	// The hub answers its HTTP API on the port of the WebSocket too.
	h.policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self' " +
		u.Scheme + "://" + u.Host + " http" + strings.TrimPrefix(u.Scheme, "ws") + "://" + u.Host +
		"; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
	return h, nil
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Security-Policy", h.policy)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Cache-Control", "no-cache") // the next version of the program has another page
	f, known := h.files[r.URL.Path]
	switch {
	case !h.names.Named(r):
		// A foreign name that resolves to this machine would make a foreign page of this one.
		http.Error(w, fmt.Sprintf("%.120q is no name of this page: call it localhost or by its address", r.Host), http.StatusMisdirectedRequest)
	case !known:
		http.NotFound(w, r)
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		header.Set("Allow", "GET, HEAD")
		http.Error(w, fmt.Sprintf("%.20q is not allowed: the page can only be read", r.Method), http.StatusMethodNotAllowed)
	default:
		header.Set("Content-Type", f.kind)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.body))
	}
}
