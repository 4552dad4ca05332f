package hub_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gobwas/ws/wsutil"
	"go.uber.org/goleak"

	"eventhub"
	"eventhub/hub"
	"eventhub/internal/mongotest"
	"eventhub/store"
	"eventhub/store/memory"
	"eventhub/store/pebble"
	"eventhub/store/storefault"
)

func TestMain(m *testing.M) {
	code := mongotest.Run(m)
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func start(t *testing.T, cfg hub.Config) *hub.Hub {
	t.Helper()
	if cfg.WSAddr == "" {
		cfg.WSAddr, cfg.HTTPAddr, cfg.OpsAddr = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	}
	h, err := hub.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	return h
}

// TestOneAddressForAll: equal addresses share one listener, and everything is
// found there.
func TestOneAddressForAll(t *testing.T) {
	h := start(t, hub.Config{Store: hub.MemoryStore})
	if h.WSAddr() != h.OpsAddr() {
		t.Errorf("addresses %s and %s", h.WSAddr(), h.OpsAddr())
	}
	for path, want := range map[string]int{"/livez": 200, "/readyz": 200, "/healthz": 200, "/": 426, "/ws": 426, "/else": 404, "/console/": 200, "/console/api/v1/topics": 200} {
		resp, err := http.Get("http://" + h.OpsAddr() + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("GET %s: %d; want %d", path, resp.StatusCode, want)
		}
	}
	connect(t, h.WSAddr()).Close()
}

func TestConfigNamesAllThatIsWrong(t *testing.T) {
	_, err := hub.Start(hub.Config{Store: "postgres://x", WSAddr: "0.0.0.0:1", OpsAddr: "nonsense", MaxTopics: -1, Grace: -1})
	for _, part := range []string{"postgres", "0.0.0.0:1", "AUTH_TOKEN", "nonsense", "max topics", "grace"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%v does not speak of %s", err, part)
		}
	}
	for addr, open := range map[string]bool{"127.0.0.1:1": false, "[::1]:1": false, "localhost:1": false,
		":1": true, "0.0.0.0:1": true, "10.1.2.3:1": true, "[::]:1": true} {
		c := hub.Config{WSAddr: addr}.WithDefaults()
		if err := c.Validate(); (err != nil) != open {
			t.Errorf("%s without authentication: %v", addr, err)
		}
		c.AuthToken = "t"
		if err := c.Validate(); err != nil {
			t.Errorf("%s with a token: %v", addr, err)
		}
		c.AuthToken, c.Insecure = "", true
		if err := c.Validate(); err != nil {
			t.Errorf("%s with --insecure: %v", addr, err)
		}
	}
}

// TestConfigTakesNothingForSomethingElse: what could be a slip is refused, before it makes
// a directory or a hub that nobody can talk to.
func TestConfigTakesNothingForSomethingElse(t *testing.T) {
	for _, tt := range []struct {
		config hub.Config
		says   []string // nil: it is right
	}{
		{hub.Config{Store: "memory"}, []string{`"memory:"`, `"./memory"`}},
		{hub.Config{Store: "MEMORY:"}, []string{`"memory:"`, `"./MEMORY:"`}},
		{hub.Config{Store: "memory:orders"}, []string{`"memory:"`, `"./memory:orders"`}},
		{hub.Config{Store: "memory-of-us"}, nil},
		{hub.Config{Store: "./memory"}, nil},
		{hub.Config{Store: "./memory:orders"}, nil},
		{hub.Config{Store: "memory:"}, nil},
		{hub.Config{AuthToken: "two words"}, []string{"byte 3"}},
		{hub.Config{AuthToken: "newline\n"}, []string{"byte 7"}},
		{hub.Config{AuthToken: "naïve"}, []string{"byte 2"}},
		{hub.Config{AuthToken: "a.B-c_d~e+f/g="}, nil},
		{hub.Config{CompactEvery: time.Millisecond}, nil},
		{hub.Config{CompactEvery: -time.Second}, []string{"compact every is -1s"}},
		{hub.Config{MaxMessageMemory: math.MaxInt >> 20}, nil},
		{hub.Config{MaxMessageMemory: math.MaxInt>>20 + 1}, []string{"max message memory", "at most"}},
	} {
		err := tt.config.WithDefaults().Validate()
		if (err == nil) != (tt.says == nil) {
			t.Errorf("%+v: %v", tt.config, err)
			continue
		}
		for _, part := range tt.says {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%v does not speak of %s", err, part)
			}
		}
		if err != nil && tt.config.AuthToken != "" && strings.Contains(err.Error(), tt.config.AuthToken) {
			t.Errorf("the error has the token: %v", err)
		}
	}
}

