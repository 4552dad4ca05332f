package client

import (
	"bufio"
	"fmt"
	"io"

	gws "github.com/gobwas/ws"

	"eventhub/internal/wsframe"
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

// frameReader cuts what the hub sends into messages and control frames. It reads as much
// at once as its buffer takes; a buffer that grew for one large event is given up after it.
type frameReader struct {
	wsframe.Cutter
	base int // what the buffer has when no frame needs more
}

func newFrameReader() frameReader {
	return frameReader{wsframe.Cutter{Side: gws.StateClientSide, Limit: maxMessage, Buf: make([]byte, handshakeBytes)}, handshakeBytes}
}

// grow takes the buffer of a connection that is in use.
func (f *frameReader) grow() { f.base = readBytes }

// preload takes over what was read together with the handshake.
func (f *frameReader) preload(early *bufio.Reader) {
	b, _ := early.Peek(early.Buffered()) // can not fail: they are there
	f.Preload(b)
	gws.PutReader(early)
}

// fill reads once. What next returned before is invalid then.
func (f *frameReader) fill(conn io.Reader) error {
	if f.Need > f.base && f.Need <= keptReadBytes {
		f.base = keptReadBytes
	}
	into := f.Buf
	switch {
	case f.Need > len(into):
		into = make([]byte, f.Need)
	case len(into) != f.base && max(f.Need, f.W-f.R) < f.base:
		into = make([]byte, f.base)
	}
	f.Move(into)
	_, err := f.Read(conn)
	return err
}

// next returns the next message or control frame out of what was read; ok is
// false when nothing complete is left.
func (f *frameReader) next() (op gws.OpCode, payload []byte, ok bool, err error) {
	op, payload, ok, err = f.Next()
	if err != nil {
		err = fmt.Errorf("the hub broke the WebSocket protocol: %w", err)
	}
	return op, payload, ok, err
}
