package pebble

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"sync"

	"eventhub"

	pdb "github.com/cockroachdb/pebble/v2"
)

// # The sweep of deleted topics
//
// What is under the number of a deleted topic is found by nobody and written by
// nobody, so a sweep reads it during the commits and takes no lock of theirs. Commits
// meet it only where Pebble orders the batch of a step among theirs, and such a batch is
// small.
//
// A step reads up to sweepBytes of records, for only the event itself says what is indexed
// of it: its id, its causes and its correlation. What a topic of few keys has
// is deleted key by key, since an iterator holds each of its keys against every range
// deletion that it meets, and there may be thousands of such topics. Of a larger one the
// records go by ranges of sweepRange, which lets Pebble delete whole tables unread.
//
// The delayed events of a number go first, by two keys each: they are in the order of
// time, and whoever reads that has to pass them (deletetopic.go).
//
// Which numbers are to be swept is known in memory, from Open on, and so is the place in
// the one under way: no step walks over what the steps before have deleted. After a crash
// the number under way is begun again; what is gone of it costs nothing then.
const (
	sweepBytes = 64 << 10 // records read in a step; the first whatever its size
	sweepKeys  = 512      // keys deleted in a step, except those of the last event and few of the rest
	sweepFew   = 64       // keys of one sort that go key by key in any step
	sweepRange = 64 << 20 // records that one range deletion removes
)

// sweeper is what there is to sweep. Its lock is held for the time of a step, and by a
// deletion for a moment.
type sweeper struct {
	stepping  sync.Mutex // serialises the steps, and guards the place
	delayed   []byte     // the first number's next delayed event, by its key; nil at its beginning
	noDelayed bool       // all delayed events of the first number are deleted
	from      uint64     // the next offset to read of the first number; 0 at its beginning
	kept      uint64     // from where on records were read and not deleted yet
	read      int        // bytes of them

	mu      sync.Mutex
	numbers []uint32
}

// add notes the number of a topic that was deleted.
func (w *sweeper) add(id uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.numbers = append(w.numbers, id)
}

// first returns the number under way, or 0 where nothing is left.
func (w *sweeper) first() uint32 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.numbers) == 0 {
		return 0
	}
	return w.numbers[0]
}

// next goes on to another number, and reports whether there is one.
func (w *sweeper) next() bool {
	w.delayed, w.noDelayed = nil, false
	w.from, w.kept, w.read = 0, 0, 0
	w.mu.Lock()
	defer w.mu.Unlock()
	w.numbers = w.numbers[1:]
	return len(w.numbers) > 0
}

// Sweep implements store.Maintenance.
func (s *Store) Sweep(ctx context.Context) (more bool, err error) {
	if err := s.enter(ctx); err != nil {
		return false, err
	}
	defer s.leave()
	s.sweeper.stepping.Lock()
	defer s.sweeper.stepping.Unlock()
	if s.sweeper.first() == 0 {
		return false, nil
	}
	if err := s.faults.err(); err != nil {
		return false, fmt.Errorf("store/pebble: sweep: %w", err)
	}
	batch := s.db.NewBatch()
	defer batch.Close()
	more, cleared, unread := s.sweepStep(batch)
	if err = s.db.Apply(batch, pdb.NoSync); err == nil {
		err = s.faults.err()
	}
	if err != nil {
		s.faults.fail(err)
		return false, fmt.Errorf("store/pebble: sweep: %w", s.faults.err())
	}
	s.delays.change(func() {
		for _, number := range cleared {
			s.goneDelayed = s.goneDelayed.without(number)
		}
	})
	if unread != nil { // a part of one can not be read: the others need not wait for it
		return s.sweeper.next(), fmt.Errorf("store/pebble: sweep what was left of a topic: %w", unread)
	}
	return more, nil
}

