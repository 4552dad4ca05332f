package bus

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"

	"eventhub"
	"eventhub/bus/internal/commit"
	"eventhub/bus/internal/idle"
	"eventhub/bus/internal/past"
	"eventhub/bus/internal/publish"
	"eventhub/store"
)

// A SUBSCRIBE of several topics makes its group in each that there is, and its members there;
// patterns.go has the order in which it does so, and newtopics.go what comes later.

// Subscribe implements eventhub.Subscriber.
func (b *Bus) Subscribe(ctx context.Context, opts eventhub.GroupOptions, r eventhub.Receiver) (eventhub.Subscription, error) {
	opts = opts.WithDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	if _, err := b.filters.Compile(opts.Filter); err != nil {
		return nil, err
	}
	s := newSubscription(b, opts, r)
	var err error
	if patterns, _ := opts.Patterns(); severalTopics(patterns) {
		err = s.joinPatterns(ctx, patterns)
	} else {
		err = s.join(ctx, store.TopicLife{Topic: opts.Topic}, &s.opts)
	}
	if err != nil {
		return nil, err
	}
	// What the store has of idle groups it must not have any more when somebody relies on the group.
	if err := b.idle.Sync(ctx); err != nil {
		s.leave(math.MaxInt)
		return nil, err
	}
	s.tellReturned()
	return s, nil
}

func severalTopics(patterns []eventhub.Pattern) bool {
	return len(patterns) > 1 || eventhub.IsPattern(patterns[0].String())
}

// join makes the subscription a member of its group in a topic, once: in that life of it
// alone, where at names one. A subscription that has left meanwhile is left alone. The
// group is made and its settings are checked as o says; where o is nil it is there, and
// they are what they are.
func (s *subscription) join(ctx context.Context, at store.TopicLife, o *eventhub.GroupOptions) error {
	g, err := s.bus.acquire(groupKey{topic: at.Topic, group: s.opts.Group})
	if err != nil {
		return err
	}
	joined, err := g.join(ctx, s, at.Life, o)
	if joined {
		return nil
	}
	s.bus.release(g)
	if waitIdleEnd(ctx, err) {
		return s.join(ctx, at, o)
	}
	return err
}

// join loads the group and adds the member, which releases the group when it
// leaves.
func (g *group) join(ctx context.Context, s *subscription, life uint64, o *eventhub.GroupOptions) (joined bool, _ error) {
	if err := g.loadIn(ctx, life, o); err != nil {
		return false, err
	}
	if g.outdated != nil {
		return false, g.outdated
	}
	head, err := g.bus.store.Head(ctx, g.log.Topic())
	if err != nil {
		return false, storeError(err, "read the head of topic %q", g.log.Topic())
	}
	g.mu.Lock()
	if g.ended != nil {
		defer g.mu.Unlock()
		return false, g.ended
	}
	m := newMember(g, s)
	if !s.enlist(m) {
		g.mu.Unlock()
		return false, nil
	}
	g.members = append(g.members, m)
	if g.returned != nil {
		s.returned(g.log.Topic(), *g.returned)
		g.returned = nil
	}
	if len(g.members) == 1 {
		g.log.Learn(head)
		g.log.Watch(g)
	}
	g.mu.Unlock()
	g.noteUse()
	g.bus.sched.Schedule(g)
	return true, nil
}

// enlist adds a member, unless the subscription has left or has one there.
func (s *subscription) enlist(m *member) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left || s.members[m.group.log.Topic()] != nil {
		return false
	}
	s.members[m.group.log.Topic()] = m
	return true
}

// joinPatterns makes the subscription a member of its group in every topic that
// one of the patterns matches, now and later.
func (s *subscription) joinPatterns(ctx context.Context, patterns []eventhub.Pattern) error {
	if k := s.opts.Start.Kind; k == eventhub.StartAfterID || k == eventhub.StartOffset {
		return eventhub.Errorf(eventhub.CodeBadRequest, "from names a place in one topic; a subscription of several starts at latest, earliest or ts")
	}
	b := s.bus
	g := b.patterns.acquire(s.opts.Group)
	defer b.patterns.release(g)
	g.mu.Lock()
	defer g.mu.Unlock()
	s.patterns = patterns
	changes, err := b.patterns.enter(g, s)
	if err == nil && s.opts.NoCreate && len(changes) > 0 {
		err = eventhub.Errorf(eventhub.CodeNotSubscribed, "group %q has no pattern %q", g.name, changes[0].Pattern)
	}
	if err == nil {
		err = s.joinAll(ctx, g, changes)
	}
	b.patterns.withdraw(g, s)
	return err
}

