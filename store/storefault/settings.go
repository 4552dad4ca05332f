package storefault

import (
	"context"

	"eventhub/store"
)

// ListSettings implements store.Topics.
func (s *Store) ListSettings(ctx context.Context) (got []store.SettingInfo, err error) {
	err = s.enter(Call{Op: ListSettings}, func() error {
		got, err = s.backend.ListSettings(ctx)
		return err
	})
	return got, err
}
