package bus

import (
	"context"
	"errors"
	"slices"
	"strings"

	"eventhub"
	"eventhub/bus/internal/commit"
	"eventhub/store"
)

// A life of a topic has a number (store.TopicInfo.Life), and what is done for the sake
// of a life names it: the groups that patterns and lists bring, all that a group writes,
// a replay. When that life is over it comes to nothing, whatever has the name by then.
// What a client asks for by the name goes by the name.

// life returns the number of the life that a topic has now, 0 where it is not there.
func (b *Bus) life(ctx context.Context, topic string) (uint64, error) {
	info, err := b.store.Topic(ctx, topic)
	if errors.Is(err, store.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, storeError(err, "look up topic %q", topic)
	}
	return info.Life, nil
}

// errDeleted says that a life of a topic is over. store.ErrGone is in its chain.
func errDeleted(topic string) error {
	return eventhub.Wrap(eventhub.CodeNotSubscribed, store.ErrGone, "topic %q was deleted", topic)
}

// matching returns the topics that one of the patterns matches, in byte order, and
// those that a pattern without wildcards names; these have the life 0 where they do not
// exist.
func (b *Bus) matching(ctx context.Context, patterns []eventhub.Pattern) ([]store.TopicLife, error) {
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
		life, err := b.life(ctx, name)
		if err != nil {
			return nil, err
		}
		found = append(found, store.TopicLife{Topic: name, Life: life})
	}
	exact := len(found)
	if !wild {
		return byTopicName(found), nil
	}
	for t, err := range store.AllTopics(ctx, b.store, "") {
		if err != nil {
			return nil, storeError(err, "list the topics")
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

// byTopicName sorts topics in byte order.
func byTopicName(topics []store.TopicLife) []store.TopicLife {
	slices.SortFunc(topics, func(a, b store.TopicLife) int { return strings.Compare(a.Topic, b.Topic) })
	return topics
}

// topicsCreated tells those who wait for topics that do not exist yet of those that a commit
// has created, by whatever part of it, and of each life once. It runs on the committer's
// goroutine, before the events are handed on.
func (b *Bus) topicsCreated(batch []*commit.Request) {
	created := createdBy(batch)
	if len(created) == 0 {
		return
	}
	b.tailsFollow(created)
	b.patterns.topicsCreated(created)
}
