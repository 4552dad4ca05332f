package client

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	gws "github.com/gobwas/ws"

	"eventhub/wire"
)

const (
	handshakeBytes = 4 << 10
	readBytes      = 64 << 10
	// keptReadBytes holds the largest frame of several events and what comes with
	// it. A buffer of that size is kept once there was such a frame.
	keptReadBytes = wire.MaxEventsBytes + readBytes
	// maxMessage bounds what a hub may send at once: an event with all that may
	// belong to it, escaped, is well below.
	maxMessage = 4 << 20
)

// frameReader cuts what the hub sends into messages and control frames. It reads
// as much at once as its buffer takes and hands frames out in place; messages in
// fragments, which intermediaries may make, are put together elsewhere. A buffer
// that grew for one large event is given up behind it.
type frameReader struct {
	base int    // what buf has when no frame needs more
	buf  []byte // bytes r to w are read and not handed out
	r, w int
	need int // size of the incomplete frame at r, as far as is known

	fragmented bool
	message    []byte // of the fragments so far

	src     bytes.Reader // feeds the header reader without a copy
	scratch [gws.MaxHeaderSize]byte
}

func newFrameReader() frameReader {
	return frameReader{base: handshakeBytes, buf: make([]byte, handshakeBytes)}
}

// grow takes the buffer of a connection that is in use.
func (f *frameReader) grow() { f.base = readBytes }

// preload takes over what was read together with the handshake.
func (f *frameReader) preload(early *bufio.Reader) {
	b, _ := early.Peek(early.Buffered()) // can not fail: they are there
	f.buf = append(f.buf[:0], b...)
	f.w = len(b)
	f.buf = f.buf[:cap(f.buf)]
	gws.PutReader(early)
}

// fill reads once. What next returned before is invalid then.
func (f *frameReader) fill(conn io.Reader) error {
	if f.need > f.base && f.need <= keptReadBytes {
		f.base = keptReadBytes
	}
	into := f.buf
	switch {
	case f.need > len(into):
		into = make([]byte, f.need)
	case len(into) != f.base && max(f.need, f.w-f.r) < f.base:
		into = make([]byte, f.base)
	}
	left := copy(into, f.buf[f.r:f.w])
	f.buf, f.r, f.w = into, 0, left
	n, err := conn.Read(f.buf[f.w:])
	f.w += n
	if n > 0 {
		return nil // an error comes again
	}
	return err
}

// next returns the next message or control frame out of what was read; ok is
// false when nothing complete is left.
func (f *frameReader) next() (op gws.OpCode, payload []byte, ok bool, err error) {
	for {
		h, size, ok, err := f.header()
		if !ok || err != nil {
			return 0, nil, false, err
		}
		f.need = size + int(h.Length)
		if f.w-f.r < f.need {
			return 0, nil, false, nil
		}
		payload = f.buf[f.r+size : f.r+f.need : f.r+f.need]
		f.r += f.need
		f.need = 0
		if h.OpCode.IsControl() {
			return h.OpCode, payload, true, nil
		}
		if h.Fin && !f.fragmented {
			return gws.OpText, payload, true, nil
		}
		f.message = append(f.message, payload...)
		f.fragmented = !h.Fin
		if h.Fin {
			message := f.message
			f.message = nil
			return gws.OpText, message, true, nil
		}
	}
}

// header reads the header at r and judges it; ok is false when it is not all
// there.
func (f *frameReader) header() (h gws.Header, size int, ok bool, err error) {
	if f.r == f.w {
		f.need = 0
		return h, 0, false, nil
	}
	f.src.Reset(f.buf[f.r:f.w])
	h, err = gws.ReadHeaderBuffer(&f.src, f.scratch[:])
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		f.need = gws.MaxHeaderSize
		return h, 0, false, nil
	}
	if err != nil {
		return h, 0, false, err
	}
	state := gws.StateClientSide
	if f.fragmented {
		state = state.Set(gws.StateFragmented)
	}
	if err := gws.CheckHeader(h, state); err != nil {
		return h, 0, false, err
	}
	if h.OpCode == gws.OpBinary {
		return h, 0, false, errors.New("the hub sent a binary message; frames are text")
	}
	if h.Length > int64(maxMessage-len(f.message)) {
		return h, 0, false, fmt.Errorf("the hub sent a message of more than %d bytes", maxMessage)
	}
	return h, f.w - f.r - f.src.Len(), true, nil
}
