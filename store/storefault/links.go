package storefault

import (
	"context"

	"eventhub/store"
)

// Places implements store.Links.
func (s *Store) Places(ctx context.Context, id string, limit int) ([]store.Place, error) {
	if err := s.enter(Places); err != nil {
		return nil, err
	}
	return s.backend.Places(ctx, id, limit)
}

// Effects implements store.Links.
func (s *Store) Effects(ctx context.Context, id string, after store.Place, limit int) ([]store.Place, error) {
	if err := s.enter(Effects); err != nil {
		return nil, err
	}
	return s.backend.Effects(ctx, id, after, limit)
}

// Correlated implements store.Links.
func (s *Store) Correlated(ctx context.Context, correlation string, after store.Place, limit int) ([]store.Place, error) {
	if err := s.enter(Correlated); err != nil {
		return nil, err
	}
	return s.backend.Correlated(ctx, correlation, after, limit)
}

// Checkpoint implements store.Maintenance.
func (s *Store) Checkpoint(ctx context.Context, dir string) error {
	if err := s.enter(Checkpoint); err != nil {
		return err
	}
	return s.backend.Checkpoint(ctx, dir)
}
