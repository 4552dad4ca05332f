package bus

import (
	"math"

	"eventhub/bus/internal/groupstate"
)

// A receiver that queues what it takes (Buffered in its options) says later what has
// left it. Until then a delivery is not made: it cannot have been seen, so its lease does
// not run out and, where the member acks by being sent to, it is not acked. The deliveries
// that are on their way are in the subscription's queue, in the order of their serials.
//
// Mostly they have left at once, and nothing is to be done but to take them off the queue.
// Where one had to wait, its lease is renewed when it has left; a deadline that comes
// before that is put off. After MaxAckTimeout, the longest that anybody may hold an event,
// it is given back with its attempt: the peer takes so little that others should have it.

// lateAfter is how long a delivery may be on its way at the expense of its lease, which
// is at least ten times as long.
const lateAfter = 100 // ms

// transit is a delivery on its way.
type transit struct {
	member *member
	offset uint64
	serial uint64
	since  int64 // epoch ms: when it was handed over
}

// sendQueue is a first-in first-out queue. The subscription's mu guards it.
type sendQueue struct {
	items []transit
	first int // those before it have left
}

// keptQueue is how many items an empty queue keeps room for.
const keptQueue = 1024

func (q *sendQueue) add(m *member, taken int) {
	for _, e := range m.given[:taken] {
		q.items = append(q.items, transit{m, e.Offset(), e.Serial(), e.Since()})
	}
}

// next returns the first n, which stay until they are removed.
func (q *sendQueue) next(n int) []transit {
	return q.items[q.first:min(q.first+n, len(q.items))]
}

// remove takes the first n off.
func (q *sendQueue) remove(n int) {
	if q.first += n; q.first < len(q.items) {
		if q.first > len(q.items)/2 {
			q.items = q.items[:copy(q.items, q.items[q.first:])]
			q.first = 0
		}
		return
	}
	q.first, q.items = 0, q.items[:0]
	if cap(q.items) > keptQueue {
		q.items = nil
	}
}

// unsentFrom returns the serial of the first of the last n deliveries that were taken. It
// does not count leases: some of those deliveries may be settled already.
func (s *subscription) unsentFrom(n int) uint64 {
	s.giving.Lock() // a hand-over under way has not noted yet what was taken
	defer s.giving.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	items := s.queue.items[s.queue.first:]
	if n = min(n, len(items)); n == 0 {
		return math.MaxUint64
	}
	return items[len(items)-n].serial
}

// Sent implements eventhub.Subscription.
func (s *subscription) Sent(n int) {
	s.giving.Lock() // a hand-over under way has not noted yet what was taken
	s.mu.Lock()
	sent := s.queue.next(n)
	s.mu.Unlock()
	s.giving.Unlock()
	now := s.bus.clock.Now()
	for rest := sent; len(rest) > 0; {
		g, n := rest[0].member.group, 1
		for n < len(rest) && rest[n].member.group == g {
			n++
		}
		if s.opts.AutoAck || now-rest[0].since > lateAfter { // the first has waited longest
			g.sent(rest[:n], now)
		}
		rest = rest[n:]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue.remove(len(sent))
}

// sent acks what was sent to who acks by that, and renews the leases of what was late.
// Whatever happened to a delivery since shows in its serial and its state.
func (g *group) sent(sent []transit, now int64) {
	g.mu.Lock()
	for _, q := range sent {
		e := g.state.Find(q.offset)
		switch {
		case e == nil || e.Serial() != q.serial || e.State() != groupstate.Leased:
		case q.member.sub.opts.AutoAck:
			g.state.Ack(e, now)
		case now-q.since > lateAfter:
			g.state.Renew(e, now)
		}
	}
	g.state.Compact()
	g.mu.Unlock()
	g.bus.sched.Schedule(g) // room has come free, or a lease ends later
}

// isUnsent reports whether the delivery that the entry was leased for is on its way, also
// where its member is about to leave: what is on its way then is given back.
func isUnsent(e *groupstate.Entry) bool {
	s := memberOf(e).sub
	if !s.opts.Buffered {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.queue.next(1)
	return len(next) > 0 && e.Serial() >= next[0].serial
}
