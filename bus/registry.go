package bus

import (
	"context"
	"maps"
	"sync"
	"time"

	"eventhub/bus/internal/deadletter"
	"eventhub/bus/internal/groupstate"
	"eventhub/internal/measure"
	"eventhub/store"
)

// registry knows the state of groups that are in the store and were not loaded
// since the bus started, so that their lag can be measured without reading all
// groups every time. It is filled by one walk over the store when somebody asks
// for the first time; afterwards it hears of each group that is made or deleted, from
// the commit that does it and so in the order of these. One that is not loaded does not
// change; who asks for those that are loaded does not look here.
type registry struct {
	walking sync.Mutex // held over the walk

	mu     sync.Mutex
	filled bool
	groups map[groupKey]unloadedGroup
	// What went and what came during the walk; nil where none is under way, since what
	// is done before is in the store. A topic that went has an empty group.
	gone  map[groupKey]bool
	added map[groupKey]unloadedGroup
}

type unloadedGroup struct {
	cursor uint64
	known  groupstate.AckedRuns // above the cursor
	paused bool
	marks  map[uint64]string // of the events on its list of redriven ones, by offset
}

// lag counts offsets, from the horizon of the topic on.
func (i *unloadedGroup) lag(head, horizon uint64) uint64 {
	from := max(i.cursor+1, horizon)
	if from > head {
		return 0
	}
	return head + 1 - from - min(head+1-from, i.known.From(from))
}

// fill walks over all groups of the store, once.
func (r *registry) fill(ctx context.Context, s store.Store) error {
	r.walking.Lock()
	defer r.walking.Unlock()
	if r.filled {
		return nil
	}
	r.begin()
	unloaded, err := walkGroups(ctx, s)
	r.end(unloaded, err == nil)
	return err
}

// begin notes from now on what goes and what comes.
func (r *registry) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gone, r.added = make(map[groupKey]bool), make(map[groupKey]unloadedGroup)
}

// end takes over what a walk has found where it has got to the end.
func (r *registry) end(found map[groupKey]unloadedGroup, whole bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if whole {
		maps.DeleteFunc(found, func(key groupKey, _ unloadedGroup) bool {
			return r.gone[key] || r.gone[groupKey{topic: key.topic}]
		})
		maps.Copy(found, r.added)
		r.groups, r.filled = found, true
	}
	r.gone, r.added = nil, nil
}

// walkGroups reads all groups of the store.
func walkGroups(ctx context.Context, s store.Store) (map[groupKey]unloadedGroup, error) {
	unloaded := make(map[groupKey]unloadedGroup)
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
			unloaded[groupKey{topic: t.Name, group: g.Group}] = unloadedGroup{g.State.Cursor, p.Acked(), g.State.Paused, p.Marks()}
		}
	}
	return unloaded, nil
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
			r.groups[key] = unloadedGroup{cursor: ch.State.Cursor}
		case r.added != nil:
			delete(r.gone, key)
			r.added[key] = unloadedGroup{cursor: ch.State.Cursor}
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

// mark returns the mark of an event on the list of redriven ones of a group that was not
// loaded, "" where it is not there, or there is no such group.
func (r *registry) mark(key groupKey, offset uint64) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.groups[key].marks[offset]
}

// unloaded returns the groups that were not loaded.
func (r *registry) unloaded() map[groupKey]unloadedGroup {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.groups)
}

// Measure returns what the engine has counted since it started and its
// state. The first call reads all groups of the store; later ones cost no more
// than what they return.
func (b *Bus) Measure(ctx context.Context) (measure.Engine, error) {
	return b.measureWith(ctx, b.letterCounts.UpToDate)
}

// Glance is Measure for who looks every second and waits for nothing: where there are so many dead letters
// that counting those which came since somebody asked takes longer than letters, as of all of them after a start, it
// has those that were counted so far, and CountsLetters says so.
func (b *Bus) Glance(ctx context.Context, letters time.Duration) (measure.Engine, error) {
	all := false
	e, err := b.measureWith(ctx, func(ctx context.Context) (logs map[string]*deadletter.Log, release func(), err error) {
		logs, all, release, err = b.letterCounts.Within(ctx, letters)
		return logs, release, err
	})
	e.CountsLetters = !all
	return e, err
}

// letterCounter returns counted dead letters, which the caller has to itself until release.
type letterCounter func(ctx context.Context) (logs map[string]*deadletter.Log, release func(), err error)

