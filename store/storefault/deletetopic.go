package storefault

import "context"

// DeleteTopic implements store.Topics.
func (s *Store) DeleteTopic(ctx context.Context, name string) error {
	return s.enter(Call{Op: DeleteTopic, Topic: name}, func() error { return s.backend.DeleteTopic(ctx, name) })
}

// Sweep implements store.Maintenance.
func (s *Store) Sweep(ctx context.Context) (more bool, err error) {
	err = s.enter(Call{Op: Sweep}, func() error {
		more, err = s.backend.Sweep(ctx)
		return err
	})
	return more, err
}
