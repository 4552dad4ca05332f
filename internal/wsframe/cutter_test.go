package wsframe

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/gobwas/ws"
)

func compiled(frames ...ws.Frame) []byte {
	var b []byte
	for _, f := range frames {
		b = append(b, ws.MustCompileFrame(f)...)
	}
	return b
}

// TestCutter reads messages in small pieces, as either side: whole, and in fragments with a ping
// between them.
func TestCutter(t *testing.T) {
	for side, mask := range map[ws.State]func(ws.Frame) ws.Frame{
		ws.StateClientSide: func(f ws.Frame) ws.Frame { return f },
		ws.StateServerSide: ws.MaskFrame,
	} {
		long := strings.Repeat("x", 70_000)
		in := bytes.NewReader(compiled(mask(ws.NewTextFrame([]byte(long))), mask(ws.NewFrame(ws.OpText, false, []byte("a"))), mask(ws.NewPingFrame([]byte("p"))),
			mask(ws.NewFrame(ws.OpContinuation, false, nil)), mask(ws.NewFrame(ws.OpContinuation, true, []byte("b"))), mask(ws.NewTextFrame(nil)), mask(ws.NewFrame(ws.OpText, false, []byte("c"))), mask(ws.NewFrame(ws.OpContinuation, true, []byte("d")))))
		c := Cutter{Side: side, Limit: 70_000, MaxFragments: 3, Buf: make([]byte, 1)}
		for _, want := range []string{long, "p", "ab", "", "cd"} {
			for {
				_, payload, ok, err := c.Next()
				if err != nil {
					t.Fatal(err)
				}
				if ok {
					if string(payload) != want {
						t.Errorf("got %.9q of %d bytes; want %.9q", payload, len(payload), want)
					}
					break
				}
				c.Move(make([]byte, c.W-c.R+1+(c.W-c.R)/4)) // a byte at a time, at first
				if _, err := c.Read(in); err != nil {
					t.Fatal(err)
				}
			}
		}
		if c.Need != 0 || c.Fragments != 0 {
			t.Errorf("in the end %d bytes are needed, and %d fragments are there", c.Need, c.Fragments)
		}
	}
}

// TestViolations: the code says what the peer did, as soon as the header is there.
func TestViolations(t *testing.T) {
	part, more := ws.NewFrame(ws.OpText, false, []byte("x")), ws.NewFrame(ws.OpContinuation, false, nil)
	for name, tt := range map[string]struct {
		bytes []byte
		code  ws.StatusCode
	}{
		"masked":              {compiled(ws.MaskFrame(ws.NewTextFrame(nil))), ws.StatusProtocolError},
		"binary":              {compiled(ws.NewBinaryFrame(nil)), ws.StatusUnsupportedData},
		"continuation":        {compiled(more), ws.StatusProtocolError},
		"text in fragments":   {compiled(part, part), ws.StatusProtocolError},
		"length in long form": {[]byte{0x81, 126, 0, 1, 'x'}, ws.StatusProtocolError},
		"too long":            {compiled(ws.NewTextFrame(make([]byte, 11)))[:2], ws.StatusMessageTooBig},
		"too long together":   {compiled(part, ws.NewFrame(ws.OpContinuation, true, make([]byte, 10))), ws.StatusMessageTooBig},
		"too many fragments":  {compiled(part, more, more, more), ws.StatusMessageTooBig},
		"long ping":           {[]byte{0x89, 126, 0, 126}, ws.StatusProtocolError},
	} {
		c := Cutter{Side: ws.StateClientSide, Limit: 10, MaxFragments: 3}
		c.Preload(tt.bytes)
		_, _, ok, err := c.Next()
		var v *Violation
		if ok || !errors.As(err, &v) || v.Code != tt.code {
			t.Errorf("%s: %v, %v; want code %d", name, ok, err, tt.code)
		}
	}
}
