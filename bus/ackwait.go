package bus

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"eventhub"
	"eventhub/bus/internal/publish"
)

// A publication may wait until groups have acked its events. Nothing of that is
// durable: the groups are loaded before it is submitted, and after its commit
// each of them learns which offsets somebody waits for (group.awaited). A group
// notifies when one of them is done; where its cursor moves over offsets that it has
// no entry for, it looks through those that are awaited. While nobody waits, all
// this is one look at the length of a map.
//
// A waiting publication has one timer and no goroutine. The timer's goroutine
// calls done, also when the last group has acked: that is found out under the lock
// of a group, where a callback must not run.

// ackWait is one call of Enqueue in which publications wait.
type ackWait struct {
	bus    *Bus
	ctx    context.Context
	groups map[groupKey]*group // all that are waited for
	pubs   []eventhub.Publication
	done   func([]eventhub.Publication)
	left   atomic.Int64 // publications that wait, and one while they are begun
}

// ackWaiter is one publication that waits.
type ackWaiter struct {
	ackWait *ackWait
	pub     *eventhub.Publication
	timer   *time.Timer
	stop    func() bool // the watch over the context

	mu       sync.Mutex
	open     map[awaitedEvent]bool // what is not acked yet
	err      error                 // the outcome, where it is known
	known    bool
	answered bool

	doubt []awaitedEvent // done before anybody waited; of who begins the wait, then of ask
}

// awaitedEvent is one event in one group.
type awaitedEvent struct {
	group  *group
	offset uint64
}

// Check implements publish.Waits: it refuses a publication that asks for a wait that cannot be, and loads the
// groups that it names, as far as they are there.
func (r *ackWait) Check(p *eventhub.Publication, now time.Time) error {
	if err := validateWait(p, now); err != nil {
		return err
	}
	return r.eachWaited(p, func(g *group) error {
		err := g.load(r.ctx, nil)
		if eventhub.ErrorCode(err) == eventhub.CodeNotSubscribed && r.bus.patterns.covering(g.name, g.log.Topic()) != "" {
			return nil // its topic is to be created
		}
		return err
	})
}

// Prepare implements publish.Waits: it makes the groups that a publication waits for in topics that are to be created.
// It comes last of what may refuse the publication, so that one that is refused leaves
// nothing; what refuses it in its commit may leave the topic, with groups that their
// patterns would bring.
func (r *ackWait) Prepare(p *eventhub.Publication) error {
	return r.eachWaited(p, func(g *group) error {
		if err := r.bus.space.Check(); err != nil {
			return err
		}
		if err := r.bus.inherit(r.ctx, g.name, g.log.Topic()); err != nil {
			return err
		}
		return g.load(r.ctx, nil)
	})
}

