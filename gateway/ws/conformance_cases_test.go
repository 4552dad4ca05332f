package ws

import (
	"bytes"
	"fmt"
	"strings"

	gws "github.com/gobwas/ws"

	"eventhub/wire"
)

func framingCases() []conformanceCase {
	cases := []conformanceCase{
		{"empty text", "5.2", text(""), []answer{echoed("")}, noClose},
		{"binary", "7.4.1", frame(gws.OpBinary, true, "x"), nil, wire.CloseUnsupported},
		{"binary in fragments", "7.4.1", frame(gws.OpBinary, false, "x"), nil, wire.CloseUnsupported},
		{"unmasked", "5.1", gws.MustCompileFrame(gws.NewTextFrame([]byte(echo("a")))), nil, wire.CloseProtocolError},
		{"unmasked ping", "5.1", gws.MustCompileFrame(gws.NewPingFrame(nil)), nil, wire.CloseProtocolError},
		{"16-bit length for 125", "5.2", cat(rawHeader(0x81, 125, 2), bytes.Repeat([]byte("x"), 125)), nil, wire.CloseProtocolError},
		{"64-bit length for 65535", "5.2", rawHeader(0x81, 65535, 8), nil, wire.CloseProtocolError},
		{"64-bit length with the top bit", "5.2", rawHeader(0x81, 1<<63, 8), nil, wire.CloseProtocolError},
		{"two messages at once", "5.6", text(echo("a"), echo("b")), []answer{echoed("a"), echoed("b")}, noClose},
		{"answers come before the close", "5.5.1", cat(text(echo("a")), rsv(4, text("x"))), []answer{echoed("a")}, wire.CloseProtocolError},
	}
	for name, mask := range map[string][4]byte{"zeros": {}, "ones": {255, 255, 255, 255}, "text": {'{', '}', '"', '0'}} {
		for pad := range 9 { // all of what is left of a word
			corr := strings.Repeat("c", 1+pad)
			send := gws.MustCompileFrame(gws.MaskFrameWith(gws.NewTextFrame([]byte(echo(corr))), mask))
			cases = append(cases, conformanceCase{fmt.Sprintf("mask of %s, %d more bytes", name, pad), "5.3", send, []answer{echoed(corr)}, noClose})
		}
	}
	for _, n := range []int{125, 126, 127, 128, 65535, 65536} {
		cases = append(cases, conformanceCase{fmt.Sprintf("text of %d bytes", n), "5.2", text(echoOf(n)), []answer{echoed("c")}, noClose})
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
		{"empty ping", "5.5.2", frame(gws.OpPing, true, ""), []answer{pong("")}, noClose},
		{"ping with text", "5.5.2", frame(gws.OpPing, true, "hello"), []answer{pong("hello")}, noClose},
		{"ping with bytes that are no text", "5.5.2", frame(gws.OpPing, true, "\x00\xff\xfe"), []answer{pong("\x00\xff\xfe")}, noClose},
		{"ping of 125 bytes", "5.5.2", frame(gws.OpPing, true, long), []answer{pong(long)}, noClose},
		{"ping of 126 bytes", "5.5", frame(gws.OpPing, true, long+"\xfe"), nil, wire.CloseProtocolError},
		{"pong nobody asked for", "5.5.3", frame(gws.OpPong, true, "x"), nil, noClose},
		{"pong, then ping", "5.5.3", cat(frame(gws.OpPong, true, "x"), frame(gws.OpPing, true, "y")), []answer{pong("y")}, noClose},
		{"ten pings", "5.5.2", ten, tenPongs, noClose},
	}
}

