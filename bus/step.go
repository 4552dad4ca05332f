package bus

import (
	"eventhub/bus/internal/commit"
	"eventhub/store"
)

// groupStep is one atomic step in which events of a group are done and others are
// published: an ack-and-publish (ackpublish.go) or a dead letter
// (deadletter.go). How steps share a commit is described above commit.Step.
type groupStep struct {
	commit.Publication
	group   *group
	epoch   uint64
	offsets []uint64 // of the entries that are done with it

	// Of an ack-and-publish, which is one of call; a dead letter has none.
	call    *ackPublishCall
	index   int
	delayed []delayedEvent // parallel to Unit.Plans
	late    []uint64       // offsets whose lease had run out when the step began: they have their time of waiting

	lost bool // its entries are not what they were; the committer's
}

// asSteps returns steps as what the committer takes.
func asSteps(xs []*groupStep) []commit.Step {
	list := make([]commit.Step, len(xs))
	for i, x := range xs {
		list[i] = x
	}
	return list
}

// before and under are the states of its entries, outside of a commit and in one.
func (x *groupStep) before() entryState {
	if x.call != nil {
		return ackPending
	}
	return letterPending
}

func (x *groupStep) under() entryState {
	if x.call != nil {
		return ackInCommit
	}
	return letterInCommit
}

// stands reports whether all of its entries are in a state, and the group was not
// moved since it began. x.group.mu is held.
func (x *groupStep) stands(state entryState) bool {
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
func (x *groupStep) become(state entryState) {
	for _, offset := range x.offsets {
		x.group.become(x.group.find(offset), state)
	}
}

// Gather implements commit.Step.
func (x *groupStep) Gather() { x.group.steps = append(x.group.steps, x) }

// Enter implements commit.Step.
func (x *groupStep) Enter(u *store.Unit) bool {
	if len(x.group.steps) > 0 {
		if change, ok := x.group.enter(); ok {
			u.Groups = append(u.Groups, change)
		}
	}
	if x.lost {
		x.answer(errLost)
	}
	return !x.lost
}

// enter marks the entries of g.steps as settled by the commit that is being
// built, and returns the state of the group in which they are done. Those that no
// longer stand are lost. ok is false where all are.
func (g *group) enter() (change store.GroupChange, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, x := range g.steps {
		if x.lost = !x.stands(x.before()); !x.lost {
			x.become(x.under())
			ok = true
		}
	}
	clear(g.steps)
	g.steps = g.steps[:0]
	if ok {
		change = g.change(g.window.cursorAfterCommit())
	}
	return change, ok
}

// Succeeded implements commit.Step: it takes the entries off.
func (x *groupStep) Succeeded() {
	g := x.group
	now := g.bus.clock.Now()
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
	g.bus.sched.Schedule(g) // there is room, and the window may have opened
	x.answer(nil)
}

// Withdraw implements commit.Step: it makes the entries what they were before a commit
// that was refused.
func (x *groupStep) Withdraw() {
	x.group.mu.Lock()
	defer x.group.mu.Unlock()
	x.takeOut()
}

// takeOut is Withdraw; it reports whether the entries are still those of the
// exchange. x.group.mu is held.
func (x *groupStep) takeOut() bool {
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
// without the step.
func (x *groupStep) Refused(refused error) {
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
	g.bus.sched.Schedule(g)
	x.answer(refusedError(refused))
}

// Broken implements commit.Step.
func (x *groupStep) Broken(err error) { x.answer(err) }

// answer tells whoever waits for the step. Nobody waits for a dead letter.
func (x *groupStep) answer(err error) {
	if x.call != nil {
		x.call.answer(x.index, x, err)
	}
}

// refusedError translates why the store refused an ack-and-publish.
func refusedError(err error) error {
	if isOutdated(err) {
		return errLost
	}
	return unitError(err)
}
