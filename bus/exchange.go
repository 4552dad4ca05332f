package bus

import (
	"eventhub/bus/internal/commit"
	"eventhub/store"
)

// exchange is one atomic step in which events of a group are done and others are
// published: a handover (handover.go) or a dead letter
// (deadletter.go). How steps share a commit is described above commit.Step.
type exchange struct {
	commit.Publication
	group   *group
	epoch   uint64
	offsets []uint64 // of the entries that are done with it

	// Of a handover, which is one of call; a dead letter has none.
	call    *handing
	index   int
	planned []plannedEvent // parallel to Unit.Plans
	late    []uint64       // offsets whose lease had run out when they were pledged: they have their time of waiting

	lost bool // its entries are not what they were; the committer's
}

// asSteps returns exchanges as what the committer takes.
func asSteps(xs []*exchange) []commit.Step {
	list := make([]commit.Step, len(xs))
	for i, x := range xs {
		list[i] = x
	}
	return list
}

// before and under are the states of its entries, outside of a commit and in one.
func (x *exchange) before() entryState {
	if x.call != nil {
		return pledged
	}
	return letterPending
}

func (x *exchange) under() entryState {
	if x.call != nil {
		return handed
	}
	return letterInCommit
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

// Gather implements commit.Step.
func (x *exchange) Gather() { x.group.exchanges = append(x.group.exchanges, x) }

// Enter implements commit.Step.
func (x *exchange) Enter(u *store.Unit) bool {
	if len(x.group.exchanges) > 0 {
		if change, ok := x.group.enter(); ok {
			u.Groups = append(u.Groups, change)
		}
	}
	if x.lost {
		x.answer(errLost)
	}
	return !x.lost
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

// Succeeded implements commit.Step: it takes the entries off.
func (x *exchange) Succeeded() {
	g := x.group
	now := g.bus.clock.now()
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
	x.answer(nil)
}

// Withdraw implements commit.Step: it makes the entries what they were before a commit
// that was refused.
func (x *exchange) Withdraw() {
	x.group.mu.Lock()
	defer x.group.mu.Unlock()
	x.takeOut()
}

// takeOut is Withdraw; it reports whether the entries are still those of the
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

// Refused implements commit.Step: it gives the entries up to what happens to them
// without the exchange.
func (x *exchange) Refused(refused error) {
	g := x.group
	g.mu.Lock()
	if x.takeOut() {
		if x.call != nil {
			g.giveBack(x)
		} else {
			g.letterRefused(x, refused)
		}
	}
	g.mu.Unlock()
	g.bus.workers.schedule(g)
	x.answer(refusedError(refused))
}

// Broken implements commit.Step.
func (x *exchange) Broken(err error) { x.answer(err) }

// answer tells whoever waits for the exchange. Nobody waits for a dead letter.
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
