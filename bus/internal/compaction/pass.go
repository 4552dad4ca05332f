package compaction

import (
	"context"
	"time"

	"eventhub/admin"
	"eventhub/bus/internal/commit"
	"eventhub/bus/internal/rounds"
	"eventhub/store"
)

// compact moves the marks of a topic and does what they say. It returns after how long there
// is more to do; 0 where that depends on others.
func (r *Runtime) compact(ctx context.Context, topic string, policy *admin.Compaction) (again time.Duration, err error) {
	info, err := r.opts.Store.Topic(ctx, topic)
	if err != nil {
		return 0, err
	}
	if info.Index != store.Indexed {
		return 0, nil // Look is called when it is
	}
	ch := store.TopicChange{Topic: topic, Life: info.Life}
	held := Held{}
	if ch.Compacted, held, again, err = r.mark(ctx, info, policy); err != nil {
		return 0, err
	}
	r.note(topic, func(s *Stats) { s.Held = held })
	if ch.Tombstones, err = r.older(ctx, topic, policy.Grace); err != nil {
		return 0, err
	}
	ch.Tombstones = min(ch.Tombstones, max(ch.Compacted, info.Compacted))
	if ch.Compacted > info.Compacted || ch.Tombstones > info.Tombstones {
		if err := r.commit(ctx, ch); err != nil {
			return 0, err
		}
	}
	if err := r.steps(ctx, topic); err != nil {
		return 0, err
	}
	if ch.Tombstones < max(ch.Compacted, info.Compacted) {
		next, err := r.untilOlder(ctx, topic, ch.Tombstones+1, policy.Grace)
		if err != nil {
			return 0, err
		}
		again = sooner(again, next)
	}
	return again, nil
}

// mark returns up to where a topic may be compacted, what holds the rest, and after how long the
// mark is further on.
func (r *Runtime) mark(ctx context.Context, info store.TopicInfo, policy *admin.Compaction) (mark uint64, why Held, again time.Duration, err error) {
	if mark, err = r.older(ctx, info.Name, policy.MinAge); err != nil {
		return 0, why, 0, err
	}
	if mark < info.Head {
		if again, err = r.untilOlder(ctx, info.Name, mark+1, policy.MinAge); err != nil {
			return 0, why, 0, err
		}
		if again > 0 {
			why = Held{From: mark + 1, Until: r.opts.Wall().Add(again).UnixMilli()}
		}
	}
	held, err := r.older(ctx, info.Name, policy.Hold)
	if err != nil {
		return 0, why, 0, err
	}
	groups, err := r.opts.Store.ListGroups(ctx, info.Name)
	if err != nil {
		return 0, why, 0, err
	}
	for _, g := range groups {
		if g.State.Cursor >= mark {
			continue
		}
		// What is open of the group begins at the first event after its cursor.
		first, err := r.first(ctx, info.Name, g.State.Cursor+1)
		switch {
		case err != nil:
			return 0, why, 0, err
		case first == 0:
			continue // nothing is open
		case first <= held:
			r.overtake(info.Name, g.Group, first)
			continue
		}
		next, err := r.untilOlder(ctx, info.Name, first, policy.Hold)
		if err != nil {
			return 0, why, 0, err
		}
		if first <= mark {
			mark, why = first-1, Held{From: first, Group: g.Group, Until: r.opts.Wall().Add(next).UnixMilli()}
		}
		again = sooner(again, next)
	}
	return mark, why, again, nil
}

// overtake says that a group keeps nothing any more, once for each event that it stands before.
func (r *Runtime) overtake(topic, group string, first uint64) {
	key := overtaken{topic, group}
	r.mu.Lock()
	said := r.overtaken[key] == first
	r.overtaken[key] = first
	r.mu.Unlock()
	if said {
		return
	}
	r.opts.Logger.Warn("a group has not been done with an event for longer than its topic holds events; compaction goes on; what it removes the group does not get, and is notified of; delete the group, or raise compaction.hold, if that is wrong",
		"topic", topic, "group", group, "offset", first)
}

// older returns the last offset whose event is older than an age.
func (r *Runtime) older(ctx context.Context, topic string, age admin.Period) (uint64, error) {
	t := r.opts.Ages.Now(time.Duration(age)).Add(-time.Duration(age))
	at, err := r.opts.Store.SeekTime(ctx, topic, max(t.UnixMilli(), 0)+1)
	return at - min(at, 1), err
}

// first returns the offset of the first event from an offset on, 0 where there is none.
func (r *Runtime) first(ctx context.Context, topic string, from uint64) (uint64, error) {
	var batch store.Batch
	if err := r.opts.Store.Read(ctx, topic, from, 1, 0, &batch); err != nil || len(batch.Items) == 0 {
		return 0, err
	}
	return batch.Items[0].Offset, nil
}

// untilOlder returns how long it takes until the first event from an offset on is older than an
// age; 0 where there is none.
func (r *Runtime) untilOlder(ctx context.Context, topic string, from uint64, age admin.Period) (time.Duration, error) {
	var batch store.Batch
	if err := r.opts.Store.Read(ctx, topic, from, 1, 0, &batch); err != nil || len(batch.Items) == 0 {
		return 0, err
	}
	left := r.opts.Ages.Until(batch.Items[0].Record.CommitTime(), time.Duration(age))
	return max(left, time.Millisecond), nil
}

// sooner returns the shorter of two times of which 0 is none.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// job is the commit of the marks.
type job struct{ commit.Call }

// Done implements commit.Job.
func (j *job) Done(err error) { j.Answer(err) }

// commit makes marks durable.
func (r *Runtime) commit(ctx context.Context, ch store.TopicChange) error {
	j := new(job)
	j.Units, j.Durable = []store.Unit{{Topics: []store.TopicChange{ch}}}, true
	if err := r.opts.Committer.Do(ctx, j); err != nil {
		return err
	}
	return j.Units[0].Err
}

// steps has the store remove what the marks leave over, a step at a time.
func (r *Runtime) steps(ctx context.Context, topic string) error {
	commits := r.opts.Commits()
	p := pace{runtime: r, topic: topic, began: time.Now()}
	for {
		began := time.Now()
		u, done, err := r.opts.Store.Compact(ctx, topic)
		if err != nil {
			return err
		}
		now := r.opts.Wall().UnixMilli()
		r.note(topic, func(s *Stats) {
			s.Events += u.Events
			s.Bytes += u.Bytes
			s.LastPass = now
		})
		if done {
			return nil
		}
		p.removed += u.Events
		before := commits
		if commits = r.opts.Commits(); commits != before {
			if err := rounds.Rest(ctx, began, p.rest(ctx)); err != nil {
				return err
			}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}
