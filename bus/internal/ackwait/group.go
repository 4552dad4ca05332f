package ackwait

import (
	"fmt"
	"slices"
	"sync"

	"eventhub"
	"eventhub/bus/internal/groupstate"
)

// Group knows who waits for the events of one group in a topic. The lock of the group guards
// it.
type Group struct {
	topic, name string
	lock        sync.Locker // of the group
	state       *groupstate.Group
	left        func() // the last wait has gone; the lock is held

	waiters      map[uint64][]*waiter // by offset; nil: nobody waits
	deadLettered int                  // how many events were, since the group is loaded
	deleted      bool
	ended        error // why the group settles nothing any more
}

// NewGroup returns that of a group, whose lock guards it and the state. left is called under the
// lock when the last wait has gone, however it ended: until then somebody used the group.
func NewGroup(topic, name string, lock sync.Locker, state *groupstate.Group, left func()) *Group {
	return &Group{topic: topic, name: name, lock: lock, state: state, left: left}
}

// What groups do instead of acking.
const (
	gaveUpDead      = "has dead-lettered"
	gaveUpAbandoned = "has given up"
	gaveUpMoved     = "was moved past"
	gaveUpPast      = "is past, and is not known to have acked,"
	gaveUpRemoved   = "has not acked, as far as is known, and cannot any more: it was removed:"
)

// await asks the group to notify a when one of its events is acked, or will not be. Of one
// that is done above Base the log says which: a.ask looks it up. The lock is not held.
func (g *Group) await(a *waiter, offset uint64) {
	g.lock.Lock()
	defer g.lock.Unlock()
	switch {
	case a.ended():
	case g.state.IsSettled(offset) && offset <= g.state.Base():
		a.settle(g.never(offset, gaveUpPast))
	case g.state.IsSettled(offset):
		a.doubt = append(a.doubt, awaited{g, offset})
	case g.ended != nil:
		a.settle(g.endedWait())
	default:
		if g.waiters == nil {
			g.waiters = make(map[uint64][]*waiter)
		}
		g.waiters[offset] = append(g.waiters[offset], a)
	}
}

// unawait takes a off. The lock is not held.
func (g *Group) unawait(a *waiter, offset uint64) {
	g.lock.Lock()
	defer g.lock.Unlock()
	rest := slices.DeleteFunc(g.waiters[offset], func(other *waiter) bool { return other == a })
	if len(rest) == 0 {
		g.forget(offset)
	} else {
		g.waiters[offset] = rest
	}
}

// forget notes that nobody waits for an offset any more.
func (g *Group) forget(offset uint64) {
	before := len(g.waiters)
	delete(g.waiters, offset)
	if before > 0 && len(g.waiters) == 0 {
		g.left()
	}
}

// Settled notifies those who wait for an event that it has ended, and how.
func (g *Group) Settled(offset uint64, how groupstate.Ending) {
	gaveUp := ""
	switch how {
	case groupstate.DeadLettered:
		g.deadLettered++
		gaveUp = gaveUpDead
	case groupstate.LateLetter:
		gaveUp = gaveUpDead
	case groupstate.Abandoned:
		gaveUp = gaveUpAbandoned
	case groupstate.Removed:
		gaveUp = gaveUpRemoved
	}
	if len(g.waiters) > 0 {
		g.notify(offset, gaveUp)
	}
}

// notify notifies those who wait for an offset that the event is acked or, with gaveUp, that
// the group has given it up and how.
func (g *Group) notify(offset uint64, gaveUp string) {
	for _, a := range g.waiters[offset] {
		if gaveUp == "" {
			a.acked(g, offset)
			continue
		}
		a.settle(g.never(offset, gaveUp))
	}
	g.forget(offset)
}

// Passed notifies those whose event is done since the group has read beyond it, and the log does
// not have it any more.
func (g *Group) Passed() {
	for offset := range g.waiters {
		if g.state.IsSettled(offset) {
			g.notify(offset, gaveUpRemoved)
		}
	}
}

// Skipped notifies those whose event a seek to a place is about to pass.
func (g *Group) Skipped(to uint64) {
	for offset := range g.waiters {
		if offset <= to && !g.state.IsDone(offset) {
			g.notify(offset, gaveUpMoved)
		}
	}
}

// Delete says that the group is deleted.
func (g *Group) Delete() { g.deleted = true }

// End notifies all who wait that the group has ended, and those who come later.
func (g *Group) End(err error) {
	g.ended = err
	for offset, as := range g.waiters {
		for _, a := range as {
			a.settle(g.endedWait())
		}
		g.forget(offset)
	}
}

// never is the outcome of a wait for an event that the group will not ack.
func (g *Group) never(offset uint64, why string) error {
	code := eventhub.CodeWaitTimeout
	if why == gaveUpRemoved {
		code = eventhub.CodeGone
	}
	return eventhub.Errorf(code, "group %q %s the event at offset %d of topic %q; the events are published", g.name, why, offset, g.topic)
}

// endedWait is the outcome of a wait for a group that has ended.
func (g *Group) endedWait() error {
	if g.deleted {
		return eventhub.Errorf(eventhub.CodeWaitTimeout, "group %q of topic %q was deleted before it had acked; the events are published", g.name, g.topic)
	}
	cause := eventhub.AsError(g.ended)
	return eventhub.Wrap(cause.Code, g.ended, "%s; the events are published, and nobody can say whether group %q will ack them", cause.Message, g.name)
}

// Len returns for how many events somebody waits.
func (g *Group) Len() int { return len(g.waiters) }

// Check returns what does not hold between two calls: nobody waits for what is done, and no
// wait that is over waits. Tests call it.
func (g *Group) Check() error {
	for offset, as := range g.waiters {
		if g.state.IsDone(offset) {
			return fmt.Errorf("%d wait for %d of %s, which is done", len(as), offset, g.name)
		}
		for _, a := range as {
			if a.ended() {
				return fmt.Errorf("one that is over waits for %d of %s", offset, g.name)
			}
		}
	}
	return nil
}
