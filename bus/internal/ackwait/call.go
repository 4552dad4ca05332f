package ackwait

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"eventhub"
)

// call is one call of Enqueue in which publications wait.
type call struct {
	waits  *Waits
	ctx    context.Context
	groups map[groupKey]*Group // all that are waited for
	pubs   []eventhub.Publication
	done   func([]eventhub.Publication)
	left   atomic.Int64 // publications that wait, and one while they are begun
}

// waiter is one publication that waits.
type waiter struct {
	call  *call
	pub   *eventhub.Publication
	timer *time.Timer
	stop  func() bool // the watch over the context

	mu       sync.Mutex
	open     map[awaited]bool // what is not acked yet
	err      error            // the outcome, where it is known
	known    bool
	answered bool

	doubt []awaited // done before anybody waited; of who begins the wait, then of ask
}

// awaited is one event in one group.
type awaited struct {
	group  *Group
	offset uint64
}

// Begin implements publish.Waits: it lets the publications that were committed wait, and
// calls done when none does any more. It runs on the committer's goroutine.
func (c *call) Begin(pubs []eventhub.Publication, done func([]eventhub.Publication)) {
	c.pubs, c.done = pubs, done
	c.left.Store(1)
	for i := range pubs {
		if p := &pubs[i]; p.Err == nil && len(p.WaitFor) > 0 && len(p.Events) > 0 {
			c.left.Add(1)
			c.waits.open.Add(1)
			if p.Committed != nil {
				p.Committed()
			}
			c.wait(p)
		}
	}
	c.leave()
}

func (c *call) leave() {
	if c.left.Add(-1) == 0 {
		c.done(c.pubs)
	}
}

// wait begins the wait of one publication.
func (c *call) wait(p *eventhub.Publication) {
	a := &waiter{call: c, pub: p, open: make(map[awaited]bool, len(p.WaitFor)*len(p.Events))}
	open := a.all()
	for _, w := range open {
		a.open[w] = true // a publication may have an event twice, by a duplicate id
	}
	upTo := p.WaitUpTo
	if upTo == 0 {
		upTo = eventhub.DefaultWait
	}
	a.mu.Lock()
	a.timer = time.AfterFunc(upTo, a.end)
	a.stop = context.AfterFunc(c.ctx, func() { a.settle(gaveUp(c.ctx)) })
	a.mu.Unlock()
	for _, w := range open {
		w.group.await(a, w.offset)
	}
	if len(a.doubt) > 0 {
		c.waits.open.Add(1)
		go a.ask()
	}
}

// gaveUp says that a caller waits no more, and why where its context was ended by a reason with
// CodeShuttingDown. Callers have other reasons, of which they tell themselves.
func gaveUp(ctx context.Context) error {
	why := ""
	if e := new(eventhub.Error); errors.As(context.Cause(ctx), &e) && e.Code == eventhub.CodeShuttingDown && e.Message != "" {
		why = strings.TrimSuffix(e.Message, ".") + ": "
	}
	return eventhub.Wrap(eventhub.CodeShuttingDown, ctx.Err(), "%sgave up waiting for the groups; the events are published", why)
}

// all returns what the publication waits for: the events in their order, one group
// after the other.
func (a *waiter) all() []awaited {
	all := make([]awaited, 0, len(a.pub.WaitFor)*len(a.pub.Events))
	for _, name := range a.pub.WaitFor {
		for i := range a.pub.Events {
			all = append(all, awaited{a.call.groups[groupKey{topic: a.pub.Events[i].Topic, group: name}], a.pub.Receipts[i].Offset})
		}
	}
	return all
}

