package hub

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// forgetIn has the kernel give up what a connection that is to be closed has still to send, when
// the peer has taken nothing of it for d. It would else keep it for minutes, with nobody to
// whom it counts.
func forgetIn(c syscall.Conn, d time.Duration) {
	raw, err := c.SyscallConn()
	if err != nil {
		return // it is closed already
	}
	// An error means the same, or that it is no TCP.
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
	})
}
