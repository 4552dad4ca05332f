package bus

import "time"

// clock is what leases, retries, reservations and the alarm run by: epoch milliseconds as the
// wall clock had them when the bus was started, and from then on the time that has passed.
// Whoever sets the wall clock makes no lease end early or late. While the machine sleeps
// the clock stands still on most systems.
//
// What is stored or shown has the time of the wall clock: commit times, plans, the epochs
// of groups, the attempts of a history and the answers of an inspection. None of the times
// of this clock outlives the process.
type clock struct {
	start time.Time // has the monotonic clock
	base  time.Duration
	wall  func() time.Time
}

func newClock(wall func() time.Time) *clock {
	return &clock{start: time.Now(), base: time.Duration(wall().UnixNano()), wall: wall}
}

// now returns the time in epoch milliseconds.
func (c *clock) now() int64 { return (c.base + time.Since(c.start)).Milliseconds() }

// after returns the time that comes after a while.
func (c *clock) after(d time.Duration) int64 { return c.now() + d.Milliseconds() }

// until returns how long it is until a time of the clock.
func (c *clock) until(ms int64) time.Duration {
	return time.Duration(ms)*time.Millisecond - c.base - time.Since(c.start)
}

// drift returns by how many milliseconds the wall clock was set since the start. A time of
// the clock and the drift together are what the wall clock has, or would have had, then.
func (c *clock) drift() int64 {
	own := c.base + time.Since(c.start)
	return (time.Duration(c.wall().UnixNano()) - own).Round(time.Millisecond).Milliseconds()
}
