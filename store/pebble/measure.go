package pebble

import (
	"context"
	"fmt"

	"eventhub/store"
)

// measureBytes is how much one Measure reads.
const measureBytes = 16 << 20

// Measure implements store.Retention.
func (s *Store) Measure(ctx context.Context, topic string, from uint64, until store.Usage) (u store.Usage, next uint64, done bool, err error) {
	if err := s.enter(ctx); err != nil {
		return u, 0, false, err
	}
	defer s.leave()
	t, err := s.published(topic)
	if t == nil || err != nil {
		return u, from, true, err
	}
	if u, next, done, err = s.measure(t, from, until); err != nil {
		return u, 0, false, fmt.Errorf("store/pebble: measure topic %q from offset %d: %w", topic, from, err)
	}
	return u, next, done, nil
}

func (s *Store) measure(t *topic, from uint64, until store.Usage) (u store.Usage, next uint64, done bool, err error) {
	head := t.head.Load()
	v := t.look()
	iter, err := s.events(t, max(from, v.before.from()), head)
	if err != nil {
		return u, 0, false, err
	}
	defer closeInto(iter, &err)
	next = max(from, v.again(t))
	for valid := iter.First(); valid; valid = iter.Next() {
		offset := eventOffset(iter.Key())
		if v.hides(offset) {
			continue
		}
		switch {
		case until.Events > 0 && u.Events >= until.Events, until.Bytes > 0 && u.Bytes >= until.Bytes:
			return u, next, true, nil
		case u.Bytes >= measureBytes:
			return u, next, false, nil
		}
		lazy := iter.LazyValue()
		u.Events++
		u.Bytes += uint64(lazy.Len())
		next = offset + 1
	}
	return u, next, true, iter.Error()
}
