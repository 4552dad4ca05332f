package idle

import "time"

// slack is how late a timer may be without anything being wrong.
const slack = time.Second

// clock counts the time in which the hub was watching. While it counts for somebody, the
// goroutine looks at it at planned times; of what it comes late the hub was frozen, or did
// not get a processor, and that does not count.
type clock struct {
	watched time.Duration // at the last look
	at      time.Duration // when that was, by the runtime's time
	most    time.Duration // how much can be counted until the next look; 0: everything
}

// time returns the watched time.
func (c *clock) time(now time.Duration) time.Duration {
	passed := max(now-c.at, 0)
	if c.most > 0 {
		passed = min(passed, c.most)
	}
	return c.watched + passed
}

// look is a look at a clock whose next one is planned after a time, never for none.
func (c *clock) look(now, next time.Duration) {
	c.watched = c.time(now)
	c.at, c.most = now, 0
	if next != never {
		c.most = next + slack
	}
}
