package past

import (
	"context"
	"errors"
	"math"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/filter"
	"eventhub/store"
)

const (
	// A replay reads replayBytes of records at once, and at most replayEvents.
	replayBytes  = 1 << 20
	replayEvents = 1 << 14
)

// stretch is a part of one life of a topic that a replay reads: the offsets from first
// to last.
type stretch struct {
	topic       string
	life        uint64
	first, last uint64
	// whatever says that first means the first event there is, and nothing is read yet.
	whatever bool
	// gap is what OnGap was told of it; Compacted is 0 where that is nothing.
	gap eventhub.Gap
}

// Replay implements admin.History. Between two pages it holds nothing of the
// store, so that a slow visit is in nobody's way; the memory that it needs is one
// page, whatever the number of events. A topic that does not exist has no events; one
// that is deleted before all of it was read that was to be read ends the replay with an
// error, also where it was created again. So does one that is trimmed below a place that was
// asked for, or that was to be read next. What compaction may have removed of it is told to
// q.OnGap.
func (h *History) Replay(ctx context.Context, q admin.ReplayQuery, visit func(string, eventhub.Item) error) error {
	pattern, err := checkReplay(&q)
	if err != nil {
		return err
	}
	program, err := h.compile(q.Filter)
	if err != nil {
		return err
	}
	parts, err := h.replayed(ctx, pattern, q.Allowed)
	if err != nil {
		return err
	}
	if q.Life != 0 && parts[0].life != q.Life {
		return errNotWhole(q.Topic)
	}
	r := replay{history: h, filter: program, visit: visit, onGap: q.OnGap, left: q.Limit}
	if r.left == 0 {
		r.left = math.MaxInt
	}
	for _, s := range parts {
		if r.left == 0 {
			break
		}
		if err := h.narrow(ctx, &q, &s); err != nil {
			return err
		}
		if err := h.isWhole(ctx, &s); err != nil {
			return err
		}
		if err := r.read(ctx, &s); err != nil {
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
		return bad("after_id %q is in one topic; %q may be many", q.Start.AfterID, q.Topic)
	case kind == eventhub.StartOffset && eventhub.IsPattern(q.Topic):
		return bad("offset %d is in one topic; %q may be many", q.Start.Offset, q.Topic)
	case q.Life != 0 && eventhub.IsPattern(q.Topic):
		return bad("life %d is of one topic; %q may be many", q.Life, q.Topic)
	case q.ToTS < 0:
		return bad("to_ts is %d; epoch milliseconds are not negative", q.ToTS)
	case q.Limit < 0:
		return bad("limit is %d; it is not negative", q.Limit)
	}
	return pattern, nil
}

// replayed returns the topics of a pattern that are allowed up to their heads as they are
// now, in byte order.
func (h *History) replayed(ctx context.Context, pattern eventhub.Pattern, allowed *eventhub.TopicRules) (parts []stretch, err error) {
	if name := pattern.String(); !eventhub.IsPattern(name) {
		t, err := h.store.Topic(ctx, name)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return nil, store.Failed(err, "look up topic %q", name)
		}
		return []stretch{{topic: name, life: t.Life, last: t.Head}}, nil
	}
	for t, err := range store.AllTopics(ctx, h.store, "") {
		if err != nil {
			return nil, store.Failed(err, "list the topics")
		}
		if pattern.Match(t.Name) && allowed.Allow(t.Name) {
			parts = append(parts, stretch{topic: t.Name, life: t.Life, last: t.Head})
		}
	}
	return parts, nil
}

// narrow cuts a topic to what the query asks for. That events come meanwhile does
// no harm: they are above the head that s has.
func (h *History) narrow(ctx context.Context, q *admin.ReplayQuery, s *stretch) error {
	s.first, s.whatever = 1, true
	if q.Start != (eventhub.Start{}) && q.Start.Kind != eventhub.StartEarliest {
		before, gap, _, err := Begin(ctx, h.store, s.topic, q.Start)
		if err == nil && gap != nil && gap.First > gap.After+1 {
			err = errGone(gap, &q.Start)
		}
		if err != nil {
			return err
		}
		s.first, s.whatever = before+1, false
		if gap != nil { // a time may name more than what comes from first on
			s.gap = *gap
		}
	}
	if q.ToTS == 0 {
		return nil
	}
	end, err := h.store.SeekTime(ctx, s.topic, q.ToTS)
	if err != nil {
		return store.Failed(err, "find the end in topic %q", s.topic)
	}
	s.last = min(s.last, end-1)
	return nil
}

