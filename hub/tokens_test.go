package hub_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"

	"eventhub"
	"eventhub/hub"
	"eventhub/internal/bubble"
	"eventhub/internal/pipenet"
)

// hubInBubble is a hub in a synctest bubble.
type hubInBubble struct {
	*hub.Hub
	t       *testing.T
	network *pipenet.Net
	began   time.Time
}

func inBubble(t *testing.T, cfg hub.Config, test func(*hubInBubble)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		b := &hubInBubble{t: t, network: new(pipenet.Net), began: time.Now()}
		cfg.Store, cfg.Listen = hub.MemoryStore, b.network.Listen
		b.Hub = start(t, cfg)
		test(b)
	})
}

// wait lets so much time pass since the beginning, and all that is then due happen.
func (b *hubInBubble) wait(d time.Duration) {
	time.Sleep(time.Until(b.began.Add(d)))
	synctest.Wait()
}

// peer is a client that takes what comes.
type peer struct {
	t      *testing.T
	conn   net.Conn
	frames chan string
	ended  chan error
}

// join connects and says AUTH.
func (b *hubInBubble) join(token string) *peer {
	b.t.Helper()
	p := b.connect()
	p.ok(`{"op":"AUTH","token":"%s"}`, token)
	return p
}

func (b *hubInBubble) connect() *peer {
	b.t.Helper()
	conn, _, _, err := ws.Dialer{NetDial: b.network.Dial}.Dial(context.Background(), "ws://"+b.WSAddr())
	if err != nil {
		b.t.Fatal(err)
	}
	p := &peer{b.t, conn, make(chan string, 100), make(chan error, 1)}
	go func() {
		for {
			text, err := wsutil.ReadServerText(conn)
			if err != nil {
				conn.Close()
				p.ended <- err
				return
			}
			p.frames <- string(text)
		}
	}()
	b.t.Cleanup(func() { conn.Close() })
	return p
}

// ok says something and expects OK.
func (p *peer) ok(format string, args ...any) {
	p.t.Helper()
	if _, err := p.conn.Write(masked(fmt.Appendf(nil, format, args...))); err != nil {
		p.t.Fatal(err)
	}
	p.came(`"op":"OK"`)
}

// came expects that the next frame has come, and has a part.
func (p *peer) came(part string) {
	p.t.Helper()
	synctest.Wait()
	select {
	case frame := <-p.frames:
		if !strings.Contains(frame, part) {
			p.t.Errorf("came %s; want %s", frame, part)
		}
	default:
		p.t.Errorf("nothing came; want %s", part)
	}
}

// end returns how the connection has ended, nil if it has not.
func (p *peer) end() error {
	synctest.Wait()
	select {
	case err := <-p.ended:
		return err
	default:
		return nil
	}
}

func (p *peer) wantEnd(parts ...string) {
	p.t.Helper()
	err := p.end()
	for _, part := range parts {
		if err == nil || !strings.Contains(err.Error(), part) {
			p.t.Errorf("the connection ended with %v; want %q", err, parts)
		}
	}
}

// stream opens an event stream and returns a channel that is closed with its end.
func (b *hubInBubble) stream(token string) <-chan struct{} {
	b.t.Helper()
	conn, err := b.network.Dial(context.Background(), "tcp", b.HTTPAddr())
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { conn.Close() })
	request := "GET /v1/topics/a/stream HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + token + "\r\n\r\n"
	if _, err := conn.Write([]byte(request)); err != nil {
		b.t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || answer.StatusCode != http.StatusOK {
		b.t.Fatalf("%+v, %v", answer, err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		_, _ = io.Copy(io.Discard, answer.Body) // its end alone counts
	}()
	return over
}

// pull waits for events that do not come, and returns a channel for the answer.
func (b *hubInBubble) pull(token string) <-chan string {
	b.t.Helper()
	return b.ask(token, "POST /v1/topics/idle/groups/g/pull?wait_ms=20000", 0, "")
}

// ask sends a request with a body of size bytes of which it sends part, and returns a channel for
// the answer.
func (b *hubInBubble) ask(token, what string, size int, part string) <-chan string {
	b.t.Helper()
	conn, err := b.network.Dial(context.Background(), "tcp", b.HTTPAddr())
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { conn.Close() })
	request := fmt.Sprintf("%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\nAuthorization: Bearer %s\r\n\r\n%s", what, size, token, part)
	if _, err := conn.Write([]byte(request)); err != nil {
		b.t.Fatal(err)
	}
	answered := make(chan string, 1)
	go func() {
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			answered <- err.Error()
			return
		}
		body, err := io.ReadAll(answer.Body)
		answered <- fmt.Sprintln(answer.StatusCode, string(body), err)
	}()
	synctest.Wait()
	return answered
}

