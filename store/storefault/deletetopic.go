package storefault

import (
	"context"

	"eventhub/store"
)

// DeleteTopic implements store.Topics.
func (s *Store) DeleteTopic(ctx context.Context, name string) error {
	return s.enter(Call{Op: DeleteTopic, Topic: name}, func() error { return s.backend.DeleteTopic(ctx, name) })
}

// Sweep implements store.Maintenance.
func (s *Store) Sweep(ctx context.Context) (left store.Left, err error) {
	err = s.enter(Call{Op: Sweep}, func() error {
		left, err = s.backend.Sweep(ctx)
		return err
	})
	return left, err
}

// Measure implements store.Retention.
func (s *Store) Measure(ctx context.Context, topic string, from uint64, until store.Usage) (u store.Usage, next uint64, done bool, err error) {
	err = s.enter(Call{Op: Measure, Topic: topic}, func() error {
		u, next, done, err = s.backend.Measure(ctx, topic, from, until)
		return err
	})
	return u, next, done, err
}

// Compact implements store.Retention.
func (s *Store) Compact(ctx context.Context, topic string) (u store.Usage, done bool, err error) {
	err = s.enter(Call{Op: Compact, Topic: topic}, func() error {
		u, done, err = s.backend.Compact(ctx, topic)
		return err
	})
	return u, done, err
}
