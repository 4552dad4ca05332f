package guard

import (
	"cmp"
	"context"

	"eventhub"
	"eventhub/admin"
	"eventhub/auth/policy"
)

// Topics implements admin.Inspector.
func (g *guard) Topics(ctx context.Context, after string, limit int) ([]admin.TopicInfo, error) {
	return g.topics(ctx, after, limit, g.shows)
}

func (g *guard) topics(ctx context.Context, after string, limit int, shows func(topic string) bool) ([]admin.TopicInfo, error) {
	return page(limit, func(t *admin.TopicInfo) bool { return shows(t.Topic) }, func(last *admin.TopicInfo, n int) ([]admin.TopicInfo, error) {
		if last != nil {
			after = last.Topic
		}
		return g.engine.Topics(ctx, after, n)
	})
}

// Topic implements admin.Inspector.
func (g *guard) Topic(ctx context.Context, topic string) (admin.TopicInfo, error) {
	if err := g.views(topic); err != nil {
		return admin.TopicInfo{}, err
	}
	return g.engine.Topic(ctx, topic)
}

// Event implements admin.Inspector.
func (g *guard) Event(ctx context.Context, topic, id string) (eventhub.Item, error) {
	if err := g.check(policy.Read, topic, ""); err != nil {
		return eventhub.Item{}, err
	}
	return g.engine.Event(ctx, topic, id)
}

// Groups implements admin.Inspector.
func (g *guard) Groups(ctx context.Context, q admin.GroupQuery) ([]admin.GroupInfo, error) {
	if q.Topic != "" {
		if err := g.views(q.Topic); err != nil {
			return nil, err
		}
		return g.engine.Groups(ctx, q)
	}
	return page(cmp.Or(q.Limit, admin.MaxPage), func(of *admin.GroupInfo) bool { return g.shows(of.Topic) }, func(last *admin.GroupInfo, n int) ([]admin.GroupInfo, error) {
		if q.Limit = n; last != nil {
			q.AfterTopic, q.AfterGroup = last.Topic, last.Group
		}
		return g.engine.Groups(ctx, q)
	})
}

// Group implements admin.Inspector.
func (g *guard) Group(ctx context.Context, topic, group string) (admin.GroupInfo, error) {
	if err := g.views(topic); err != nil {
		return admin.GroupInfo{}, err
	}
	return g.engine.Group(ctx, topic, group)
}

// EventGroups implements admin.Inspector.
func (g *guard) EventGroups(ctx context.Context, topic, id string) ([]admin.EventGroup, error) {
	if err := g.views(topic); err != nil {
		return nil, err
	}
	return g.engine.EventGroups(ctx, topic, id)
}

// Patterns implements admin.Inspector.
func (g *guard) Patterns(ctx context.Context, group string) ([]admin.GroupPattern, error) {
	list, err := g.engine.Patterns(ctx, group)
	shown := []admin.GroupPattern{}
	for _, p := range list {
		if g.showsEntry(p.Pattern) {
			shown = append(shown, p)
		}
	}
	return shown, err
}

// InFlight implements admin.Inspector.
func (g *guard) InFlight(ctx context.Context, topic, group string, limit int) ([]admin.InFlight, error) {
	if err := g.views(topic); err != nil {
		return nil, err
	}
	return g.engine.InFlight(ctx, topic, group, limit)
}

// Beginnings is the part of admin.Inspector that finds where a live tail is to begin.
type Beginnings interface {
	Topics(ctx context.Context, after string, limit int) ([]admin.TopicInfo, error)
	Topic(ctx context.Context, topic string) (admin.TopicInfo, error)
	Event(ctx context.Context, topic, id string) (eventhub.Item, error)
}

// BeginningsFor returns what finds the beginnings of tails for whoever may subscribe to them;
// e is what For has returned.
func BeginningsFor(e Engine) Beginnings {
	if g, ok := e.(*guard); ok {
		return beginnings{g}
	}
	return e
}

type beginnings struct{ *guard }

// Topics implements Beginnings.
func (b beginnings) Topics(ctx context.Context, after string, limit int) ([]admin.TopicInfo, error) {
	return b.topics(ctx, after, limit, func(topic string) bool { return b.may(policy.Subscribe, topic, "") == nil })
}

// Topic implements Beginnings.
func (b beginnings) Topic(ctx context.Context, topic string) (admin.TopicInfo, error) {
	if err := b.check(policy.Subscribe, topic, ""); err != nil {
		return admin.TopicInfo{}, err
	}
	return b.engine.Topic(ctx, topic)
}

// Event implements Beginnings.
func (b beginnings) Event(ctx context.Context, topic, id string) (eventhub.Item, error) {
	if err := b.check(policy.Subscribe, topic, ""); err != nil {
		return eventhub.Item{}, err
	}
	return b.engine.Event(ctx, topic, id)
}
