package bus

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/groupstate"
	"eventhub/bus/internal/idle"
	"eventhub/bus/internal/past"
	"eventhub/store"
)

// Groups implements admin.Inspector.
func (b *Bus) Groups(ctx context.Context, q admin.GroupQuery) ([]admin.GroupInfo, error) {
	if q.Limit == 0 {
		q.Limit = admin.MaxPage
	}
	if err := past.CheckLimit(q.Limit); err != nil {
		return nil, err
	}
	if q.Topic != "" {
		t, err := b.store.Topic(ctx, q.Topic)
		if errors.Is(err, store.ErrNotFound) || q.Topic < q.AfterTopic {
			return nil, nil
		}
		if err != nil {
			return nil, storeError(err, "look up topic %q", q.Topic)
		}
		return b.groupsOf(ctx, t, &q, nil)
	}
	var infos []admin.GroupInfo
	// The topic of AfterTopic may have more groups: begin just before it.
	after := q.AfterTopic
	if t, err := b.store.Topic(ctx, after); err == nil {
		if infos, err = b.groupsOf(ctx, t, &q, infos); err != nil {
			return nil, err
		}
	}
	if len(infos) >= q.Limit {
		return infos, nil
	}
	for t, err := range store.AllTopics(ctx, b.store, after) {
		if err != nil {
			return nil, storeError(err, "list the topics")
		}
		if infos, err = b.groupsOf(ctx, t, &q, infos); err != nil {
			return nil, err
		}
		if len(infos) >= q.Limit {
			break
		}
	}
	return infos, nil
}

// groupsOf appends the groups of one topic that the query asks for.
func (b *Bus) groupsOf(ctx context.Context, t store.TopicInfo, q *admin.GroupQuery, into []admin.GroupInfo) ([]admin.GroupInfo, error) {
	if len(into) >= q.Limit {
		return into, nil
	}
	groups, err := b.store.ListGroups(ctx, t.Name)
	if err != nil {
		return nil, storeError(err, "list the groups of topic %q", t.Name)
	}
	for _, g := range groups {
		if len(into) == q.Limit {
			break
		}
		if q.Group != "" && g.Group != q.Group || t.Name == q.AfterTopic && g.Group <= q.AfterGroup {
			continue
		}
		info, err := b.groupInfo(ctx, t, g.Group, g.State)
		if err != nil {
			return nil, err
		}
		into = append(into, info)
	}
	return into, nil
}

// Group implements admin.Inspector.
func (b *Bus) Group(ctx context.Context, topic, name string) (admin.GroupInfo, error) {
	state, err := b.store.Group(ctx, topic, name)
	if err != nil {
		return admin.GroupInfo{}, groupError(err, topic, name)
	}
	t, err := b.store.Topic(ctx, topic)
	if err != nil {
		return admin.GroupInfo{}, storeError(err, "look up topic %q", topic)
	}
	return b.groupInfo(ctx, t, name, state)
}

// groupInfo describes a group from its stored state, and from its runtime where
// it has one.
func (b *Bus) groupInfo(ctx context.Context, t store.TopicInfo, name string, state store.GroupState) (admin.GroupInfo, error) {
	var set settings
	if err := json.Unmarshal(state.Settings, &set); err != nil {
		return admin.GroupInfo{}, eventhub.Wrap(eventhub.CodeInternal, err, "The stored settings of group %q cannot be read.", name)
	}
	info := admin.GroupInfo{
		Topic: t.Name, Group: name, Cursor: state.Cursor, Epoch: state.Epoch, Head: t.Head,
		Ordering: set.Ordering, Filter: set.Filter, MaxAttempts: set.MaxAttempts, MinBackoffMS: set.MinBackoffMS, MaxBackoffMS: set.MaxBackoffMS,
		Members: []admin.MemberInfo{},
	}
	info.Paused = state.Paused
	var err error
	if info.Lag, info.Redriven, err = b.unloaded(ctx, t, name, state.Cursor); err != nil {
		return info, err
	}
	info.Idle = b.idleInfo(idle.Group{Topic: t.Name, Name: name})
	if info.Paused {
		info.BlockedBy = &admin.Blocked{Kind: "paused"}
	} else if info.Lag > 0 || info.Redriven > 0 {
		info.BlockedBy = withoutMembers(b.accepts(name, set))
	}
	if g := b.running(t.Name, name); g != nil {
		if info.Lag, err = g.lag(ctx, t.Head, t.Horizon); err != nil {
			return info, err
		}
		g.describe(&info)
	}
	if info.Head > 0 {
		head, err := past.First(ctx, b.store, t.Name, info.Head)
		if err != nil {
			return info, err
		}
		info.HeadID, info.HeadTS = string(head.Record.ID()), t.LastTime // it may have been removed
	}
	if info.Cursor > 0 {
		last, err := past.First(ctx, b.store, t.Name, info.Cursor)
		if err != nil {
			return info, err
		}
		if last.Offset == info.Cursor {
			info.LastID, info.LastTS = string(last.Record.ID()), last.Record.CommitTime()
		}
	}
	if info.Lag > 0 {
		// Just above the cursor is an event that is not done, or a gap.
		oldest, err := past.First(ctx, b.store, t.Name, info.Cursor+1)
		if err != nil {
			return info, err
		}
		info.OldestTS = oldest.Record.CommitTime()
	}
	return info, nil
}

