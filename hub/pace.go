package hub

import (
	"math"
	"syscall"
	"time"
)

const (
	// freePieces is how many pieces a connection that has shown no right is read as soon as they come: a handshake of
	// TLS, a header or an upgrade, and AUTH have less. Each answer that is no refusal gives them anew.
	freePieces = 8
	// pieceBytes is what is no piece any more: a packet of the smallest network carries more.
	pieceBytes = 1 << 10
	// gatherFor is how often the hub looks after these whether something has come.
	gatherFor = 500 * time.Millisecond
	// quietBytes is how much may come meanwhile before the kernel wakes the hub. The kernel makes room for twice that,
	// which a connection has from its beginning.
	quietBytes = 32 << 10
)

// Read implements net.Conn. A peer that sends a byte at a time costs a wake-up for each. One that has shown no right has
// a few of them; then the kernel gathers what comes, and the hub takes all of it every gatherFor, in as many reads as whoever
// reads needs.
func (c *conn) Read(p []byte) (int, error) {
	if c.known.Load() {
		return c.Conn.Read(p)
	}
	if c.pieces.Load() >= freePieces && c.found.Load() <= 0 {
		c.found.Store(int64(c.awaitLook()))
	}
	n, err := c.Conn.Read(p)
	c.found.Add(int64(-n))
	if n < min(pieceBytes, len(p)) { // what fills p is as much as was asked for: more may be there
		c.pieces.Add(1)
	}
	return n, err
}

// awaitLook waits until it is time to look and a read does not wait: it finds bytes, the end, an error, or a deadline that
// is over. It returns how many bytes there are. Where the kernel does not gather, the read waits.
func (c *conn) awaitLook() (found int) {
	raw, due := c.gather(), time.Now().Add(gatherFor)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		left := c.readsFor()
		if left <= 0 || c.known.Load() {
			return 0
		}
		timer.Reset(min(time.Until(due), left))
		select {
		case <-timer.C:
		case <-c.stirred: // it is known, is closed, or has another deadline
		}
		if time.Now().Before(due) {
			continue
		}
		if raw == nil {
			return 0
		}
		if isReadable(raw) {
			return unread(raw)
		}
		due = time.Now().Add(gatherFor)
	}
}

// gather has the kernel not wake the hub for a little that comes; nil: it can not.
func (c *conn) gather() syscall.RawConn {
	inner, ok := c.Conn.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := inner.SyscallConn()
	if err != nil {
		return nil // it is closed
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.gathers && !c.known.Load() {
		c.gathers = wakeAt(raw, quietBytes)
	}
	if !c.gathers {
		return nil
	}
	return raw
}

// gatherNoMore has the kernel wake the hub for each byte again: a read that does not look waits for that. c.mu is held.
func (c *conn) gatherNoMore() {
	if !c.gathers {
		return
	}
	c.gathers = false
	if raw, err := c.Conn.(syscall.Conn).SyscallConn(); err == nil { // else it is closed
		wakeAt(raw, 1)
	}
}

// stir has a read that waits look at once. c.mu is held.
func (c *conn) stir() {
	select {
	case c.stirred <- struct{}{}:
	default:
	}
}

// readsFor returns how much time reads have.
func (c *conn) readsFor() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.stopping && !c.serving:
		return 0 // it is closed
	case c.armed.IsZero():
		return math.MaxInt64
	}
	return time.Until(c.armed)
}