// joinAll makes the group in all topics that there are, then the members. g.mu is
// held.
func (s *subscription) joinAll(ctx context.Context, g *patternedGroup, changes []store.PatternChange) error {
	b := s.bus
	topics, err := past.Allowed(ctx, b.store, s.patterns, s.opts.Allowed)
	if err != nil {
		return err
	}
	var starts []groupStart
	for _, topic := range topics {
		exists, err := b.agrees(ctx, topic.Topic, &s.opts)
		if err != nil {
			return err
		}
		if exists {
			continue
		}
		if s.opts.NoCreate && b.patterns.covering(g.name, topic.Topic) == "" {
			if err := past.Missing(ctx, b.store, topic.Topic, g.name, s.opts.Allowed, s.opts.Shows); err != nil {
				return err
			}
		}
		at, err := b.startIn(ctx, topic, &s.opts)
		if err != nil {
			return err
		}
		starts = append(starts, at)
	}
	if err := g.create(ctx, b, starts, changes, s.returned); err != nil {
		return err
	}
	s.ids.one = make(map[string]*member)
	if err := b.patterns.confirm(b, g, s, changes); err != nil {
		return err
	}
	for _, topic := range topics {
		// One that is deleted meanwhile is no matter; in its next life it is created.
		if err := s.join(ctx, topic, &s.opts); err != nil && !errors.Is(err, store.ErrGone) {
			s.leave(math.MaxInt)
			return err
		}
	}
	return nil
}

// groupsPerUnit bounds what is made in one atomic step.
const groupsPerUnit = 1000

// create makes the group durable where it is not there yet, and the patterns with
// the last of them. It leaves out topics that were deleted. returned is called for each topic in
// which the group had ended. g.mu is held.
func (g *patternedGroup) create(ctx context.Context, b *Bus, starts []groupStart, patterns []store.PatternChange, returned func(topic string, e idle.Ended)) error {
	var missing []store.GroupChange
	for _, at := range starts {
		_, err := b.store.Group(ctx, at.Topic, g.name)
		if err == nil {
			continue
		}
		if !errors.Is(err, store.ErrNotFound) {
			return groupError(err, at.Topic, g.name)
		}
		missing = append(missing, b.newGroup(g.name, at))
	}
	for len(missing) > 0 || len(patterns) > 0 {
		n := min(len(missing), groupsPerUnit)
		unit := store.Unit{Groups: missing[:n]}
		if n == len(missing) {
			unit.Patterns = patterns
		}
		var back []idle.Return
		for i := range unit.Groups {
			if r, ended := b.idle.Returning(idle.Group{Topic: unit.Groups[i].Topic, Name: g.name}, unit.Groups[i].Life); ended {
				back = append(back, r)
				unit.Notes = append(unit.Notes, r.Change())
			}
		}
		err := b.committer.Do(ctx, commit.NewWrite(unit, nil))
		if errors.Is(err, store.ErrExists) {
			// Somebody subscribed to one of the topics by its name meanwhile.
			return g.create(ctx, b, starts, patterns, returned)
		}
		if errors.Is(err, store.ErrGone) {
			alive, err := b.alive(ctx, starts)
			if err != nil {
				return err
			}
			return g.create(ctx, b, alive, patterns, returned)
		}
		if errors.Is(err, store.ErrTopicLimit) {
			return publish.UnitError(err)
		}
		if err != nil {
			return err
		}
		for _, r := range back {
			b.idle.Returned(r)
			if r.Told {
				returned(r.Group.Topic, r.Ended)
			}
		}
		if missing = missing[n:]; len(missing) == 0 {
			patterns = nil
		}
	}
	return nil
}

// alive returns those of the starts whose topics were not deleted.
func (b *Bus) alive(ctx context.Context, starts []groupStart) (alive []groupStart, _ error) {
	for _, at := range starts {
		life, err := past.Life(ctx, b.store, at.Topic)
		if err != nil {
			return nil, err
		}
		if at.Life == 0 || at.Life == life {
			alive = append(alive, at)
		}
	}
	return alive, nil
}

// agrees reports whether the group exists in a topic, and refuses options that ask
// for other settings than it has there.
func (b *Bus) agrees(ctx context.Context, topic string, o *eventhub.GroupOptions) (exists bool, _ error) {
	state, err := b.store.Group(ctx, topic, o.Group)
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, groupError(err, topic, o.Group)
	}
	var set settings
	if err := json.Unmarshal(state.Settings, &set); err != nil {
		return false, eventhub.Wrap(eventhub.CodeInternal, err, "The stored settings of group %q in topic %q cannot be read.", o.Group, topic)
	}
	return true, cmp.Or(set.match(o), b.accepts(o.Group, set))
}

// covers reports whether one of the subscription's patterns matches the topic, and it may
// have it.
func (s *subscription) covers(topic string) bool {
	return s.opts.Allowed.Allow(topic) && slices.ContainsFunc(s.patterns, func(p eventhub.Pattern) bool { return p.Match(topic) })
}

// names reports whether the subscription's list has the topic by its name, and it may have
// it.
func (s *subscription) names(topic string) bool {
	return s.opts.Allowed.Allow(topic) && slices.ContainsFunc(s.patterns, func(p eventhub.Pattern) bool { return p.String() == topic })
}
