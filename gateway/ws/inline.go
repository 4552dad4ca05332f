package ws

import "syscall"

// # Answers that are sent at once
//
// To start a flush for one answer costs a goroutine, and often a thread that has to wake up for it. Where
// each connection has one publish under way that is as much as the write itself. So a few bytes
// are written by whoever has queued them, as far as the socket takes them without waiting: the
// goroutine that learns of the commit, or the reader. While the answers to one commit are written, what
// comes next gathers for a larger one.

// inlineBytes is the most that is sent so: an answer or a few. More is better written by several
// processors.
const inlineBytes = 512

// writerOf returns what writes to a connection without waiting, and returns how many bytes it took; nil
// where that is not to be had, as with TLS.
func writerOf(conn any) func(b []byte) int {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return nil
	}
	return func(b []byte) int {
		n := 0
		err := raw.Write(func(fd uintptr) (done bool) {
			n, _ = syscall.Write(int(fd), b) // the socket does not block; an error comes again in the flush
			return true
		})
		if err != nil {
			return 0
		}
		return max(n, 0)
	}
}

// sendInline sends what is queued, where that is little and nobody wants to know when it is sent. It
// reports whether nothing is left; the rest, and every error, is for a flush. s.mu is held, and no
// flush is under way.
func (s *session) sendInline() bool {
	o := &s.out
	c := o.buf
	if s.writeNow == nil || o.closing || o.sending != nil || len(c.b) > inlineBytes || len(c.to) > 0 || len(o.starved) > 0 {
		return false
	}
	n := s.writeNow(c.b)
	if n == 0 {
		return false
	}
	o.sent += int64(n)
	if n < len(c.b) {
		o.buf, o.sending, o.taken = nil, c, n
		return false
	}
	o.buf = nil
	c.recycle()
	s.changed.Broadcast()
	return true
}
