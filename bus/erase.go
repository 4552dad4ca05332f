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
//
// What is to be erased moves meanwhile: a delayed event enters the log, and an event gets a dead
// letter. So a step looks where events come from before it looks where they go: what is scheduled
// first, then the log. When the events are gone it looks for dead letters again, until there is none:
// one that is committed later finds its event gone, and is not made (groupStep.lookAgain). Snapshots of
// the topic have copies: they are removed as a whole, and what was read for another one before is
// not written (package bus/internal/snapshots).

// erasure is what one call of Erase has found.
type erasure struct {
	bus    *Bus
	topic  string
	query  *admin.EraseQuery
	id     string // of the one event; "" where a key says which
	limit  int
	info   store.TopicInfo
	events []uint64 // offsets in the topic
	// letters are offsets in the topic of dead letters, which has that life, 0 where there is
	// none.
	letters   []uint64
	life      uint64
	scheduled []store.Cancel
	// copies empties the snapshot topic and the dead letters of that, where these may have what is erased.
	// Each unit with events has it: a snapshot may be written in between. snapshots is how many there were.
	copies    []store.TopicChange
	snapshots int
	cleared   map[string]uint64 // lives of topics that were emptied so
	erases    bool              // events of the topic were found
	moved     bool              // something that was scheduled was not any more
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
	e := &erasure{bus: b, topic: topic, query: &q, limit: q.Limit, cleared: make(map[string]uint64)}
	if err := e.find(ctx); err != nil {
		return result, err
	}
	if result = e.found(); result.Total() == 0 {
		what := ", and nothing else of it to erase"
		if q.Offset != 0 {
			what = "; the dead letters of an event that is gone are found by its id or its key"
		}
		return result, eventhub.Errorf(eventhub.CodeUnknownID, "there is no %s in topic %q%s", q.String(), topic, what)
	}
	if !q.Apply {
		return result, nil
	}
	return e.apply(ctx)
}

// found says what there is to be erased, as far as it was looked for.
func (e *erasure) found() admin.EraseResult {
	return admin.EraseResult{Topic: e.topic, Events: len(e.events), DeadLetters: len(e.letters), Scheduled: len(e.scheduled), Snapshots: e.snapshots, More: e.more}
}

// find looks for what is to be erased, as far as the limit allows.
func (e *erasure) find(ctx context.Context) (err error) {
	if source := eventhub.SourceTopic(e.topic); e.topic == eventhub.SnapshotTopic(source) {
		return eventhub.Errorf(eventhub.CodeBadTopic, "single events of %q cannot be erased: a snapshot is whole or gone; erase from topic %q, which removes its snapshots, or delete this topic", e.topic, source)
	}
	if e.info, err = e.bus.topicToRemoveFrom(ctx, e.topic); err != nil {
		return err
	}
	if e.id = e.query.ID; e.query.Offset != 0 {
		if e.id, err = e.idAt(ctx, e.query.Offset); err != nil {
			return err
		}
		if e.id == "" {
			return e.findCopies(ctx)
		}
	}
	if err = e.findScheduled(ctx); err == nil {
		err = e.findEvents(ctx)
	}
	if err == nil {
		err = e.findLetters(ctx)
	}
	if err == nil {
		err = e.findCopies(ctx)
	}
	return err
}

// findAgain looks for what came while the rest was erased.
func (e *erasure) findAgain(ctx context.Context) (err error) {
	if e.moved {
		e.moved = false
		err = e.findEvents(ctx)
	}
	if err == nil {
		err = e.findLetters(ctx)
	}
	if err == nil {
		err = e.findCopies(ctx)
	}
	return err
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

// idAt returns the id of the event at an offset, "" where there is none.
func (e *erasure) idAt(ctx context.Context, offset uint64) (string, error) {
	item, err := past.First(ctx, e.bus.store, e.topic, offset)
	if err != nil || item.Offset != offset {
		return "", err
	}
	return string(item.Record.ID()), nil
}

// findEvents looks in the log: of a key it goes from one event to the one before it.
func (e *erasure) findEvents(ctx context.Context) error {
	if e.query.Key != "" {
		head, err := e.bus.store.Head(ctx, e.topic)
		if err != nil {
			return storeError(err, "read the head of topic %q", e.topic)
		}
		return e.walk(ctx, e.topic, head, &e.events, func(store.Item) (bool, error) { return true, nil })
	}
	switch offset, err := e.bus.store.Find(ctx, e.topic, e.id); {
	case err == nil && e.takes():
		e.events = append(e.events, offset)
	case err != nil && !errors.Is(err, store.ErrNotFound):
		return storeError(err, "find event %q of topic %q", e.id, e.topic)
	}
	return nil
}

// findLetters looks for the dead letters of the event, or of those of the key, which have it too.
func (e *erasure) findLetters(ctx context.Context) error {
	topic := eventhub.DeadLetterTopic(e.topic)
	letters, err := e.bus.store.Topic(ctx, topic)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return storeError(err, "look up the dead letters of topic %q", e.topic)
	}
	e.life = letters.Life
	if e.query.Key == "" {
		return e.bus.letters.Holding(ctx, e.topic, e.id, func(offset uint64) {
			if e.takes() {
				e.letters = append(e.letters, offset)
			}
		})
	}
	return e.walk(ctx, topic, letters.Head, &e.letters, func(item store.Item) (bool, error) {
		_, is, err := deadletter.OriginalOf(e.topic, item)
		return is, err
	})
}

