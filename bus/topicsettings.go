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
	if err := b.describeSnapshots(ctx, &info); err != nil {
		return info, err
	}
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

// describeSnapshots says which snapshots there are of a topic.
func (b *Bus) describeSnapshots(ctx context.Context, info *admin.TopicInfo) error {
	status, err := b.snapshots.Status(ctx, info.Topic)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil
	case err != nil:
		return storeError(err, "look up the snapshots of topic %q", info.Topic)
	}
	isMade := b.topics.Snapshot(info.Topic) != nil && !b.opts.NoMaintenance
	if !isMade && len(status.Kept) == 0 {
		return nil
	}
	s := &admin.TopicSnapshots{Topic: eventhub.SnapshotTopic(info.Topic), State: admin.SnapshotsOff, Snapshots: []admin.SnapshotInfo{}}
	if isMade {
		s.State, s.Failed = admin.SnapshotsWaiting, status.Failed
		if status.Writing {
			s.State = admin.SnapshotsWriting
		}
		if status.Pending {
			s.NextTS = b.clock.Wall().Add(max(status.Next, 0)).UnixMilli()
		}
	}
	for _, m := range status.Kept {
		s.Snapshots = append(s.Snapshots, admin.SnapshotInfo{ID: m.Snapshot, Offset: m.Offset, TS: m.TS, Count: m.Count, First: m.First})
	}
	info.Snapshots = s
	return nil
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
