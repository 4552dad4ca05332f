package bus

import "eventhub"

// An event may be what makes members die where groupstate.IsolateAfter of its attempts were
// lost, with the lease or with the member, and a member that dies takes an attempt from
// everything that it holds. A NACK says nothing against the event: a member that NACKs is
// alive. So from then on the event, a suspect, goes to a member that holds nothing else, and
// that gets nothing else meanwhile. One member of a topic's group does that at a time; the others go on with what
// is fresh. Under a pattern the suspects of several topics may have a member each at the
// same time. If all topics had one between them, one suspect that somebody extends for an
// hour would hold up those of a thousand topics; and the others have their half of each
// member anyway.
//
// What holds others back has an end: a member may be the only one, and may be that of a
// thousand topics.
//
//   - The member is kept free for one suspect. Before the next one may have it, everybody
//     else has it for as long as that took: of the time of a member, half at least is
//     theirs.
//   - It is kept free for the length of a lease while it still has others to settle. If
//     it is not done with them by then the reservation is given up; the next one may take
//     twice as long, and so on up to the longest lease that there is: what is held is
//     settled by then, or else no suspect would ever go out.
//   - It is kept free for the length of a lease while it has the suspect. Who extends the
//     lease is alive: others come meanwhile.
//   - Who pulls is a member for the length of a pull, and leaves no time to share: after a
//     pull that took a suspect one takes what else there is.
//
// reservation is how a subscription is kept free for a suspect of the group that it is reserved by. Times are those of
// the bus's clock. The subscription's mu guards it.
type reservation struct {
	since int64
	until int64 // others get nothing before that
	calm  int64 // the next reservation comes not before that
	given bool  // the suspect went out
	vain  int   // reservations that ended before one did, since the last one that did not
}

func (c *reservation) begin(now, timeout int64) {
	most := eventhub.MaxAckTimeout.Milliseconds() // all that is held has been settled or given back by then
	c.since, c.until, c.given = now, now+min(timeout<<min(c.vain, 12), most), false
}

// met notes that the suspect goes out.
func (c *reservation) met(now, timeout int64) {
	c.given, c.vain, c.until = true, 0, now+timeout
}

func (c *reservation) end(now int64) {
	c.calm = now + now - c.since
	if !c.given && now >= c.until {
		c.vain++
	}
}

// reservable reports whether the group has reserved the subscription, or may now. s.mu is
// held.
func (s *subscription) reservable(g *group) bool {
	if s.reservedBy != nil {
		return s.reservedBy == g
	}
	return s.bus.clock.Now() >= s.reservation.calm
}

// reservationOver reports whether the reservation has had its suspect, or its time.
func (m *member) reservationOver(now int64) bool {
	m.sub.mu.Lock()
	defer m.sub.mu.Unlock()
	return m.sub.reservation.given || now >= m.sub.reservation.until
}

// hadSuspect reports whether the member was given a suspect in the present reservation.
func (m *member) hadSuspect() bool {
	m.sub.mu.Lock()
	defer m.sub.mu.Unlock()
	return m.sub.reservation.given
}

// hasOthers reports whether the turn under way has anything for members but suspects.
// room is what they have left for it.
func (g *group) hasOthers(room int) bool {
	return len(g.fetch.due) > 0 || room > 0 && g.hasFresh()
}

// keptUntil returns until when the reserved member is kept free. Where that is over it
// wakes those who may come now, and returns 0.
func (m *member) keptUntil(now int64) int64 {
	s := m.sub
	s.mu.Lock()
	until := s.reservation.until
	if now < until {
		s.mu.Unlock()
		return until
	}
	woken := s.feed()
	s.mu.Unlock()
	s.wake(woken)
	return 0
}

// awaitReservation has the group woken when the reservation of another is over, or when the
// subscription takes something again; or reports that neither is in its way. Room for
// others, which there may be in the meantime, is of no use to a suspect.
func (m *member) awaitReservation() (free bool) {
	s := m.sub
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.left:
		return false
	case s.reservedBy != nil && s.reservedBy != m.group:
		if !m.waitsForReservation {
			m.waitsForReservation = true
			s.reservationQueue = append(s.reservationQueue, m)
		}
		return false
	case s.takes():
		return true
	}
	s.await(m)
	return false
}

// calmUntil returns when the member may be reserved, 0 where that is not a matter of time.
func (m *member) calmUntil(now int64) int64 {
	m.sub.mu.Lock()
	defer m.sub.mu.Unlock()
	if m.sub.reservedBy != nil || !m.sub.takes() || now >= m.sub.reservation.calm {
		return 0
	}
	return m.sub.reservation.calm
}

// chooseReserved returns the member that has least to settle before it can take a
// suspect; the one that was chosen before where others have as much. nil: none
// takes one now.
func (g *group) chooseReserved() (chosen *member) {
	least := 0
	if m := g.reserved; m != nil {
		if load, ok := m.eligible(); ok {
			chosen, least = m, load
		}
	}
	for _, m := range g.members {
		if load, ok := m.eligible(); ok && (chosen == nil || load < least) {
			chosen, least = m, load
		}
	}
	return chosen
}

// setReserved makes a member the one that takes suspects, and keeps it free for them.
func (g *group) setReserved(m *member) {
	if g.reserved == m {
		return
	}
	if g.reserved != nil {
		g.reserved.endReservation()
	}
	if m != nil && !m.reserveWhole() {
		m = nil // another group was faster
	}
	g.reserved = m
}

// reviewSuspects lets the member that takes suspects go back to the others when it has had
// one, or none is left.
func (g *group) reviewSuspects(now int64) {
	left := g.state.Suspects(now)
	if g.reserved != nil && !g.state.SuspectOut() && (left == 0 || g.reserved.reservationOver(now)) {
		g.setReserved(nil)
	}
}

// planIsolated gives the next suspect to the member that takes them, once that one
// has settled what it holds. It returns when it is to be looked at again, 0 where that is
// not a matter of time.
func (g *group) planIsolated(now int64, room int) (again int64) {
	g.reviewSuspects(now)
	switch {
	case g.state.SuspectOut():
		if g.reserved != nil {
			again = g.reserved.keptUntil(now)
		}
		return again
	case g.state.Suspects(now) == 0:
		return 0
	case g.owes && g.hasOthers(room):
		g.owes = false
		return 0
	}
	g.setReserved(g.chooseReserved())
	if g.reserved != nil {
		again = g.reserved.keptUntil(now)
		if g.reserved.idle() {
			g.fetch.due = append(g.fetch.due, g.state.TakeSuspect())
			return again
		}
	}
	// Another may be had before.
	for _, m := range g.members {
		again = sooner(again, m.calmUntil(now))
	}
	return again
}

// sooner returns the earlier of two times; 0 is none.
func sooner(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