// unloaded returns the lag of a group that is not loaded, and how many events it has that
// were redriven.
func (b *Bus) unloaded(ctx context.Context, t store.TopicInfo, name string, cursor uint64) (lag uint64, redriven int, err error) {
	p, err := progressOf(ctx, b.store, t.Name, name, cursor)
	if err != nil {
		return 0, 0, err
	}
	from := max(cursor+1, t.Horizon)
	lag, err = b.unread(ctx, t.Name, from, t.Head, p.Acked())
	return lag, len(p.Redriven()), err
}

// describe overwrites what the runtime knows better than the store, except for the lag.
func (g *group) describe(info *admin.GroupInfo) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := &g.state
	info.Epoch, info.Cursor = s.Epoch(), s.Cursor()
	info.InFlight, info.Waiting, info.Held, info.Paused = s.Leased(), s.Waiting(), s.Held(), g.paused
	info.Redriven = s.Listed()
	info.BlockedBy = g.blockedBy(info)
	for _, m := range g.members {
		info.Members = append(info.Members, admin.MemberInfo{
			Peer: m.sub.opts.Peer, InFlight: m.holder.Leases(), MaxInFlight: m.sub.opts.MaxInFlight, SinceTS: m.sub.since,
		})
	}
}

// withoutMembers says why nobody is a member of a group. outdated is what is wrong with its filter, nil where nothing is.
func withoutMembers(outdated error) *admin.Blocked {
	if outdated == nil {
		return &admin.Blocked{Kind: "no_members"}
	}
	return &admin.Blocked{Kind: "filter", Reason: eventhub.AsError(errors.Unwrap(outdated)).Message}
}

// blockedBy says what keeps events back. g.mu is held.
func (g *group) blockedBy(info *admin.GroupInfo) *admin.Blocked {
	room := 0
	for _, m := range g.members {
		room += m.room()
	}
	switch {
	case g.paused:
		return &admin.Blocked{Kind: "paused"}
	case info.Lag == 0 && info.Redriven == 0:
		return nil
	case len(g.members) == 0:
		return withoutMembers(g.outdated)
	case g.state.Size() >= g.bus.opts.AckWindow, g.readAhead() == 0 && g.state.Next() <= info.Head && g.state.Oldest() != nil:
		return blocked("window", g.state.Oldest(), g.bus.clock.Drift())
	case g.state.Held() > 0:
		key, first := g.state.FirstHeld()
		b := blocked("key", first, g.bus.clock.Drift())
		b.Key = key
		return b
	case !slices.ContainsFunc(g.members, func(m *member) bool { return !m.isPaused() }):
		return &admin.Blocked{Kind: "members_paused"}
	case room == 0 && g.state.Next() <= info.Head:
		return &admin.Blocked{Kind: "members_full"}
	}
	return nil
}

// blocked describes the event in the way.
func blocked(kind string, e *groupstate.Entry, drift int64) *admin.Blocked {
	f := e.InFlight(drift)
	return &admin.Blocked{Kind: kind, Offset: f.Offset, ID: f.ID, State: f.State, Member: f.Member, SinceTS: f.SinceTS}
}

