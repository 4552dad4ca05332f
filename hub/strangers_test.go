package hub_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gobwas/ws/wsutil"

	"eventhub/hub"
)

const upgrade = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" +
	"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"

// TestStrangersHaveFiveSeconds: whatever a connection does with them, it is over five seconds
// after it came, or after the last answer that it got, where no token of it was accepted. A
// WebSocket gets its close frame then, and has a second to answer it.
func TestStrangersHaveFiveSeconds(t *testing.T) {
	const probe = "GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n"
	for name, tt := range map[string]struct {
		first string        // at once
		rest  string        // without end; an upgrade once, a byte at a time
		every time.Duration // between two of these
		after time.Duration // when the connection is closed
	}{
		"a header by bytes":                 {"GET / HTTP/1.1\r\nX-A: ", "a", time.Second, 5 * time.Second},
		"headers without end":               {"GET / HTTP/1.1\r\n", "X-A: a\r\n", 100 * time.Millisecond, 5 * time.Second},
		"a body by bytes":                   {"POST /publish/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n", "1", time.Second, 5 * time.Second},
		"chunks without end":                {"POST /v1/publish HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", "1\r\n1\r\n", 100 * time.Millisecond, 5 * time.Second},
		"a body where there is nothing":     {"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n", "1", time.Second, 5 * time.Second},
		"an upgrade at the last moment":     {"", upgrade, 4500 * time.Millisecond / time.Duration(len(upgrade)), 5 * time.Second},
		"an upgrade, and then nothing":      {upgrade, "", time.Second, 5 * time.Second},
		"frames by bytes":                   {upgrade + "\x81\xfe\x01\x00mask", "x", time.Second, 5 * time.Second},
		"fragments of a byte":               {upgrade + "\x01\x81\x00\x00\x00\x00x", "\x00\x81\x00\x00\x00\x00x", 10 * time.Millisecond, 5 * time.Second},
		"pings":                             {upgrade, "\x89\x80\x00\x00\x00\x00", 100 * time.Millisecond, 5 * time.Second},
		"AUTH with wrong tokens":            {upgrade, string(masked([]byte(`{"op":"AUTH","token":"guessed"}`))), time.Second, 5 * time.Second},
		"many wrong tokens":                 {upgrade + strings.Repeat(string(masked([]byte(`{"op":"AUTH","token":"guessed"}`))), 40), "", 0, time.Second},
		"a length of 2^63":                  {upgrade + "\x81\xff\x80\x00\x00\x00\x00\x00\x00\x00mask", "", 0, time.Second},
		"a request, and then nothing":       {probe, "", time.Second, 5 * time.Second},
		"two requests, a second in between": {probe, "", time.Second, 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, hub.Config{WSAddr: "127.0.0.1:1", HTTPAddr: "127.0.0.1:2", OpsAddr: "127.0.0.1:3", AuthToken: "s3cret"}, func(b *hubInBubble) {
				conn, err := b.network.Dial(context.Background(), "tcp", b.WSAddr())
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				sent := make(chan struct{})
				go func() {
					defer close(sent)
					if _, err := conn.Write([]byte(tt.first)); err != nil {
						return
					}
					if strings.HasPrefix(name, "two requests") {
						time.Sleep(time.Second)
						_, _ = conn.Write([]byte(probe))
					}
					for i := 0; tt.rest == upgrade && i < len(upgrade); i++ {
						_, _ = conn.Write([]byte{upgrade[i]})
						time.Sleep(tt.every)
					}
					for tt.rest != "" && tt.rest != upgrade {
						if _, err := io.WriteString(conn, tt.rest); err != nil {
							return
						}
						time.Sleep(tt.every)
					}
				}()
				_, _ = io.Copy(io.Discard, conn)
				want := tt.after
				if strings.HasPrefix(name, "two requests") {
					want += time.Second
				}
				if after := time.Since(began).Truncate(time.Second); after != want {
					t.Errorf("closed after %s; want %s", time.Since(began), want)
				}
				conn.Close()
				<-sent
				synctest.Wait()
				if !strings.Contains(b.metricsAs("s3cret"), "\neventhub_connections_unauthenticated 0\n") {
					t.Error("it still counts as a stranger")
				}
			})
		})
	}
}

