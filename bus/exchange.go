package bus

import (
	"context"

	"eventhub/store"
)

// An exchange is one atomic step in which events of a group are done and others
// are published: a handover (handover.go) or a burial, which publishes a dead
// letter (deadletter.go). Its unit has the new events, and the state of the group
// in which the old ones are done.
//
// That state is one row and some parts for the whole group, and a later write of
// it replaces an earlier one. So where a commit has several exchanges of one
// group, the state in each must count the events of all those before it as done:
// else the last one would take back what the others did. But then an exchange
// must not be refused while a later one of its group is not, for the later one
// would say that its events are done, and nothing would have been published for
// them: half of an atomic step, for good if the process died then.
//
// Hence all exchanges of a commit, of whatever group, go as ONE unit: what they
// publish one behind the other, and each group's state once, built when all
// events of these exchanges are marked. The unit stands behind everything else in
// the commit: no other write of a group takes these events for done, and none
// comes later that does not. It is applied or refused as a whole.
//
// When it is refused, nothing of it has happened: its events become again what
// they were, their groups write everything anew (what they took for written was
// not), and each exchange is tried again alone in a commit, where a refusal
// concerns nobody else. That should be rare, for it costs a commit each. What a
// single exchange can be refused for is a topic too many; so one that would create
// a topic goes alone from the start, and the others cannot be refused for it.
// A group that was deleted or moved has no exchanges: enter finds out under its
// lock, and only the committer deletes.
//
// Exchanges go in the order in which they were submitted, save that those which
// go alone let the others of their commit go ahead.

type exchange struct {
	group   *group
	epoch   uint64
	offsets []uint64   // of the entries that are done with it
	unit    store.Unit // what it publishes; has the results afterwards
	bytes   int        // of its records

	// Of a handover, which is one of call; a burial has none.
	call    *handing
	index   int
	planned []plannedEvent // parallel to unit.Plans
	late    []uint64       // offsets whose lease had run out when they were pledged: they have their time of waiting

	// The committer's.
	alone bool // a unit was refused that it was a part of
	lost  bool // its entries are not what they were
}

// before and under are the states of its entries, outside of a commit and in one.
func (x *exchange) before() entryState {
	if x.call != nil {
		return pledged
	}
	return burying
}

func (x *exchange) under() entryState {
	if x.call != nil {
		return handed
	}
	return interred
}

// stands reports whether all of its entries are in a state, and the group was not
// moved since it began. x.group.mu is held.
func (x *exchange) stands(state entryState) bool {
	if x.group.epoch != x.epoch || x.group.deleted {
		return false
	}
	for _, offset := range x.offsets {
		if e := x.group.find(offset); e == nil || e.state != state {
			return false
		}
	}
	return true
}

// become moves its entries on. x.group.mu is held.
func (x *exchange) become(state entryState) {
	for _, offset := range x.offsets {
		x.group.become(x.group.find(offset), state)
	}
}

// join builds c.joint, the one unit of the exchanges that go with this commit, and
// reports whether there is anything in it.
func (c *committer) join() bool {
	if len(c.exchanges) == 0 {
		return false
	}
	c.pick()
	if c.joint.units == nil {
		c.joint = submission{units: make([]store.Unit, 1), finish: c.finishJoint}
	}
	u := &c.joint.units[0]
	for _, x := range c.going {
		x.group.exchanges = append(x.group.exchanges, x)
	}
	kept := c.going[:0]
	for _, x := range c.going {
		if len(x.group.exchanges) > 0 {
			if change, ok := x.group.enter(); ok {
				u.Groups = append(u.Groups, change)
			}
		}
		if x.lost {
			x.answer(errLost)
			continue
		}
		u.Appends = append(u.Appends, x.unit.Appends...)
		u.Plans = append(u.Plans, x.unit.Plans...)
		u.Unplans = append(u.Unplans, x.unit.Unplans...)
		kept = append(kept, x)
	}
	clear(c.going[len(kept):])
	c.going = kept
	c.joint.bytes = 0
	for _, x := range kept {
		c.joint.bytes += x.bytes
	}
	return len(kept) > 0
}

// pick moves the exchanges that go with this commit to c.going: the first one
// alone where it must, else all that need not go alone, up to commitBytes.
func (c *committer) pick() {
	c.going = c.going[:0]
	rest := c.exchanges[:0]
	bytes, full := 0, false
	for i, x := range c.exchanges {
		switch alone := !full && (x.alone || c.creates(&x.unit)); {
		case full || alone && i > 0:
			rest = append(rest, x)
			continue
		case alone:
			full = true
		case len(c.going) > 0 && bytes+x.bytes > commitBytes:
			full = true
			rest = append(rest, x)
			continue
		}
		bytes += x.bytes
		c.going = append(c.going, x)
	}
	clear(c.exchanges[len(rest):])
	c.exchanges = rest
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queued -= bytes
	c.admitWaiting()
}

// mostTopics bounds the topics that the committer remembers.
const mostTopics = 10_000

