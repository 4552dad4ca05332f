package bus

import (
	"context"
	"errors"

	"eventhub/admin"
	"eventhub/bus/internal/retention"
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

// measureRetention adds what was removed, and where topics begin.
func (b *Bus) measureRetention(ctx context.Context, e *measure.Engine) error {
	s := b.retention.Stats()
	e.RetentionRounds, e.AgesHeld, e.NoMaintenance = s.Rounds, s.Held, b.opts.NoMaintenance
	for i := range e.Topics {
		addRemoved(&e.Topics[i], s.Topics)
	}
	for topic := range s.Topics {
		t := measure.Topic{Topic: topic}
		addRemoved(&t, s.Topics)
		e.Topics = append(e.Topics, t)
	}
	for i := range e.Topics {
		info, err := b.store.Topic(ctx, e.Topics[i].Topic)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return storeError(err, "look up topic %q", e.Topics[i].Topic)
		}
		e.Topics[i].Horizon = info.Horizon
	}
	return nil
}

// addRemoved adds what was removed of a topic, and takes it off the list.
func addRemoved(t *measure.Topic, removed map[string]retention.TopicStats) {
	s := removed[t.Topic]
	t.Removed, t.RemovedBytes = s.Events, s.Bytes
	delete(removed, t.Topic)
}
