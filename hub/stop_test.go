package hub_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gobwas/ws/wsutil"

	"eventhub"
	"eventhub/hub"
	"eventhub/internal/freeport"
	"eventhub/store"
	"eventhub/store/memory"
	"eventhub/store/storefault"
)

// patience bounds what a test waits for; it passes long before.
const patience = 20 * time.Second

// raw is a client written by hand.
type raw struct {
	t    *testing.T
	conn net.Conn
	r    *bufio.Reader
}

// say connects and sends something, which may be nothing.
func say(t *testing.T, addr, format string, args ...any) *raw {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	c := &raw{t, conn, bufio.NewReader(conn)}
	c.say(format, args...)
	return c
}

func (c *raw) say(format string, args ...any) {
	c.t.Helper()
	if _, err := fmt.Fprintf(c.conn, format, args...); err != nil {
		c.t.Fatal(err)
	}
}

// answer reads an answer and its body.
func (c *raw) answer() (status int, body string) {
	c.t.Helper()
	resp, err := http.ReadResponse(c.r, &http.Request{Method: http.MethodGet})
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// end reads to the end and returns what came.
func (c *raw) end(what string) string {
	c.t.Helper()
	rest, err := io.ReadAll(c.r)
	if timeout, ok := err.(net.Error); ok && timeout.Timeout() {
		c.t.Errorf("%s: the connection does not end", what)
	}
	return string(rest)
}

// TestStopWaitsForNoPeer: whatever clients are in the middle of, at whichever door,
// a stop ends it: it is in order, WebSockets get a close frame, and nothing is taken from a
// client that was not there before.
func TestStopWaitsForNoPeer(t *testing.T) {
	h, err := hub.Start(hub.Config{Store: hub.MemoryStore, WSAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0", OpsAddr: "127.0.0.1:0", Grace: patience})
	if err != nil {
		t.Fatal(err)
	}
	doors := []string{h.WSAddr(), h.HTTPAddr(), h.OpsAddr()}
	var bodies, halves, kept []*raw
	for _, addr := range doors {
		halves = append(halves, say(t, addr, ""), say(t, addr, "GET /v1/topics HTTP/1.1\r\nHost: lo"))
	}
	for _, addr := range doors[:2] {
		for _, path := range []string{"/publish/t", "/v1/publish", "/v1/import", "/v1/topics/t/groups/g/pull", "/v1/dlq/t/redrive", "/v1/topics/t"} {
			c := say(t, addr, "POST %s HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 1000\r\n\r\n", path)
			if path != "/v1/topics/t" { // no such method: refused, and its body is not read
				if line, err := c.r.ReadString('\n'); err != nil || !strings.Contains(line, " 100 ") {
					t.Fatalf("%s: %q, %v; want to be asked for the body", path, line, err)
				}
				_, _ = c.r.ReadString('\n')
				bodies = append(bodies, c)
			}
			c.say(`{"even`)
		}
		c := say(t, addr, "GET /v1/topics HTTP/1.1\r\nHost: localhost\r\n\r\n")
		if status, _ := c.answer(); status != 200 {
			t.Fatalf("looking: %d", status)
		}
		kept = append(kept, c)
	}
	socket := connect(t, h.WSAddr())
	defer socket.Close()

	if err := h.Stop(context.Background()); err != nil {
		t.Error(err)
	}
	for i, c := range bodies {
		if status, body := c.answer(); status != 503 || !strings.Contains(body, `"code":"shutting_down"`) {
			t.Errorf("half a body (%d) was answered with %d %s", i, status, body)
		}
		c.end("half a body")
	}
	for _, c := range append(halves, kept...) {
		if got := c.end("no request"); got != "" {
			t.Errorf("a connection without a request was answered with %q", got)
		}
	}
	_ = socket.SetDeadline(time.Now().Add(patience))
	var closed wsutil.ClosedError
	if _, err := wsutil.ReadServerText(socket); !errors.As(err, &closed) || closed.Code != 1001 {
		t.Errorf("the WebSocket ended with %v; want close code 1001", err)
	}
	for _, addr := range doors {
		if conn, err := net.Dial("tcp", addr); err == nil {
			conn.Close()
			t.Errorf("%s is still open", addr)
		}
	}
}

// TestDrain: before a hub stops it says for a while that it is not ready, and takes all
// that comes.
func TestDrain(t *testing.T) {
	log := &gatedLog{gate: "hub is draining", reached: make(chan struct{}), open: make(chan struct{})}
	h, err := hub.Start(hub.Config{Store: hub.MemoryStore, WSAddr: "127.0.0.1:0", HTTPAddr: "localhost:0", OpsAddr: "127.0.0.2:0",
		Drain: time.Millisecond, Grace: patience, Logger: slog.New(log)})
	if err != nil {
		t.Fatal(err)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- h.Stop(context.Background()) }()
	<-log.reached
	if status, body := say(t, h.OpsAddr(), "GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n").answer(); status != 503 || !strings.Contains(body, "stopping") {
		t.Errorf("/readyz of a hub that drains: %d %s", status, body)
	}
	if status, body := say(t, h.HTTPAddr(), "POST /publish/t HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n1").answer(); status != 200 {
		t.Errorf("a publish to a hub that drains: %d %s", status, body)
	}
	close(log.open)
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if got, want := log.lines(), []string{"hub is up", "hub is draining", "hub is stopping", "hub stopped"}; !slices.Equal(got, want) {
		t.Errorf("logged %q, want %q", got, want)
	}
}

// gatedLog notes messages about the hub, and holds whoever logs one of them.
type gatedLog struct {
	gate          string
	reached, open chan struct{}

	mu   sync.Mutex
	said []string
}

func (l *gatedLog) Enabled(context.Context, slog.Level) bool { return true }
func (l *gatedLog) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *gatedLog) WithGroup(string) slog.Handler            { return l }

func (l *gatedLog) Handle(_ context.Context, r slog.Record) error {
	if !strings.HasPrefix(r.Message, "hub ") {
		return nil
	}
	l.mu.Lock()
	l.said = append(l.said, r.Message)
	l.mu.Unlock()
	if r.Message == l.gate {
		close(l.reached)
		<-l.open
	}
	return nil
}

func (l *gatedLog) lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.said)
}

