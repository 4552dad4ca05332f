package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	gws "github.com/gobwas/ws"

	"eventhub"
	"eventhub/wire"
)

const (
	dialTimeout = 10 * time.Second // for one hub: connect, upgrade, AUTH
	writeWait   = 10 * time.Second // the hub takes no writeBytes for so long: lost
	writeBytes  = 256 << 10
	// keptBytes is the largest outbound buffer that is kept for later.
	keptBytes = 1 << 20
)

// conn is one WebSocket, from the handshake to its loss.
type conn struct {
	net  net.Conn
	url  string
	info wire.AuthInfo
	// token is what AUTH has presented last; the renewing goroutine's own once it runs.
	token string
	gone  chan struct{} // closed when the connection is lost
	// shown is the token again, guarded by Client.mu.
	shown    string
	hasToken bool

	// The reader's own.
	in       frameReader
	dec      wire.HubDecoder
	frame    wire.HubFrame
	answers  []answered          // of the read under way
	receipts []eventhub.Receipt  // that they point to
	staleAt  []int               // likewise
	sub      *subscription       // whose deliveries batch holds
	batch    []eventhub.Delivery // of the read under way
	over     []*exchange         // emptied by every read

	writing sync.WaitGroup
	// Guarded by Client.mu.
	wake    sync.Cond // something is in out, or ended
	out     outbound
	spare   []byte    // the buffer that was written last
	acking  []*keeper // whose acks have gathered
	scratch []byte    // of a frame of theirs
	ended   bool
	failure error // why this side gave the connection up
}

// outbound is a run of frames.
type outbound struct {
	b       []byte
	scratch [gws.MaxHeaderSize]byte
}

// Write appends; it is there for the header writer.
func (o *outbound) Write(p []byte) (int, error) {
	o.b = append(o.b, p...)
	return len(p), nil
}

// append queues one masked frame. Client.mu is held.
func (n *conn) append(op gws.OpCode, payload []byte) {
	h := gws.Header{Fin: true, OpCode: op, Masked: true, Length: int64(len(payload))}
	mask := rand.Uint32()
	h.Mask = [4]byte{byte(mask), byte(mask >> 8), byte(mask >> 16), byte(mask >> 24)}
	if len(n.out.b) == 0 {
		n.wake.Signal()
	}
	_ = gws.WriteHeaderBuffer(&n.out, h, n.out.scratch[:]) // fails for negative lengths only
	at := len(n.out.b)
	n.out.b = append(n.out.b, payload...)
	gws.Cipher(n.out.b[at:], h.Mask, 0)
}

// fail gives the connection up; the reader wakes and reports why. Client.mu is
// held.
func (n *conn) fail(why error) {
	if n.failure == nil {
		n.failure = why
	}
	n.net.Close()
}

// write is the writer of one connection: it sends all that has gathered, in one
// call, until the connection has ended.
//
// Once woken it lets everybody else run who can before it sends. The answers of
// one read wake many publishers at once, and the first of them wakes the writer; the
// scheduler would run it next, and every frame would go out alone. A client with
// nothing else to do loses well below a microsecond.
func (c *Client) write(n *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		for len(n.out.b) == 0 && len(n.acking) == 0 && !n.ended {
			n.wake.Wait()
		}
		if n.ended {
			return
		}
		c.mu.Unlock()
		runtime.Gosched()
		c.mu.Lock()
		n.appendAcks()
		b := n.out.b
		n.out.b = n.spare[:0]
		c.mu.Unlock()
		err := n.send(b)
		c.mu.Lock()
		if err != nil {
			n.fail(fmt.Errorf("write: %w", err))
			return
		}
		if n.spare = b; cap(b) > keptBytes {
			n.spare = nil
		}
	}
}

// send writes b, in one call unless it is long: what must go over in time is a
// part that any line can carry.
func (n *conn) send(b []byte) error {
	for len(b) > 0 {
		_ = n.net.SetWriteDeadline(time.Now().Add(writeWait)) // a dead connection shows in the write
		sent, err := n.net.Write(b[:min(len(b), writeBytes)])
		if err != nil {
			return err
		}
		b = b[sent:]
	}
	return nil
}

