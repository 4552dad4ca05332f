package bus

import (
	"context"
	"slices"

	"eventhub"
)

// matching returns the topics that one of the patterns matches, in byte order, and
// those that a pattern without wildcards names, whether they exist or not.
func (b *Bus) matching(ctx context.Context, patterns []eventhub.Pattern) ([]string, error) {
	var names []string
	wild := false
	for _, p := range patterns {
		if eventhub.IsPattern(p.String()) {
			wild = true
		} else if !slices.Contains(names, p.String()) {
			names = append(names, p.String())
		}
	}
	exact := len(names)
	for after, more := "", wild; more; {
		topics, err := b.store.ListTopics(ctx, after, eventhub.MaxPage)
		if err != nil {
			return nil, storeError(err, "list the topics")
		}
		for _, t := range topics {
			after = t.Name
			if slices.Contains(names[:exact], t.Name) {
				continue
			}
			if slices.ContainsFunc(patterns, func(p eventhub.Pattern) bool { return p.Match(t.Name) }) {
				names = append(names, t.Name)
			}
		}
		more = len(topics) == eventhub.MaxPage
	}
	slices.Sort(names)
	return names, nil
}

// born tells those who wait for topics that do not exist yet of those that a commit
// has borne. It runs on the committer's goroutine, before the events are spread.
func (b *Bus) born(batch []*submission) {
	names := births(batch)
	if len(names) == 0 {
		return
	}
	b.tailsFollow(names)
	b.patterns.bear(names)
}
