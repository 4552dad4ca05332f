package groupstate

import "slices"

// Step is what one atomic step of the store settles in a group: an ack-and-publish or a
// dead letter. From Begin until its commit has an outcome its events have no deadline and
// are delivered to nobody.
type Step struct {
	epoch   uint64
	offsets []uint64
	letter  bool
	late    []uint64 // offsets whose lease had ended before: they have their time of waiting
}

// Offsets returns the offsets of its events, rising.
func (x *Step) Offsets() []uint64 { return x.offsets }

// before and in are the states of its events, outside of a commit and in one.
func (x *Step) before() State {
	if x.letter {
		return LetterPending
	}
	return AckPending
}

func (x *Step) in() State {
	if x.letter {
		return LetterInCommit
	}
	return AckInCommit
}

// BeginAcks begins a step that acks events, in the order of their offsets. Each event is Leased
// or Waiting. The caller has reserved room of their holders for those that are Waiting.
func (g *Group) BeginAcks(entries []*Entry) Step {
	x := Step{epoch: g.epoch, offsets: make([]uint64, len(entries))}
	for i, e := range entries {
		x.offsets[i] = e.offset
		if e.state == Waiting {
			x.late = append(x.late, e.offset)
		}
		g.become(e, joinedStep)
	}
	return x
}

// Stands reports whether a step that is in no commit may still enter one.
func (g *Group) Stands(x *Step) bool { return g.isIn(x, x.before()) }

// LetterGone settles the event of a dead letter that is in no commit and that the log has no
// longer.
func (g *Group) LetterGone(x *Step, now int64) {
	if g.Stands(x) {
		g.Gone(g.Find(x.offsets[0]), now)
	}
}

// BeginLetter begins the step of a dead letter.
func (g *Group) BeginLetter(e *Entry) Step {
	return Step{epoch: g.epoch, offsets: []uint64{e.offset}, letter: true}
}

// isIn reports whether all events of a step are in a state, and the group was not sought
// since it began.
func (g *Group) isIn(x *Step, state State) bool {
	if g.epoch != x.epoch || g.deleted {
		return false
	}
	for _, offset := range x.offsets {
		if e := g.Find(offset); e == nil || e.state != state {
			return false
		}
	}
	return true
}

func (g *Group) each(x *Step, what happening) {
	for _, offset := range x.offsets {
		g.become(g.Find(offset), what)
	}
}

// Enter says that the step is in the commit that is being built. It reports whether that may
// be: not where the group was sought since it began.
func (g *Group) Enter(x *Step) bool {
	if !g.Stands(x) {
		return false
	}
	g.each(x, enteredCommit)
	for _, gaps := range g.progress.bothGaps() {
		gaps.changed = gaps.changed || len(gaps.list) > 0 // those that go with its events end with it
	}
	return true
}

// Committed says that the commit of the step has succeeded.
func (g *Group) Committed(x *Step, now int64) {
	if !g.isIn(x, x.in()) { // a seek came after Enter
		g.overtaken(x, true, now)
		return
	}
	how := Acked
	if x.letter {
		how = DeadLettered
	}
	for _, offset := range x.offsets {
		g.settle(g.Find(offset), wasCommitted, how, now)
	}
}

// Withdraw says that the store refused the commit: its events are what they were before Enter.
// It reports whether they still are those of the step.
func (g *Group) Withdraw(x *Step, now int64) bool {
	// Also where a seek came in between: the write that was refused may have
	// carried its reset.
	g.progress.rewrite(&g.window)
	if !g.isIn(x, x.in()) {
		g.overtaken(x, false, now)
		return false
	}
	g.each(x, leftCommit)
	return true
}

// overtaken ends what a commit has decided of redriven events whose group was sought
// while it was under way.
func (g *Group) overtaken(x *Step, done bool, now int64) {
	for _, offset := range x.offsets {
		r := g.progress.redriven[offset]
		switch {
		case r == nil || r.state != RedriveInCommit:
		case done && x.letter:
			g.settle(&r.Entry, redriveOvertaken, LateLetter, now)
		case done:
			g.settle(&r.Entry, redriveOvertaken, Passed, now)
		default:
			g.progress.moved[offset] = true
			g.revive(r)
		}
	}
}

// Release ends a step of acks that is in no commit: its events are what they were, as if it
// had not begun, where they still are those of the step. A lease that would have ended
// in the meantime was not its holder's fault: the event is due at once, and the attempt does not
// count. So it is where the group has ended.
func (g *Group) Release(x *Step, now int64) {
	if !g.Stands(x) {
		return
	}
	for _, offset := range x.offsets {
		e := g.Find(offset)
		switch {
		case slices.Contains(x.late, offset):
			g.retry(e, stepLeft, e.at)
		case e.at > now && !g.ended && e.holder.Member.KeepsLeases():
			g.become(e, stepKept)
			g.leases.push(timed{e.at, e.offset})
		default:
			e.attempts--
			g.retry(e, stepLeft, now)
		}
	}
}

// Abandon gives an event up without a dead letter.
func (g *Group) Abandon(e *Entry, now int64) { g.settle(e, wasAbandoned, Abandoned, now) }

// LetterNotMade puts an event whose dead letter could not be made, or was refused, back for a
// last attempt, and returns when it is due.
func (g *Group) LetterNotMade(offset uint64, now int64) (at int64) {
	e := g.Find(offset)
	at = now + g.config.MaxBackoff
	if g.retry(e, letterNotMade, at) {
		e.attempts = max(e.attempts, 1) - 1
	}
	return at
}
