//go:build !linux

package main

import (
	"net"
	"time"
)

// sinceHeard is of Linux.
func sinceHeard(net.Conn) time.Duration { return 0 }
