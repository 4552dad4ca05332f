package ws

import (
	"bufio"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// socket is the hub's end of a connection with a buffer of so many bytes, as a kernel has
// one: a write returns when all is in it, or says how much is when its deadline comes or
// somebody closes. What the peer says comes over a pipe. It is for bubbles.
type socket struct {
	net.Conn // reads what the peer says

	// took is called with what a write has put into the buffer, and whether the write began
	// before the session was sealed. s.mu is held.
	took func(b []byte, before bool)

	mu      sync.Mutex
	changed sync.Cond // room, the deadline, the end
	room    int       // of the buffer in all
	full    int       // what the peer has not read yet of it
	by      time.Time // the write deadline
	bell    *time.Timer
	closed  bool

	sealed atomic.Bool // the session is
}

// openSocket starts a session over a socket and returns that and the peer's end of the
// pipe.
func (f *fixture) openSocket(t testing.TB, room int, took func([]byte, bool)) (*socket, net.Conn) {
	t.Helper()
	ours, theirs := net.Pipe()
	s := &socket{Conn: ours, room: room, took: took}
	s.changed.L = &s.mu
	s.bell = time.AfterFunc(time.Hour, s.changed.Broadcast)
	if why := f.gw.take(); why != "" {
		t.Fatal(why)
	}
	f.gw.start(s, bufio.NewReader(strings.NewReader("")), s.RemoteAddr().String(), noPlace{}, time.Time{})
	return s, theirs
}

// Write implements net.Conn.
func (s *socket) Write(b []byte) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := !s.sealed.Load()
	for {
		switch {
		case s.closed:
			return n, io.ErrClosedPipe
		case !s.by.IsZero() && !time.Now().Before(s.by):
			return n, os.ErrDeadlineExceeded
		}
		k := min(s.room-s.full, len(b)-n)
		s.took(b[n:n+k], before)
		s.full += k
		if n += k; n == len(b) {
			return n, nil
		}
		s.changed.Wait()
	}
}

// SetWriteDeadline implements net.Conn. The session is sealed by one in the past.
func (s *socket) SetWriteDeadline(at time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.by = at
	if at.Equal(past) {
		s.sealed.Store(true)
	}
	s.bell.Reset(time.Until(at))
	s.changed.Broadcast()
	return nil
}

// Close implements net.Conn. What the peer has not read yet it may still read.
func (s *socket) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.bell.Stop()
	s.changed.Broadcast()
	return s.Conn.Close()
}

// drain has the peer read up to n bytes, as far as the hub sends so many at once, and
// returns how many.
func (s *socket) drain(n int) (read int) {
	for read < n {
		s.mu.Lock()
		k := min(n-read, s.full)
		s.full -= k
		s.changed.Broadcast()
		s.mu.Unlock()
		if k == 0 {
			break
		}
		read += k
		synctest.Wait() // the hub fills the buffer again
	}
	return read
}

// reset is the end of a peer that says nothing more: a write under way fails with what
// it has put into the buffer so far.
func (s *socket) reset(theirs net.Conn) {
	s.mu.Lock()
	s.closed = true
	s.changed.Broadcast()
	s.mu.Unlock()
	theirs.Close()
}
