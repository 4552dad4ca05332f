package bus

import (
	"context"
	"encoding/json"
	"errors"

	"eventhub"
	"eventhub/bus/internal/snapshots"
	"eventhub/store"
)

// findCopies finds out whether snapshots of the topic, or their dead letters, may have a copy of what is
// erased, and has them removed then, each life of their topics once: what is written later was read after
// the erasure.
func (e *erasure) findCopies(ctx context.Context) error {
	if eventhub.HubOnlyTopic(e.topic) {
		return nil
	}
	e.erases = e.erases || len(e.events) > 0
	if !e.erases && e.query.Apply {
		// Retention may just have removed what a snapshot that is being written has still read.
		if err := e.bus.snapshots.CutShort(ctx, e.topic); err != nil {
			return err
		}
	}
	of := eventhub.SnapshotTopic(e.topic)
	var copies []store.TopicChange
	copied := e.erases
	for _, topic := range []string{of, eventhub.DeadLetterTopic(of)} {
		info, is, err := e.toEmpty(ctx, topic)
		if err != nil {
			return err
		}
		if !is {
			continue
		}
		// Snapshots keep for a while what retention has removed, and dead letters for good.
		if !copied {
			if copied, err = e.isCopied(ctx, info); err != nil {
				return err
			}
		}
		copies = append(copies, store.TopicChange{Topic: topic, Life: info.Life, Horizon: eventhub.MaxOffset, ForgetIDs: true})
	}
	if len(copies) == 0 || !copied {
		return nil
	}
	status, err := e.bus.snapshots.Status(ctx, e.topic)
	if err != nil {
		return storeError(err, "look up the snapshots of topic %q", e.topic)
	}
	e.erases = true
	e.copies, e.snapshots = copies, max(len(status.Kept), 1) // also one that was cut short
	return nil
}

// toEmpty reports whether a topic has events, and was not emptied by this erasure.
func (e *erasure) toEmpty(ctx context.Context, topic string) (info store.TopicInfo, is bool, err error) {
	info, err = e.bus.store.Topic(ctx, topic)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return info, false, nil
	case err != nil:
		return info, false, storeError(err, "look up topic %q", topic)
	}
	return info, info.Horizon <= info.Head && e.cleared[topic] != info.Life, nil
}

// isCopied reports whether a row of a snapshot, or one that a dead letter holds, has the event, or one of
// the key.
func (e *erasure) isCopied(ctx context.Context, in store.TopicInfo) (bool, error) {
	var batch store.Batch
	for from := in.Horizon; from <= in.Head; {
		batch.Reset()
		if err := e.bus.store.Read(ctx, in.Name, from, logPage, logPageBytes, &batch); err != nil {
			return false, storeError(err, "read the snapshots of topic %q", e.topic)
		}
		if len(batch.Items) == 0 {
			return false, nil
		}
		for _, item := range batch.Items {
			from = item.Offset + 1
			if len(item.Record.Key()) == 0 {
				continue // a marker
			}
			row, err := rowOf(in.Name, item)
			if err != nil || e.isIn(&row) {
				return err == nil, err
			}
		}
	}
	return false, nil
}

// isIn reports whether a row has what is to be erased.
func (e *erasure) isIn(row *snapshots.Row) bool {
	switch q := e.query; {
	case q.Key != "":
		return row.Key == q.Key || row.EventKey == q.Key
	case q.Offset != 0:
		return row.Offset == q.Offset
	default:
		return row.ID == q.ID
	}
}

// rowOf returns the row that an event of a snapshot topic, or of its dead letters, has.
func rowOf(topic string, item store.Item) (row snapshots.Row, err error) {
	event, err := item.Record.Event(item.Offset)
	if err != nil {
		return row, err
	}
	payload := event.Payload
	if eventhub.IsDeadLetterTopic(topic) {
		var letter struct {
			Event struct {
				Payload json.RawMessage `json:"payload"`
			} `json:"event"`
		}
		if err := json.Unmarshal(payload, &letter); err != nil {
			return row, err
		}
		payload = letter.Event.Payload
	}
	err = json.Unmarshal(payload, &row)
	return row, err
}
