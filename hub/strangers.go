package hub

import (
	"container/heap"
	"container/list"
	"net"
	"net/netip"
	"sync"
	"time"
)

// strangerWait is how long a connection may take, from its beginning on, until it has shown a
// right: by a request whose token is accepted, or by the AUTH of its WebSocket. Each request
// that is answered without one begins it anew.
const strangerWait = 5 * time.Second

// strangers are the connections of all doors that have shown no right yet. There are at most so
// many: the next one takes the place of another, the oldest one of the address that has most. So
// a flood from a few addresses crowds out itself, and a good client, which needs milliseconds,
// is older than nobody.
//
// It is safe for concurrent use. Its mutex is never held while a connection is closed, and may be
// taken while that of a connection is held.
type strangers struct {
	most int

	mu      sync.Mutex
	from    map[netip.Addr]*crowd
	crowds  crowds // the largest first
	all     int
	evicted uint64
}

// crowd has the strangers of one address, the oldest first.
type crowd struct {
	addr  netip.Addr
	conns list.List // of *conn
	place int       // in crowds
}

func (c *crowd) oldest() *conn { return c.conns.Front().Value.(*conn) }

// stranger is a connection's place among them; nil in a conn that has none.
type stranger struct {
	crowd *crowd
	at    *list.Element
	began time.Time
}

func newStrangers(most int) *strangers {
	return &strangers{most: most, from: make(map[netip.Addr]*crowd)}
}

// enter adds a connection that was just accepted, and closes another where there are too many.
func (s *strangers) enter(c *conn) {
	addr := addressOf(c.RemoteAddr())
	s.mu.Lock()
	var other *conn
	if s.all >= s.most {
		other = s.crowds[0].oldest()
		s.remove(other)
		s.evicted++
	}
	at := s.from[addr]
	if at == nil {
		at = &crowd{addr: addr}
		s.from[addr] = at
	}
	c.stranger = &stranger{crowd: at, at: at.conns.PushBack(c), began: time.Now()}
	s.all++
	if at.conns.Len() == 1 {
		heap.Push(&s.crowds, at)
	} else {
		heap.Fix(&s.crowds, at.place)
	}
	s.mu.Unlock()
	if other != nil {
		_ = other.Conn.Close() // whoever serves it sees that
	}
}

// leave takes a connection out that is known now, or ends.
func (s *strangers) leave(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.stranger != nil {
		s.remove(c)
	}
}

func (s *strangers) remove(c *conn) {
	at := c.stranger.crowd
	at.conns.Remove(c.stranger.at)
	c.stranger = nil
	s.all--
	if at.conns.Len() > 0 {
		heap.Fix(&s.crowds, at.place)
		return
	}
	heap.Remove(&s.crowds, at.place)
	delete(s.from, at.addr)
}

// measure returns how many there are, and how many gave way to others.
func (s *strangers) measure() (now int, evicted uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all, s.evicted
}

// crowds is a heap whose first one has most; of those that are equal, the oldest stranger.
type crowds []*crowd

func (c crowds) Len() int { return len(c) }

func (c crowds) Less(i, j int) bool {
	if a, b := c[i].conns.Len(), c[j].conns.Len(); a != b {
		return a > b
	}
	return c[i].oldest().stranger.began.Before(c[j].oldest().stranger.began)
}

func (c crowds) Swap(i, j int) {
	c[i], c[j] = c[j], c[i]
	c[i].place, c[j].place = i, j
}

// Push implements heap.Interface.
func (c *crowds) Push(x any) {
	at := x.(*crowd)
	at.place = len(*c)
	*c = append(*c, at)
}

// Pop implements heap.Interface.
func (c *crowds) Pop() any {
	last := len(*c) - 1
	at := (*c)[last]
	*c = (*c)[:last]
	return at
}

// addressOf returns what counts as one address: of IPv6 the first half, for one client has all of
// the second. What is no address, as in tests, is all one.
func addressOf(remote net.Addr) netip.Addr {
	at, err := netip.ParseAddrPort(remote.String())
	if err != nil {
		return netip.Addr{}
	}
	addr := at.Addr().Unmap().WithZone("")
	if addr.Is6() {
		network, _ := addr.Prefix(64) // 64 are always there
		return network.Addr()
	}
	return addr
}
