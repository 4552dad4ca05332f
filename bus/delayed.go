package bus

import (
	"context"
	"errors"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/past"
	"eventhub/store"
)

// Cancel implements admin.Scheduler.
func (b *Bus) Cancel(ctx context.Context, topic, id string) error {
	if err := eventhub.ValidateTopic(topic); err != nil {
		return err
	}
	if err := eventhub.ValidateID(id); err != nil {
		return err
	}
	return b.mover.Cancel(ctx, topic, id)
}

// Scheduled implements admin.Scheduler.
func (b *Bus) Scheduled(ctx context.Context, q admin.ScheduleQuery) ([]admin.Scheduled, error) {
	if q.Limit == 0 {
		q.Limit = admin.MaxPage
	}
	if err := past.CheckLimit(q.Limit); err != nil {
		return nil, err
	}
	if q.Topic != "" {
		if err := eventhub.ValidateTopic(q.Topic); err != nil {
			return nil, err
		}
	}
	if q.AfterAt < 0 {
		return nil, eventhub.Errorf(eventhub.CodeBadRequest, "the place to go on from is %d; epoch milliseconds are not negative", q.AfterAt)
	}
	list, err := b.mover.List(ctx, q)
	if err != nil {
		return nil, storeError(err, "read the scheduled events")
	}
	return list, nil
}

// Recall implements eventhub.Recaller. It asks for delayed events first: one that is not there any more
// is in the log.
func (b *Bus) Recall(ctx context.Context, topic, id string) (eventhub.Record, error) {
	d, err := b.store.FindDelayed(ctx, topic, id)
	if err == nil {
		return d.Record, nil
	}
	if !errors.Is(err, store.ErrNotFound) {
		return nil, storeError(err, "find event %q of topic %q", id, topic)
	}
	return b.history.Recall(ctx, topic, id)
}
