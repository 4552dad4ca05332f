package bus

import (
	"context"
	"maps"
	"sync"

	"eventhub"
	"eventhub/bus/internal/commit"
	"eventhub/internal/measure"
	"eventhub/store"
)

// registry knows how groups stand that are in the store and were not loaded
// since the bus started, so that their lag can be measured without reading all
// groups every time. It is filled by one walk over the store when somebody asks
// for the first time; afterwards it hears of each group that is made or deleted, from
// the commit that does it and so in the order of these. One that is not loaded does not
// change; who asks for those that are loaded does not look here.
type registry struct {
	walking sync.Mutex // held over the walk

	mu     sync.Mutex
	filled bool
	groups map[groupKey]idleGroup
	// What went and what came during the walk; nil where none is under way, since what
	// is done before is in the store. A topic that went has an empty group.
	gone  map[groupKey]bool
	added map[groupKey]idleGroup
}

type idleGroup struct {
	cursor, acked uint64 // acked: events above the cursor
	paused        bool
}

// fill walks over all groups of the store, once.
func (r *registry) fill(ctx context.Context, s store.Store) error {
	r.walking.Lock()
	defer r.walking.Unlock()
	if r.filled {
		return nil
	}
	r.begin()
	idle, err := walkGroups(ctx, s)
	r.end(idle, err == nil)
	return err
}

// begin notes from now on what goes and what comes.
func (r *registry) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gone, r.added = make(map[groupKey]bool), make(map[groupKey]idleGroup)
}

// end takes over what a walk has found where it has got to the end.
func (r *registry) end(found map[groupKey]idleGroup, whole bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if whole {
		maps.DeleteFunc(found, func(key groupKey, _ idleGroup) bool {
			return r.gone[key] || r.gone[groupKey{topic: key.topic}]
		})
		maps.Copy(found, r.added)
		r.groups, r.filled = found, true
	}
	r.gone, r.added = nil, nil
}

// walkGroups reads all groups of the store.
func walkGroups(ctx context.Context, s store.Store) (map[groupKey]idleGroup, error) {
	idle := make(map[groupKey]idleGroup)
	for t, err := range store.AllTopics(ctx, s, "") {
		if err != nil {
			return nil, storeError(err, "list the topics")
		}
		groups, err := s.ListGroups(ctx, t.Name)
		if err != nil {
			return nil, storeError(err, "list the groups of topic %q", t.Name)
		}
		for _, g := range groups {
			p, err := progressOf(ctx, s, t.Name, g.Group, g.State.Cursor)
			if err != nil {
				return nil, err
			}
			idle[groupKey{topic: t.Name, group: g.Group}] = idleGroup{g.State.Cursor, p.AckedFrom(g.State.Cursor + 1), g.State.Paused}
		}
	}
	return idle, nil
}

// add enters the groups that a unit has made.
func (r *registry) add(changes []store.GroupChange) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range changes {
		ch := &changes[i]
		key := groupKey{topic: ch.Topic, group: ch.Group}
		switch {
		case !ch.Create:
		case r.filled:
			r.groups[key] = idleGroup{cursor: ch.State.Cursor}
		case r.added != nil:
			delete(r.gone, key)
			r.added[key] = idleGroup{cursor: ch.State.Cursor}
		}
	}
}

// forget forgets a group that was deleted.
func (r *registry) forget(key groupKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.filled:
		delete(r.groups, key)
	case r.gone != nil:
		delete(r.added, key)
		r.gone[key] = true
	}
}

// idle returns the groups that were not loaded.
func (r *registry) idle() map[groupKey]idleGroup {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.groups)
}

