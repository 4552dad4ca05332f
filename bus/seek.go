package bus

import (
	"context"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/commit"
	"eventhub/bus/internal/groupstate"
	"eventhub/bus/internal/past"
	"eventhub/store"
)

// SeekGroup implements admin.Operator.
func (b *Bus) SeekGroup(ctx context.Context, topic, name string, start eventhub.Start, apply bool) (admin.SeekPlan, error) {
	return b.seekAndCount(ctx, topic, name, start, seeking{apply: apply})
}

// SeekGroupIf implements admin.Operator.
func (b *Bus) SeekGroupIf(ctx context.Context, topic, name string, start eventhub.Start, epoch uint64) (admin.SeekPlan, error) {
	return b.seekAndCount(ctx, topic, name, start, seeking{apply: true, epoch: &epoch})
}

// seeking says whether a seek is applied, and the epoch that the group has to have; nil: any.
type seeking struct {
	apply bool
	epoch *uint64
}

func (b *Bus) seekAndCount(ctx context.Context, topic, name string, start eventhub.Start, how seeking) (admin.SeekPlan, error) {
	plan, way, err := b.seek(ctx, topic, name, start, how)
	if err != nil {
		return admin.SeekPlan{}, err
	}
	// After the seek: it counts whatever happens to the reads.
	if err := b.count(ctx, topic, &way); err != nil && !how.apply {
		return admin.SeekPlan{}, err
	}
	if plan.To < plan.From {
		plan.Again += way.events
	} else {
		plan.Skipped += way.events
	}
	return plan, nil
}

// seek returns what a seek does, except for the events of way.
func (b *Bus) seek(ctx context.Context, topic, name string, start eventhub.Start, how seeking) (plan admin.SeekPlan, way passage, err error) {
	if err := start.Validate(); err != nil {
		return plan, way, err
	}
	g, err := b.acquire(groupKey{topic: topic, group: name})
	if err != nil {
		return plan, way, err
	}
	defer b.release(g)
	if err := g.load(ctx, nil); err != nil {
		return plan, way, err
	}
	to, gap, marks, err := past.Begin(ctx, b.store, topic, start)
	if err != nil {
		return plan, way, err
	}
	head, err := b.store.Head(ctx, topic)
	if err != nil {
		return plan, way, storeError(err, "read the head of topic %q", topic)
	}
	return g.seek(ctx, to, gap, missing(gap, marks), head, how)
}

// passage is a groupstate.Passage and how many events are there that are not known to be done.
type passage struct {
	groupstate.Passage
	events uint64
}

// countedEvents and countedBytes bound what is read to count events.
const (
	countedEvents = 100_000
	countedBytes  = 64 << 20
)

// count reads how many events are on the way that are not done. Where it reads no further
// each offset counts as an event.
func (b *Bus) count(ctx context.Context, topic string, w *passage) error {
	var batch store.Batch
	for read, bytes := 0, 0; w.After < w.End; {
		if read >= countedEvents || bytes >= countedBytes {
			w.events += w.Undone()
			break
		}
		batch.Reset()
		if err := b.store.Read(ctx, topic, w.After+1, roundEvents, roundBytes, &batch); err != nil {
			w.events += w.Undone()
			return storeError(err, "count events of topic %q", topic)
		}
		n := past.Search(batch.Items, w.End+1)
		for i := range batch.Items[:n] {
			if !w.Done.Has(batch.Items[i].Offset) {
				w.events++
			}
			bytes += len(batch.Items[i].Record)
		}
		if read += n; n == 0 || n < len(batch.Items) {
			break
		}
		w.After = batch.Items[n-1].Offset
	}
	return nil
}

// seek moves the cursor to to and voids all leases. gap, where not nil, is what was asked for and
// was removed, and misses says it too.
func (g *group) seek(ctx context.Context, to uint64, gap *eventhub.Gap, misses groupstate.Missing, head uint64, how seeking) (admin.SeekPlan, passage, error) {
	g.mu.Lock()
	if g.ended != nil {
		defer g.mu.Unlock()
		return admin.SeekPlan{}, passage{}, g.ended
	}
	if now := g.state.Epoch(); how.epoch != nil && now != *how.epoch {
		defer g.mu.Unlock()
		return admin.SeekPlan{}, passage{}, eventhub.Errorf(eventhub.CodeConflict, "group %q of topic %q has epoch %d, not %d: it was moved since; look at the plan again", g.name, g.log.Topic(), now, *how.epoch)
	}
	plan, passed := g.state.PlanSeek(to, head)
	plan.Topic, plan.Group = g.log.Topic(), g.name
	if gap != nil {
		plan.Gap = &admin.SeekGap{After: gap.After, First: gap.First, Compacted: gap.Compacted, Tombstones: gap.Tombstones}
	}
	way := passage{Passage: passed}
	if !how.apply {
		g.mu.Unlock()
		return plan, way, nil
	}
	g.waits.Skipped(to)
	g.state.Seek(to, misses, g.bus.runtimes.draw(g))
	g.restarted()
	g.bus.raised(g.state.Epoch())
	for _, m := range g.members {
		m.sought, m.dated = true, false
	}
	plan.Applied, plan.Epoch = true, g.state.Epoch()
	g.mu.Unlock()
	g.bus.sched.Schedule(g)
	return plan, way, g.write(ctx)
}

// PauseGroup implements admin.Operator.
func (b *Bus) PauseGroup(ctx context.Context, topic, name string) error {
	return b.setPaused(ctx, topic, name, true)
}

// ResumeGroup implements admin.Operator.
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
	g.bus.sched.Schedule(g)
	return g.write(ctx)
}

// write makes the group's state, which has changed, durable and waits for it.
func (g *group) write(ctx context.Context) error {
	unit := store.Unit{Groups: make([]store.GroupChange, 1)}
	err := g.bus.committer.Do(ctx, commit.NewWrite(unit, func(u *store.Unit) error {
		g.mu.Lock()
		defer g.mu.Unlock()
		u.Groups[0] = g.change(g.state.Cursor())
		return nil
	}))
	switch {
	case isOutdated(err):
		return groupError(store.ErrNotFound, g.log.Topic(), g.name) // deleted meanwhile
	case eventhub.ErrorCode(err) == eventhub.CodeOverloaded:
		return eventhub.Wrap(eventhub.CodeOverloaded, err, "it counts from now on; whether it is durable was not known in time")
	}
	return err
}

// SetCursor moves a group to just after offset, up or down; see
// admin.Operator.SeekGroup.
func (b *Bus) SetCursor(ctx context.Context, topic, name string, offset uint64) error {
	if offset >= eventhub.MaxOffset {
		return eventhub.Errorf(eventhub.CodeBadRequest, "offset is %d; less than %d is allowed", offset, uint64(eventhub.MaxOffset))
	}
	_, _, err := b.seek(ctx, topic, name, eventhub.Start{Kind: eventhub.StartOffset, Offset: offset + 1}, seeking{apply: true})
	return err
}
