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

// ListProducers implements store.Producers.
func (s *Store) ListProducers(ctx context.Context) (got []store.ProducerInfo, err error) {
	err = s.enter(Call{Op: ListProducers}, func() error {
		got, err = s.backend.ListProducers(ctx)
		return err
	})
	return got, err
}
