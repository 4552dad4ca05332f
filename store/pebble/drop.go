package pebble

import (
	"context"
	"encoding/binary"
	"fmt"

	"eventhub"
	"eventhub/store"

	pdb "github.com/cockroachdb/pebble/v2"
)

// # Dropped topics
//
// A topic is dropped in one small synced batch: its row goes, and with it its number,
// which is never given again; its plans go, for they are read by time and not by
// topic; a row keeps up to which offsets were given under the name, and another one
// says that the number's keys are garbage. From then on nobody finds them. Sweep
// removes them, some at a time: the events with what is indexed of each, then the
// ranges of the number, and the row that told of it last. So a crash in between
// leaves garbage and nothing else.
//
//	'z' topic name          → offset (8)   no offset at or below it is given again
//	'y' topic id (4)        → empty        there may be keys of this number

const (
	tagDropped = 'z'
	tagGarbage = 'y'

	// sweepEvents is how many events one Sweep removes at most.
	sweepEvents = 1000
)

func appendDroppedKey(dst []byte, name string) []byte {
	return append(append(dst, tagDropped), name...)
}

func appendGarbageKey(dst []byte, id uint32) []byte {
	return binary.BigEndian.AppendUint32(append(dst, tagGarbage), id)
}

// DropTopic implements store.Topics.
func (s *Store) DropTopic(ctx context.Context, name string) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	s.committing.Lock()
	defer s.committing.Unlock()
	err := s.faults.err()
	if err == nil {
		var t *topic
		switch t, err = s.published(name); {
		case err == nil && t == nil:
			return fmt.Errorf("topic %q: %w", name, store.ErrNotFound)
		case err == nil:
			err = s.drop(t)
		}
	}
	if err != nil {
		return fmt.Errorf("store/pebble: drop topic %q: %w", name, err)
	}
	return nil
}

// drop does it. After a failed write the store is broken, as after a failed commit,
// and the gate of the plans stays shut.
func (s *Store) drop(t *topic) error {
	batch := s.db.NewBatch()
	defer batch.Close()
	if err := s.dropPlans(batch, t); err != nil {
		return err
	}
	floor := max(t.last, t.floor)
	_ = batch.Delete(appendTopicKey(nil, t.name), nil) // a batch takes what fits in memory
	_ = batch.Set(appendDroppedKey(nil, t.name), binary.BigEndian.AppendUint64(nil, floor), nil)
	_ = batch.Set(appendGarbageKey(nil, t.id), nil, nil)
	s.plans.set(true)
	if err := s.apply(batch, true); err != nil {
		s.faults.fail(err)
		return s.faults.err()
	}
	s.dropped[t.name] = floor
	s.topics.remove(t)
	s.plans.set(false)
	return nil
}

// dropPlans removes all plans of a topic.
func (s *Store) dropPlans(batch *pdb.Batch, t *topic) (err error) {
	bounds := numberBounds(tagPlanID, t.id)
	iter, err := s.db.NewIter(&bounds)
	if err != nil {
		return err
	}
	defer closeInto(iter, &err)
	for valid := iter.First(); valid; valid = iter.Next() {
		place, err := decodePlanPlace(iter.Value())
		if err != nil {
			return err
		}
		_ = batch.Delete(appendPlanKey(nil, place.at, place.seq), nil)
		_ = batch.Delete(iter.Key(), nil)
	}
	return iter.Error()
}

// numberBounds are those of all keys that begin with a tag and a topic's number.
func numberBounds(tag byte, id uint32) pdb.IterOptions {
	end := uint64(tag)<<32 | uint64(id)
	end++
	return pdb.IterOptions{
		LowerBound: binary.BigEndian.AppendUint32([]byte{tag}, id),
		UpperBound: binary.BigEndian.AppendUint32([]byte{byte(end >> 32)}, uint32(end)),
	}
}

