package memory

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"eventhub/store"
)

// DeleteTopic implements store.Topics.
func (s *Store) DeleteTopic(ctx context.Context, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return store.ErrClosed
	}
	t := s.topics[name]
	if t == nil {
		return fmt.Errorf("topic %q: %w", name, store.ErrNotFound)
	}
	for _, item := range t.events {
		s.bytes -= uint64(len(item.Record))
	}
	s.delays = slices.DeleteFunc(s.delays, func(p *delay) bool {
		if p.Topic != name {
			return false
		}
		s.bytes -= uint64(len(p.Record))
		return true
	})
	for _, l := range []links{s.effects, s.correlated} {
		l.forget(func(p store.Place) bool { return p.Topic == name })
	}
	s.keepFloor(name, t.last())
	delete(s.topics, name)
	return nil
}

// mostDeleted is how many names that are gone are kept, or as many as there may be topics
// where that is more.
const mostDeleted = 10_000

// keepFloor keeps which offsets were given under the name of a topic that goes. Where
// there are too many names, a quarter goes at once, those with the lowest floors; the
// highest of these holds for all names that are not kept from then on.
func (s *Store) keepFloor(name string, last uint64) {
	if last > s.baseFloor {
		s.deletedNames[strings.Clone(name)] = last
	}
	most := max(mostDeleted, s.maxTopics)
	if len(s.deletedNames) <= most {
		return
	}
	floors := slices.Sorted(maps.Values(s.deletedNames))
	s.baseFloor = floors[len(floors)-1-most*3/4]
	maps.DeleteFunc(s.deletedNames, func(_ string, floor uint64) bool { return floor <= s.baseFloor })
}

// Sweep implements store.Maintenance: nothing is left.
func (s *Store) Sweep(ctx context.Context) (store.Left, error) {
	if err := s.enter(ctx); err != nil {
		return store.Nothing, err
	}
	s.mu.RUnlock()
	return store.Nothing, nil
}

// forget forgets the places that are gone.
func (l links) forget(gone func(store.Place) bool) {
	for name, places := range l {
		if places = slices.DeleteFunc(places, gone); len(places) == 0 {
			delete(l, name)
		} else {
			l[name] = places
		}
	}
}
