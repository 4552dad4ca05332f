package memory

import (
	"context"
	"fmt"
	"slices"

	"eventhub/store"
)

// The keys of a topic are in memory anyway. So its index is nothing but whether reads may look
// at them, and how many calls of IndexKeys that takes.

// indexStep is through how many events one call of IndexKeys goes.
const indexStep = 64

// indexed refuses to read an index that is not ready.
func (t *topic) indexed(name string) error {
	if t.index != store.Indexed {
		return fmt.Errorf("the index of topic %q is %s: %w", name, t.index, store.ErrNotIndexed)
	}
	return nil
}

func (t *topic) changeIndex(ch store.IndexChange) {
	switch {
	case ch == store.StartIndex && t.index == store.NotIndexed:
		t.index, t.indexTo, t.indexNext = store.Indexing, t.last(), t.horizon
	case ch == store.DropIndex:
		t.index = store.NotIndexed
	}
}

// IndexKeys implements store.Indexes.
func (s *Store) IndexKeys(ctx context.Context, topic string, _ store.Pause) (p store.IndexProgress, done bool, err error) {
	if err := ctx.Err(); err != nil {
		return p, false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return p, false, store.ErrClosed
	}
	t := s.topics[topic]
	if t == nil || t.index != store.Indexing {
		return p, true, nil
	}
	from := min(t.horizon, t.indexTo+1)
	at := t.from(max(t.indexNext, from)) + indexStep
	t.indexNext = t.indexTo + 1
	if at < len(t.events) {
		t.indexNext = min(t.events[at].Offset, t.indexTo+1)
	}
	if t.indexNext > t.indexTo {
		t.index = store.Indexed
	}
	return store.IndexProgress{Done: t.indexNext - from, Total: t.indexTo + 1 - from}, t.index == store.Indexed, nil
}

// TopicsIndexed implements store.Indexes.
func (s *Store) TopicsIndexed(ctx context.Context, status store.IndexStatus) (names []string, err error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.mu.RUnlock()
	for name, t := range s.topics {
		if t.index == status {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}
