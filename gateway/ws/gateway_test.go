package ws

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	gws "github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"

	"eventhub"
	"eventhub/internal/bubble"
	"eventhub/wire"
)

func TestConfigNamesEverythingThatIsWrong(t *testing.T) {
	_, err := New(Config{MaxConnections: -1, OutboundBytes: -2, PingEvery: -time.Second, Origins: []string{"https://ok.example", "example.com", "https://x/path"}})
	if err == nil {
		t.Fatal("New took it")
	}
	for _, part := range []string{"Authenticate", "MaxConnections is -1", "OutboundBytes is -2", "PingEvery is -1s", `"example.com"`, `"https://x/path"`} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in %q", part, err)
		}
	}
	if strings.Contains(err.Error(), "ok.example") {
		t.Errorf("a sound origin is blamed: %q", err)
	}
}

func TestPlainRequest(t *testing.T) {
	f := serve(t, nil)
	resp, err := http.Get("http://" + f.addr)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	if resp.StatusCode != http.StatusUpgradeRequired || resp.Header.Get("Upgrade") != "websocket" || bytes.Count(body, []byte("\n")) != 1 {
		t.Errorf("got %s %q with Upgrade %q; want 426 and one line", resp.Status, body, resp.Header.Get("Upgrade"))
	}
}

// TestBadHandshake: what the upgrader refuses is answered and closed, and its
// slot is free again.
func TestBadHandshake(t *testing.T) {
	f := serve(t, func(c *Config) { c.MaxConnections = 1 })
	conn, err := net.Dial("tcp", f.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\r\n", f.addr)
	answer, err := io.ReadAll(conn) // to its end
	if err != nil || !bytes.HasPrefix(answer, []byte("HTTP/1.1 400 ")) {
		t.Errorf("got %q, %v; want 400 and the end", answer, err)
	}
	f.login(t)
}

// TestFramesBehindTheHandshake: a client need not wait for the 101.
func TestFramesBehindTheHandshake(t *testing.T) {
	f := serve(t, nil)
	early := string(text(`{"op":"AUTH","token":"`+goodToken+`","corr":"a"}`, pub("p", 1)))
	c, resp := f.request(t, early[:len(early)-5])
	if resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatal(resp.Status)
	}
	c.expect(map[string]any{"op": "OK", "corr": "a"})
	c.write([]byte(early[len(early)-5:]))
	c.expect(map[string]any{"op": "OK", "corr": "p"})
}

func TestNoExtensionIsNegotiated(t *testing.T) {
	f := serve(t, nil)
	_, resp := f.request(t, "", "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits")
	if resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("Sec-WebSocket-Extensions") != "" {
		t.Errorf("got %s with extensions %q", resp.Status, resp.Header.Get("Sec-WebSocket-Extensions"))
	}
}

func TestMaxConnections(t *testing.T) {
	f := serve(t, func(c *Config) { c.MaxConnections = 2 })
	first := f.login(t)
	f.login(t)
	if n := f.gw.Open(); n != 2 {
		t.Errorf("%d connections; want 2", n)
	}
	_, resp := f.request(t, "")
	if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
		t.Fatalf("third connection: %s with Retry-After %q; want 503", resp.Status, resp.Header.Get("Retry-After"))
	}
	first.conn.Close()
	receive(t, "closed connection", f.log.closed)
	for range 1000 { // the slot is given back right after the log line
		if _, resp = f.request(t, ""); resp.StatusCode == http.StatusSwitchingProtocols {
			return
		}
	}
	t.Fatalf("after one left: %s", resp.Status)
}

func TestForeignOriginIsRefused(t *testing.T) {
	f := serve(t, nil)
	if _, resp := f.request(t, "", "Origin: https://evil.example"); resp.StatusCode != http.StatusForbidden {
		t.Errorf("got %s; want 403", resp.Status)
	}
	c, resp := f.request(t, "", "Origin: http://localhost:3000")
	if resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("got %s; want 101", resp.Status)
	}
	c.auth()
	if n := len(f.gw.open()); n != 1 {
		t.Errorf("%d sessions; want 1", n)
	}
}

// TestShutdown: peers get 1001 after what was said before, and leases go
// back without counting as attempts.
func TestShutdown(t *testing.T) {
	f := serve(t, nil)
	var clients []*client
	var subs []*fakeSubscription
	for range 5 {
		c := f.login(t)
		clients, subs = append(clients, c), append(subs, c.subscribe(f))
	}
	clients = append(clients, f.dial(t)) // has not said AUTH
	subs[0].receiver.Deliver([]eventhub.Delivery{delivery(1, 10)})
	done := make(chan error)
	go func() { done <- f.gw.Shutdown(t.Context()) }()
	clients[0].expectEvents(1, 1)
	for _, c := range clients {
		op, payload := c.read()
		if code, _ := gws.ParseCloseFrameData(payload); op != gws.OpClose || code != wire.CloseGoingAway {
			t.Fatalf("got %x %q; want a close with 1001", op, payload)
		}
		c.write(closing(wire.CloseGoingAway, ""))
	}
	if err := receive(t, "end of Shutdown", done); err != nil {
		t.Error(err)
	}
	for i, sub := range subs {
		if how := receive(t, "end of the subscription", sub.left); how != "unsubscribe" {
			t.Errorf("subscription %d was left by %s; want unsubscribe", i, how)
		}
	}
	if n := f.gw.Open(); n != 0 {
		t.Errorf("%d connections are left", n)
	}
	if _, resp := f.request(t, ""); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a new connection got %s; want 503", resp.Status)
	}
	if err := f.gw.Shutdown(t.Context()); err != nil {
		t.Errorf("again: %v", err)
	}
}

