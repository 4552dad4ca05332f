package bus

import (
	"context"
	"errors"
	"slices"

	"eventhub"
	"eventhub/bus/internal/commit"
	"eventhub/bus/internal/past"
	"eventhub/store"
)

// A topic is deleted by the committer, between two commits, so that nothing is being
// written to it: what was submitted before is in it and goes with it, what comes later
// is of a new topic. Its groups end first, each under its lock, as when it is deleted;
// a member by a pattern loses the topic and keeps the others. The store removes what
// lay in the topic later, some at a time (bus/internal/space).

// DeleteTopic implements admin.Operator.
func (b *Bus) DeleteTopic(ctx context.Context, topic string) error {
	if err := eventhub.ValidateStoredTopic(topic); err != nil {
		return err
	}
	return b.committer.Between(ctx, "the topic may or may not be deleted", func() error { return b.deleteNow(topic) })
}

// deleteNow deletes a topic. The committer calls it.
func (b *Bus) deleteNow(topic string) error {
	ctx := context.Background()
	if _, err := b.store.Topic(ctx, topic); err != nil {
		if errors.Is(err, store.ErrNotFound) {
			return past.NoTopic(topic)
		}
		return storeError(err, "look up topic %q", topic)
	}
	if err := b.committer.Broken(); err != nil {
		return err
	}
	ended := b.endGroups(topic)
	err := b.store.DeleteTopic(ctx, topic)
	if err != nil {
		return b.committer.Fail(err)
	}
	// Who came to the topic meanwhile may have read what was still there of its groups.
	ended = append(ended, slices.DeleteFunc(b.endGroups(topic), func(late endedGroup) bool {
		return slices.ContainsFunc(ended, func(e endedGroup) bool { return e.group == late.group })
	})...)
	b.committer.ForgetTopic(topic)
	b.logs.Forget(topic)
	for _, g := range ended {
		b.forgetDeleted(g.group)
		g.group.log.Unwatch(g.group)
		for _, m := range g.members {
			m.lose(g.group.ended)
		}
	}
	b.known.forgetTopic(topic)
	b.counts.forgetTopic(topic)
	b.tails.ForgetTopic(topic)
	b.retention.Forget(topic)
	b.compaction.Forget(topic)
	b.idle.Forget(topic)
	b.snapshots.Forget(topic)
	b.space.Deleted()
	return nil
}

type endedGroup struct {
	group   *group
	members []*member
}

// endGroups ends all groups of a topic that have a runtime, for good.
func (b *Bus) endGroups(topic string) (ended []endedGroup) {
	b.mu.RLock()
	var groups []*group
	for key, g := range b.groups {
		if key.topic == topic {
			groups = append(groups, g)
		}
	}
	b.mu.RUnlock()
	for _, g := range groups {
		g.mu.Lock()
		g.delete()
		members := g.end(errDeleted(topic))
		g.mu.Unlock()
		ended = append(ended, endedGroup{g, members})
	}
	return ended
}

// lose takes a member's group from it: a subscription by pattern goes on without the
// topic, any other one ends.
func (m *member) lose(cause error) {
	s := m.sub
	if s.patterned == nil {
		s.end(cause)
		return
	}
	s.mu.Lock()
	topic := m.group.log.Topic()
	left := s.left || s.members[topic] != m
	if !left {
		delete(s.members, topic)
		m.answered()
		// Room that comes free is not to be offered to a group that has ended.
		s.roomQueue = slices.DeleteFunc(s.roomQueue, func(other *member) bool { return other == m })
		s.idlers = slices.DeleteFunc(s.idlers, func(other *member) bool { return other == m })
		s.reservationQueue = slices.DeleteFunc(s.reservationQueue, func(other *member) bool { return other == m })
	}
	s.mu.Unlock()
	if left {
		return // it is leaving, and releases the group itself
	}
	m.endReservation()
	m.forget()
	m.leave(0)
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

// deletePattern removes a pattern of a group, and the group from the topics that
// only it matches. Where it ends halfway, the pattern is gone and some of the
// topics still have the group, as if it had been subscribed by their names.
func (b *Bus) deletePattern(ctx context.Context, text, name string) error {
	p, err := eventhub.ParsePattern(text)
	if err != nil {
		return err
	}
	g := b.patterns.acquire(name)
	defer b.patterns.release(g)
	g.mu.Lock()
	defer g.mu.Unlock()
	if !b.patterns.hasPattern(g, text) {
		return eventhub.Errorf(eventhub.CodeNotSubscribed, "group %q has no pattern %q", name, text)
	}
	unit := store.Unit{Patterns: []store.PatternChange{{Group: name, Pattern: text, Delete: true}}}
	if err := b.committer.Do(ctx, commit.NewWrite(unit, nil)); err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx) // what is begun is done, also for who has left
	gone, subs := b.patterns.forget(g, text)
	b.idle.PatternRemoved()
	for _, s := range subs {
		s.end(eventhub.Errorf(eventhub.CodeNotSubscribed, "pattern %q of group %q was deleted", text, name))
	}
	topics, err := past.Matching(ctx, b.store, []eventhub.Pattern{p})
	if err != nil {
		return err
	}
	for _, at := range topics {
		if !gone.brings(at.Topic) || b.patterns.covering(name, at.Topic) != "" {
			continue
		}
		if err := b.deleteGroup(ctx, at.Topic, name); err != nil && eventhub.ErrorCode(err) != eventhub.CodeNotSubscribed {
			return err
		}
	}
	return nil
}

// forgetRuntime takes the runtime of a group off that is still there.
func (b *Bus) forgetRuntime(g *group) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forget(g)
}

// forgetDeleted takes a deleted group off, so that its name can be used again.
func (b *Bus) forgetDeleted(g *group) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forget(g)
	b.known.forget(g.key)
}