// sweepStep fills the batch with what one step deletes: some of one number, or all of
// several small ones, and cleared has the numbers whose last delayed event it deletes.
// Where it fails the first number left is the one that did.
func (s *Store) sweepStep(batch *pdb.Batch) (more bool, cleared []uint32, err error) {
	step := sweepStep{s: s, batch: batch, ids: s.ids.fresh()}
	for _, iter := range []struct {
		of  **pdb.Iterator
		tag byte
	}{{&step.delays, tagDelayedID}, {&step.events, tagEvent}, {&step.rest[0], tagKey}, {&step.rest[1], tagGroup}, {&step.rest[2], tagPart},
		{&step.rest[3], tagMarks}, {&step.rest[4], tagSweep}} {
		if *iter.of, err = s.tagged(iter.tag); err != nil {
			return false, nil, err
		}
		defer closeInto(*iter.of, &err)
	}
	for more = true; more && step.hasRoom(); {
		id := s.sweeper.first()
		done, err := step.sweepDelayed(id)
		if done {
			done, err = step.sweep(id)
		}
		if err != nil {
			return false, step.cleared, fmt.Errorf("number %d: %w", id, err)
		}
		if !done {
			return true, step.cleared, nil
		}
		more = s.sweeper.next()
	}
	return more, step.cleared, nil
}

// tagged returns an iterator over all keys that begin with a tag.
func (s *Store) tagged(tag byte) (*pdb.Iterator, error) {
	return s.db.NewIter(&pdb.IterOptions{LowerBound: []byte{tag}, UpperBound: []byte{tag + 1}})
}

// sweepStep is one step under way.
type sweepStep struct {
	s      *Store
	batch  *pdb.Batch
	ids    *ids
	delays *pdb.Iterator // over the ids of all delayed events
	events *pdb.Iterator
	rest   [5]*pdb.Iterator // over all keys, groups, parts and marks, and what there is to be swept
	read   int              // bytes of records

	cleared []uint32 // numbers whose last delayed event is in the batch
}

func (p *sweepStep) hasRoom() bool {
	return p.read < sweepBytes && p.batch.Count() < sweepKeys
}

// sweepDelayed deletes delayed events of a number, from where the last step ended, and
// reports whether that was the last of them.
func (p *sweepStep) sweepDelayed(id uint32) (done bool, err error) {
	w := &p.s.sweeper
	if w.noDelayed {
		return true, nil
	}
	bounds := numberBounds(tagDelayedID, id)
	if w.delayed == nil {
		w.delayed = bounds.LowerBound
	}
	for valid := p.delays.SeekGE(w.delayed); valid && bytes.Compare(p.delays.Key(), bounds.UpperBound) < 0; valid = p.delays.Next() {
		if !p.hasRoom() {
			w.delayed = bytes.Clone(p.delays.Key())
			return false, nil
		}
		at, err := decodeDelayedPlace(p.delays.Value())
		if err != nil {
			return false, fmt.Errorf("the delayed event of id %q: %w", p.delays.Key()[1+topicIDBytes:], err)
		}
		_ = p.batch.Delete(appendDelayKey(nil, at.at, at.seq), nil) // a batch takes what fits in memory
		_ = p.batch.Delete(p.delays.Key(), nil)
	}
	if err := p.delays.Error(); err != nil {
		return false, err
	}
	w.noDelayed = true
	p.cleared = append(p.cleared, id)
	return true, nil
}

// sweep deletes what there is room for of a number, from where the last step ended, and
// reports whether that was the last of it.
func (p *sweepStep) sweep(id uint32) (done bool, err error) {
	w := &p.s.sweeper
	bounds := numberBounds(tagEvent, id)
	var small []uint64 // all events, where one step takes them
	valid := p.events.SeekGE(appendEventKey(nil, id, w.from))
	for ; valid && bytes.Compare(p.events.Key(), bounds.UpperBound) < 0; valid = p.events.Next() {
		if !p.hasRoom() {
			break
		}
		offset, err := p.sweepEvent(id)
		if err != nil {
			return false, err
		}
		small = append(small, offset)
	}
	if err := p.events.Error(); err != nil {
		return false, err
	}
	done = !valid || bytes.Compare(p.events.Key(), bounds.UpperBound) >= 0
	switch {
	case done && w.from == 0:
		for _, offset := range small {
			_ = p.batch.Delete(appendEventKey(nil, id, offset), nil) // a batch takes what fits in memory
		}
	case len(small) > 0:
		w.from = small[len(small)-1] + 1
	}
	if w.from > w.kept && (done || w.read >= p.s.sweepRange) {
		_ = p.batch.DeleteRange(appendEventKey(nil, id, w.kept), appendEventKey(nil, id, w.from), nil)
		w.kept, w.read = w.from, 0
	}
	if done {
		return true, p.sweepRest(id)
	}
	return false, nil
}

