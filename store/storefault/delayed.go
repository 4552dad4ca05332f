package storefault

import (
	"context"

	"eventhub/store"
)

// Delayed implements store.Schedule.
func (s *Store) Delayed(ctx context.Context, afterAt int64, afterSeq uint64, until int64, limit, maxBytes int) ([]store.Delayed, error) {
	if err := s.enter(Delayed); err != nil {
		return nil, err
	}
	return s.backend.Delayed(ctx, afterAt, afterSeq, until, limit, maxBytes)
}

// FindDelayed implements store.Schedule.
func (s *Store) FindDelayed(ctx context.Context, topic, id string) (store.Delayed, error) {
	if err := s.enter(FindDelayed); err != nil {
		return store.Delayed{}, err
	}
	return s.backend.FindDelayed(ctx, topic, id)
}

// ListPatterns implements store.Groups.
func (s *Store) ListPatterns(ctx context.Context) ([]store.PatternInfo, error) {
	if err := s.enter(ListPatterns); err != nil {
		return nil, err
	}
	return s.backend.ListPatterns(ctx)
}