// TestHandshakeOfTLSHasATime: what was used for it is not given again.
func TestHandshakeOfTLSHasATime(t *testing.T) {
	pair := newPair(t, t.TempDir(), 1)
	cfg := hub.Config{WSAddr: "127.0.0.1:1", HTTPAddr: "127.0.0.1:2", OpsAddr: "127.0.0.1:3", AuthToken: "s3cret", TLSCertFile: pair.cert, TLSKeyFile: pair.key}
	inBubble(t, cfg, func(b *hubInBubble) {
		for name, slow := range map[string]bool{"no handshake": false, "a slow one": true} {
			conn, err := b.network.Dial(context.Background(), "tcp", b.WSAddr())
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			var in io.Reader = conn
			if slow {
				time.Sleep(4 * time.Second)
				secure := tls.Client(conn, &tls.Config{InsecureSkipVerify: true}) // the clock of the bubble is not the certificate's
				if _, err := io.WriteString(secure, "GET / HTTP/1.1\r\n"); err != nil {
					t.Fatal(err)
				}
				in = secure
			}
			_, _ = io.Copy(io.Discard, in)
			if after := time.Since(began); after.Truncate(time.Second) != 5*time.Second {
				t.Errorf("%s: closed after %s", name, after)
			}
			conn.Close()
		}
	})
}

// TestStrangersAreBounded: one too many takes the place of another, at whichever listener; who has
// shown a right stays.
func TestStrangersAreBounded(t *testing.T) {
	inBubble(t, hub.Config{WSAddr: "127.0.0.1:1", HTTPAddr: "127.0.0.1:2", OpsAddr: "127.0.0.1:3", AuthToken: "s3cret", MaxUnauthenticated: 2}, func(b *hubInBubble) {
		p := b.join("s3cret")
		stream := b.stream("s3cret")
		var conns []net.Conn
		for i := range 3 {
			conn, err := b.network.Dial(context.Background(), "tcp", []string{b.WSAddr(), b.HTTPAddr(), b.OpsAddr()}[i])
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			conns = append(conns, conn)
			time.Sleep(time.Millisecond)
		}
		began := time.Now()
		if n, err := conns[0].Read(make([]byte, 1)); n != 0 || err == nil || time.Since(began) != 0 {
			t.Errorf("the first one is still there: %d, %v, after %s", n, err, time.Since(began))
		}
		conns[1].Close() // for the scrape
		synctest.Wait()
		metrics := b.metricsAs("s3cret")
		for _, want := range []string{"eventhub_connections_unauthenticated 1", "eventhub_connections_evicted_total 1"} {
			if !strings.Contains(metrics, "\n"+want+"\n") {
				t.Errorf("the metrics lack %s", want)
			}
		}
		time.Sleep(20 * time.Second)
		p.ok(`{"op":"PUBLISH","topic":"a","payload":1}`)
		select {
		case <-stream:
			t.Error("the stream has ended")
		default:
		}
	})
}

// TestMessagesBeforeAuthAreFew: whoever says more than 16 things before the token that is accepted
// is closed, and one that is accepted ends the counting.
func TestMessagesBeforeAuthAreFew(t *testing.T) {
	inBubble(t, hub.Config{WSAddr: "127.0.0.1:1", HTTPAddr: "127.0.0.1:2", OpsAddr: "127.0.0.1:3", AuthToken: "s3cret"}, func(b *hubInBubble) {
		say := func(p *peer, frames []string, want string) {
			t.Helper()
			var sent []byte // at once, for a stranger is read slowly
			for _, frame := range frames {
				sent = append(sent, masked([]byte(frame))...)
			}
			if _, err := p.conn.Write(sent); err != nil {
				t.Fatal(err)
			}
			for range frames {
				p.came(want)
			}
		}
		p, wrong := b.connect(), `{"op":"AUTH","token":"x"}`
		say(p, slices.Repeat([]string{wrong, `{"op":"PUBLISH"}`, `no JSON`}, 5), `"op":"ERR"`)
		p.ok(`{"op":"AUTH","token":"s3cret"}`)
		say(p, slices.Repeat([]string{wrong}, 100), `"code":"bad_token"`)
		q := b.connect()
		say(q, slices.Repeat([]string{wrong}, 17), `"code":"bad_token"`)
		q.wantEnd(fmt.Sprint(1008), "before AUTH")
	})
}

