package hub_test

import (
	"bufio"
	"context"
	"errors"
	"io"
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
	for name, tt := range map[string]struct {
		sent   string
		status int           // of the answer, 0 for none
		after  time.Duration // when the connection is closed
	}{
		"nothing":                {"", 0, 5 * time.Second},
		"half a header":          {"GET /v1/topics HTTP/1.1\r\nHost: loc", 0, 5 * time.Second},
		"half a body":            {"POST /publish/a HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer s3cret\r\nContent-Length: 9\r\n\r\n1", 400, time.Minute},
		"no second request":      {whole, 401, time.Minute},
		"half a second request":  {whole + "GET /v1", 401, 5 * time.Second},
		"too large a header":     {strings.Replace(whole, "\r\n\r\n", "\r\nX-A: "+strings.Repeat("a", 68<<10)+"\r\n\r\n", 1), 431, 0},
		"too many header fields": {strings.Replace(whole, "\r\n\r\n", "\r\n"+strings.Repeat("a:\r\n", 17<<10)+"\r\n", 1), 431, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, hub.Config{WSAddr: "127.0.0.1:1", HTTPAddr: "127.0.0.1:2", OpsAddr: "127.0.0.1:3", AuthToken: "s3cret"}, func(b *bubble) {
				for _, addr := range []string{b.WSAddr(), b.HTTPAddr(), b.OpsAddr()} {
					conn, err := b.network.Dial(context.Background(), "tcp", addr)
					if err != nil {
						t.Fatal(err)
					}
					began := time.Now()
					go func() { _, _ = conn.Write([]byte(tt.sent)) }() // what is too much is not taken
					status, err := lastWords(conn)
					want := tt.status
					if addr == b.OpsAddr() && (want == 401 || want == 400) {
						want = 404 // which has no such path
					}
					if status != want || err != nil {
						t.Errorf("%s: answered %d, then %v; want %d", addr, status, err, want)
					}
					if after := time.Since(began).Truncate(time.Second); after != tt.after {
						t.Errorf("%s: closed after %s; want %s", addr, after, tt.after)
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
	inBubble(t, hub.Config{WSAddr: "127.0.0.1:1", HTTPAddr: "127.0.0.1:2", OpsAddr: "127.0.0.1:3", MaxTopics: 2}, func(b *bubble) {
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
