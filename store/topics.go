package store

import (
	"context"
	"iter"

	"eventhub/internal/listing"
)

// TopicsPage is how many topics AllTopics reads at a time.
const TopicsPage = 1000

// AllTopics returns the topics with names after the given one, in byte order, read a page
// at a time as they are asked for. A page that can not be read is the last pair, with its
// error.
func AllTopics(ctx context.Context, from Topics, after string) iter.Seq2[TopicInfo, error] {
	return listing.All(TopicsPage, func(last *TopicInfo) ([]TopicInfo, error) {
		if last != nil {
			after = last.Name
		}
		return from.ListTopics(ctx, after, TopicsPage)
	})
}
