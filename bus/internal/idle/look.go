package idle

import (
	"cmp"
	"slices"
	"time"

	"eventhub"
	"eventhub/store"
)

// run is the goroutine.
func (r *Runtime) run() {
	defer close(r.done)
	r.begin()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop() // it has no effect before it is set
	for r.ctx.Err() == nil {
		r.takeChanges()
		r.mu.Lock()
		wakeAt := r.wakeAt
		wait := wakeAt - r.Passed()
		r.mu.Unlock()
		if wait <= 0 {
			r.round()
			continue
		}
		var rings <-chan time.Time // none where nothing is due
		if wakeAt != never {
			timer.Reset(wait)
			rings = timer.C
		}
		select {
		case <-rings:
		case <-r.wake:
		case <-r.ctx.Done():
		}
	}
}

// begin finds the groups that may end. The notes of all others are void: they are not
// watched, and so not true for long.
func (r *Runtime) begin() {
	found := true
	if r.on.Load() {
		found = r.find("**")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if found {
		r.dropStamps()
	}
	if r.rows.some() || len(r.ended.order) > 0 {
		r.wakeBy(r.Passed() + settle)
	}
}

// find enters the groups of the topics that a name means, and reports whether it could.
func (r *Runtime) find(name string) bool {
	err := r.eachTopic(name, func(topic string) error {
		if r.opts.Policies.GroupExpiry(topic) == 0 {
			return nil
		}
		groups, err := r.opts.Store.ListGroups(r.ctx, topic)
		if err != nil {
			return err
		}
		for _, g := range groups {
			if err := r.findGroup(Group{topic, g.Group}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil && r.ctx.Err() == nil {
		r.opts.Logger.Error("cannot list the groups that may end; a change of settings or the next start has them found", "error", err)
	}
	return err == nil
}

func (r *Runtime) eachTopic(name string, visit func(topic string) error) error {
	if !eventhub.IsPattern(name) {
		return visit(name)
	}
	for t, err := range store.AllTopics(r.ctx, r.opts.Store, "") {
		if err == nil {
			err = visit(t.Name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// findGroup enters a group that is not known. What is known of it is its note, or when it was
// used since the start.
func (r *Runtime) findGroup(g Group) error {
	r.mu.Lock()
	known := r.entries[g] != nil
	if !known {
		r.enter(g, r.clock.time(r.Passed()), never) // so that uses from now on are noticed
	}
	e := r.entries[g]
	r.mu.Unlock()
	if known || e == nil {
		return nil
	}
	u, err := r.opts.Groups.Use(r.ctx, g)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.entries[g] != e {
		return err
	}
	if err == nil && e.uses == 0 {
		if e.since, e.stamped = r.stampOf(g, &u); !e.stamped {
			e.since = r.lastUse(g, &u)
		}
	}
	r.due(e, r.Passed())
	return err
}

// lastUse is when a group was used last, in watched time. Where time was lost since the start
// it is not known when: all of that came before the use, so that no group ends early.
// r.mu is held.
func (r *Runtime) lastUse(g Group, u *Use) time.Duration {
	now := r.clock.time(r.Passed())
	if u.Busy {
		return now
	}
	return min(r.atStart+max(u.Last, r.made[g]), now)
}

// takeChanges gives topics the policies that were changed.
func (r *Runtime) takeChanges() {
	r.mu.Lock()
	changed := r.changed
	if len(changed) == 0 {
		r.mu.Unlock()
		return // the map is still that of Changed
	}
	r.changed = make(map[string]bool)
	now := r.Passed()
	for g, e := range r.entries {
		switch expiry := r.opts.Policies.GroupExpiry(g.Topic); {
		case expiry == 0:
			r.leave(g)
		case expiry != e.expiry || e.kept:
			e.expiry, e.kept = expiry, false
			r.due(e, now)
		}
	}
	if r.rows.some() {
		r.wakeBy(now)
	}
	r.mu.Unlock()
	wide := false
	for name := range changed {
		wide = wide || eventhub.IsPattern(name)
	}
	if wide {
		changed = map[string]bool{"**": true}
	}
	for name := range changed {
		r.find(name)
	}
}

// round looks at all groups that are due, and ends those whose time is over.
func (r *Runtime) round() {
	over := r.lookAt(r.take())
	if len(over) > 0 {
		r.end(over)
	}
	r.mu.Lock()
	r.dropEnded()
	save := r.mustSave()
	write := save || r.rows.some()
	r.mu.Unlock()
	var err error
	if write {
		if err = r.write(r.ctx, save); err != nil && r.ctx.Err() == nil {
			r.opts.Logger.Error("cannot write down for how long groups have been idle; it is tried again", "error", err)
		}
	}
	r.plan(err != nil)
}

// dropEnded drops what is kept no longer of groups that were ended. r.mu is held.
func (r *Runtime) dropEnded() {
	for _, name := range r.ended.stale(r.opts.Wall()) {
		r.rows.drop(name)
	}
}

// take returns the groups that are due, and takes them off the plan.
func (r *Runtime) take() (due []*entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.Passed()
	r.clock.look(now, time.Minute) // a round takes less as a rule
	for _, e := range r.entries {
		if e.next <= now {
			e.next = never
			due = append(due, e)
		}
	}
	slices.SortFunc(due, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(a.group.Topic, b.group.Topic), cmp.Compare(a.group.Name, b.group.Name))
	})
	return due
}

// lookAt looks at groups, and returns those whose time is over.
func (r *Runtime) lookAt(due []*entry) (over []*entry) {
	for _, e := range due {
		r.mu.Lock()
		uses := e.uses
		r.mu.Unlock()
		u, err := r.opts.Groups.Use(r.ctx, e.group)
		if r.ctx.Err() != nil {
			return nil
		}
		if err != nil {
			r.opts.Logger.Error("cannot look at a group that may end; it is tried again", "topic", e.group.Topic, "group", e.group.Name, "error", err)
		}
		r.mu.Lock()
		if r.entries[e.group] == e && r.judge(e, u, uses, err) {
			over = append(over, e)
		}
		r.mu.Unlock()
	}
	return over
}

// judge reports whether the time of a group is over, which was in use like that; it had been
// used so many times before. r.mu is held.
func (r *Runtime) judge(e *entry, u Use, uses int, err error) (over bool) {
	now := r.Passed()
	switch {
	case err != nil:
		r.due(e, now+retryAfter)
		return false
	case !u.Exists:
		r.leave(e.group)
		return false
	case e.uses != uses:
		r.due(e, now+e.settle()) // while nobody looked
		return false
	case u.Busy:
		e.since, e.counting = r.clock.time(now), false
		r.unstamp(e)
		if !u.Members {
			r.due(e, now+e.settle())
		}
		return false
	}
	e.counting, e.epoch, e.cursor = true, u.Epoch, u.Cursor
	idle := r.clock.time(now) - e.since
	if !e.stamped && e.expiry > settle {
		if idle >= settle {
			r.stamp(e)
		} else {
			r.due(e, now+settle-idle)
		}
	}
	left := r.left(e.expiry, idle, now)
	if left > 0 {
		r.due(e, now+left)
	}
	return left <= 0
}

// left returns how long it takes at least until a group ends that has been idle for so long.
// r.mu is held.
func (r *Runtime) left(expiry, idle, now time.Duration) time.Duration {
	return max(expiry-idle, min(expiry, grace)-(r.clock.time(now)-r.atStart))
}

// mustSave reports whether the watched time is to be written. r.mu is held.
func (r *Runtime) mustSave() bool {
	least, counting := r.leastExpiry()
	return counting && r.clock.time(r.Passed())-r.saved >= saveEvery(least)
}

func saveEvery(least time.Duration) time.Duration {
	return min(max(least/clockShare, leastSave), mostSave)
}

// leastExpiry is that of all groups that are idle. r.mu is held.
func (r *Runtime) leastExpiry() (least time.Duration, counting bool) {
	least = never
	for _, e := range r.entries {
		if e.counting {
			least, counting = min(least, e.expiry), true
		}
	}
	return least, counting
}

// plan says when the next round is due.
func (r *Runtime) plan(failed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.Passed()
	next := never
	for _, e := range r.entries {
		next = min(next, e.next)
	}
	least, counting := r.leastExpiry()
	if counting {
		next = min(next, now+min(max(least/tickShare, leastTick), mostTick), now+max(saveEvery(least)-(r.clock.time(now)-r.saved), every))
	}
	switch {
	case failed:
		next = min(next, now+retryAfter)
	case r.rows.some():
		next = min(next, now+settle)
	}
	if len(r.ended.order) > 0 {
		next = min(next, now+24*time.Hour) // some are too old by then
	}
	if next != never {
		next = max(next, now+every)
	}
	r.roundAt, r.wakeAt = now, next
	planned := never
	if counting {
		planned = next - now
	}
	r.clock.look(now, planned)
}
