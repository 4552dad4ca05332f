package guard

import (
	"context"
	"slices"

	"eventhub"
	"eventhub/admin"
	"eventhub/auth/policy"
)

// Replay implements admin.History.
func (g *guard) Replay(ctx context.Context, q admin.ReplayQuery, visit func(string, eventhub.Item) error) error {
	p, err := eventhub.ParsePattern(q.Topic)
	if err != nil {
		return err
	}
	if err := g.some(policy.Read, q.Topic, ""); err != nil {
		return err
	}
	q.Allowed = g.policy.Topics(policy.Read, []eventhub.Pattern{p}, "")
	return g.engine.Replay(ctx, q, visit)
}

// Life implements admin.History.
func (g *guard) Life(ctx context.Context, topic string) (uint64, error) {
	if err := g.check(policy.Read, topic, ""); err != nil {
		return 0, err
	}
	return g.engine.Life(ctx, topic)
}

// State implements admin.History.
func (g *guard) State(ctx context.Context, q admin.StateQuery) (admin.StatePage, error) {
	if err := g.check(policy.Read, q.Topic, ""); err != nil {
		return admin.StatePage{}, err
	}
	return g.engine.State(ctx, q)
}

// StateDiff implements admin.History.
func (g *guard) StateDiff(ctx context.Context, q admin.StateDiffQuery) (admin.StateDiffPage, error) {
	if err := g.check(policy.Read, q.Topic, ""); err != nil {
		return admin.StateDiffPage{}, err
	}
	return g.engine.StateDiff(ctx, q)
}

// KeyHistory implements admin.History.
func (g *guard) KeyHistory(ctx context.Context, q admin.KeyHistoryQuery) (admin.KeyHistoryPage, error) {
	if err := g.check(policy.Read, q.Topic, ""); err != nil {
		return admin.KeyHistoryPage{}, err
	}
	return g.engine.KeyHistoryAmong(ctx, q, g.reads)
}

// KeyHistoryAmong implements Engine.
func (g *guard) KeyHistoryAmong(ctx context.Context, q admin.KeyHistoryQuery, shows func(topic string) bool) (admin.KeyHistoryPage, error) {
	if err := g.check(policy.Read, q.Topic, ""); err != nil {
		return admin.KeyHistoryPage{}, err
	}
	return g.engine.KeyHistoryAmong(ctx, q, func(topic string) bool { return g.reads(topic) && shows(topic) })
}

// hides reports whether an event is in a topic that may not be read.
func (g *guard) hides(f admin.Found) bool { return !g.reads(f.Topic) }

// reads reports whether events of a topic may be read.
func (g *guard) reads(topic string) bool { return g.may(policy.Read, topic, "") == nil }

// Find implements admin.History.
func (g *guard) Find(ctx context.Context, id string, limit int) ([]admin.Found, error) {
	found, _, err := g.engine.FindAmong(ctx, id, limit, g.reads)
	return found, err
}

// FindAmong implements Engine.
func (g *guard) FindAmong(ctx context.Context, id string, limit int, shows func(topic string) bool) (found []admin.Found, hidden bool, err error) {
	return g.engine.FindAmong(ctx, id, limit, func(topic string) bool { return g.reads(topic) && shows(topic) })
}

// Effects implements admin.History.
func (g *guard) Effects(ctx context.Context, id string, after eventhub.Place, limit int) ([]admin.Found, error) {
	return g.related(ctx, g.engine.Effects, id, after, limit)
}

// Correlated implements admin.History.
func (g *guard) Correlated(ctx context.Context, correlation string, after eventhub.Place, limit int) ([]admin.Found, error) {
	return g.related(ctx, g.engine.Correlated, correlation, after, limit)
}

// relation is Effects or Correlated.
type relation = func(ctx context.Context, of string, after eventhub.Place, limit int) ([]admin.Found, error)

// related reads on until there is something to show: a page without events says that there
// are no more.
func (g *guard) related(ctx context.Context, find relation, of string, after eventhub.Place, limit int) ([]admin.Found, error) {
	for {
		found, err := find(ctx, of, after, limit)
		if err != nil || len(found) == 0 {
			return found, err
		}
		after = eventhub.Place{Topic: found[len(found)-1].Topic, Offset: found[len(found)-1].Offset}
		if found = slices.DeleteFunc(found, g.hides); len(found) > 0 {
			return found, nil
		}
	}
}

// ConcealsEvent implements admin.Concealer.
func (g *guard) ConcealsEvent(ctx context.Context, id string) (bool, error) {
	_, hidden, err := g.engine.FindAmong(ctx, id, 1, g.reads)
	return hidden, err
}

// ConcealsEffects implements admin.Concealer.
func (g *guard) ConcealsEffects(ctx context.Context, id string) (bool, error) {
	for after := (eventhub.Place{}); ; {
		found, err := g.engine.Effects(ctx, id, after, admin.MaxPage)
		if err != nil || len(found) == 0 {
			return false, err
		}
		if slices.ContainsFunc(found, g.hides) {
			return true, nil
		}
		after = eventhub.Place{Topic: found[len(found)-1].Topic, Offset: found[len(found)-1].Offset}
	}
}
