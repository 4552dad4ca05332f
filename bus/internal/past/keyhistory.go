package past

import (
	"context"
	"math"

	"eventhub"
	"eventhub/admin"
	"eventhub/store"
)

// pageCauses bounds how many causes are looked up for a page, but for those of its first change.
const pageCauses = 1000

// KeyHistory implements admin.History.
func (h *History) KeyHistory(ctx context.Context, q admin.KeyHistoryQuery) (admin.KeyHistoryPage, error) {
	return h.KeyHistoryAmong(ctx, q, func(string) bool { return true })
}

// KeyHistoryAmong is KeyHistory that shows the causes in some topics alone. It reads a page, one
// event more, since each change has what was before it, and holds nothing between two.
func (h *History) KeyHistoryAmong(ctx context.Context, q admin.KeyHistoryQuery, shows func(topic string) bool) (page admin.KeyHistoryPage, err error) {
	if err := checkKeyHistory(&q); err != nil {
		return page, err
	}
	info, err := h.stateTopic(ctx, q.Topic, 0)
	if err != nil {
		return page, err
	}
	page.Life = info.Life
	var batch store.Batch
	more, err := h.readKey(ctx, &q, &batch)
	if err != nil {
		return admin.KeyHistoryPage{}, err
	}
	page.Horizon, page.Compacted, page.Tombstones = batch.Horizon, batch.Compacted, batch.Tombstones
	shown := len(batch.Items)
	if more || shown > q.Limit {
		shown-- // it is what was before the last one
		more = true
	}
	finder := causeFinder{history: h, shows: shows, known: make(map[string]admin.Cause)}
	for i, item := range batch.Items[:shown] {
		c := admin.KeyChange{Event: item}
		if i+1 < len(batch.Items) {
			c.Before = batch.Items[i+1]
		} else {
			c.BeforeGone = batch.Horizon > 1 || batch.Compacted > 0
		}
		isWhole, err := finder.find(ctx, &c, i > 0)
		if err != nil {
			return admin.KeyHistoryPage{}, err
		}
		if !isWhole {
			more = true
			break
		}
		page.Changes = append(page.Changes, c)
	}
	if more {
		page.Next = page.Changes[len(page.Changes)-1].Event.Offset
	}
	if err := h.isWhole(ctx, &stretch{topic: q.Topic, life: info.Life}); err != nil {
		return admin.KeyHistoryPage{}, err
	}
	return page, nil
}

func checkKeyHistory(q *admin.KeyHistoryQuery) error {
	if err := eventhub.ValidateStoredTopic(q.Topic); err != nil {
		return err
	}
	switch {
	case q.Key == "":
		return eventhub.Errorf(eventhub.CodeBadRequest, "key is empty")
	case len(q.Key) > eventhub.MaxKeyBytes:
		return eventhub.Errorf(eventhub.CodeBadRequest, "key %.48q… has %d bytes; at most %d are allowed", q.Key, len(q.Key), eventhub.MaxKeyBytes)
	case q.Before > eventhub.MaxOffset:
		return eventhub.Errorf(eventhub.CodeBadRequest, "before is %d; at most %d is allowed", q.Before, uint64(eventhub.MaxOffset))
	}
	return CheckLimit(q.Limit)
}

// readKey reads the events of a key, one more than the page has changes, and reports whether
// there may be more yet. Then there are two at least.
func (h *History) readKey(ctx context.Context, q *admin.KeyHistoryQuery, batch *store.Batch) (more bool, err error) {
	room, measured, before := stateBytes, 0, q.Before
	for calls := 1; ; calls++ {
		err = h.withIndex(ctx, q.Topic, func() (err error) {
			before, err = h.store.KeyEvents(ctx, q.Topic, q.Key, before, q.Limit+1-len(batch.Items), room, batch)
			if err != nil {
				err = store.Failed(err, "read the history of a key in topic %q", q.Topic)
			}
			return err
		})
		if err != nil {
			return false, err
		}
		for ; measured < len(batch.Items); measured++ {
			room -= len(batch.Items[measured].Record)
		}
		n := len(batch.Items)
		if before == 0 || n == q.Limit+1 || n > 1 && (room <= 0 || calls >= stateCalls) {
			return before != 0, nil
		}
	}
}

// causeFinder looks up where causes are, each once.
type causeFinder struct {
	history *History
	shows   func(topic string) bool
	known   map[string]admin.Cause
}

// find fills in the causes of a change. With bounded it may give up: it reports whether the
// change has all of them.
func (f *causeFinder) find(ctx context.Context, c *admin.KeyChange, bounded bool) (isWhole bool, err error) {
	e, err := c.Event.Event()
	if err != nil {
		return false, store.Failed(err, "read the event at offset %d", c.Event.Offset)
	}
	for _, id := range e.CausedBy {
		cause, ok := f.known[id]
		if !ok {
			if bounded && len(f.known) >= pageCauses {
				return false, nil
			}
			if cause, err = f.look(ctx, id); err != nil {
				return false, err
			}
			f.known[id] = cause
		}
		c.Causes = append(c.Causes, cause)
	}
	return true, nil
}

func (f *causeFinder) look(ctx context.Context, id string) (admin.Cause, error) {
	places, err := f.history.store.Places(ctx, id, math.MaxInt)
	if err != nil {
		return admin.Cause{}, store.Failed(err, "find event %q", id)
	}
	for _, p := range places {
		if f.shows(p.Topic) {
			return admin.Cause{ID: id, Topic: p.Topic, Offset: p.Offset}, nil
		}
	}
	return admin.Cause{ID: id, Hidden: len(places) > 0, Missing: len(places) == 0}, nil
}
