package groupstate

import (
	"time"

	"eventhub"
	"eventhub/admin"
)

// What happens to an event that was delivered.

// Ack makes an event done, also after its lease has ended as long as nobody else has it.
func (g *Group) Ack(e *Entry, now int64) bool { return g.settle(e, wasAcked, Acked, now) }

// Extend sets the deadline of a lease to by ms from now, or to as long as its holder's
// leases are where by is 0. No lease is longer than eventhub.MaxAckTimeout.
func (g *Group) Extend(e *Entry, by, now int64) bool {
	if transitions[wasExtended][e.state] == none {
		return false
	}
	if by == 0 {
		by = e.holder.Timeout
	}
	by = max(by, eventhub.MinAckTimeout.Milliseconds())
	if at := min(now+by, e.since+eventhub.MaxAckTimeout.Milliseconds()); at != e.at {
		e.at = at
		g.leases.push(timed{e.at, e.offset})
	}
	return true
}

// Renew has a lease begin now.
func (g *Group) Renew(e *Entry, now int64) {
	if transitions[wasExtended][e.state] == none {
		return
	}
	e.since, e.at = now, now+e.holder.Timeout
	g.leases.push(timed{e.at, e.offset})
}

// Postpone sets the deadline of a lease whose event has not reached its holder. Where that
// has taken as long as a lease may be at most, the event is given back.
func (g *Group) Postpone(e *Entry, now int64) {
	if now-e.since < eventhub.MaxAckTimeout.Milliseconds() {
		e.at = now + e.holder.Timeout
		g.leases.push(timed{e.at, e.offset})
		return
	}
	g.GiveBack(e, now)
}

// GiveBack ends a lease that does not count as an attempt. The event is due at once.
func (g *Group) GiveBack(e *Entry, now int64) {
	if g.retry(e, wasGivenBack, now) {
		e.attempts--
	}
}

// Failure is an attempt that came to nothing.
type Failure struct {
	Cause  Cause
	Reason string        // of the member; it may be empty
	Delay  time.Duration // until the next attempt, where the cause has a backoff; 0: the group's
	Now    int64
	Drift  int64 // from the time of Now to that of histories
}

// Fail ends an attempt: the event comes again later, or is dead-lettered where that was the
// last attempt or the cause is final. An event that has been taken from its holder already
// only comes at another time.
func (g *Group) Fail(e *Entry, f Failure) bool {
	row := &causeRows[f.Cause]
	what := failed
	if row.final || int(e.attempts) >= g.config.MaxAttempts {
		what = gaveOut
	}
	if transitions[what][e.state] == none {
		return false
	}
	if e.state == Leased {
		g.progress.note(e.offset, admin.Attempt{
			Attempt: int(e.attempts), Member: e.holder.Peer, SinceTS: e.since + f.Drift, EndedTS: f.Now + f.Drift, Why: row.why, Reason: f.Reason,
		})
	}
	if what == gaveOut {
		g.become(e, what)
		e.forget() // no verdict on it counts any more
		if f.Reason == "" {
			f.Reason = row.reason
		}
		g.letters = append(g.letters, Letter{e.offset, f.Reason})
		return true
	}
	at := f.Now
	switch {
	case row.atOnce:
	case f.Delay != 0:
		at += f.Delay.Milliseconds()
	default:
		at += g.config.Backoff(int(e.attempts))
	}
	return g.retry(e, what, at)
}

// Leave takes from a holder what it has leased. The attempts of leases with a serial from
// giveBack on do not count.
func (g *Group) Leave(h *Holder, giveBack uint64, now, drift int64) {
	var held []*Entry
	for e := range g.Open() {
		if e.state == Leased && e.holder == h {
			held = append(held, e)
		}
	}
	for _, e := range held {
		if e.serial >= giveBack {
			g.GiveBack(e, now)
			continue
		}
		g.Fail(e, Failure{Cause: Disconnected, Now: now, Drift: drift})
	}
	g.Compact()
}

// End gives the attempts under way back: the group ends, and it was not the members who
// gave up.
func (g *Group) End() {
	g.ended = true
	for e := range g.Open() {
		if g.become(e, wasGivenBack) {
			e.attempts--
		}
	}
}

// Delete says that the group is deleted, so that no step has anything to settle any more.
func (g *Group) Delete() {
	g.deleted = true
	g.forgetIDs()
}

// Compact bounds what void appointments take. It comes after calls that settle many events.
func (g *Group) Compact() {
	g.leases.compact(g.Leased(), g.isLeaseDue)
	g.retries.compact(g.counts[Waiting], g.isRetryDue)
}

// isLeaseDue and isRetryDue report whether an appointment still means something.
func (g *Group) isLeaseDue(t timed) bool {
	e := g.Find(t.offset)
	return e != nil && e.state == Leased && e.at == t.at
}

func (g *Group) isRetryDue(t timed) bool {
	e := g.Find(t.offset)
	return e != nil && e.state == Waiting && e.at == t.at
}

// Serials appends the serials of the leases of a holder.
func (g *Group) Serials(into []uint64, h *Holder) []uint64 {
	for e := range g.Open() {
		if e.state == Leased && e.holder == h {
			into = append(into, e.serial)
		}
	}
	return into
}
