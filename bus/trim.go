package bus

import (
	"context"
	"errors"
	"iter"
	"strings"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/commit"
	"eventhub/bus/internal/idle"
	"eventhub/bus/internal/past"
	"eventhub/bus/internal/publish"
	"eventhub/bus/internal/retention"
	"eventhub/store"
)

var _ admin.Remover = (*Bus)(nil)

// topicToRemoveFrom returns a topic of which somebody may remove events.
func (b *Bus) topicToRemoveFrom(ctx context.Context, topic string) (store.TopicInfo, error) {
	if err := eventhub.ValidateStoredTopic(topic); err != nil {
		return store.TopicInfo{}, err
	}
	if strings.HasPrefix(topic, "system.") {
		return store.TopicInfo{}, eventhub.Errorf(eventhub.CodeBadTopic, "events of %q cannot be removed: the topics of system are the hub's own", topic)
	}
	info, err := b.store.Topic(ctx, topic)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return info, past.NoTopic(topic)
	case err != nil:
		return info, storeError(err, "look up topic %q", topic)
	}
	return info, nil
}

// Trim implements admin.Remover.
func (b *Bus) Trim(ctx context.Context, topic string, q admin.TrimQuery, apply bool) (admin.TrimPlan, error) {
	plan := admin.TrimPlan{Topic: topic, Groups: []admin.OvertakenGroup{}}
	if err := q.Validate(); err != nil {
		return plan, err
	}
	info, err := b.topicToRemoveFrom(ctx, topic)
	if err != nil {
		return plan, err
	}
	all, err := b.kept(ctx, topic, info.Horizon)
	if err != nil {
		return plan, err
	}
	horizon, err := b.trimPlace(ctx, info, q, all)
	if err != nil {
		return plan, err
	}
	plan.From, plan.Head, plan.Horizon = info.Horizon, info.Head, max(horizon, info.Horizon)
	left, err := b.kept(ctx, topic, plan.Horizon)
	if err != nil {
		return plan, err
	}
	plan.Events, plan.Bytes = all.Events-min(all.Events, left.Events), all.Bytes-min(all.Bytes, left.Bytes)
	if plan.Groups, err = b.overtaken(ctx, info, plan.Horizon); err != nil || !apply {
		return plan, err
	}
	plan.Applied = true
	return plan, b.removeEvents(ctx, store.Unit{Topics: []store.TopicChange{{
		Topic: topic, Life: info.Life, Horizon: plan.Horizon, ForgetIDs: b.forgetsIDs(topic),
	}}})
}

// removeEvents commits a unit that removes events of a topic.
func (b *Bus) removeEvents(ctx context.Context, unit store.Unit) error {
	err := b.committer.DoWithin(ctx, commit.NewWrite(unit, b.removing), "the events may or may not be removed")
	switch {
	case errors.Is(err, store.ErrGone):
		return past.NoTopic(unit.Topics[0].Topic)
	case errors.Is(err, store.ErrTopicLimit):
		return publish.UnitError(err)
	}
	return err
}

// removing is called when the commit is built that removes events: what is built after it is not to have what it erases.
func (b *Bus) removing(unit *store.Unit) error {
	for i := range unit.Topics {
		if ch := &unit.Topics[i]; len(ch.Erase) > 0 {
			b.logs.Erasing(ch.Topic)
		}
	}
	return nil
}

// forgetsIDs reports whether the ids of removed events go with them: a topic that is bound to
// a number of bytes has no others.
func (b *Bus) forgetsIDs(topic string) bool { return b.topics.Retention(topic).Bytes != 0 }

func (b *Bus) kept(ctx context.Context, topic string, from uint64) (store.Usage, error) {
	u, err := retention.Kept(ctx, b.store, topic, from)
	if err != nil {
		return u, storeError(err, "count the events of topic %q", topic)
	}
	return u, nil
}

