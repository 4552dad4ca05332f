package deadletter

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/past"
	"eventhub/internal/filter"
	"eventhub/store"
)

// Letters reads the dead letters of a store and what was done about each.
type Letters struct {
	store   store.Store
	history *past.History
	compile func(*eventhub.Filter) (*filter.Program, error)
}

// New returns the dead letters that are in a store. history is that of the same store;
// compile makes programs of filters; it may share them.
func New(s store.Store, history *past.History, compile func(*eventhub.Filter) (*filter.Program, error)) *Letters {
	return &Letters{store: s, history: history, compile: compile}
}

// Lists knows the events that were given back to groups and are not done.
type Lists interface {
	// Mark returns the id of the mark of the redrive by which an event is on the list of a
	// group, "" where it is not on it, or there is no such group.
	Mark(ctx context.Context, topic, group string, offset uint64) (string, error)
}

// Each calls visit for each dead letter that a query asks for, as admin.Redriver says of
// DeadLetters.
func (l *Letters) Each(ctx context.Context, q admin.DeadLetterQuery, lists Lists, visit func(*admin.DeadLetter) error) error {
	if err := l.check(ctx, &q); err != nil {
		return err
	}
	left := q.Limit
	take := func(item eventhub.Item) error {
		d, err := l.read(ctx, &q, lists, item)
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
	err := l.scan(ctx, &q, take)
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

var errEnough = errors.New("deadletter: limit reached")

// check checks a query, makes its topic that of the dead letters, and its
// ids offsets.
func (l *Letters) check(ctx context.Context, q *admin.DeadLetterQuery) error {
	bad := func(format string, args ...any) error {
		return eventhub.Errorf(eventhub.CodeBadRequest, format, args...)
	}
	if err := eventhub.ValidateStoredTopic(q.Topic); err != nil {
		return err
	}
	switch {
	case q.FromTS < 0 || q.ToTS < 0:
		return bad("from_ts is %d and to_ts is %d; epoch milliseconds are not negative", q.FromTS, q.ToTS)
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
	letters := Topic(q.Topic)
	_, err := l.store.Topic(ctx, letters)
	if errors.Is(err, store.ErrNotFound) {
		_, err = l.store.Topic(ctx, q.Topic) // it may be there without a dead letter
	}
	switch {
	case errors.Is(err, store.ErrNotFound):
		return past.NoTopic(q.Topic)
	case err != nil:
		return store.Failed(err, "look up topic %q", q.Topic)
	}
	q.Topic = letters
	q.Offsets = slices.Clone(q.Offsets)
	for _, id := range q.IDs {
		if err := eventhub.ValidateID(id); err != nil {
			return err
		}
		offset, err := l.store.Find(ctx, q.Topic, id)
		if errors.Is(err, store.ErrNotFound) {
			return eventhub.Errorf(eventhub.CodeUnknownID, "there is no dead letter %q in topic %q", id, q.Topic)
		}
		if err != nil {
			return store.Failed(err, "find event %q", id)
		}
		q.Offsets = append(q.Offsets, offset)
	}
	slices.Sort(q.Offsets)
	q.Offsets = slices.Compact(q.Offsets)
	return nil
}

// scan calls take for what may be meant.
func (l *Letters) scan(ctx context.Context, q *admin.DeadLetterQuery, take func(eventhub.Item) error) error {
	if len(q.Offsets) > 0 {
		return l.named(ctx, q, take)
	}
	replay := admin.ReplayQuery{Topic: q.Topic, ToTS: q.ToTS, Filter: q.Filter}
	switch {
	case q.After > 0:
		replay.Start = eventhub.Start{Kind: eventhub.StartOffset, Offset: min(q.After, eventhub.MaxOffset-1) + 1}
	case q.FromTS > 0:
		replay.Start = eventhub.Start{Kind: eventhub.StartTime, TS: q.FromTS}
	}
	if replay.Start != (eventhub.Start{}) {
		// What was removed is no dead letter any more: the list goes on after it.
		cursor, _, _, err := past.Begin(ctx, l.store, q.Topic, replay.Start)
		if err != nil {
			return err
		}
		replay.Start = eventhub.FromOffset(cursor + 1)
	}
	return l.history.Replay(ctx, replay, func(_ string, item eventhub.Item) error {
		if item.Record.CommitTime() < q.FromTS {
			return nil
		}
		return take(item)
	})
}

func (l *Letters) named(ctx context.Context, q *admin.DeadLetterQuery, take func(eventhub.Item) error) error {
	program, err := l.compile(q.Filter)
	if err != nil {
		return err
	}
	var batch store.Batch
	for _, offset := range q.Offsets {
		batch.Reset()
		if err := l.store.Read(ctx, q.Topic, offset, 1, 0, &batch); err != nil {
			return store.Failed(err, "read topic %q at offset %d", q.Topic, offset)
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

// payloadOf reads an event of a dead-letter topic, and its id; nil for what is no dead letter
// of the topic, as others may have imported it.
func payloadOf(topic string, item eventhub.Item) (*Payload, string, error) {
	e, err := item.Record.Event(item.Offset)
	if err != nil {
		return nil, "", err
	}
	var p Payload
	if json.Unmarshal(e.Payload, &p) != nil || p.Group == "" || p.Offset == 0 || eventhub.DeadLetterTopic(p.Topic) != topic {
		return nil, "", nil
	}
	return &p, e.ID, nil
}

// read reads an event of a dead-letter topic, nil where it is not meant.
func (l *Letters) read(ctx context.Context, q *admin.DeadLetterQuery, lists Lists, item eventhub.Item) (*admin.DeadLetter, error) {
	p, id, err := payloadOf(q.Topic, item)
	if p == nil || q.Group != "" && p.Group != q.Group {
		return nil, err
	}
	d := &admin.DeadLetter{
		Offset: item.Offset, ID: id, TS: item.Record.CommitTime(),
		Topic: p.Topic, Group: p.Group, Event: p.Offset, EventID: p.Event.ID, Key: p.Event.Key,
		Epoch: p.Epoch, Attempts: p.Attempts, Reason: p.Reason, Redriven: p.Redriven, Record: item.Record,
	}
	redrive, err := l.addMarks(ctx, d)
	if err != nil || len(d.Marks) > 0 && !q.All {
		return nil, err
	}
	d.State, err = stateOf(ctx, d, redrive, lists)
	return d, err
}

// stateOf says in which state a dead letter with its marks is. redrive is the id of the mark
// of its last redrive, "" where it was not redriven: that is under way as long as the list of
// the group has the event by this mark.
func stateOf(ctx context.Context, d *admin.DeadLetter, redrive string, lists Lists) (string, error) {
	switch {
	case len(d.Marks) == 0:
		return admin.LetterOpen, nil
	case redrive == "":
		return admin.LetterRequeued, nil
	}
	on, err := lists.Mark(ctx, d.Topic, d.Group, d.Event)
	if on == redrive {
		return admin.LetterRedriven, err
	}
	return admin.LetterDone, err
}

// addMarks adds what was done about a dead letter, the first of it, and returns the id of the
// mark of its last redrive, "" where it was not redriven.
func (l *Letters) addMarks(ctx context.Context, d *admin.DeadLetter) (redrive string, _ error) {
	places, err := l.markPlaces(ctx, d.ID, store.Place{}, admin.MaxRedriveMarks)
	if err != nil {
		return "", err
	}
	for _, place := range places {
		id, mark, err := l.mark(ctx, d.ID, place)
		if err != nil {
			return "", err
		}
		if mark == nil {
			continue
		}
		d.Marks = append(d.Marks, *mark)
		if mark.RequeuedAs == "" {
			redrive = id
		}
	}
	if len(places) == admin.MaxRedriveMarks { // there may be more
		redrive, _, err = l.LastRedrive(ctx, d.ID)
	}
	return redrive, err
}

// CountMarks counts what was done about a dead letter, also what it does not show.
func (l *Letters) CountMarks(ctx context.Context, d *admin.DeadLetter) (int, error) {
	n := len(d.Marks)
	if n < admin.MaxRedriveMarks {
		return n, nil
	}
	n = 0
	for after := (store.Place{}); ; {
		places, err := l.markPlaces(ctx, d.ID, after, admin.MaxPage)
		if err != nil {
			return 0, err
		}
		if n += len(places); len(places) < admin.MaxPage {
			return n, nil
		}
		after = places[len(places)-1]
	}
}

// LastRedrive returns the last mark by which a dead letter was redriven, and its id; ""
// where it was not. There may be more redrives than a dead letter shows marks.
func (l *Letters) LastRedrive(ctx context.Context, letter string) (id string, _ admin.RedriveMark, _ error) {
	var all []store.Place
	for after := (store.Place{}); ; after = all[len(all)-1] {
		places, err := l.markPlaces(ctx, letter, after, admin.MaxPage)
		if err != nil {
			return "", admin.RedriveMark{}, err
		}
		if all = append(all, places...); len(places) < admin.MaxPage {
			break
		}
	}
	for _, place := range slices.Backward(all) {
		id, mark, err := l.mark(ctx, letter, place)
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
func (l *Letters) markPlaces(ctx context.Context, letter string, after store.Place, limit int) ([]store.Place, error) {
	after.Topic = admin.RedriveTopic
	places, err := l.store.Effects(ctx, letter, after, limit)
	if err != nil {
		return nil, store.Failed(err, "find the marks of dead letter %q", letter)
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
func (l *Letters) mark(ctx context.Context, letter string, place store.Place) (id string, _ *admin.RedriveMark, _ error) {
	var batch store.Batch
	if err := l.store.Read(ctx, place.Topic, place.Offset, 1, 0, &batch); err != nil {
		return "", nil, store.Failed(err, "read topic %q at offset %d", place.Topic, place.Offset)
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

// HasEvent reports whether an event that a dead letter may be about is still in its topic.
func (l *Letters) HasEvent(ctx context.Context, topic string, offset uint64) (bool, error) {
	item, err := past.First(ctx, l.store, topic, offset)
	return item.Offset == offset, err
}

// GaveUp reports whether a group has given up the event at offset in an epoch, and the event
// was not given back since.
func (l *Letters) GaveUp(ctx context.Context, topic, group string, offset, epoch uint64) (bool, error) {
	id := ID(topic, offset, group, epoch, "")
	for {
		switch _, err := l.store.Find(ctx, eventhub.DeadLetterTopic(topic), id); {
		case errors.Is(err, store.ErrNotFound):
			return false, nil
		case err != nil:
			return false, err
		}
		mark, _, err := l.LastRedrive(ctx, id)
		if mark == "" || err != nil {
			return err == nil, err
		}
		id = ID(topic, offset, group, epoch, mark)
	}
}