// TestRequestsWithoutATokenAreFew: a connection whose requests need no right gets so many answers, the last of which says
// that it is closed; so does the first that is refused. One with a right goes on.
func TestRequestsWithoutATokenAreFew(t *testing.T) {
	inBubble(t, hub.Config{WSAddr: "127.0.0.1:1", HTTPAddr: "127.0.0.1:2", OpsAddr: "127.0.0.1:3", AuthToken: "s3cret"}, func(b *hubInBubble) {
		const open, allowed, refused = "GET /livez HTTP/1.1", "GET /metrics HTTP/1.1\r\nAuthorization: Bearer s3cret", "GET /metrics HTTP/1.1\r\nAuthorization: Bearer guessed"
		const noBearer = "GET /metrics HTTP/1.1\r\nAuthorization: Basic YTpi"
		for name, tt := range map[string]struct {
			say  func(n int) string
			want int // answers; 100: it goes on
		}{
			"open":              {func(int) string { return open }, 32},
			"refused":           {func(int) string { return refused }, 1},
			"no bearer":         {func(int) string { return noBearer }, 1},
			"refused later":     {func(n int) string { return []string{open, refused}[n/3] }, 4},
			"with a right":      {func(n int) string { return map[bool]string{true: allowed, false: open}[n == 20] }, 100},
			"and refused later": {func(n int) string { return map[bool]string{true: allowed, false: refused}[n == 0] }, 100},
		} {
			conn, err := b.network.Dial(context.Background(), "tcp", b.OpsAddr())
			if err != nil {
				t.Fatal(err)
			}
			answers := bufio.NewReader(conn)
			n := 0
			for closed := false; !closed && n < 100; n++ {
				said := tt.say(n)
				if _, err := io.WriteString(conn, said+"\r\nHost: localhost\r\n\r\n"); err != nil {
					t.Fatal(err)
				}
				answer, err := http.ReadResponse(answers, nil)
				if err != nil {
					t.Fatalf("%s: request %d: %v", name, n+1, err)
				}
				if want := map[bool]int{true: http.StatusUnauthorized, false: http.StatusOK}[said == refused || said == noBearer]; answer.StatusCode != want {
					t.Errorf("%s: request %d was answered by %s", name, n+1, answer.Status)
				}
				_, _ = io.Copy(io.Discard, answer.Body)
				answer.Body.Close()
				closed = answer.Close
			}
			if n != tt.want {
				t.Errorf("%s: %d requests were answered; want %d", name, n, tt.want)
			}
			conn.Close()
		}
	})
}

// TestUpgradeAfterAnswersHasItsTime: a proxy sends the upgrade of a client over a connection that had answers before. The client
// knows nothing of these, and has its five seconds from the upgrade on.
func TestUpgradeAfterAnswersHasItsTime(t *testing.T) {
	for name, says := range map[string]bool{"AUTH at the last moment": true, "nothing": false} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, hub.Config{WSAddr: "127.0.0.1:1", HTTPAddr: "127.0.0.1:2", OpsAddr: "127.0.0.1:3", AuthToken: "s3cret"}, func(b *hubInBubble) {
				conn, err := b.network.Dial(context.Background(), "tcp", b.WSAddr())
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				in := bufio.NewReader(conn)
				send := func(text string) {
					t.Helper()
					if _, err := io.WriteString(conn, text); err != nil {
						t.Fatal(err)
					}
				}
				send("GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n")
				wantAnswer(t, in, http.StatusNotFound)
				time.Sleep(4900 * time.Millisecond)
				send(upgrade)
				if answer, err := http.ReadResponse(in, nil); err != nil || answer.StatusCode != http.StatusSwitchingProtocols {
					t.Fatalf("the upgrade was answered by %v, %v", answer, err)
				}
				upgraded := time.Now()
				if says {
					time.Sleep(4900 * time.Millisecond)
					send(string(masked([]byte(`{"op":"AUTH","token":"s3cret"}`))))
					both := struct {
						io.Reader
						io.Writer
					}{in, conn}
					if said, err := wsutil.ReadServerText(both); err != nil || !strings.HasPrefix(string(said), `{"op":"OK"`) {
						t.Errorf("AUTH was answered by %.200s, %v", said, err)
					}
					return
				}
				_, _ = io.Copy(io.Discard, in)
				if after := time.Since(upgraded).Truncate(time.Second); after != 5*time.Second {
					t.Errorf("closed %s after the upgrade; want 5 s", time.Since(upgraded))
				}
			})
		})
	}
}
