package commit

import (
	"log/slog"
	"sync/atomic"
	"time"
)

// StallAfter is how long the store may keep a commit before the log says so. One takes
// milliseconds; a disk that is slow, or gone and waited for, takes seconds, or never ends.
const StallAfter = 5 * time.Second

// stall reports a store that does not end what it was given: a commit that waits for the
// disk is counted only when it is over. It costs a commit a few atomic operations. The
// timer runs while there are commits, and once after them.
type stall struct {
	log   *slog.Logger
	start time.Time // what since counts from, in nanoseconds
	timer *time.Timer

	underWay atomic.Int32 // commits
	since    atomic.Int64 // the begin of the first of them, or the end of the last one that ended
	armed    atomic.Bool
	logged   atomic.Bool // that it stalls
}

func (s *stall) init(log *slog.Logger) {
	s.log, s.start = log, time.Now()
	s.timer = time.AfterFunc(time.Hour, s.look)
	s.timer.Stop()
}

// begin notes that the store is given a commit.
func (s *stall) begin(now time.Time) {
	if s.underWay.Add(1) == 1 {
		s.since.Store(int64(now.Sub(s.start)))
	}
	s.arm(StallAfter)
}

// end notes that it has ended one.
func (s *stall) end(now time.Time) {
	since := s.since.Swap(int64(now.Sub(s.start)))
	s.underWay.Add(-1)
	if s.logged.Load() && s.logged.CompareAndSwap(true, false) {
		s.log.Warn("the store goes on", "waited", (now.Sub(s.start) - time.Duration(since)).Round(time.Millisecond))
	}
}

func (s *stall) arm(in time.Duration) {
	if s.armed.CompareAndSwap(false, true) {
		s.timer.Reset(in)
	}
}

// waited returns how long the store has ended no commit while one is under way, else 0.
func (s *stall) waited() time.Duration {
	if s.underWay.Load() == 0 {
		return 0
	}
	return max(0, time.Since(s.start)-time.Duration(s.since.Load()))
}

// look is the timer's. A begin that found it armed is seen here, as the order is the other
// way round.
func (s *stall) look() {
	s.armed.Store(false)
	if s.underWay.Load() == 0 {
		return
	}
	waited := s.waited()
	if waited < StallAfter {
		s.arm(StallAfter - waited)
		return
	}
	if s.logged.CompareAndSwap(false, true) {
		s.log.Warn("the store does not end a commit: the disk is slow or does not answer", "waited", waited.Round(time.Millisecond))
	}
	s.arm(StallAfter)
}
