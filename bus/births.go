package bus

import (
	"context"
	"maps"
	"slices"
)

// The births' goroutine gives topics that are born the groups whose patterns match
// them; see patterns.go for when and why.

// attend starts the births' goroutine.
func (t *patternTable) attend(b *Bus) {
	t.born, t.done = make(chan struct{}, 1), make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	t.stop = cancel
	go b.attendBirths(ctx)
}

// bear notices topics that may be new. It neither blocks nor looks at the store;
// the committer calls it.
func (t *patternTable) bear(topics []string) {
	for _, name := range topics {
		if !t.matched(name) {
			continue
		}
		t.birthMu.Lock()
		t.newborns = append(t.newborns, name)
		t.birthMu.Unlock()
		select {
		case t.born <- struct{}{}:
		default:
		}
	}
}

// attendBirths gives newborn topics their groups.
func (b *Bus) attendBirths(ctx context.Context) {
	t := &b.patterns
	defer close(t.done)
	b.adopt(ctx, b.missedBirths(ctx))
	for {
		select {
		case <-t.born:
		case <-ctx.Done():
			return
		}
		t.birthMu.Lock()
		topics := t.newborns
		t.newborns = nil
		t.birthMu.Unlock()
		slices.Sort(topics)
		b.adopt(ctx, slices.Compact(topics)) // one may be noticed twice
	}
}

// adopt gives topics the groups whose patterns match them.
func (b *Bus) adopt(ctx context.Context, topics []string) {
	if len(topics) == 0 {
		return
	}
	t := &b.patterns
	t.mu.RLock()
	groups := slices.Collect(maps.Values(t.groups))
	t.mu.RUnlock()
	for _, g := range groups {
		if err := g.adoptAll(ctx, b, topics); err != nil && ctx.Err() == nil {
			b.log.Error("cannot give new topics their group; it will be there at the next start", "group", g.name, "error", err)
		}
	}
}

// missedBirths returns the topics that a pattern matches, at the start: what they
// lack is made up for.
func (b *Bus) missedBirths(ctx context.Context) []string {
	_, patterns := b.patterns.list("")
	if len(patterns) == 0 {
		return nil
	}
	topics, err := b.matching(ctx, patterns)
	if err != nil && ctx.Err() == nil {
		b.log.Error("cannot look for topics that were born unnoticed; they get their groups at the next start", "error", err)
	}
	return topics
}

// adoptAll makes the group in those of the topics that its patterns match, and its
// subscriptions members there.
func (g *patternedGroup) adoptAll(ctx context.Context, b *Bus, topics []string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var births []birth
	for _, topic := range topics {
		if _, raw := b.patterns.settingsFor(g.name, topic); raw != nil {
			births = append(births, birth{topic: topic, raw: raw})
		}
	}
	b.patterns.mu.RLock()
	subs := slices.Clone(g.subs)
	b.patterns.mu.RUnlock()
	if len(births) == 0 {
		return nil
	}
	if err := g.create(ctx, b, births, nil); err != nil {
		return err
	}
	for _, s := range subs {
		for _, at := range births {
			if !s.covers(at.topic) || ctx.Err() != nil {
				continue
			}
			// Also where another of the group's patterns brought other settings than it
			// asked for. One that cannot join keeps nobody else out.
			if err := s.join(ctx, at.topic, nil); err != nil {
				b.log.Error("a member cannot join its group in a new topic", "topic", at.topic, "group", g.name, "error", err)
			}
		}
	}
	return nil
}
