package bench

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/gobwas/ws"

	"eventhub/internal/wsframe"
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

	// The reader's own.
	in    wsframe.Cutter
	dec   wire.HubDecoder
	frame wire.HubFrame

	sending sync.Mutex
	spare   []byte // of send
}

// dial connects and says AUTH. The connection ends with ctx.
func dial(ctx context.Context, t *Target) (*conn, error) {
	limited, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	socket, early, _, err := ws.Dialer{TLSConfig: t.TLS}.Dial(limited, t.webSocketURL())
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", t.URL, err)
	}
	c := &conn{net: socket, in: wsframe.Cutter{Side: ws.StateClientSide, Limit: maxMessage, Buf: make([]byte, readBytes)}}
	if early != nil {
		b, _ := early.Peek(early.Buffered()) // can not fail: they are there
		c.in.Preload(b)
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
	if err := c.send(wire.AppendAuth(nil, 0, token, token != "", "eventhub-bench")); err != nil {
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
	into := c.in.Buf
	if c.in.Need > len(into) {
		into = make([]byte, c.in.Need)
	}
	c.in.Move(into)
	_, err := c.in.Read(c.net)
	return err
}

// next returns the next text message out of what was read, and answers pings on
// the way; ok is false when nothing complete is left.
func (c *conn) next() (message []byte, ok bool, err error) {
	for {
		op, payload, ok, err := c.in.Next()
		if err != nil {
			return nil, false, fmt.Errorf("the hub broke the WebSocket protocol: %w", err)
		}
		if !ok {
			return nil, false, nil
		}
		switch op {
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