// creates reports whether a unit may create a topic.
func (c *committer) creates(u *store.Unit) bool {
	for i := range u.Appends {
		if !c.isThere(u.Appends[i].Topic) {
			return true
		}
	}
	for i := range u.Plans {
		if !c.isThere(u.Plans[i].Topic) {
			return true
		}
	}
	return false
}

// isThere reports whether a topic exists for sure; those that are deleted are
// forgotten.
func (c *committer) isThere(topic string) bool {
	if c.topics[topic] {
		return true
	}
	if _, err := c.bus.store.Topic(context.Background(), topic); err != nil {
		return false // a read that failed too: to go alone is never wrong
	}
	if len(c.topics) >= mostTopics {
		clear(c.topics)
	}
	c.topics[topic] = true
	return true
}

// enter marks the entries of g.exchanges as settled by the commit that is being
// built, and returns the state of the group in which they are done. Those that no
// longer stand are lost. ok is false where all are.
func (g *group) enter() (change store.GroupChange, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, x := range g.exchanges {
		if x.lost = !x.stands(x.before()); !x.lost {
			x.become(x.under())
			ok = true
		}
	}
	clear(g.exchanges)
	g.exchanges = g.exchanges[:0]
	if ok {
		change = g.change(g.window.cursorAfterCommit())
	}
	return change, ok
}

// finishJoint tells what became of the joint unit.
func (c *committer) finishJoint(s *submission, err error) {
	u := &s.units[0]
	appends, plans := u.Appends, u.Plans
	for _, x := range c.going {
		appends = appends[copy(x.unit.Appends, appends):]
		plans = plans[copy(x.unit.Plans, plans):]
	}
	switch {
	case err != nil:
		for _, x := range c.going {
			x.answer(err)
		}
	case u.Err == nil:
		now := c.bus.clock.now()
		for _, x := range c.going {
			x.succeed(now)
			x.answer(nil)
		}
	case len(c.going) == 1:
		c.going[0].fail(u.Err)
		c.going[0].answer(refusedError(u.Err))
	default:
		c.bus.log.Warn("the store refused a joint unit; its parts are tried again one by one", "parts", len(c.going), "error", u.Err)
		c.takeBack()
	}
	c.forgetJoint()
}

// takeBack makes the exchanges of a joint unit that was refused the next to be
// tried, each alone.
func (c *committer) takeBack() {
	bytes := 0
	for _, x := range c.going {
		x.withdraw()
		x.alone = true
		bytes += x.bytes
	}
	c.exchanges = append(append(make([]*exchange, 0, len(c.going)+len(c.exchanges)), c.going...), c.exchanges...)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queued += bytes
}

// forgetJoint lets go of what the joint unit held, and keeps its room.
func (c *committer) forgetJoint() {
	u := &c.joint.units[0]
	clear(u.Appends)
	clear(u.Plans)
	clear(u.Unplans)
	clear(u.Groups)
	*u = store.Unit{Appends: u.Appends[:0], Plans: u.Plans[:0], Unplans: u.Unplans[:0], Groups: u.Groups[:0]}
	clear(c.going)
}

// succeed takes the entries off, behind the commit in which they are done.
func (x *exchange) succeed(now int64) {
	g := x.group
	g.mu.Lock()
	if x.stands(x.under()) { // else a seek came behind it
		for _, offset := range x.offsets {
			e := g.find(offset)
			if x.call != nil {
				g.counts.acked(e, now)
			} else {
				g.counts.DeadLettered++
				g.tell(offset, gaveUpDead)
			}
			g.finish(e)
		}
	} else {
		x.outcome(true)
	}
	g.mu.Unlock()
	g.bus.workers.schedule(g) // there is room, and the window may have opened
}

// withdraw makes the entries what they were before a commit that was refused.
func (x *exchange) withdraw() {
	x.group.mu.Lock()
	defer x.group.mu.Unlock()
	x.takeOut()
}

// takeOut is withdraw; it reports whether the entries are still those of the
// exchange. x.group.mu is held.
func (x *exchange) takeOut() bool {
	// Also where a seek came in between: the write that was refused may have
	// carried its reset.
	x.group.progress.rewrite(&x.group.window)
	if !x.stands(x.under()) {
		x.outcome(false)
		return false
	}
	x.become(x.before())
	return true
}

// fail gives the entries up to what happens to them without the exchange.
func (x *exchange) fail(refused error) {
	g := x.group
	g.mu.Lock()
	if x.takeOut() {
		if x.call != nil {
			g.giveBack(x)
		} else {
			g.unburied(x, refused)
		}
	}
	g.mu.Unlock()
	g.bus.workers.schedule(g)
}

// answer tells whoever waits for the exchange. Nobody waits for a burial.
func (x *exchange) answer(err error) {
	if x.call != nil {
		x.call.answer(x.index, x, err)
	}
}

// refusedError translates why the store refused a handover.
func refusedError(err error) error {
	if isOutdated(err) {
		return errLost
	}
	return unitError(err)
}