// walk takes those of the events of the key that are wanted, from an offset down. Nobody pays for
// the index because something is erased: where the topic has none the log is read, and so it is where the index
// lacks what compaction has still to remove from the log.
func (e *erasure) walk(ctx context.Context, topic string, at uint64, into *[]uint64, wants func(store.Item) (bool, error)) error {
	for at > 0 && !e.more {
		item, err := e.bus.store.Latest(ctx, topic, e.query.Key, at)
		switch {
		case errors.Is(err, store.ErrNotFound):
			return nil
		case errors.Is(err, store.ErrNotIndexed):
			return e.walkLog(ctx, topic, at, into, wants)
		case err != nil:
			return storeError(err, "find the events of a key in topic %q", topic)
		}
		is, err := wants(item)
		if err != nil {
			return err
		}
		if is && e.takes() {
			*into = append(*into, item.Offset)
		}
		at = item.Offset - 1
	}
	return nil
}

// walkLog likewise. It goes through the log once, and remembers the newest ones of which there is
// room, and one more.
func (e *erasure) walkLog(ctx context.Context, topic string, at uint64, into *[]uint64, wants func(store.Item) (bool, error)) error {
	var found []uint64
	var batch store.Batch
	for from := uint64(1); from <= at; {
		batch.Reset()
		if err := e.bus.store.Read(ctx, topic, from, logPage, logPageBytes, &batch); err != nil {
			return storeError(err, "find the events of a key in topic %q", topic)
		}
		if len(batch.Items) == 0 {
			break
		}
		for _, item := range batch.Items {
			if from = item.Offset + 1; item.Offset > at || string(item.Record.Key()) != e.query.Key {
				continue
			}
			is, err := wants(item)
			if err != nil {
				return err
			}
			if is {
				if found = append(found, item.Offset); len(found) > 2*(e.limit+1) {
					found = append(found[:0], found[len(found)-e.limit-1:]...)
				}
			}
		}
	}
	for i := len(found) - 1; i >= 0 && e.takes(); i-- {
		*into = append(*into, found[i])
	}
	return nil
}

// The bounds of a page of the log that is read for a key.
const (
	logPage      = 4096
	logPageBytes = 4 << 20
)

// findScheduled looks for delayed events. It waits for a commit that moves some of them, so those
// that it does not find are in the log.
func (e *erasure) findScheduled(ctx context.Context) error {
	if e.query.Key == "" {
		switch d, err := e.bus.store.FindDelayed(ctx, e.topic, e.id); {
		case err == nil && e.takes():
			e.scheduled = append(e.scheduled, store.Cancel{Topic: e.topic, ID: e.id, Seq: d.Seq})
		case err != nil && !errors.Is(err, store.ErrNotFound):
			return storeError(err, "find event %q of topic %q", e.id, e.topic)
		}
		return nil
	}
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

// apply erases what was found, and what is found when that is gone. On an error the result has
// what was erased until then.
func (e *erasure) apply(ctx context.Context) (admin.EraseResult, error) {
	done := admin.EraseResult{Topic: e.topic, Applied: true}
	for all := e.found(); all.Total() > 0; all = e.found() {
		err := e.round(ctx, all, &done)
		if err == nil {
			err = e.findAgain(ctx)
		}
		if done.More = e.more; err != nil {
			return done, err
		}
	}
	return done, nil
}

// round erases what was found last, and adds it to done.
func (e *erasure) round(ctx context.Context, all admin.EraseResult, done *admin.EraseResult) error {
	mark, err := e.mark(all)
	if err != nil {
		return err
	}
	for first := true; len(e.events)+len(e.letters)+len(e.scheduled)+e.snapshots > 0; {
		unit, part := e.next()
		if first {
			unit.Appends = mark.Appends
		}
		err := e.bus.removeEvents(ctx, unit)
		switch {
		case errors.Is(err, store.ErrNotDelayed):
			e.moved = true // into the log, or it was cancelled
			continue
		case err != nil:
			return err
		}
		first = false
		done.Add(part)
		if unit.Appends != nil {
			e.bus.retention.Look(admin.AuditTopic)
		}
	}
	return nil
}

// next takes the next unit, and says what it erases. A scheduled event has a unit of its own,
// because it refuses the unit where it is gone.
func (e *erasure) next() (u store.Unit, part admin.EraseResult) {
	part = admin.EraseResult{Topic: e.topic, Applied: true}
	if len(e.events)+len(e.letters)+e.snapshots == 0 {
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
	u.Topics = append(u.Topics, e.copies...)
	for i := range e.copies {
		e.cleared[e.copies[i].Topic] = e.copies[i].Life
	}
	part.Snapshots, e.snapshots = e.snapshots, 0
	return u, part
}

// mark returns the event that says who erased what.
func (e *erasure) mark(all admin.EraseResult) (store.Unit, error) {
	payload, err := json.Marshal(&admin.EraseMark{
		Action: "erase", By: e.query.By, Topic: e.topic, ID: e.query.ID, Offset: e.query.Offset, Key: e.query.Key,
		Events: all.Events, DeadLetters: all.DeadLetters, Scheduled: all.Scheduled, Snapshots: all.Snapshots,
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
