package admin

import (
	"context"
	"iter"

	"eventhub/internal/listing"
)

// TopicLister is the part of an [Inspector] that AllTopics needs.
type TopicLister interface {
	Topics(ctx context.Context, after string, limit int) ([]TopicInfo, error)
}

// AllTopics returns the topics with names after the given one, in byte order, read a page
// at a time as they are asked for. A page that cannot be read is the last pair, with its
// error.
func AllTopics(ctx context.Context, from TopicLister, after string) iter.Seq2[TopicInfo, error] {
	return listing.All(MaxPage, func(last *TopicInfo) ([]TopicInfo, error) {
		if last != nil {
			after = last.Topic
		}
		return from.Topics(ctx, after, MaxPage)
	})
}
