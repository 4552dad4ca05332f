package limits

import (
	"net"
	"net/netip"
	"time"

	"eventhub"
)

// retryConnection is when a connection that was refused is worth another try.
const retryConnection = time.Second

// Connection is the place of one WebSocket connection or event stream among those that are
// counted.
type Connection struct {
	limits *Limits
	from   string
	// Guarded by the mutex of limits.
	who   string
	named bool // who is its principal
}

// Admit counts a WebSocket connection or an event stream from an address (host and port, or
// host), or refuses it where there are as many as there may be.
func (l *Limits) Admit(remote string) (*Connection, error) {
	from := networkOf(remote)
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.settings.Load()
	if err := s.total.check(l.open, eventhub.CodeOverloaded, ""); err != nil {
		return nil, err
	}
	if err := s.address.check(l.from[from], eventhub.CodeRateLimited, " from one address"); err != nil {
		return nil, err
	}
	l.open++
	l.from[from]++
	return &Connection{limits: l, from: from}, nil
}

// Become counts the connection as one of a principal, in place of the one before. Where that
// one has as many as it may have, all stays as it was.
func (c *Connection) Become(principal string) error {
	l := c.limits
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.named && c.who == principal {
		return nil
	}
	if err := l.settings.Load().each.check(l.of[principal], eventhub.CodeRateLimited, " of one principal"); err != nil {
		return err
	}
	c.quit()
	l.of[principal]++
	c.who, c.named = principal, true
	return nil
}

// quit ends that the connection is one of its principal.
func (c *Connection) quit() {
	if c.named {
		less(c.limits.of, c.who)
	}
}

// Leave ends the connection. It is called once.
func (c *Connection) Leave() {
	l := c.limits
	l.mu.Lock()
	defer l.mu.Unlock()
	c.quit()
	less(l.from, c.from)
	l.open--
}

// less counts one less.
func less(counts map[string]int, name string) {
	if counts[name]--; counts[name] == 0 {
		delete(counts, name)
	}
}

// networkOf returns what counts as one address: of IPv6 the first half, for one client has all
// of the second.
func networkOf(remote string) string {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		host = remote
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return host
	}
	addr = addr.Unmap()
	if addr.Is6() {
		network, _ := addr.WithZone("").Prefix(64) // 64 are always there
		return network.String()
	}
	return addr.String()
}