// TestNotReadyIsSeen: the operations listener answers while the store is opened, and
// until it is closed.
func TestNotReadyIsSeen(t *testing.T) {
	addr, err := freeport.On("127.0.0.2")
	if err != nil {
		t.Fatal(err)
	}
	look := func(when, why string) {
		t.Helper()
		for path, want := range map[string]string{
			"/livez": "ok", "/readyz": why, "/metrics": "\neventhub_ready 0\n", "/lag?topic=t&group=g": "",
		} {
			status, body := say(t, addr, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path).answer()
			if ok := path == "/livez" || path == "/metrics"; (status == 200) != ok || !strings.Contains(body, want) {
				t.Errorf("%s %s answers %d %.200s", when, path, status, body)
			}
		}
	}
	watched := storefault.Wrap(memory.Open(memory.Options{}))
	watched.Before(storefault.Close, func(*storefault.Call) error {
		look("while the store is closed", "stopping")
		return nil
	})
	h, err := hub.Start(hub.Config{WSAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0", OpsAddr: addr,
		OpenStore: func(func(error)) (store.Store, error) {
			look("while the store is opened", "not open")
			return watched, nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	if status, body := say(t, addr, "GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n").answer(); status != 200 {
		t.Errorf("/readyz of a running hub: %d %s", status, body)
	}
	if err := h.Stop(context.Background()); err != nil {
		t.Error(err)
	}
}

// TestFailedOpenClosesTheOperationsListener: also where somebody looks at it.
func TestFailedOpenClosesTheOperationsListener(t *testing.T) {
	cause := errors.New("no store")
	_, err := hub.Start(hub.Config{WSAddr: "127.0.0.1:0", HTTPAddr: "localhost:0", OpsAddr: "127.0.0.2:0",
		OpenStore: func(func(error)) (store.Store, error) { return nil, cause }})
	if !errors.Is(err, cause) {
		t.Errorf("Start: %v", err)
	}
}

// TestStopLetsNobodyIn: from the moment on at which the first client is notified, no door
// takes anything.
func TestStopLetsNobodyIn(t *testing.T) {
	s, held, letGo := storefault.Wrap(memory.Open(memory.Options{})), make(chan struct{}, 1), make(chan struct{})
	s.Before(storefault.Commit, func(*storefault.Call) error { // the first waits until it is let go
		select {
		case held <- struct{}{}:
			<-letGo
		default:
		}
		return nil
	})
	h, err := hub.Start(hub.Config{WSAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0", OpsAddr: "127.0.0.1:0", Grace: patience,
		OpenStore: func(func(error)) (store.Store, error) { return s, nil }})
	if err != nil {
		t.Fatal(err)
	}
	const publish = "POST /publish/t HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n1"
	taken := say(t, h.HTTPAddr(), publish)
	<-held // on its way into the store, which takes its time
	unread := say(t, h.WSAddr(), "GET /v1/topics HTTP/1.1\r\nHost: localhost\r\n\r\n")
	if _, err := unread.r.Peek(1); err != nil { // a request that the hub has not read yet ends with a stop
		t.Fatal(err)
	}
	socket := connect(t, h.WSAddr())
	defer socket.Close()
	stopped := make(chan error, 1)
	go func() { stopped <- h.Stop(context.Background()) }()
	_ = socket.SetDeadline(time.Now().Add(patience))
	var closed wsutil.ClosedError
	if _, err := wsutil.ReadServerText(socket); !errors.As(err, &closed) || closed.Code != 1001 {
		t.Errorf("the WebSocket ended with %v; want close code 1001", err)
	}
	for _, addr := range []string{h.WSAddr(), h.HTTPAddr()} {
		if conn, err := net.Dial("tcp", addr); err == nil {
			conn.Close()
			t.Errorf("%s is still open", addr)
		}
	}
	unread.answer()
	_, _ = unread.conn.Write([]byte(publish))
	if got := unread.end("kept"); strings.Contains(got, `"offset"`) {
		t.Errorf("a publish after the goodbye was taken: %q", got)
	}
	close(letGo)
	if status, body := taken.answer(); status != 200 || !strings.Contains(body, `"offset":1`) {
		t.Errorf("the publish that was there before was answered with %d %s", status, body)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// TestStopOnSlowDisk: a store that takes longer to close than the grace period is closed all
// the same, and meanwhile the log says what the stop waits for.
func TestStopOnSlowDisk(t *testing.T) {
	logged, letGo := make(chan string, 9), make(chan struct{})
	slow := storefault.Wrap(memory.Open(memory.Options{}))
	slow.Before(storefault.Close, func(*storefault.Call) error { <-letGo; return nil })
	h, err := hub.Start(hub.Config{WSAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0", OpsAddr: "127.0.0.1:0", Grace: time.Nanosecond,
		Logger:    slog.New(warnings(logged)),
		OpenStore: func(func(error)) (store.Store, error) { return slow, nil }})
	if err != nil {
		t.Fatal(err)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- h.Stop(context.Background()) }()
	select {
	case line := <-logged:
		if !strings.Contains(line, "the store is still being closed") {
			t.Errorf("the log says %q", line)
		}
	case err := <-stopped:
		t.Fatalf("stopped, %v, while the store is being closed", err)
	case <-time.After(patience):
		t.Error("nobody says what the stop waits for")
	}
	select {
	case err := <-stopped:
		t.Errorf("stopped, %v, while the store is being closed", err)
	default:
	}
	close(letGo)
	if err := <-stopped; err != nil {
		t.Errorf("Stop: %v", err)
	}
}

// warnings gets the warnings of a log.
type warnings chan string

func (w warnings) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }
func (w warnings) WithAttrs([]slog.Attr) slog.Handler           { return w }
func (w warnings) WithGroup(string) slog.Handler                { return w }

func (w warnings) Handle(_ context.Context, r slog.Record) error {
	w <- r.Message
	return nil
}

// TestStopWaitsForNoReader: answers that nobody reads do not hold a stop up.
func TestStopWaitsForNoReader(t *testing.T) {
	h, err := hub.Start(hub.Config{Store: hub.MemoryStore, WSAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0", OpsAddr: "127.0.0.1:0", Grace: patience})
	if err != nil {
		t.Fatal(err)
	}
	event := eventhub.Event{Topic: "t", Payload: append(append([]byte{'"'}, bytes.Repeat([]byte("x"), 1<<20-2)...), '"')}
	for range 9 {
		if _, err := h.Bus().Publish(t.Context(), event); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"/replay?topic=t&limit=1000", "/export?topic=t", "/v1/topics/t/stream?from=earliest"} {
		c := say(t, h.HTTPAddr(), "")
		_ = c.conn.(*net.TCPConn).SetReadBuffer(4 << 10)
		c.say("GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path)
		if line, err := c.r.ReadString('\n'); err != nil || !strings.Contains(line, " 200 ") {
			t.Fatalf("%s: %q, %v", path, line, err)
		}
	}
	if err := h.Stop(context.Background()); err != nil {
		t.Error(err)
	}
}
