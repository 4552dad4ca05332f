package bus

import (
	"context"
	"errors"
	"maps"
	"slices"

	"eventhub"
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

// forgetTopic forgets all groups of a topic.
func (r *registry) forgetTopic(topic string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	of := func(key groupKey) bool { return key.topic == topic }
	maps.DeleteFunc(r.groups, func(key groupKey, _ idleGroup) bool { return of(key) })
	maps.DeleteFunc(r.added, func(key groupKey, _ idleGroup) bool { return of(key) })
	if r.gone != nil {
		r.gone[groupKey{topic: topic}] = true
	}
}
