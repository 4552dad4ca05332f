package pebble

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"eventhub/store"

	pdb "github.com/cockroachdb/pebble/v2"
)

// delayPlace is where a delayed event is in the order of delayed events; seq 0 for nowhere.
type delayPlace struct {
	at  int64
	seq uint64
}

// delayedIDs are the ids of one commit that may have a delayed event in the store: those
// that callers gave to Delays, and all of Cancels. Like givenIDs they are looked
// up before the first unit is staged, in key order, with one iterator; then they
// follow what the units do.
type delayedIDs struct {
	index   map[givenID]int // into places
	places  []delayPlace
	pending []lookup
	key     []byte
}

// lookup is an id whose delayed event is to be found.
type lookup struct {
	topic *topic
	id    string
	first int // into places
}

func (p *delayedIDs) reset() {
	clear(p.index)
	clear(p.pending)
	p.places, p.pending = p.places[:0], p.pending[:0]
}

// find returns the entry of an id, or nil where nobody but fresh Delays has it.
func (p *delayedIDs) find(topic, id string) *delayPlace {
	if len(p.index) == 0 {
		return nil
	}
	at, ok := p.index[givenID{topic, id}]
	if !ok {
		return nil
	}
	return &p.places[at]
}

// lookUp collects the ids of units and finds the delayed events that are in the store.
func (p *delayedIDs) lookUp(c *commit, units []*store.Unit) error {
	for _, u := range units {
		for i := range u.Delays {
			if pl := &u.Delays[i]; !pl.FreshID {
				if err := p.add(c, pl.Topic, pl.ID); err != nil {
					return err
				}
			}
		}
		for i := range u.Cancels {
			if err := p.add(c, u.Cancels[i].Topic, u.Cancels[i].ID); err != nil {
				return err
			}
		}
	}
	if len(p.pending) == 0 {
		return nil
	}
	slices.SortFunc(p.pending, func(a, b lookup) int {
		return cmp.Or(cmp.Compare(a.topic.id, b.topic.id), cmp.Compare(a.id, b.id))
	})
	return p.seek(c.s)
}

func (p *delayedIDs) add(c *commit, topic, id string) error {
	key := givenID{topic, id}
	if _, ok := p.index[key]; ok {
		return nil
	}
	t, err := c.topic(topic)
	if err != nil {
		return err
	}
	if t != nil {
		p.pending = append(p.pending, lookup{topic: t, id: id, first: len(p.places)})
	}
	p.index[key] = len(p.places)
	p.places = append(p.places, delayPlace{})
	return nil
}

func (p *delayedIDs) seek(s *Store) (err error) {
	iter, err := s.db.NewIter(&pdb.IterOptions{
		LowerBound:   []byte{tagDelayedID},
		UpperBound:   []byte{tagDelayedID + 1},
		UseL6Filters: true,
	})
	if err != nil {
		return fmt.Errorf("look up delayed events: %w", err)
	}
	defer closeInto(iter, &err)
	for _, l := range p.pending {
		p.key = appendDelayIDKey(p.key[:0], l.topic.id, l.id)
		if !iter.SeekPrefixGE(p.key) {
			if err := iter.Error(); err != nil { // now, as the next seek forgets it
				return fmt.Errorf("look up the delayed event of id %q in topic %q: %w", l.id, l.topic.name, err)
			}
			continue
		}
		if !bytes.Equal(iter.Key(), p.key) {
			continue
		}
		if p.places[l.first], err = decodeDelayedPlace(iter.Value()); err != nil {
			return fmt.Errorf("look up the delayed event of id %q in topic %q: %w", l.id, l.topic.name, err)
		}
	}
	return nil
}

// checkCancels refuses those of a delayed event that is not there, or not any more.
func (c *commit) checkCancels(cancels []store.Cancel) error {
	for i, up := range cancels {
		seq := c.delayed.find(up.Topic, up.ID).seq
		if seq == 0 || up.Seq != 0 && up.Seq != seq || slices.ContainsFunc(cancels[:i], up.SameID) {
			return fmt.Errorf("id %q in topic %q, number %d: %w", up.ID, up.Topic, up.Seq, store.ErrNotDelayed)
		}
	}
	return nil
}

func (c *commit) cancel(up *store.Cancel) {
	t, _ := c.topic(up.Topic) // found by lookUp, or created before its delayed event
	place := c.delayed.find(up.Topic, up.ID)
	op := c.batch.DeleteDeferred(delayKeyBytes)
	appendDelayKey(op.Key[:0], place.at, place.seq)
	op = c.batch.DeleteDeferred(1 + topicIDBytes + len(up.ID))
	appendDelayIDKey(op.Key[:0], t.id, up.ID)
	*place = delayPlace{}
	c.delaysChanged = true
}

func (c *commit) delay(p *store.Delay) {
	t, _ := c.topic(p.Topic) // found and loaded by check
	event, first := c.given.find(p.Topic, p.ID), c.delayed.find(p.Topic, p.ID)
	switch {
	case event != nil && event.offset != 0:
		p.Offset, p.Duplicate = event.offset, true
		return
	case first != nil && first.seq != 0:
		p.At, p.Seq, p.Duplicate = first.at, first.seq, true
		return
	}
	c.s.lastDelay++
	p.Seq = c.s.lastDelay
	if first != nil {
		*first = delayPlace{at: p.At, seq: p.Seq}
	}
	c.delaysChanged = true
	op := c.batch.SetDeferred(delayKeyBytes, textBytes(p.Topic)+textBytes(p.Key)+len(p.Record))
	appendDelayKey(op.Key[:0], p.At, p.Seq)
	value := appendText(appendText(op.Value[:0], p.Topic), p.Key)
	copy(op.Value[len(value):], p.Record)
	op = c.batch.SetDeferred(1+topicIDBytes+len(p.ID), delayPlaceBytes)
	appendDelayIDKey(op.Key[:0], t.id, p.ID)
	appendDelayPlace(op.Value[:0], p.At, p.Seq)
}

func (c *commit) changePattern(ch *store.PatternChange) {
	c.patternsChanged = true
	size := 1 + len(ch.Group) + 1 + len(ch.Pattern)
	if ch.Delete {
		op := c.batch.DeleteDeferred(size)
		appendPatternKey(op.Key[:0], ch.Group, ch.Pattern)
		return
	}
	op := c.batch.SetDeferred(size, len(ch.Value))
	appendPatternKey(op.Key[:0], ch.Group, ch.Pattern)
	copy(op.Value, ch.Value)
}

// reserveDelays keeps the promise that the Seq of a delayed event is never given again,
// whatever a crash takes away. It is that of reserve, with one floor for all
// delayed events; a commit that stays below the floor writes nothing for it. At Open the
// count goes on at the floor, so a restart skips up to reserveAhead of them.
func (c *commit) reserveDelays(sync bool) bool {
	s := c.s
	if s.lastDelay <= s.delayFloor {
		return sync
	}
	s.delayFloor = s.lastDelay + reserveAhead
	op := c.batch.SetDeferred(len(metaDelayFloor), offsetBytes)
	copy(op.Key, metaDelayFloor)
	binary.BigEndian.PutUint64(op.Value, s.delayFloor)
	return true
}

// loadDelayFloor reads at Open up to which Seq delayed events were given.
func (s *Store) loadDelayFloor() error {
	value, err := s.get(metaDelayFloor)
	if value == nil || err != nil {
		return err
	}
	if len(value) != offsetBytes {
		return fmt.Errorf("the floor of delayed events reads %x", value)
	}
	s.delayFloor = binary.BigEndian.Uint64(value)
	s.lastDelay = s.delayFloor
	return nil
}
