package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/gobwas/ws"

	"eventhub/wire"
)

const (
	dialTimeout = 10 * time.Second
	readBytes   = 64 << 10
	// maxMessage bounds what the hub may send at once.
	maxMessage = 4 << 20
)

// conn is one WebSocket that has said AUTH. One goroutine reads; any may send.
type conn struct {
	net  net.Conn
	info wire.AuthInfo

	// The reader's own: buf[r:w] is read and not handled.
	buf     []byte
	r, w    int
	need    int // size of the incomplete frame at r, as far as is known
	src     bytes.Reader
	scratch [ws.MaxHeaderSize]byte
	dec     wire.HubDecoder
	frame   wire.HubFrame

	sending sync.Mutex
	spare   []byte // of send
}

// dial connects and says AUTH. The connection ends with ctx.
func dial(ctx context.Context, t *Target) (*conn, error) {
	limited, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	socket, early, _, err := ws.Dial(limited, t.webSocketURL())
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", t.URL, err)
	}
	c := &conn{net: socket, buf: make([]byte, readBytes)}
	if early != nil {
		b, _ := early.Peek(early.Buffered()) // can not fail: they are there
		c.w = copy(c.buf, b)
		ws.PutReader(early)
	}
	stop := context.AfterFunc(limited, func() { socket.Close() })
	err = c.auth(t.Token)
	if !stop() && err == nil {
		err = context.Cause(limited)
	}
	if err != nil {
		socket.Close()
		return nil, fmt.Errorf("AUTH at %s: %w", t.URL, err)
	}
	return c, nil
}

func (c *conn) auth(token string) error {
	if err := c.send(wire.AppendAuth(nil, 0, token, token != "")); err != nil {
		return err
	}
	f, err := c.answer()
	if err == nil {
		c.info = f.Info
	}
	return err
}

// answer waits for the next text frame, which is taken for an answer: its ERR is
// the error.
func (c *conn) answer() (*wire.HubFrame, error) {
	for {
		message, ok, err := c.next()
		if err == nil && !ok {
			err = c.fill()
		}
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		if err := c.dec.Decode(message, &c.frame); err != nil {
			return nil, err
		}
		if c.frame.Err != nil {
			return nil, c.frame.Err
		}
		return &c.frame, nil
	}
}

// read waits for the hub to send something and handles every message that is
// complete then. A message is valid until handle returns.
func (c *conn) read(handle func(message []byte) error) error {
	if err := c.fill(); err != nil {
		return err
	}
	for {
		message, ok, err := c.next()
		if err != nil || !ok {
			return err
		}
		if err := handle(message); err != nil {
			return err
		}
	}
}

// fill reads once. What next returned before is invalid then.
func (c *conn) fill() error {
	into := c.buf
	if c.need > len(into) {
		into = make([]byte, c.need)
	}
	c.w = copy(into, c.buf[c.r:c.w])
	c.buf, c.r = into, 0
	n, err := c.net.Read(c.buf[c.w:])
	c.w += n
	if n > 0 {
		return nil // an error comes again
	}
	return err
}

// next returns the next text message out of what was read, and answers pings on
// the way; ok is false when nothing complete is left.
func (c *conn) next() (message []byte, ok bool, err error) {
	for c.r < c.w {
		c.src.Reset(c.buf[c.r:c.w])
		h, err := ws.ReadHeaderBuffer(&c.src, c.scratch[:])
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			c.need = ws.MaxHeaderSize
			return nil, false, nil
		}
		if err == nil {
			err = ws.CheckHeader(h, ws.StateClientSide)
		}
		if err != nil {
			return nil, false, err
		}
		if !h.Fin || h.OpCode == ws.OpBinary || h.Length > maxMessage {
			return nil, false, fmt.Errorf("the hub sent a frame that no hub sends: opcode %d, fin %t, %d bytes", h.OpCode, h.Fin, h.Length)
		}
		start := c.w - c.src.Len()
		end := start + int(h.Length)
		if end > c.w {
			c.need = end - c.r
			return nil, false, nil
		}
		c.r, c.need = end, 0
		payload := c.buf[start:end:end]
		switch h.OpCode {
		case ws.OpText:
			return payload, true, nil
		case ws.OpClose:
			code, reason := ws.ParseCloseFrameData(payload)
			return nil, false, fmt.Errorf("the hub closed the connection: %d %s", code, reason)
		case ws.OpPing:
			if err := c.write(appendFrame(nil, ws.OpPong, payload)); err != nil {
				return nil, false, err
			}
		}
	}
	c.need = 0
	return nil, false, nil
}

// write sends frames that are made.
func (c *conn) write(frames []byte) error {
	c.sending.Lock()
	defer c.sending.Unlock()
	_, err := c.net.Write(frames)
	return err
}

// send makes a frame of the text and sends it.
func (c *conn) send(text []byte) error {
	c.sending.Lock()
	defer c.sending.Unlock()
	c.spare = appendFrame(c.spare[:0], ws.OpText, text)
	_, err := c.net.Write(c.spare)
	return err
}
