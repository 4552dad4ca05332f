// Package wsframe cuts the bytes of a WebSocket connection into messages and control
// frames, in place. The hub, the client and the load generator read with it; each decides
// for itself which buffer it reads into.
package wsframe

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/gobwas/ws"
)

// Violation is what a peer did that its connection does not survive, with the close code
// that reports it.
type Violation struct {
	Code ws.StatusCode
	Text string
}

func (v *Violation) Error() string { return v.Text }

// PieceBytes is how much a fragment carries, on average, of a message that may have any number of them.
const PieceBytes = 64

// Cutter hands out every complete frame of what was read where it lies; only messages that
// come in fragments are put together elsewhere. Every limit is judged by the header, before
// the payload has come. It is not safe for concurrent use.
type Cutter struct {
	Side         ws.State // of the reader: ws.StateServerSide or ws.StateClientSide
	Limit        int      // bytes of one message
	MaxFragments int      // of one message, empty ones too, and one more for each PieceBytes that came of it; 0: any number

	Buf  []byte // Buf[R:W] is read and not handed out
	R, W int
	Need int  // size of the incomplete frame at R, as far as is known; 0: none has begun
	Part bool // that frame is one of several of a message

	Fragments int    // of the message under way; 0: none is
	message   []byte // what they carried

	src     bytes.Reader // feeds the header reader without a copy
	scratch [ws.MaxHeaderSize]byte
}

// Preload puts bytes that were read elsewhere before all others.
func (c *Cutter) Preload(b []byte) {
	if len(b) > len(c.Buf) {
		c.Buf = make([]byte, len(b))
	}
	c.W = copy(c.Buf, b)
}

// Move makes into the buffer, with what is left at its beginning; it has room for that. What
// Next returned before is invalid then.
func (c *Cutter) Move(into []byte) {
	left := copy(into, c.Buf[c.R:c.W])
	c.Buf, c.R, c.W = into, 0, left
}

// Read reads once to the end of the buffer. It returns an error only where nothing was read:
// an error comes again.
func (c *Cutter) Read(from io.Reader) (n int, err error) {
	n, err = from.Read(c.Buf[c.W:])
	c.W += n
	if n > 0 {
		return n, nil
	}
	return 0, err
}

// Discard forgets what was read and not handed out.
func (c *Cutter) Discard() {
	c.R, c.W, c.Need, c.Part = 0, 0, 0, false
	c.message, c.Fragments = nil, 0
}

// Next returns the next text message or control frame out of what was read, its payload
// unmasked and valid until the next Move or Read; ok is false when nothing complete is left.
// After an error, a *Violation, framing is lost.
func (c *Cutter) Next() (op ws.OpCode, payload []byte, ok bool, err error) {
	for {
		h, size, ok, err := c.header()
		if !ok || err != nil {
			return 0, nil, false, err
		}
		c.Need = size + int(h.Length)
		c.Part = !h.Fin
		if c.W-c.R < c.Need {
			return 0, nil, false, nil
		}
		payload := c.Buf[c.R+size : c.R+c.Need : c.R+c.Need]
		c.R += c.Need
		c.Need, c.Part = 0, false
		if h.Masked {
			ws.Cipher(payload, h.Mask, 0)
		}
		if h.OpCode.IsControl() {
			return h.OpCode, payload, true, nil
		}
		if payload, ok = c.assemble(payload, h.Fin); ok {
			return ws.OpText, payload, true, nil
		}
	}
}

// Message returns what the fragments carried of the message that is under way. It is valid until
// the next Next.
func (c *Cutter) Message() []byte { return c.message }

// assemble adds one data frame and returns the message that it completes.
func (c *Cutter) assemble(payload []byte, fin bool) (message []byte, ok bool) {
	if fin && c.Fragments == 0 {
		return payload, true
	}
	c.message = append(c.message, payload...)
	c.Fragments++
	if !fin {
		return nil, false
	}
	message = c.message
	c.message, c.Fragments = nil, 0
	return message, true
}

// header reads the header at R and judges it; ok is false when it is not all there.
func (c *Cutter) header() (h ws.Header, size int, ok bool, err error) {
	if c.R == c.W {
		c.Need, c.Part = 0, false
		return h, 0, false, nil
	}
	c.src.Reset(c.Buf[c.R:c.W])
	h, err = ws.ReadHeaderBuffer(&c.src, c.scratch[:])
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		c.Need, c.Part = ws.MaxHeaderSize, false
		return h, 0, false, nil
	}
	if err != nil {
		return h, 0, false, &Violation{ws.StatusProtocolError, err.Error()}
	}
	size = c.W - c.R - c.src.Len()
	return h, size, true, c.judge(h, size)
}

func (c *Cutter) judge(h ws.Header, size int) error {
	state := c.Side
	if c.Fragments > 0 {
		state = state.Set(ws.StateFragmented)
	}
	if err := ws.CheckHeader(h, state); err != nil {
		return &Violation{ws.StatusProtocolError, err.Error()}
	}
	switch {
	case size != ws.HeaderSize(h):
		return &Violation{ws.StatusProtocolError, "the length is not in its shortest form"}
	case h.OpCode.IsControl():
		return nil
	case h.OpCode == ws.OpBinary:
		return &Violation{ws.StatusUnsupportedData, "frames are text"}
	case h.Length > int64(c.Limit-len(c.message)):
		return &Violation{ws.StatusMessageTooBig, fmt.Sprintf("a message is longer than %d bytes", c.Limit)}
	case c.MaxFragments > 0 && c.Fragments >= c.MaxFragments+len(c.message)/PieceBytes:
		return &Violation{ws.StatusMessageTooBig, fmt.Sprintf("a message of %d bytes so far has more than %d fragments", len(c.message), c.Fragments)}
	}
	return nil
}
