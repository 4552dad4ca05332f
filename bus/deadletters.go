package bus

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/past"
	"eventhub/store"
)

// What the dead letters of a topic say, and what was done about each: its marks are
// events of admin.RedriveTopic that it has caused.

// DeadLetters implements admin.Redriver.
func (b *Bus) DeadLetters(ctx context.Context, q admin.DeadLetterQuery, visit func(*admin.DeadLetter) error) error {
	if err := b.checkDeadLetters(ctx, &q); err != nil {
		return err
	}
	left := q.Limit
	take := func(item eventhub.Item) error {
		d, err := b.deadLetter(ctx, &q, item)
		if d == nil || err != nil {
			return err
		}
		if err := visit(d); err != nil {
			return err
		}
		if left--; left == 0 {
			return errEnough
		}
		return nil
	}
	err := b.scanDeadLetters(ctx, &q, take)
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

var errEnough = errors.New("bus: limit reached")

// checkDeadLetters checks a query, makes its topic that of the dead letters, and its
// ids offsets.
func (b *Bus) checkDeadLetters(ctx context.Context, q *admin.DeadLetterQuery) error {
	bad := func(format string, args ...any) error {
		return eventhub.Errorf(eventhub.CodeBadRequest, format, args...)
	}
	if err := eventhub.ValidateStoredTopic(q.Topic); err != nil {
		return err
	}
	switch {
	case q.FromTS < 0 || q.ToTS < 0:
		return bad("fromTs is %d and toTs is %d; epoch milliseconds are not negative", q.FromTS, q.ToTS)
	case q.Limit < 0:
		return bad("limit is %d; it is not negative", q.Limit)
	case len(q.Offsets) > admin.MaxPage || len(q.IDs) > admin.MaxPage:
		return bad("%d offsets and %d ids are named; at most %d of each can be", len(q.Offsets), len(q.IDs), admin.MaxPage)
	}
	if q.Group != "" {
		if err := eventhub.ValidateGroup(q.Group); err != nil {
			return err
		}
	}
	letters := letterTopic(q.Topic)
	_, err := b.store.Topic(ctx, letters)
	if errors.Is(err, store.ErrNotFound) {
		_, err = b.store.Topic(ctx, q.Topic) // it may be there without a dead letter
	}
	switch {
	case errors.Is(err, store.ErrNotFound):
		return past.NoTopic(q.Topic)
	case err != nil:
		return storeError(err, "look up topic %q", q.Topic)
	}
	q.Topic = letters
	q.Offsets = slices.Clone(q.Offsets)
	for _, id := range q.IDs {
		if err := eventhub.ValidateID(id); err != nil {
			return err
		}
		offset, err := b.store.Find(ctx, q.Topic, id)
		if errors.Is(err, store.ErrNotFound) {
			return eventhub.Errorf(eventhub.CodeUnknownID, "there is no dead letter %q in topic %q", id, q.Topic)
		}
		if err != nil {
			return storeError(err, "find event %q", id)
		}
		q.Offsets = append(q.Offsets, offset)
	}
	slices.Sort(q.Offsets)
	q.Offsets = slices.Compact(q.Offsets)
	return nil
}

// letterTopic returns the dead-letter topic that a query's topic means.
func letterTopic(topic string) string {
	if eventhub.IsDeadLetterTopic(topic) {
		return topic
	}
	return eventhub.DeadLetterTopic(topic)
}

// scanDeadLetters calls take for what may be meant.
func (b *Bus) scanDeadLetters(ctx context.Context, q *admin.DeadLetterQuery, take func(eventhub.Item) error) error {
	if len(q.Offsets) > 0 {
		return b.namedDeadLetters(ctx, q, take)
	}
	replay := admin.ReplayQuery{Topic: q.Topic, ToTS: q.ToTS, Filter: q.Filter}
	switch {
	case q.After > 0:
		replay.Start = eventhub.Start{Kind: eventhub.StartOffset, Offset: min(q.After, eventhub.MaxOffset-1) + 1}
	case q.FromTS > 0:
		replay.Start = eventhub.Start{Kind: eventhub.StartTime, TS: q.FromTS}
	}
	return b.Replay(ctx, replay, func(_ string, item eventhub.Item) error {
		if item.Record.CommitTime() < q.FromTS {
			return nil
		}
		return take(item)
	})
}

func (b *Bus) namedDeadLetters(ctx context.Context, q *admin.DeadLetterQuery, take func(eventhub.Item) error) error {
	program, err := b.filters.Compile(q.Filter)
	if err != nil {
		return err
	}
	var batch store.Batch
	for _, offset := range q.Offsets {
		batch.Reset()
		if err := b.store.Read(ctx, q.Topic, offset, 1, 0, &batch); err != nil {
			return storeError(err, "read topic %q at offset %d", q.Topic, offset)
		}
		if len(batch.Items) == 0 || batch.Items[0].Offset != offset {
			return eventhub.Errorf(eventhub.CodeUnknownID, "there is no dead letter at offset %d of topic %q", offset, q.Topic)
		}
		item := batch.Items[0]
		ts := item.Record.CommitTime()
		if offset <= q.After || ts < q.FromTS || q.ToTS != 0 && ts >= q.ToTS || !program.Match(item.Record, item.Offset) {
			continue
		}
		if err := take(item); err != nil {
			return err
		}
	}
	return nil
}

// letterPayload is what group.letter writes.
type letterPayload struct {
	Topic    string `json:"topic"`
	Group    string `json:"group"`
	Offset   uint64 `json:"offset"`
	Epoch    uint64 `json:"epoch"`
	Attempts int    `json:"attempts"`
	Redriven int    `json:"redriven"`
	Reason   string `json:"reason"`
	Event    struct {
		ID      string            `json:"id"`
		Key     string            `json:"key"`
		SID     string            `json:"sid"`
		Headers map[string]string `json:"headers"`
		Tags    []string          `json:"tags"`
	} `json:"event"`
}

// deadLetter reads an event of a dead-letter topic, nil where it is not meant. What is
// no dead letter of the topic, as others may have imported it, never is.
func (b *Bus) deadLetter(ctx context.Context, q *admin.DeadLetterQuery, item eventhub.Item) (*admin.DeadLetter, error) {
	e, err := item.Record.Event(item.Offset)
	if err != nil {
		return nil, err
	}
	var p letterPayload
	if json.Unmarshal(e.Payload, &p) != nil || p.Group == "" || p.Offset == 0 || eventhub.DeadLetterTopic(p.Topic) != q.Topic {
		return nil, nil
	}
	if q.Group != "" && p.Group != q.Group {
		return nil, nil
	}
	d := &admin.DeadLetter{
		Offset: item.Offset, ID: e.ID, TS: item.Record.CommitTime(),
		Topic: p.Topic, Group: p.Group, Event: p.Offset, EventID: p.Event.ID, Key: p.Event.Key,
		Epoch: p.Epoch, Attempts: p.Attempts, Reason: p.Reason, Redriven: p.Redriven, Record: item.Record,
	}
	if d.Marks, err = b.marks(ctx, d.ID); err != nil || len(d.Marks) > 0 && !q.All {
		return nil, err
	}
	return d, nil
}

// marks returns what was done about a dead letter, the first of it.
func (b *Bus) marks(ctx context.Context, id string) (marks []admin.RedriveMark, _ error) {
	places, err := b.markPlaces(ctx, id, store.Place{}, admin.MaxRedriveMarks)
	for _, place := range places {
		_, mark, err := b.mark(ctx, id, place)
		if err != nil {
			return nil, err
		}
		if mark != nil {
			marks = append(marks, *mark)
		}
	}
	return marks, err
}

// lastRedrive returns the last mark by which a dead letter was redriven, and its id; ""
// where it was not. There may be more redrives than a dead letter shows marks.
func (b *Bus) lastRedrive(ctx context.Context, letter string) (id string, _ admin.RedriveMark, _ error) {
	var all []store.Place
	for after := (store.Place{}); ; after = all[len(all)-1] {
		places, err := b.markPlaces(ctx, letter, after, admin.MaxPage)
		if err != nil {
			return "", admin.RedriveMark{}, err
		}
		if all = append(all, places...); len(places) < admin.MaxPage {
			break
		}
	}
	for _, place := range slices.Backward(all) {
		id, mark, err := b.mark(ctx, letter, place)
		if err != nil {
			return "", admin.RedriveMark{}, err
		}
		if mark != nil && mark.RequeuedAs == "" {
			return id, *mark, nil
		}
	}
	return "", admin.RedriveMark{}, nil
}

// markPlaces returns where the marks of a dead letter are, those after a place: at most
// limit.
func (b *Bus) markPlaces(ctx context.Context, letter string, after store.Place, limit int) ([]store.Place, error) {
	after.Topic = admin.RedriveTopic
	places, err := b.store.Effects(ctx, letter, after, limit)
	if err != nil {
		return nil, storeError(err, "find the marks of dead letter %q", letter)
	}
	for i, place := range places {
		if place.Topic != admin.RedriveTopic {
			return places[:i], nil
		}
	}
	return places, nil
}

// mark reads one mark of a dead letter, and its id; nil where it is none, as others may
// have imported it.
func (b *Bus) mark(ctx context.Context, letter string, place store.Place) (id string, _ *admin.RedriveMark, _ error) {
	var batch store.Batch
	if err := b.store.Read(ctx, place.Topic, place.Offset, 1, 0, &batch); err != nil {
		return "", nil, storeError(err, "read topic %q at offset %d", place.Topic, place.Offset)
	}
	if len(batch.Items) == 0 || batch.Items[0].Offset != place.Offset {
		return "", nil, nil
	}
	var mark admin.RedriveMark
	e, err := batch.Items[0].Record.Event(place.Offset)
	if err != nil || json.Unmarshal(e.Payload, &mark) != nil || mark.DeadLetterID != letter {
		return "", nil, nil
	}
	mark.TS = batch.Items[0].Record.CommitTime()
	return e.ID, &mark, nil
}
