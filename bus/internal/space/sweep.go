package space

import (
	"context"
	"time"
)

// The sweeper rests after each step for a multiple of the time that the step took, at most
// for longestRest. While others commit it rests for politeRest times a step: then fewer
// than one commit in a hundred meets a step. Where nobody commits, and where publishes are
// refused for want of room, hurriedRest is enough.
const (
	politeRest  = 99
	hurriedRest = 4
	longestRest = time.Second
)

// sweep is the sweeper: it has the store remove what deleted topics have left, a step at a
// time, and give back room where that is low.
func (g *Guard) sweep() {
	defer close(g.done)
	for {
		select {
		case <-g.wake:
		case <-g.ctx.Done():
			return
		}
		commits := g.opts.Commits()
		for more := true; more; {
			again := g.shrinkIfLow()
			began := time.Now()
			var err error
			if more, err = g.opts.Store.Sweep(g.ctx); err != nil && g.ctx.Err() == nil {
				g.opts.Logger.Error("cannot remove what deleted topics have left; it is tried again at the next start", "error", err)
			}
			before := commits
			commits = g.opts.Commits()
			switch {
			case more:
				more = sleep(g.ctx, restAfter(time.Since(began), commits != before, g.Check() != nil))
			case again:
				more = sleep(g.ctx, RetryAfter)
			}
		}
	}
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
// before, somebody committed; isFull: publishes are refused for want of room.
func restAfter(step time.Duration, othersCommit, isFull bool) time.Duration {
	rest := time.Duration(hurriedRest)
	if othersCommit && !isFull {
		rest = politeRest
	}
	return min(rest*step, longestRest)
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
