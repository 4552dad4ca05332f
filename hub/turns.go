package hub

import (
	"container/list"
	"sync"
	"time"
)

const (
	// longTurn is how long a turn counts at most. Who takes longer waits for something, and does not work.
	longTurn = 5 * time.Millisecond
	// promptReads is how many pieces of what a stranger sends are read as soon as they are there, for each request. From
	// then on a rest of strangerRest is before each: what is sent by bytes comes in larger pieces then. What
	// fills the buffer does not count. A handshake, a request and the AUTH of a WebSocket have fewer.
	promptReads  = 8
	strangerRest = 250 * time.Millisecond
)

// turns let few strangers do something at a time. A stranger has a turn from the bytes that were read of it
// until it waits for more, or sends an answer. All others wait in order, and not in the queue of those that the
// Go runtime has ready to run: that queue has one order for all, so that a good client would wait there
// until each of some thousand strangers, whose bytes came at once, had been served. A turn is no lock: after
// longTurn the next one begins in any case.
//
// It is safe for concurrent use.
type turns struct {
	most int

	mu      sync.Mutex
	running list.List // of *turn, in the order in which they began
	waiting list.List // of *turn, in the order in which they came
	watch   *time.Timer
}

// turn is one that runs, or waits to begin.
type turn struct {
	began time.Time
	at    *list.Element // in running; nil: it waits, or does not count any more
	begin chan struct{} // closed when it begins
}

func newTurns(most int) *turns { return &turns{most: most} }

// take waits for a turn. Whoever has it gives it back.
func (t *turns) take() *turn {
	t.mu.Lock()
	next := &turn{}
	if t.running.Len() < t.most && t.waiting.Len() == 0 {
		t.run(next)
		t.mu.Unlock()
		return next
	}
	next.begin = make(chan struct{})
	if t.waiting.PushBack(next); t.waiting.Len() == 1 {
		t.watchOldest()
	}
	t.mu.Unlock()
	<-next.begin
	return next
}

// give ends a turn.
func (t *turns) give(done *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if done.at != nil {
		t.end(done)
	}
}

// run begins a turn. t.mu is held.
func (t *turns) run(next *turn) {
	next.began = time.Now()
	next.at = t.running.PushBack(next)
	if next.begin != nil {
		close(next.begin)
	}
}

// end has a turn not count any more, and begins the next one. t.mu is held.
func (t *turns) end(done *turn) {
	t.running.Remove(done.at)
	done.at = nil
	if first := t.waiting.Front(); first != nil {
		t.run(t.waiting.Remove(first).(*turn))
	}
}

// watchOldest ends the oldest turn when it was a long one, as long as others wait. t.mu is held.
func (t *turns) watchOldest() {
	left := time.Until(t.running.Front().Value.(*turn).began.Add(longTurn))
	if t.watch != nil {
		t.watch.Reset(left)
		return
	}
	t.watch = time.AfterFunc(left, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		for t.waiting.Len() > 0 {
			oldest := t.running.Front().Value.(*turn)
			if time.Since(oldest.began) < longTurn {
				t.watchOldest()
				return
			}
			t.end(oldest)
		}
	})
}

// Read implements net.Conn. What a stranger sends is returned when the stranger has its turn, which ends with the next Read.
func (c *conn) Read(b []byte) (n int, err error) {
	if c.trusted.Load() {
		return c.Conn.Read(b)
	}
	c.mu.Lock()
	c.endTurn()
	rest := time.Duration(0)
	if c.rests {
		rest = min(strangerRest, time.Until(c.proofBy))
	}
	c.mu.Unlock()
	time.Sleep(rest)
	if n, err = c.Conn.Read(b); n > 0 {
		c.beginTurn()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rests = n < len(b); c.rests { // else more is there, and the server bounds how much
		c.reads++
		c.rests = c.reads >= promptReads
	}
	return n, err
}

// beginTurn waits for a turn, unless the connection has one or is known.
func (c *conn) beginTurn() {
	c.mu.Lock()
	has := c.turn != nil || c.known
	c.mu.Unlock()
	if has {
		return
	}
	next := c.door.guests.turns.take()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.turn != nil || c.known { // the server reads in front of a request in another goroutine
		c.door.guests.turns.give(next)
		return
	}
	c.turn = next
}

// endTurn gives the turn back that the connection may have. c.mu is held.
func (c *conn) endTurn() {
	if c.turn != nil {
		c.door.guests.turns.give(c.turn)
		c.turn = nil
	}
}
