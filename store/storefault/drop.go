package storefault

import "context"

// DropTopic implements store.Topics.
func (s *Store) DropTopic(ctx context.Context, name string) error {
	if err := s.enter(DropTopic); err != nil {
		return err
	}
	return s.backend.DropTopic(ctx, name)
}

// Sweep implements store.Maintenance.
func (s *Store) Sweep(ctx context.Context) (bool, error) {
	if err := s.enter(Sweep); err != nil {
		return false, err
	}
	return s.backend.Sweep(ctx)
}