// eachWaited calls load for each group that a publication names and that is not loaded,
// in each of the publication's topics, and keeps those that are loaded then.
func (r *ackWait) eachWaited(p *eventhub.Publication, load func(*group) error) error {
	for _, name := range p.WaitFor {
		for i := range p.Events {
			key := groupKey{topic: p.Events[i].Topic, group: name}
			if r.groups[key] != nil {
				continue
			}
			if err := eventhub.ValidateTopic(key.topic); err != nil {
				return err
			}
			g, err := r.bus.acquire(key)
			if err != nil {
				return err
			}
			if err = load(g); err == nil && g.loaded.Load() {
				r.groups[key] = g
			}
			r.bus.release(g)
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func validateWait(p *eventhub.Publication, now time.Time) error {
	if err := p.ValidateWait(); err != nil {
		return err
	}
	for i := range p.Events {
		if p.Events[i].Due(now) > now.UnixMilli() {
			return eventhub.Errorf(eventhub.CodeBadRequest, "wait_for is given, and event %d is scheduled; that cannot be waited for", i)
		}
	}
	return nil
}

// newAckWait returns the ack wait of a call, nil where nothing waits.
func (b *Bus) newAckWait(ctx context.Context, pubs []eventhub.Publication) publish.Waits {
	for i := range pubs {
		if len(pubs[i].WaitFor) > 0 {
			return &ackWait{bus: b, ctx: ctx, groups: make(map[groupKey]*group)}
		}
	}
	return nil
}

// Begin implements publish.Waits: it lets the publications that were committed wait, and
// calls done when none does any more. It runs on the committer's goroutine.
func (r *ackWait) Begin(pubs []eventhub.Publication, done func([]eventhub.Publication)) {
	r.pubs, r.done = pubs, done
	r.left.Store(1)
	for i := range pubs {
		if p := &pubs[i]; p.Err == nil && len(p.WaitFor) > 0 && len(p.Events) > 0 {
			r.left.Add(1)
			r.bus.awaits.Add(1)
			if p.Committed != nil {
				p.Committed()
			}
			r.wait(p)
		}
	}
	r.leave()
}

func (r *ackWait) leave() {
	if r.left.Add(-1) == 0 {
		r.done(r.pubs)
	}
}

// wait begins the wait of one publication.
func (r *ackWait) wait(p *eventhub.Publication) {
	a := &ackWaiter{ackWait: r, pub: p, open: make(map[awaitedEvent]bool, len(p.WaitFor)*len(p.Events))}
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
	a.stop = context.AfterFunc(r.ctx, func() {
		a.settle(eventhub.Wrap(eventhub.CodeShuttingDown, r.ctx.Err(), "gave up waiting for the groups; the events are published"))
	})
	a.mu.Unlock()
	for _, w := range open {
		w.group.await(a, w.offset)
	}
	if len(a.doubt) > 0 {
		r.bus.awaits.Add(1)
		go a.ask()
	}
}

// What groups do instead of acking.
const (
	gaveUpDead      = "has dead-lettered"
	gaveUpAbandoned = "has given up"
	gaveUpMoved     = "was moved past"
	gaveUpPast      = "is past, and is not known to have acked,"
)

// all returns what the publication waits for: the events in their order, one group
// after the other.
func (a *ackWaiter) all() []awaitedEvent {
	all := make([]awaitedEvent, 0, len(a.pub.WaitFor)*len(a.pub.Events))
	for _, name := range a.pub.WaitFor {
		for i := range a.pub.Events {
			all = append(all, awaitedEvent{a.ackWait.groups[groupKey{topic: a.pub.Events[i].Topic, group: name}], a.pub.Receipts[i].Offset})
		}
	}
	return all
}

// await asks the group to notify a when one of its events is acked, or will not be. Of one
// that is done above Base the log says which: a.ask looks it up.
func (g *group) await(a *ackWaiter, offset uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case a.ended():
	case g.state.IsSettled(offset) && offset <= g.state.Base():
		a.settle(g.never(offset, gaveUpPast))
	case g.state.IsSettled(offset):
		a.doubt = append(a.doubt, awaitedEvent{g, offset})
	case g.ended != nil:
		a.settle(g.endedAwait())
	default:
		if g.awaited == nil {
			g.awaited = make(map[uint64][]*ackWaiter)
		}
		g.awaited[offset] = append(g.awaited[offset], a)
	}
}

// ask looks up whether what was done before anybody waited for it was acked or
// dead-lettered, and begins again where the group was moved or gave something up since.
func (a *ackWaiter) ask() {
	defer a.ackWait.bus.awaits.Done()
	for len(a.doubt) > 0 && !a.ended() {
		w := a.doubt[0]
		g := w.group
		g.mu.Lock()
		epoch, given := g.state.Epoch(), g.counts.DeadLettered
		g.mu.Unlock()
		dead, err := a.ackWait.bus.letters.GaveUp(context.Background(), g.log.Topic(), g.name, w.offset, epoch)
		if err != nil {
			a.settle(storeError(err, "look up the dead letter of offset %d in topic %q; the events are published", w.offset, g.log.Topic()))
			return
		}
		g.mu.Lock()
		same := g.state.Epoch() == epoch && g.counts.DeadLettered == given && g.state.IsSettled(w.offset) && w.offset > g.state.Base()
		switch {
		case same && dead:
			a.settle(g.never(w.offset, gaveUpDead))
		case same:
			a.acked(g, w.offset)
		}
		g.mu.Unlock()
		if a.doubt = a.doubt[1:]; !same {
			g.await(a, w.offset)
		}
	}
}

// never is the outcome of a wait for an event that the group will not ack.
func (g *group) never(offset uint64, why string) error {
	return eventhub.Errorf(eventhub.CodeWaitTimeout, "group %q %s the event at offset %d of topic %q; the events are published",
		g.name, why, offset, g.log.Topic())
}

// notify notifies those who wait for an offset that the event is acked or, with gaveUp,
// that the group has given it up and how. g.mu is held.
func (g *group) notify(offset uint64, gaveUp string) {
	for _, a := range g.awaited[offset] {
		if gaveUp == "" {
			a.acked(g, offset)
			continue
		}
		a.settle(g.never(offset, gaveUp))
	}
	delete(g.awaited, offset)
}

// notifyPassed notifies those whose event is done since the cursor has passed it. g.mu
// is held.
func (g *group) notifyPassed() {
	for offset := range g.awaited {
		if g.state.IsSettled(offset) {
			g.notify(offset, "")
		}
	}
}

// notifySkipped notifies those whose event a seek to a place passes. g.mu is held.
func (g *group) notifySkipped(to uint64) {
	for offset := range g.awaited {
		if offset <= to && !g.state.IsDone(offset) {
			g.notify(offset, gaveUpMoved)
		}
	}
}

// notifyEnded notifies all who wait that the group has ended. g.mu is held.
func (g *group) notifyEnded() {
	for _, as := range g.awaited {
		for _, a := range as {
			a.settle(g.endedAwait())
		}
	}
	g.awaited = nil
}

// endedAwait is the outcome of a wait for a group that has ended. g.mu is held.
func (g *group) endedAwait() error {
	if g.deleted {
		return eventhub.Errorf(eventhub.CodeWaitTimeout, "group %q of topic %q was deleted before it had acked; the events are published", g.name, g.log.Topic())
	}
	cause := eventhub.AsError(g.ended)
	return eventhub.Wrap(cause.Code, g.ended, "%s; the events are published, and nobody can say whether group %q will ack them", cause.Message, g.name)
}

// unawait takes a off.
func (g *group) unawait(a *ackWaiter, offset uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	rest := slices.DeleteFunc(g.awaited[offset], func(other *ackWaiter) bool { return other == a })
	if len(rest) == 0 {
		delete(g.awaited, offset)
	} else {
		g.awaited[offset] = rest
	}
}

// acked notes that a group is done with the event at an offset; a publication may
// have it twice, by a duplicate id. g.mu is held.
func (a *ackWaiter) acked(g *group, offset uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.open, awaitedEvent{g, offset})
	if len(a.open) == 0 && !a.known {
		a.known = true
		a.timer.Reset(0)
	}
}

// ended reports whether the outcome is known, so that nobody needs to be notified.
func (a *ackWaiter) ended() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.known
}

