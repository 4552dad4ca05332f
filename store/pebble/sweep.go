package pebble

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"

	"eventhub"
	"eventhub/store"

	pdb "github.com/cockroachdb/pebble/v2"
)

// # The sweep
//
// What deleted topics and removed events have left is found by nobody, and of that nothing is
// written any more, so a sweep reads it during the commits and takes no lock of theirs.
// Commits meet it only where Pebble orders the batch of a step among theirs, and such a batch
// is small. There are three sorts of work, and a step does one of them, in turn: deleted topics
// (below), removed events (sweepremoved.go), and ids that are not remembered any longer
// (sweepids.go).
//
// # Deleted topics
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

// sweeper is what there is to sweep.
type sweeper struct {
	stepping stepLock // serialises the steps, and guards what follows
	sort     int      // of work that the next step does

	delayed   []byte // the first number's next delayed event, by its key; nil at its beginning
	noDelayed bool   // all delayed events of the first number are deleted
	from      uint64 // the next offset to read of the first number; 0 at its beginning
	kept      uint64 // from where on records were read and not deleted yet
	read      int    // bytes of them

	removals removals
	outdated outdatedIDs

	mu      sync.Mutex // held for a moment
	numbers []uint32
}

// stepLock is a mutex that knows whether somebody waits for it.
type stepLock struct {
	turn
	waiting atomic.Int32
}

func (l *stepLock) Lock() {
	l.waiting.Add(1)
	l.turn.Lock()
	l.waiting.Add(-1)
}

func (l *stepLock) isAwaited() bool { return l.waiting.Load() > 0 }

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

// next goes on to another number.
func (w *sweeper) next() {
	w.delayed, w.noDelayed = nil, false
	w.from, w.kept, w.read = 0, 0, 0
	w.mu.Lock()
	defer w.mu.Unlock()
	w.numbers = w.numbers[1:]
}

// count returns how many numbers are left. Iterators that are opened after it show all that there is under these.
func (w *sweeper) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.numbers)
}

// Sweep implements store.Maintenance.
func (s *Store) Sweep(ctx context.Context) (store.Left, error) {
	if err := s.enter(ctx); err != nil {
		return store.Nothing, err
	}
	defer s.leave()
	s.sweeper.stepping.Lock()
	defer s.sweeper.stepping.Unlock()
	now := s.now()
	step := s.work(now)
	if step == nil {
		return s.left(now), nil
	}
	if err := s.faults.err(); err != nil {
		return store.Nothing, fmt.Errorf("store/pebble: sweep: %w", err)
	}
	batch := s.db.NewBatch()
	defer batch.Close()
	p := &sweepStep{s: s, batch: batch, ids: s.ids.fresh(), now: now}
	unread := step(p)
	if s.options.sweeping != nil {
		s.options.sweeping(batch)
	}
	if err := s.applyLater(batch); err != nil {
		return store.Nothing, fmt.Errorf("store/pebble: sweep: %w", err)
	}
	p.applied()
	if unread != nil { // one place can not be read: the others need not wait for it
		return s.left(now), fmt.Errorf("store/pebble: sweep what was left of a topic: %w", unread)
	}
	return s.left(now), nil
}

// now is the store's clock, in epoch milliseconds.
func (s *Store) now() int64 { return min(max(s.options.Now().UnixMilli(), 0), maxCommitTime) }

// work returns what the next step is to do; nil where nothing can be removed now.
func (s *Store) work(now int64) func(*sweepStep) error {
	w := &s.sweeper
	for range 3 {
		w.sort = (w.sort + 1) % 3
		switch {
		case w.sort == 0 && w.first() != 0:
			return (*sweepStep).sweepDeleted
		case w.sort == 1 && w.removals.have(now, s.isLow):
			return (*sweepStep).sweepRemoved
		case w.sort == 2 && w.outdated.have(now):
			return (*sweepStep).sweepOutdated
		}
	}
	return nil
}

// isLow reports whether the disk is nearly full.
func (s *Store) isLow() bool { return s.files.isLow() }

// left says what there is for later steps. What deleted topics have is not known: each counts as a step.
func (s *Store) left(now int64) store.Left {
	left := s.sweeper.removals.left(now)
	left.Bytes += uint64(s.sweeper.count()) * sweepBytes
	if again := s.sweeper.outdated.again(now); again >= 0 && (left.Again < 0 || again < left.Again) {
		left.Again = again
	}
	if s.sweeper.first() != 0 || len(s.sweeper.removals.pieces) > 0 && s.isLow() {
		left.Again = 0
	}
	return left
}

