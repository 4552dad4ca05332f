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

// The table below is written from RFC 6455, family by family: framing, pings,
// reserved bits, opcodes, fragments, UTF-8, closing, limits. The hub has no
// echo, so a message asks for an op that does not exist, and the corr of the
// answer says that its text arrived as it was sent.

// echo is a message that comes back by its corr.
func echo(corr string) string { return `{"op":"NOPE","corr":"` + corr + `"}` }

// echoOf is echo with a text of exactly n bytes.
func echoOf(n int) string {
	head := `{"op":"NOPE","corr":"c","pad":"`
	return head + strings.Repeat("p", n-len(head)-2) + `"}`
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

func framingCases() []conformanceCase {
	cases := []conformanceCase{
		{"empty text", text(""), []answer{echoed("")}, noClose},
		{"binary", frame(gws.OpBinary, true, "x"), nil, wire.CloseUnsupported},
		{"binary in fragments", frame(gws.OpBinary, false, "x"), nil, wire.CloseUnsupported},
		{"unmasked", gws.MustCompileFrame(gws.NewTextFrame([]byte(echo("a")))), nil, wire.CloseProtocolError},
		{"unmasked ping", gws.MustCompileFrame(gws.NewPingFrame(nil)), nil, wire.CloseProtocolError},
		{"16-bit length for 125", cat(rawHeader(0x81, 125, 2), bytes.Repeat([]byte("x"), 125)), nil, wire.CloseProtocolError},
		{"64-bit length for 65535", rawHeader(0x81, 65535, 8), nil, wire.CloseProtocolError},
		{"64-bit length with the top bit", rawHeader(0x81, 1<<63, 8), nil, wire.CloseProtocolError},
		{"two messages at once", text(echo("a"), echo("b")), []answer{echoed("a"), echoed("b")}, noClose},
		{"answers come before the close", cat(text(echo("a")), rsv(4, text("x"))), []answer{echoed("a")}, wire.CloseProtocolError},
	}
	for _, n := range []int{125, 126, 127, 128, 65535, 65536} {
		cases = append(cases, conformanceCase{fmt.Sprintf("text of %d bytes", n), text(echoOf(n)), []answer{echoed("c")}, noClose})
	}
	return cases
}

func pingCases() []conformanceCase {
	long := strings.Repeat("\xfe", 125)
	var ten []byte
	var tenPongs []answer
	for i := range 10 {
		ten = append(ten, frame(gws.OpPing, true, fmt.Sprint(i))...)
		tenPongs = append(tenPongs, pong(fmt.Sprint(i)))
	}
	return []conformanceCase{
		{"empty ping", frame(gws.OpPing, true, ""), []answer{pong("")}, noClose},
		{"ping with text", frame(gws.OpPing, true, "hello"), []answer{pong("hello")}, noClose},
		{"ping with bytes that are no text", frame(gws.OpPing, true, "\x00\xff\xfe"), []answer{pong("\x00\xff\xfe")}, noClose},
		{"ping of 125 bytes", frame(gws.OpPing, true, long), []answer{pong(long)}, noClose},
		{"ping of 126 bytes", frame(gws.OpPing, true, long+"\xfe"), nil, wire.CloseProtocolError},
		{"pong nobody asked for", frame(gws.OpPong, true, "x"), nil, noClose},
		{"pong, then ping", cat(frame(gws.OpPong, true, "x"), frame(gws.OpPing, true, "y")), []answer{pong("y")}, noClose},
		{"ten pings", ten, tenPongs, noClose},
	}
}

func reservedCases() []conformanceCase {
	var cases []conformanceCase
	for bits := byte(1); bits < 8; bits++ {
		for name, f := range map[string][]byte{
			"text": text(echo("a")), "ping": frame(gws.OpPing, true, "x"), "close": closing(1000, ""),
		} {
			cases = append(cases, conformanceCase{fmt.Sprintf("reserved bits %03b in %s", bits, name), rsv(bits, f), nil, wire.CloseProtocolError})
		}
	}
	for _, op := range []gws.OpCode{3, 4, 5, 6, 7, 11, 12, 13, 14, 15} {
		cases = append(cases,
			conformanceCase{fmt.Sprintf("reserved opcode %x", op), frame(op, true, "x"), nil, wire.CloseProtocolError},
			conformanceCase{fmt.Sprintf("reserved opcode %x after a message", op), cat(text(echo("a")), frame(op, true, "")), []answer{echoed("a")}, wire.CloseProtocolError})
	}
	return cases
}

func fragmentCases() []conformanceCase {
	msg := echo("frag")
	start, rest := frame(gws.OpText, false, msg[:9]), frame(gws.OpContinuation, true, msg[9:])
	var bytewise []byte
	for i := range msg {
		op := gws.OpContinuation
		if i == 0 {
			op = gws.OpText
		}
		bytewise = append(bytewise, frame(op, i == len(msg)-1, msg[i:i+1])...)
	}
	empty := frame(gws.OpContinuation, false, "")
	ping := frame(gws.OpPing, true, "mid")
	return []conformanceCase{
		{"ping in fragments", cat(frame(gws.OpPing, false, "a"), frame(gws.OpContinuation, true, "b")), nil, wire.CloseProtocolError},
		{"pong in fragments", cat(frame(gws.OpPong, false, "a"), frame(gws.OpContinuation, true, "b")), nil, wire.CloseProtocolError},
		{"close in fragments", frame(gws.OpClose, false, "\x03\xe8"), nil, wire.CloseProtocolError},
		{"two fragments", cat(start, rest), []answer{echoed("frag")}, noClose},
		{"a fragment a byte", bytewise, []answer{echoed("frag")}, noClose},
		{"empty fragments", cat(frame(gws.OpText, false, ""), empty, frame(gws.OpContinuation, false, msg), empty, frame(gws.OpContinuation, true, "")), []answer{echoed("frag")}, noClose},
		{"nothing but empty fragments", cat(frame(gws.OpText, false, ""), empty, frame(gws.OpContinuation, true, "")), []answer{echoed("")}, noClose},
		{"ping in the middle", cat(start, ping, rest), []answer{pong("mid"), echoed("frag")}, noClose},
		{"pings all over", cat(ping, start, ping, ping, rest, ping), []answer{pong("mid"), pong("mid"), pong("mid"), echoed("frag"), pong("mid")}, noClose},
		{"continuation of nothing", frame(gws.OpContinuation, true, msg), nil, wire.CloseProtocolError},
		{"continuation of nothing, not final", frame(gws.OpContinuation, false, msg), nil, wire.CloseProtocolError},
		{"continuation after the end", cat(start, rest, rest), []answer{echoed("frag")}, wire.CloseProtocolError},
		{"text within a message", cat(start, text(msg)), nil, wire.CloseProtocolError},
		{"binary within a message", cat(start, frame(gws.OpBinary, true, "x")), nil, wire.CloseProtocolError},
		{"close within a message", cat(start, closing(1000, "")), nil, 1000},
		{"message after a message in fragments", cat(start, rest, text(echo("b"))), []answer{echoed("frag"), echoed("b")}, noClose},
	}
}

func utf8Cases() []conformanceCase {
	var cases []conformanceCase
	for _, good := range []string{
		"Hello-\u00b5@\u00df\u00f6\u00e4\u00fc\u00e0\u00e1-UTF-8!!", "\u03ba\u1f79\u03c3\u03bc\u03b5", "\u0080", "\u07ff", "\u0800", "\uffff", "\U00010000", "\U0010ffff", "\ud7ff", "\ue000",
	} {
		msg := echo(good)
		cases = append(cases, conformanceCase{fmt.Sprintf("UTF-8 %q", good), text(msg), []answer{echoed(good)}, noClose})
		var split []byte // in the middle of every code point
		for i := range len(msg) {
			op := gws.OpContinuation
			if i == 0 {
				op = gws.OpText
			}
			split = append(split, frame(op, i == len(msg)-1, msg[i:i+1])...)
		}
		cases = append(cases, conformanceCase{fmt.Sprintf("UTF-8 %q cut in code points", good), split, []answer{echoed(good)}, noClose})
	}
	for _, bad := range []string{
		"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xed\xa0\x80", "\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xe0\x80\x80", "\xf0\x80\x80\x80",
		"\xed\xa0\x80", "\xed\xbf\xbf", "\xf4\x90\x80\x80", "\xf8\x88\x80\x80\x80", "\xfe", "\xff", "\xc2", "\xe1\xbd", "\xf0\x90\x80",
	} {
		msg := echo(bad)
		half := len(msg) - 3
		cases = append(cases,
			conformanceCase{fmt.Sprintf("not UTF-8 %q", bad), text(msg), nil, wire.CloseInvalidUTF8},
			conformanceCase{fmt.Sprintf("not UTF-8 %q in fragments", bad),
				cat(frame(gws.OpText, false, msg[:half]), frame(gws.OpContinuation, true, msg[half:])), nil, wire.CloseInvalidUTF8},
			conformanceCase{fmt.Sprintf("not UTF-8 %q as reason", bad), closing(1000, bad), nil, wire.CloseInvalidUTF8})
	}
	return cases
}

func closeCases() []conformanceCase {
	cases := []conformanceCase{
		{"close without a code", frame(gws.OpClose, true, ""), nil, 0},
		{"close with a reason", closing(1000, "bye"), nil, 1000},
		{"close with the longest reason", closing(1000, strings.Repeat("r", 123)), nil, 1000},
		{"close of 126 bytes", frame(gws.OpClose, true, "\x03\xe8"+strings.Repeat("r", 124)), nil, wire.CloseProtocolError},
		{"close of one byte", frame(gws.OpClose, true, "\x03"), nil, wire.CloseProtocolError},
		{"two closes", cat(closing(1000, ""), closing(1000, "")), nil, 1000},
		{"message after the close", cat(closing(1000, ""), text(echo("late"))), nil, 1000},
		{"ping after the close", cat(closing(1000, ""), frame(gws.OpPing, true, "late")), nil, 1000},
		{"message before the close", cat(text(echo("a")), closing(1000, "")), []answer{echoed("a")}, 1000},
	}
	for _, code := range []int{1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014, 3000, 3999, 4000, 4999} {
		cases = append(cases, conformanceCase{fmt.Sprintf("close with %d", code), closing(gws.StatusCode(code), ""), nil, code})
	}
	for _, code := range []int{0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535} {
		cases = append(cases, conformanceCase{fmt.Sprintf("close with %d", code), closing(gws.StatusCode(code), ""), nil, wire.CloseProtocolError})
	}
	return cases
}

// limit is MaxFrameBytes in the conformance tests.
const limit = 100_000

func limitCases() []conformanceCase {
	half := frame(gws.OpText, false, strings.Repeat(" ", limit/2))
	var many []byte // all but one
	for i := range maxFragments - 1 {
		op := gws.OpContinuation
		if i == 0 {
			op = gws.OpText
		}
		many = append(many, frame(op, false, "")...)
	}
	return []conformanceCase{
		{"longest message", text(echoOf(limit)), []answer{echoed("c")}, noClose},
		{"longest message twice, small ones around", text(echo("a"), echoOf(limit), echo("b"), echoOf(limit), echo("d")),
			[]answer{echoed("a"), echoed("c"), echoed("b"), echoed("c"), echoed("d")}, noClose},
		{"a byte too long, header alone", rawHeader(0x81, limit+1, 8), nil, wire.CloseTooBig},
		{"longest header", rawHeader(0x81, 1<<63-1, 8), nil, wire.CloseTooBig},
		{"too long in fragments, last header alone", cat(half, rawHeader(0x80, limit/2+1, 2)), nil, wire.CloseTooBig},
		{"longest message in fragments", cat(half, frame(gws.OpContinuation, true, echoOf(limit/2))), []answer{echoed("c")}, noClose},
		{"most fragments", cat(many, frame(gws.OpContinuation, true, echo("a"))), []answer{echoed("a")}, noClose},
		{"a fragment too many", cat(many, frame(gws.OpContinuation, false, ""), frame(gws.OpContinuation, true, "")), nil, wire.CloseTooBig},
	}
}

func TestConformance(t *testing.T) {
	f := serve(t, func(c *Config) { c.MaxFrameBytes = limit })
	for family, cases := range map[string][]conformanceCase{
		"framing": framingCases(), "pings": pingCases(), "reserved": reservedCases(), "fragments": fragmentCases(),
		"utf8": utf8Cases(), "close": closeCases(), "limits": limitCases(),
	} {
		t.Run(family, func(t *testing.T) {
			for _, tt := range cases {
				t.Run(tt.name, func(t *testing.T) {
					t.Run("at once", func(t *testing.T) { tt.run(t, f, len(tt.send)) })
					if len(tt.send) < 1000 {
						t.Run("byte by byte", func(t *testing.T) { tt.run(t, f, 1) })
					}
				})
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
