package past

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"

	"eventhub"
	"eventhub/store"
)

// Life returns the number of the life that a topic has now, 0 where it is not there.
func Life(ctx context.Context, s store.Store, topic string) (uint64, error) {
	info, err := s.Topic(ctx, topic)
	if errors.Is(err, store.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, store.Failed(err, "look up topic %q", topic)
	}
	return info.Life, nil
}

// Matching returns the topics that one of the patterns matches, in byte order, and
// those that a pattern without wildcards names; these have the life 0 where they do not
// exist.
func Matching(ctx context.Context, s store.Store, patterns []eventhub.Pattern) ([]store.TopicLife, error) {
	var found []store.TopicLife
	wild := false
	for _, p := range patterns {
		name := p.String()
		if eventhub.IsPattern(name) {
			wild = true
			continue
		}
		if slices.ContainsFunc(found, func(f store.TopicLife) bool { return f.Topic == name }) {
			continue
		}
		life, err := Life(ctx, s, name)
		if err != nil {
			return nil, err
		}
		found = append(found, store.TopicLife{Topic: name, Life: life})
	}
	exact := len(found)
	if !wild {
		return byTopicName(found), nil
	}
	for t, err := range store.AllTopics(ctx, s, "") {
		if err != nil {
			return nil, store.Failed(err, "list the topics")
		}
		if slices.ContainsFunc(found[:exact], func(f store.TopicLife) bool { return f.Topic == t.Name }) {
			continue
		}
		if slices.ContainsFunc(patterns, func(p eventhub.Pattern) bool { return p.Match(t.Name) }) {
			found = append(found, store.TopicLife{Topic: t.Name, Life: t.Life})
		}
	}
	return byTopicName(found), nil
}

// Allowed is Matching without topics that are not allowed.
func Allowed(ctx context.Context, s store.Store, patterns []eventhub.Pattern, allowed *eventhub.TopicRules) ([]store.TopicLife, error) {
	found, err := Matching(ctx, s, patterns)
	if allowed == nil {
		return found, err
	}
	return slices.DeleteFunc(found, func(at store.TopicLife) bool { return !allowed.Allow(at.Topic) }), err
}

// byTopicName sorts topics in byte order.
func byTopicName(topics []store.TopicLife) []store.TopicLife {
	slices.SortFunc(topics, func(a, b store.TopicLife) int { return strings.Compare(a.Topic, b.Topic) })
	return topics
}

// Resolve returns the cursor that a start means in a topic.
func Resolve(ctx context.Context, s store.Store, topic string, start eventhub.Start) (uint64, error) {
	var at uint64 // the first offset to deliver
	var err error
	switch start.Kind {
	case eventhub.StartEarliest:
		at = 1
	case eventhub.StartOffset:
		at = max(start.Offset, 1)
	case eventhub.StartTime:
		at, err = s.SeekTime(ctx, topic, start.TS)
	case eventhub.StartAfterID:
		at, err = s.Find(ctx, topic, start.AfterID)
		if errors.Is(err, store.ErrNotFound) {
			return 0, eventhub.Errorf(eventhub.CodeUnknownID, "after_id %q is not in topic %q%s", start.AfterID, topic, MayBeGone(ctx, s, topic))
		}
		at++
	default:
		at, err = s.Head(ctx, topic)
		at++
	}
	if err != nil {
		return 0, store.Failed(err, "resolve the start in topic %q", topic)
	}
	return at - 1, nil
}

// Begin is Resolve where a reader is told what it does not get any more. Where events were
// removed that come after a place which start names, gap says which and cursor is after them.
// Of a time that is before all events that are left nobody knows how many were removed of
// those after it: the gap begins with the topic. Earliest means what there is, and has no
// gap. A place or a time that compaction has passed has one too; marks are how far the topic
// was compacted before anything is read.
func Begin(ctx context.Context, s store.Store, topic string, start eventhub.Start) (cursor uint64, gap *eventhub.Gap, marks store.Marks, err error) {
	info, err := s.Topic(ctx, topic)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return 0, nil, marks, store.Failed(err, "look up topic %q", topic)
	}
	marks = store.Marks{Compacted: info.Compacted, Tombstones: info.Tombstones}
	cursor, err = Resolve(ctx, s, topic, start)
	if err != nil || info.Horizon <= 1 && marks == (store.Marks{}) {
		return cursor, nil, marks, err
	}
	g := eventhub.Gap{Topic: topic}
	passed := marks
	switch start.Kind {
	case eventhub.StartEarliest:
		return max(cursor, info.Horizon-1), nil, marks, nil
	case eventhub.StartTime:
		first, err := s.SeekTime(ctx, topic, 0)
		if err != nil {
			return 0, nil, marks, store.Failed(err, "look for the first event of topic %q", topic)
		}
		if start.TS > info.LastTime {
			return cursor, nil, marks, nil
		}
		if g.First = info.Horizon; cursor >= first {
			g.After = g.First - 1
		}
		if passed, err = compactedFrom(ctx, s, &info, cursor+1); err != nil {
			return 0, nil, marks, err
		}
	default:
		g.After, g.First = cursor, max(cursor+1, info.Horizon)
		cursor = g.First - 1
	}
	passed = passed.Above(g.First-1, store.Marks{})
	if g.Compacted, g.Tombstones = passed.Compacted, passed.Tombstones; passed == (store.Marks{}) && g.First == g.After+1 {
		return cursor, nil, marks, nil
	}
	return cursor, &g, marks, nil
}

// compactedFrom returns the marks of a topic where events that came before the one at an offset,
// and after the one before it that is left, may have gone by compaction: who asks for a time
// does not know that these were there.
func compactedFrom(ctx context.Context, s store.Store, info *store.TopicInfo, at uint64) (store.Marks, error) {
	marks := store.Marks{Compacted: info.Compacted, Tombstones: info.Tombstones}
	if at <= marks.Compacted || marks == (store.Marks{}) {
		return marks, nil
	}
	left, err := First(ctx, s, info.Name, marks.Compacted)
	if err != nil || left.Offset != 0 && left.Offset < at {
		return store.Marks{}, err
	}
	return marks, nil
}

// MayBeGone says, for the end of a message that something is not in a topic, that it may have
// been removed, where events of the topic were; else it is empty.
func MayBeGone(ctx context.Context, s store.Store, topic string) string {
	info, err := s.Topic(ctx, topic)
	switch {
	case err != nil, info.Horizon <= 1 && info.Compacted == 0:
		return ""
	case info.Horizon <= 1:
		return fmt.Sprintf("; it may have been removed: the topic is compacted up to offset %d", info.Compacted)
	}
	return fmt.Sprintf("; it may have been removed: the topic begins at offset %d", info.Horizon)
}

// First returns the first event at or above an offset; the zero Item where there
// is none.
func First(ctx context.Context, s store.Store, topic string, from uint64) (eventhub.Item, error) {
	var batch store.Batch
	batch.Grow(4 << 10) // of one event, not of a page
	if err := s.Read(ctx, topic, from, 1, 0, &batch); err != nil {
		return eventhub.Item{}, store.Failed(err, "read topic %q at offset %d", topic, from)
	}
	if len(batch.Items) == 0 {
		return eventhub.Item{}, nil
	}
	return batch.Items[0], nil
}

// Search returns the index of the first item at or above offset.
func Search(items []store.Item, offset uint64) int {
	return sort.Search(len(items), func(i int) bool { return items[i].Offset >= offset })
}
