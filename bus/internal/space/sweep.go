package space

import (
	"context"
	"time"

	"eventhub/store"
)

// The sweeper rests after each step for a multiple of the time that the step took, at most
// for longestRest. While others commit it works for politeShare of the time: then fewer than
// one commit in a hundred meets a step. But what is removed as fast as it is published must
// not pile up, so the share grows with what is left, up to mostShare where that is
// mostBacklog. Where nobody commits, and where publishes are refused for want of room, the
// share is hurriedShare at least.
const (
	politeShare  = 0.01
	hurriedShare = 0.2
	mostShare    = 0.8
	mostBacklog  = 128 << 20 // bytes of records
	longestRest  = time.Second
)

// sweep is the sweeper: it has the store remove what deleted topics and removed events have
// left, a step at a time, and give back room where that is low.
func (g *Guard) sweep() {
	defer close(g.done)
	later := time.NewTimer(0)
	defer later.Stop()
	for {
		select {
		case <-g.wake:
		case <-later.C:
		case <-g.ctx.Done():
			return
		}
		if again := g.sweepNow(); again >= 0 {
			later.Reset(again)
		} else {
			later.Stop()
		}
	}
}

// sweepNow does what can be done now, and returns after how long there is more; negative where
// nobody knows.
func (g *Guard) sweepNow() (again time.Duration) {
	commits := g.opts.Commits()
	for {
		isStuck := g.shrinkIfLow()
		began := time.Now()
		left := g.step()
		before := commits
		commits = g.opts.Commits()
		switch {
		case left.More():
			rest := restAfter(time.Since(began), commits != before, g.Check() != nil, left.Bytes)
			if !sleep(g.ctx, rest) {
				return -1
			}
		case isStuck:
			if !sleep(g.ctx, RetryAfter) {
				return -1
			}
		default:
			return left.Again
		}
	}
}

// step is one step of the store's sweep.
func (g *Guard) step() store.Left {
	if g.opts.NoSweep {
		return store.Nothing
	}
	left, err := g.opts.Store.Sweep(g.ctx)
	if err != nil && g.ctx.Err() == nil {
		g.opts.Logger.Error("cannot remove what is left of deleted topics and removed events; it is tried again at the next start", "error", err)
	}
	return left
}

// shrinkIfLow has the store give back room where the disk has become nearly full. It
// reports whether that failed and is to be tried again, RetryAfter later, because the disk
// still is.
func (g *Guard) shrinkIfLow() (again bool) {
	if !g.isLow.Load() || time.Now().Before(g.retryAt) {
		return g.isLow.Load()
	}
	g.isLow.Store(false)
	err := g.opts.Store.Shrink(g.ctx)
	if err == nil || g.ctx.Err() != nil {
		return false
	}
	again = g.Check() != nil
	g.isLow.Store(again)
	g.retryAt = time.Now().Add(RetryAfter)
	g.opts.Logger.Warn("cannot give room on the disk back", "error", err, "again", again)
	return again
}

// restAfter returns how long the sweeper rests after a step. othersCommit: since the step
// before, somebody committed; isFull: publishes are refused for want of room; backlog: bytes of
// records that can be removed.
func restAfter(step time.Duration, othersCommit, isFull bool, backlog uint64) time.Duration {
	share := politeShare + (mostShare-politeShare)*min(float64(backlog)/mostBacklog, 1)
	if !othersCommit || isFull {
		share = max(share, hurriedShare)
	}
	return min(time.Duration(float64(step)*(1-share)/share), longestRest)
}

// sleep reports whether the time has passed before ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
