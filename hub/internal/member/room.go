package member

import "eventhub/store/journal"

// Room is how much room a journal has, in bytes; the zero Room is without bound.
type Room struct {
	Free, Most uint64
	// Least is how much has to be free for events to be taken, so that acks, and what else groups
	// write, find room when events do not any more: 5 % of all, but where that is less than 16 MiB, up to
	// 10 %.
	Least uint64
}

// IsLow reports whether less than Least is free.
func (r Room) IsLow() bool { return r.Most > 0 && r.Free < r.Least }

// isNearlyFull reports whether it is to be trimmed at once.
func (r Room) isNearlyFull() bool { return r.Most > 0 && r.Most-r.Free >= r.Most/100*NearlyFull }

const (
	leastRoom = 16 << 20
	// perEntry is what an engine takes for an entry besides its bytes, about.
	perEntry = 64
)

// Room returns how much room the journal has, for a member that leads: what it had when it was asked last,
// less what was appended since.
func (m *Member) Room() Room {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.room()
}

// room is Room. m.mu is held; the leader's is taken.
func (m *Member) room() Room {
	l := m.limits
	if l.Most == 0 {
		return Room{}
	}
	used := l.Used
	if m.leader != nil {
		used += fill(m.leader).since(m.filled)
	}
	return Room{Free: l.Most - min(used, l.Most), Most: l.Most, Least: max(l.Most/20, min(l.Most/10, leastRoom))}
}

// filling is how much a leader had appended at a time.
type filling struct{ bytes, places uint64 }

func fill(leader *journal.Leader) filling {
	return filling{leader.Appended(), leader.Position().Seq} // what is under way has few places
}

// since returns how much more it is than before, in bytes.
func (f filling) since(before filling) uint64 {
	return f.bytes - before.bytes + (f.places-before.places)*perEntry
}
