package tail

import (
	"context"
	"errors"
	"maps"
	"slices"

	"eventhub"
	"eventhub/bus/internal/past"
	"eventhub/store"
)

// goOn returns the offset after which a tail goes on that was at a place, and notifies
// the receiver where that is not the place itself. The event that it saw last, by
// offset and commit time, shows whether the log is the one that it was in. A log that
// lost its end, was restored from a backup, or is another hub's, has events that the
// tail has not seen: those that were committed later, and those of higher offsets, which
// may be of the same millisecond, or of a clock that was set back.
func (t *Tail) goOn(ctx context.Context, p eventhub.Place) (at beginning, _ error) {
	if p.Offset == 0 {
		return t.begin(ctx, p.Topic, eventhub.FromOffset(1))
	}
	first, marks, same, err := holdPlace(ctx, t.tails.store, p)
	first = max(first, p.Offset+1)
	passed := marks.Above(first-1, store.Marks{})
	switch {
	case err != nil:
		return at, err
	case same && first == p.Offset+1 && passed == (store.Marks{}):
		return beginning{cursor: p.Offset}, nil
	case same:
		at = beginning{cursor: first - 1, knows: marks}
		t.tell(&at, &eventhub.Gap{Topic: p.Topic, After: p.Offset, First: first, Compacted: passed.Compacted, Tombstones: passed.Tombstones})
		return at, nil
	case p.TS > 0:
		if at.cursor, err = past.Resolve(ctx, t.tails.store, p.Topic, eventhub.Start{Kind: eventhub.StartTime, TS: p.TS + 1}); err != nil {
			return at, err
		}
		at.cursor = min(at.cursor, p.Offset)
	}
	t.reportGap(eventhub.Gap{Topic: p.Topic, After: p.Offset})
	return at, nil
}

// beginning is where a tail begins in a topic.
type beginning struct {
	cursor uint64
	knows  store.Marks   // of the topic, as its owner knows them
	gap    *eventhub.Gap // that the first event is to say; nil for most
}

// begin returns the offset after which a tail begins that has no place in a topic, and
// notifies the receiver where that is not what start names.
func (t *Tail) begin(ctx context.Context, topic string, start eventhub.Start) (at beginning, err error) {
	var gap *eventhub.Gap
	at.cursor, gap, at.knows, err = past.Begin(ctx, t.tails.store, topic, start)
	if err == nil && gap != nil {
		t.tell(&at, gap)
	}
	return at, err
}

// tell notifies the receiver of a gap before a beginning, or leaves it to the first event.
func (t *Tail) tell(at *beginning, gap *eventhub.Gap) {
	if !t.reportGap(*gap) {
		at.gap = gap
	}
}

// holdPlace holds a place against the log. same: the log has its event, or had it. Then
// first is where the log begins, if that is after the place, and marks are the topic's.
func holdPlace(ctx context.Context, s store.Store, p eventhub.Place) (first uint64, marks store.Marks, same bool, _ error) {
	var batch store.Batch
	if err := s.Read(ctx, p.Topic, p.Offset, 1, 0, &batch); err != nil {
		return 0, marks, false, store.Failed(err, "look at offset %d of topic %q", p.Offset, p.Topic)
	}
	if len(batch.Items) > 0 && batch.Items[0].Offset == p.Offset {
		return 0, batch.Marks(), p.TS == 0 || p.TS == batch.Items[0].Record.CommitTime(), nil
	}
	if same, err := hadPlace(ctx, s, p, batch.Items); err != nil || !same {
		return 0, marks, false, err
	}
	marks = batch.Marks()
	if first = batch.Horizon; first > p.Offset {
		return first, marks, true, nil
	}
	if marks.Above(p.Offset, store.Marks{}) != (store.Marks{}) {
		return 0, marks, true, nil // the marks say what may be missing, also where nothing is left below them
	}
	item, err := past.First(ctx, s, p.Topic, 1)
	return item.Offset, marks, true, err
}

// hadPlace reports whether a log without an event at a place may have had one there: it goes
// on above, and what it has up to there was committed no later than that event, what comes
// after it no earlier. A log that lost its end, or is another one, has events of later
// times below the place, or ends there. next is the first event after the place, if there
// is one.
func hadPlace(ctx context.Context, s store.Store, p eventhub.Place, next []store.Item) (bool, error) {
	info, err := s.Topic(ctx, p.Topic)
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, store.Failed(err, "look up topic %q", p.Topic)
	}
	if p.TS == 0 || info.Head < p.Offset {
		return info.Head >= p.Offset, nil
	}
	if info.LastTime < p.TS || len(next) > 0 && next[0].Record.CommitTime() < p.TS {
		return false, nil
	}
	later, err := s.SeekTime(ctx, p.Topic, p.TS+1)
	if err != nil {
		return false, store.Failed(err, "look for what came after offset %d of topic %q", p.Offset, p.Topic)
	}
	return later > p.Offset, nil
}

// reportGone reports the places in topics that are not there.
func (t *Tail) reportGone(places map[string]eventhub.Place, patterns []eventhub.Pattern) {
	for _, topic := range slices.Sorted(maps.Keys(places)) {
		if p := places[topic]; p.Offset > 0 && slices.ContainsFunc(patterns, func(q eventhub.Pattern) bool { return q.Match(topic) }) {
			t.reportGap(eventhub.Gap{Topic: topic, After: p.Offset})
		}
	}
}

// reportGap notifies the receiver, if it is one that wants to be. Of removed events it does so
// in MaxPlaces topics: a tail of many more is told of the others with their events.
func (t *Tail) reportGap(g eventhub.Gap) (told bool) {
	r, ok := t.receiver.(eventhub.Gapped)
	if !ok || g.First != 0 && t.reported >= eventhub.MaxPlaces {
		return false
	}
	t.reported++
	r.Gap(g)
	return true
}
