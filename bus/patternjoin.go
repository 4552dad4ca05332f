package bus

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"

	"eventhub"
	"eventhub/bus/internal/commit"
	"eventhub/bus/internal/past"
	"eventhub/bus/internal/publish"
	"eventhub/store"
)

// A SUBSCRIBE of several topics makes its group in each that there is, and its members there;
// patterns.go has the order in which it does so, and newtopics.go what comes later.

// groupStart is a group that is to be made in a topic: in that life of it or, where the life
// is 0, together with the topic.
type groupStart struct {
	store.TopicLife
	cursor uint64
	raw    json.RawMessage // settings
}

// groupsPerUnit bounds what is made in one atomic step.
const groupsPerUnit = 1000

// create makes the group durable where it is not there yet, and the patterns with
// the last of them. It leaves out topics that were deleted. g.mu is held.
func (g *patternedGroup) create(ctx context.Context, b *Bus, starts []groupStart, patterns []store.PatternChange) error {
	var missing []store.GroupChange
	for _, at := range starts {
		_, err := b.store.Group(ctx, at.Topic, g.name)
		if err == nil {
			continue
		}
		if !errors.Is(err, store.ErrNotFound) {
			return groupError(err, at.Topic, g.name)
		}
		missing = append(missing, store.GroupChange{Topic: at.Topic, Life: at.Life, Group: g.name, Create: true,
			State: b.newState(at.raw, at.cursor)})
	}
	for len(missing) > 0 || len(patterns) > 0 {
		n := min(len(missing), groupsPerUnit)
		unit := store.Unit{Groups: missing[:n]}
		if n == len(missing) {
			unit.Patterns = patterns
		}
		err := b.committer.Do(ctx, commit.NewWrite(unit, nil))
		if errors.Is(err, store.ErrExists) {
			// Somebody subscribed to one of the topics by its name meanwhile.
			return g.create(ctx, b, starts, patterns)
		}
		if errors.Is(err, store.ErrGone) {
			alive, err := b.alive(ctx, starts)
			if err != nil {
				return err
			}
			return g.create(ctx, b, alive, patterns)
		}
		if errors.Is(err, store.ErrTopicLimit) {
			return publish.UnitError(err)
		}
		if err != nil {
			return err
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
	topics, err := past.Matching(ctx, b.store, s.patterns)
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
		at, err := b.startIn(ctx, topic, &s.opts)
		if err != nil {
			return err
		}
		starts = append(starts, at)
	}
	if err := g.create(ctx, b, starts, changes); err != nil {
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

// startIn returns where a group begins in a topic in which it is not, and with which
// settings: as the options say or, where it has a pattern for the topic, as one that
// was created after the pattern.
func (b *Bus) startIn(ctx context.Context, topic store.TopicLife, o *eventhub.GroupOptions) (groupStart, error) {
	at := groupStart{TopicLife: topic}
	if kept, raw := b.patterns.settingsFor(o.Group, topic.Topic); raw != nil {
		at.raw = raw
		return at, kept.match(o)
	}
	var err error
	if at.raw, err = encodeSettings(o); err != nil {
		return at, err
	}
	at.cursor, err = past.Resolve(ctx, b.store, topic.Topic, o.Start)
	return at, err
}

// encodeSettings returns what the options ask for in the form in which it is stored.
func encodeSettings(o *eventhub.GroupOptions) (json.RawMessage, error) {
	raw, err := json.Marshal(settingsFor(o))
	if err != nil {
		return nil, eventhub.Wrap(eventhub.CodeInternal, err, "The settings of group %q cannot be written.", o.Group)
	}
	return raw, nil
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
	return true, set.match(o)
}

// covers reports whether one of the subscription's patterns matches the topic.
func (s *subscription) covers(topic string) bool {
	return slices.ContainsFunc(s.patterns, func(p eventhub.Pattern) bool { return p.Match(topic) })
}

// names reports whether the subscription's list has the topic by its name.
func (s *subscription) names(topic string) bool {
	return slices.ContainsFunc(s.patterns, func(p eventhub.Pattern) bool { return p.String() == topic })
}
