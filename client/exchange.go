package client

import (
	"context"
	"sync"

	gws "github.com/gobwas/ws"

	"eventhub"
)

// kind is what an exchange is about, in the order in which kinds are sent again
// on a new connection.
type kind uint8

const (
	settle kind = iota
	resubscribe
	subscribe
	publish
	unsubscribe // ends with its connection
	steer       // likewise: PAUSE and RESUME
)

// exchange is one request of one or many frames and the answers to them. Its
// frames are kept until they are answered, so that they can be sent again. It is
// pooled: whoever waits for it gives it back, unless something may still point
// to it.
type exchange struct {
	kind   kind
	first  uint64 // corr of the first frame; the others follow
	frames []byte // back to back
	ends   []int  // of each frame
	sub    *subscription

	// Of a publish.
	ids   []string
	made  []bool         // the id is ours: nobody used it before
	event eventhub.Event // being encoded

	// done is called when all is answered, without Client.mu; without it ready
	// gets a token.
	done  func(*exchange)
	ready chan struct{}
	stop  func() bool // takes back the watch over the context

	// Guarded by Client.mu until all is answered.
	answers []answer
	left    int
}

// answer is what the hub said to one frame.
type answer struct {
	offset           uint64
	duplicate, stale bool
	err              error
}

type answered struct {
	corr uint64
	answer
}

// slot is one frame of an exchange.
type slot struct {
	of *exchange
	at int
}

var exchanges = sync.Pool{New: func() any { return &exchange{ready: make(chan struct{}, 1)} }}

// keptFrames bounds, in bytes, what a pooled exchange holds on to.
const keptFrames = 64 << 10

func newExchange(k kind) *exchange {
	e := exchanges.Get().(*exchange)
	e.kind = k
	return e
}

func (e *exchange) recycle() {
	if cap(e.frames) > keptFrames {
		return
	}
	clear(e.ids)
	clear(e.answers)
	*e = exchange{frames: e.frames[:0], ends: e.ends[:0], ids: e.ids[:0], made: e.made[:0], answers: e.answers[:0], ready: e.ready}
	exchanges.Put(e)
}

// number gives the exchange its corrs, for n frames at most.
func (e *exchange) number(c *Client, n int) { e.first = c.corr.Add(uint64(n)) - uint64(n) + 1 }

// next is the corr of the frame that is appended next.
func (e *exchange) next() uint64 { return e.first + uint64(len(e.ends)) }

// add takes frames with one more frame at its end.
func (e *exchange) add(frames []byte) {
	e.frames = frames
	e.ends = append(e.ends, len(frames))
	e.answers = append(e.answers, answer{})
}

func (e *exchange) frame(i int) []byte {
	start := 0
	if i > 0 {
		start = e.ends[i-1]
	}
	return e.frames[start:e.ends[i]]
}

// err returns the first refusal, and which frame it is about.
func (e *exchange) err() (int, error) {
	for i := range e.answers {
		if err := e.answers[i].err; err != nil {
			return i, err
		}
	}
	return 0, nil
}

// register makes the exchange pending and sends it if there is a connection.
// c.mu is held.
func (c *Client) register(e *exchange) {
	e.left = len(e.ends)
	for i := range e.ends {
		c.pending[e.first+uint64(i)] = slot{e, i}
		if c.conn != nil {
			c.conn.append(gws.OpText, e.frame(i))
		}
	}
}

// submit registers an exchange, unless the client is closed.
func (c *Client) submit(e *exchange) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.phase == closed {
		return c.cause
	}
	c.register(e)
	return nil
}

// wait returns when all is answered, or with the context's error when it ends
// before; no answer is taken from then on.
func (c *Client) wait(ctx context.Context, e *exchange) error {
	select {
	case <-e.ready:
		return nil
	case <-ctx.Done():
	}
	c.mu.Lock()
	abandoned := c.abandon(e)
	c.mu.Unlock()
	if abandoned {
		return context.Cause(ctx)
	}
	<-e.ready
	return nil
}

// abandon takes out of pending what is not answered. It reports false when there
// was nothing: the exchange is completed. c.mu is held.
func (c *Client) abandon(e *exchange) bool {
	if e.left == 0 {
		return false
	}
	for i := range e.ends {
		if corr := e.first + uint64(i); c.pending[corr].of == e {
			c.forget(corr)
		}
	}
	e.left = 0
	c.settled()
	return true
}

// forget takes one frame out of pending. c.mu is held.
func (c *Client) forget(corr uint64) {
	s := c.pending[corr]
	delete(c.pending, corr)
	if s.of.kind == publish {
		c.room.give(1, len(s.of.frame(s.at)))
	}
}

// settled wakes Drain, which waits for pending to become empty. c.mu is held.
func (c *Client) settled() {
	if c.phase != open {
		c.changed.Broadcast()
	}
}

// answer notes one answer and appends the exchange to over when it was the last.
// What is not pending was given up. c.mu is held.
func (c *Client) answer(corr uint64, a answer, over []*exchange) []*exchange {
	s, ok := c.pending[corr]
	if !ok {
		return over
	}
	c.forget(corr)
	e := s.of
	e.answers[s.at] = a
	if e.kind == subscribe && a.err == nil {
		e.sub.joined = true
	}
	if e.left--; e.left == 0 {
		over = append(over, e)
	}
	return over
}

// applyAnswers applies all answers of one read.
func (c *Client) applyAnswers(n *conn) {
	if len(n.answers) == 0 {
		return
	}
	over := n.over[:0]
	c.mu.Lock()
	for _, a := range n.answers {
		if s, ok := c.pending[a.corr]; ok && a.err != nil && s.of.staysOver(a.err) {
			n.fail(a.err)
			continue
		}
		over = c.answer(a.corr, a.answer, over)
	}
	c.settled()
	c.mu.Unlock()
	complete(over)
	clear(over)
	clear(n.answers)
	n.over, n.answers = over[:0], n.answers[:0]
}

// staysOver reports whether the request waits for another connection, because
// this one has nothing to offer: the hub is going, or has just lost what the
// client had.
func (e *exchange) staysOver(err error) bool {
	if e.kind == resubscribe {
		return isPassing(err)
	}
	return eventhub.ErrorCode(err) == eventhub.CodeShuttingDown
}

// complete tells whoever waits.
func complete(over []*exchange) {
	for _, e := range over {
		if e.done != nil {
			e.done(e)
		} else {
			e.ready <- struct{}{}
		}
	}
}
