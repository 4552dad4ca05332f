package past

import (
	"context"

	"eventhub"
	"eventhub/internal/naming"
	"eventhub/store"
)

// comparedTopics bounds how many names a misspelt one is compared with.
const comparedTopics = 2000

// Missing says that a topic, or a group in it, does not exist, with a name that is near
// enough to be meant, of those that are allowed: CodeUnknownID, CodeNotSubscribed. It returns
// nil if both exist, or, where group is empty, the topic. Of groups, those that shows reports
// may be named, all of them where it is nil.
func Missing(ctx context.Context, s store.Store, topic, group string, allowed *eventhub.TopicRules, shows func(topic, group string) bool) error {
	life, err := Life(ctx, s, topic)
	if err != nil {
		return err
	}
	if life == 0 {
		var names []string
		for t, err := range store.AllTopics(ctx, s, "") {
			if err != nil || len(names) == comparedTopics {
				break // the names are a courtesy
			}
			if allowed.Allow(t.Name) {
				names = append(names, t.Name)
			}
		}
		return eventhub.Errorf(eventhub.CodeUnknownID, "topic %q does not exist%s", topic, naming.DidYouMean(topic, names))
	}
	if group == "" {
		return nil
	}
	groups, err := s.ListGroups(ctx, topic)
	if err != nil {
		return store.Failed(err, "list the groups of topic %q", topic)
	}
	var names []string
	for i := range groups {
		name := groups[i].Group
		if name == group {
			return nil
		}
		if shows == nil || shows(topic, name) {
			names = append(names, name)
		}
	}
	return eventhub.Errorf(eventhub.CodeNotSubscribed, "there is no group %q in topic %q%s", group, topic, naming.DidYouMean(group, names))
}

// MissingTopics is Missing for what a live tail names: topics, and patterns. Each pattern
// has to match an allowed topic.
func MissingTopics(ctx context.Context, s store.Store, patterns []eventhub.Pattern, allowed *eventhub.TopicRules) error {
	for _, p := range patterns {
		if !eventhub.IsPattern(p.String()) {
			if err := Missing(ctx, s, p.String(), "", allowed, nil); err != nil {
				return err
			}
			continue
		}
		found, err := Allowed(ctx, s, []eventhub.Pattern{p}, allowed)
		if err == nil && len(found) == 0 {
			err = eventhub.Errorf(eventhub.CodeUnknownID, "no topic matches %q", p.String())
		}
		if err != nil {
			return err
		}
	}
	return nil
}
