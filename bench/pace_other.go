//go:build !linux

package bench

import "time"

// nap sleeps. The runtime's timers may be late by as much as a millisecond.
func nap(d time.Duration) { time.Sleep(d) }
