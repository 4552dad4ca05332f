package hub_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"eventhub/hub"
)

// TestRequestsHaveBounds: a request has a time for its header and for its body, a connection a time
// between two requests, and a header its bytes, whoever it is that asks.
func TestRequestsHaveBounds(t *testing.T) {
	const whole = "GET /v1/topics HTTP/1.1\r\nHost: localhost\r\n\r\n"
	const post = "POST /publish/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n"
	const bearer = "Authorization: Bearer s3cret\r\n"
	allowed := strings.Replace(whole, "\r\n\r\n", "\r\n"+bearer+"\r\n", 1)
	for name, tt := range map[string]struct {
		sent   string
		status int           // of the answer, 0 for none
		after  time.Duration // when the connection is closed
	}{
		"nothing":                {"", 0, 5 * time.Second},
		"half a header":          {"GET /v1/topics HTTP/1.1\r\nHost: loc", 0, 5 * time.Second},
		"half a body":            {post + bearer + "\r\n1", 400, time.Minute},
		"half a body, no token":  {post + "\r\n1", 401, 5 * time.Second},
		"no second request":      {allowed, 200, time.Minute},
		"the same, no token":     {whole, 401, 0},
		"half a second request":  {allowed + "GET /v1", 200, 5 * time.Second},
		"a wrong one in between": {allowed + whole, 200, time.Minute},
		"as large as it may be":  {strings.Replace(allowed, "\r\n\r\n", "\r\nX-A: "+strings.Repeat("a", 31<<10)+"\r\n\r\n", 1), 200, time.Minute},
		"too large a header":     {strings.Replace(whole, "\r\n\r\n", "\r\nX-A: "+strings.Repeat("a", 36<<10)+"\r\n\r\n", 1), 431, 0},
		"too many header fields": {strings.Replace(whole, "\r\n\r\n", "\r\n"+strings.Repeat("a:\r\n", 10<<10)+"\r\n", 1), 431, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, hub.Config{WSAddr: "127.0.0.1:1", HTTPAddr: "127.0.0.1:2", OpsAddr: "127.0.0.1:3", AuthToken: "s3cret"}, func(b *hubInBubble) {
				for _, addr := range []string{b.WSAddr(), b.HTTPAddr(), b.OpsAddr()} {
					conn, err := b.network.Dial(context.Background(), "tcp", addr)
					if err != nil {
						t.Fatal(err)
					}
					began := time.Now()
					go func() { _, _ = conn.Write([]byte(tt.sent)) }() // what is too much is not taken
					status, err := lastWords(conn)
					want, closed := tt.status, tt.after
					if addr == b.OpsAddr() && (want == 200 || want == 400 || want == 401) {
						want, closed = 404, 5*time.Second // which has no such path, and asks for no token
					}
					if status != want || err != nil {
						t.Errorf("%s: answered %d, then %v; want %d", addr, status, err, want)
					}
					if after := time.Since(began).Truncate(time.Second); after != closed {
						t.Errorf("%s: closed after %s; want %s", addr, after, closed)
					}
					conn.Close()
				}
				synctest.Wait()
			})
		})
	}
}

// lastWords returns the status of an answer, 0 where none came, and reads to the end of the
// connection.
func lastWords(conn net.Conn) (status int, err error) {
	r := bufio.NewReader(conn)
	answer, err := http.ReadResponse(r, nil)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return 0, nil
	case err != nil:
		return 0, err
	}
	_, err = io.Copy(io.Discard, answer.Body)
	if err == nil {
		_, err = io.Copy(io.Discard, r) // what it still says of a request that is none
	}
	return answer.StatusCode, err
}

// TestTopicsAreBounded: one too many is refused, by both transports, and those that there are go on.
func TestTopicsAreBounded(t *testing.T) {
	inBubble(t, hub.Config{WSAddr: "127.0.0.1:1", HTTPAddr: "127.0.0.1:2", OpsAddr: "127.0.0.1:3", MaxTopics: 2}, func(b *hubInBubble) {
		b.publish("a")
		b.publish("b")
		p := b.join("")
		if _, err := p.conn.Write(masked([]byte(`{"op":"PUBLISH","topic":"c","payload":1}`))); err != nil {
			t.Fatal(err)
		}
		p.came(`"code":"overloaded"`)
		p.ok(`{"op":"PUBLISH","topic":"a","payload":1}`)
		client := http.Client{Transport: &http.Transport{DialContext: b.network.Dial, DisableKeepAlives: true}}
		answer, err := client.Post("http://"+b.HTTPAddr()+"/publish/d", "", strings.NewReader("1"))
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		if text, _ := io.ReadAll(answer.Body); answer.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(text), `"code":"overloaded"`) {
			t.Errorf("%s: %s", answer.Status, text)
		}
		if !strings.Contains(b.metrics(), "\n"+`eventhub_publish_refused_total{code="overloaded"} 2`+"\n") {
			t.Error("the metric does not have them")
		}
	})
}

// TestBodiesThatAreNone: a body that ends too early, or whose chunks or trailers are none, is the client's fault: it is told so, and
// the log does not say that the hub failed.
func TestBodiesThatAreNone(t *testing.T) {
	var log strings.Builder
	h := start(t, hub.Config{Store: hub.MemoryStore, Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	for name, rest := range map[string]string{
		"cut":            "Content-Length: 10\r\n\r\n123",
		"a long chunk":   "Transfer-Encoding: chunked\r\n\r\n1;" + strings.Repeat("x", 8000) + "\r\n1\r\n0\r\n\r\n",
		"no chunk":       "Transfer-Encoding: chunked\r\n\r\nno\r\n1\r\n",
		"a long trailer": "Transfer-Encoding: chunked\r\n\r\n1\r\n1\r\n0\r\nX: " + strings.Repeat("x", 8000) + "\r\n\r\n",
	} {
		conn, err := net.Dial("tcp", h.HTTPAddr())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, "POST /publish/a HTTP/1.1\r\nHost: localhost\r\n"+rest); err != nil {
			t.Fatal(err)
		}
		_ = conn.(*net.TCPConn).CloseWrite()
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || answer.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %v, %v; want 400", name, answer, err)
		}
		conn.Close()
	}
	if log.Len() > 0 {
		t.Errorf("the log has %s", log.String())
	}
}