// Sweep implements store.Maintenance.
func (s *Store) Sweep(ctx context.Context) (more bool, err error) {
	if err := s.enter(ctx); err != nil {
		return false, err
	}
	defer s.leave()
	s.committing.Lock()
	defer s.committing.Unlock()
	if err = s.faults.err(); err == nil {
		more, err = s.sweep()
	}
	if err != nil {
		return false, fmt.Errorf("store/pebble: sweep: %w", err)
	}
	return more, nil
}

func (s *Store) sweep() (more bool, _ error) {
	id, found, err := s.garbage()
	if !found || err != nil {
		return false, err
	}
	batch := s.db.NewBatch()
	defer batch.Close()
	n, err := s.sweepEvents(batch, id)
	if err != nil {
		return false, err
	}
	if n < sweepEvents {
		for _, tag := range []byte{tagKey, tagGroup, tagPart} {
			bounds := numberBounds(tag, id)
			_ = batch.DeleteRange(bounds.LowerBound, bounds.UpperBound, nil)
		}
		_ = batch.Delete(appendGarbageKey(nil, id), nil)
	}
	if err := s.apply(batch, false); err != nil {
		s.faults.fail(err)
		return false, s.faults.err()
	}
	return true, nil
}

// garbage returns the number of one dropped topic that has not been swept.
func (s *Store) garbage() (id uint32, found bool, err error) {
	iter, err := s.db.NewIter(&pdb.IterOptions{LowerBound: []byte{tagGarbage}, UpperBound: []byte{tagGarbage + 1}})
	if err != nil {
		return 0, false, err
	}
	defer closeInto(iter, &err)
	if !iter.First() {
		return 0, false, iter.Error()
	}
	if len(iter.Key()) != 1+topicIDBytes {
		return 0, false, fmt.Errorf("the key %x names no topic", iter.Key())
	}
	return binary.BigEndian.Uint32(iter.Key()[1:]), true, nil
}

// sweepEvents removes up to sweepEvents of the events of a number, with their ids
// and links, and returns how many there were.
func (s *Store) sweepEvents(batch *pdb.Batch, id uint32) (n int, err error) {
	bounds := numberBounds(tagEvent, id)
	iter, err := s.db.NewIter(&bounds)
	if err != nil {
		return 0, err
	}
	defer closeInto(iter, &err)
	for valid := iter.First(); valid && n < sweepEvents; valid = iter.Next() {
		value, err := iter.ValueAndErr()
		if err != nil {
			return n, err
		}
		offset := eventOffset(iter.Key())
		e, err := eventhub.Record(value).Event(offset)
		if err != nil {
			return n, err
		}
		_ = batch.Delete(iter.Key(), nil)
		if told, _ := s.ids.place(e.ID); told != (place{id, offset}) {
			_ = batch.Delete(appendIDKey(nil, e.ID, id), nil)
		}
		for _, cause := range e.CausedBy {
			_ = batch.Delete(appendLinkKey(nil, tagEffect, cause, id, offset), nil)
		}
		if c := e.Headers[eventhub.CorrelationHeader]; c != "" {
			_ = batch.Delete(appendLinkKey(nil, tagCorrelated, c, id, offset), nil)
		}
		n++
	}
	return n, iter.Error()
}

// loadDropped reads at Open which offsets were given under the names of topics that
// are gone.
func (s *Store) loadDropped() (err error) {
	s.dropped = make(map[string]uint64)
	iter, err := s.db.NewIter(&pdb.IterOptions{LowerBound: []byte{tagDropped}, UpperBound: []byte{tagDropped + 1}})
	if err != nil {
		return err
	}
	defer closeInto(iter, &err)
	for valid := iter.First(); valid; valid = iter.Next() {
		if len(iter.Value()) != offsetBytes {
			return fmt.Errorf("the floor of the dropped topic %q reads %x", iter.Key()[1:], iter.Value())
		}
		s.dropped[string(iter.Key()[1:])] = binary.BigEndian.Uint64(iter.Value())
	}
	return iter.Error()
}
