package pebble

import (
	"sync/atomic"
	"time"
)

const (
	// A pacer has long work rest for paceRest after each paceRun of it. Nobody who comes meanwhile waits longer
	// for a processor.
	paceRun  = 500 * time.Microsecond
	paceRest = 500 * time.Microsecond
	// paceBusy is how long after a commit others are taken to go on.
	paceBusy = 20 * time.Millisecond
	// paceEach is after how many calls a pacer looks at the clock.
	paceEach = 16
)

// pacer has the work of one step of the compaction, or of an index that is built, rest while others commit. The zero
// pacer is not one; Store.pace makes one.
type pacer struct {
	commits *atomic.Uint64 // of the store so far
	seen    uint64         // of them
	busy    time.Time      // when that changed last
	began   time.Time      // the work, after the last rest
	calls   int
}

func (s *Store) pace() pacer {
	return pacer{commits: &s.commits, seen: s.commits.Load(), began: time.Now()}
}

// turn is called by the work again and again, with no lock held that a commit takes.
func (p *pacer) turn() {
	if p.calls++; p.calls%paceEach != 0 {
		return
	}
	now := time.Now()
	if now.Sub(p.began) < paceRun {
		return
	}
	if n := p.commits.Load(); n != p.seen {
		p.seen, p.busy = n, now
	}
	if !p.busy.IsZero() && now.Sub(p.busy) < paceBusy {
		time.Sleep(paceRest)
		now = time.Now()
	}
	p.began = now
}
