package retention

import "time"

const (
	// catchUp is how much of what the wall clock is ahead the clock of ages catches up in a
	// unit of time, besides that unit: an hour a minute.
	catchUp = 60
	// drift is by how much a wall clock may be ahead between two looks that nobody has set.
	drift = time.Second
)

// clock is the clock of ages. It follows the wall clock, except that it catches up slowly
// where that is ahead of the time that has passed.
//
// Nothing of it outlives the process. It begins with the newest event of the store, so a hub
// that was stopped, or had no events, for a while begins with a wall clock that is ahead.
type clock struct {
	now  int64         // epoch milliseconds
	wall int64         // what the wall clock had then
	at   time.Duration // when that was, by the runtime's time
	// steady is since when the wall clock has not jumped ahead. An age that has passed since
	// then has passed, whatever the clock had before.
	steady time.Duration
}

// advance moves the clock on, and returns by how much the wall clock is ahead of it.
func (c *clock) advance(at time.Duration, wall int64) (held time.Duration) {
	passed := at - c.at
	if wall > c.wall+(passed+drift).Milliseconds() {
		c.steady = at
	}
	most := c.now + (passed + catchUp*min(passed, mostInterval)).Milliseconds()
	c.now, c.wall, c.at = min(wall, most), wall, at
	return time.Duration(wall-c.now) * time.Millisecond
}

// cutoff returns before which commit time events are older than an age.
func (c *clock) cutoff(age time.Duration) int64 {
	now := c.now
	if c.at-c.steady >= age {
		now = c.wall
	}
	return now - age.Milliseconds()
}
