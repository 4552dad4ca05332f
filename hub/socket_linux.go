package hub

import (
	"errors"
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

// wakeAt has the kernel wake who waits for bytes of a connection when there are n of them, and reports whether it does.
func wakeAt(raw syscall.RawConn, n int) bool {
	err := errors.ErrUnsupported
	if at := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, n) }); at != nil {
		return false // it is closed
	}
	return err == nil
}

// isReadable reports whether a read of a connection finds something: bytes, the end, or an error.
func isReadable(raw syscall.RawConn) bool {
	var b [1]byte
	err := error(nil)
	at := raw.Control(func(fd uintptr) { _, _, err = unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT) })
	return at != nil || err != unix.EAGAIN && err != unix.EINTR
}

// unread returns how many bytes of a connection have come and were not read.
func unread(raw syscall.RawConn) int {
	n := uint32(0)
	// An error means that it is closed.
	_ = raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetUint32(int(fd), unix.SIOCINQ) })
	return int(n)
}
