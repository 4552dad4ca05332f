package deadletter

import (
	"context"
	"errors"

	"eventhub"
	"eventhub/store"
)

// Original says which event a dead letter holds.
type Original struct {
	Topic, ID string
	Offset    uint64
}

// OriginalOf returns which event of a topic a dead letter holds; ok is false for what is no
// dead letter of that topic.
func OriginalOf(topic string, item store.Item) (o Original, ok bool, err error) {
	p, _, err := payloadOf(eventhub.DeadLetterTopic(topic), item)
	if p == nil || err != nil {
		return o, false, err
	}
	return Original{Topic: p.Topic, ID: p.Event.ID, Offset: p.Offset}, true, nil
}

// Holding calls visit with the dead letters that hold the event of an id, those of a topic.
func (l *Letters) Holding(ctx context.Context, topic, id string, visit func(offset uint64)) error {
	letters := eventhub.DeadLetterTopic(topic)
	for after := (store.Place{Topic: letters}); ; {
		places, err := l.store.Effects(ctx, id, after, mostFollowed)
		if err != nil {
			return store.Failed(err, "find the dead letters of event %q", id)
		}
		for _, after = range places {
			if after.Topic != letters {
				return nil
			}
			item, err := l.at(ctx, after)
			if errors.Is(err, store.ErrNotFound) {
				continue
			}
			if err != nil {
				return err
			}
			if o, ok, err := OriginalOf(topic, item); err != nil {
				return err
			} else if ok && o.ID == id {
				visit(after.Offset)
			}
		}
		if len(places) < mostFollowed {
			return nil
		}
	}
}

// at returns the event at a place, or ErrNotFound.
func (l *Letters) at(ctx context.Context, place store.Place) (store.Item, error) {
	var batch store.Batch
	if err := l.store.Read(ctx, place.Topic, place.Offset, 1, 0, &batch); err != nil {
		return store.Item{}, store.Failed(err, "read topic %q at offset %d", place.Topic, place.Offset)
	}
	if len(batch.Items) == 0 || batch.Items[0].Offset != place.Offset {
		return store.Item{}, store.ErrNotFound
	}
	return batch.Items[0], nil
}
