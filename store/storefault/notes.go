package storefault

import (
	"context"

	"eventhub/store"
)

// ListNotes implements store.Notes.
func (s *Store) ListNotes(ctx context.Context) (got []store.NoteInfo, err error) {
	err = s.enter(Call{Op: ListNotes}, func() error {
		got, err = s.backend.ListNotes(ctx)
		return err
	})
	return got, err
}