// Measure returns what the engine has counted since it started and how it
// stands. The first call reads all groups of the store; later ones cost no more
// than what they return.
func (b *Bus) Measure(ctx context.Context) (measure.Engine, error) {
	if err := b.known.fill(ctx, b.store); err != nil {
		return measure.Engine{}, err
	}
	e := b.counts.snapshot()
	e.FilterFailed, e.FilterTooCostly = b.filters.Counts()
	e.CachedBytes = b.logs.CachedBytes()
	_, e.QueuedBytes, _ = b.committer.Pending()
	e.CommitWaiting = b.committer.Waiting()
	var err error
	if e.StoreBytes, err = b.store.Size(); err != nil {
		return e, storeError(err, "get its size")
	}
	e.Groups, err = b.measureGroups(ctx)
	return e, err
}

// measureGroups returns the counts of all groups, loaded or not, and of the
// tails of each topic together, under no name.
func (b *Bus) measureGroups(ctx context.Context) ([]measure.Group, error) {
	idle := b.known.idle() // first: a group that is loaded meanwhile is in both
	var all []measure.Group
	for _, g := range b.loaded() {
		delete(idle, g.key)
		head, err := b.store.Head(ctx, g.key.topic)
		if err != nil {
			return nil, storeError(err, "read the head of topic %q", g.key.topic)
		}
		all = append(all, g.measure(head))
	}
	all = append(all, b.tails.Measure()...)
	for key, i := range idle {
		head, err := b.store.Head(ctx, key.topic)
		if err != nil {
			return nil, storeError(err, "read the head of topic %q", key.topic)
		}
		g := newGroupCounts(key.topic, key.group)
		lag := head - min(i.cursor, head)
		g.Lag, g.Paused = lag-min(lag, i.acked), i.paused
		all = append(all, g.Group)
	}
	return all, nil
}

// loaded lists the groups that have a runtime.
func (b *Bus) loaded() []*group {
	b.mu.RLock()
	defer b.mu.RUnlock()
	loaded := make([]*group, 0, len(b.groups))
	for _, g := range b.groups {
		if g.loaded.Load() {
			loaded = append(loaded, g)
		}
	}
	return loaded
}

// DeleteGroup implements admin.Operator.
func (b *Bus) DeleteGroup(ctx context.Context, topic, name string) error {
	if eventhub.IsPattern(topic) {
		return b.deletePattern(ctx, topic, name)
	}
	if p := b.patterns.covering(name, topic); p != "" {
		return eventhub.Errorf(eventhub.CodeBadRequest, "group %q has the pattern %q, which would bring it back to topic %q; delete that", name, p, topic)
	}
	return b.deleteGroup(ctx, topic, name)
}

func (b *Bus) deleteGroup(ctx context.Context, topic, name string) error {
	key := groupKey{topic: topic, group: name}
	g, err := b.acquire(key)
	if err != nil {
		return err
	}
	defer b.release(g)
	if err := g.load(ctx, nil); err != nil {
		return err
	}
	d := &groupDeletion{group: g}
	d.Units, d.Durable = []store.Unit{{Groups: make([]store.GroupChange, 1)}}, true
	err = b.committer.DoWithin(ctx, d, "the group may or may not be deleted")
	if isOutdated(err) {
		return groupError(store.ErrNotFound, topic, name)
	}
	return err
}

// groupDeletion is the job that deletes a group.
type groupDeletion struct {
	commit.Call
	group   *group
	members []*member
}

// Build implements commit.Job.
func (d *groupDeletion) Build() bool {
	g := d.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended != nil {
		d.Answer(g.ended) // deleted by somebody else, or the bus stops
		return false
	}
	change := g.header(g.state.Cursor())
	change.Delete = true
	g.delete()
	d.Units[0].Groups[0] = change
	d.members = g.end(eventhub.Errorf(eventhub.CodeNotSubscribed, "group %q of topic %q was deleted", g.name, g.log.Topic()))
	return true
}

// Done implements commit.Job.
func (d *groupDeletion) Done(err error) {
	d.group.bus.forgetDeleted(d.group)
	d.group.dismiss(d.members)
	d.Call.Done(err)
}

// forgetDeleted takes a deleted group off, so that its name can be used again.
func (b *Bus) forgetDeleted(g *group) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forget(g)
	b.known.forget(g.key)
}
