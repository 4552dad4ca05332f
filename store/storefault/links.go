package storefault

import (
	"context"

	"eventhub/store"
)

// Places implements store.Links.
func (s *Store) Places(ctx context.Context, id string, limit int) (got []store.Place, err error) {
	err = s.enter(Call{Op: Places}, func() error {
		got, err = s.backend.Places(ctx, id, limit)
		return err
	})
	return got, err
}

// Effects implements store.Links.
func (s *Store) Effects(ctx context.Context, id string, after store.Place, limit int) (got []store.Place, err error) {
	err = s.enter(Call{Op: Effects}, func() error {
		got, err = s.backend.Effects(ctx, id, after, limit)
		return err
	})
	return got, err
}

// Correlated implements store.Links.
func (s *Store) Correlated(ctx context.Context, correlation string, after store.Place, limit int) (got []store.Place, err error) {
	err = s.enter(Call{Op: Correlated}, func() error {
		got, err = s.backend.Correlated(ctx, correlation, after, limit)
		return err
	})
	return got, err
}

// Checkpoint implements store.Maintenance.
func (s *Store) Checkpoint(ctx context.Context, dir string) error {
	return s.enter(Call{Op: Checkpoint}, func() error { return s.backend.Checkpoint(ctx, dir) })
}
