package hub_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gobwas/ws/wsutil"

	"eventhub/hub"
)

// TestPiecesOfStrangersAreGathered: a connection that has shown no right is read a few times at once, and then twice a
// second; one that has shown it is read at once again.
func TestPiecesOfStrangersAreGathered(t *testing.T) {
	inBubble(t, hub.Config{WSAddr: "127.0.0.1:1", HTTPAddr: "127.0.0.1:2", OpsAddr: "127.0.0.1:3", AuthToken: "s3cret"}, func(b *hubInBubble) {
		// A write ends when it has been read.
		byBytes := func(conn net.Conn, text string) (took time.Duration) {
			t.Helper()
			began := time.Now()
			for i := range len(text) {
				if _, err := io.WriteString(conn, text[i:i+1]); err != nil {
					t.Fatal(err)
				}
			}
			return time.Since(began)
		}
		dial := func() net.Conn {
			t.Helper()
			conn, err := b.network.Dial(context.Background(), "tcp", b.HTTPAddr())
			if err != nil {
				t.Fatal(err)
			}
			return conn
		}
		const request = "GET /v1/topics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer s3cret\r\n\r\n"
		conn := dial()
		if took := byBytes(conn, request[:8]); took != 0 {
			t.Errorf("the first bytes were read after %s", took)
		}
		if took := byBytes(conn, request[8:12]); took != 2*time.Second {
			t.Errorf("four more were read after %s; want half a second each", took)
		}
		if _, err := io.WriteString(conn, request[12:]); err != nil {
			t.Fatal(err)
		}
		answers := bufio.NewReader(conn)
		wantAnswer(t, answers, http.StatusOK)
		if took := byBytes(conn, request); took != 0 {
			t.Errorf("a request of a connection that has shown a right was read after %s", took)
		}
		wantAnswer(t, answers, http.StatusOK)
		conn.Close()

		// What needs no right is answered, and then the pieces are free again.
		conn = dial()
		answers = bufio.NewReader(conn)
		for range 3 {
			if took := byBytes(conn, "GET /n H"); took != 0 {
				t.Errorf("the first bytes were read after %s", took)
			}
			if _, err := io.WriteString(conn, "TTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			wantAnswer(t, answers, http.StatusNotFound)
		}
		byBytes(conn, "GET / HTTP")
		began := time.Now()
		if err := b.Stop(context.Background()); err != nil || time.Since(began) != 0 {
			t.Errorf("the hub has stopped after %s: %v", time.Since(began), err)
		}
		conn.Close()
	})
}

func wantAnswer(t *testing.T, from *bufio.Reader, status int) {
	t.Helper()
	answer, err := http.ReadResponse(from, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, answer.Body)
	answer.Body.Close()
	if answer.StatusCode != status {
		t.Errorf("answered by %s; want %d", answer.Status, status)
	}
}

// TestKernelGathersPieces: on real sockets, for which the kernel gathers, nothing is lost, whoever shows a right at last
// is heard at once from then on, and an end is seen.
func TestKernelGathersPieces(t *testing.T) {
	h := start(t, hub.Config{Store: hub.MemoryStore, AuthToken: "s3cret", WSAddr: "127.0.0.1:0", HTTPAddr: "localhost:0", OpsAddr: "127.0.0.2:0"})
	dial := func() net.Conn {
		t.Helper()
		conn, err := net.Dial("tcp", h.WSAddr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second)) // before the hub pings, which would bring what waits
		return conn
	}
	byBytes := func(conn net.Conn, text string) {
		t.Helper()
		for i := range 20 { // a stranger has five seconds
			if _, err := io.WriteString(conn, text[i:i+1]); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond) // so that it comes in pieces; it may come otherwise
		}
		if _, err := io.WriteString(conn, text[20:]); err != nil {
			t.Fatal(err)
		}
	}
	conn := dial()
	byBytes(conn, upgrade)
	in := bufio.NewReader(conn)
	if answer, err := http.ReadResponse(in, nil); err != nil || answer.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("the upgrade was answered by %v, %v", answer, err)
	}
	both := struct {
		io.Reader
		io.Writer
	}{in, conn}
	for i, frame := range []string{`{"op":"AUTH","token":"s3cret"}`, `{"op":"PUBLISH","topic":"a","payload":1}`, `{"op":"PUBLISH","topic":"a","payload":2}`} {
		if sent := string(masked([]byte(frame))); i == 0 {
			byBytes(conn, sent)
		} else if _, err := io.WriteString(conn, sent); err != nil { // much less than the kernel waits for
			t.Fatal(err)
		}
		if said, err := wsutil.ReadServerText(both); err != nil || !strings.HasPrefix(string(said), `{"op":"OK"`) {
			t.Fatalf("%s was answered by %.200s, %v", frame, said, err)
		}
	}

	// After an answer that needs no right the pieces are free again, and a little that comes is heard.
	open := dial()
	answers := bufio.NewReader(open)
	const request = "GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n"
	byBytes(open, request)
	wantAnswer(t, answers, http.StatusNotFound)
	if _, err := io.WriteString(open, request); err != nil {
		t.Fatal(err)
	}
	wantAnswer(t, answers, http.StatusNotFound)

	half := dial()
	byBytes(half, upgrade[:20])
	if err := half.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, half); err != nil {
		t.Errorf("the end of a stranger was answered by %d bytes and %v", n, err)
	}
}

// TestAllThatHasComeIsRead: a look takes all that has come, however small the records of TLS and the reads of the server are: a long
// header that came at once is not too late.
func TestAllThatHasComeIsRead(t *testing.T) {
	pair := newPair(t, t.TempDir(), 1)
	h := start(t, hub.Config{Store: hub.MemoryStore, AuthToken: "s3cret", TLSCertFile: pair.cert, TLSKeyFile: pair.key})
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		conn, err := tls.Dial("tcp", h.HTTPAddr(), &tls.Config{InsecureSkipVerify: true, MinVersion: version, MaxVersion: version})
		if err != nil {
			t.Fatal(err)
		}
		request := "GET /v1/topics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer s3cret\r\nX-A: " + strings.Repeat("a", 28<<10) + "\r\n\r\n"
		for i := range 20 {
			if _, err := io.WriteString(conn, request[i:i+1]); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond) // so that it comes in pieces; it may come otherwise
		}
		for rest := range slices.Chunk([]byte(request[20:]), 500) {
			if _, err := conn.Write(rest); err != nil {
				t.Fatal(err)
			}
		}
		wantAnswer(t, bufio.NewReader(conn), http.StatusOK)
		conn.Close()
	}
}
