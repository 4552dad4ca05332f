package groupstate

import (
	"math"

	"eventhub"
)

// What is to be delivered or dead-lettered next, and the delivery.

// Letter is an event that is to be dead-lettered.
type Letter struct {
	Offset uint64
	Reason string
}

// HasLetters reports whether events are to be dead-lettered that TakeLetters has not given.
func (g *Group) HasLetters() bool { return len(g.letters) > 0 }

// TakeLetters appends up to most events that are to be dead-lettered. The caller makes their
// dead letters, or returns them.
func (g *Group) TakeLetters(into []Letter, most int) []Letter {
	n := min(len(g.letters), most)
	into = append(into, g.letters[:n]...)
	g.letters = g.letters[n:]
	return into
}

// ReturnLetters takes back what TakeLetters gave.
func (g *Group) ReturnLetters(letters []Letter) { g.letters = append(g.letters, letters...) }

// Overdue takes the next deadline that has passed: ok reports whether there was one, and e is
// the event whose lease has ended, nil where the lease was settled or extended before. The
// caller makes it Fail, or postpones it.
func (g *Group) Overdue(now int64) (e *Entry, ok bool) {
	if len(g.leases) == 0 || g.leases[0].at > now {
		return nil, false
	}
	t := g.leases[0]
	g.leases.pop()
	if !g.isLeaseDue(t) {
		return nil, true
	}
	return g.Find(t.offset), true
}

// NextDeadline returns when the next lease ends, 0 where there is none.
func (g *Group) NextDeadline() int64 {
	for len(g.leases) > 0 && !g.isLeaseDue(g.leases[0]) {
		g.leases.pop()
	}
	if len(g.leases) == 0 {
		return 0
	}
	return g.leases[0].at
}

// Due appends up to room offsets of events that are due again, and notes those that are to be
// delivered alone (suspects.go). It returns when the next one is due, 0 where none waits for
// its time, and whether there are more than room for.
func (g *Group) Due(into []uint64, now int64, room int) (due []uint64, next int64, short bool) {
	due = into
	for n := 0; len(g.retries) > 0; {
		t := g.retries[0]
		if t.at > now {
			return due, t.at, false
		}
		isDue := g.isRetryDue(t)
		if isDue && g.IsSuspect(g.Find(t.offset)) {
			g.suspects = append(g.suspects, t.offset)
		} else if isDue {
			if n >= room {
				return due, 0, true
			}
			due = append(due, t.offset)
			n++
		}
		g.retries.pop()
	}
	return due, 0, false
}

// ReturnDue takes back what Due gave and was not delivered. The events are due at a time, or
// when they were where that is later.
func (g *Group) ReturnDue(offsets []uint64, at int64) {
	for _, offset := range offsets {
		if e := g.Find(offset); e != nil && e.state == Waiting {
			g.DueAt(e, max(at, e.at)) // a NACK may have put it off since
		}
	}
}

// DueAgain returns the event that Due gave, nil where it was settled or put off since.
func (g *Group) DueAgain(offset uint64, now int64) *Entry {
	if e := g.Find(offset); e != nil && e.state == Waiting && e.at <= now {
		return e
	}
	return nil
}

// SkipAcked moves the read position over events that are known to be done from before the
// group was loaded: they need not be read.
func (g *Group) SkipAcked() {
	for last := g.progress.ackedNext(g.window.next); last != 0; last = g.progress.ackedNext(g.window.next) {
		g.window.addDone(last)
		g.host.Changed()
	}
}

// SkipTo moves the read position over offsets where the log has nothing.
func (g *Group) SkipTo(next uint64) {
	g.Missed(next)
	g.progress.pass(g.window.next, next)
	g.window.skipTo(next)
	g.host.Changed()
}

// NeedsRoom reports whether Read of the event makes it one to be delivered. passes is what
// the filter says of it.
func (g *Group) NeedsRoom(offset uint64, key []byte, passes bool) bool {
	return passes && !g.progress.IsAcked(offset) && !g.keys.has(key)
}

// Read adds the event that comes next in the log. It returns the entry where it is to be
// delivered at once: not where it does not pass, was done before, is Held, or is to be
// delivered alone.
func (g *Group) Read(offset uint64, key []byte, passes bool, now int64) *Entry {
	g.progress.pass(g.window.next, offset)
	standing := g.progress.standing(offset)
	e := g.window.add(offset)
	g.move(e, wasRead)
	if standing == acked || !passes {
		g.settle(e, wasPassed, Passed, now)
		return nil
	}
	if standing >= withAttempts {
		// The last attempt may have been cut short by the end of the process.
		e.since = givenBefore
		e.attempts = uint16(min(standing-withAttempts, uint64(g.config.MaxAttempts)-1))
	}
	switch {
	case g.keys.join(key, e.offset):
		g.become(e, hasToQueue)
	case g.IsSuspect(e):
		g.DueAt(e, now)
	default:
		return e
	}
	return nil
}

// DueAt has an event that is Waiting be due at a time.
func (g *Group) DueAt(e *Entry, at int64) {
	e.at = at
	g.retries.push(timed{at, e.offset})
}

// Deliver leases an event to a holder that has reserved room for it, drift ms before the time
// of commits. It returns what Delivered and Undelivered need: one of them has to follow.
func (g *Group) Deliver(e *Entry, h *Holder, rec eventhub.Record, now, drift int64) (before Entry) {
	before = *e
	if e.id == "" {
		e.id = string(rec.ID())
		g.ids[e.id] = e.offset
	}
	if g.IsSuspect(e) {
		g.probe = e.offset
	}
	e.age = uint32(min(max(now+drift-rec.CommitTime(), 0), math.MaxUint32))
	e.holder = h
	e.since, e.at = now, now+h.Timeout
	e.attempts++
	g.become(e, wasDelivered)
	if g.progress.hasGaps() {
		g.carry(e, before.holder == nil)
	}
	return before
}

// Delivered says that the holder has the event, and that this acks it where acks is true.
func (g *Group) Delivered(e *Entry, before *Entry, acks bool, now int64) {
	if before.holder != e.holder {
		before.forget()
	}
	if g.progress.hasGaps() {
		g.gapGiven(e, true)
	}
	if acks {
		g.Ack(e, now)
		return
	}
	g.leases.push(timed{e.at, e.offset})
}

// Undelivered says that the holder did not take the event: it becomes what it was.
func (g *Group) Undelivered(e *Entry, before *Entry) {
	g.become(e, wasUntaken)
	if g.progress.hasGaps() {
		g.gapGiven(e, false)
	}
	e.serial, e.holder, e.since, e.age, e.attempts = before.serial, before.holder, before.since, before.age, before.attempts
	g.DueAt(e, before.at)
}
