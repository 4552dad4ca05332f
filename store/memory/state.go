package memory

import (
	"context"
	"slices"
	"strings"

	"eventhub/internal/record/layout"
	"eventhub/store"
)

// State implements store.Log. It goes through all keys of the topic for each page, and
// remembers only as many as it may give.
func (s *Store) State(ctx context.Context, q store.StateQuery, batch *store.Batch) (page store.StatePage, err error) {
	checkStateQuery(&q)
	if err := s.enter(ctx); err != nil {
		return page, err
	}
	defer s.mu.RUnlock()
	t := s.topics[q.Topic]
	if t == nil {
		batch.Horizon, batch.Compacted, batch.Tombstones = 0, 0, 0
		return store.StatePage{Done: true}, nil
	}
	if err := t.indexed(q.Topic); err != nil {
		return page, err
	}
	batch.Horizon, batch.Compacted, batch.Tombstones = t.horizon, t.compacted, t.tombstones
	if page.At = q.At; q.At == 0 || q.At > t.head {
		page.At = t.head
	}
	keys, done := t.stateKeys(&q, page.At)
	room := q.MaxBytes
	for i, key := range keys {
		offset := t.newest(key, page.At)
		record := t.at(offset)
		if room -= len(record); i > 0 && room < 0 {
			return page, nil
		}
		batch.Add(offset, record)
		page.After = key
	}
	if page.Done = done; done {
		page.After = ""
	}
	return page, nil
}

// KeyEvents implements store.Log.
func (s *Store) KeyEvents(ctx context.Context, topic, key string, before uint64, limit, maxBytes int, batch *store.Batch) (next uint64, err error) {
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.mu.RUnlock()
	t := s.topics[topic]
	if t == nil {
		batch.Horizon, batch.Compacted, batch.Tombstones = 0, 0, 0
		return 0, nil
	}
	if err := t.indexed(topic); err != nil {
		return 0, err
	}
	batch.Horizon, batch.Compacted, batch.Tombstones = t.horizon, t.compacted, t.tombstones
	n := 0
	for _, offset := range slices.Backward(t.keys[key]) {
		if before != 0 && offset >= before {
			continue
		}
		record := t.at(offset)
		if maxBytes -= len(record); n >= limit || n > 0 && maxBytes < 0 {
			return offset + 1, nil
		}
		batch.Add(offset, record)
		n++
	}
	return 0, nil
}

// newest returns the offset of the newest event with a key at or below an offset, 0 for none.
func (t *topic) newest(key string, at uint64) uint64 {
	offsets := t.keys[key]
	n, _ := slices.BinarySearch(offsets, at+1)
	if n == 0 {
		return 0
	}
	return offsets[n-1]
}

// stateKeys returns the first keys that the query asks for and that have a value, in order, and
// whether there are no more.
func (t *topic) stateKeys(q *store.StateQuery, at uint64) (keys []string, done bool) {
	done = true
	visit := func(key string) {
		if key <= q.After {
			return
		}
		if offset := t.newest(key, at); offset == 0 || layout.IsTombstone(t.at(offset)) {
			return
		}
		if keys = append(keys, key); len(keys) > 2*q.Limit {
			slices.Sort(keys)
			keys, done = keys[:q.Limit], false
		}
	}
	if q.Keys != nil {
		for _, key := range q.Keys {
			visit(key)
		}
	} else {
		for key := range t.keys {
			if strings.HasPrefix(key, q.Prefix) {
				visit(key)
			}
		}
	}
	slices.Sort(keys)
	if len(keys) > q.Limit {
		keys, done = keys[:q.Limit], false
	}
	return keys, done
}

func checkStateQuery(q *store.StateQuery) {
	if q.Limit < 1 {
		misuse("state of topic %q: the limit is %d", q.Topic, q.Limit)
	}
	for i, key := range q.Keys {
		if key == "" || i > 0 && key <= q.Keys[i-1] {
			misuse("state of topic %q: key %q is empty, or not after the one before", q.Topic, key)
		}
	}
	if len(q.Keys) > 0 && q.Prefix != "" {
		misuse("state of topic %q: %d keys, and the prefix %q", q.Topic, len(q.Keys), q.Prefix)
	}
}
