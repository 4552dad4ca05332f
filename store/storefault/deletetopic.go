package storefault

import "context"

// DeleteTopic implements store.Topics.
func (s *Store) DeleteTopic(ctx context.Context, name string) error {
	if err := s.enter(DeleteTopic); err != nil {
		return err
	}
	return s.backend.DeleteTopic(ctx, name)
}

// Sweep implements store.Maintenance.
func (s *Store) Sweep(ctx context.Context) (bool, error) {
	if err := s.enter(Sweep); err != nil {
		return false, err
	}
	return s.backend.Sweep(ctx)
}
