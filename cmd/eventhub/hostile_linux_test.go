package main

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// sinceHeard returns for how long the kernel has heard nothing from the peer of a connection: of one that the peer has
// closed, how long ago that was, or the acknowledgement before it. A process that the others leave no processor learns
// of it only later.
func sinceHeard(conn net.Conn) time.Duration {
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return 0
	}
	var info *unix.TCPInfo
	_ = raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
	if info == nil || err != nil {
		return 0
	}
	return time.Duration(info.Last_ack_recv) * time.Millisecond
}
