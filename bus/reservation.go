package bus

import "eventhub"

// How a subscription is kept free for a suspect; isolate.go says when and for how long, and
// room.go has the room for all others.

// reservation is how a subscription is kept free for a suspect of the group that it is
// reserved by. Times are those of the bus's clock. The subscription's mu guards it.
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

// reserveAlone is reserve for a suspect of the group that has reserved it.
func (m *member) reserveAlone() bool {
	m.sub.mu.Lock()
	defer m.sub.mu.Unlock()
	if m.sub.reservedBy != m.group || m.sub.inFlight > 0 || !m.sub.takes() {
		return false
	}
	m.sub.inFlight++
	m.sub.reservation.met(m.sub.bus.clock.Now(), m.sub.timeout)
	return true
}

// reserveWhole keeps the subscription free for a suspect of the member's group, unless
// another group has reserved it.
func (m *member) reserveWhole() bool {
	s := m.sub
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reservedBy != nil || !s.reservable(m.group) {
		return s.reservedBy == m.group
	}
	s.reservedBy = m.group
	s.reservation.begin(s.bus.clock.Now(), s.timeout)
	return true
}

// endReservation ends the reservation.
func (m *member) endReservation() {
	s := m.sub
	s.mu.Lock()
	if s.reservedBy != m.group {
		s.mu.Unlock()
		return
	}
	s.reservedBy = nil
	s.reservation.end(s.bus.clock.Now())
	woken := s.feed()
	for _, m := range s.reservationQueue {
		m.waitsForReservation = false
		woken = append(woken, m.group)
	}
	s.reservationQueue = nil
	s.mu.Unlock()
	s.wake(woken)
}

// eligible reports whether the member could take a suspect, and how much it has
// to settle before.
func (m *member) eligible() (load int, ok bool) {
	s := m.sub
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inFlight, s.takes() && s.reservable(m.group)
}
