package store

import (
	"context"
	"iter"

	"eventhub"
)

// AllTopics returns the topics with names after the given one, in byte order, read a page
// at a time as they are asked for. A page that can not be read is the last pair, with its
// error.
func AllTopics(ctx context.Context, from Topics, after string) iter.Seq2[TopicInfo, error] {
	return func(yield func(TopicInfo, error) bool) {
		for {
			page, err := from.ListTopics(ctx, after, eventhub.MaxPage)
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
			if len(page) < eventhub.MaxPage {
				return
			}
		}
	}
}
