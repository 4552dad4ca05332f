package bus

import (
	"context"
	"errors"

	"eventhub"
	"eventhub/store"
)

// SeekGroup implements eventhub.Admin.
func (b *Bus) SeekGroup(ctx context.Context, topic, name string, start eventhub.Start, apply bool) (eventhub.SeekPlan, error) {
	if err := start.Validate(); err != nil {
		return eventhub.SeekPlan{}, err
	}
	g, err := b.acquire(groupKey{topic: topic, group: name})
	if err != nil {
		return eventhub.SeekPlan{}, err
	}
	defer b.release(g)
	if err := g.load(ctx, nil); err != nil {
		return eventhub.SeekPlan{}, err
	}
	to, err := b.resolve(ctx, topic, start)
	if err != nil {
		return eventhub.SeekPlan{}, err
	}
	head, err := b.store.Head(ctx, topic)
	if err != nil {
		return eventhub.SeekPlan{}, storeError(err, "read the head of topic %q", topic)
	}
	return g.seek(ctx, to, head, apply)
}

// seek moves the cursor and voids all leases.
func (g *group) seek(ctx context.Context, to, head uint64, apply bool) (eventhub.SeekPlan, error) {
	g.mu.Lock()
	if g.ended != nil {
		defer g.mu.Unlock()
		return eventhub.SeekPlan{}, g.ended
	}
	plan := g.plotSeek(to, head)
	if !apply {
		g.mu.Unlock()
		return plan, nil
	}
	before := g.progress
	g.progress = newProgress()
	g.progress.reset = true
	g.progress.keepAgain(&before, to)
	g.restart(g.epoch+1, to)
	g.bus.raised(g.epoch)
	for _, m := range g.members {
		m.sought = true
	}
	plan.Applied, plan.Epoch = true, g.epoch
	g.touch()
	g.mu.Unlock()
	g.bus.workers.schedule(g)
	return plan, g.write(ctx)
}

// plotSeek says what a seek does. g.mu is held.
func (g *group) plotSeek(to, head uint64) eventhub.SeekPlan {
	from := g.window.cursor()
	p := eventhub.SeekPlan{
		Topic: g.log.name, Group: g.name, From: from, To: to, Head: head, Epoch: g.epoch, Voided: g.held,
	}
	// What is acked above the cursor is not skipped, but delivered again where it
	// lies above the new one.
	all := uint64(g.window.acked) + g.progress.ackedFrom(g.window.next)
	// A gap among forgotten entries counts as acked; never more than there are.
	above := min(all, g.window.ackedAbove(to)+g.progress.ackedFrom(max(g.window.next, to+1)))
	if to < from {
		p.Again = min(from, head) - min(to, head) + above
		return p
	}
	passed := min(to, head) - min(from, head) // head may be older than the window
	p.Again, p.Skipped = above, passed-min(passed, all-above)
	return p
}

// PauseGroup implements eventhub.Admin.
func (b *Bus) PauseGroup(ctx context.Context, topic, name string) error {
	return b.setPaused(ctx, topic, name, true)
}

// ResumeGroup implements eventhub.Admin.
func (b *Bus) ResumeGroup(ctx context.Context, topic, name string) error {
	return b.setPaused(ctx, topic, name, false)
}

func (b *Bus) setPaused(ctx context.Context, topic, name string, paused bool) error {
	g, err := b.acquire(groupKey{topic: topic, group: name})
	if err != nil {
		return err
	}
	defer b.release(g)
	if err := g.load(ctx, nil); err != nil {
		return err
	}
	g.mu.Lock()
	if g.ended != nil {
		defer g.mu.Unlock()
		return g.ended
	}
	g.paused = paused
	g.touch()
	g.mu.Unlock()
	g.bus.workers.schedule(g)
	return g.write(ctx)
}

// write makes the group's state, which has changed, durable and waits for it.
func (g *group) write(ctx context.Context) error {
	unit := store.Unit{Groups: make([]store.GroupChange, 1)}
	err := g.bus.committer.wait(ctx, unit, func(s *submission) bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		s.units[0].Groups[0] = g.change(g.window.cursor())
		return true
	})
	switch {
	case errors.Is(err, store.ErrStaleEpoch):
		return groupError(store.ErrNotFound, g.log.name, g.name) // deleted meanwhile
	case eventhub.ErrorCode(err) == eventhub.CodeOverloaded:
		return eventhub.Wrap(eventhub.CodeOverloaded, err, "it counts from now on; whether it is durable could not be told in time")
	}
	return err
}