// sweepEvent deletes what is indexed of the event that the iterator is at.
func (p *sweepStep) sweepEvent(id uint32) (offset uint64, err error) {
	value, err := p.events.ValueAndErr()
	if err != nil {
		return 0, err
	}
	p.read += len(value)
	p.s.sweeper.read += len(value)
	offset = eventOffset(p.events.Key())
	e, err := indexedOf(value)
	if err != nil {
		return 0, fmt.Errorf("the record at offset %d: %w", offset, err)
	}
	if own, _ := p.ids.place(e.id); own != (place{id, offset}) {
		_ = p.batch.Delete(appendIDKey(nil, e.id, id), nil)
	}
	for _, cause := range e.causes {
		_ = p.batch.Delete(appendLinkKey(nil, tagEffect, cause, id, offset), nil)
	}
	if e.correlation != "" {
		_ = p.batch.Delete(appendLinkKey(nil, tagCorrelated, e.correlation, id, offset), nil)
	}
	return offset, nil
}

// sweepRest deletes what else there is under a number, and that there is any.
func (p *sweepStep) sweepRest(id uint32) error {
	for i, tag := range []byte{tagKey, tagGroup, tagPart, tagMarks, tagSweep} {
		iter, bounds := p.rest[i], numberBounds(tag, id)
		n := 0
		for valid := iter.SeekGE(bounds.LowerBound); valid && bytes.Compare(iter.Key(), bounds.UpperBound) < 0; valid = iter.Next() {
			if n++; n > sweepFew && !p.hasRoom() {
				_ = p.batch.DeleteRange(iter.Key(), bounds.UpperBound, nil)
				break
			}
			_ = p.batch.Delete(iter.Key(), nil)
		}
		if err := iter.Error(); err != nil {
			return err
		}
	}
	_ = p.batch.Delete(appendGarbageKey(nil, id), nil)
	return nil
}

// indexedEvent is what the indexes have of an event, its key excepted.
type indexedEvent struct {
	id          string
	causes      []string
	correlation string
}

// indexedOf reads a record up to its payload, which is last and may be large.
func indexedOf(record eventhub.Record) (e indexedEvent, err error) {
	e.id = string(record.ID())
	if !mayLink(record) {
		return e, nil
	}
	d := json.NewDecoder(bytes.NewReader(record))
	if _, err := d.Token(); err != nil { // the object's beginning
		return e, err
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return e, err
		}
		var headers map[string]string
		switch name {
		case "payload":
			return e, nil
		case "caused_by":
			err = d.Decode(&e.causes)
		case "headers":
			if err = d.Decode(&headers); err == nil {
				e.correlation = eventhub.Correlation(headers)
			}
		default:
			err = d.Decode(new(json.RawMessage))
		}
		if err != nil {
			return e, err
		}
	}
	return e, nil
}

// mayLink reports whether a record may have causes or headers, without decoding it: most
// records have none, and decoding them was nearly all of a sweep's work. The name of a
// header may look like the payload's, but then it comes after the name of the headers.
func mayLink(record eventhub.Record) bool {
	head, _, _ := bytes.Cut(record, []byte(`"payload":`))
	return bytes.Contains(head, []byte(`"caused_by":`)) || bytes.Contains(head, []byte(`"headers":`))
}

// loadGarbage reads at Open which numbers are to be swept.
func (s *Store) loadGarbage() (err error) {
	iter, err := s.tagged(tagGarbage)
	if err != nil {
		return err
	}
	defer closeInto(iter, &err)
	for valid := iter.First(); valid; valid = iter.Next() {
		if len(iter.Key()) != 1+topicIDBytes {
			return fmt.Errorf("the key %x names no topic", iter.Key())
		}
		id := binary.BigEndian.Uint32(iter.Key()[1:])
		s.sweeper.add(id)
		switch value := iter.Value(); {
		case len(value) > offsetBytes:
			s.goneDelayed = append(s.goneDelayed, delayBound{id, string(value[offsetBytes:]), binary.BigEndian.Uint64(value)})
		case len(value) > 0:
			return fmt.Errorf("the row of the deleted topic of number %d reads %x", id, value)
		}
	}
	return iter.Error()
}
