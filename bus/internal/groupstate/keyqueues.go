package groupstate

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
type keyQueue struct {
	key   string
	first uint64
	rest  []uint64 // offsets of held entries, rising
}

// keyQueues are the queues of a group. nil: the group has no ordering.
type keyQueues struct {
	byKey map[string]*keyQueue
	of    map[uint64]*keyQueue // by the offset of each entry that stands in one
}

func newKeyQueues() *keyQueues {
	return &keyQueues{byKey: make(map[string]*keyQueue), of: make(map[uint64]*keyQueue)}
}

// len is how many keys are under way.
func (ls *keyQueues) len() int {
	if ls == nil {
		return 0
	}
	return len(ls.byKey)
}

// has reports whether events of the key are under way.
func (ls *keyQueues) has(key []byte) bool { return ls != nil && ls.byKey[string(key)] != nil }

// join puts a new entry into the line of its key and reports whether it is held.
func (ls *keyQueues) join(key []byte, offset uint64) (behind bool) {
	if ls == nil || len(key) == 0 {
		return false
	}
	l := ls.byKey[string(key)]
	if behind = l != nil; behind {
		l.rest = append(l.rest, offset)
	} else {
		l = &keyQueue{key: string(key), first: offset}
		ls.byKey[l.key] = l
	}
	ls.of[offset] = l
	return behind
}

// leave takes an entry that is done off its line, of which it is the first if it
// stands in one, and returns the offset of the next, 0 where there is none.
func (ls *keyQueues) leave(offset uint64) (next uint64) {
	if ls == nil {
		return 0
	}
	l := ls.of[offset]
	if l == nil {
		return 0
	}
	delete(ls.of, offset)
	if l.first != offset {
		return 0
	}
	if len(l.rest) == 0 {
		delete(ls.byKey, l.key)
		return 0
	}
	l.first, l.rest = l.rest[0], l.rest[1:]
	return l.first
}

// oldest returns the queue with the first event that is held, nil where none is.
func (ls *keyQueues) oldest() (oldest *keyQueue) {
	if ls == nil {
		return nil
	}
	for _, l := range ls.byKey {
		if len(l.rest) > 0 && (oldest == nil || l.rest[0] < oldest.rest[0]) {
			oldest = l
		}
	}
	return oldest
}
