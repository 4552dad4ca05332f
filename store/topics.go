package store

import (
	"context"
	"iter"
)

// TopicsPage is how many topics AllTopics reads at a time.
const TopicsPage = 1000

// AllTopics returns the topics with names after the given one, in byte order, read a page
// at a time as they are asked for. A page that can not be read is the last pair, with its
// error.
func AllTopics(ctx context.Context, from Topics, after string) iter.Seq2[TopicInfo, error] {
	return func(yield func(TopicInfo, error) bool) {
		for {
			page, err := from.ListTopics(ctx, after, TopicsPage)
			if err != nil {
				yield(TopicInfo{}, err)
				return
			}
			for _, t := range page {
				if !yield(t, nil) {
					return
				}
				after = t.Name
			}
			if len(page) < TopicsPage {
				return
			}
		}
	}
}
