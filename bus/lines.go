package bus

// In a group whose ordering is key, the events of one key stand in a line. The
// first of a line is under way: leased, waiting for another attempt, or being
// dead-lettered. Those behind it are held: no member gets them, and they take no
// room. When the first is done, acked or dead-lettered, the next becomes due.
// Events without a key stand in no line.
//
// So at most one event of a key is in flight, and an event is delivered for the
// first time only when all earlier ones of its key are done, whatever members,
// retries and restarts come in between.

// line is the line of one key.
type line struct {
	key   string
	first uint64
	rest  []uint64 // offsets of held entries, rising
}

// lines are the lines of a group by key. nil: the group has no ordering.
type lines map[string]*line

// join puts a new entry into the line of its key and reports whether it is held.
func (ls lines) join(key []byte, e *entry) (behind bool) {
	if ls == nil || len(key) == 0 {
		return false
	}
	l := ls[string(key)]
	if l == nil {
		l = &line{key: string(key), first: e.offset}
		ls[l.key] = l
		e.line = l
		return false
	}
	l.rest = append(l.rest, e.offset)
	e.line = l
	return true
}

// leave takes the first of a line off and returns the offset of the next, 0
// where there is none.
func (ls lines) leave(l *line) (next uint64) {
	if len(l.rest) == 0 {
		delete(ls, l.key)
		return 0
	}
	l.first, l.rest = l.rest[0], l.rest[1:]
	return l.first
}
