package tail

import (
	"context"
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
func (t *Tail) goOn(ctx context.Context, p eventhub.Place) (cursor uint64, _ error) {
	if p.Offset == 0 {
		return 0, nil
	}
	first, same, err := holdPlace(ctx, t.tails.store, p)
	switch {
	case err != nil:
		return 0, err
	case same && first <= p.Offset+1:
		return p.Offset, nil
	case same:
		t.reportGap(p, first)
		return p.Offset, nil
	case p.TS > 0:
		if cursor, err = past.Resolve(ctx, t.tails.store, p.Topic, eventhub.Start{Kind: eventhub.StartTime, TS: p.TS + 1}); err != nil {
			return 0, err
		}
		cursor = min(cursor, p.Offset)
	}
	t.reportGap(p, 0)
	return cursor, nil
}

// holdPlace holds a place against the log. same: the log has its event, or had it. Then
// first is where the log begins, if that is after the place.
func holdPlace(ctx context.Context, s store.Store, p eventhub.Place) (first uint64, same bool, _ error) {
	var batch store.Batch
	if err := s.Read(ctx, p.Topic, p.Offset, 1, 0, &batch); err != nil {
		return 0, false, store.Failed(err, "look at offset %d of topic %q", p.Offset, p.Topic)
	}
	if len(batch.Items) == 0 {
		return 0, false, nil
	}
	at, ts := batch.Items[0].Offset, batch.Items[0].Record.CommitTime()
	if at == p.Offset {
		return 0, p.TS == 0 || p.TS == ts, nil
	}
	if ts < p.TS {
		return 0, false, nil
	}
	batch.Reset()
	if err := s.Read(ctx, p.Topic, 1, 1, 0, &batch); err != nil {
		return 0, false, store.Failed(err, "look at the beginning of topic %q", p.Topic)
	}
	if len(batch.Items) == 0 { // deleted just now
		return 0, false, nil
	}
	first = batch.Items[0].Offset
	// Events are removed from the front only: a hole with events before it is one in
	// another log, or after a crash.
	return first, p.TS == 0 || first > p.Offset, nil
}

// reportGone reports the places in topics that are not there.
func (t *Tail) reportGone(places map[string]eventhub.Place, patterns []eventhub.Pattern) {
	for _, topic := range slices.Sorted(maps.Keys(places)) {
		if p := places[topic]; p.Offset > 0 && slices.ContainsFunc(patterns, func(q eventhub.Pattern) bool { return q.Match(topic) }) {
			t.reportGap(p, 0)
		}
	}
}

func (t *Tail) reportGap(p eventhub.Place, first uint64) {
	if r, ok := t.receiver.(eventhub.Gapped); ok {
		r.Gap(eventhub.Gap{Topic: p.Topic, After: p.Offset, First: first})
	}
}
