package ws

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	gws "github.com/gobwas/ws"

	"eventhub/wire"
)

// The tables of conformance_cases_test.go are written from RFC 6455, family by family, as the
// Autobahn test suite numbers them. The hub has no echo, so a message asks for an op that does
// not exist, and the corr at its end says that its text arrived as it was sent.
//
// Not here: family 12 and 13, compression, which the hub does not offer (TestHandshakes), and
// of family 6.4 the cases that want a frame judged before all of it has come: the RFC leaves
// the moment open, and the hub judges a fragment when it is complete.

// echo is a message that comes back by its corr.
func echo(corr string) string { return `{"op":"NOPE","corr":"` + corr + `"}` }

// echoOf is echo with a text of exactly n bytes.
func echoOf(n int) string {
	const head, tail = `{"op":"NOPE","pad":"`, `","corr":"c"}`
	return head + strings.Repeat("p", n-len(head)-len(tail)) + tail
}

// pieces cuts a message into fragments of n bytes.
func pieces(message string, n int) []byte {
	var b []byte
	for op := gws.OpText; ; op = gws.OpContinuation {
		if len(message) <= n {
			return append(b, frame(op, true, message)...)
		}
		b = append(b, frame(op, false, message[:n])...)
		message = message[n:]
	}
}

// answer is one thing that the hub must send.
type answer struct {
	op   gws.OpCode
	text string // corr of an ERR, payload of a pong
}

func echoed(corr string) answer { return answer{gws.OpText, corr} }
func pong(text string) answer   { return answer{gws.OpPong, text} }

type conformanceCase struct {
	name    string
	clause  string // of RFC 6455, that the case checks
	send    []byte
	answers []answer
	code    int // of the hub's close; noClose: the connection goes on
}

const noClose = -1