func (b *Bus) measureWith(ctx context.Context, letters letterCounter) (measure.Engine, error) {
	if err := b.known.fill(ctx, b.store); err != nil {
		return measure.Engine{}, err
	}
	e := b.counts.snapshot()
	e.FilterFailed, e.FilterTooCostly = b.filters.Counts()
	e.CachedBytes, e.GroupBytes = b.logs.CachedBytes(), b.groupBytes.Load()
	_, e.QueuedBytes, _ = b.committer.Pending()
	e.CommitWaiting = b.committer.Waiting()
	e.Producers, e.ProducersUsed = b.producers.Count()
	var err error
	if e.StoreBytes, err = b.store.Size(); err != nil {
		return e, storeError(err, "get its size")
	}
	room, err := b.store.Space()
	if err != nil {
		return e, storeError(err, "find out how much room it has")
	}
	if room.Total > 0 {
		e.FreeBytes, e.NeededBytes = room.Free, room.Least()
	}
	e.FullIn = b.forecast.Observe(time.Now(), room)
	if err := b.measureRetention(ctx, &e); err != nil {
		return e, err
	}
	if e.Groups, err = b.measureGroups(ctx); err != nil {
		return e, err
	}
	e.Groups, err = b.measureLetters(ctx, e.Groups, letters)
	return e, err
}

// measureLetters adds how many dead letters each group has. A group that is not there any
// more, but has some, is added.
func (b *Bus) measureLetters(ctx context.Context, groups []measure.Group, counted letterCounter) ([]measure.Group, error) {
	logs, release, err := counted(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	if len(logs) == 0 {
		return groups, nil
	}
	places := make(map[groupKey]int, len(groups))
	for i := range groups {
		places[groupKey{groups[i].Topic, groups[i].Group}] = i
	}
	for dlq, l := range logs {
		for name, letters := range l.Groups {
			key := groupKey{topic: deadletter.EventsOf(dlq), group: name}
			i, ok := places[key]
			if !ok {
				i = len(groups)
				groups = append(groups, newGroupCounts(key.topic, key.group).Group)
			}
			states := letters.States()
			groups[i].OpenLetters, groups[i].Redriven = states.Open, states.Redriven
		}
	}
	return groups, nil
}

// measureGroups returns the counts of all groups, loaded or not, and of the
// tails of each topic together, under no name.
func (b *Bus) measureGroups(ctx context.Context) ([]measure.Group, error) {
	unloaded := b.known.unloaded() // first: a group that is loaded meanwhile is in both
	var all []measure.Group
	for _, g := range b.loaded() {
		delete(unloaded, g.key)
		head, horizon, err := b.ends(ctx, g.key.topic)
		if err != nil {
			return nil, err
		}
		all = append(all, g.measure(head, horizon))
	}
	all = append(all, b.tails.Measure()...)
	for key, i := range unloaded {
		head, horizon, err := b.ends(ctx, key.topic)
		if err != nil {
			return nil, err
		}
		g := newGroupCounts(key.topic, key.group)
		g.Lag, g.Paused = i.lag(head, horizon), i.paused
		all = append(all, g.Group)
	}
	return all, nil
}

// forgetTopic forgets all groups of a topic.
func (r *registry) forgetTopic(topic string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	of := func(key groupKey) bool { return key.topic == topic }
	maps.DeleteFunc(r.groups, func(key groupKey, _ unloadedGroup) bool { return of(key) })
	maps.DeleteFunc(r.added, func(key groupKey, _ unloadedGroup) bool { return of(key) })
	if r.gone != nil {
		r.gone[groupKey{topic: topic}] = true
	}
}

// measure returns the counts of the group and its state.
func (g *group) measure(head, horizon uint64) measure.Group {
	g.mu.Lock()
	defer g.mu.Unlock()
	m := g.counts.Group
	m.Gaps, m.GapOffsets = g.state.GapsAdded()
	m.Paused, m.Held = g.paused, g.state.Held()
	m.Lag, m.Waiting, m.Members = g.state.Lag(head, horizon), g.state.Waiting(), len(g.members)
	m.InFlight = make(map[string]int, 1)
	for _, member := range g.members {
		m.InFlight[member.sub.opts.Peer.Transport] += member.holder.Leases()
	}
	return m
}
