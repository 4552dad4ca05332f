package compaction

import (
	"context"
	"time"
)

const (
	// After a step a pass rests, where others commit, for so many times the length of the step: restAhead where it is quick enough,
	// restBehind where it is not.
	restAhead, restBehind = 24, 4
	// patience is how long a pass may take, and other topics may wait for it, before it is looked whether it is quick enough.
	patience = time.Minute
	// lookEvery is how often that is looked at.
	lookEvery = time.Second
)

// pace is how long the steps of a pass rest: long, so that publishes hardly notice them, as long as
// the pass removes at least twice as many events as come meanwhile, no other topic waits, and there is room on the disk.
type pace struct {
	runtime *Runtime
	topic   string
	began   time.Time
	removed uint64 // by the pass

	behind bool
	looked time.Time
	first  uint64 // the last offset when it was looked at first
}

// rest returns for how many times the length of a step the pass rests after the step.
func (p *pace) rest(ctx context.Context) int {
	if now := time.Now(); now.Sub(p.looked) >= lookEvery {
		p.looked = now
		p.look(ctx, now.Sub(p.began))
	}
	if p.behind {
		return restBehind
	}
	return restAhead
}

// look looks whether a pass that has taken some time is quick enough. One whose topic cannot be read goes on as before: its next
// step says so.
func (p *pace) look(ctx context.Context, elapsed time.Duration) {
	info, err := p.runtime.opts.Store.Topic(ctx, p.topic)
	if err != nil {
		return
	}
	if p.first == 0 {
		p.first = info.Head
	}
	p.behind = p.runtime.opts.Room() != nil || elapsed >= patience && (info.Head-p.first)*2 > p.removed || p.runtime.rounds.Waits() >= patience
}
