package pebble

import (
	"context"
	"fmt"
	"slices"

	"eventhub"
	"eventhub/store"

	pdb "github.com/cockroachdb/pebble/v2"
)

// events returns an iterator over the log of t from offset from to offset to,
// both included.
func (s *Store) events(t *topic, from, to uint64) (*pdb.Iterator, error) {
	return s.db.NewIter(&pdb.IterOptions{
		LowerBound: appendEventKey(nil, t.id, from),
		UpperBound: appendEventKey(nil, t.id, to+1),
	})
}

// Read implements store.Log.
func (s *Store) Read(ctx context.Context, topic string, from uint64, limit, maxBytes int, batch *store.Batch) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	t, err := s.published(topic)
	if t == nil || err != nil {
		batch.Horizon, batch.Compacted, batch.Tombstones = 0, 0, 0
		return err
	}
	head := t.head.Load()
	if from > head || limit <= 0 {
		t.removed.Load().tell(batch)
		return nil
	}
	if err := s.read(t, from, head, limit, maxBytes, batch); err != nil {
		return fmt.Errorf("store/pebble: read topic %q from offset %d: %w", topic, from, err)
	}
	return nil
}

func (s *Store) read(t *topic, from, head uint64, limit, maxBytes int, batch *store.Batch) (err error) {
	v := t.look()
	iter, err := s.events(t, max(from, v.before.from()), head)
	if err != nil {
		return err
	}
	defer closeInto(iter, &err)
	v.again(t)
	v.after.tell(batch)
	n := 0
	for valid := iter.First(); valid && n < limit; valid = iter.Next() {
		offset := eventOffset(iter.Key())
		if v.hides(offset) {
			continue
		}
		record, err := iter.ValueAndErr()
		if err != nil {
			return err
		}
		if maxBytes -= len(record); n > 0 && maxBytes < 0 {
			break
		}
		batch.Add(offset, record)
		n++
	}
	return iter.Error()
}

// Head implements store.Log.
func (s *Store) Head(ctx context.Context, topic string) (uint64, error) {
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.leave()
	t, err := s.published(topic)
	if t == nil || err != nil {
		return 0, err
	}
	return t.head.Load(), nil
}

// Find implements store.Log.
func (s *Store) Find(ctx context.Context, topic, id string) (uint64, error) {
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.leave()
	t, err := s.published(topic)
	if err != nil {
		return 0, err
	}
	if t != nil {
		// The head first: what is at or below it, the look-up sees.
		head := t.head.Load()
		v := t.look()
		offset, err := s.offsetOf(t, id)
		if err != nil {
			return 0, fmt.Errorf("store/pebble: find id %q in topic %q: %w", id, topic, err)
		}
		if v.again(t); offset != 0 && offset <= head && !v.hides(offset) {
			return offset, nil
		}
	}
	return 0, fmt.Errorf("id %q in topic %q: %w", id, topic, store.ErrNotFound)
}

// offsetOf asks the id itself and the id index; 0 is no.
func (s *Store) offsetOf(t *topic, id string) (uint64, error) {
	if p, ok := s.ids.fresh().place(id); ok && p.topic == t.id {
		if _, ok, err := s.holds(p, id); ok || err != nil {
			return p.offset, err
		}
	}
	offset, err := s.entry(id, t.id)
	if offset == 0 || err != nil {
		return 0, err
	}
	// An id outlives its event for a while.
	if is, err := s.has(appendEventKey(nil, t.id, offset)); !is || err != nil {
		return 0, err
	}
	return offset, nil
}

// SeekTime implements store.Log.
func (s *Store) SeekTime(ctx context.Context, topic string, ts int64) (uint64, error) {
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.leave()
	t, err := s.published(topic)
	if err != nil {
		return 0, err
	}
	if t == nil {
		return 1, nil
	}
	offset, err := s.seekTime(t, ts)
	if err != nil {
		return 0, fmt.Errorf("store/pebble: seek time %d in topic %q: %w", ts, topic, err)
	}
	return offset, nil
}

// seekTime is a binary search over the log, which is sorted by commit time. The
// probe of an offset without event is the next event after it. What is sought
// is the smallest offset whose probe is at or after ts, so gaps do no harm; the
// answer is that probe.
func (s *Store) seekTime(t *topic, ts int64) (answer uint64, err error) {
	head := t.head.Load()
	v := t.look()
	iter, err := s.events(t, 0, head)
	if err != nil {
		return 0, err
	}
	defer closeInto(iter, &err)
	var key [eventKeyBytes]byte
	answer = head + 1
	for low, high := v.again(t), head+1; low < high; {
		middle := low + (high-low)/2
		valid := iter.SeekGE(appendEventKey(key[:0], t.id, middle))
		for valid && v.hides(eventOffset(iter.Key())) {
			valid = iter.Next()
		}
		if !valid {
			if err := iter.Error(); err != nil {
				return 0, err
			}
			high = middle
			continue
		}
		record, err := iter.ValueAndErr()
		if err != nil {
			return 0, err
		}
		offset := eventOffset(iter.Key())
		if eventhub.Record(record).CommitTime() >= ts {
			answer, high = offset, middle
		} else {
			low = offset + 1
		}
	}
	return answer, nil
}

// Latest implements store.Log.
func (s *Store) Latest(ctx context.Context, topic, key string, at uint64) (store.Item, error) {
	if err := s.enter(ctx); err != nil {
		return store.Item{}, err
	}
	defer s.leave()
	t, err := s.published(topic)
	if err != nil {
		return store.Item{}, err
	}
	if t != nil {
		item, err := s.latest(t, key, at)
		if err != nil {
			return store.Item{}, fmt.Errorf("store/pebble: latest of key %q in topic %q: %w", key, topic, err)
		}
		if item.Offset != 0 {
			return item, nil
		}
	}
	return store.Item{}, fmt.Errorf("key %q in topic %q: %w", key, topic, store.ErrNotFound)
}

// latest returns the zero Item where there is none.
func (s *Store) latest(t *topic, key string, at uint64) (item store.Item, err error) {
	if head := t.head.Load(); at == 0 || at > head {
		at = head
	}
	prefix := appendKeyPrefix(nil, t.id, key)
	v := t.look()
	index, err := t.keys.look()
	if err != nil {
		return store.Item{}, err
	}
	iter, err := s.db.NewIter(&pdb.IterOptions{
		LowerBound: appendKeyKey(nil, t.id, key, at),
		UpperBound: append(slices.Clip(prefix), 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff),
	})
	if err != nil {
		return store.Item{}, err
	}
	defer closeInto(iter, &err)
	if err := t.keys.again(index); err != nil {
		return store.Item{}, err
	}
	from := v.again(t)
	thinned, err := s.thinned(t) // after the iterator: what a pass takes out of the index from here on, that has
	if err != nil {
		return store.Item{}, err
	}
	for valid := iter.First(); valid && keyOffset(iter.Key()) > thinned; valid = iter.Next() {
		offset := keyOffset(iter.Key())
		if offset < from {
			return store.Item{}, nil
		}
		if v.hides(offset) {
			continue
		}
		record, err := s.get(appendEventKey(nil, t.id, offset))
		if err != nil {
			return store.Item{}, fmt.Errorf("offset %d: %w", offset, err)
		}
		if record != nil { // it may have been removed and swept since
			return store.Item{Offset: offset, Record: record}, nil
		}
	}
	if err := iter.Error(); err != nil || thinned < from {
		return store.Item{}, err
	}
	return store.Item{}, store.ErrNotIndexed
}
