package client

import (
	"context"
)

// watch waits for the end of one context, for all exchanges that end with it: many publishes of a
// program have the same. Guarded by Client.mu.
type watch struct {
	done   <-chan struct{} // the context's: contexts with the same end together
	cause  func() error
	stop   func() bool
	first  *exchange
	isOver bool // the context has ended
}

// watchOver has an exchange that is registered given up when its context ends. c.mu is held.
func (c *Client) watchOver(ctx context.Context, e *exchange) {
	w := c.watch
	if w == nil || w.done != ctx.Done() || w.isOver {
		if w != nil && w.first == nil {
			w.stop() // nobody else ends it
		}
		w = &watch{done: ctx.Done(), cause: func() error { return context.Cause(ctx) }}
		w.stop = context.AfterFunc(ctx, func() { c.giveUp(w) })
		c.watch = w
	}
	e.watch, e.after = w, w.first
	if w.first != nil {
		w.first.before = e
	}
	w.first = e
}

// unwatch takes the watch over an exchange back. The last watch stays, for the publishes that are to
// come, until the client ends. c.mu is held.
func (c *Client) unwatch(e *exchange) {
	w := e.watch
	if w == nil {
		return
	}
	if e.before != nil {
		e.before.after = e.after
	} else {
		w.first = e.after
	}
	if e.after != nil {
		e.after.before = e.before
	}
	e.watch, e.before, e.after = nil, nil, nil
	if w.first == nil && w != c.watch {
		w.stop()
	}
}

// endWatch ends the watch that is left. c.mu is held, and nothing is pending.
func (c *Client) endWatch() {
	if c.watch != nil {
		c.watch.stop()
		c.watch = nil
	}
}

// giveUp completes the exchanges whose context has ended, in the order of their calls.
func (c *Client) giveUp(w *watch) {
	c.mu.Lock()
	w.isOver = true
	if c.phase == closed || w.first == nil { // who closes completes them
		c.mu.Unlock()
		return
	}
	var over []*exchange
	for w.first != nil {
		e := w.first
		c.abandon(e)
		over = append(over, e)
	}
	c.tasks.Add(1) // while run is one of them
	c.mu.Unlock()
	defer c.tasks.Done()
	cause := w.cause()
	for i := len(over) - 1; i >= 0; i-- {
		over[i].failRest(cause)
		over[i].done(over[i])
	}
}
