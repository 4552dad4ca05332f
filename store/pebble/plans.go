package pebble

import (
	"context"

	"eventhub/store"
)

// Planned implements store.Schedule.
func (s *Store) Planned(context.Context, int64, uint64, int64, int, int) ([]store.Planned, error) {
	return nil, nil
}

// FindPlan implements store.Schedule.
func (s *Store) FindPlan(context.Context, string, string) (store.Planned, error) {
	return store.Planned{}, store.ErrNotFound
}

// ListPatterns implements store.Groups.
func (s *Store) ListPatterns(context.Context) ([]store.PatternInfo, error) { return nil, nil }
