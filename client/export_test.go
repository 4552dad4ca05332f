package client

import (
	"context"
	"net"
	"sync"
	"time"
)

// WithPing sets how a silent connection is found out.
func WithPing(every, wait time.Duration) Option {
	return func(c *config) { c.pingEvery, c.pongWait = every, wait }
}

// WithNetDial sets how connections are made.
func WithNetDial(dial func(ctx context.Context, network, addr string) (net.Conn, error)) Option {
	return func(c *config) { c.netDial = dial }
}

// EndOf returns when a token says that it ends.
func EndOf(token string) (time.Time, bool) { return endOf(token) }

// EmptyPools lets go of what a bubble must not share with what is outside.
func EmptyPools() { exchanges = sync.Pool{New: exchanges.New} }
