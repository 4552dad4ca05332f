package ws

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"os"
	"slices"
	"sync"
	"time"

	gws "github.com/gobwas/ws"

	"eventhub"
	"eventhub/wire"
)

const (
	// chunkBytes is what a fresh chunk has room for.
	chunkBytes = 4 << 10
	// keptBytes is the most that a chunk keeps for its next use: it may be the
	// next one for a peer that takes nothing, and should not weigh much then.
	keptBytes = 64 << 10
	// largeBytes is the room that a chunk borrows when it outgrows that.
	largeBytes = 1 << 20
)

// chunk is a run of frames on its way to a peer. Idle connections have none.
type chunk struct {
	b       []byte
	small   []byte            // what b was before large
	large   *[largeBytes]byte // nil unless borrowed
	scratch [gws.MaxHeaderSize]byte
}

var (
	chunks = sync.Pool{New: func() any { return &chunk{b: make([]byte, 0, chunkBytes)} }}
	larges = sync.Pool{New: func() any { return new([largeBytes]byte) }}
)

// reserve prepares for n more bytes. It is for those who append much: the rest
// of the growing is append's.
func (c *chunk) reserve(n int) {
	if n += len(c.b); n > cap(c.b) && n > keptBytes && n <= largeBytes {
		c.large = larges.Get().(*[largeBytes]byte)
		c.small, c.b = c.b, append(c.large[:0], c.b...)
	}
}

// recycle gives the chunk and what it borrowed back.
func (c *chunk) recycle() {
	if c.large != nil {
		larges.Put(c.large)
		c.b, c.small, c.large = c.small, nil, nil
	}
	if cap(c.b) <= keptBytes {
		c.b = c.b[:0]
		chunks.Put(c)
	}
}

// Write appends; it is there for the header writer.
func (c *chunk) Write(p []byte) (int, error) {
	c.b = append(c.b, p...)
	return len(p), nil
}

// header begins a frame whose payload of n bytes is appended next.
func (c *chunk) header(op gws.OpCode, n int) {
	h := gws.Header{Fin: true, OpCode: op, Length: int64(n)}
	_ = gws.WriteHeaderBuffer(c, h, c.scratch[:]) // fails for negative lengths only
}

// begin and end enclose the appending of a text frame's payload whose length
// is not known before.
func (c *chunk) begin() (at int) {
	at = len(c.b)
	c.b = append(c.b, c.scratch[:]...) // room for any header
	return at
}

func (c *chunk) end(at int) {
	payload := c.b[at+gws.MaxHeaderSize:]
	c.b = c.b[:at]
	c.header(gws.OpText, len(payload))
	c.b = append(c.b, payload...) // moves down: the header is never longer than its room
}

// control appends a control frame.
func (c *chunk) control(op gws.OpCode, payload []byte) {
	c.header(op, len(payload))
	c.b = append(c.b, payload...)
}

// payloads yields what is in each of a run of frames.
func payloads(b []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for len(b) > 0 {
			h, err := gws.ReadHeader(bytes.NewReader(b))
			if err != nil {
				return
			}
			b = b[gws.HeaderSize(h):]
			if !yield(b[:h.Length]) {
				return
			}
			b = b[h.Length:]
		}
	}
}

// frameEnd returns where the frame ends that byte n of a run of frames belongs
// to, or n where one begins there.
func frameEnd(b []byte, n int) int {
	at := 0
	for at < n {
		h, err := gws.ReadHeader(bytes.NewReader(b[at:]))
		if err != nil {
			return len(b)
		}
		at += gws.HeaderSize(h) + int(h.Length)
	}
	return at
}

// outbound is what waits to be sent to a peer, and with it everything that the
// session's mutex guards about the end of the conversation.
//
// Whoever appends kicks, the reader once for all that it says in answer to one
// read. A kick starts the flush if none is under way; the flush takes the whole
// buffer, writes it in one system call, and goes on until nothing is left. So a
// connection without anything to send has neither a buffer nor a goroutine for
// it, and while a write waits for the peer, everything else that is said
// gathers behind it.
//
// Invariant: a subscription in starved was refused room while something was
// queued. Therefore a flush is under way or will be kicked by its refusal, and
// that flush tells it when there is room.
type outbound struct {
	buf      *chunk // nil when empty
	lost     *chunk // what buf was when the connection was lost
	sending  int    // bytes that are being written
	flushing bool
	starved  []*subscription

	unanswered   int // events that were taken to be published, and not answered
	waiting      int // publishes that wait for groups, which are not among those
	uncommitted  int // of them, that are not known to be in the log
	waitingBytes int // of their frames
	awaited      int // acks that they wait for

	received  int64                    // bytes, as of the last read that was handled
	sent      int64                    // bytes
	delivered int64                    // events
	errors    map[eventhub.Code]uint64 // answers; nil when there was none

	// The end. Once closing is set nothing is appended any more.
	closing   bool
	ending    *ending            // closing follows when all is answered; nil while it goes on
	waits     context.Context    // of publishes that wait for groups, nil before the first
	stopWaits context.CancelFunc // ends it
	stopped   bool               // closing because the hub stops
	code      gws.StatusCode     // of the close frame that was sent; 0: none, or an empty one
	why       string
	closeBy   time.Time
}