// isWhole returns an error where the life of a stretch is over, so that what was read of
// it last may be less than there was.
func (h *History) isWhole(ctx context.Context, s *stretch) error {
	if s.life == 0 {
		return nil // there was no such topic, and nothing to see
	}
	life, err := Life(ctx, h.store, s.topic)
	if err == nil && life != s.life {
		err = errNotWhole(s.topic)
	}
	return err
}

func errNotWhole(topic string) error {
	return eventhub.Wrap(eventhub.CodeUnknownID, store.ErrGone, "topic %q was deleted while it was read; not all of it was seen", topic)
}

// errGone says that a replay can not begin where it is to.
func errGone(gap *eventhub.Gap, start *eventhub.Start) error {
	if start.Kind == eventhub.StartTime {
		return eventhub.Errorf(eventhub.CodeGone, "events of topic %q from the time %d on may have been removed: it begins at offset %d", gap.Topic, start.TS, gap.First)
	}
	return eventhub.Errorf(eventhub.CodeGone, "the events of topic %q after offset %d were removed: it begins at offset %d", gap.Topic, gap.After, gap.First)
}

// Life implements admin.History.
func (h *History) Life(ctx context.Context, topic string) (uint64, error) {
	if err := eventhub.ValidateStoredTopic(topic); err != nil {
		return 0, err
	}
	return Life(ctx, h.store, topic)
}

// replay is one call of Replay.
type replay struct {
	history *History
	filter  *filter.Program
	visit   func(string, eventhub.Item) error
	onGap   func(eventhub.Gap) // may be nil
	left    int                // events that may still be visited
	batch   store.Batch
	pages   int
}

func (r *replay) read(ctx context.Context, s *stretch) error {
	if s.gap != (eventhub.Gap{}) {
		r.tell(s.gap)
	}
	for s.first <= s.last && r.left > 0 {
		limit := replayEvents
		if r.filter == nil {
			limit = min(limit, r.left)
		}
		r.batch.Reset()
		if r.pages++; r.pages == 2 {
			r.batch.Grow(replayBytes) // most replays are one page, and a small one
		}
		if err := r.history.store.Read(ctx, s.topic, s.first, limit, replayBytes, &r.batch); err != nil {
			return store.Failed(err, "read topic %q at offset %d", s.topic, s.first)
		}
		if err := r.history.isWhole(ctx, s); err != nil {
			return err
		}
		if r.batch.Horizon > s.first && !s.whatever {
			return eventhub.Errorf(eventhub.CodeGone, "the events of topic %q from offset %d on were removed before they were read: it begins at offset %d",
				s.topic, s.first, r.batch.Horizon)
		}
		r.pass(s)
		s.whatever = false
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

// pass tells of what compaction may have removed of the page that was just read, where the topic
// was compacted further than is told.
func (r *replay) pass(s *stretch) {
	first := s.first
	if s.whatever {
		first = max(first, r.batch.Horizon)
	}
	told := store.Marks{Compacted: s.gap.Compacted, Tombstones: s.gap.Tombstones}
	marks := told.Max(r.batch.Marks().From(first))
	if marks == told {
		return
	}
	if told == (store.Marks{}) {
		s.gap = eventhub.Gap{Topic: s.topic, After: first - 1, First: first}
	}
	s.gap.Compacted, s.gap.Tombstones = marks.Compacted, marks.Tombstones
	r.tell(s.gap)
}

func (r *replay) tell(g eventhub.Gap) {
	if r.onGap != nil {
		r.onGap(g)
	}
}
