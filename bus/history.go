package bus

import (
	"context"
	"errors"
	"io/fs"
	"math"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/commit"
	"eventhub/internal/filter"
	"eventhub/store"
)

var (
	_ admin.History  = (*Bus)(nil)
	_ admin.Importer = (*Bus)(nil)
	_ admin.Backuper = (*Bus)(nil)
)

const (
	// A replay reads replayBytes of records at once, and at most replayEvents.
	replayBytes  = 1 << 20
	replayEvents = 1 << 14
	// foundBytes bounds the records of one page of Find, Effects or Correlated.
	foundBytes = 16 << 20
)

// stretch is a part of one life of a topic that a replay reads: the offsets from first
// to last.
type stretch struct {
	topic       string
	life        uint64
	first, last uint64
}

// Replay implements admin.History. Between two pages it holds nothing of the
// store, so that a slow visit is in nobody's way; the memory that it needs is one
// page, whatever the number of events. A topic that does not exist has no events; one
// that is deleted before all of it was read that was to be read ends the replay with an
// error, also where it was created again.
func (b *Bus) Replay(ctx context.Context, q admin.ReplayQuery, visit func(string, eventhub.Item) error) error {
	pattern, err := checkReplay(&q)
	if err != nil {
		return err
	}
	program, err := b.filters.compile(q.Filter)
	if err != nil {
		return err
	}
	parts, err := b.replayed(ctx, pattern)
	if err != nil {
		return err
	}
	if q.Life != 0 && parts[0].life != q.Life {
		return errNotWhole(q.Topic)
	}
	r := replay{bus: b, filter: program, visit: visit, left: q.Limit}
	if r.left == 0 {
		r.left = math.MaxInt
	}
	for _, s := range parts {
		if r.left == 0 {
			break
		}
		if err := b.narrow(ctx, &q, &s); err != nil {
			return err
		}
		if err := b.isWhole(ctx, &s); err != nil {
			return err
		}
		if err := r.read(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

func checkReplay(q *admin.ReplayQuery) (eventhub.Pattern, error) {
	bad := func(format string, args ...any) (eventhub.Pattern, error) {
		return eventhub.Pattern{}, eventhub.Errorf(eventhub.CodeBadRequest, format, args...)
	}
	pattern, err := eventhub.ParsePattern(q.Topic)
	if err != nil {
		return pattern, err
	}
	if err := q.Start.Validate(); err != nil {
		return pattern, err
	}
	switch kind := q.Start.Kind; {
	case kind == eventhub.StartLatest && q.Start != (eventhub.Start{}):
		return bad("a replay from latest has nothing to read")
	case kind == eventhub.StartAfterID && eventhub.IsPattern(q.Topic):
		return bad("afterId %q is in one topic; %q may be many", q.Start.AfterID, q.Topic)
	case kind == eventhub.StartOffset && eventhub.IsPattern(q.Topic):
		return bad("offset %d is in one topic; %q may be many", q.Start.Offset, q.Topic)
	case q.Life != 0 && eventhub.IsPattern(q.Topic):
		return bad("life %d is of one topic; %q may be many", q.Life, q.Topic)
	case q.ToTS < 0:
		return bad("toTs is %d; epoch milliseconds are not negative", q.ToTS)
	case q.Limit < 0:
		return bad("limit is %d; it is not negative", q.Limit)
	}
	return pattern, nil
}

// replayed returns the topics of a pattern up to their heads as they are now, in
// byte order.
func (b *Bus) replayed(ctx context.Context, pattern eventhub.Pattern) (parts []stretch, err error) {
	if name := pattern.String(); !eventhub.IsPattern(name) {
		t, err := b.store.Topic(ctx, name)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return nil, storeError(err, "look up topic %q", name)
		}
		return []stretch{{topic: name, life: t.Life, last: t.Head}}, nil
	}
	for t, err := range store.AllTopics(ctx, b.store, "") {
		if err != nil {
			return nil, storeError(err, "list the topics")
		}
		if pattern.Match(t.Name) {
			parts = append(parts, stretch{topic: t.Name, life: t.Life, last: t.Head})
		}
	}
	return parts, nil
}

// narrow cuts a topic to what the query asks for. That events come meanwhile does
// no harm: they are above the head that s has.
func (b *Bus) narrow(ctx context.Context, q *admin.ReplayQuery, s *stretch) error {
	s.first = 1
	if q.Start != (eventhub.Start{}) {
		before, err := b.resolve(ctx, s.topic, q.Start)
		if err != nil {
			return err
		}
		s.first = before + 1
	}
	if q.ToTS == 0 {
		return nil
	}
	end, err := b.store.SeekTime(ctx, s.topic, q.ToTS)
	if err != nil {
		return storeError(err, "find the end in topic %q", s.topic)
	}
	s.last = min(s.last, end-1)
	return nil
}

// isWhole returns an error where the life of a stretch is over, so that what was read of
// it last may be less than there was.
func (b *Bus) isWhole(ctx context.Context, s *stretch) error {
	if s.life == 0 {
		return nil // there was no such topic, and nothing to see
	}
	life, err := b.life(ctx, s.topic)
	if err == nil && life != s.life {
		err = errNotWhole(s.topic)
	}
	return err
}

func errNotWhole(topic string) error {
	return eventhub.Wrap(eventhub.CodeUnknownID, store.ErrGone, "topic %q was deleted while it was read; not all of it was seen", topic)
}

// Life implements admin.History.
func (b *Bus) Life(ctx context.Context, topic string) (uint64, error) {
	if err := eventhub.ValidateStoredTopic(topic); err != nil {
		return 0, err
	}
	return b.life(ctx, topic)
}

// replay is one call of Replay.
type replay struct {
	bus    *Bus
	filter *filter.Program
	visit  func(string, eventhub.Item) error
	left   int // events that may still be visited
	batch  store.Batch
	pages  int
}

func (r *replay) read(ctx context.Context, s stretch) error {
	for s.first <= s.last && r.left > 0 {
		limit := replayEvents
		if r.filter == nil {
			limit = min(limit, r.left)
		}
		r.batch.Reset()
		if r.pages++; r.pages == 2 {
			r.batch.Grow(replayBytes) // most replays are one page, and a small one
		}
		if err := r.bus.store.Read(ctx, s.topic, s.first, limit, replayBytes, &r.batch); err != nil {
			return storeError(err, "read topic %q at offset %d", s.topic, s.first)
		}
		if err := r.bus.isWhole(ctx, &s); err != nil {
			return err
		}
		if len(r.batch.Items) == 0 {
			return nil
		}
		for _, item := range r.batch.Items {
			if item.Offset > s.last || r.left == 0 {
				return nil
			}
			s.first = item.Offset + 1
			if !r.filter.Match(item.Record, item.Offset) {
				continue
			}
			r.left--
			if err := r.visit(s.topic, item); err != nil {
				return err
			}
		}
	}
	return nil
}

// Find implements admin.History.
func (b *Bus) Find(ctx context.Context, id string, limit int) ([]admin.Found, error) {
	if err := checkLook(id, limit); err != nil {
		return nil, err
	}
	places, err := b.store.Places(ctx, id, limit)
	if err != nil {
		return nil, storeError(err, "find event %q", id)
	}
	return b.found(ctx, places, math.MaxInt)
}

// Effects implements admin.History.
func (b *Bus) Effects(ctx context.Context, id string, after eventhub.Place, limit int) ([]admin.Found, error) {
	if err := checkLook(id, limit); err != nil {
		return nil, err
	}
	return b.linked(ctx, b.store.Effects, id, after, limit)
}

// Correlated implements admin.History.
func (b *Bus) Correlated(ctx context.Context, correlation string, after eventhub.Place, limit int) ([]admin.Found, error) {
	if n := len(correlation); n == 0 || n > eventhub.MaxCorrelationBytes {
		return nil, eventhub.Errorf(eventhub.CodeBadRequest, "the correlation id has %d bytes; 1 to %d are allowed", n, eventhub.MaxCorrelationBytes)
	}
	if err := checkLimit(limit); err != nil {
		return nil, err
	}
	return b.linked(ctx, b.store.Correlated, correlation, after, limit)
}

// linked reads a page of what links tell. Where all of it is gone before it is read, it
// goes on behind that: a page without events says that there are no more.
func (b *Bus) linked(ctx context.Context, links func(context.Context, string, eventhub.Place, int) ([]store.Place, error),
	of string, after eventhub.Place, limit int) ([]admin.Found, error) {
	for {
		places, err := links(ctx, of, after, limit)
		if err != nil {
			return nil, storeError(err, "find the events that are linked to %q", of)
		}
		list, err := b.found(ctx, places, foundBytes)
		if len(places) == 0 || len(list) > 0 || err != nil {
			return list, err
		}
		after = places[len(places)-1]
	}
}

func checkLook(id string, limit int) error {
	if err := eventhub.ValidateID(id); err != nil {
		return err
	}
	return checkLimit(limit)
}

// found reads what is at the places. It ends with the event by which the records
// come to maxBytes.
func (b *Bus) found(ctx context.Context, places []store.Place, maxBytes int) ([]admin.Found, error) {
	var batch store.Batch
	list := make([]admin.Found, 0, len(places))
	for _, p := range places {
		n := len(batch.Items)
		if err := b.store.Read(ctx, p.Topic, p.Offset, 1, 0, &batch); err != nil {
			return nil, storeError(err, "read topic %q at offset %d", p.Topic, p.Offset)
		}
		if len(batch.Items) == n || batch.Items[n].Offset != p.Offset {
			continue // the log let go of it
		}
		list = append(list, admin.Found{Topic: p.Topic, Item: batch.Items[n]})
		if maxBytes -= len(batch.Items[n].Record); maxBytes <= 0 {
			break
		}
	}
	return list, nil
}

// Backup implements admin.Backuper. What groups have acked goes to the store
// first: it may be known in memory only.
func (b *Bus) Backup(ctx context.Context, dir string) error {
	if dir == "" {
		return eventhub.Errorf(eventhub.CodeBadRequest, "the directory of the backup is empty")
	}
	b.committer.Flush()
	if err := b.committer.Do(ctx, commit.NewWrite(store.Unit{}, nil)); err != nil {
		return err
	}
	err := b.store.Checkpoint(ctx, dir)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, store.ErrUnsupported):
		return eventhub.Wrap(eventhub.CodeUnsupportedOp, err, "the hub's store can not be backed up: it keeps nothing")
	case errors.Is(err, fs.ErrExist):
		return eventhub.Wrap(eventhub.CodeBadRequest, err, "the directory of the backup is there already; it must not be")
	}
	return storeError(err, "write a backup")
}
