package bus

import (
	"context"
	"errors"
	"maps"
	"slices"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/deadletter"
	"eventhub/bus/internal/groupstate"
	"eventhub/bus/internal/past"
	"eventhub/store"
)

// What became of dead letters: the marks say what was done about each (package deadletter),
// and the list of redriven events of its group says whether that is over.

// redriveLists are the lists of all groups. That of a group which is not loaded is read once:
// such a group does not change.
type redriveLists struct {
	bus      *Bus
	unloaded map[groupKey]groupstate.Progress
}

// Mark implements deadletter.Lists.
func (l *redriveLists) Mark(ctx context.Context, topic, name string, offset uint64) (string, error) {
	if g := l.bus.running(topic, name); g != nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.state.Mark(offset), nil
	}
	key := groupKey{topic: topic, group: name}
	p, ok := l.unloaded[key]
	if !ok {
		state, err := l.bus.store.Group(ctx, topic, name)
		if err == nil {
			p, err = progressOf(ctx, l.bus.store, topic, name, state.Cursor)
		}
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return "", groupError(err, topic, name)
		}
		if l.unloaded == nil {
			l.unloaded = make(map[groupKey]groupstate.Progress)
		}
		l.unloaded[key] = p
	}
	return p.Mark(offset), nil
}

// countedLists are the lists of all groups for who asks often: those of groups that are not
// loaded are in the registry, which is filled.
type countedLists struct{ bus *Bus }

// Mark implements deadletter.Lists.
func (l countedLists) Mark(_ context.Context, topic, name string, offset uint64) (string, error) {
	if g := l.bus.running(topic, name); g != nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.state.Mark(offset), nil
	}
	return l.bus.known.mark(groupKey{topic: topic, group: name}, offset), nil
}

// DeadLetterTopics implements admin.Redriver.
func (b *Bus) DeadLetterTopics(ctx context.Context, after string, limit int) ([]admin.DeadLetterTopic, error) {
	if err := past.CheckLimit(limit); err != nil {
		return nil, err
	}
	if err := b.known.fill(ctx, b.store); err != nil {
		return nil, err
	}
	logs, release, err := b.letterCounts.UpToDate(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	var list []admin.DeadLetterTopic
	for _, dlq := range slices.Sorted(maps.Keys(logs)) {
		if dlq <= after || len(logs[dlq].Groups) == 0 {
			continue
		}
		t, err := b.letterTopicOf(ctx, dlq, logs[dlq])
		if eventhub.ErrorCode(err) == eventhub.CodeUnknownID {
			continue // deleted meanwhile
		}
		if err != nil {
			return nil, err
		}
		if list = append(list, t); len(list) == limit {
			break
		}
	}
	return list, nil
}

// letterTopicOf describes a topic of dead letters.
func (b *Bus) letterTopicOf(ctx context.Context, dlq string, l *deadletter.Log) (admin.DeadLetterTopic, error) {
	info, err := b.Topic(ctx, dlq)
	t := admin.DeadLetterTopic{Topic: deadletter.EventsOf(dlq), DLQ: dlq, Head: info.Head, FirstTS: info.FirstTS, HeadTS: info.HeadTS}
	for _, name := range slices.Sorted(maps.Keys(l.Groups)) {
		g := admin.DeadLetterGroup{Group: name, DeadLetterCounts: l.Groups[name].States()}
		t.Add(&g.DeadLetterCounts)
		t.Groups = append(t.Groups, g)
	}
	t.Count = t.Total()
	return t, err
}
