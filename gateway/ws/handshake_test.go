package ws

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestHandshakes sends requests for an upgrade as they may look, byte by byte.
func TestHandshakes(t *testing.T) {
	const key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
	const version = "Sec-WebSocket-Version: 13"
	f := serve(t, nil)
	for name, tt := range map[string]struct {
		lines string // of the header, without Host
		body  string
		want  int
	}{
		"plain":                    {"Connection: Upgrade\nUpgrade: websocket\n" + key + "\n" + version, "", 101},
		"Connection on two lines":  {"Connection: keep-alive\nConnection: Upgrade\nUpgrade: websocket\n" + key + "\n" + version, "", 101},
		"Connection, a list":       {"Connection: keep-alive , upgrade\nUpgrade: WebSocket\n" + key + "\n" + version, "", 101},
		"Upgrade, a list":          {"Connection: Upgrade\nUpgrade: h2c, websocket\n" + key + "\n" + version, "", 101},
		"Upgrade on two lines":     {"Connection: Upgrade\nUpgrade: h2c\nUpgrade: websocket\n" + key + "\n" + version, "", 101},
		"no length":                {"Connection: Upgrade\nUpgrade: websocket\nContent-Length: 0\n" + key + "\n" + version, "", 101},
		"no Connection":            {"Upgrade: websocket\n" + key + "\n" + version, "", 400},
		"another Connection":       {"Connection: upgraded\nUpgrade: websocket\n" + key + "\n" + version, "", 400},
		"a body":                   {"Connection: Upgrade\nUpgrade: websocket\nContent-Length: 5\n" + key + "\n" + version, "\x81\x00xyz", 400},
		"a chunked body":           {"Connection: Upgrade\nUpgrade: websocket\nTransfer-Encoding: chunked\n" + key + "\n" + version, "1\r\nx\r\n0\r\n\r\n", 400},
		"a key that is no base64":  {"Connection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Key: ~~~~~~~~~~~~~~~~~~~~~~~~\n" + version, "", 400},
		"a key of 17 bytes":        {"Connection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZTE=\n" + version, "", 400},
		"two keys":                 {"Connection: Upgrade\nUpgrade: websocket\n" + key + "\n" + key + "\n" + version, "", 400},
		"another version":          {"Connection: Upgrade\nUpgrade: websocket\n" + key + "\nSec-WebSocket-Version: 8", "", 426},
		"no version":               {"Connection: Upgrade\nUpgrade: websocket\n" + key, "", 400},
		"another protocol besides": {"Connection: Upgrade\nUpgrade: websockets\n" + key + "\n" + version, "", 426},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", f.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(patience))
			fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\n%s\r\n\r\n%s", f.addr, strings.ReplaceAll(tt.lines, "\n", "\r\n"), tt.body)
			r := bufio.NewReader(conn)
			resp, err := http.ReadResponse(r, &http.Request{Method: http.MethodGet})
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != tt.want {
				t.Fatalf("got %s; want %d", resp.Status, tt.want)
			}
			if tt.want == http.StatusSwitchingProtocols {
				newClient(t, conn).auth()
				return
			}
			if tt.body == "" {
				return
			}
			// What comes after a refused body is not answered on this connection.
			fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", f.addr)
			if rest, _ := io.ReadAll(r); strings.Contains(string(rest), "HTTP/1.1") {
				t.Errorf("the connection goes on: %q", rest)
			}
		})
	}
}