func (o *outbound) countError(code eventhub.Code) {
	if o.errors == nil {
		o.errors = make(map[eventhub.Code]uint64)
	}
	o.errors[code]++
}

// idle reports whether everything that was taken to be published is answered.
func (o *outbound) idle() bool { return o.unanswered == 0 && o.waiting == 0 }

func (o *outbound) queued() int {
	if o.buf == nil {
		return o.sending
	}
	return o.sending + len(o.buf.b)
}

// reply returns where to append, or nil when the peer is not to be told
// anything any more. s.mu is held.
func (s *session) reply() *chunk {
	o := &s.out
	if o.closing {
		return nil
	}
	if o.buf == nil {
		o.buf = chunks.Get().(*chunk)
	}
	return o.buf
}

// kick has what is queued sent. s.mu is held.
func (s *session) kick() {
	if s.out.buf != nil && !s.out.flushing {
		s.out.flushing = true
		go s.flush()
	}
}

// flush sends until nothing is left.
func (s *session) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := &s.out
	for o.buf != nil {
		c := o.buf
		o.buf, o.sending = nil, len(c.b)
		s.armWrite()
		s.mu.Unlock()
		n, err := s.write(c.b)
		s.mu.Lock()
		o.sending = 0
		o.sent += int64(n)
		if err != nil {
			s.writeFailed(c.b, n, err)
			break
		}
		c.recycle()
		s.changed.Broadcast()
		if hungry := s.takeStarved(); len(hungry) > 0 {
			s.mu.Unlock()
			for _, sub := range hungry {
				sub.handle.Ready()
			}
			s.mu.Lock()
		}
	}
	if o.closing {
		halfClose(s.conn)
	}
	o.flushing = false
	s.changed.Broadcast()
}

// drop gives up what waits to be sent. s.mu is held, and the session sealed:
// nothing is appended any more.
func (o *outbound) drop() {
	if o.buf != nil {
		o.buf, o.lost = nil, o.buf
	}
}

// unsent counts the deliveries to each of subs that no write has taken yet. They
// stand in the buffer in the order in which they were made, so of each
// subscription they are the latest ones. s.mu is held.
func (o *outbound) unsent(subs []*subscription) []int {
	counts := make([]int, len(subs))
	for _, c := range []*chunk{o.lost, o.buf} {
		if c == nil {
			continue
		}
		for payload := range payloads(c.b) {
			for i, u := range subs {
				if n := u.frame.Count(payload); n > 0 {
					counts[i] += n
					break
				}
			}
		}
	}
	return counts
}

// takeStarved returns the subscriptions to be told that there is room. There is
// when half of the buffer is free: they should not come for one event each.
func (s *session) takeStarved() []*subscription {
	if s.out.queued() > s.gw.cfg.OutboundBytes/2 {
		return nil
	}
	hungry := s.out.starved
	s.out.starved = nil
	for _, sub := range hungry {
		sub.starved = false
	}
	return slices.DeleteFunc(hungry, func(sub *subscription) bool { return sub.state != subscribed })
}

// armWrite gives the peer WriteWait to take something, or what is left until the
// end. It reports whether there is an end. s.mu is held.
func (s *session) armWrite() (closing bool) {
	if !s.out.closing {
		_ = s.conn.SetWriteDeadline(time.Now().Add(s.gw.cfg.WriteWait)) // a dead connection shows in the write
	}
	return s.out.closing
}

// write sends b, in one call where the peer keeps up. os.ErrDeadlineExceeded
// means that the peer took nothing at all for WriteWait.
func (s *session) write(b []byte) (n int, err error) {
	for {
		m, err := s.conn.Write(b[n:])
		n += m
		if err == nil || m == 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		s.mu.Lock()
		closing := s.armWrite()
		s.mu.Unlock()
		if closing {
			return n, err
		}
	}
}

// writeFailed ends the session whose peer took only n bytes of the run of
// frames b. s.mu is held, and released meanwhile.
func (s *session) writeFailed(b []byte, n int, err error) {
	o := &s.out
	slow := errors.Is(err, os.ErrDeadlineExceeded)
	if !slow || o.closing {
		s.seal(0, "write: "+err.Error())
		o.drop()
		return
	}
	// What was begun must be completed for the close frame to be understood.
	last := &chunk{b: b[n:frameEnd(b, n):frameEnd(b, n)]}
	s.seal(wire.CloseTryAgain, "The client reads too slowly.")
	last.control(gws.OpClose, gws.NewCloseFrameBody(o.code, o.why))
	o.drop()
	s.mu.Unlock()
	n, _ = s.conn.Write(last.b) // the best that can be done
	s.mu.Lock()
	o.sent += int64(n)
}

// awaitRoom sends what the reader had to say and waits until the peer has taken
// enough to be read again. It reports whether the session goes on.
func (s *session) awaitRoom() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out.received = s.in.received
	s.kick()
	for s.out.queued() > s.gw.cfg.OutboundBytes && !s.out.closing {
		s.changed.Wait()
	}
	return !s.out.closing
}

// halfClose tells the peer's kernel that nothing follows, so that a peer which
// got the close frame sees the end at once.
func halfClose(conn any) {
	if c, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = c.CloseWrite() // the whole is closed soon
	}
}