// settle ends the wait with an error; the first outcome counts. It may be called
// under the lock of a group.
func (a *ackWaiter) settle(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.known {
		a.known, a.err = true, err
		a.timer.Reset(0)
	}
}

// end runs on the timer's goroutine: the outcome is known, or time is up.
func (a *ackWaiter) end() {
	a.mu.Lock()
	if a.answered {
		a.mu.Unlock()
		return // the timer ran out as it was set
	}
	a.answered = true
	if !a.known {
		a.known, a.err = true, a.timeout()
	}
	a.stop()
	open := a.open
	a.open = nil
	a.pub.Err = a.err
	a.mu.Unlock()
	for w := range open {
		w.group.unawait(a, w.offset)
	}
	bus := a.ackWait.bus
	a.ackWait.leave()
	bus.awaits.Done()
}

// timeout names each group that has not acked, with the first event. a.mu is held.
func (a *ackWaiter) timeout() error {
	var who []string
	named := "" // the group named last
	for i, w := range a.all() {
		event := i % len(a.pub.Events)
		if !a.open[w] || len(who) > 0 && named == w.group.name {
			continue
		}
		named = w.group.name
		who = append(who, fmt.Sprintf("group %q has not acked event %q at offset %d of topic %q",
			w.group.name, a.pub.Receipts[event].ID, w.offset, w.group.log.Topic()))
	}
	return eventhub.Errorf(eventhub.CodeWaitTimeout, "%s; the events are published", strings.Join(who, ", "))
}