func reservedCases() []conformanceCase {
	var cases []conformanceCase
	for bits := byte(1); bits < 8; bits++ {
		for name, f := range map[string][]byte{
			"text": text(echo("a")), "ping": frame(gws.OpPing, true, "x"), "close": closing(1000, ""),
		} {
			cases = append(cases, conformanceCase{fmt.Sprintf("reserved bits %03b in %s", bits, name), "5.2", rsv(bits, f), nil, wire.CloseProtocolError})
		}
	}
	for _, op := range []gws.OpCode{3, 4, 5, 6, 7, 11, 12, 13, 14, 15} {
		cases = append(cases,
			conformanceCase{fmt.Sprintf("reserved opcode %x", op), "5.2", frame(op, true, "x"), nil, wire.CloseProtocolError},
			conformanceCase{fmt.Sprintf("reserved opcode %x after a message", op), "5.2", cat(text(echo("a")), frame(op, true, "")), []answer{echoed("a")}, wire.CloseProtocolError})
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
		{"ping in fragments", "5.5", cat(frame(gws.OpPing, false, "a"), frame(gws.OpContinuation, true, "b")), nil, wire.CloseProtocolError},
		{"pong in fragments", "5.5", cat(frame(gws.OpPong, false, "a"), frame(gws.OpContinuation, true, "b")), nil, wire.CloseProtocolError},
		{"close in fragments", "5.5", frame(gws.OpClose, false, "\x03\xe8"), nil, wire.CloseProtocolError},
		{"two fragments", "5.4", cat(start, rest), []answer{echoed("frag")}, noClose},
		{"a fragment a byte", "5.4", bytewise, []answer{echoed("frag")}, noClose},
		{"empty fragments", "5.4", cat(frame(gws.OpText, false, ""), empty, frame(gws.OpContinuation, false, msg), empty, frame(gws.OpContinuation, true, "")), []answer{echoed("frag")}, noClose},
		{"nothing but empty fragments", "5.4", cat(frame(gws.OpText, false, ""), empty, frame(gws.OpContinuation, true, "")), []answer{echoed("")}, noClose},
		{"ping in the middle", "5.4", cat(start, ping, rest), []answer{pong("mid"), echoed("frag")}, noClose},
		{"pings all over", "5.4", cat(ping, start, ping, ping, rest, ping), []answer{pong("mid"), pong("mid"), pong("mid"), echoed("frag"), pong("mid")}, noClose},
		{"continuation of nothing", "5.4", frame(gws.OpContinuation, true, msg), nil, wire.CloseProtocolError},
		{"continuation of nothing, not final", "5.4", frame(gws.OpContinuation, false, msg), nil, wire.CloseProtocolError},
		{"continuation after the end", "5.4", cat(start, rest, rest), []answer{echoed("frag")}, wire.CloseProtocolError},
		{"text within a message", "5.4", cat(start, text(msg)), nil, wire.CloseProtocolError},
		{"binary within a message", "5.4", cat(start, frame(gws.OpBinary, true, "x")), nil, wire.CloseProtocolError},
		{"close within a message", "5.5.1", cat(start, closing(1000, "")), nil, 1000},
		{"fragments, pings and messages in turn", "5.4", cat(start, ping, rest, text(echo("b")), start, ping, rest),
			[]answer{pong("mid"), echoed("frag"), echoed("b"), pong("mid"), echoed("frag")}, noClose},
		{"reserved bits in a fragment", "5.2", cat(start, rsv(2, frame(gws.OpContinuation, true, msg[9:]))), nil, wire.CloseProtocolError},
		{"unmasked fragment", "5.1", cat(start, gws.MustCompileFrame(gws.NewFrame(gws.OpContinuation, true, []byte(msg[9:])))), nil, wire.CloseProtocolError},
		{"message after a message in fragments", "5.4", cat(start, rest, text(echo("b"))), []answer{echoed("frag"), echoed("b")}, noClose},
	}
}

func utf8Cases() []conformanceCase {
	var cases []conformanceCase
	for _, good := range []string{
		"Hello-\u00b5@\u00df\u00f6\u00e4\u00fc\u00e0\u00e1-UTF-8!!", "\u03ba\u1f79\u03c3\u03bc\u03b5", "\u0080", "\u07ff", "\u0800", "\uffff", "\U00010000", "\U0010ffff", "\ud7ff", "\ue000",
	} {
		msg := echo(good)
		cases = append(cases, conformanceCase{fmt.Sprintf("UTF-8 %q", good), "8.1", text(msg), []answer{echoed(good)}, noClose})
		var split []byte // in the middle of every code point
		for i := range len(msg) {
			op := gws.OpContinuation
			if i == 0 {
				op = gws.OpText
			}
			split = append(split, frame(op, i == len(msg)-1, msg[i:i+1])...)
		}
		cases = append(cases, conformanceCase{fmt.Sprintf("UTF-8 %q cut in code points", good), "8.1", split, []answer{echoed(good)}, noClose})
	}
	for _, bad := range []string{
		"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xed\xa0\x80", "\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xe0\x80\x80", "\xf0\x80\x80\x80",
		"\xed\xa0\x80", "\xed\xbf\xbf", "\xf4\x90\x80\x80", "\xf8\x88\x80\x80\x80", "\xfe", "\xff", "\xc2", "\xe1\xbd", "\xf0\x90\x80",
	} {
		msg := echo(bad)
		half := len(msg) - 3
		cases = append(cases,
			conformanceCase{fmt.Sprintf("not UTF-8 %q", bad), "8.1", text(msg), nil, wire.CloseInvalidUTF8},
			conformanceCase{fmt.Sprintf("not UTF-8 %q in fragments", bad), "8.1",
				cat(frame(gws.OpText, false, msg[:half]), frame(gws.OpContinuation, true, msg[half:])), nil, wire.CloseInvalidUTF8},
			conformanceCase{fmt.Sprintf("not UTF-8 %q as reason", bad), "5.5.1", closing(1000, bad), nil, wire.CloseInvalidUTF8})
	}
	return cases
}

