package pebble

import (
	"bytes"
	"context"
	"fmt"
	"sync"

	"eventhub"
	"eventhub/store"

	pdb "github.com/cockroachdb/pebble/v2"
)

// gate lets readers see only the delayed events, patterns, settings or notes that are synced. It is
// shut from before a commit that changes them hands its batch to Pebble until the batch is
// durable. It stays shut where that failed: what the commit left in Pebble may
// not be shown.
type gate struct {
	mu   sync.RWMutex
	shut bool
}

func (g *gate) set(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = shut
}

// change changes what readers look at in addition to Pebble.
func (g *gate) change(do func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	do()
}

// try runs look while no commit can begin to change what it sees, and reports
// false where one is under way.
func (g *gate) try(look func() error) (open bool, err error) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if g.shut {
		return false, nil
	}
	return true, look()
}

// synced runs look where all that the gate guards is durable, and waits for
// the commit that changes it.
func (s *Store) synced(g *gate, look func() error) error {
	open, err := g.try(look)
	if !open {
		s.committing.Lock()
		open, err = g.try(look)
		s.committing.Unlock()
	}
	if !open {
		return s.faults.err()
	}
	return err
}

// Delayed implements store.Schedule.
func (s *Store) Delayed(ctx context.Context, afterAt int64, afterSeq uint64, until int64, limit, maxBytes int) (delays []store.Delayed, err error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	if until < 0 || limit <= 0 || afterAt > until {
		return nil, nil
	}
	bounds := &pdb.IterOptions{LowerBound: []byte{tagDelayed}, UpperBound: append(appendDelayKey(nil, until, 1<<64-1), 0)}
	if afterAt >= 0 {
		bounds.LowerBound = append(appendDelayKey(nil, afterAt, afterSeq), 0)
	}
	if delays, err = s.delayedIn(bounds, limit, maxBytes); err != nil {
		return nil, fmt.Errorf("store/pebble: read the delayed events after (%d, %d): %w", afterAt, afterSeq, err)
	}
	return delays, nil
}

func (s *Store) delayedIn(bounds *pdb.IterOptions, limit, maxBytes int) (delays []store.Delayed, err error) {
	var iter *pdb.Iterator
	var gone goneDelayed
	err = s.synced(&s.delays, func() (err error) {
		gone = s.goneDelayed // of the moment of what is read: a bound goes with its last event
		iter, err = s.db.NewIter(bounds)
		return err
	})
	if err != nil {
		return nil, err
	}
	defer closeInto(iter, &err)
	upTo := gone.byTopic()
	for valid := iter.First(); valid && len(delays) < limit; valid = iter.Next() {
		value, err := iter.ValueAndErr()
		if err != nil {
			return nil, err
		}
		if len(upTo) > 0 && isGone(upTo, iter.Key(), value) {
			continue
		}
		p, err := decodeDelayed(iter.Key(), value)
		if err != nil {
			return nil, err
		}
		if maxBytes -= len(p.Record); len(delays) > 0 && maxBytes < 0 {
			break
		}
		delays = append(delays, p)
	}
	return delays, iter.Error()
}

// isGone reports whether a row is a delayed event of a topic that was deleted.
func isGone(upTo map[string]uint64, key, value []byte) bool {
	place, err := delayPlaceOf(key)
	topic, _, ok := cutText(value)
	return err == nil && ok && place.seq <= upTo[topic]
}

// FindDelayed implements store.Schedule.
func (s *Store) FindDelayed(ctx context.Context, topic, id string) (store.Delayed, error) {
	if err := s.enter(ctx); err != nil {
		return store.Delayed{}, err
	}
	defer s.leave()
	var p store.Delayed
	found := false
	err := s.synced(&s.delays, func() (err error) {
		p, found, err = s.storedDelayed(topic, id)
		return err
	})
	if err != nil {
		return store.Delayed{}, fmt.Errorf("store/pebble: find the delayed event of id %q in topic %q: %w", id, topic, err)
	}
	if !found {
		return store.Delayed{}, fmt.Errorf("delayed event of id %q in topic %q: %w", id, topic, store.ErrNotFound)
	}
	return p, nil
}

// storedDelayed returns what Pebble has.
func (s *Store) storedDelayed(topic, id string) (p store.Delayed, found bool, err error) {
	t := s.topics.get(topic)
	if t == nil {
		return p, false, nil
	}
	value, err := s.get(appendDelayIDKey(nil, t.id, id))
	if value == nil || err != nil {
		return p, false, err
	}
	place, err := decodeDelayedPlace(value)
	if err != nil {
		return p, false, err
	}
	key := appendDelayKey(nil, place.at, place.seq)
	if value, err = s.get(key); err != nil {
		return p, false, err
	}
	p, err = decodeDelayed(key, value)
	return p, err == nil, err
}

// ListPatterns implements store.Groups.
func (s *Store) ListPatterns(ctx context.Context) (patterns []store.PatternInfo, err error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	if patterns, err = s.allPatterns(); err != nil {
		return nil, fmt.Errorf("store/pebble: list patterns: %w", err)
	}
	return patterns, nil
}

func (s *Store) allPatterns() (patterns []store.PatternInfo, err error) {
	var iter *pdb.Iterator
	err = s.synced(&s.patterns, func() (err error) {
		iter, err = s.db.NewIter(&pdb.IterOptions{LowerBound: []byte{tagPattern}, UpperBound: []byte{tagPattern + 1}})
		return err
	})
	if err != nil {
		return nil, err
	}
	defer closeInto(iter, &err)
	for valid := iter.First(); valid; valid = iter.Next() {
		group, pattern, ok := bytes.Cut(iter.Key()[1:], []byte{0})
		if !ok {
			return nil, fmt.Errorf("key %x of a pattern has no end of the group's name", iter.Key())
		}
		value, err := iter.ValueAndErr()
		if err != nil {
			return nil, err
		}
		info := store.PatternInfo{Group: string(group), Pattern: string(pattern)}
		if len(value) > 0 {
			info.Value = bytes.Clone(value)
		}
		patterns = append(patterns, info)
	}
	return patterns, iter.Error()
}

// decodeDelayed copies what it returns.
func decodeDelayed(key, value []byte) (store.Delayed, error) {
	place, err := delayPlaceOf(key)
	if err != nil {
		return store.Delayed{}, err
	}
	topic, rest, ok := cutText(value)
	eventKey, rest, ok2 := cutText(rest)
	record := eventhub.Record(bytes.Clone(rest))
	id := record.ID()
	if !ok || !ok2 || len(id) == 0 {
		return store.Delayed{}, fmt.Errorf("the delayed event at (%d, %d) reads %.60q", place.at, place.seq, value)
	}
	return store.Delayed{
		Topic: topic, ID: string(id), Key: eventKey, At: place.at, Seq: place.seq, Record: record,
	}, nil
}
