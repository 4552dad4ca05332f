package groupstate

// In a group whose ordering is key, the events of one key form a queue. The first of a
// queue is under way: leased, waiting for another attempt, or being dead-lettered. Those
// after it are held: no member gets them, and they take no
// room. When the first is done, acked or dead-lettered, the next becomes due.
// Events without a key are in no queue.
//
// So at most one event of a key is in flight, and an event is delivered for the
// first time only when all earlier ones of its key are done, whatever members,
// retries and restarts come in between.

// keyQueue is the queue of one key.
type keyQueue struct {
	key   string
	first uint64
	rest  []uint64 // offsets of held entries, rising
}

// keyQueues are the queues of a group. nil: the group has no ordering.
type keyQueues struct {
	byKey map[string]*keyQueue
	of    map[uint64]*keyQueue // by the offset of each entry that is in one
}

func newKeyQueues() *keyQueues {
	return &keyQueues{byKey: make(map[string]*keyQueue), of: make(map[uint64]*keyQueue)}
}

// len is how many keys are under way.
func (qs *keyQueues) len() int {
	if qs == nil {
		return 0
	}
	return len(qs.byKey)
}

// has reports whether events of the key are under way.
func (qs *keyQueues) has(key []byte) bool { return qs != nil && qs.byKey[string(key)] != nil }

// join puts a new entry into the queue of its key and reports whether it is held.
func (qs *keyQueues) join(key []byte, offset uint64) (held bool) {
	if qs == nil || len(key) == 0 {
		return false
	}
	q := qs.byKey[string(key)]
	if held = q != nil; held {
		q.rest = append(q.rest, offset)
	} else {
		q = &keyQueue{key: string(key), first: offset}
		qs.byKey[q.key] = q
	}
	qs.of[offset] = q
	return held
}

// leave removes an entry that is done from its queue, where it is the first, and returns the
// offset of the next, 0 where there is none.
func (qs *keyQueues) leave(offset uint64) (next uint64) {
	if qs == nil {
		return 0
	}
	q := qs.of[offset]
	if q == nil {
		return 0
	}
	delete(qs.of, offset)
	if q.first != offset {
		return 0
	}
	if len(q.rest) == 0 {
		delete(qs.byKey, q.key)
		return 0
	}
	q.first, q.rest = q.rest[0], q.rest[1:]
	return q.first
}

// oldest returns the queue with the first event that is held, nil where none is.
func (qs *keyQueues) oldest() (oldest *keyQueue) {
	if qs == nil {
		return nil
	}
	for _, q := range qs.byKey {
		if len(q.rest) > 0 && (oldest == nil || q.rest[0] < oldest.rest[0]) {
			oldest = q
		}
	}
	return oldest
}
