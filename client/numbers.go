package client

import (
	"cmp"
	"slices"
	"sync/atomic"

	gws "github.com/gobwas/ws"

	"eventhub"
	"eventhub/internal/eventid"
	"eventhub/wire"
)

// # Numbers
//
// A publish that may be sent twice has to be known the second time. Its events have ids of the
// program's, or ids that the client makes, or the frame has a number of the client's
// producer (eventhub.Producer), which costs the hub less than ids do. The producer is opened
// when the client has published a little, by a further AUTH; until then events get ids.
//
// Numbers are given when a frame is registered, which is the order in which frames are sent.
// A new connection says which number the hub has used last. What has a higher one has not
// been published, and cannot be any more, since the connection before is fenced; so it is
// numbered again from there on, in its order. Frames that were given up leave no hole thus.
//
// Where the hub has forgotten the producer, nobody knows what became of the frames that were
// sent and have no answer: they fail with CodeUnknownProducer.

// openAfter is after how many publishes without ids of the program's the producer is opened: what
// publishes less saves nothing by it.
const openAfter = 16

// numbers are those of a client. Guarded by Client.mu.
type numbers struct {
	on   atomic.Bool // born is not 0; read by all
	id   string      // of the producer; empty before it is asked for
	born uint64      // that the hub has said; 0 before it is open
	last uint64      // the number given last
	made int         // publishes with ids of the client's so far
}

// numbered reports whether publications get numbers: the program gave no id, and no time, which would
// be a delay also where it is over. Until there are numbers it notes that one would be of use.
func (c *Client) numbered(pubs []eventhub.Publication) bool {
	for i := range pubs {
		if len(pubs[i].WaitFor) > 0 {
			return false // it may wait until its number is forgotten
		}
		for j := range pubs[i].Events {
			if e := &pubs[i].Events[j]; e.ID != "" || !e.DeliverAt.IsZero() {
				return false
			}
		}
	}
	n := &c.numbers
	if n.on.Load() {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if n.made++; n.made == openAfter && n.id == "" && c.cfg.maxPending <= eventhub.ProducerWindow {
		c.askForProducer()
	}
	return false
}

// askForProducer opens the producer on the present connection. Without one, the next has it.
// c.mu is held.
func (c *Client) askForProducer() {
	c.numbers.id = eventid.New()
	if c.conn == nil || c.phase == closed {
		return
	}
	e := newExchange(renewal)
	e.number(c, 1)
	e.add(wire.WithProducer(wire.AppendAuth(e.frames, e.next(), c.conn.shown, c.conn.hasToken, ""), wire.AuthProducer{ID: c.numbers.id}), 0)
	e.done = func(e *exchange) { // applyAnswers has done all; the frame has a secret
		clear(e.frames)
		e.recycle()
	}
	c.register(e)
}

// numberFrames gives the frames of an exchange their numbers. c.mu is held.
func (c *Client) numberFrames(e *exchange) {
	c.serial++
	e.serial = c.serial
	if !e.numbered {
		return
	}
	for range e.ends {
		c.numbers.last++
		e.seqs = append(e.seqs, c.numbers.last)
	}
}

// opened takes the producer of an AUTH's OK. What the hub does not know any more fails; the rest is
// numbered after what the hub has used, if the connection is a new one. c.mu is held.
func (c *Client) opened(p *wire.AuthProducer, isNew bool) (over []*exchange) {
	n := &c.numbers
	isOther := n.born != 0 && (p.ID != n.id || p.Born != n.born)
	if isOther {
		over = c.failNumbered(p.ID == n.id)
		n.born = 0
		n.on.Store(false)
	}
	if p.ID != n.id || p.ID == "" {
		return over
	}
	n.born, n.last = p.Born, p.Seq
	n.on.Store(true)
	if !isNew {
		return over
	}
	for _, corr := range c.inOrder() {
		s := c.pending[corr]
		if s.of.kind != publish || !s.of.numbered {
			continue
		}
		if seq := &s.of.seqs[s.at]; isOther || *seq > p.Seq {
			n.last++
			*seq = n.last
		}
	}
	return over
}

// failNumbered fails what has a number that means nothing any more; with goOn what was never sent
// stays, to be numbered by another producer. c.mu is held.
func (c *Client) failNumbered(goOn bool) (over []*exchange) {
	for _, corr := range c.inOrder() {
		s := c.pending[corr]
		if s.of.kind != publish || !s.of.numbered || goOn && !s.of.sent {
			continue
		}
		what := "the events are not published: the hub numbers no publishes any more"
		if s.of.sent {
			what = "nobody knows whether the events are published: the hub has forgotten the client, which was away for too long"
		}
		over = c.answer(&answered{corr: corr, err: eventhub.Errorf(eventhub.CodeUnknownProducer, "%s", what)}, over)
	}
	return over
}

// inOrder returns the frames without an answer in the order in which they are sent again.
// c.mu is held.
func (c *Client) inOrder() []uint64 {
	rest := make([]uint64, 0, len(c.pending))
	for corr := range c.pending {
		rest = append(rest, corr)
	}
	slices.SortFunc(rest, func(x, y uint64) int {
		a, b := c.pending[x], c.pending[y]
		return cmp.Or(cmp.Compare(a.of.kind, b.of.kind), cmp.Compare(a.of.serial, b.of.serial), cmp.Compare(a.at, b.at))
	})
	return rest
}

// sendFrame queues one frame of an exchange on the connection. c.mu is held.
func (c *Client) sendFrame(e *exchange, at int) {
	if !e.numbered {
		c.conn.append(gws.OpText, e.frame(at))
		return
	}
	c.numberedFrame = wire.WithSeq(append(c.numberedFrame[:0], e.frame(at)...), e.seqs[at])
	c.conn.append(gws.OpText, c.numberedFrame)
	if cap(c.numberedFrame) > keptFrames {
		c.numberedFrame = nil
	}
}

// mayNumber refuses a publish that was to have a number, where there are none any more. c.mu is held.
func (c *Client) mayNumber(e *exchange) error {
	if e.numbered && c.numbers.born == 0 {
		return eventhub.Errorf(eventhub.CodeUnknownProducer, "the events are not published: the hub numbers no publishes any more")
	}
	return nil
}

// producerID is the id that an AUTH has, empty for none.
func (c *Client) producerID() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.numbers.id
}

// seqRoom is how much longer than it is kept a frame may be sent.
func (e *exchange) seqRoom() int {
	if !e.numbered {
		return 0
	}
	return len(`,"seq":9007199254740991`)
}