// InFlight implements admin.Inspector.
func (b *Bus) InFlight(ctx context.Context, topic, name string, limit int) ([]admin.InFlight, error) {
	if err := past.CheckLimit(limit); err != nil {
		return nil, err
	}
	g := b.running(topic, name)
	if g == nil {
		_, err := b.store.Group(ctx, topic, name)
		if err != nil {
			err = groupError(err, topic, name)
		}
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	var list []admin.InFlight
	drift := g.bus.clock.Drift()
	for e := range g.state.Open() {
		if len(list) == limit {
			break
		}
		f := e.InFlight(drift)
		f.History = slices.Clone(g.state.History(f.Offset))
		list = append(list, f)
	}
	return list, nil
}

// EventGroups implements admin.Inspector.
func (b *Bus) EventGroups(ctx context.Context, topic, id string) ([]admin.EventGroup, error) {
	item, err := b.Event(ctx, topic, id)
	if err != nil {
		return nil, err
	}
	groups, err := b.store.ListGroups(ctx, topic)
	if err != nil {
		return nil, storeError(err, "list the groups of topic %q", topic)
	}
	list := make([]admin.EventGroup, 0, len(groups))
	for _, stored := range groups {
		eg := admin.EventGroup{Group: stored.Group, InFlight: admin.InFlight{Offset: item.Offset, ID: id, State: "ahead"}}
		if g := b.running(topic, stored.Group); g != nil {
			g.becameOf(&eg.InFlight)
		} else if err := b.becameOf(ctx, topic, stored, &eg.InFlight); err != nil {
			return nil, err
		}
		list = append(list, eg)
	}
	return list, nil
}

// becameOf says what the store knows of the event at f.Offset in a group that is not
// loaded.
func (b *Bus) becameOf(ctx context.Context, topic string, stored store.GroupInfo, f *admin.InFlight) error {
	p, err := progressOf(ctx, b.store, topic, stored.Group, stored.State.Cursor)
	if err != nil {
		return err
	}
	p.Describe(f, stored.State.Cursor)
	return nil
}

// becameOf says what the group knows of the event at f.Offset.
func (g *group) becameOf(f *admin.InFlight) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.state.Describe(f, g.bus.clock.Drift())
	f.History = slices.Clone(g.state.History(f.Offset))
}

// Cursor is how far a group is in a topic.
type Cursor struct {
	Topic, Group string
	// Offset is the ack floor: everything at or below it is done.
	Offset uint64
	// Epoch is raised by every seek.
	Epoch uint64
	// LastID and LastTS (commit time, epoch milliseconds) are those of the event at
	// Offset; empty if there is none.
	LastID string
	LastTS int64
}

// Cursor returns how far a group is in a topic, or an error with
// CodeNotSubscribed where there is no such group.
func (b *Bus) Cursor(ctx context.Context, topic, name string) (Cursor, error) {
	g := b.running(topic, name)
	c := Cursor{Topic: topic, Group: name}
	if g != nil {
		c.Epoch, c.Offset = g.position()
	} else {
		state, err := b.store.Group(ctx, topic, name)
		if err != nil {
			return c, groupError(err, topic, name)
		}
		c.Epoch, c.Offset = state.Epoch, state.Cursor
	}
	last, err := past.First(ctx, b.store, topic, c.Offset)
	if err == nil && c.Offset != 0 && last.Offset == c.Offset {
		c.LastID, c.LastTS = string(last.Record.ID()), last.Record.CommitTime()
	}
	return c, err
}

// Patterns implements admin.Inspector.
func (b *Bus) Patterns(ctx context.Context, group string) ([]admin.GroupPattern, error) {
	list, patterns, only := b.patterns.rows(group)
	if len(list) == 0 {
		return list, nil
	}
	topics, err := past.Matching(ctx, b.store, patterns)
	if err != nil {
		return nil, err
	}
	for i, p := range patterns {
		for _, topic := range topics {
			if p.Match(topic.Topic) && only[i].allow(topic.Topic) {
				list[i].Topics++
			}
		}
	}
	return list, nil
}