// ask looks up whether what was done before anybody waited for it was acked or
// dead-lettered, and begins again where the group was moved or gave something up since.
func (a *waiter) ask() {
	defer a.call.waits.open.Done()
	for len(a.doubt) > 0 && !a.ended() {
		w := a.doubt[0]
		g := w.group
		g.lock.Lock()
		epoch, given := g.state.Epoch(), g.deadLettered
		g.lock.Unlock()
		dead, err := a.call.waits.letters.GaveUp(context.Background(), g.topic, g.name, w.offset, epoch)
		there := false
		if err == nil && !dead { // whether it was acked before it was removed is not known
			there, err = a.call.waits.letters.HasEvent(context.Background(), g.topic, w.offset)
		}
		if err != nil {
			a.settle(eventhub.Wrap(eventhub.CodeInternal, err, "The store failed to look up the dead letter of offset %d in topic %q; the events are published.", w.offset, g.topic))
			return
		}
		g.lock.Lock()
		same := g.state.Epoch() == epoch && g.deadLettered == given && g.state.IsSettled(w.offset) && w.offset > g.state.Base()
		switch {
		case same && dead:
			a.settle(g.never(w.offset, gaveUpDead))
		case same && !there:
			a.settle(g.never(w.offset, gaveUpRemoved))
		case same:
			a.acked(g, w.offset)
		}
		g.lock.Unlock()
		if a.doubt = a.doubt[1:]; !same {
			g.await(a, w.offset)
		}
	}
}

// acked notes that a group is done with the event at an offset; a publication may
// have it twice, by a duplicate id. The group's lock is held.
func (a *waiter) acked(g *Group, offset uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.open, awaited{g, offset})
	if len(a.open) == 0 && !a.known {
		a.known = true
		a.timer.Reset(0)
	}
}

// ended reports whether the outcome is known, so that nobody needs to be notified.
func (a *waiter) ended() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.known
}

// settle ends the wait with an error; the first outcome counts. It may be called
// under the lock of a group.
func (a *waiter) settle(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.known {
		a.known, a.err = true, err
		a.timer.Reset(0)
	}
}

// end runs on the timer's goroutine: the outcome is known, or time is up.
func (a *waiter) end() {
	a.mu.Lock()
	if a.answered {
		a.mu.Unlock()
		return // the timer ran out as it was set
	}
	a.answered = true
	if !a.known {
		all := a.all()
		late := a.late(all)
		a.mu.Unlock()
		gone := a.removed(all, late)
		a.mu.Lock()
		if !a.known {
			a.known, a.err = true, a.timeout(all, gone)
		}
	}
	a.stop()
	open := a.open
	a.open = nil
	a.pub.Err = a.err
	a.mu.Unlock()
	for w := range open {
		w.group.unawait(a, w.offset)
	}
	all := a.call.waits
	a.call.leave()
	all.open.Done()
}

// late returns the first event of each group that it has not acked, as its place in all. a.mu is
// held.
func (a *waiter) late(all []awaited) (first []int) {
	for i, w := range all {
		if n := len(first); a.open[w] && (n == 0 || all[first[n-1]].group.name != w.group.name) {
			first = append(first, i)
		}
	}
	return first
}

// removed returns which of these the log does not have any more. a.mu is not held.
func (a *waiter) removed(all []awaited, late []int) map[awaited]bool {
	gone := make(map[awaited]bool)
	for _, i := range late {
		// Where that cannot be read the group is late.
		there, err := a.call.waits.letters.HasEvent(context.Background(), all[i].group.topic, all[i].offset)
		gone[all[i]] = err == nil && !there
	}
	return gone
}

// timeout names each group that has not acked, with the first event. Of one that was removed
// meanwhile it says so: waiting for longer is of no use. a.mu is held.
func (a *waiter) timeout(all []awaited, gone map[awaited]bool) error {
	code := eventhub.CodeWaitTimeout
	var who []string
	for _, i := range a.late(all) {
		w := all[i]
		text := fmt.Sprintf("group %q has not acked event %q at offset %d of topic %q",
			w.group.name, a.pub.Receipts[i%len(a.pub.Events)].ID, w.offset, w.group.topic)
		if gone[w] {
			code = eventhub.CodeGone
			text += ", which was removed"
		}
		who = append(who, text)
	}
	return eventhub.Errorf(code, "%s; the events are published", strings.Join(who, ", "))
}
