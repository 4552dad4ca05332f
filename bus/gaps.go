package bus

import (
	"context"

	"eventhub"
	"eventhub/bus/internal/commit"
	"eventhub/bus/internal/groupstate"
	"eventhub/store"
)

// Events that were removed before a group was done with them (groupstate, gaps.go). The turn
// finds them: its reads say where the horizon is. They are in the store before the next
// delivery, in a commit whose end wakes the group; others have the room of the members
// meanwhile.

// gapsJob makes the gaps of a group durable.
type gapsJob struct {
	commit.Request

	group *group
	added uint64 // gaps that the write has
}

// mustWrite reports whether the turn has to submit a gapsJob. g.mu is held.
func (g *group) mustWrite() bool {
	if g.ended != nil || g.writing || !g.state.GapsPending() {
		return false
	}
	g.writing = true
	return true
}

// writeGaps submits a gapsJob. g.mu is not held: the committer, which makes room, may be
// waiting for it.
func (g *group) writeGaps() {
	p := &gapsJob{group: g}
	p.Units, p.Durable = make([]store.Unit, 1), true
	// An error means that the hub stops; the gaps are found again then.
	_ = g.bus.committer.Submit(context.Background(), p)
}

// Build implements commit.Job.
func (p *gapsJob) Build() bool {
	g := p.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.deleted {
		return false
	}
	p.Units[0].Groups = []store.GroupChange{g.change(g.state.Cursor())}
	p.added, _ = g.state.GapsAdded()
	return true
}

// Done implements commit.Job. After an error of the store nothing is delivered any more.
func (p *gapsJob) Done(err error) {
	g := p.group
	if err != nil {
		return
	}
	if refused := p.Units[0].Err; refused != nil {
		g.Refused(refused)
		return
	}
	g.mu.Lock()
	g.writing = false
	g.state.GapsDurable(p.added)
	g.mu.Unlock()
	g.bus.sched.Schedule(g)
}

// gapOf returns the gap that goes with the delivery of an event, nil for most. g.mu is held.
func (g *group) gapOf(e *groupstate.Entry) *eventhub.Gap {
	after, first, passed, ok := g.state.Gap(e)
	if !ok {
		return nil
	}
	return &eventhub.Gap{Topic: g.log.Topic(), After: after, First: first, Compacted: passed.Compacted, Tombstones: passed.Tombstones}
}
