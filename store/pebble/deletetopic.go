package pebble

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"eventhub/store"

	pdb "github.com/cockroachdb/pebble/v2"
)

// # Deleted topics
//
// A topic is deleted in one small synced batch: its row goes, and with it its number,
// which is never given again; a row keeps up to which offsets were given under the name,
// and another one says that the number's keys are garbage. From then on nobody finds
// them. Sweep removes them, some at a time, and the row that names the number last (sweep.go).
// So a crash in between leaves garbage and nothing else.
//
// Delayed events are read by time and not by topic, and say the name of theirs. So where
// the topic has some, the row of the number has the name too, and the highest Seq that was
// given: those of that name up to it are gone, and readers of delayed events pass them.
//
//	'z' topic name          → offset (8)   no offset at or below it is given again
//	'z'                     → offset (8)   the same for all names without a row, and new ones
//	'y' topic id (4)        → empty, or seq (8) topic name
//	                                       there may be keys of this number

const (
	tagDeleted = 'z'
	tagGarbage = 'y'
)

// mostDeleted is how many names that are gone keep a row, or as many as there may be
// topics where that is more.
const mostDeleted = 10_000

func appendDeletedKey(dst []byte, name string) []byte {
	return append(append(dst, tagDeleted), name...)
}

func appendGarbageKey(dst []byte, id uint32) []byte {
	return binary.BigEndian.AppendUint32(append(dst, tagGarbage), id)
}

// DeleteTopic implements store.Topics.
func (s *Store) DeleteTopic(ctx context.Context, name string) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	s.committing.Lock()
	defer s.committing.Unlock()
	err := s.settle()
	if err == nil {
		err = s.faults.err()
	}
	if err == nil {
		var t *topic
		switch t, err = s.published(name); {
		case err == nil && t == nil:
			return fmt.Errorf("topic %q: %w", name, store.ErrNotFound)
		case err == nil:
			err = s.deleteTopic(t)
		}
	}
	if err != nil {
		return fmt.Errorf("store/pebble: delete topic %q: %w", name, err)
	}
	return nil
}

// deleteTopic does it. After a failed write the store is broken, as after a failed commit,
// and the gate of the delayed events stays shut.
func (s *Store) deleteTopic(t *topic) error {
	batch := s.db.NewBatch()
	defer batch.Close()
	delays, err := s.boundOf(t)
	if err != nil {
		return err
	}
	_ = batch.Delete(appendTopicKey(nil, t.name), nil) // a batch takes what fits in memory
	s.keepFloor(batch, t)
	_ = batch.Set(appendGarbageKey(nil, t.id), delays.value(), nil)
	s.delays.set(true)
	if err := s.apply(batch, true); err != nil {
		s.faults.fail(err)
		return s.faults.err()
	}
	s.topics.remove(t)
	s.delays.change(func() { s.goneDelayed = append(s.goneDelayed, delays...) })
	s.delays.set(false)
	s.sweeper.removals.forget(t.id)
	s.sweeper.add(t.id)
	return nil
}

// keepFloor keeps in a row which offsets were given under the name of a topic that goes.
// What is reserved above them was not given. Where there are too many rows, a quarter
// goes at once, those with the lowest floors; the highest of these holds for all names
// without a row from then on. A failure of the batch breaks the store, so memory may be
// ahead of it.
func (s *Store) keepFloor(batch *pdb.Batch, t *topic) {
	if t.last > s.baseFloor {
		s.deletedNames[t.name] = t.last
		_ = batch.Set(appendDeletedKey(nil, t.name), binary.BigEndian.AppendUint64(nil, t.last), nil)
	}
	if len(s.deletedNames) <= s.mostDeleted {
		return
	}
	floors := slices.Sorted(maps.Values(s.deletedNames))
	s.baseFloor = floors[len(floors)-1-s.mostDeleted*3/4]
	maps.DeleteFunc(s.deletedNames, func(name string, floor uint64) bool {
		if floor > s.baseFloor {
			return false
		}
		_ = batch.Delete(appendDeletedKey(nil, name), nil)
		return true
	})
	_ = batch.Set(appendDeletedKey(nil, ""), binary.BigEndian.AppendUint64(nil, s.baseFloor), nil)
}

// delayBound says which delayed events are gone: those of the topic's name up to a Seq. It
// lasts as long as the topic's number may have some.
type delayBound struct {
	number uint32
	topic  string
	seq    uint64
}

// goneDelayed are those of all numbers. The gate of the delayed events guards them. Who
// holds a list may keep it: nothing in it changes, and more comes at its end.
type goneDelayed []delayBound

// boundOf returns that of a topic which is to be deleted; none where it has no delayed events.
func (s *Store) boundOf(t *topic) (_ goneDelayed, err error) {
	bounds := numberBounds(tagDelayedID, t.id)
	iter, err := s.db.NewIter(&bounds)
	if err != nil {
		return nil, err
	}
	defer closeInto(iter, &err)
	if !iter.First() {
		return nil, iter.Error()
	}
	return goneDelayed{{t.id, t.name, s.lastDelay}}, nil
}

// value is what the row of the number has: that of one delayBound, or of none.
func (b goneDelayed) value() (value []byte) {
	for _, one := range b {
		value = append(binary.BigEndian.AppendUint64(value, one.seq), one.topic...)
	}
	return value
}

// byTopic returns up to which Seq the delayed events of each name are gone.
func (b goneDelayed) byTopic() map[string]uint64 {
	upTo := make(map[string]uint64, len(b))
	for _, one := range b {
		upTo[one.topic] = max(upTo[one.topic], one.seq)
	}
	return upTo
}

// without returns the list without those of a number.
func (b goneDelayed) without(number uint32) goneDelayed {
	if len(b) > 0 && b[0].number == number { // as a rule
		return b[1:]
	}
	return slices.DeleteFunc(slices.Clone(b), func(one delayBound) bool { return one.number == number })
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

// loadDeleted reads at Open which offsets were given under the names of topics that
// are gone.
func (s *Store) loadDeleted() (err error) {
	s.deletedNames = make(map[string]uint64)
	iter, err := s.db.NewIter(&pdb.IterOptions{LowerBound: []byte{tagDeleted}, UpperBound: []byte{tagDeleted + 1}})
	if err != nil {
		return err
	}
	defer closeInto(iter, &err)
	for valid := iter.First(); valid; valid = iter.Next() {
		if len(iter.Value()) != offsetBytes {
			return fmt.Errorf("the floor of the deleted topic %q reads %x", iter.Key()[1:], iter.Value())
		}
		name, floor := string(iter.Key()[1:]), binary.BigEndian.Uint64(iter.Value())
		if name == "" {
			s.baseFloor = floor
		} else {
			s.deletedNames[name] = floor
		}
	}
	return iter.Error()
}
