package bus

import (
	"context"
	"errors"
	"iter"
	"maps"

	"eventhub/admin"
	"eventhub/internal/measure"
	"eventhub/store"
)

// What is shown of retention: package bus/internal/retention does it.

// shownMeasures bounds what is read to say how much a topic keeps.
const shownMeasures = 16

// describeKept says how much a topic keeps, and what its settings have removed.
func (b *Bus) describeKept(ctx context.Context, info *admin.TopicInfo) error {
	kept := &admin.TopicUsage{}
	info.Kept = kept
	if !b.forgetsIDs(info.Topic) {
		kept.IDsKeptMS = store.IDsKept.Milliseconds()
	}
	done := false
	for from, calls := info.Horizon, 0; !done; calls++ {
		if calls == shownMeasures {
			kept.AtLeast = true
			break
		}
		var u store.Usage
		var err error
		if u, from, done, err = b.store.Measure(ctx, info.Topic, from, store.Usage{}); err != nil {
			return storeError(err, "count the events of topic %q", info.Topic)
		}
		kept.Events += u.Events
		kept.Bytes += u.Bytes
	}
	s, ok := b.retention.Status(info.Topic)
	if policy := b.topics.Retention(info.Topic); !ok && policy == (admin.Retention{}) {
		return nil
	}
	info.Removal = &admin.TopicRemoval{Events: s.Events, Bytes: s.Bytes, LastTS: s.LastPass, State: "waiting"}
	switch {
	case b.opts.NoMaintenance:
		info.Removal.State = "off"
	case s.Counting:
		info.Removal.State = "counting"
	}
	return nil
}

// describeCompaction says how far a topic is compacted, and what holds the rest.
func (b *Bus) describeCompaction(info *admin.TopicInfo, kept store.TopicInfo) {
	compacts := b.topics.Compaction(info.Topic) != nil
	if !compacts && kept.Compacted == 0 {
		return
	}
	s := b.compaction.Status(info.Topic)
	c := &admin.TopicCompaction{Compacted: kept.Compacted, Tombstones: kept.Tombstones, Events: s.Events, Bytes: s.Bytes, LastTS: s.LastPass, State: "waiting"}
	info.Compaction = c
	switch {
	case !compacts || b.opts.NoMaintenance:
		c.State = "off"
		return
	case s.Running:
		c.State = "running"
	}
	if s.Held.From > kept.Compacted {
		c.HeldFrom, c.HeldUntilTS, c.HeldGroup, c.HeldBy = s.Held.From, s.Held.Until, s.Held.Group, "min_age"
		if c.HeldGroup != "" {
			c.HeldBy = "group"
		}
	}
}

// measureRetention adds what was removed and ended, and where topics begin.
func (b *Bus) measureRetention(ctx context.Context, e *measure.Engine) error {
	s, compacted, ended := b.retention.Stats(), b.compaction.Stats(), b.idle.Counts()
	e.RetentionRounds, e.AgesHeld, e.NoMaintenance = s.Rounds, s.Held, b.opts.NoMaintenance
	_, e.Indexing = b.keyIndex.Stats()
	known := make(map[string]bool, len(e.Topics))
	for i := range e.Topics {
		known[e.Topics[i].Topic] = true
	}
	for _, topics := range []iter.Seq[string]{maps.Keys(s.Topics), maps.Keys(compacted), maps.Keys(ended)} {
		for topic := range topics {
			if !known[topic] {
				known[topic] = true
				e.Topics = append(e.Topics, measure.Topic{Topic: topic})
			}
		}
	}
	for i := range e.Topics {
		t := &e.Topics[i]
		t.Removed, t.RemovedBytes = s.Topics[t.Topic].Events, s.Topics[t.Topic].Bytes
		t.Compacted, t.CompactedBytes = compacted[t.Topic].Events, compacted[t.Topic].Bytes
		t.GroupsEnded = ended[t.Topic]
		info, err := b.store.Topic(ctx, t.Topic)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return storeError(err, "look up topic %q", t.Topic)
		}
		t.Horizon = info.Horizon
	}
	return nil
}
