package bus

import (
	"context"
	"encoding/json"
	"errors"
	"math"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/deadletter"
	"eventhub/bus/internal/past"
	"eventhub/bus/internal/publish"
	"eventhub/store"
)

// Single events are erased in steps: what a step finds is removed in units of at most
// store.MaxErase events, and the first one has the mark that says who did it. A step keeps
// nothing: what it has erased is not found again, so the same again goes on.

// erasure is what one call of Erase has found.
type erasure struct {
	bus    *Bus
	topic  string
	query  *admin.EraseQuery
	limit  int
	info   store.TopicInfo
	events []uint64 // offsets in the topic
	// letters are offsets in the topic of dead letters, which has that life, 0 where there is
	// none.
	letters   []uint64
	life      uint64
	scheduled []store.Cancel
	more      bool
}

// Erase implements admin.Remover.
func (b *Bus) Erase(ctx context.Context, topic string, q admin.EraseQuery) (admin.EraseResult, error) {
	result := admin.EraseResult{Topic: topic}
	if err := q.Validate(); err != nil {
		return result, err
	}
	if q.Limit == 0 {
		q.Limit = admin.MaxErase
	}
	e := &erasure{bus: b, topic: topic, query: &q, limit: q.Limit}
	if err := e.find(ctx); err != nil {
		return result, err
	}
	result = admin.EraseResult{Topic: topic, Events: len(e.events), DeadLetters: len(e.letters), Scheduled: len(e.scheduled), More: e.more}
	if result.Total() == 0 {
		return result, eventhub.Errorf(eventhub.CodeUnknownID, "there is no %s in topic %q, and nothing else of it to erase", q.String(), topic)
	}
	if !q.Apply {
		return result, nil
	}
	result.Applied = true
	return e.apply(ctx, result)
}

// find looks for what is to be erased, as far as the limit allows.
func (e *erasure) find(ctx context.Context) (err error) {
	if e.info, err = e.bus.topicToRemoveFrom(ctx, e.topic); err != nil {
		return err
	}
	letters, err := e.bus.store.Topic(ctx, eventhub.DeadLetterTopic(e.topic))
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return storeError(err, "look up the dead letters of topic %q", e.topic)
	}
	e.life = letters.Life
	if e.query.Key != "" {
		return e.findKey(ctx, letters.Head)
	}
	return e.findOne(ctx)
}

// takes reports whether there is room for one more, and takes it.
func (e *erasure) takes() bool {
	if e.limit == 0 {
		e.more = true
		return false
	}
	e.limit--
	return true
}

func (e *erasure) findOne(ctx context.Context) error {
	id, s := e.query.ID, e.bus.store
	if id == "" {
		item, err := past.First(ctx, s, e.topic, e.query.Offset)
		if err != nil {
			return err
		}
		if item.Offset != e.query.Offset {
			return nil
		}
		id = string(item.Record.ID())
	}
	switch offset, err := s.Find(ctx, e.topic, id); {
	case err == nil && e.takes():
		e.events = append(e.events, offset)
	case err != nil && !errors.Is(err, store.ErrNotFound):
		return storeError(err, "find event %q of topic %q", id, e.topic)
	}
	switch d, err := s.FindDelayed(ctx, e.topic, id); {
	case err == nil && e.takes():
		e.scheduled = append(e.scheduled, store.Cancel{Topic: e.topic, ID: id, Seq: d.Seq})
	case err != nil && !errors.Is(err, store.ErrNotFound):
		return storeError(err, "find event %q of topic %q", id, e.topic)
	}
	return e.bus.letters.Holding(ctx, e.topic, id, func(offset uint64) {
		if e.takes() {
			e.letters = append(e.letters, offset)
		}
	})
}

// findKey goes from one event of the key to the one before it. Its dead letters have the same
// key.
func (e *erasure) findKey(ctx context.Context, letters uint64) error {
	err := e.walk(ctx, e.topic, e.info.Head, func(item store.Item) error {
		if e.takes() {
			e.events = append(e.events, item.Offset)
		}
		return nil
	})
	if err == nil {
		err = e.walk(ctx, eventhub.DeadLetterTopic(e.topic), letters, func(item store.Item) error {
			_, is, err := deadletter.OriginalOf(e.topic, item)
			if is && e.takes() {
				e.letters = append(e.letters, item.Offset)
			}
			return err
		})
	}
	if err == nil {
		err = e.findScheduled(ctx)
	}
	return err
}

