package ws

import (
	"bytes"
	"context"
	"errors"
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
	// mediumBytes and largeBytes are the rooms that a chunk borrows when it outgrows that. A peer that
	// takes nothing may have two chunks: what is being sent should not hold the room of what waits.
	mediumBytes = 256 << 10
	largeBytes  = 1 << 20
)

// chunk is a run of frames on its way to a peer. Idle connections have none.
type chunk struct {
	b       []byte
	small   []byte // what b was before it was borrowed
	lent    *room  // nil unless b is
	scratch [gws.MaxHeaderSize]byte

	to       []addressee // whose deliveries are in it, of those who want to know when they are sent
	reported int         // up to where, the end of a frame, they know
}

// addressee is a subscription with deliveries in a chunk.
type addressee struct {
	sub   *subscription
	n     int // deliveries that it was not notified of yet
	fresh int // of them, those that it is to be notified of now
}

// note adds n deliveries to u.
func (c *chunk) note(u *subscription, n int) {
	for i := len(c.to) - 1; i >= 0; i-- {
		if c.to[i].sub == u {
			c.to[i].n += n
			return
		}
	}
	c.to = append(c.to, addressee{sub: u, n: n})
}

// markSent finds out which deliveries are sent with the first n bytes.
func (c *chunk) markSent(n int) {
	for i := range c.to {
		c.to[i].fresh = 0
	}
	if n == len(c.b) {
		for i := range c.to {
			c.to[i].fresh = c.to[i].n
		}
		c.reported = n
		return
	}
	for c.reported < n {
		size, header := frameSize(c.b[c.reported:])
		if c.reported+size > n {
			return
		}
		c.markFrame(c.b[c.reported+header : c.reported+size])
		c.reported += size
	}
}

// markFrame counts the deliveries of a frame with this payload. Of two subscriptions by
// one name those of the first come first.
func (c *chunk) markFrame(payload []byte) {
	for i := range c.to {
		if a := &c.to[i]; a.fresh < a.n {
			if n := a.sub.frame.Count(payload); n > 0 {
				a.fresh += n
				return
			}
		}
	}
}

var (
	chunks = sync.Pool{New: func() any { return &chunk{b: make([]byte, 0, chunkBytes)} }}
	rooms  = [...]sync.Pool{{New: newRoom(mediumBytes)}, {New: newRoom(largeBytes)}}
)

// room is what a chunk borrows.
type room struct {
	b    []byte
	from *sync.Pool // set when it is lent
}

func newRoom(n int) func() any { return func() any { return &room{b: make([]byte, n)} } }

// reserve prepares for n more bytes. It is for those who append much: the rest
// of the growing is append's.
func (c *chunk) reserve(n int) {
	if n += len(c.b); n <= cap(c.b) || n <= keptBytes || n > largeBytes {
		return
	}
	from := &rooms[0]
	if n > mediumBytes {
		from = &rooms[1]
	}
	lent := from.Get().(*room)
	lent.from = from
	held := c.b
	c.b = append(lent.b[:0], held...)
	if c.lent == nil {
		c.small = held
	} else {
		c.lent.from.Put(c.lent)
	}
	c.lent = lent
}

