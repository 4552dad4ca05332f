//go:build !linux

package hub

import (
	"syscall"
	"time"
)

// forgetIn is for Linux alone; elsewhere the kernel decides.
func forgetIn(syscall.Conn, time.Duration) {}
