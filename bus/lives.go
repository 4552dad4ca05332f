package bus

import (
	"eventhub"
	"eventhub/bus/internal/commit"
	"eventhub/store"
)

// A life of a topic has a number (store.TopicInfo.Life), and what is done for the sake
// of a life names it: the groups that patterns and lists bring, all that a group writes,
// a replay. When that life is over it comes to nothing, whatever has the name by then.
// What a client asks for by the name goes by the name.

// errDeleted says that a life of a topic is over. store.ErrGone is in its chain.
func errDeleted(topic string) error {
	return eventhub.Wrap(eventhub.CodeNotSubscribed, store.ErrGone, "topic %q was deleted", topic)
}

// topicsCreated notifies those who wait for topics that do not exist yet of the topics that
// a commit has created, by whatever part of it, and of each life once. It runs where
// committed does, before the events are handed on.
func (b *Bus) topicsCreated(batch []*commit.Request) {
	created := createdBy(batch)
	if len(created) == 0 {
		return
	}
	b.tails.TopicsCreated(created)
	b.patterns.topicsCreated(created)
}

// createdBy returns the topics that the batch has created.
func createdBy(batch []*commit.Request) (created []store.TopicLife) {
	for _, s := range batch {
		for i := range s.Units {
			created = append(created, s.Units[i].Created...)
		}
	}
	return created
}
