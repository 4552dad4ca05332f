package storefault

import (
	"context"

	"eventhub/store"
)

// IndexKeys implements store.Indexes.
func (s *Store) IndexKeys(ctx context.Context, topic string, pause store.Pause) (p store.IndexProgress, done bool, err error) {
	err = s.enter(Call{Op: IndexKeys, Topic: topic}, func() error {
		p, done, err = s.backend.IndexKeys(ctx, topic, pause)
		return err
	})
	return p, done, err
}

// TopicsIndexed implements store.Indexes.
func (s *Store) TopicsIndexed(ctx context.Context, status store.IndexStatus) (names []string, err error) {
	err = s.enter(Call{Op: TopicsIndexed}, func() error {
		names, err = s.backend.TopicsIndexed(ctx, status)
		return err
	})
	return names, err
}
