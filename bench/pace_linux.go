package bench

import (
	"time"

	"golang.org/x/sys/unix"
)

// nap sleeps without the runtime's timers, which on an idle machine are up to a
// millisecond late: as much as what is measured. It costs a thread meanwhile.
func nap(d time.Duration) {
	left := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&left, nil) // who was woken early looks at the clock again
}
