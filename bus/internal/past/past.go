// Package past reads the log as it is in the store: which topics there are and in which
// life, where a start is in them, one event or all of a topic or a time, what an event
// has caused. It keeps nothing between two calls, takes no lock and starts no goroutine:
// what it returns was so at some moment of the call.
//
// A name may have another topic's events from one read to the next, because a topic can be
// deleted and created again. Whoever reads more than once compares the life of the topic
// before and after; Replay does.
//
// Its callers are the bus, which is the History of the hub by embedding one, and its other
// satellites. It imports the store's contract and the types of administration, and asks the
// caller for filters.
package past

import (
	"eventhub"
	"eventhub/internal/filter"
	"eventhub/store"
)

// History implements admin.History, and those methods of admin.Inspector that are about
// topics and events and not about groups.
type History struct {
	store   store.Store
	compile func(*eventhub.Filter) (*filter.Program, error)
}

// New returns the history that is in a store. compile makes programs of filters; it may
// share them.
func New(s store.Store, compile func(*eventhub.Filter) (*filter.Program, error)) *History {
	return &History{store: s, compile: compile}
}
