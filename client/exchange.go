package client

import (
	"context"
	"sync"

	"eventhub"
	"eventhub/wire"
)

// kind is what an exchange is about, in the order in which kinds are sent again
// on a new connection.
type kind uint8

const (
	settle kind = iota
	ackPublish
	resubscribe
	subscribe
	publish
	cancel
	unsubscribe // ends with its connection
	pausing     // likewise: PAUSE and RESUME
	renewal     // likewise: a further AUTH
)

// exchange is one request of one or many frames and the answers to them. A frame
// is about a number of items: the events that it publishes, the deliveries that it
// settles. Its frames are kept until they are answered, so that they can be sent
// again. It is pooled: whoever waits for it gives it back, unless something may
// still point to it.
type exchange struct {
	kind   kind
	first  uint64 // corr of the first frame; the others follow
	frames []byte // back to back
	ends   []int  // of each frame
	upTo   []int  // number of items up to the end of each frame
	sub    *subscription

	// serial is the place in the order in which exchanges are registered.
	serial uint64
	// numbered: the frames have numbers, which are given when the exchange is registered. seqs is
	// parallel to the frames then.
	numbered bool
	seqs     []uint64

	// Of a publish or an ack-and-publish: parallel to the events. The receipts have their
	// ids from the beginning.
	made   []bool           // the id is ours: nobody used it before
	events []eventhub.Event // being encoded

	// done is called when all is answered, without Client.mu; without it ready
	// gets a token. calls: it calls what a user gave.
	done  func(*exchange)
	calls bool
	ready chan struct{}

	// Guarded by Client.mu until all is answered.
	watch         *watch    // over its context; nil where nobody watches it
	before, after *exchange // in the watch's list
	sent          bool      // over a connection
	resent        bool      // over another one
	left          int
	answers       []answer           // parallel to the frames
	receipts      []eventhub.Receipt // parallel to the events
	outcomes      []eventhub.Outcome // parallel to the deliveries of a settle
}

// answer is what the hub said to one frame.
type answer struct {
	given bool
	err   error
}

// answered is an answer on its way from the reader. Its lists are the
// connection's.
type answered struct {
	corr     uint64
	err      error
	receipt  eventhub.Receipt   // of one event
	receipts []eventhub.Receipt // of a batch
	stale    bool
	staleAt  []int // nil: all
	// producer is what the OK of an AUTH says of it; nil in others.
	producer *wire.AuthProducer
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
	clear(e.answers)
	clear(e.receipts)
	*e = exchange{frames: e.frames[:0], ends: e.ends[:0], upTo: e.upTo[:0], seqs: e.seqs[:0], made: e.made[:0], events: e.events[:0],
		answers: e.answers[:0], receipts: e.receipts[:0], outcomes: e.outcomes[:0], ready: e.ready}
	exchanges.Put(e)
}

// number gives the exchange its corrs, for n frames at most.
func (e *exchange) number(c *Client, n int) { e.first = c.corr.Add(uint64(n)) - uint64(n) + 1 }

// next is the corr of the frame that is appended next.
func (e *exchange) next() uint64 { return e.first + uint64(len(e.ends)) }

// add takes frames with one more frame at its end, which is about so many items.
func (e *exchange) add(frames []byte, items int) {
	e.frames = frames
	e.ends = append(e.ends, len(frames))
	e.upTo = append(e.upTo, e.items()+items)
	e.answers = append(e.answers, answer{})
}

// items is how many items all frames have.
func (e *exchange) items() int {
	if len(e.upTo) == 0 {
		return 0
	}
	return e.upTo[len(e.upTo)-1]
}

