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

// TestHandshakes sends requests for an upgrade as they may look, byte by byte; the numbers are the
// clauses of RFC 6455. Extensions and subprotocols that are offered are not taken: the hub has none.
func TestHandshakes(t *testing.T) {
	const key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
	const version = "Sec-WebSocket-Version: 13"
	f := serve(t, nil)
	for name, tt := range map[string]struct {
		lines string // of the header, without Host
		body  string
		want  int
	}{
		"4.2.2 plain":                    {"Connection: Upgrade\nUpgrade: websocket\n" + key + "\n" + version, "", 101},
		"4.2.1 Connection on two lines":  {"Connection: keep-alive\nConnection: Upgrade\nUpgrade: websocket\n" + key + "\n" + version, "", 101},
		"4.2.1 Connection, a list":       {"Connection: keep-alive , upgrade\nUpgrade: WebSocket\n" + key + "\n" + version, "", 101},
		"4.2.1 Upgrade, a list":          {"Connection: Upgrade\nUpgrade: h2c, websocket\n" + key + "\n" + version, "", 101},
		"4.2.1 Upgrade on two lines":     {"Connection: Upgrade\nUpgrade: h2c\nUpgrade: websocket\n" + key + "\n" + version, "", 101},
		"9.1 extensions":                 {"Connection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Extensions: permessage-deflate; client_max_window_bits, x-unknown\n" + key + "\n" + version, "", 101},
		"11.3.4 protocols":               {"Connection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Protocol: chat, superchat\n" + key + "\n" + version, "", 101},
		"4.2.1 no length":                {"Connection: Upgrade\nUpgrade: websocket\nContent-Length: 0\n" + key + "\n" + version, "", 101},
		"4.2.1 no Connection":            {"Upgrade: websocket\n" + key + "\n" + version, "", 400},
		"4.2.1 another Connection":       {"Connection: upgraded\nUpgrade: websocket\n" + key + "\n" + version, "", 400},
		"4.1 a body":                     {"Connection: Upgrade\nUpgrade: websocket\nContent-Length: 5\n" + key + "\n" + version, "\x81\x00xyz", 400},
		"4.1 a chunked body":             {"Connection: Upgrade\nUpgrade: websocket\nTransfer-Encoding: chunked\n" + key + "\n" + version, "1\r\nx\r\n0\r\n\r\n", 400},
		"4.2.1 a key that is no base64":  {"Connection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Key: ~~~~~~~~~~~~~~~~~~~~~~~~\n" + version, "", 400},
		"4.2.1 a key of 17 bytes":        {"Connection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZTE=\n" + version, "", 400},
		"11.3.1 two keys":                {"Connection: Upgrade\nUpgrade: websocket\n" + key + "\n" + key + "\n" + version, "", 400},
		"4.2.2 another version":          {"Connection: Upgrade\nUpgrade: websocket\n" + key + "\nSec-WebSocket-Version: 8", "", 426},
		"4.2.1 no version":               {"Connection: Upgrade\nUpgrade: websocket\n" + key, "", 400},
		"4.2.1 another protocol besides": {"Connection: Upgrade\nUpgrade: websockets\n" + key + "\n" + version, "", 426},
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
			if tt.want == http.StatusUpgradeRequired && strings.Contains(tt.lines, "Version: 8") && resp.Header.Get("Sec-WebSocket-Version") != "13" {
				t.Errorf("the answer does not name the version: %v", resp.Header)
			}
			if tt.want == http.StatusSwitchingProtocols {
				for name, want := range map[string]string{ // 1.3 has this key and its answer
					"Sec-WebSocket-Accept": "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", "Sec-WebSocket-Extensions": "", "Sec-WebSocket-Protocol": "",
				} {
					if got := resp.Header.Get(name); got != want {
						t.Errorf("%s: %q; want %q", name, got, want)
					}
				}
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
