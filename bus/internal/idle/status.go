package idle

import (
	"context"
	"time"
)

// Status says how a group of a topic is doing in which groups end.
type Status struct {
	Expiry time.Duration
	// Counting: it is idle, for Idle so far, and ends Left from now at the earliest, if the hub
	// goes on and nobody uses it.
	Counting   bool
	Idle, Left time.Duration
	// Kept: that is over, and a pattern keeps it.
	Kept bool
}

// Status returns how a group is doing; ok is false where it does not end.
func (r *Runtime) Status(g Group) (s Status, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entries[g]
	if e == nil {
		return s, false
	}
	now := r.Passed()
	s = Status{Expiry: e.expiry, Counting: e.counting, Kept: e.kept}
	if e.counting {
		s.Idle = r.clock.time(now) - e.since
		s.Left = max(r.left(e.expiry, s.Idle, now), 0)
	}
	return s, true
}

// Next returns the group of a topic that ends first, and after how long at the earliest, of those
// that are idle; count is how many these are.
func (r *Runtime) Next(topic string) (first string, after time.Duration, count int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.Passed()
	for g, e := range r.entries {
		if g.Topic != topic || !e.counting {
			continue
		}
		left := max(r.left(e.expiry, r.clock.time(now)-e.since, now), 0)
		if count == 0 || left < after || left == after && g.Name < first {
			first, after = g.Name, left
		}
		count++
	}
	return first, after, count
}

// Plan returns what would end now of these groups, if expiry said for how long a group may be idle
// in a topic, 0 for ever. What it returns is not to be ended.
func (r *Runtime) Plan(ctx context.Context, groups []Group, expiry func(topic string) time.Duration) (ends []*End, err error) {
	isOver := func(g Group) time.Duration {
		most := expiry(g.Topic)
		if most == 0 || err != nil {
			return 0
		}
		var u Use
		if u, err = r.opts.Groups.Use(ctx, g); err != nil || !u.Exists || u.Busy {
			return 0
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		since := r.lastUse(g, &u)
		if e := r.entries[g]; e != nil {
			since = e.since
		}
		now := r.Passed()
		idle := r.clock.time(now) - since
		if r.left(most, idle, now) > 0 {
			return 0
		}
		return idle
	}
	asked := make(map[[2]string]bool)
	for _, g := range groups {
		patterns := r.opts.Groups.Patterns(g)
		if len(patterns) == 0 {
			if idle := isOver(g); idle > 0 {
				ends = append(ends, &End{Name: g.Name, Groups: []Group{g}, Idle: idle})
			}
		}
		for _, p := range patterns {
			end, name := &End{Name: g.Name, Pattern: p}, [2]string{g.Name, p}
			if asked[name] {
				continue
			}
			asked[name] = true
			over, failed := r.pick(ctx, end, isOver)
			if failed != nil {
				return nil, failed
			}
			if over {
				ends = append(ends, end)
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return ends, nil
}