func closeCases() []conformanceCase {
	cases := []conformanceCase{
		{"close without a code", "5.5.1", frame(gws.OpClose, true, ""), nil, 0},
		{"close with a reason", "5.5.1", closing(1000, "bye"), nil, 1000},
		{"close with the longest reason", "5.5.1", closing(1000, strings.Repeat("r", 123)), nil, 1000},
		{"close of 126 bytes", "5.5", frame(gws.OpClose, true, "\x03\xe8"+strings.Repeat("r", 124)), nil, wire.CloseProtocolError},
		{"close of one byte", "5.5.1", frame(gws.OpClose, true, "\x03"), nil, wire.CloseProtocolError},
		{"two closes", "5.5.1", cat(closing(1000, ""), closing(1000, "")), nil, 1000},
		{"message after the close", "5.5.1", cat(closing(1000, ""), text(echo("late"))), nil, 1000},
		{"ping after the close", "5.5.1", cat(closing(1000, ""), frame(gws.OpPing, true, "late")), nil, 1000},
		{"large message before the close, ping after it", "5.5.1", cat(text(echoOf(limit)), closing(1000, ""), frame(gws.OpPing, true, "late")), []answer{echoed("c")}, 1000},
		{"message before the close", "5.5.1", cat(text(echo("a")), closing(1000, "")), []answer{echoed("a")}, 1000},
	}
	for _, code := range []int{1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014, 3000, 3999, 4000, 4999} {
		cases = append(cases, conformanceCase{fmt.Sprintf("close with %d", code), "7.4.2", closing(gws.StatusCode(code), ""), nil, code})
	}
	for _, code := range []int{0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535} {
		cases = append(cases, conformanceCase{fmt.Sprintf("close with %d", code), "7.4.2", closing(gws.StatusCode(code), ""), nil, wire.CloseProtocolError})
	}
	return cases
}

// limit is MaxFrameBytes in the conformance tests.
const limit = 100_000

// spaces returns the first so many fragments of a message, each with so many spaces.
func spaces(count, each int) (all []byte) {
	op := gws.OpText
	for range count {
		all = append(all, frame(op, false, strings.Repeat(" ", each))...)
		op = gws.OpContinuation
	}
	return all
}

func limitCases() []conformanceCase {
	half := frame(gws.OpText, false, strings.Repeat(" ", limit/2))
	many := spaces(maxFragments-1, 0) // all but one
	return []conformanceCase{
		{"longest message", "10.4", text(echoOf(limit)), []answer{echoed("c")}, noClose},
		{"longest message twice, small ones around", "10.4", text(echo("a"), echoOf(limit), echo("b"), echoOf(limit), echo("d")),
			[]answer{echoed("a"), echoed("c"), echoed("b"), echoed("c"), echoed("d")}, noClose},
		{"a byte too long, header alone", "10.4", rawHeader(0x81, limit+1, 8), nil, wire.CloseTooBig},
		{"longest header", "10.4", rawHeader(0x81, 1<<63-1, 8), nil, wire.CloseTooBig},
		{"too long in fragments, last header alone", "10.4", cat(half, rawHeader(0x80, limit/2+1, 2)), nil, wire.CloseTooBig},
		{"longest message in fragments", "10.4", cat(half, frame(gws.OpContinuation, true, echoOf(limit/2))), []answer{echoed("c")}, noClose},
		{"most fragments", "10.4", cat(many, frame(gws.OpContinuation, true, echo("a"))), []answer{echoed("a")}, noClose},
		{"fragments of 64 bytes", "10.4", cat(spaces(maxFragments+500, 64), frame(gws.OpContinuation, true, echo("a"))), []answer{echoed("a")}, noClose},
		{"most fragments of 16 bytes", "10.4", cat(spaces(maxFragments*4/3-1, 16), frame(gws.OpContinuation, true, echo("a"))), []answer{echoed("a")}, noClose},
		{"a fragment of 16 bytes too many", "10.4", cat(spaces(maxFragments*4/3, 16), frame(gws.OpContinuation, false, strings.Repeat(" ", 16))), nil, wire.CloseTooBig},
		{"a fragment too many", "10.4", cat(many, frame(gws.OpContinuation, false, ""), frame(gws.OpContinuation, true, "")), nil, wire.CloseTooBig},
	}
}
