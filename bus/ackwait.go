package bus

import (
	"context"

	"eventhub"
	"eventhub/bus/internal/ackwait"
)

// waitedGroups is the bus as those know it who wait for groups.
type waitedGroups Bus

// Find implements ackwait.Finder: it loads the group.
func (w *waitedGroups) Find(ctx context.Context, topic, name string) (*ackwait.Group, error) {
	b := (*Bus)(w)
	return b.waited(topic, name, func(g *group) error {
		err := g.load(ctx, nil)
		switch {
		case err == nil:
			return g.outdated // the filter says which events it has done
		case eventhub.ErrorCode(err) == eventhub.CodeNotSubscribed && b.patterns.covering(name, topic) != "":
			kept, _ := b.patterns.settingsFor(name, topic)
			return b.accepts(name, kept) // its topic is to be created
		}
		return err
	})
}

// Make implements ackwait.Finder: it makes the group in a topic that is to be created.
func (w *waitedGroups) Make(ctx context.Context, topic, name string) (*ackwait.Group, error) {
	b := (*Bus)(w)
	return b.waited(topic, name, func(g *group) error {
		if err := b.space.Check(); err != nil {
			return err
		}
		if err := b.inherit(ctx, name, topic); err != nil {
			return err
		}
		return g.load(ctx, nil)
	})
}

// waited returns the waits of a group, nil where load has not loaded it.
func (b *Bus) waited(topic, name string, load func(*group) error) (*ackwait.Group, error) {
	g, err := b.acquire(groupKey{topic: topic, group: name})
	if err != nil {
		return nil, err
	}
	defer b.release(g)
	if err := load(g); err != nil || !g.loaded.Load() {
		return nil, err
	}
	return g.waits, nil
}
