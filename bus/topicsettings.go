package bus

import (
	"context"
	"errors"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/past"
	"eventhub/store"
)

// Settings of topics: package bus/internal/topicset has them.

// Topic implements admin.Inspector.
func (b *Bus) Topic(ctx context.Context, topic string) (admin.TopicInfo, error) {
	info, err := b.history.Topic(ctx, topic)
	if err != nil {
		return info, err
	}
	e := b.topics.Effective(topic)
	info.Settings, info.SettingsFrom = &e.Settings, &e.SettingsSource
	if err := b.describeIdle(ctx, &info); err != nil {
		return info, err
	}
	stored, err := b.store.Topic(ctx, topic)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return info, storeError(err, "look up topic %q", topic)
	}
	b.describeCompaction(&info, stored)
	info.Index = b.describeIndex(stored)
	return info, b.describeKept(ctx, &info)
}

// describeIndex says how far the index by key of a topic is.
func (b *Bus) describeIndex(t store.TopicInfo) *admin.TopicIndex {
	i := &admin.TopicIndex{State: t.Index.String()}
	if t.Index == store.Indexing {
		p := b.keyIndex.Progress(t.Name)
		i.Done, i.Total = p.Done, p.Total
	}
	return i
}

// EffectiveSettings implements admin.Settings.
func (b *Bus) EffectiveSettings(_ context.Context, topic string) (admin.EffectiveSettings, error) {
	if err := eventhub.ValidateStoredTopic(topic); err != nil {
		return admin.EffectiveSettings{}, err
	}
	return b.topics.Effective(topic), nil
}

// SettingsEntries implements admin.Settings.
func (b *Bus) SettingsEntries(_ context.Context, after string, limit int) ([]admin.SettingsEntry, error) {
	if err := past.CheckLimit(limit); err != nil {
		return nil, err
	}
	return b.topics.Entries(after, limit), nil
}

// SetTopic implements admin.Settings.
func (b *Bus) SetTopic(ctx context.Context, name string, settings admin.TopicSettings, match *uint64) (admin.SettingsEntry, error) {
	job, err := b.topics.Write(name, settings, match)
	if err == nil {
		err = b.committer.Do(ctx, job)
	}
	if err != nil {
		return admin.SettingsEntry{}, err
	}
	return job.Entry(), nil
}

// UnsetTopic implements admin.Settings.
func (b *Bus) UnsetTopic(ctx context.Context, name string, match *uint64) error {
	job, err := b.topics.Remove(name, match)
	if err == nil {
		err = b.committer.Do(ctx, job)
	}
	return err
}