// connect tries every hub once and puts the one that took the client first. A
// denial counts more than a hub that has too many clients for now, and that more than
// one that can not be reached.
func (c *Client) connect(ctx context.Context) (*conn, error) {
	var denied, limited error
	failures := []error{ErrUnreachable}
	for i, url := range c.cfg.urls {
		n, err := c.dial(ctx, url)
		if err == nil {
			copy(c.cfg.urls[1:i+1], c.cfg.urls[:i])
			c.cfg.urls[0] = url
			return n, nil
		}
		if isDenial(err) && denied == nil {
			denied = fmt.Errorf("client: %s: %w", url, err)
		}
		if _, again := pauseAfter(err); again && limited == nil {
			limited = fmt.Errorf("client: %s: %w", url, err)
		}
		failures = append(failures, fmt.Errorf("%s: %w", url, err))
	}
	if denied != nil {
		return nil, denied
	}
	if limited != nil {
		return nil, limited
	}
	return nil, errors.Join(failures...)
}

// dial connects to one hub and says AUTH.
func (c *Client) dial(ctx context.Context, url string) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	token, given, err := c.cfg.token(ctx)
	if err != nil {
		return nil, fmt.Errorf("token: %w", err)
	}
	var refusal *eventhub.Error
	dialer := gws.Dialer{TLSConfig: c.cfg.tls, NetDial: c.cfg.netDial,
		OnStatusError: func(_ int, _ []byte, answer io.Reader) { refusal = readRefusal(answer) }}
	netConn, early, _, err := dialer.Dial(ctx, url)
	if err != nil {
		return nil, handshakeError(err, refusal)
	}
	n := &conn{net: netConn, url: url, token: token, shown: token, hasToken: given, gone: make(chan struct{}), in: newFrameReader()}
	n.wake.L = &c.mu
	if early != nil {
		n.in.preload(early)
	}
	stop := context.AfterFunc(ctx, func() { netConn.Close() })
	err = n.auth(token, given, c.cfg.name, c.producerID())
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		netConn.Close()
		return nil, err
	}
	return n, nil
}

// auth says AUTH, with a producer where its id is not empty. A hub that has none for the client
// is asked without.
func (n *conn) auth(token string, given bool, name, producer string) error {
	frame := wire.AppendAuth(nil, 0, token, given, name)
	if producer == "" {
		return n.say(frame)
	}
	err := n.say(wire.WithProducer(slices.Clone(frame), wire.AuthProducer{ID: producer}))
	switch eventhub.ErrorCode(err) {
	case eventhub.CodeOverloaded, eventhub.CodeUnsupportedOp, eventhub.CodeBadRequest:
		return n.say(frame)
	}
	return err
}

// say says AUTH and waits for the answer, the first thing that a hub sends.
func (n *conn) say(auth []byte) error {
	n.append(gws.OpText, auth)
	if _, err := n.net.Write(n.out.b); err != nil {
		return err
	}
	n.out.b = nil
	for {
		op, message, ok, err := n.in.next()
		switch {
		case err != nil:
			return err
		case !ok:
			if err := n.in.fill(n.net); err != nil {
				return err
			}
		case op == gws.OpClose:
			return closeOf(message)
		case op == gws.OpText:
			if err := n.dec.Decode(message, &n.frame); err != nil {
				return fmt.Errorf("the answer to AUTH: %w", err)
			}
			if n.frame.Op != wire.OpOK {
				return authRefusal(&n.frame)
			}
			n.info = n.frame.Info
			return checkProtocol(&n.info)
		}
	}
}

func checkProtocol(hub *wire.AuthInfo) error {
	if hub.Protocol == wire.ProtocolVersion {
		return nil
	}
	spoken := strconv.Itoa(hub.Protocol)
	if hub.Protocol == 0 {
		spoken = "none that it names"
	}
	return fmt.Errorf("%w: the hub (%s) speaks %s, this client %d", ErrProtocol, strings.TrimSpace(hub.Hub+" "+hub.Version), spoken, wire.ProtocolVersion)
}

func authRefusal(f *wire.HubFrame) error {
	if f.Err == nil {
		return fmt.Errorf("%s came instead of the answer to AUTH", f.Op)
	}
	return f.Err
}

func closeOf(payload []byte) error {
	code, reason := gws.ParseCloseFrameData(payload)
	return &closedError{code, reason}
}