// sweepStep is one step under way.
type sweepStep struct {
	s     *Store
	batch *pdb.Batch
	ids   *ids
	now   int64 // epoch milliseconds
	read  int   // bytes of records

	delays *pdb.Iterator // over the ids of all delayed events
	events *pdb.Iterator
	rest   []*pdb.Iterator // over what restTags begin

	cleared []uint32 // numbers whose last delayed event is in the batch
	erased  []erasedEvents
	later   laterIDs

	// How far the compaction of the topic of that number is; nil where that was not read yet.
	pass   *compaction
	passOf uint32
}

// restTags begin what else there is under a number.
var restTags = []byte{tagKey, tagGroup, tagPart, tagMarks, tagSweep, tagCompaction, tagKeys, tagSegment}

func (p *sweepStep) hasRoom() bool {
	return p.read < sweepBytes && p.batch.Count() < sweepKeys
}

// applied does what comes after the batch.
func (p *sweepStep) applied() {
	if len(p.cleared) > 0 {
		p.s.delays.change(func() {
			for _, number := range p.cleared {
				p.s.goneDelayed = p.s.goneDelayed.without(number)
			}
		})
	}
	p.forgetErased()
}

// sweepDeleted deletes some of one number, or all of several small ones: of those that were there when it
// began, for what later ones have may have been published since. A number that can not be read is left.
func (p *sweepStep) sweepDeleted() (err error) {
	shown := p.s.sweeper.count()
	p.rest = make([]*pdb.Iterator, len(restTags))
	iters, tags := []**pdb.Iterator{&p.delays, &p.events}, append([]byte{tagDelayedID, tagEvent}, restTags...)
	for i := range p.rest {
		iters = append(iters, &p.rest[i])
	}
	for i, tag := range tags {
		if *iters[i], err = p.s.tagged(tag); err != nil {
			return err
		}
		defer closeInto(*iters[i], &err)
	}
	p.s.openedHook()
	for ; shown > 0 && p.hasRoom(); shown-- {
		id := p.s.sweeper.first()
		done, err := p.sweepDelayed(id)
		if done {
			done, err = p.sweep(id)
		}
		if err != nil {
			p.s.sweeper.next()
			return fmt.Errorf("number %d: %w", id, err)
		}
		if !done {
			return nil
		}
		p.s.sweeper.next()
	}
	return nil
}

func (s *Store) openedHook() {
	if s.options.opened != nil {
		s.options.opened()
	}
}

// tagged returns an iterator over all keys that begin with a tag.
func (s *Store) tagged(tag byte) (*pdb.Iterator, error) {
	return s.db.NewIter(&pdb.IterOptions{LowerBound: []byte{tag}, UpperBound: []byte{tag + 1}})
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

// sweepEvent deletes what is indexed of the event that the iterator is at, its key excepted.
func (p *sweepStep) sweepEvent(id uint32) (offset uint64, err error) {
	value, err := p.events.ValueAndErr()
	if err != nil {
		return 0, err
	}
	p.read += len(value)
	p.s.sweeper.read += len(value)
	offset = eventOffset(p.events.Key())
	eventID, isIndexed, err := p.unlink(place{id, offset}, value)
	if isIndexed {
		p.deleteID(eventID, id)
	}
	return offset, err
}

// unlink deletes the links of an event, and reports its id and whether that is in the id
// index.
func (p *sweepStep) unlink(at place, record eventhub.Record) (id string, isIndexed bool, err error) {
	e, err := indexedOf(record)
	if err != nil {
		return "", false, fmt.Errorf("the record at offset %d: %w", at.offset, err)
	}
	for _, cause := range e.causes {
		_ = p.batch.Delete(appendLinkKey(nil, tagEffect, cause, at.topic, at.offset), nil)
	}
	if e.correlation != "" {
		_ = p.batch.Delete(appendLinkKey(nil, tagCorrelated, e.correlation, at.topic, at.offset), nil)
	}
	own, _ := p.ids.place(e.id)
	return e.id, own != at, nil
}

// sweepRest deletes what else there is under a number, and that there is any.
func (p *sweepStep) sweepRest(id uint32) error {
	for i, tag := range restTags {
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