func cat(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// rsv sets reserved bits of a frame.
func rsv(bits byte, f []byte) []byte {
	f[0] |= bits << 4
	return f
}

// rawHeader is a masked header that says whatever a test wants.
func rawHeader(first byte, length uint64, width int) []byte {
	h := []byte{first}
	switch width {
	case 1:
		h = append(h, 0x80|byte(length))
	case 2:
		h = binary.BigEndian.AppendUint16(append(h, 0x80|126), uint16(length))
	case 8:
		h = binary.BigEndian.AppendUint64(append(h, 0x80|127), length)
	}
	return append(h, testMask[:]...)
}

// TestConformance sends each case at once, in chops, and byte by byte.
func TestConformance(t *testing.T) {
	f := serve(t, func(c *Config) { c.MaxFrameBytes = limit })
	for family, cases := range map[string][]conformanceCase{
		"1 framing": framingCases(), "2 pings": pingCases(), "3 and 4 reserved": reservedCases(), "5 fragments": fragmentCases(),
		"6 UTF-8": utf8Cases(), "7 closing": closeCases(), "9 limits": limitCases(),
	} {
		t.Run(family, func(t *testing.T) {
			for _, tt := range cases {
				t.Run(tt.clause+" "+tt.name, func(t *testing.T) {
					t.Run("at once", func(t *testing.T) { tt.run(t, f, len(tt.send)) })
					if len(tt.send) < 1000 {
						t.Run("byte by byte", func(t *testing.T) { tt.run(t, f, 1) })
					} else {
						t.Run("in chops", func(t *testing.T) { tt.run(t, f, 997) })
					}
				})
			}
		})
	}
}

// TestConformanceLarge has the families 9 and 10: messages as large as they may be by default, in
// one frame, in fragments and in chops of all sizes, and many one after another.
func TestConformanceLarge(t *testing.T) {
	f := serve(t, nil)
	const mib = 1 << 20
	for _, n := range []int{64 << 10, 256 << 10, mib, wire.MaxFrameBytes} {
		tt := conformanceCase{send: text(echoOf(n)), answers: []answer{echoed("c")}, code: noClose}
		t.Run(fmt.Sprintf("5.6 %d bytes", n), func(t *testing.T) { tt.run(t, f, len(tt.send)) })
	}
	for _, n := range []int{80, 256, 1 << 10, 1300, 4 << 10, 16 << 10, 64 << 10, 256 << 10, mib} {
		tt := conformanceCase{send: pieces(echoOf(mib), n), answers: []answer{echoed("c")}, code: noClose}
		t.Run(fmt.Sprintf("5.4 fragments of %d bytes", n), func(t *testing.T) { tt.run(t, f, len(tt.send)) })
	}
	for _, n := range []int{128, 256, 512, 1024, 2048} {
		tt := conformanceCase{send: text(echoOf(mib)), answers: []answer{echoed("c")}, code: noClose}
		t.Run(fmt.Sprintf("6.2 chops of %d bytes", n), func(t *testing.T) { tt.run(t, f, n) })
	}
	for _, n := range []int{0, 16, 64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10} {
		t.Run(fmt.Sprintf("6.2 100 times %d bytes", n), func(t *testing.T) {
			c := f.login(t)
			message, corr := "", any(nil)
			if n > 0 {
				message, corr = echoOf(max(n, len(echoOf(33)))), "c"
			}
			for range 100 {
				c.send(message)
				c.expect(map[string]any{"op": "ERR", "corr": corr})
			}
		})
	}
}

// TestInvalidTextIsFoundEarly: what is no UTF-8 ends the connection with the fragment that shows
// it, not with the message (8.1); a fragment may end in a code point (5.6).
func TestInvalidTextIsFoundEarly(t *testing.T) {
	f := serve(t, nil)
	for name, send := range map[string][]byte{
		"the first fragment":                 frame(gws.OpText, false, "a\xffb"),
		"the second":                         cat(frame(gws.OpText, false, "a"), frame(gws.OpContinuation, false, "\xed\xa0\x80")),
		"a code point that does not go on":   cat(frame(gws.OpText, false, "a\xe2\x82"), frame(gws.OpContinuation, false, "b")),
		"a code point that is cut by a ping": cat(frame(gws.OpText, false, "\xf0\x9f"), frame(gws.OpPing, true, ""), frame(gws.OpContinuation, false, "\x98a")),
	} {
		t.Run(name, func(t *testing.T) {
			c := f.login(t)
			c.write(send)
			op, payload := c.read()
			if op == gws.OpPong {
				op, payload = c.read()
			}
			if code, _ := gws.ParseCloseFrameData(payload); op != gws.OpClose || code != wire.CloseInvalidUTF8 {
				t.Errorf("got opcode %x with %q; want the close code %d", op, payload, wire.CloseInvalidUTF8)
			}
		})
	}
}

// run sends the case in pieces.
func (tt *conformanceCase) run(t *testing.T, f *fixture, piece int) {
	c := f.login(t)
	sent := make(chan struct{})
	go func() { // the hub may answer before all is sent
		defer close(sent)
		for b := tt.send; len(b) > 0; {
			n := min(piece, len(b))
			if _, err := c.conn.Write(b[:n]); err != nil {
				return // closed before the end, as it should where it does
			}
			b = b[n:]
		}
	}()
	for _, want := range tt.answers {
		if want.op == gws.OpText {
			corr := any(want.text)
			if want.text == "" {
				corr = nil
			}
			c.expect(map[string]any{"op": "ERR", "corr": corr})
			continue
		}
		if op, payload := c.read(); op != want.op || string(payload) != want.text {
			t.Fatalf("got opcode %x with %q; want %x with %q", op, payload, want.op, want.text)
		}
	}
	if tt.code == noClose {
		<-sent
		c.send(echo("alive"))
		c.expect(map[string]any{"op": "ERR", "corr": "alive"})
		return
	}
	c.expectClose(gws.StatusCode(tt.code))
	c.conn.Close()
	<-sent
}