// recycle gives the chunk and what it borrowed back.
func (c *chunk) recycle() {
	clear(c.to)
	c.to, c.reported = c.to[:0], 0
	if c.lent != nil {
		c.lent.from.Put(c.lent)
		c.b, c.small, c.lent = c.small, nil, nil
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

// frameSize returns the size of the first of a run of frames, and of it that of the
// header.
func frameSize(b []byte) (size, header int) {
	h, err := gws.ReadHeader(bytes.NewReader(b))
	if err != nil {
		return len(b), len(b) // never: they are ours
	}
	header = gws.HeaderSize(h)
	return header + int(h.Length), header
}

// frameEnd returns where the frame ends that byte n of a run of frames belongs
// to, or n where one begins there. One ends at byte at.
func frameEnd(b []byte, at, n int) int {
	for at < n {
		size, _ := frameSize(b[at:])
		at += size
	}
	return at
}

// outbound is what waits to be sent to a peer, and with it everything that the
// session's mutex guards about the end of the conversation.
//
// Whoever appends kicks, the reader once for all that it says in answer to one
// read. A kick sends a few bytes itself (inline.go), or starts the flush if none is under way; the flush takes the whole
// buffer, writes it in one system call, and goes on until nothing is left. When the
// socket has taken it all it notifies the subscriptions of what was sent; a peer that keeps a
// write waiting has them notified in between. So a
// connection without anything to send has neither a buffer nor a goroutine for
// it, and while a write waits for the peer, everything else that is said
// gathers after it.
//
// Invariant: a subscription in starved was refused room while something was
// queued. Therefore a flush is under way or will be kicked by its refusal, and
// that flush notifies it when there is room.
type outbound struct {
	buf      *chunk // nil when empty
	sending  *chunk // what is being sent, or nil
	taken    int    // bytes of sending that the socket took
	writing  bool   // … and whether it is at it just now
	asked    bool   // the session was sealed meanwhile, and waits for taken
	flushing bool
	starved  []*subscription

	unanswered   int // events that were taken to be published, and not answered
	waiting      int // publishes that wait for groups, which are not among those
	uncommitted  int // of them, that are not known to be in the log
	waitingBytes int // of their frames
	awaited      int // acks that they wait for

	turn time.Time // until when the peer was told to publish nothing

	received  int64                    // bytes, as of the last read that was handled
	sent      int64                    // bytes
	delivered int64                    // events
	errors    map[eventhub.Code]uint64 // answers; nil when there was none

	// The end. Once closing is set nothing is appended any more.
	closing   bool
	ending    *ending                 // closing follows when all is answered; nil while it goes on
	patience  *time.Timer             // ends the wait for that; nil before
	waits     context.Context         // of publishes that wait for groups, nil before the first
	stopWaits context.CancelCauseFunc // ends it
	stopped   bool                    // closing because the hub stops
	code      gws.StatusCode          // of the close frame that was sent; 0: none, or an empty one
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
	n := -o.taken
	for _, c := range []*chunk{o.sending, o.buf} {
		if c != nil {
			n += len(c.b)
		}
	}
	return n
}

// reply returns where to append, or nil when the peer is not to get
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

// kick has what is queued sent, at once or by a flush. s.mu is held.
func (s *session) kick() {
	if s.out.buf == nil || s.out.flushing {
		return
	}
	if !s.sendInline() {
		s.out.flushing = true
		go s.flush()
	}
}

// flush sends until nothing is left.
func (s *session) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := &s.out
	moved := time.Now() // when the peer was last seen to take something
	for o.next() {
		n, err := s.write(moved)
		if n > 0 {
			moved = time.Now()
		}
		if err != nil && !s.mayGoOn(err, moved) {
			s.writeFailed(err)
			break
		}
		if o.taken == len(o.sending.b) {
			o.sending.recycle()
			o.sending, o.taken = nil, 0
		}
		s.changed.Broadcast()
		if starved := s.takeStarved(); len(starved) > 0 {
			s.mu.Unlock()
			for _, sub := range starved {
				sub.handle.Ready()
			}
			s.mu.Lock()
		}
	}
	if o.closing {
		halfClose(s.conn)
	} else {
		_ = s.conn.SetWriteDeadline(time.Time{}) // what is sent inline would find it over
	}
	o.flushing = false
	s.changed.Broadcast()
}

// next moves what is queued to where it is sent from, and reports whether there is
// anything to send.
func (o *outbound) next() bool {
	if o.sending == nil {
		o.sending, o.buf = o.buf, nil
	}
	return o.sending != nil
}

// write has the socket take what is left of what is being sent, in one call where the
// peer keeps up, and returns whose deliveries were sent with it. s.mu is held, and
// released meanwhile.
func (s *session) write(moved time.Time) (n int, err error) {
	o := &s.out
	c := o.sending
	_ = s.conn.SetWriteDeadline(s.writeBy(moved)) // a dead connection shows in the write
	rest := c.b[o.taken:]
	o.writing = true
	s.mu.Unlock()
	n, err = s.conn.Write(rest)
	s.mu.Lock()
	o.taken += n
	o.sent += int64(n)
	if n > 0 && (!o.closing || o.asked) { // else all have left, with what was known then
		s.reportSent(c)
	}
	o.writing, o.asked = false, false
	return n, err
}

// writeBy returns until when the next write may wait. That it has taken something shows
// when it returns only; so it does now and then, for the peer has WriteWait from the
// last byte on, and who waits for its deliveries to be sent is to know. s.mu is held.
func (s *session) writeBy(moved time.Time) time.Time {
	if s.out.closing {
		return s.out.closeBy
	}
	wait := s.gw.cfg.WriteWait
	by, last := time.Now().Add(wait/writeLooks), moved.Add(wait)
	if last.Before(by) {
		return last
	}
	return by
}

// writeLooks is how often within WriteWait a write that waits is looked at.
const writeLooks = 10

// mayGoOn reports whether a write that took less than it was given is to be followed by
// another: the peer has time left. s.mu is held.
func (s *session) mayGoOn(err error, moved time.Time) bool {
	switch now := time.Now(); {
	case !errors.Is(err, os.ErrDeadlineExceeded):
		return false
	case s.out.closing:
		return now.Before(s.out.closeBy)
	default:
		return now.Before(moved.Add(s.gw.cfg.WriteWait))
	}
}

// reportSent notifies subscriptions of what was sent of c. s.mu is held, and released meanwhile.
func (s *session) reportSent(c *chunk) {
	c.markSent(s.out.taken)
	s.mu.Unlock()
	for i := range c.to {
		if n := c.to[i].fresh; n > 0 {
			c.to[i].sub.handle.Sent(n)
		}
	}
	s.mu.Lock()
	for i := range c.to {
		a := &c.to[i]
		a.n -= a.fresh
		a.sub.unsent -= a.fresh
	}
}

// giveUp discards what waits to be sent and leaves no time for what is being sent. s.mu is
// held, and the session sealed: nothing is appended any more.
func (o *outbound) giveUp() {
	o.buf, o.closeBy = nil, past
}

// takeStarved returns the subscriptions to notify that there is room. There is
// when half of the buffer is free: they should not come for one event each.
func (s *session) takeStarved() []*subscription {
	if s.out.queued() > s.gw.cfg.deliveryBytes()/2 {
		return nil
	}
	starved := s.out.starved
	s.out.starved = nil
	for _, sub := range starved {
		sub.starved = false
	}
	return slices.DeleteFunc(starved, func(sub *subscription) bool { return sub.state != subscribed })
}

// writeFailed ends the session whose peer took only a part of what was sent. s.mu is
// held, and released meanwhile.
func (s *session) writeFailed(err error) {
	o := &s.out
	slow := errors.Is(err, os.ErrDeadlineExceeded)
	if !slow || o.closing {
		s.seal(0, "write: "+err.Error())
		o.giveUp()
		return
	}
	// What was begun must be completed for the close frame to be understood.
	c := o.sending
	end := frameEnd(c.b, c.reported, o.taken)
	last := &chunk{b: c.b[o.taken:end:end]}
	s.seal(wire.CloseTryAgain, "The client reads too slowly.")
	last.control(gws.OpClose, gws.NewCloseFrameBody(o.code, o.why))
	o.buf = nil
	_ = s.conn.SetWriteDeadline(o.closeBy)
	s.mu.Unlock()
	n, _ := s.conn.Write(last.b) // the best that can be done
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

// halfClose notifies the peer's kernel that nothing follows, so that a peer which
// got the close frame sees the end at once.
func halfClose(conn any) {
	if c, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = c.CloseWrite() // the whole is closed soon
	}
}
