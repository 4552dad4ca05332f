package guard

import (
	"cmp"
	"context"
	"errors"

	"eventhub"
	"eventhub/admin"
	"eventhub/auth/policy"
)

// DeleteGroup implements admin.Operator.
func (g *guard) DeleteGroup(ctx context.Context, topic, group string) error {
	if err := g.all(policy.Admin, topic, ""); err != nil {
		return err
	}
	return g.engine.DeleteGroup(ctx, topic, group)
}

// DeleteTopic implements admin.Operator.
func (g *guard) DeleteTopic(ctx context.Context, topic string) error {
	if err := g.check(policy.Admin, topic, ""); err != nil {
		return err
	}
	return g.engine.DeleteTopic(ctx, topic)
}

// SeekGroup implements admin.Operator.
func (g *guard) SeekGroup(ctx context.Context, topic, group string, start eventhub.Start, apply bool) (admin.SeekPlan, error) {
	if err := g.check(policy.Admin, topic, ""); err != nil {
		return admin.SeekPlan{}, err
	}
	return g.engine.SeekGroup(ctx, topic, group, start, apply)
}

// SeekGroupIf implements admin.Operator.
func (g *guard) SeekGroupIf(ctx context.Context, topic, group string, start eventhub.Start, epoch uint64) (admin.SeekPlan, error) {
	if err := g.check(policy.Admin, topic, ""); err != nil {
		return admin.SeekPlan{}, err
	}
	return g.engine.SeekGroupIf(ctx, topic, group, start, epoch)
}

// PauseGroup implements admin.Operator.
func (g *guard) PauseGroup(ctx context.Context, topic, group string) error {
	if err := g.check(policy.Admin, topic, ""); err != nil {
		return err
	}
	return g.engine.PauseGroup(ctx, topic, group)
}

// ResumeGroup implements admin.Operator.
func (g *guard) ResumeGroup(ctx context.Context, topic, group string) error {
	if err := g.check(policy.Admin, topic, ""); err != nil {
		return err
	}
	return g.engine.ResumeGroup(ctx, topic, group)
}

// Cancel implements admin.Scheduler: what somebody may publish it may take back.
func (g *guard) Cancel(ctx context.Context, topic, id string) error {
	if err := g.check(policy.Publish, topic, ""); err != nil {
		return err
	}
	return g.engine.Cancel(ctx, topic, id)
}

// Scheduled implements admin.Scheduler.
func (g *guard) Scheduled(ctx context.Context, q admin.ScheduleQuery) ([]admin.Scheduled, error) {
	if q.Topic != "" {
		if err := g.views(q.Topic); err != nil {
			return nil, err
		}
		return g.engine.Scheduled(ctx, q)
	}
	return page(cmp.Or(q.Limit, admin.MaxPage), func(s *admin.Scheduled) bool { return g.shows(s.Topic) }, func(last *admin.Scheduled, n int) ([]admin.Scheduled, error) {
		if q.Limit = n; last != nil {
			q.AfterAt, q.AfterSeq = last.DeliverAt, last.Seq
		}
		return g.engine.Scheduled(ctx, q)
	})
}

// ConnectionsFor returns the connections of the hub for those who may see all of them; e is
// what For has returned.
func ConnectionsFor(e Engine, c admin.Connections) admin.Connections {
	if g, ok := e.(*guard); ok {
		return connections{g, c}
	}
	return c
}

type connections struct {
	guard *guard
	all   admin.Connections
}

// Connections implements admin.Connections.
func (c connections) Connections(ctx context.Context, after string, limit int) ([]admin.ConnectionInfo, error) {
	if err := c.guard.hub(policy.Admin); err != nil {
		return nil, err
	}
	return c.all.Connections(ctx, after, limit)
}

// CloseConnection implements admin.Connections.
func (c connections) CloseConnection(ctx context.Context, id string) error {
	if err := c.guard.hub(policy.Admin); err != nil {
		return err
	}
	return c.all.CloseConnection(ctx, id)
}

// Shows returns which topics are part of what the hub shows of all of them, as its metrics, and
// which patterns, whose topics all have to be; nil for all. CodeForbidden for whoever may see
// none. e is what For has returned.
func Shows(e Engine) (topic func(name string) bool, err error) {
	g, ok := e.(*guard)
	if !ok {
		return nil, nil
	}
	if !g.policy.Somewhere(policy.Read) && !g.policy.Somewhere(policy.Admin) {
		err := eventhub.Errorf(eventhub.CodeForbidden, "the token does not allow read or admin on any topic")
		return nil, g.refuse(err, policy.Read, "", "")
	}
	return g.showsEntry, nil
}

// Operates refuses what concerns the hub itself to whoever is no admin of all topics. e is
// what For has returned.
func Operates(e Engine) error {
	if g, ok := e.(*guard); ok {
		return g.hub(policy.Admin)
	}
	return nil
}

// Backup implements admin.Backuper. A backup has everything, whatever the actions of those
// who can read it.
func (g *guard) Backup(ctx context.Context, dir string) error {
	if err := g.hub(policy.Admin); err != nil {
		return err
	}
	return g.engine.Backup(ctx, dir)
}

// letters returns the topic that has the dead letters which a query means by a topic, and
// the one whose events were given up.
func letters(topic string) (dlq, source string) {
	if eventhub.IsDeadLetterTopic(topic) {
		return topic, eventhub.SourceTopic(topic)
	}
	return eventhub.DeadLetterTopic(topic), topic
}

