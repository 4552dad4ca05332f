package storefault

import (
	"context"

	"eventhub/store"
)

// Planned implements store.Schedule.
func (s *Store) Planned(ctx context.Context, afterAt int64, afterSeq uint64, until int64, limit, maxBytes int) ([]store.Planned, error) {
	if err := s.enter(Planned); err != nil {
		return nil, err
	}
	return s.backend.Planned(ctx, afterAt, afterSeq, until, limit, maxBytes)
}

// FindPlan implements store.Schedule.
func (s *Store) FindPlan(ctx context.Context, topic, id string) (store.Planned, error) {
	if err := s.enter(FindPlan); err != nil {
		return store.Planned{}, err
	}
	return s.backend.FindPlan(ctx, topic, id)
}

// ListPatterns implements store.Groups.
func (s *Store) ListPatterns(ctx context.Context) ([]store.PatternInfo, error) {
	if err := s.enter(ListPatterns); err != nil {
		return nil, err
	}
	return s.backend.ListPatterns(ctx)
}
