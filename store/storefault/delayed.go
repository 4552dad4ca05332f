package storefault

import (
	"context"

	"eventhub/store"
)

// Delayed implements store.Schedule.
func (s *Store) Delayed(ctx context.Context, afterAt int64, afterSeq uint64, until int64, limit, maxBytes int) (got []store.Delayed, err error) {
	err = s.enter(Call{Op: Delayed}, func() error {
		got, err = s.backend.Delayed(ctx, afterAt, afterSeq, until, limit, maxBytes)
		return err
	})
	return got, err
}

// FindDelayed implements store.Schedule.
func (s *Store) FindDelayed(ctx context.Context, topic, id string) (got store.Delayed, err error) {
	err = s.enter(Call{Op: FindDelayed, Topic: topic}, func() error {
		got, err = s.backend.FindDelayed(ctx, topic, id)
		return err
	})
	return got, err
}

// ListPatterns implements store.Groups.
func (s *Store) ListPatterns(ctx context.Context) (got []store.PatternInfo, err error) {
	err = s.enter(Call{Op: ListPatterns}, func() error {
		got, err = s.backend.ListPatterns(ctx)
		return err
	})
	return got, err
}
