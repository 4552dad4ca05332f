package pebble

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"eventhub"
	"eventhub/store"

	pdb "github.com/cockroachdb/pebble/v2"
)

// expected are the keys of which appends of one commit expect something. Their newest events
// are looked up before the first unit is checked, in the order of the key index, with one
// iterator; it shows what commits have applied that are still being synced. From there on
// what the units add is counted on top. A commit in which nobody expects anything costs one
// comparison an event.
type expected struct {
	any     bool            // some append expects something
	index   map[keyName]int // into keys
	keys    []expectedKey
	pending []int // those of keys that are to be looked up
	unit    int   // the number of the unit that is being checked
}

type keyName struct{ topic, key string }

// expectedKey is what is known of a key.
type expectedKey struct {
	topic  *topic // as it was before the commit; nil where it was not there
	key    string
	stored uint64   // the newest event before the commit, 0 for none
	added  []uint64 // those of the commit, in order
}

func (x *expected) reset() {
	x.any, x.unit = false, 0
	clear(x.index)
	clear(x.keys)
	x.keys, x.pending = x.keys[:0], x.pending[:0]
}

// lookUp collects the keys of units of which something is expected and finds their newest
// events in the store.
func (x *expected) lookUp(c *commit, units []*store.Unit) (err error) {
	if !x.any {
		return nil
	}
	for _, u := range units {
		for i := range u.Appends {
			if a := &u.Appends[i]; a.Expect.Kind == eventhub.ExpectKeyOffset {
				if err := x.add(c, a); err != nil {
					return err
				}
			}
		}
	}
	if len(x.pending) == 0 {
		return nil
	}
	slices.SortFunc(x.pending, func(a, b int) int {
		return cmp.Or(cmp.Compare(x.keys[a].topic.id, x.keys[b].topic.id), strings.Compare(x.keys[a].key, x.keys[b].key))
	})
	iter, err := c.s.keyIndex()
	if err != nil {
		return err
	}
	defer closeInto(iter, &err)
	for _, i := range x.pending {
		k := &x.keys[i]
		if k.stored, err = newestOfKey(iter, k.topic, k.key); err != nil {
			return err
		}
	}
	return nil
}

func (x *expected) add(c *commit, a *store.Append) error {
	name := keyName{a.Topic, a.Key}
	if _, ok := x.index[name]; ok {
		return nil
	}
	t, err := c.topic(a.Topic)
	if err != nil {
		return err
	}
	if t != nil && t.keys.built == store.Indexed { // else there is nothing to be found, and the unit is refused
		x.pending = append(x.pending, len(x.keys))
	}
	x.index[name] = len(x.keys)
	x.keys = append(x.keys, expectedKey{topic: t, key: a.Key})
	return nil
}

// note counts an event that the commit adds.
func (x *expected) note(a *store.Append) {
	if i, ok := x.index[keyName{a.Topic, a.Key}]; ok {
		x.keys[i].added = append(x.keys[i].added, a.Offset)
	}
}

// keyIndex returns an iterator over the key index of all topics.
func (s *Store) keyIndex() (*pdb.Iterator, error) {
	iter, err := s.db.NewIter(&pdb.IterOptions{LowerBound: []byte{tagKey}, UpperBound: []byte{tagKey + 1}})
	if err != nil {
		return nil, fmt.Errorf("look up keys: %w", err)
	}
	return iter, nil
}

// newestOfKey returns the offset of the newest event of a key that is not removed, as the units
// so far leave the topic, but without the events that they add; 0 for none. It is called by whoever
// commits: what is swept is hidden until the commit is over.
func newestOfKey(iter *pdb.Iterator, t *topic, key string) (uint64, error) {
	prefix := appendKeyPrefix(nil, t.id, key)
	removed := t.pending()
	for valid := iter.SeekGE(prefix); valid && bytes.HasPrefix(iter.Key(), prefix); valid = iter.Next() {
		offset := keyOffset(iter.Key())
		if offset < removed.from() {
			return 0, nil
		}
		if !removed.hides(offset) {
			return offset, nil
		}
	}
	if err := iter.Error(); err != nil {
		return 0, fmt.Errorf("look up key %q in topic %q: %w", key, t.name, err)
	}
	return 0, nil
}

// checkExpected refuses a unit of which something that is expected does not hold.
func (c *commit) checkExpected(u *store.Unit) (refusal, err error) {
	if !slices.ContainsFunc(u.Appends, func(a store.Append) bool { return !a.Expect.IsZero() }) {
		return nil, nil
	}
	c.expected.unit++
	for i := range u.Appends {
		a := &u.Appends[i]
		if c.isRepeated(a) || a.Expect.IsZero() {
			continue
		}
		present, err := c.present(a)
		switch {
		case errors.Is(err, store.ErrNotIndexed):
			return &store.NotIndexedError{Topic: a.Topic}, nil
		case err != nil:
			return nil, err
		}
		if present != a.Expect.Offset {
			return &store.ConflictError{Append: i, Expect: a.Expect, Present: present}, nil
		}
	}
	return nil, nil
}

// isRepeated reports whether the append will be a duplicate, of the store or of its unit, whose
// appends are asked for in order.
func (c *commit) isRepeated(a *store.Append) bool {
	if a.NewID {
		return false
	}
	first := c.given.find(a.Topic, a.ID)
	if first.offset != 0 || first.unit == c.expected.unit {
		return true
	}
	first.unit = c.expected.unit
	return false
}

// present returns what the offset is that an append expects.
func (c *commit) present(a *store.Append) (offset uint64, err error) {
	t, err := c.topic(a.Topic)
	if t == nil || err != nil {
		return 0, err
	}
	if a.Expect.Kind == eventhub.ExpectTopicOffset {
		return t.end, nil
	}
	if t.keys.built != store.Indexed {
		return 0, store.ErrNotIndexed
	}
	k := &c.expected.keys[c.expected.index[keyName{a.Topic, a.Key}]]
	removed := t.pending()
	for i := len(k.added) - 1; i >= 0; i-- {
		if !removed.hides(k.added[i]) {
			return k.added[i], nil
		}
	}
	if k.stored == 0 || !removed.hides(k.stored) {
		return k.stored, nil
	}
	// It was removed by a unit before this one.
	iter, err := c.s.keyIndex()
	if err != nil {
		return 0, err
	}
	defer closeInto(iter, &err)
	return newestOfKey(iter, k.topic, k.key)
}
