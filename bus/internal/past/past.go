// Package past reads the log as it is in the store: which topics there are and in which
// life, where a start is in them, one event or all of a topic or a time, what an event
// has caused. It keeps nothing between two calls, takes no lock and starts no goroutine:
// what it returns was so at some moment of the call. The state by key is read a page at a time,
// and a page says where the next one begins.
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
	"context"
	"errors"

	"eventhub"
	"eventhub/internal/filter"
	"eventhub/store"
)

// History implements admin.History, and those methods of admin.Inspector that are about
// topics and events and not about groups.
type History struct {
	store   store.Store
	compile func(*eventhub.Filter) (*filter.Program, error)
	indexed func(ctx context.Context, topic string) error
}

// New returns the history that is in a store. compile makes programs of filters; it may
// share them. indexed has the store index the keys of a topic, and returns when it has.
func New(s store.Store, compile func(*eventhub.Filter) (*filter.Program, error), indexed func(ctx context.Context, topic string) error) *History {
	return &History{store: s, compile: compile, indexed: indexed}
}

// withIndex calls what reads the key index of a topic, once it is there, and again where it was
// dropped meanwhile: if it is not to be there, indexed says so.
func (h *History) withIndex(ctx context.Context, topic string, read func() error) error {
	for {
		if err := h.indexed(ctx, topic); err != nil {
			return err
		}
		if err := read(); !errors.Is(err, store.ErrNotIndexed) {
			return err
		}
	}
}