// DeadLetterTopics implements admin.Redriver.
func (g *guard) DeadLetterTopics(ctx context.Context, after string, limit int) ([]admin.DeadLetterTopic, error) {
	return page(limit, func(t *admin.DeadLetterTopic) bool { return g.shows(t.DLQ) }, func(last *admin.DeadLetterTopic, n int) ([]admin.DeadLetterTopic, error) {
		if last != nil {
			after = last.DLQ
		}
		return g.engine.DeadLetterTopics(ctx, after, n)
	})
}

// DeadLetters implements admin.Redriver.
func (g *guard) DeadLetters(ctx context.Context, q admin.DeadLetterQuery, visit func(*admin.DeadLetter) error) error {
	dlq, _ := letters(q.Topic)
	if err := g.check(policy.Read, dlq, ""); err != nil {
		return err
	}
	return g.engine.DeadLetters(ctx, q, visit)
}

// Redrive implements admin.Redriver. How many dead letters a filter lets through says what is in
// them, so it is for who may read them; a key names them, as for an erasure.
func (g *guard) Redrive(ctx context.Context, q admin.RedriveQuery) (admin.RedriveResult, error) {
	dlq, source := letters(q.Topic)
	err := g.check(policy.Admin, source, "")
	if err == nil && q.Filter != nil && !(&eventhub.Filter{CEL: q.Filter.CEL, Headers: q.Filter.Headers, Tags: q.Filter.Tags}).IsZero() {
		err = g.check(policy.Read, dlq, "")
	}
	if err != nil {
		return admin.RedriveResult{}, err
	}
	return g.engine.Redrive(ctx, q)
}

// Requeue implements admin.Redriver. It publishes what its caller says.
func (g *guard) Requeue(ctx context.Context, topic string, offset uint64, payload []byte, by string) (eventhub.Receipt, error) {
	return g.RequeueIf(ctx, topic, offset, payload, 0, by)
}

// RequeueIf implements admin.Redriver.
func (g *guard) RequeueIf(ctx context.Context, topic string, offset uint64, payload []byte, marks int, by string) (eventhub.Receipt, error) {
	_, source := letters(topic)
	for _, a := range []policy.Action{policy.Admin, policy.Publish} {
		if err := g.check(a, source, ""); err != nil {
			return eventhub.Receipt{}, err
		}
	}
	return g.engine.RequeueIf(ctx, topic, offset, payload, marks, by)
}

// Trim implements admin.Remover.
func (g *guard) Trim(ctx context.Context, topic string, q admin.TrimQuery, apply bool) (admin.TrimPlan, error) {
	if err := g.check(policy.Admin, topic, ""); err != nil {
		return admin.TrimPlan{}, err
	}
	return g.engine.Trim(ctx, topic, q, apply)
}

// Erase implements admin.Remover.
func (g *guard) Erase(ctx context.Context, topic string, q admin.EraseQuery) (admin.EraseResult, error) {
	if err := g.check(policy.Admin, topic, ""); err != nil {
		return admin.EraseResult{}, err
	}
	return g.engine.Erase(ctx, topic, q)
}

// PlanSettings implements admin.Remover.
func (g *guard) PlanSettings(ctx context.Context, name string, settings admin.TopicSettings) (admin.SettingsPlan, error) {
	if err := g.all(policy.Admin, name, ""); err != nil {
		return admin.SettingsPlan{}, err
	}
	plan, err := g.engine.PlanSettings(ctx, name, settings)
	return plan, g.unnamed(name, err)
}

// unnamed returns an error about a pattern without the name of another one, where lists do not
// show that.
func (g *guard) unnamed(name string, err error) error {
	var conflict *admin.PatternConflict
	if !errors.As(err, &conflict) || g.showsEntry(conflict.Other) {
		return err
	}
	return eventhub.Errorf(eventhub.CodeConflict,
		"pattern %q and another one, which the token does not allow to see, tie: some topics match both, and neither is the more exact one", name)
}

// EffectiveSettings implements admin.Settings.
func (g *guard) EffectiveSettings(ctx context.Context, topic string) (admin.EffectiveSettings, error) {
	if err := g.views(topic); err != nil {
		return admin.EffectiveSettings{}, err
	}
	return g.engine.EffectiveSettings(ctx, topic)
}

// SettingsEntries implements admin.Settings.
func (g *guard) SettingsEntries(ctx context.Context, after string, limit int) ([]admin.SettingsEntry, error) {
	return page(limit, func(e *admin.SettingsEntry) bool { return g.showsEntry(e.Name) }, func(last *admin.SettingsEntry, n int) ([]admin.SettingsEntry, error) {
		if last != nil {
			after = last.Name
		}
		return g.engine.SettingsEntries(ctx, after, n)
	})
}

// SetTopic implements admin.Settings.
func (g *guard) SetTopic(ctx context.Context, name string, settings admin.TopicSettings, match *uint64) (admin.SettingsEntry, error) {
	if err := g.all(policy.Admin, name, ""); err != nil {
		return admin.SettingsEntry{}, err
	}
	entry, err := g.engine.SetTopic(ctx, name, settings, match)
	return entry, g.unnamed(name, err)
}

// UnsetTopic implements admin.Settings.
func (g *guard) UnsetTopic(ctx context.Context, name string, match *uint64) error {
	if err := g.all(policy.Admin, name, ""); err != nil {
		return err
	}
	return g.engine.UnsetTopic(ctx, name, match)
}
