package commit

import (
	"context"

	"eventhub/store"
)

// A step settles events of a group and publishes others, both or neither. Its unit has
// the new events, and the state of the group in which the old ones are done.
//
// That state is one row and some parts for the whole group, and a later write of it
// replaces an earlier one. So where a commit has several steps of one group, the state
// in each must count the events of all those before it as done: else the last one would
// take back what the others did. But then a step must not be refused while a later one of
// its group is not, for the later one would say that its events are done, and nothing
// would have been published for them: half of an atomic step, for good if the process
// died then.
//
// Therefore all steps of a commit, of whatever group, go as ONE unit: what they publish one
// after the other, and each group's state once, built when all events of these steps are
// marked. The unit comes after everything else in the commit: no other write of a group
// takes these events for done, and none comes later that does not. It is applied or
// refused as a whole.
//
// When it is refused, nothing of it has happened: each step is withdrawn, and tried again
// alone in a commit, where a refusal concerns nobody else. That should be rare, for it
// costs a commit each. What a single step can be refused for is a topic too many, or a
// condition that does not hold; so one that would create a topic, or has a condition, goes alone from the
// start, and the others cannot be refused for it. The condition is about what is there before
// the step, too, and of a joint unit the store would take it to be about what is there before all of
// them. A group that was deleted or moved has no steps: Enter finds out, and only the
// committer deletes.

// Step is such a step. The methods are called on the committer's goroutine, in the order
// Gather, Enter and, where that returned true, one of Succeeded, Withdraw (after which it
// begins again), Refused and Broken.
type Step interface {
	// Publishes returns what the step publishes; the same each time.
	Publishes() *Publication
	// Gather notes that the step goes with the commit that is being built.
	Gather()
	// Enter marks the events of all steps that were gathered of the same group, adds the
	// group's state to the unit, once for all of them, and reports whether this step
	// is part of it. One that is not has answered its caller.
	Enter(*store.Unit) bool
	// Succeeded takes the events off and answers: the step is in the store. What was
	// published has its results.
	Succeeded()
	// Withdraw makes the events what they were before Enter.
	Withdraw()
	// Refused says why the store refused the step, which was alone, and answers.
	Refused(error)
	// Broken answers that the outcome is unknown.
	Broken(error)
}

// Publication is what a step publishes; a step embeds it.
type Publication struct {
	Unit  store.Unit // has the results afterwards
	Bytes int        // of its records

	alone bool // a unit was refused that it was a part of
}

// Publishes implements Step.
func (p *Publication) Publishes() *Publication { return p }

// joint is the unit of the steps. Its Request has that one unit.
type joint struct {
	Request
	waiting []Step // taken from the queue and not committed yet, in order
	going   []Step // in the commit under way
}

func (j *joint) isEmpty() bool { return len(j.waiting) == 0 }

// SubmitSteps queues steps, as Submit does jobs.
func (c *Committer) SubmitSteps(ctx context.Context, steps []Step) error {
	it := item{steps: steps}
	for _, s := range steps {
		it.bytes += s.Publishes().Bytes
	}
	return c.submit(ctx, it)
}

// join builds the joint unit of the steps that go with this commit, and reports whether
// there is anything in it.
func (c *Committer) join() bool {
	j := &c.joint
	if len(j.waiting) == 0 {
		return false
	}
	c.pick()
	if j.Units == nil {
		j.Units = make([]store.Unit, 1)
	}
	u := &j.Units[0]
	for _, s := range j.going {
		s.Gather()
	}
	kept := j.going[:0]
	j.Bytes = 0
	for _, s := range j.going {
		if !s.Enter(u) {
			continue
		}
		p := s.Publishes()
		u.Appends = append(u.Appends, p.Unit.Appends...)
		u.Delays = append(u.Delays, p.Unit.Delays...)
		u.Cancels = append(u.Cancels, p.Unit.Cancels...)
		j.Bytes += p.Bytes
		kept = append(kept, s)
	}
	clear(j.going[len(kept):])
	j.going = kept
	return len(kept) > 0
}

// pick moves the steps that go with this commit to c.joint.going: the first one alone
// where it must, else all that need not go alone, up to commitBytes.
func (c *Committer) pick() {
	j := &c.joint
	j.going = j.going[:0]
	rest := j.waiting[:0]
	bytes, full := 0, false
	for i, s := range j.waiting {
		p := s.Publishes()
		switch alone := !full && (p.alone || expects(&p.Unit) || c.creates(&p.Unit)); {
		case full || alone && i > 0:
			rest = append(rest, s)
			continue
		case alone:
			full = true
		case len(j.going) > 0 && bytes+p.Bytes > commitBytes:
			full = true
			rest = append(rest, s)
			continue
		}
		bytes += p.Bytes
		j.going = append(j.going, s)
	}
	clear(j.waiting[len(rest):])
	j.waiting = rest
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queued -= bytes
	c.admitWaiting()
}

// expects reports whether a unit may be refused by a condition.
func expects(u *store.Unit) bool {
	for i := range u.Appends {
		if !u.Appends[i].Expect.IsZero() {
			return true
		}
	}
	return false
}

// finishJoint answers the steps of the joint unit.
func (c *Committer) finishJoint(err error) {
	j := &c.joint
	u := &j.Units[0]
	appends, delays := u.Appends, u.Delays
	for _, s := range j.going {
		unit := &s.Publishes().Unit
		appends = appends[copy(unit.Appends, appends):]
		delays = delays[copy(unit.Delays, delays):]
	}
	switch {
	case err != nil:
		for _, s := range j.going {
			s.Broken(err)
		}
	case u.Err == nil:
		for _, s := range j.going {
			s.Succeeded()
		}
	case len(j.going) == 1:
		j.going[0].Refused(u.Err)
	default:
		c.opts.Logger.Warn("the store refused a joint unit; its parts are tried again one by one", "parts", len(j.going), "error", u.Err)
		c.takeBack()
	}
	j.forget()
}

// takeBack makes the steps of a joint unit that was refused the next to be tried, each
// alone.
func (c *Committer) takeBack() {
	j := &c.joint
	bytes := 0
	for _, s := range j.going {
		s.Withdraw()
		p := s.Publishes()
		p.alone = true
		bytes += p.Bytes
	}
	j.waiting = append(append(make([]Step, 0, len(j.going)+len(j.waiting)), j.going...), j.waiting...)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queued += bytes
}

// forget lets go of what the joint unit held, and keeps its room.
func (j *joint) forget() {
	u := &j.Units[0]
	clear(u.Appends)
	clear(u.Delays)
	clear(u.Cancels)
	clear(u.Groups)
	j.Units[0] = store.Unit{Appends: u.Appends[:0], Delays: u.Delays[:0], Cancels: u.Cancels[:0], Groups: u.Groups[:0]}
	clear(j.going)
}