// trimPlace returns the first offset that a trim keeps. all is what the topic keeps.
func (b *Bus) trimPlace(ctx context.Context, info store.TopicInfo, q admin.TrimQuery, all store.Usage) (at uint64, err error) {
	switch {
	case q.Before > info.Head+1:
		return 0, eventhub.Errorf(eventhub.CodeBadRequest, "before is offset %d; the head of topic %q is %d, so at most %d is allowed", q.Before, info.Name, info.Head, info.Head+1)
	case q.Before > 0:
		return q.Before, nil
	case q.BeforeTS > 0:
		if now := b.clock.Wall().UnixMilli(); q.BeforeTS > now {
			return 0, eventhub.Errorf(eventhub.CodeBadRequest, "before_ts is %d, which is to come: it is %d now", q.BeforeTS, now)
		}
		at, err = b.store.SeekTime(ctx, info.Name, q.BeforeTS)
	case q.BeforeID != "":
		at, err = b.store.Find(ctx, info.Name, q.BeforeID)
		if errors.Is(err, store.ErrNotFound) {
			return 0, eventhub.Errorf(eventhub.CodeUnknownID, "there is no event %q in topic %q", q.BeforeID, info.Name)
		}
	default:
		at, err = retention.After(ctx, b.store, info.Name, info.Horizon, store.Usage{Events: all.Events - min(all.Events, q.Keep)})
	}
	if err != nil {
		return 0, storeError(err, "find a place in topic %q", info.Name)
	}
	return at, nil
}

// overtaken returns the groups that are not done with what is below a horizon.
func (b *Bus) overtaken(ctx context.Context, info store.TopicInfo, horizon uint64) ([]admin.OvertakenGroup, error) {
	list := []admin.OvertakenGroup{}
	groups, err := b.store.ListGroups(ctx, info.Name)
	if err != nil {
		return nil, storeError(err, "list the groups of topic %q", info.Name)
	}
	for _, g := range groups {
		cursor := g.State.Cursor
		if running := b.running(info.Name, g.Group); running != nil {
			_, cursor = running.position()
		}
		from := max(cursor+1, info.Horizon)
		if from >= horizon {
			continue
		}
		u, _, err := retention.Below(ctx, b.store, info.Name, from, horizon, -1)
		if err != nil {
			return nil, storeError(err, "count the events of topic %q", info.Name)
		}
		if u.Events > 0 {
			list = append(list, admin.OvertakenGroup{Group: g.Group, Events: u.Events})
		}
	}
	return list, nil
}

// PlanSettings implements admin.Remover.
func (b *Bus) PlanSettings(ctx context.Context, name string, settings admin.TopicSettings) (admin.SettingsPlan, error) {
	plan := admin.SettingsPlan{Name: name, Topics: []admin.TopicLoss{}, Groups: []admin.IdleGroup{}}
	var groups []idle.Group
	applies, err := b.topics.Plan(name, settings)
	if err != nil {
		return plan, err
	}
	for t, err := range b.topicsNamed(ctx, name) {
		if err != nil {
			return plan, storeError(err, "list the topics")
		}
		if !applies(t.Name) {
			continue
		}
		plan.Matched++
		if settings.GroupIdleExpiry != 0 {
			list, err := b.store.ListGroups(ctx, t.Name)
			if err != nil {
				return plan, storeError(err, "list the groups of topic %q", t.Name)
			}
			for i := range list {
				groups = append(groups, idle.Group{Topic: t.Name, Name: list[i].Group})
			}
		}
		loss, err := b.retention.Plan(ctx, t, settings.Retention)
		if err != nil {
			return plan, storeError(err, "count the events of topic %q", t.Name)
		}
		if loss.Removed == (store.Usage{}) {
			continue
		}
		plan.Events += loss.Removed.Events
		plan.Bytes += loss.Removed.Bytes
		if len(plan.Topics) < admin.MaxPage {
			plan.Topics = append(plan.Topics, admin.TopicLoss{Topic: t.Name, Horizon: loss.Horizon, Events: loss.Removed.Events, Bytes: loss.Removed.Bytes})
		}
	}
	return plan, b.planEnds(ctx, &plan, groups, func(topic string) time.Duration {
		if applies(topic) {
			return time.Duration(settings.GroupIdleExpiry)
		}
		return b.topics.GroupExpiry(topic)
	})
}

// topicsNamed returns the topics that a name may mean: all for a pattern.
func (b *Bus) topicsNamed(ctx context.Context, name string) iter.Seq2[store.TopicInfo, error] {
	if eventhub.IsPattern(name) {
		return store.AllTopics(ctx, b.store, "")
	}
	return func(yield func(store.TopicInfo, error) bool) {
		if t, err := b.store.Topic(ctx, name); !errors.Is(err, store.ErrNotFound) {
			yield(t, err)
		}
	}
}