// wantAnswer expects that an answer has come by now, and has the parts; without parts that none has.
func (b *hubInBubble) wantAnswer(answered <-chan string, parts ...string) {
	b.t.Helper()
	synctest.Wait()
	select {
	case answer := <-answered:
		if len(parts) == 0 {
			b.t.Errorf("answered %s; want that it waits", answer)
		}
		for _, part := range parts {
			if !strings.Contains(answer, part) {
				b.t.Errorf("answered %s; want %q", answer, parts)
			}
		}
	default:
		if len(parts) > 0 {
			b.t.Errorf("it still waits; want an answer with %q", parts)
		}
	}
}

func isOver(over <-chan struct{}) bool {
	synctest.Wait()
	select {
	case <-over:
		return true
	default:
		return false
	}
}

const member = `{"op":"SUBSCRIBE","topic":"a","group":"g","opts":{"from":"earliest","ack_timeout_ms":3600000}}`

// TestTokenEnds: with its token a WebSocket closes with 1008, its leases are given back and a
// stream ends. One whose token was renewed goes on, with its subscription and its leases.
func TestTokenEnds(t *testing.T) {
	inBubble(t, hub.Config{JWTSecret: jwtSecret}, func(b *hubInBubble) {
		soon, late := full(b.began.Add(time.Minute).Unix()), full(b.began.Add(time.Hour).Unix())
		ends, renewed := b.join(soon), b.join(soon)
		stream := b.stream(soon)
		ends.ok(member)
		b.publish("a")
		ends.came(`"attempt":1`)
		renewed.ok("%s", strings.Replace(member, `"a"`, `"b"`, 1))
		b.publish("b")
		renewed.came(`"attempt":1`)
		renewed.ok(member)
		b.wait(50 * time.Second)
		renewed.ok(`{"op":"AUTH","token":"%s"}`, late)
		waiting := b.join(soon)
		waiting.ok(`{"op":"SUBSCRIBE","topic":"held","group":"g"}`)
		if _, err := waiting.conn.Write(masked([]byte(`{"op":"PUBLISH","topic":"held","payload":1,"corr":"w","opts":{"wait_for":["g"],"wait_ms":60000}}`))); err != nil {
			t.Fatal(err)
		}
		waiting.came(`"op":"EVENT"`)
		pull := b.pull(soon)
		ends.ok("%s", strings.Replace(member, `"a"`, `"slow"`, 1))
		published := b.ask(soon, "POST /publish/slow?wait_for=g&wait_ms=20000", 1, "1")
		state := b.ask(soon, "GET /v1/topics/slow/state?min_offset=2&wait_ms=20000", 0, "")
		line := `{"id":"x","topic":"late","payload":1}` + "\n"
		imported := b.ask(soon, "POST /v1/import", len(line)+1, line)
		b.wait(65*time.Second - time.Millisecond)
		if err := ends.end(); err != nil || isOver(stream) {
			t.Errorf("before the time: %v, stream %t", err, isOver(stream))
		}
		for _, waits := range []<-chan string{pull, published, state, imported} {
			b.wantAnswer(waits)
		}
		b.wait(65 * time.Second)
		b.wantAnswer(pull, "401 ", `"jwt_invalid"`, "The token has expired.")
		b.wantAnswer(published, "401 ", `"jwt_invalid"`, "The token has expired: ", "the events are published", `"offset":1`)
		b.wantAnswer(state, "401 ", `"jwt_invalid"`, "The token has expired.")
		b.wantAnswer(imported, "401 ", `"jwt_invalid"`, "The token has expired.", `"added":0`)
		ends.wantEnd("1008", "The token has expired.")
		waiting.came(`"code":"shutting_down","msg":"The token has expired: gave up waiting for the groups; the events are published"`)
		waiting.wantEnd("1008", "The token has expired.")
		if !isOver(stream) {
			t.Error("the stream goes on")
		}
		renewed.came(`"topic":"a"`) // at once, and not when the lease ends
		b.wait(30 * time.Minute)
		renewed.ok(`{"op":"ACK","topic":"b","group":"g","id":"%s","corr":"x"}`, "id-b")
		if info, err := b.Bus().Group(t.Context(), "b", "g"); err != nil || info.Lag != 0 {
			t.Errorf("%+v, %v: the lease of before the renewal is not its any more", info, err)
		}
		b.wait(time.Hour + 5*time.Second)
		renewed.wantEnd("1008", "The token has expired.")
	})
}

