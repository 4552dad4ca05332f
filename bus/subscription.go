package bus

import (
	"context"
	"math"
	"slices"
	"sync"

	"eventhub"
	"eventhub/bus/internal/groupstate"
)

// subscription is what one SUBSCRIBE asked for: a member of the group in one
// topic, or in each topic that its patterns match. What its members share is
// here: the receiver, the room for leases, and whether it wants anything now.
//
// A group that has something to deliver and finds no room is in roomQueue, and
// is woken when there is some: each lease that ends wakes one, and one that then
// finds nothing to do wakes the next. So a thousand groups may wait for the room
// of one subscription, and none looks at it twice.
//
// A group that has a suspect to deliver (see isolate.go) may reserve a subscription:
// then nobody gives it anything until it holds nothing, and the suspect goes to
// it alone.
//
// giving, and under it mu, are taken under group.mu. giving is held while the receiver
// is called, so that the serials of leases rise in the order in which it got them.
type subscription struct {
	bus      *Bus
	receiver eventhub.Receiver
	opts     eventhub.GroupOptions
	peer     *eventhub.Peer // of opts; histories share it and outlive the subscription
	timeout  int64          // opts.AckTimeout in ms
	since    int64          // epoch ms
	// patterned is nil where it has one topic for ever; else patterns are what it
	// asked for.
	patterned *patternedGroup
	patterns  []eventhub.Pattern

	giving sync.Mutex

	mu               sync.Mutex
	members          map[string]*member // by topic
	endedBefore      []eventhub.EndedGroup
	left             bool
	detached         bool // it left, and its leases stay valid
	full             bool // the receiver took less than it was given
	paused           bool // it wants nothing for now
	inFlight         int  // leases of all members
	reservedBy       *group
	reservation      reservation
	roomQueue        []*member
	called           int       // members that were called
	idlers           []*member // of groups to be woken when it holds nothing
	reservationQueue []*member // of groups to be woken when the reservation is over
	ids              idIndex[*member]
	queue            sendQueue // of a Buffered receiver
}

// member is a subscription in one group. Its fields are guarded by group.mu, except
// waits and idles by sub.mu.
type member struct {
	group               *group
	sub                 *subscription
	waits               bool // is in sub.roomQueue
	called              bool // was taken off it for room, which it has not looked at yet
	idles               bool // is in sub.idlers
	waitsForReservation bool // is in sub.reservationQueue

	holder groupstate.Holder // as the state of its group knows it
	sought bool              // its group was moved since its last delivery
	dated  bool              // its last delivery was of this epoch of its group
	// Of the turn under way: what is to be handed over, the entry of each, and how
	// that was before it was leased.
	batch  []eventhub.Delivery
	given  []*groupstate.Entry
	before []groupstate.Entry
}

func newMember(g *group, s *subscription) *member {
	m := &member{group: g, sub: s}
	m.holder = groupstate.Holder{Member: (*stateMember)(m), Peer: s.peer, Timeout: s.timeout}
	return m
}

// memberOf returns the member that has or had the entry last.
func memberOf(e *groupstate.Entry) *member { return (*member)(e.Holder().Member.(*stateMember)) }

// stateMember is a member as the state of its group knows it. The group's lock is held in
// its methods.
type stateMember member

// Freed implements groupstate.Member.
func (m *stateMember) Freed() { (*member)(m).free() }

// KeepsLeases implements groupstate.Member: the member has not left, or has left them as
// they are.
func (m *stateMember) KeepsLeases() bool {
	m.sub.mu.Lock()
	defer m.sub.mu.Unlock()
	return !m.sub.left || m.sub.detached
}

// Forgot implements groupstate.Member.
func (m *stateMember) Forgot(id string) {
	s := m.sub
	if s.ids.one == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ids.remove(id, (*member)(m))
}

func newSubscription(b *Bus, opts eventhub.GroupOptions, r eventhub.Receiver) *subscription {
	peer := opts.Peer
	return &subscription{
		bus: b, receiver: r, opts: opts, peer: &peer,
		timeout: opts.AckTimeout.Milliseconds(), since: b.clock.Wall().UnixMilli(),
		members: make(map[string]*member, 1),
	}
}

// roster returns the members, in no order.
func (s *subscription) roster() []*member {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*member, 0, len(s.members))
	for _, m := range s.members {
		all = append(all, m)
	}
	return all
}

// InFlight returns how many events are leased to the subscription.
func (s *subscription) InFlight() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inFlight
}

// Ready implements eventhub.Subscription.
func (s *subscription) Ready() {
	s.giving.Lock() // a hand-over under way has not said yet that it was too much
	defer s.giving.Unlock()
	s.mu.Lock()
	s.full = false
	woken := append(s.atRest(), s.feed()...)
	s.mu.Unlock()
	s.wake(woken)
}

// Pause implements eventhub.Subscription.
func (s *subscription) Pause(context.Context) error { return s.setPaused(true) }

// Resume implements eventhub.Subscription.
func (s *subscription) Resume(context.Context) error { return s.setPaused(false) }

