package memory

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"eventhub"
	"eventhub/store"
)

// links are the places of events by what they name, in the order of commits.
type links map[string][]store.Place

func (l links) add(name string, p store.Place) {
	if of := l[name]; len(of) > 0 && of[len(of)-1] == p {
		return // named twice by one event
	}
	l[strings.Clone(name)] = append(l[name], p)
}

func comparePlaces(a, b store.Place) int {
	return cmp.Or(strings.Compare(a.Topic, b.Topic), cmp.Compare(a.Offset, b.Offset))
}

// following returns up to limit places that come after a place, in their order.
func (l links) following(name string, after store.Place, limit int) []store.Place {
	var list []store.Place
	for _, p := range l[name] {
		if comparePlaces(p, after) > 0 {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, comparePlaces)
	return list[:min(len(list), max(limit, 0))]
}

// link notes what a new event names.
func (s *Store) link(a *store.Append) {
	p := store.Place{Topic: strings.Clone(a.Topic), Offset: a.Offset}
	for _, id := range a.CausedBy {
		s.effects.add(id, p)
	}
	if a.Correlation != "" {
		s.correlated.add(a.Correlation, p)
	}
}

// Places implements store.Links.
func (s *Store) Places(ctx context.Context, id string, limit int) ([]store.Place, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.mu.RUnlock()
	var list []store.Place
	for name, t := range s.topics {
		if offset, ok := t.ids[id]; ok {
			list = append(list, store.Place{Topic: name, Offset: offset})
		}
	}
	slices.SortFunc(list, comparePlaces)
	return list[:min(len(list), max(limit, 0))], nil
}

// Effects implements store.Links.
func (s *Store) Effects(ctx context.Context, id string, after store.Place, limit int) ([]store.Place, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.mu.RUnlock()
	return s.effects.following(id, after, limit), nil
}

// Correlated implements store.Links.
func (s *Store) Correlated(ctx context.Context, correlation string, after store.Place, limit int) ([]store.Place, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.mu.RUnlock()
	return s.correlated.following(correlation, after, limit), nil
}

// Checkpoint implements store.Maintenance: there is nothing that another store
// could be opened on.
func (s *Store) Checkpoint(ctx context.Context, _ string) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	s.mu.RUnlock()
	return store.ErrUnsupported
}

// checkLinks panics where an append names what no event can be called.
func checkLinks(a *store.Append) {
	for i, id := range a.CausedBy {
		if id == "" || len(id) > eventhub.MaxIDBytes || strings.Contains(id, "\x00") {
			misuse("append to topic %q of id %q: CausedBy[%d] is %q", a.Topic, a.ID, i, id)
		}
	}
	if c := a.Correlation; len(c) > eventhub.MaxCorrelationBytes || strings.Contains(c, "\x00") {
		misuse("append to topic %q of id %q: Correlation is %q", a.Topic, a.ID, c)
	}
	if a.KeepTime < 0 {
		misuse("append to topic %q of id %q: the time to keep is %d", a.Topic, a.ID, a.KeepTime)
	}
}