// serve reads until the connection is lost and returns why.
func (c *Client) serve(n *conn) error {
	n.in.grow()
	err := c.handleRead(n)
	for err == nil {
		if err = c.read(n); err == nil {
			err = c.handleRead(n)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if n.failure != nil {
		return n.failure
	}
	return err
}

// read waits for the hub to send something and keeps the connection alive: where
// it was silent for pingEvery it must answer a ping within pongWait. The
// deadline of the read is all the clock there is.
func (c *Client) read(n *conn) error {
	for pinged := false; ; pinged = true {
		wait := c.cfg.pingEvery
		if pinged {
			wait = c.cfg.pongWait
		}
		c.mu.Lock()
		if c.phase != closed { // then the deadline is that of the goodbye
			_ = n.net.SetReadDeadline(time.Now().Add(wait)) // a dead connection shows in the read
		}
		c.mu.Unlock()
		err := n.in.fill(n.net)
		if err == nil || pinged || !errors.Is(err, os.ErrDeadlineExceeded) || c.ctx.Err() != nil {
			return err
		}
		c.mu.Lock()
		n.append(gws.OpPing, nil)
		c.mu.Unlock()
	}
}

// handleRead handles every complete frame of what was read: deliveries of a
// subscription in one batch, answers all at once after them.
func (c *Client) handleRead(n *conn) error {
	for {
		op, message, ok, err := n.in.next()
		if err == nil && ok && op == gws.OpText {
			err = c.handle(n, message)
		}
		switch {
		case err != nil:
			c.flush(n)
			return err
		case !ok:
			c.flush(n)
			return nil
		case op == gws.OpPing:
			c.mu.Lock()
			n.append(gws.OpPong, message)
			c.mu.Unlock()
		case op == gws.OpClose:
			c.flush(n)
			return closeOf(message)
		}
	}
}

// handle deals with one frame of the hub.
func (c *Client) handle(n *conn, message []byte) error {
	f := &n.frame
	if err := n.dec.Decode(message, f); eventhub.ErrorCode(err) == eventhub.CodeUnsupportedOp {
		return nil // of a newer hub: it answers nothing that this client has asked
	} else if err != nil {
		return fmt.Errorf("a frame of the hub: %w", err)
	}
	switch f.Op {
	case wire.OpEvent:
		if c.find(n, f) {
			n.batch = append(n.batch, f.Delivery)
		}
		return nil
	case wire.OpState:
		if c.find(n, f) {
			n.batch = append(n.batch, f.Delivery)
		}
		return nil
	case wire.OpEvents:
		if c.find(n, f) {
			n.batch = append(n.batch, f.Deliveries...)
		}
		return nil
	}
	if len(f.Ended) > 0 {
		c.groupBegins(f)
	}
	if f.Known != "" || len(f.Gaps) > 0 {
		c.flushDeliveries(n) // of what was before
		c.tailBegins(f)
	}
	if corr, ok := f.CorrNumber(); ok {
		n.note(corr, f, c.numbers.on.Load())
		return nil
	}
	if f.Op == wire.OpErr {
		c.flush(n) // what was said before comes first
		c.complaint(f.Err)
	}
	return nil
}

// note keeps the answer that a frame is until all of the read are applied. ids says that the ids
// of events are the hub's.
func (n *conn) note(corr uint64, f *wire.HubFrame, ids bool) {
	a := answered{corr: corr, stale: f.Stale}
	a.receipt = eventhub.Receipt{Offset: f.Offset, Duplicate: f.Duplicate}
	if ids {
		a.receipt.ID = string(f.ID)
	}
	if f.DeliverAt != 0 {
		a.receipt.DeliverAt = time.UnixMilli(f.DeliverAt)
	}
	if f.Err != nil {
		a.err = f.Err
	}
	if f.Info.Producer.ID != "" {
		p := f.Info.Producer
		a.producer = &p
	}
	if at := len(n.receipts); f.Receipts != nil {
		n.receipts = append(n.receipts, f.Receipts...)
		a.receipts = n.receipts[at:]
	}
	if at := len(n.staleAt); f.StaleAt != nil {
		n.staleAt = append(n.staleAt, f.StaleAt...)
		a.staleAt = n.staleAt[at:]
	}
	n.answers = append(n.answers, a)
}

// find makes n.sub the subscription that a frame with deliveries is about, and
// reports false where it was left meanwhile.
func (c *Client) find(n *conn, f *wire.HubFrame) bool {
	if s := n.sub; s == nil || s.opts.Topic != string(f.Topic) || s.opts.Group != string(f.Group) {
		c.flushDeliveries(n)
		c.mu.Lock()
		n.sub = c.subs[subKey{string(f.Topic), string(f.Group)}]
		c.mu.Unlock()
	}
	return n.sub != nil
}

func (c *Client) flush(n *conn) {
	c.flushDeliveries(n)
	n.sub = nil
	c.applyAnswers(n)
}

func (c *Client) flushDeliveries(n *conn) {
	if len(n.batch) > 0 {
		n.sub.deliver(n.batch)
		clear(n.batch)
		n.batch = n.batch[:0]
	}
}
