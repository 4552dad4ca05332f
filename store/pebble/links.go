package pebble

import (
	"context"

	"eventhub/store"
)

// Places implements store.Links.
func (s *Store) Places(context.Context, string, int) ([]store.Place, error) {
	return nil, store.ErrUnsupported
}

// Effects implements store.Links.
func (s *Store) Effects(context.Context, string, store.Place, int) ([]store.Place, error) {
	return nil, store.ErrUnsupported
}

// Correlated implements store.Links.
func (s *Store) Correlated(context.Context, string, store.Place, int) ([]store.Place, error) {
	return nil, store.ErrUnsupported
}

// Checkpoint implements store.Maintenance.
func (s *Store) Checkpoint(context.Context, string) error { return store.ErrUnsupported }
