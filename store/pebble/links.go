package pebble

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"

	"eventhub/store"

	pdb "github.com/cockroachdb/pebble/v2"
)

// Links are shown up to the durable head of their topic, as events are: Pebble
// shows them before the fsync of their commit.

// Places implements store.Links.
func (s *Store) Places(ctx context.Context, id string, limit int) ([]store.Place, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	places, err := s.places(id)
	if err != nil {
		return nil, fmt.Errorf("store/pebble: find the places of id %q: %w", id, err)
	}
	slices.SortFunc(places, func(a, b store.Place) int { return strings.Compare(a.Topic, b.Topic) })
	return places[:min(len(places), max(limit, 0))], nil
}

// places asks the id itself and the id index.
func (s *Store) places(id string) (places []store.Place, err error) {
	if places, err = s.madePlaces(id); err != nil {
		return nil, err
	}
	f := formOf(id)
	if places, err = s.indexedPlaces(f.appendPrefix(nil), places); err == nil && s.textIDs && f.isUUID() {
		places, err = s.indexedPlaces(appendIDText(nil, id), places)
	}
	return places, err
}

// indexedPlaces adds those of the entries that begin with a prefix.
func (s *Store) indexedPlaces(prefix []byte, places []store.Place) (_ []store.Place, err error) {
	iter, err := s.tagged(tagID)
	if err != nil {
		return nil, err
	}
	defer closeInto(iter, &err)
	for valid := iter.SeekGE(prefix); valid && bytes.HasPrefix(iter.Key(), prefix); valid = iter.Next() {
		tail := iter.Key()[len(prefix):]
		if len(tail) != topicIDBytes {
			return nil, fmt.Errorf("key %x of the id index has %d bytes after the id; want %d", iter.Key(), len(tail), topicIDBytes)
		}
		value, err := iter.ValueAndErr()
		if err != nil {
			return nil, err
		}
		offset, err := decodeOffset(value)
		if err != nil {
			return nil, err
		}
		t, err := s.shown(binary.BigEndian.Uint32(tail))
		if err != nil {
			return nil, err
		}
		if t == nil || offset > t.head.Load() {
			continue
		}
		v := t.look()
		is, err := s.has(appendEventKey(nil, t.id, offset)) // an id outlives its event for a while
		if err != nil {
			return nil, err
		}
		if v.again(t); is && !v.hides(offset) {
			places = append(places, store.Place{Topic: t.name, Offset: offset})
		}
	}
	return places, iter.Error()
}

// madePlaces returns the place that the id names, if its event is there.
func (s *Store) madePlaces(id string) ([]store.Place, error) {
	p, ok := s.ids.fresh().place(id)
	if !ok {
		return nil, nil
	}
	t, err := s.shown(p.topic)
	if t == nil || err != nil || p.offset > t.head.Load() {
		return nil, err
	}
	v := t.look()
	if _, ok, err = s.holds(p, id); !ok || err != nil {
		return nil, err
	}
	if v.again(t); v.hides(p.offset) {
		return nil, nil
	}
	return []store.Place{{Topic: t.name, Offset: p.offset}}, nil
}

// shown returns the topic of that number, loaded, or nil where it is not published.
func (s *Store) shown(id uint32) (*topic, error) {
	t := s.topics.numbered(id)
	if t == nil {
		return nil, nil
	}
	return t, s.load(t)
}

// Effects implements store.Links.
func (s *Store) Effects(ctx context.Context, id string, after store.Place, limit int) ([]store.Place, error) {
	return s.linked(ctx, tagEffect, id, after, limit)
}

// Correlated implements store.Links.
func (s *Store) Correlated(ctx context.Context, correlation string, after store.Place, limit int) ([]store.Place, error) {
	return s.linked(ctx, tagCorrelated, correlation, after, limit)
}

func (s *Store) linked(ctx context.Context, tag byte, name string, after store.Place, limit int) ([]store.Place, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	places, err := s.links(tag, name, after, limit)
	if err != nil {
		return nil, fmt.Errorf("store/pebble: find what is linked to %q: %w", name, err)
	}
	return places, nil
}

// links reads the links with one name: first which topics have some, with one seek
// for each, and then these topics in the order of their names.
func (s *Store) links(tag byte, name string, after store.Place, limit int) (places []store.Place, err error) {
	prefix := appendLinkPrefix(nil, tag, name, 0)
	iter, err := s.db.NewIter(&pdb.IterOptions{LowerBound: prefix, UpperBound: appendLinkPrefix(nil, tag, name, 1)})
	if err != nil {
		return nil, err
	}
	defer closeInto(iter, &err)
	topics, err := s.linkedTopics(iter, prefix)
	if err != nil {
		return nil, err
	}
	for _, t := range topics {
		from := uint64(0)
		switch strings.Compare(t.name, after.Topic) {
		case -1:
			continue
		case 0:
			if after.Offset == math.MaxUint64 {
				continue
			}
			from = after.Offset + 1
		}
		head, gone := t.head.Load(), t.removed.Load()
		for valid := iter.SeekGE(appendLinkKey(nil, tag, name, t.id, max(from, gone.from()))); valid && len(places) < limit; valid = iter.Next() {
			id, offset, err := linkPlace(iter.Key(), prefix)
			if err != nil {
				return nil, err
			}
			if id != t.id || offset > head {
				break
			}
			if gone.hides(offset) {
				continue
			}
			if gone != nil { // the event may have been erased and swept since the iterator was opened
				if is, err := s.has(appendEventKey(nil, t.id, offset)); err != nil {
					return nil, err
				} else if !is {
					continue
				}
			}
			places = append(places, store.Place{Topic: t.name, Offset: offset})
		}
		if len(places) >= limit {
			break
		}
	}
	return places, iter.Error()
}

// linkedTopics returns the topics that have links in the iterator's bounds, ordered
// by name.
func (s *Store) linkedTopics(iter *pdb.Iterator, prefix []byte) (topics []*topic, err error) {
	for valid := iter.First(); valid; {
		id, _, err := linkPlace(iter.Key(), prefix)
		if err != nil {
			return nil, err
		}
		t, err := s.shown(id)
		if err != nil {
			return nil, err
		}
		if t != nil {
			topics = append(topics, t)
		}
		if id == math.MaxUint32 {
			break
		}
		valid = iter.SeekGE(binary.BigEndian.AppendUint32(slices.Clone(prefix), id+1))
	}
	slices.SortFunc(topics, func(a, b *topic) int { return strings.Compare(a.name, b.name) })
	return topics, iter.Error()
}
