package bustest

import (
	"context"
	"errors"

	"eventhub/store"
)

// Index has a store index the keys of a topic, and waits until it has. A topic that is not there
// has nothing to index.
func Index(ctx context.Context, s store.Store, topic string) error {
	if _, err := s.Topic(ctx, topic); errors.Is(err, store.ErrNotFound) {
		return nil
	}
	u := &store.Unit{Topics: []store.TopicChange{{Topic: topic, Index: store.StartIndex}}}
	err := s.Commit(ctx, []*store.Unit{u}, true)
	if err == nil {
		err = u.Err
	}
	for done := false; !done && err == nil; {
		_, done, err = s.IndexKeys(ctx, topic, nil)
	}
	return err
}