// TestPause: peers get 1001 with the reason, leases go back without counting as attempts, nobody
// is let in, and everybody is after Resume.
func TestPause(t *testing.T) {
	f := serve(t, nil)
	c := f.login(t)
	sub := c.subscribe(f)
	for range 2 {
		f.gw.Pause("There is no journal.")
		op, payload := c.read()
		if code, why := gws.ParseCloseFrameData(payload); op != gws.OpClose || code != wire.CloseGoingAway || why != "There is no journal." {
			t.Fatalf("got %x %q; want a close with 1001 and the reason", op, payload)
		}
		c.write(closing(wire.CloseGoingAway, ""))
		if how := receive(t, "end of the subscription", sub.left); how != "unsubscribe" {
			t.Errorf("the subscription was left by %s; want unsubscribe", how)
		}
		if _, resp := f.request(t, ""); resp.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("a new connection got %s; want 503", resp.Status)
		}
		f.gw.Resume()
		c = f.login(t)
		sub = c.subscribe(f)
	}
}

// TestAway: a message that comes when nobody is served, which the connection has not been told yet, is not dealt with:
// the connection is sent away.
func TestAway(t *testing.T) {
	var why atomic.Value
	why.Store("")
	f := serve(t, func(c *Config) { c.Away = func() string { return why.Load().(string) } })
	c := f.login(t)
	sub := c.subscribe(f)
	why.Store("There is no journal.")
	c.send(`{"op":"CANCEL","topic":"t","id":"e1","corr":"1"}`)
	op, payload := c.read()
	if code, reason := gws.ParseCloseFrameData(payload); op != gws.OpClose || code != wire.CloseGoingAway || reason != "There is no journal." {
		t.Fatalf("got %x %q; want a close with 1001 and the reason", op, payload)
	}
	c.write(closing(wire.CloseGoingAway, ""))
	if how := receive(t, "end of the subscription", sub.left); how != "unsubscribe" {
		t.Errorf("the subscription was left by %s; want unsubscribe", how)
	}
	why.Store("")
	f.login(t).subscribe(f)
}

// TestShutdownWaitsOnlySoLong: peers that do not answer are closed after
// CloseWait, all at once, and also those that do not even read.
func TestShutdownWaitsOnlySoLong(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t, nil)
		silent, deaf := f.pipe(t), f.pipe(t)
		silent.auth()
		deaf.auth()
		sub := deaf.subscribe(f)
		sub.receiver.Deliver([]eventhub.Delivery{delivery(1, 10)})
		synctest.Wait()
		go silent.expectClose(wire.CloseGoingAway) // and no word back
		start := time.Now()
		if err := f.gw.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		if waited := time.Since(start); waited != time.Second {
			t.Errorf("Shutdown took %s; want CloseWait, 1s", waited)
		}
	})
}

// TestShutdownReportsWhatHangs: a Subscriber that returns only when it likes.
func TestShutdownReportsWhatHangs(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t, nil)
		release := make(chan struct{})
		f.sub.onSubscribe = func(context.Context, *fakeSubscription) error { <-release; return nil }
		c := f.pipe(t)
		c.auth()
		c.send(`{"op":"SUBSCRIBE","topic":"t","group":"g"}`)
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		err := f.gw.Shutdown(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "1 connections did not end") {
			t.Errorf("got %v; want one connection that did not end", err)
		}
		close(release)
		sub := <-f.sub.joined
		if how := <-sub.left; how == "" {
			t.Error("the late subscription was not left")
		}
		<-f.log.closed
	})
}

// TestShutdownCutsCallsShort: whoever waits for a publisher or a group on behalf
// of a peer need not wait any more.
func TestShutdownCutsCallsShort(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t, nil)
		f.sub.onSubscribe = func(ctx context.Context, _ *fakeSubscription) error { <-ctx.Done(); return ctx.Err() }
		c := f.pipe(t)
		c.auth()
		c.send(`{"op":"SUBSCRIBE","topic":"t","group":"g"}`)
		synctest.Wait()
		go c.expectClose(wire.CloseGoingAway)
		if err := f.gw.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestLostConnection: the leases are given back at once, and the log has what
