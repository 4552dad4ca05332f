package deadletter

import (
	"context"
	"encoding/json"
	"errors"

	"eventhub/admin"
	"eventhub/store"
)

const (
	// neededMarks and neededBytes bound what one call of FirstNeeded reads.
	neededMarks = 1000
	neededBytes = 1 << 20
)

// FirstNeeded returns the offset of the first mark from an offset on whose dead letter is
// kept; where there is none, the one after the last mark. It may end before that, with done
// false, where it had much to read: first is where to go on.
// What is no mark is needed by nobody.
func (l *Letters) FirstNeeded(ctx context.Context, from uint64) (first uint64, done bool, err error) {
	var batch store.Batch
	if err := l.store.Read(ctx, admin.RedriveTopic, from, neededMarks, neededBytes, &batch); err != nil {
		return from, false, store.Failed(err, "read topic %q at offset %d", admin.RedriveTopic, from)
	}
	for _, item := range batch.Items {
		needed, err := l.isNeeded(ctx, item)
		if needed || err != nil {
			return item.Offset, err == nil, err
		}
		from = item.Offset + 1
	}
	return from, len(batch.Items) == 0, nil
}

// isNeeded reports whether the dead letter of a mark is kept.
func (l *Letters) isNeeded(ctx context.Context, item store.Item) (bool, error) {
	var mark admin.RedriveMark
	e, err := item.Record.Event(item.Offset)
	if err != nil || json.Unmarshal(e.Payload, &mark) != nil || mark.DeadLetterID == "" || mark.DeadLetter.Topic == "" {
		return false, nil
	}
	switch _, err := l.store.Find(ctx, mark.DeadLetter.Topic, mark.DeadLetterID); {
	case errors.Is(err, store.ErrNotFound):
		return false, nil
	case err != nil:
		return false, store.Failed(err, "find dead letter %q", mark.DeadLetterID)
	}
	return true, nil
}
