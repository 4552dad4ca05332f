package client

import "time"

// WithPing sets how a silent connection is found out.
func WithPing(every, wait time.Duration) Option {
	return func(c *config) { c.pingEvery, c.pongWait = every, wait }
}
