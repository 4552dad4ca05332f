package bus

import (
	"errors"
	"sync/atomic"

	"eventhub"
	"eventhub/bus/internal/commit"
	"eventhub/bus/internal/groupstate"
	"eventhub/bus/internal/publish"
	"eventhub/store"
)

// groupStep is one atomic step in which events of a group are done and others are
// published: an ack-and-publish (ackpublish.go) or a dead letter
// (deadletter.go). How steps share a commit is described above commit.Step.
type groupStep struct {
	commit.Publication
	groupstate.Step
	group *group

	// Of an ack-and-publish, which is one of call; a dead letter has none.
	call    *ackPublishCall
	index   int
	delayed publish.Delayed // events of the unit

	removals uint64 // of the log, as of before the event of a dead letter was read

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
	g.lookAgain()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, x := range g.steps {
		x.lost = !g.state.Enter(&x.Step)
		ok = ok || !x.lost
	}
	clear(g.steps)
	g.steps = g.steps[:0]
	if ok {
		change = g.change(g.state.CursorAfterCommit())
	}
	return change, ok
}

// Succeeded implements commit.Step: it takes the entries off.
func (x *groupStep) Succeeded() {
	g := x.group
	g.mu.Lock()
	g.state.Committed(&x.Step, g.bus.clock.Now())
	g.mu.Unlock()
	g.bus.sched.Schedule(g) // there is room, and the window may have opened
	x.answer(nil)
}

// Withdraw implements commit.Step: it makes the entries what they were before a commit
// that was refused.
func (x *groupStep) Withdraw() {
	x.group.mu.Lock()
	defer x.group.mu.Unlock()
	x.group.state.Withdraw(&x.Step, x.group.bus.clock.Now())
}

// Refused implements commit.Step: it gives the entries up to what happens to them
// without the step.
func (x *groupStep) Refused(refused error) {
	g := x.group
	g.mu.Lock()
	now := g.bus.clock.Now()
	if g.state.Withdraw(&x.Step, now) {
		if x.call != nil {
			g.state.Release(&x.Step, now)
		} else {
			g.letterRefused(x, refused, now)
		}
	}
	g.mu.Unlock()
	g.bus.sched.Schedule(g)
	x.Unit.Err = refused
	x.answer(g.bus.stepError(&x.Unit, x.delayed))
}

// Broken implements commit.Step.
func (x *groupStep) Broken(err error) { x.answer(err) }

// answer answers whoever waits for the step. Nobody waits for a dead letter.
func (x *groupStep) answer(err error) {
	if x.call != nil {
		x.call.answer(x.index, x, err)
	}
}

// stepError translates why the store refused what settles events and publishes others.
func (b *Bus) stepError(u *store.Unit, delayed publish.Delayed) error {
	var n *store.NotIndexedError
	switch {
	case isOutdated(u.Err):
		return errLost
	case errors.As(u.Err, &n):
		return b.beginIndex(n)
	}
	return publish.RefusedError(u, delayed)
}

// errLost is an ack-and-publish's outcome when its deliveries were taken from it.
var errLost = eventhub.Errorf(eventhub.CodeLeaseLost, "the group was moved or deleted before the ack-and-publish was committed; nothing was published")

// ackPublishCall is one call of AckAndPublish.
type ackPublishCall struct {
	hs   []eventhub.AckPublish
	done func([]eventhub.AckPublish)
	left atomic.Int64 // ack-and-publishes whose outcome is not known
}

// answer gives one ack-and-publish its outcome, which is in x where err is nil. The last
// one calls done.
func (c *ackPublishCall) answer(i int, x *groupStep, err error) {
	h := &c.hs[i]
	if h.Err = err; err == nil {
		h.Receipts = publish.Receipts(h.Receipts, &x.Unit, x.delayed)
	}
	if c.left.Add(-1) == 0 {
		c.done(c.hs)
	}
}

// letterRefused puts an event back whose dead letter the store refused. g.mu is held.
func (g *group) letterRefused(x *groupStep, refused error, now int64) {
	offset := x.Offsets()[0]
	g.bus.log.Error("the store refused a dead letter; the event stays in its group", "topic", g.log.Topic(), "group", g.name, "offset", offset, "error", refused)
	g.retryLater(offset, now)
}

// retryLater puts an event that could not be dead-lettered back for a last
// attempt, after the longest backoff.
func (g *group) retryLater(offset uint64, now int64) {
	g.wakeAt(g.state.LetterNotMade(offset, now))
}
