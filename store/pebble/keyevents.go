package pebble

import (
	"context"
	"fmt"
	"slices"

	"eventhub/store"

	pdb "github.com/cockroachdb/pebble/v2"
)

// KeyEvents implements store.Log. The entries of a key are next to each other in the key index
// with the newest first, so it costs one seek, and another one for each event; index and log
// are read as of one moment, as by State.
func (s *Store) KeyEvents(ctx context.Context, topic, key string, before uint64, limit, maxBytes int, batch *store.Batch) (next uint64, err error) {
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.leave()
	t, err := s.published(topic)
	if t == nil || err != nil {
		batch.Horizon, batch.Compacted, batch.Tombstones = 0, 0, 0
		return 0, err
	}
	for n := len(batch.Items); ; batch.Items = batch.Items[:n] {
		head := t.head.Load()
		at := head
		if before != 0 {
			at = min(at, before-1)
		}
		if next, err = s.keyEvents(ctx, t, key, at, limit, maxBytes, batch); err != nil {
			return 0, fmt.Errorf("store/pebble: events of key %q in topic %q below offset %d: %w", key, topic, at+1, err)
		}
		// The topic may have grown, and been compacted, since its head was looked at: see State.
		if before != 0 || at >= batch.Compacted || t.head.Load() == head {
			return next, nil
		}
	}
}

// keyEvents reads what is at or below an offset.
func (s *Store) keyEvents(ctx context.Context, t *topic, key string, at uint64, limit, maxBytes int, batch *store.Batch) (next uint64, err error) {
	index, err := t.keys.look()
	if err != nil {
		return 0, err
	}
	c := stateScan{topic: t, view: t.look()}
	s.stateHook(false)
	c.keys, err = s.db.NewIterWithContext(ctx, &pdb.IterOptions{
		LowerBound: appendKeyKey(nil, t.id, key, at),
		UpperBound: afterKey(slices.Clip(appendKeyPrefix(nil, t.id, key))),
	})
	if err != nil {
		return 0, err
	}
	defer closeInto(c.keys, &err)
	bounds := numberBounds(tagEvent, t.id)
	if c.log, err = c.keys.CloneWithContext(ctx, pdb.CloneOptions{IterOptions: &bounds}); err != nil {
		return 0, err
	}
	defer closeInto(c.log, &err)
	if err := t.keys.again(index); err != nil {
		return 0, err
	}
	from := c.view.again(t)
	s.stateHook(true)
	c.view.after.tell(batch)
	visits, n := stateVisits, 0
	for valid := c.keys.First(); valid; valid = c.keys.Next() {
		offset := keyOffset(c.keys.Key())
		switch {
		case offset < from:
			return 0, nil
		case n >= limit || visits == 0:
			return offset + 1, nil
		}
		visits--
		if c.view.hides(offset) {
			continue
		}
		record, err := c.record(offset)
		if err != nil {
			return 0, err
		}
		if record == nil {
			continue // it was removed and swept
		}
		if maxBytes -= len(record); n > 0 && maxBytes < 0 {
			return offset + 1, nil
		}
		batch.Add(offset, record)
		n++
	}
	return 0, c.keys.Error()
}