// walk calls visit with the events of the key from an offset down.
func (e *erasure) walk(ctx context.Context, topic string, at uint64, visit func(store.Item) error) error {
	for at > 0 && !e.more {
		item, err := e.bus.store.Latest(ctx, topic, e.query.Key, at)
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		if err != nil {
			return storeError(err, "find the events of a key in topic %q", topic)
		}
		if err := visit(item); err != nil {
			return err
		}
		at = item.Offset - 1
	}
	return nil
}

func (e *erasure) findScheduled(ctx context.Context) error {
	at, seq := int64(-1), uint64(0)
	for !e.more {
		page, err := e.bus.store.Delayed(ctx, at, seq, math.MaxInt64, admin.MaxPage, scheduledBytes)
		if err != nil {
			return storeError(err, "read the scheduled events")
		}
		if len(page) == 0 {
			return nil
		}
		for i := range page {
			d := &page[i]
			if at, seq = d.At, d.Seq; d.Topic == e.topic && d.Key == e.query.Key && e.takes() {
				e.scheduled = append(e.scheduled, store.Cancel{Topic: d.Topic, ID: d.ID, Seq: d.Seq})
			}
		}
	}
	return nil
}

// scheduledBytes bounds a page of scheduled events that is read.
const scheduledBytes = 4 << 20

// apply erases what was found. On an error the result has what was erased until then.
func (e *erasure) apply(ctx context.Context, all admin.EraseResult) (admin.EraseResult, error) {
	done := admin.EraseResult{Topic: e.topic, Applied: true, More: all.More}
	mark, err := e.mark(all)
	if err != nil {
		return done, err
	}
	first := true
	for len(e.events)+len(e.letters)+len(e.scheduled) > 0 {
		unit, part := e.next()
		if first {
			unit.Appends = mark.Appends
		}
		err := e.bus.removeEvents(ctx, unit)
		switch {
		case errors.Is(err, store.ErrNotDelayed):
			// It was moved into the log, or cancelled: whoever says it again finds it there.
			done.More = true
			continue
		case err != nil:
			return done, err
		}
		first = false
		part.More = done.More
		done.Add(part)
		if unit.Appends != nil {
			e.bus.retention.Look(admin.AuditTopic)
		}
	}
	return done, nil
}

// next takes the next unit, and says what it erases. A scheduled event has a unit of its own,
// because it refuses the unit where it is gone.
func (e *erasure) next() (u store.Unit, part admin.EraseResult) {
	part = admin.EraseResult{Topic: e.topic, Applied: true}
	if len(e.events)+len(e.letters) == 0 {
		u.Cancels, e.scheduled = e.scheduled[:1:1], e.scheduled[1:]
		part.Scheduled = 1
		return u, part
	}
	if n := min(len(e.events), store.MaxErase); n > 0 {
		u.Topics = append(u.Topics, store.TopicChange{Topic: e.topic, Life: e.info.Life, Erase: e.events[:n], ForgetIDs: e.bus.forgetsIDs(e.topic)})
		e.events, part.Events = e.events[n:], n
	}
	if n := min(len(e.letters), store.MaxErase); n > 0 {
		letters := eventhub.DeadLetterTopic(e.topic)
		u.Topics = append(u.Topics, store.TopicChange{Topic: letters, Life: e.life, Erase: e.letters[:n], ForgetIDs: e.bus.forgetsIDs(letters)})
		e.letters, part.DeadLetters = e.letters[n:], n
	}
	return u, part
}

// mark returns the event that says who erased what.
func (e *erasure) mark(all admin.EraseResult) (store.Unit, error) {
	payload, err := json.Marshal(&admin.EraseMark{
		Action: "erase", By: e.query.By, Topic: e.topic, ID: e.query.ID, Offset: e.query.Offset, Key: e.query.Key,
		Events: all.Events, DeadLetters: all.DeadLetters, Scheduled: all.Scheduled,
	})
	if err != nil {
		return store.Unit{}, err
	}
	var events publish.Events
	if err := events.AddMade(&eventhub.Event{Topic: admin.AuditTopic, Payload: payload}); err != nil {
		return store.Unit{}, err
	}
	return events.Unit(), nil
}