func (b *hubInBubble) publish(topic string) {
	b.t.Helper()
	if _, err := b.Bus().Publish(b.t.Context(), eventhub.Event{Topic: topic, ID: "id-" + topic, Payload: json.RawMessage("1")}); err != nil {
		b.t.Fatal(err)
	}
}

// TestRenewalToAShorterToken: the last token counts, also where it ends before the first.
func TestRenewalToAShorterToken(t *testing.T) {
	inBubble(t, hub.Config{JWTSecret: jwtSecret}, func(b *hubInBubble) {
		p := b.join(full(b.began.Add(time.Hour).Unix()))
		p.ok(`{"op":"AUTH","token":"%s"}`, full(b.began.Add(time.Minute).Unix()))
		b.wait(65 * time.Second)
		p.wantEnd("1008")
	})
}

// TestTokenRevoked: who has a token that is taken out of the file is let go at once.
func TestTokenRevoked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	write := func(entries ...string) {
		t.Helper()
		if err := os.WriteFile(path, []byte("tokens:\n"+strings.Join(entries, "")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a, c := "- {name: a, token: token-a, scopes: ['*']}\n", "- {name: c, token: token-c, scopes: ['*']}\n"
	write(a, c)
	inBubble(t, hub.Config{AuthTokensFile: path}, func(b *hubInBubble) {
		goes, stays, renewed := b.join("token-a"), b.join("token-c"), b.join("token-a")
		ends, lasts := b.stream("token-a"), b.stream("token-c")
		goes.ok(member)
		b.publish("a")
		goes.came(`"attempt":1`)
		stays.ok(member)
		renewed.ok(`{"op":"AUTH","token":"token-c"}`)
		b.wait(time.Minute)
		pull, waits := b.pull("token-a"), b.pull("token-c")
		state := b.ask("token-a", "GET /v1/topics/a/state?min_offset=2&wait_ms=20000", 0, "")
		b.wantAnswer(pull)
		write(c)
		b.wait(time.Minute + 2*time.Second)
		goes.wantEnd("1008", "The token was revoked.")
		if !isOver(ends) {
			t.Error("the stream goes on")
		}
		b.wantAnswer(pull, "401 ", `"bad_token"`, "The token was revoked.")
		b.wantAnswer(state, "401 ", `"bad_token"`, "The token was revoked.")
		b.wantAnswer(waits)
		stays.came(`"attempt":`)
		if stays.end() != nil || renewed.end() != nil || isOver(lasts) {
			t.Error("one whose token has stayed was let go")
		}
	})
}
