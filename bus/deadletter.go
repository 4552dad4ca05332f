package bus

import (
	"context"

	"eventhub"
	"eventhub/bus/internal/commit"
	"eventhub/bus/internal/deadletter"
	"eventhub/bus/internal/groupstate"
	"eventhub/bus/internal/publish"
	"eventhub/store"
)

// A dead letter (package bus/internal/deadletter) is appended in one unit with the state of
// the group, in which the original is done.

// makeLetters prepares the dead letters of what was read. g.mu is held.
func (g *group) makeLetters(pending []groupstate.Letter, items []store.Item) []*groupStep {
	var all []*groupStep
	now := g.bus.clock.Now()
	for i, p := range pending {
		e := g.state.Find(p.Offset)
		if e == nil || e.State() != groupstate.LetterPending {
			continue
		}
		if items[i].Record == nil {
			g.state.Gone(e, now) // it was removed: there is nothing to keep, and its group is notified
			continue
		}
		if eventhub.IsDeadLetterTopic(g.log.Topic()) {
			// It stays where it is: a dead letter has no dead letter of its own.
			g.bus.log.Warn("a group gave up a dead letter", "topic", g.log.Topic(), "group", g.name, "offset", p.Offset, "reason", p.Reason)
			g.state.Abandon(e, now)
			continue
		}
		x, err := g.letter(e, p.Reason, items[i].Record)
		if err != nil {
			g.bus.log.Error("cannot make a dead letter; the event stays in its group", "topic", g.log.Topic(), "group", g.name, "offset", p.Offset, "error", err)
			g.retryLater(p.Offset, now)
			continue
		}
		all = append(all, x)
	}
	return all
}

// letter makes the step of the dead letter of an entry. g.mu is held.
func (g *group) letter(e *groupstate.Entry, reason string, rec eventhub.Record) (*groupStep, error) {
	offset := e.Offset()
	letter := deadletter.Letter{
		Topic: g.log.Topic(), Group: g.name, Epoch: g.state.Epoch(), Offset: offset, Record: rec, Attempts: e.Attempts(),
		Mark: g.state.Mark(offset), Redriven: e.Redriven(), Reason: reason, History: g.state.History(offset),
	}
	event, err := letter.Event()
	if err != nil {
		return nil, err
	}
	var events publish.Events
	if err := events.AddMade(&event); err != nil {
		return nil, err
	}
	return &groupStep{
		group: g, Step: g.state.BeginLetter(e), removals: g.fetch.removals,
		Publication: commit.Publication{Unit: events.Unit(), Bytes: events.Bytes()},
	}, nil
}

// submitLetters submits dead letters. g.mu is not held.
func (g *group) submitLetters(letters []*groupStep) {
	if len(letters) == 0 {
		return
	}
	// An error means that the hub stops; the events are delivered again then.
	_ = g.bus.committer.SubmitSteps(context.Background(), asSteps(letters))
}

// lookAgain ends the dead letters of g.steps whose events were removed since they were read: what
// is erased must not come back in a dead letter. The commit that is being built comes after
// that of the removal, so nobody else has to look. g.mu is not held.
func (g *group) lookAgain() {
	ended := false
	for _, x := range g.steps {
		if x.call != nil || x.removals == g.log.Removals() {
			continue
		}
		gone, err := g.isGone(x.Offsets()[0])
		if !gone && err == nil {
			continue
		}
		g.mu.Lock()
		if now := g.bus.clock.Now(); err == nil {
			g.state.LetterGone(&x.Step, now)
		} else if g.state.Stands(&x.Step) {
			g.letterRefused(x, err, now)
		}
		g.mu.Unlock()
		ended = true
	}
	if ended {
		g.bus.sched.Schedule(g) // there is a gap to be written
	}
}

// isGone reports whether the log has an event no longer.
func (g *group) isGone(offset uint64) (bool, error) {
	var batch store.Batch
	if err := g.bus.store.Read(context.Background(), g.log.Topic(), offset, 1, 0, &batch); err != nil {
		return false, err
	}
	return len(batch.Items) == 0 || batch.Items[0].Offset != offset, nil
}
