package bus

// An event may be what makes members die where groupstate.IsolateAfter of its attempts were
// lost, with the lease or with the member, and a member that dies takes an attempt from
// everything that it holds. A NACK says nothing against the event: a member that NACKs is
// alive. So from then on the event, a suspect, goes to a member that holds nothing else, and
// that gets nothing else meanwhile. One member of a topic's group does that at a time; the
// others go on with what is fresh. Under a pattern the suspects of several topics may have a
// member each at the same time. If all topics had one between them, one suspect that somebody
// extends for an hour would hold up those of a thousand topics; and the others have their half
// of each member anyway.
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

// hasOthers reports whether the turn under way has anything for members but suspects.
// room is what they have left for it.
func (g *group) hasOthers(room int) bool {
	return len(g.fetch.due) > 0 || room > 0 && g.hasFresh()
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