// span returns the items of one frame.
func (e *exchange) span(i int) (from, to int) {
	if i > 0 {
		from = e.upTo[i-1]
	}
	return from, e.upTo[i]
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
	e.sent = c.conn != nil
	c.numberFrames(e)
	for i := range e.ends {
		c.pending[e.first+uint64(i)] = slot{e, i}
		if c.conn != nil {
			c.sendFrame(e, i)
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
	c.unwatch(e)
	c.settled()
	return true
}

// forget takes one frame out of pending. c.mu is held.
func (c *Client) forget(corr uint64) {
	s := c.pending[corr]
	delete(c.pending, corr)
	if s.of.takesRoom() {
		from, to := s.of.span(s.at)
		c.room.give(to-from, len(s.of.frame(s.at)))
	}
}

// takesRoom says what counts against Client.room.
func (e *exchange) takesRoom() bool { return e.kind == publish || e.kind == ackPublish }

// settled wakes Drain, which waits for pending to become empty. c.mu is held.
func (c *Client) settled() {
	if c.phase != open {
		c.changed.Broadcast()
	}
}

// answer notes one answer and appends the exchange to over when it was the last.
// What is not pending was given up. c.mu is held.
func (c *Client) answer(a *answered, over []*exchange) []*exchange {
	s, ok := c.pending[a.corr]
	if !ok {
		return over
	}
	c.forget(a.corr)
	e := s.of
	e.note(s.at, a)
	if e.kind == subscribe && a.err == nil {
		e.sub.joined = true
	}
	if e.left--; e.left == 0 {
		c.unwatch(e)
		over = append(over, e)
	}
	return over
}

// note takes the answer to one frame.
func (e *exchange) note(at int, a *answered) {
	from, to := e.span(at)
	e.answers[at] = answer{given: true, err: within(a.err, to-from)}
	if a.err != nil {
		code := eventhub.ErrorCode(a.err)
		if (code == eventhub.CodeWaitTimeout || code == eventhub.CodeGone) && len(a.receipts) == to-from {
			e.noteReceipts(from, a.receipts) // published all the same, which older hubs do not say
		}
		return
	}
	switch {
	case e.kind == settle:
		e.noteStale(e.outcomes[from:to], a)
	case !e.takesRoom() || from == to:
	case a.receipts == nil && to-from == 1:
		e.noteReceipt(from, &a.receipt)
	case len(a.receipts) == to-from:
		e.noteReceipts(from, a.receipts)
	default:
		e.answers[at].err = eventhub.Errorf(eventhub.CodeInternal, "the hub's answer has %d receipts for %d events", len(a.receipts), to-from)
	}
}

// within returns the error without a place that none of so many items has.
func within(err error, items int) error {
	e := eventhub.AsError(err)
	if err == nil || e.Index == nil || *e.Index >= 0 && *e.Index < items {
		return err
	}
	whole := *e
	whole.Index = nil
	return &whole
}

func (e *exchange) noteReceipts(from int, receipts []eventhub.Receipt) {
	for i := range receipts {
		e.noteReceipt(from+i, &receipts[i])
	}
}

// noteReceipt keeps the id that was sent. Where that is ours, a duplicate is what
// an earlier try of this very request left.
func (e *exchange) noteReceipt(i int, r *eventhub.Receipt) {
	if e.numbered {
		e.receipts[i].ID = r.ID
	}
	e.receipts[i].Offset, e.receipts[i].DeliverAt = r.Offset, r.DeliverAt
	e.receipts[i].Duplicate = r.Duplicate && !e.made[i]
}

func (e *exchange) noteStale(outcomes []eventhub.Outcome, a *answered) {
	if a.stale && a.staleAt == nil {
		for i := range outcomes {
			outcomes[i] = eventhub.Stale
		}
	}
	for _, i := range a.staleAt {
		if i >= 0 && i < len(outcomes) {
			outcomes[i] = eventhub.Stale
		}
	}
}

// applyAnswers applies all answers of one read.
func (c *Client) applyAnswers(n *conn) {
	if len(n.answers) == 0 {
		return
	}
	over := n.over[:0]
	c.mu.Lock()
	for i := range n.answers {
		a := &n.answers[i]
		if a.producer != nil {
			over = append(over, c.opened(a.producer, false)...)
		}
		if s, ok := c.pending[a.corr]; ok && a.err != nil && s.of.staysOver(a.err) {
			n.fail(a.err)
			continue
		}
		over = c.answer(a, over)
	}
	c.settled()
	c.mu.Unlock()
	c.complete(over)
	clear(over)
	clear(n.answers)
	n.over, n.answers = over[:0], n.answers[:0]
	clear(n.receipts)
	n.receipts, n.staleAt = n.receipts[:0], n.staleAt[:0]
}

// staysOver reports whether the request waits for another connection, because
// this one has nothing to offer: the hub is going, or has just lost what the
// client had.
func (e *exchange) staysOver(err error) bool {
	if e.kind == resubscribe {
		return eventhub.ErrorCode(err).Passing()
	}
	switch eventhub.ErrorCode(err) {
	case eventhub.CodeShuttingDown, eventhub.CodeNotActive:
		return true
	case eventhub.CodeBadSequence, eventhub.CodeFenced, eventhub.CodeUnknownProducer:
		return e.numbered && !e.resent // the next connection numbers it again
	}
	return false
}

// complete notifies whoever waits.
func (c *Client) complete(over []*exchange) {
	called := over[:0]
	for _, e := range over {
		switch {
		case e.calls:
			called = append(called, e)
		case e.done != nil:
			e.done(e)
		default:
			e.ready <- struct{}{}
		}
	}
	if len(called) > 0 {
		c.callbacks.call(&c.tasks, called)
	}
}
