package idle

import (
	"context"
	"time"

	"eventhub/store"
)

// End is what ends in one unit: one group, or a pattern of a group with the group in the topics that
// no other pattern of it matches.
type End struct {
	Name    string // of the group
	Pattern string
	Groups  []Group // that go
	Idle    time.Duration

	r       *Runtime
	watched []*entry // that have to be idle still, since these times
	since   []time.Duration
	rows    []store.NoteChange
}

// Confirm reports whether all is still as it was found. It is called when the unit is built,
// when the groups cannot be used any more.
func (e *End) Confirm() bool {
	r := e.r
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, w := range e.watched {
		if r.entries[w.group] != w || w.since != e.since[i] || r.opts.Policies.GroupExpiry(w.group.Topic) != w.expiry {
			return false
		}
	}
	return true
}

// Watched returns the groups that have to be idle, in the order of their topics.
func (e *End) Watched() (list []Group) {
	for _, w := range e.watched {
		list = append(list, w.group)
	}
	return list
}

// Rows returns the notes of the unit: of each of Groups what is kept of it. Where the unit is
// refused, Failed has to follow.
func (e *End) Rows(ended []Ended) (changes []store.NoteChange) {
	r := e.r
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, g := range e.Groups {
		r.rows.drop(g.row(stampPrefix))
		r.ended.add(g, ended[i])
		r.rows.set(g.row(endedPrefix), ended[i])
		changes = append(changes, r.rows.change(g.row(stampPrefix)), r.rows.change(g.row(endedPrefix)))
	}
	for _, name := range r.ended.stale(r.opts.Wall()) {
		r.rows.drop(name)
		changes = append(changes, r.rows.change(name))
	}
	e.rows = changes
	return changes
}

// Failed takes back what Rows did: the store has what it had before.
func (e *End) Failed() {
	r := e.r
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, g := range e.Groups {
		r.rows.drop(r.ended.remove(g))
		if w := r.entries[g]; w != nil {
			w.stamped = false
		}
	}
	for i := range e.rows {
		r.rows.unwritten[e.rows[i].Name] = true
	}
}

// Counts returns how many groups were ended, by topic.
func (r *Runtime) Counts() map[string]uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	counts := make(map[string]uint64, len(r.counts))
	for topic, n := range r.counts {
		counts[topic] = n
	}
	return counts
}

// end ends groups whose time is over, alone or with their patterns.
func (r *Runtime) end(over []*entry) {
	asked := make(map[[2]string]bool)
	for _, e := range over {
		if r.ctx.Err() != nil {
			return
		}
		patterns := r.opts.Groups.Patterns(e.group)
		if len(patterns) == 0 {
			r.endOne(e)
			continue
		}
		for _, p := range patterns {
			if name := [2]string{e.group.Name, p}; !asked[name] {
				asked[name] = true
				r.endPattern(e.group, p)
			}
		}
		r.mu.Lock()
		e.kept = e.next == never // until another topic of a pattern says otherwise
		r.mu.Unlock()
	}
}

func (r *Runtime) endOne(e *entry) {
	end := &End{Name: e.group.Name, Groups: []Group{e.group}, r: r}
	if end.Idle = r.isOver(end)(e.group); end.Idle > 0 {
		r.finish(end)
	}
}

// isOver returns what says for how long a group has been idle whose time is over, 0 for any other
// one, and notes for Confirm what that is based on.
func (r *Runtime) isOver(end *End) func(Group) time.Duration {
	return func(g Group) time.Duration {
		r.mu.Lock()
		defer r.mu.Unlock()
		e := r.entries[g]
		if e == nil || !e.counting {
			return 0
		}
		now := r.Passed()
		idle := r.clock.time(now) - e.since
		if r.left(e.expiry, idle, now) > 0 {
			return 0
		}
		end.watched, end.since = append(end.watched, e), append(end.since, e.since)
		return idle
	}
}

// endPattern ends a pattern of a group, whose time is over in one topic, if it is in all that the
// pattern matches.
func (r *Runtime) endPattern(trigger Group, pattern string) {
	name := trigger.Name
	end := &End{Name: name, Pattern: pattern, r: r}
	over, err := r.pick(r.ctx, end, r.isOver(end))
	switch {
	case err != nil && r.ctx.Err() == nil:
		r.opts.Logger.Error("cannot find out whether a pattern of a group is idle; it is tried again", "group", name, "pattern", pattern, "error", err)
		r.isOver(end)(trigger)
		r.again(end, retryAfter)
	case over:
		r.finish(end)
	}
}

// pick fills in which groups go with a pattern, and reports whether it ends.
func (r *Runtime) pick(ctx context.Context, end *End, isOver func(Group) time.Duration) (over bool, err error) {
	topics, err := r.opts.Groups.Brought(ctx, end.Name, end.Pattern)
	if err != nil {
		return false, err
	}
	for _, topic := range topics {
		g := Group{topic, end.Name}
		idle := isOver(g)
		if idle == 0 {
			return false, nil
		}
		if end.Idle == 0 || idle < end.Idle {
			end.Idle = idle
		}
		if len(r.opts.Groups.Patterns(g)) == 1 {
			end.Groups = append(end.Groups, g)
		}
	}
	return len(topics) > 0, nil
}

// finish has the bus end it.
func (r *Runtime) finish(end *End) {
	if r.opts.NoEnds {
		return
	}
	ended, err := r.opts.Groups.End(r.ctx, end)
	switch {
	case ended:
		r.mu.Lock()
		for _, g := range end.Groups {
			r.counts[g.Topic]++
		}
		r.mu.Unlock()
	case err != nil && r.ctx.Err() == nil:
		r.opts.Logger.Error("cannot end a group that nobody uses; it is tried again", "group", end.Name, "topic", end.watched[0].group.Topic, "pattern", end.Pattern, "error", err)
		r.again(end, retryAfter)
	case err == nil:
		r.again(end, retryAfter)
	}
}

// again has groups looked at later that have not ended.
func (r *Runtime) again(end *End, after time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range end.watched {
		if r.entries[e.group] == e {
			r.due(e, r.Passed()+min(after, e.expiry))
		}
	}
}