// TestFailedStartLeavesNothing: what was opened before the failure is closed
// again, so the next start works.
func TestFailedStartLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	first := start(t, hub.Config{Store: dir})
	_, err := hub.Start(hub.Config{Store: dir, WSAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0", OpsAddr: "127.0.0.1:0"})
	if !errors.Is(err, pebble.ErrLocked) || !strings.Contains(err.Error(), dir) {
		t.Errorf("a second hub on the store: %v; want ErrLocked and the directory", err)
	}
	other := t.TempDir()
	if _, err := hub.Start(hub.Config{Store: other, WSAddr: first.WSAddr(), HTTPAddr: "127.0.0.1:0", OpsAddr: "127.0.0.1:0"}); err == nil || !strings.Contains(err.Error(), first.WSAddr()) {
		t.Errorf("a hub on a used port: %v", err)
	}
	start(t, hub.Config{Store: other})
}

// TestStopIsOrderly: what was published and acked before a stop is there after
// the next start, through the engine's own interfaces.
func TestStopIsOrderly(t *testing.T) {
	dir := t.TempDir()
	ctx := context.Background()
	h := start(t, hub.Config{Store: dir})
	receipts, err := h.Bus().Publish(ctx, eventhub.Event{Topic: "t", Payload: []byte(`1`)}, eventhub.Event{Topic: "t", Payload: []byte(`2`)})
	if err != nil {
		t.Fatal(err)
	}
	consumed, cancel := context.WithCancel(ctx)
	opts := eventhub.GroupOptions{Topic: "t", Group: "g", Start: eventhub.Earliest}
	if err := eventhub.Consume(consumed, h.Bus(), opts, func(_ context.Context, d eventhub.Delivery) error {
		if d.Offset == 2 {
			cancel()
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	conn := connect(t, h.WSAddr())
	defer conn.Close()
	if err := h.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if err := h.Stop(ctx); err != nil {
		t.Errorf("a second stop: %v", err)
	}
	var closed wsutil.ClosedError
	if _, err := wsutil.ReadServerText(conn); !errors.As(err, &closed) || closed.Code != 1001 {
		t.Errorf("the connection ended with %v; want close code 1001", err)
	}
	again := start(t, hub.Config{Store: dir})
	c, err := again.Bus().Cursor(ctx, "t", "g")
	if err != nil || c.Offset != 2 || c.LastID != receipts[1].ID {
		t.Errorf("cursor after the restart: %+v, %v", c, err)
	}
}

func TestTokenIsChecked(t *testing.T) {
	h := start(t, hub.Config{Store: hub.MemoryStore, AuthToken: "s3cret"})
	conn := dial(t, h.WSAddr())
	defer conn.Close()
	for _, step := range []struct{ say, want string }{
		{`{"op":"AUTH"}`, `"no_token"`},
		{`{"op":"AUTH","token":"wrong"}`, `"bad_token"`},
		{`{"op":"SUBSCRIBE","topic":"t","group":"g"}`, `"unauthorized"`},
		{`{"op":"AUTH","token":"s3cret"}`, `"durability":"none"`},
		{`{"op":"AUTH","token":"wrong"}`, `"bad_token"`},
		{`{"op":"SUBSCRIBE","topic":"t","group":"g"}`, `{"op":"OK"}`},
	} {
		if _, err := conn.Write(masked([]byte(step.say))); err != nil {
			t.Fatal(err)
		}
		answer, err := wsutil.ReadServerText(conn)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(answer), step.want) {
			t.Errorf("%s was answered by %s; want %s", step.say, answer, step.want)
		}
	}
}

var errDiskGone = errors.New("disk gone")

// TestStopWithBrokenStore: where the store is broken and what waits for it waits for
// ever, the hub stops all the same, and says why.
func TestStopWithBrokenStore(t *testing.T) {
	stuck, letGo := storefault.Wrap(memory.Open(memory.Options{})), make(chan struct{})
	h, err := hub.Start(hub.Config{WSAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0", OpsAddr: "127.0.0.1:0", Grace: time.Millisecond,
		OpenStore: func(fatal func(error)) (store.Store, error) {
			stuck.Before(storefault.Commit, func(*storefault.Call) error {
				fatal(errDiskGone)
				<-letGo
				return errDiskGone
			})
			return stuck, nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	published := make(chan error, 1)
	go func() {
		_, err := h.Bus().Publish(context.Background(), eventhub.Event{Topic: "t", Payload: []byte(`1`)})
		published <- err
	}()
	if err := <-h.Failed(); !errors.Is(err, errDiskGone) {
		t.Errorf("Failed: %v", err)
	}
	if err := h.Stop(context.Background()); !errors.Is(err, errDiskGone) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Stop: %v; want the cause, and that the store could not be closed", err)
	}
	close(letGo)
	if err := <-published; err == nil {
		t.Error("the event was acknowledged")
	}
}

// TestRefusalsWaitForNoBody: a client that asks before it sends its body, or that has a
// large one to send, is refused before a byte of it has come.
func TestRefusalsWaitForNoBody(t *testing.T) {
	h := start(t, hub.Config{Store: hub.MemoryStore, AuthToken: "secret"})
	for _, request := range []struct {
		line string
		want int
	}{
		{"POST /publish/t", http.StatusUnauthorized},
		{"PUT /publish/t", http.StatusMethodNotAllowed},
		{"POST /publish//t", http.StatusNotFound},
		{"POST /nothing", http.StatusNotFound},
		{"POST /ws", http.StatusMethodNotAllowed},
	} {
		for _, header := range []string{"Expect: 100-continue\r\nContent-Length: 1000", "Content-Length: 1000000"} {
			c := say(t, h.HTTPAddr(), "%s HTTP/1.1\r\nHost: localhost\r\n%s\r\n\r\n", request.line, header)
			status, body := c.answer()
			if status != request.want {
				t.Errorf("%s with %q: %d %s; want %d", request.line, header, status, body, request.want)
			}
		}
	}
	c := say(t, h.HTTPAddr(), "POST /publish/t HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer secret\r\n"+
		"Expect: 100-continue\r\nContent-Length: 1\r\nConnection: close\r\n\r\n")
	if line, err := c.r.ReadString('\n'); err != nil || line != "HTTP/1.1 100 Continue\r\n" {
		t.Fatalf("%q, %v; want to be asked for the body", line, err)
	}
	_, _ = c.r.ReadString('\n')
	c.say("1")
	if status, body := c.answer(); status != http.StatusOK {
		t.Errorf("publish when asked for the body: %d %s", status, body)
	}
}