// it was.
func TestLostConnection(t *testing.T) {
	f := serve(t, nil)
	c := f.login(t)
	sub := c.subscribe(f)
	c.send(pub("p", 1), ack("a", `,"corr":"a"`))
	c.expect(map[string]any{"op": "OK"})
	c.expect(map[string]any{"op": "OK"})
	c.conn.Close()
	if how := receive(t, "end of the subscription", sub.left); how != "drop" {
		t.Errorf("left by %s; want drop", how)
	}
	entry := receive(t, "closed connection", f.log.closed)
	if entry["remote"] != c.conn.LocalAddr().String() || entry["name"] != "tester" || entry["published"] != int64(1) || entry["settled"] != int64(1) || entry["code"] != int64(0) {
		t.Errorf("logged %v", entry)
	}
}

// TestAnotherLibrary has a whole conversation with gobwas' own client, pings
// and a message in fragments included.
func TestAnotherLibrary(t *testing.T) {
	f := serve(t, nil)
	conn, _, _, err := gws.Dial(t.Context(), "ws://"+f.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	ask := func(message, want string) {
		t.Helper()
		if err := wsutil.WriteClientText(conn, []byte(message)); err != nil {
			t.Fatal(err)
		}
		got, err := wsutil.ReadServerText(conn)
		if err != nil || !strings.Contains(string(got), want) {
			t.Fatalf("got %q, %v; want %q", got, err, want)
		}
	}
	ask(`{"op":"AUTH","token":"`+goodToken+`"}`, `"op":"OK"`)
	ask(pub("p", 1), `"offset":1`)
	w := wsutil.NewWriterSize(conn, gws.StateClientSide, gws.OpText, 16)
	if _, err := io.WriteString(w, pub("q", 2)); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if got, err := wsutil.ReadServerText(conn); err != nil || !strings.Contains(string(got), `"corr":"q"`) {
		t.Fatalf("got %q, %v", got, err)
	}
	if err := wsutil.WriteClientMessage(conn, gws.OpClose, gws.NewCloseFrameBody(1000, "")); err != nil {
		t.Fatal(err)
	}
	_, err = wsutil.ReadServerText(conn)
	var closed wsutil.ClosedError
	if !errors.As(err, &closed) || closed.Code != 1000 {
		t.Errorf("got %v; want a close with 1000", err)
	}
}

// TestShutdownAnswersFirst: publishes that were accepted get their OK before
// the 1001; one whose publisher stays silent does not hold the stop up for ever.
func TestShutdownAnswersFirst(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t, nil)
		f.pub.hold = make(chan func(), 10)
		lucky, forgotten := f.pipe(t), f.pipe(t)
		for _, c := range []*client{lucky, forgotten} {
			c.auth()
			c.send(`{"op":"PUBLISH","topic":"t","payload":1,"corr":"p"}`)
			synctest.Wait()
		}
		answer := <-f.pub.hold // lucky's
		done := make(chan error, 1)
		start := time.Now()
		go func() { done <- f.gw.Shutdown(t.Context()) }()
		synctest.Wait()
		answer()
		if op, payload := lucky.read(); op != gws.OpText || !strings.Contains(string(payload), `"op":"OK","corr":"p"`) {
			t.Errorf("got %x %q; want the OK of the publish", op, payload)
		}
		go forgotten.expectClose(wire.CloseGoingAway)
		op, payload := lucky.read()
		if code, _ := gws.ParseCloseFrameData(payload); op != gws.OpClose || code != wire.CloseGoingAway {
			t.Errorf("got %x %q; want a close with 1001", op, payload)
		}
		if waited := time.Since(start); waited != 0 {
			t.Errorf("what was answered waited %s for the others", waited)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if waited := time.Since(start); waited != 2*time.Second {
			t.Errorf("Shutdown took %s; want CloseWait twice, 2s", waited)
		}
		(<-f.pub.hold)() // too late, and harmless
	})
}

// TestEndedSessionHasNoTimer: the wait for answers is over with the session; a timer would
// keep the session in memory, and the gateway and the hub with it.
func TestEndedSessionHasNoTimer(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t, nil)
		f.pub.hold = make(chan func(), 1)
		c := f.pipe(t)
		c.auth()
		c.send(`{"op":"PUBLISH","topic":"t","payload":1,"corr":"p"}`)
		synctest.Wait()
		s := f.onlySession(t)
		done := make(chan error, 1)
		go func() { done <- f.gw.Shutdown(t.Context()) }()
		synctest.Wait()
		(<-f.pub.hold)()
		if op, payload := c.read(); op != gws.OpText || !strings.Contains(string(payload), `"op":"OK","corr":"p"`) {
			t.Errorf("got %x %q; want the OK of the publish", op, payload)
		}
		if op, payload := c.read(); op != gws.OpClose {
			t.Errorf("got %x %q; want a close frame", op, payload)
		}
		c.conn.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if s.out.patience == nil || s.out.patience.Stop() {
			t.Error("the timer of a session that has ended still runs")
		}
	})
}
