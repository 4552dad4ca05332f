package bus

// The room for leases that the members of a subscription share: who takes it, who gives it
// back, and who waits for it, for the subscription to hold nothing, or for the end of a
// reservation. See subscription for the queues.

// feed takes the groups off roomQueue that there is room for. s.mu is held.
func (s *subscription) feed() (woken []*group) {
	return s.admit(nil, min(max(s.room(), 0), len(s.roomQueue)))
}

// admit takes the first n groups off roomQueue and adds them to woken. Those after them stay
// where they are: there may be thousands, and each ack admits one. s.mu is held.
func (s *subscription) admit(woken []*group, n int) []*group {
	for _, m := range s.roomQueue[:n] {
		m.waits, m.called = false, true
		woken = append(woken, m.group)
	}
	s.called += n
	clear(s.roomQueue[:n])
	if n == len(s.roomQueue) {
		n, s.roomQueue = 0, s.roomQueue[:0] // keeps the room
	}
	s.roomQueue = s.roomQueue[n:]
	return woken
}

// takes reports whether it wants anything at all now. s.mu is held.
func (s *subscription) takes() bool { return !s.full && !s.left && !s.paused }

// isOpen reports whether it may be given more, as far as there is room. s.mu is held.
func (s *subscription) isOpen() bool {
	return s.takes() && (s.reservedBy == nil || s.bus.clock.Now() >= s.reservation.until)
}

// room returns how many more leases it may hold, without the room that members were called
// for: who comes by does not take it from them. s.mu is held.
func (s *subscription) room() int {
	if !s.isOpen() {
		return 0
	}
	return s.opts.MaxInFlight - s.inFlight - s.called
}

// mayHold returns how many more leases the member may be given, with the one that it was called
// for. s.mu is held.
func (m *member) mayHold() int {
	n := m.sub.room()
	if m.called && m.sub.isOpen() {
		n++
	}
	return max(n, 0)
}

// answered says that the member needs what it was called for no longer: it has it, or does not
// want it. s.mu is held.
func (m *member) answered() {
	if m.called {
		m.called = false
		m.sub.called--
	}
}

// room returns how many more leases the member may be given.
func (m *member) room() int {
	m.sub.mu.Lock()
	defer m.sub.mu.Unlock()
	return m.mayHold()
}

// reserve takes the room for one lease, if there is some.
func (m *member) reserve() bool {
	m.sub.mu.Lock()
	defer m.sub.mu.Unlock()
	if m.mayHold() == 0 {
		return false
	}
	m.answered()
	m.sub.inFlight++
	return true
}

// hold takes the room for a delivery that the member has already, whether there is
// some or not.
func (m *member) hold() {
	m.sub.mu.Lock()
	defer m.sub.mu.Unlock()
	m.sub.inFlight++
}

// free gives the room of one lease back.
func (m *member) free() {
	s := m.sub
	s.mu.Lock()
	s.inFlight--
	woken := s.atRest()
	if len(s.roomQueue) > 0 && s.room() > 0 {
		woken = s.admit(woken, 1)
	}
	s.mu.Unlock()
	s.wake(woken)
}

// atRest returns the groups that wait until the subscription holds nothing, where it
// does. s.mu is held.
func (s *subscription) atRest() (woken []*group) {
	if s.inFlight != 0 {
		return nil
	}
	if s.reservedBy != nil {
		woken = append(woken, s.reservedBy)
	}
	for _, m := range s.idlers {
		m.idles = false
		woken = append(woken, m.group)
	}
	s.idlers = nil
	return woken
}

// awaitIdle has the group woken when the subscription holds nothing and takes something
// again, or reports that it could take a suspect of the group just now.
func (m *member) awaitIdle() (free bool) {
	s := m.sub
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inFlight == 0 && s.takes() {
		return s.reservable(m.group)
	}
	if !m.idles && !s.left {
		m.idles = true
		s.idlers = append(s.idlers, m)
	}
	return false
}

// await has the group woken when there is room, or reports that there is some.
func (m *member) await() (roomy bool) {
	s := m.sub
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.answered(); s.room() > 0 {
		return true
	}
	s.await(m)
	return false
}

// await has the member's group woken when there is room. s.mu is held.
func (s *subscription) await(m *member) {
	if !m.waits && !s.left {
		m.waits = true
		s.roomQueue = append(s.roomQueue, m)
	}
}

// passOn wakes others that wait for the room which the group did not need.
func (m *member) passOn() {
	s := m.sub
	if s.patterned == nil {
		return
	}
	s.mu.Lock()
	m.answered()
	woken := s.feed()
	s.mu.Unlock()
	s.wake(woken)
}

// idle reports whether the subscription holds nothing at all.
func (m *member) idle() bool {
	m.sub.mu.Lock()
	defer m.sub.mu.Unlock()
	return m.sub.inFlight == 0
}
