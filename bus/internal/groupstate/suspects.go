package groupstate

// An event may be what makes members die where IsolateAfter of its attempts were lost, with
// the lease or with the member: it is a suspect, and is delivered alone. Which member is kept
// free for it is the caller's business.

// IsolateAfter is how many lost attempts make an event a suspect.
const IsolateAfter = 2

// IsSuspect reports whether the event has to be delivered alone. No history has an attempt that
// ended with the process; it was not the event's fault.
func (g *Group) IsSuspect(e *Entry) bool {
	if e.attempts < IsolateAfter {
		return false
	}
	lost := 0
	for i := range g.progress.history[e.offset] {
		if isLost(g.progress.history[e.offset][i].Why) {
			lost++
		}
	}
	return lost >= IsolateAfter
}

// isLost reports whether the holder of an attempt that ended in that way may have died of it.
func isLost(why string) bool {
	for i := range causeRows {
		if causeRows[i].alive && causeRows[i].why == why {
			return false
		}
	}
	return true
}

// SuspectOut reports whether a suspect is with a member. Its offset may have another event by
// now: after a seek, or a redrive, it begins with its first attempt again.
func (g *Group) SuspectOut() bool {
	e := g.Find(g.probe)
	return e != nil && e.state.TakesRoom() && e.attempts > IsolateAfter && g.IsSuspect(e)
}

// Suspects returns how many events are due that have to be delivered alone. Those that were
// settled or put off do not count where they come first.
func (g *Group) Suspects(now int64) int {
	for len(g.suspects) > 0 && g.DueAgain(g.suspects[0], now) == nil {
		g.suspects = g.suspects[1:]
	}
	return len(g.suspects)
}

// TakeSuspect takes the first of Suspects, which is to be delivered now.
func (g *Group) TakeSuspect() (offset uint64) {
	offset, g.suspects = g.suspects[0], g.suspects[1:]
	return offset
}