func (s *subscription) setPaused(paused bool) error {
	s.mu.Lock()
	s.paused = paused
	woken := append(s.atRest(), s.feed()...)
	if g := s.reservedBy; g != nil && paused {
		woken = append(woken, g) // its suspects may go to another subscription
	}
	s.mu.Unlock()
	s.wake(woken)
	// What was leased before is handed over when the groups' locks were free.
	for _, m := range s.roster() {
		if err := m.group.whyEnded(); err != nil && s.patterned == nil {
			return err
		}
	}
	return nil
}

func (g *group) whyEnded() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ended
}

// wake schedules groups; s.mu is not held.
func (s *subscription) wake(groups []*group) {
	for _, g := range groups {
		s.bus.sched.Schedule(g)
	}
}

// gave notes what the receiver took of a member's batch. s.giving is held.
func (s *subscription) gave(m *member, taken int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if taken < len(m.batch) {
		s.full = true
	}
	if s.opts.Buffered {
		s.queue.add(m, taken)
	}
	if s.ids.one == nil || s.opts.AutoAck {
		return
	}
	for _, e := range m.given[:taken] {
		s.ids.add(e.ID(), m)
	}
}

// forget lets go of all that the member has, when its group begins again. Others may
// have waited for the room.
func (m *member) forget() {
	s := m.sub
	s.mu.Lock()
	s.inFlight -= m.holder.Void()
	s.ids.removeAll(m)
	woken := append(s.atRest(), s.feed()...)
	s.mu.Unlock()
	s.wake(woken)
}

func (m *member) isDetached() bool {
	m.sub.mu.Lock()
	defer m.sub.mu.Unlock()
	return m.sub.detached
}

func (m *member) isPaused() bool {
	m.sub.mu.Lock()
	defer m.sub.mu.Unlock()
	return m.sub.paused
}

// Unsubscribe implements eventhub.Subscription.
func (s *subscription) Unsubscribe(context.Context) error {
	s.leave(math.MaxInt)
	return nil
}

// Drop implements eventhub.Subscription.
func (s *subscription) Drop(unsent int) { s.leave(unsent) }

// leave gives the leases to other members at once. The attempts count, except those
// of the latest giveBack leases. It reports whether it is the first to do so.
func (s *subscription) leave(giveBack int) (left bool) {
	if left = s.depart(); left {
		s.letGo(giveBack)
	}
	return left
}

// depart ends the subscription: from here on no turn gives it anything, except one that
// is at it, which ends before its group's lock can be had. Its leases are valid until letGo
// has come to their group; meanwhile their deadlines mean what they did.
func (s *subscription) depart() (first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left {
		return false
	}
	s.left = true
	s.roomQueue = nil
	return true
}

// letGo takes the members out of their groups, one after the other.
func (s *subscription) letGo(giveBack int) {
	if s.patterned != nil {
		s.bus.patterns.remove(s)
	}
	members := s.roster()
	var from uint64
	if s.opts.Buffered && giveBack < math.MaxInt {
		from = s.unsentFrom(giveBack)
	} else {
		from = s.latest(members, giveBack)
	}
	for _, m := range members {
		m.leave(from)
	}
	s.forget()
}

// gone is the receiver of a subscription that has left.
type gone struct{}

func (gone) Deliver([]eventhub.Delivery) int { return 0 }
func (gone) Ended(error)                     {}

// forget lets the receiver go, which may be a whole connection: events that nobody has settled know who had them last,
// and so the subscription, for as long as they wait. No turn is at it any more.
func (s *subscription) forget() {
	s.giving.Lock()
	defer s.giving.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.receiver, s.queue = gone{}, sendQueue{}
}

// latest returns the serial from which on leases are among the latest n.
func (s *subscription) latest(members []*member, n int) uint64 {
	if n == math.MaxInt {
		return 0
	}
	var serials []uint64
	for _, m := range members {
		m.group.mu.Lock()
		serials = m.group.state.Serials(serials, &m.holder)
		m.group.mu.Unlock()
	}
	slices.Sort(serials)
	if n < len(serials) {
		serials = serials[len(serials)-n:]
	}
	if len(serials) == 0 {
		return math.MaxUint64
	}
	return serials[0]
}

// end notifies the receiver that the subscription is over, unless it has left. The
// attempts under way are given back: it was not the members who gave up. No lock
// is held.
func (s *subscription) end(err error) {
	s.giving.Lock()
	receiver := s.receiver
	s.giving.Unlock()
	if s.leave(math.MaxInt) {
		receiver.Ended(err)
	}
}

// leave takes the member out of its group. The attempts of leases with a serial
// from giveBack on are given back.
func (m *member) leave(giveBack uint64) {
	g := m.group
	g.mu.Lock()
	if i := slices.Index(g.members, m); i >= 0 {
		g.members = slices.Delete(slices.Clone(g.members), i, i+1)
		if len(g.members) == 0 {
			g.log.Unwatch(g)
		}
	}
	if g.reserved == m {
		g.reserved = nil
		g.owes = m.hadSuspect()
	}
	now := g.bus.clock.Now()
	if !m.isDetached() {
		g.state.Leave(&m.holder, giveBack, now, g.bus.clock.Drift())
	}
	m.batch, m.given, m.before = nil, nil, nil // of the last turn
	g.mu.Unlock()
	g.bus.sched.Schedule(g)
	g.bus.release(g)
}
