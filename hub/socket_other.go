//go:build !linux

package hub

import (
	"syscall"
	"time"
)

// forgetIn is for Linux alone; elsewhere the kernel decides.
func forgetIn(syscall.Conn, time.Duration) {}

// wakeAt is for Linux alone; elsewhere the kernel wakes for each byte.
func wakeAt(syscall.RawConn, int) bool { return false }

func isReadable(syscall.RawConn) bool { return true }

func unread(syscall.RawConn) int { return 0 }
