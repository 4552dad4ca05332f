package bus

import (
	"eventhub"
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
