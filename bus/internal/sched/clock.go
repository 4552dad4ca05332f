package sched

import "time"

// Clock is what leases, retries, reservations and the alarm run by: epoch milliseconds as the
// wall clock had them when the bus was started, and from then on the time that has passed.
// Whoever sets the wall clock makes no lease end early or late. While the machine sleeps
// the clock stops on most systems.
//
// What is stored or shown has the time of the wall clock: commit times, the times of delayed
// events, the epochs of groups, the attempts of a history and the answers of an inspection.
// None of the times of this clock outlives the process.
type Clock struct {
	start time.Time // has the monotonic clock
	base  time.Duration
	wall  func() time.Time
}

// NewClock returns a clock that has the wall clock's time now.
func NewClock(wall func() time.Time) *Clock {
	return &Clock{start: time.Now(), base: time.Duration(wall().UnixNano()), wall: wall}
}

// Now returns the time in epoch milliseconds.
func (c *Clock) Now() int64 { return (c.base + time.Since(c.start)).Milliseconds() }

// After returns the time that comes after a while.
func (c *Clock) After(d time.Duration) int64 { return c.Now() + d.Milliseconds() }

// Wall returns the time of the wall clock.
func (c *Clock) Wall() time.Time { return c.wall() }

// Drift returns by how many milliseconds the wall clock was set since the start. A time of
// the clock and the drift together are what the wall clock has, or would have had, then.
func (c *Clock) Drift() int64 {
	own := c.base + time.Since(c.start)
	return (time.Duration(c.wall().UnixNano()) - own).Round(time.Millisecond).Milliseconds()
}

// until returns how long it is until a time of the clock.
func (c *Clock) until(ms int64) time.Duration {
	return time.Duration(ms)*time.Millisecond - c.base - time.Since(c.start)
}
