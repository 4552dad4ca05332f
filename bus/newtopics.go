package bus

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"

	"eventhub/bus/internal/idle"
	"eventhub/bus/internal/past"
	"eventhub/store"
)

// The goroutine of created topics gives each the groups whose patterns match
// them, or whose members name them in a list; see patterns.go for when and why. It is
// notified of each life of a topic once, and what it makes for one is refused when that life
// is over: what it does for a topic never brings the topic back.

// attend starts the created topics' goroutine.
func (t *patternTable) attend(b *Bus) {
	t.hint, t.done = make(chan struct{}, 1), make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	t.stop = cancel
	go b.attendCreated(ctx)
}

// topicsCreated notices topics that may be new. It neither blocks nor looks at the store;
// the committer calls it.
func (t *patternTable) topicsCreated(created []store.TopicLife) {
	for _, life := range created {
		if !t.matched(life.Topic) {
			continue
		}
		t.createdMu.Lock()
		t.created = append(t.created, life)
		t.createdMu.Unlock()
		select {
		case t.hint <- struct{}{}:
		default:
		}
	}
}

// attendCreated gives created topics their groups.
func (b *Bus) attendCreated(ctx context.Context) {
	t := &b.patterns
	defer close(t.done)
	b.giveGroups(ctx, b.missedTopics(ctx))
	for {
		select {
		case <-t.hint:
		case <-ctx.Done():
			return
		}
		t.createdMu.Lock()
		created := t.created
		t.created = nil
		t.createdMu.Unlock()
		b.giveGroups(ctx, created)
	}
}

// giveGroups gives topics the groups whose patterns match them.
func (b *Bus) giveGroups(ctx context.Context, created []store.TopicLife) {
	if len(created) == 0 {
		return
	}
	t := &b.patterns
	t.mu.RLock()
	groups := slices.Collect(maps.Values(t.groups))
	t.mu.RUnlock()
	for _, g := range groups {
		if err := g.enterTopics(ctx, b, created); err != nil && ctx.Err() == nil {
			b.log.Error("cannot give new topics their group; it will be there at the next start", "group", g.name, "error", err)
		}
	}
}

// missedTopics returns the topics that a pattern matches, at the start: what they
// lack is made up for.
func (b *Bus) missedTopics(ctx context.Context) []store.TopicLife {
	_, patterns, _ := b.patterns.rows("")
	if len(patterns) == 0 {
		return nil
	}
	topics, err := past.Matching(ctx, b.store, patterns)
	if err != nil && ctx.Err() == nil {
		b.log.Error("cannot look for topics that were created unnoticed; they get their groups at the next start", "error", err)
	}
	return topics
}

// enterTopics makes the group in those of the topics that its patterns match, or that a
// list of its subscriptions names, and its subscriptions members there. A topic that was
// deleted meanwhile stays so.
func (g *patternedGroup) enterTopics(ctx context.Context, b *Bus, created []store.TopicLife) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	b.patterns.mu.RLock()
	subs := slices.Clone(g.subs)
	b.patterns.mu.RUnlock()
	var starts []groupStart
	for _, at := range created {
		raw, err := b.patterns.inherited(g.name, at.Topic, subs)
		if err != nil {
			return err
		}
		if raw != nil {
			starts = append(starts, groupStart{TopicLife: at, raw: raw})
		}
	}
	if len(starts) == 0 {
		return nil
	}
	if err := g.create(ctx, b, starts, nil, func(string, idle.Ended) {}); err != nil {
		return err
	}
	for _, s := range subs {
		for _, at := range starts {
			if !s.covers(at.Topic) || ctx.Err() != nil {
				continue
			}
			// Also where another of the group's patterns brought other settings than it
			// asked for. One that cannot join keeps nobody else out.
			if err := s.join(ctx, at.TopicLife, nil); err != nil && !errors.Is(err, store.ErrGone) {
				b.log.Error("a member cannot join its group in a new topic", "topic", at.Topic, "group", g.name, "error", err)
			}
		}
	}
	return nil
}

// inherit makes a group in a topic, and the topic if need be, where it is to have the group
// when it is created. A SUBSCRIBE that is under way is waited for: what it brings is not
// known before.
func (b *Bus) inherit(ctx context.Context, group, topic string) error {
	g := b.patterns.acquire(group)
	defer b.patterns.release(g)
	return g.enterTopics(ctx, b, []store.TopicLife{{Topic: topic}})
}

// inherited returns the settings that a group gets in a topic that is created: those of
// its patterns or, where a list alone names the topic, of the first subscription by such
// a list. nil: it does not get the group.
func (t *patternTable) inherited(group, topic string, subs []*subscription) (json.RawMessage, error) {
	if _, raw := t.settingsFor(group, topic); raw != nil {
		return raw, nil
	}
	i := slices.IndexFunc(subs, func(s *subscription) bool { return s.names(topic) })
	if i < 0 {
		return nil, nil
	}
	return encodeSettings(&subs[i].opts)
}
