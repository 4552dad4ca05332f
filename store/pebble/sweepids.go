package pebble

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"eventhub/store"
)

// # Ids that are remembered
//
// The entry of a removed event in the id index stays for IDsKept. The step that removes an
// event notes its id, with those of its neighbours, under the time at which the entry goes:
//
//	'q' due (8) topic id (4) offset (8) → ids, each after its length (uvarint)
//
// Until then the id is a duplicate, so the entry is that of the removed event and of no other
// when it is deleted. The number of a topic that has been deleted meanwhile is never given
// again, so the entries may wait for their time.
//
// Of what a pass of the compaction as a whole removes the record may still be there by then, and reads show it: its
// id is noted again (forgetID).

const tagOutdated = 'q'

const outdatedKeyBytes = 1 + 8 + topicIDBytes + offsetBytes

func appendOutdatedKey(dst []byte, due int64, at place) []byte {
	dst = binary.BigEndian.AppendUint64(append(dst, tagOutdated), uint64(due))
	dst = binary.BigEndian.AppendUint32(dst, at.topic)
	return binary.BigEndian.AppendUint64(dst, at.offset)
}

// outdatedIDs say when the next id is due. sweeper.stepping guards them.
type outdatedIDs struct {
	none bool
	due  int64  // epoch milliseconds
	from []byte // no row is before it
}

func (o *outdatedIDs) have(now int64) bool { return !o.none && o.due <= now }

// again returns after how long the next id is due; -1 where there is none.
func (o *outdatedIDs) again(now int64) time.Duration {
	if o.none {
		return -1
	}
	return time.Duration(max(0, o.due-now)) * time.Millisecond
}

// laterIDs is a row under way.
type laterIDs struct {
	due int64
	at  place // of the first
	ids []byte
}

// keepID has the entry of an id deleted when it is due.
func (p *sweepStep) keepID(at place, due int64, id string) {
	if p.later.due != due || p.later.at.topic != at.topic {
		p.flushLater()
		p.later.due, p.later.at = due, at
	}
	p.later.ids = appendText(p.later.ids, id)
}

func (p *sweepStep) flushLater() {
	if len(p.later.ids) == 0 {
		return
	}
	key := appendOutdatedKey(nil, p.later.due, p.later.at)
	_ = p.batch.Set(key, p.later.ids, nil) // a batch takes what fits in memory
	o := &p.s.sweeper.outdated
	if o.none || p.later.due < o.due {
		o.none, o.due = false, p.later.due
	}
	if string(key) < string(o.from) {
		o.from = key
	}
	p.later = laterIDs{}
}

// sweepOutdated deletes the entries of ids that are due. A row that cannot be read is left
// until the store is opened again, with those after it.
func (p *sweepStep) sweepOutdated() (err error) {
	o := &p.s.sweeper.outdated
	iter, err := p.s.tagged(tagOutdated)
	if err != nil {
		return err
	}
	defer closeInto(iter, &err)
	isNoted := false // which the iterator does not show
	for valid := iter.SeekGE(o.from); valid; valid = iter.Next() {
		key := iter.Key()
		if len(key) != outdatedKeyBytes {
			o.none = true
			return fmt.Errorf("the key %x names no ids", key)
		}
		o.due = int64(min(binary.BigEndian.Uint64(key[1:]), math.MaxInt64))
		if o.from = append(o.from[:0], key...); o.due > p.now || !p.hasRoom() {
			return nil
		}
		topic := binary.BigEndian.Uint32(key[1+8:])
		value, err := iter.ValueAndErr()
		for len(value) > 0 && err == nil {
			id, rest, ok := cutText(value)
			if value = rest; !ok {
				err = fmt.Errorf("the ids %x have no end", iter.Value())
				break
			}
			err = p.forgetID(id, topic)
		}
		if err != nil {
			p.later = laterIDs{}
			o.none = true
			return err
		}
		_ = p.batch.Delete(key, nil)
		isNoted = isNoted || len(p.later.ids) > 0
		p.flushLater() // a row for a row
	}
	if o.none = !isNoted; isNoted {
		o.due = p.now + store.IDsKept.Milliseconds()
	}
	return iter.Error()
}

// forgetID deletes the entry of an id that is due, unless its event is still there.
func (p *sweepStep) forgetID(id string, topic uint32) error {
	pass, err := p.passOver(topic)
	if err != nil {
		return err
	}
	if pass.stage == stageLog {
		offset, err := p.s.entry(id, topic)
		if err != nil {
			return err
		}
		if pass.hasInPiece(offset) {
			p.read += len(id)
			p.keepID(place{topic, offset}, p.now+store.IDsKept.Milliseconds(), id)
			return nil
		}
	}
	p.deleteID(id, topic)
	return nil
}

// loadOutdated finds at Open when the first id is due.
func (s *Store) loadOutdated() (err error) {
	o := &s.sweeper.outdated
	iter, err := s.tagged(tagOutdated)
	if err != nil {
		return err
	}
	defer closeInto(iter, &err)
	if o.none = !iter.First(); o.none {
		return iter.Error()
	}
	o.from = append(o.from, iter.Key()...)
	if len(o.from) != outdatedKeyBytes {
		return fmt.Errorf("the key %x names no ids", o.from)
	}
	o.due = int64(min(binary.BigEndian.Uint64(o.from[1:]), math.MaxInt64))
	return nil
}
