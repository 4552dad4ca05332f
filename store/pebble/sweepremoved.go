package pebble

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"time"

	"eventhub/internal/record/layout"
	"eventhub/store"
)

// # The sweep of removed events
//
// Of an event below the horizon a step deletes what is indexed of it, and only later the
// record: records go in pieces of sweepRange, or of what there is when pieceWait has passed
// since the piece was begun, by one range deletion. Many small ones would be met by every
// iterator. A piece of few events goes key by key.
//
// A range deletion begins at the first offset of the topic, where nothing is any more. So it
// covers the table in which the piece before it ended, too. Pebble drops a table that one range
// deletion covers without reading it, and takes out of others the part that is covered
// (pebbleOptions). Where that part is in the middle of a table, it stays until other writes have the
// table compacted.
//
// Each event is taken out of the indexes exactly once: a row says up to where that is done,
// and it is in the same batch. So the deletions need not look whether an id has been published
// again since, and a crash does no harm: Pebble keeps the batches in order. The records come
// last, with the rows of the trims.
//
//	'w' topic id (4) 'p' 0 (8) → offset (uvarint)   the indexes have nothing below it
//
// Erased events go one by one, with their records, before the trims of their topic.

// pieceWait is how long a piece waits for more.
const pieceWait = time.Minute

const sweepProgress = 'p'

// rememberStep is how much an earlier step counts for what is left, compared with the one
// after it.
const rememberStep = 0.9

// erasedBytes is what an erased event counts for what is left, whatever its size: it is swept by itself, and until then each
// read of its topic passes it, and each erasure there sorts it with the others.
const erasedBytes = 4 << 10

// trim and erasure are rows of the sweep: what is to be swept of a topic.
type trim struct {
	horizon uint64
	at      int64 // when, in epoch milliseconds
	forget  bool  // the ids too, at once
}

type erasure struct {
	offset uint64
	at     int64
	forget bool
}

// removal is what there is to be swept of a topic that is there. It stays until the topic is
// deleted, for it has the place where the next one begins.
type removal struct {
	id uint32

	// Guarded by removals.mu.
	added  uint64 // removals.added, when something of the topic was removed last
	trims  []trim // with rising horizons
	erased []erasure
	queued bool
	gone   bool // the topic was deleted, or cannot be read

	// Guarded by sweeper.stepping.
	located bool   // the place is known
	from    uint64 // the indexes have nothing below it
	piece   piece  // the records of these events are there
	// What the last steps read: so many bytes in so many offsets.
	read, passed float64
}

// piece is a stretch of records that are to be deleted together: up to removal.from.
type piece struct {
	start  uint64
	begun  int64 // epoch milliseconds; 0 where there is no piece
	events int
	bytes  int
}

// isDue reports whether a piece has waited long enough.
func (p *piece) isDue(now int64) bool {
	return p.begun != 0 && (now >= p.begun+pieceWait.Milliseconds() || now < p.begun)
}

// removals are those of all topics.
type removals struct {
	mu     sync.Mutex // held for a moment
	added  uint64     // how often something was removed
	topics map[uint32]*removal
	queue  []*removal // those with something that can be removed now
	// pieces, the oldest first. One that has been deleted may still be among them. Guarded by
	// sweeper.stepping.
	pieces []openPiece
}

type openPiece struct {
	of    *removal
	begun int64
}

// add notes what a commit has removed.
func (r *removals) add(id uint32, trims []trim, erased []erasure) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.topics[id]
	if t != nil && t.gone {
		return // the rows are there at the next Open
	}
	if t == nil {
		t = &removal{id: id}
		if r.topics == nil {
			r.topics = make(map[uint32]*removal)
		}
		r.topics[id] = t
	}
	r.added++
	t.added, t.trims, t.erased = r.added, append(t.trims, trims...), append(t.erased, erased...)
	r.push(t)
}

// count returns how often something was removed. Iterators that are opened after it show all that was.
func (r *removals) count() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.added
}

func (r *removals) push(t *removal) {
	if !t.queued && !t.gone {
		t.queued = true
		r.queue = append(r.queue, t)
	}
}

// forget forgets a topic that was deleted.
func (r *removals) forget(id uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t := r.topics[id]; t != nil {
		t.gone = true
		delete(r.topics, id)
	}
}

// have queues what has waited long enough, and reports whether something can be removed now.
func (r *removals) have(now int64, isLow func() bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := len(r.queue) == 0 && len(r.pieces) > 0 && isLow()
	kept := r.pieces[:0]
	for _, o := range r.pieces {
		switch {
		case o.of.gone || o.of.piece.begun != o.begun:
		case all || o.of.piece.isDue(now):
			o.of.piece.begun = -1
			r.push(o.of)
		default:
			kept = append(kept, o)
		}
	}
	r.pieces = kept
	return len(r.queue) > 0
}

// fail leaves what is to be swept of a topic until the store is opened again.
func (r *removals) fail(t *removal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t.gone, t.trims, t.erased = true, nil, nil
}

// pop returns what is to be swept next, with what there is of it and the count as of which that is; nil where there
// is nothing.
func (r *removals) pop() (t *removal, trims []trim, erased []erasure, added uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.queue) > 0 {
		t = r.queue[0]
		r.queue = r.queue[1:]
		if t.queued = false; !t.gone {
			return t, slices.Clip(t.trims), slices.Clip(t.erased), t.added
		}
	}
	return nil, nil, nil, 0
}

// put takes a topic back after a step, in which so many of its erasures and trims were done.
func (r *removals) put(t *removal, trims, erased int, again bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t.trims, t.erased = t.trims[trims:], t.erased[erased:]
	if again {
		r.push(t)
	}
}

// left says what there is for later steps.
func (r *removals) left(now int64) store.Left {
	r.mu.Lock()
	defer r.mu.Unlock()
	left := store.Nothing
	for _, o := range r.pieces {
		if wait := time.Duration(o.begun-now)*time.Millisecond + pieceWait; left.Again < 0 || wait < left.Again {
			left.Again = max(wait, time.Millisecond)
		}
	}
	for _, t := range r.queue {
		left.Again = 0
		left.Bytes += uint64(len(t.erased)) * erasedBytes
		if n := len(t.trims); n > 0 && t.passed > 0 && t.trims[n-1].horizon > t.from {
			left.Bytes += uint64(min(float64(t.trims[n-1].horizon-t.from)*t.read/t.passed, 1<<50))
		}
	}
	return left
}

// sweepRemoved does what a step can do, of one topic or of several small ones.
func (p *sweepStep) sweepRemoved() (err error) {
	r := &p.s.sweeper.removals
	shown := r.count()
	if p.events, err = p.s.tagged(tagEvent); err != nil {
		return err
	}
	defer func() { closeInto(p.events, &err) }()
	p.s.openedHook()
	defer p.flushLater()
	for p.hasRoom() {
		t, trims, erased, added := r.pop()
		if t == nil {
			return nil
		}
		if added > shown {
			// What was removed since may have been published since, too. Who does not see an event takes it for gone.
			shown = r.count()
			if err := p.eventsAnew(); err != nil {
				r.fail(t)
				return err
			}
		}
		doneErased, err := p.sweepErased(t, erased)
		doneTrims := 0
		if err == nil && doneErased == len(erased) {
			doneTrims, err = p.sweepTrimmed(t, trims)
		}
		isMore := doneErased < len(erased) || len(trims) > doneTrims && t.from < trims[len(trims)-1].horizon
		r.put(t, doneTrims, doneErased, isMore && err == nil)
		if err != nil {
			r.fail(t)
			return fmt.Errorf("number %d: %w", t.id, err)
		}
	}
	return nil
}

// eventsAnew goes on with another iterator, which shows all that there is now.
func (p *sweepStep) eventsAnew() error {
	events, err := p.s.tagged(tagEvent)
	if err != nil {
		return err
	}
	closed := p.events.Close()
	p.events = events
	return closed
}

// sweepErased deletes erased events of a topic, and returns how many.
func (p *sweepStep) sweepErased(t *removal, erased []erasure) (done int, err error) {
	gone := erasedEvents{id: t.id}
	defer func() { p.erased = append(p.erased, gone) }()
	if err := p.locate(t); err != nil {
		return 0, err
	}
	for ; done < len(erased) && p.hasRoom(); done++ {
		e := erased[done]
		key := appendEventKey(nil, t.id, e.offset)
		// One below the place is out of the indexes, and goes with its piece.
		if e.offset >= t.from && p.events.SeekGE(key) && string(p.events.Key()) == string(key) {
			if _, err := p.sweepEntries(place{t.id, e.offset}, e.at, e.forget); err != nil {
				return done, err
			}
			_ = p.batch.Delete(key, nil) // a batch takes what fits in memory
		}
		if err := p.events.Error(); err != nil {
			return done, err
		}
		_ = p.batch.Delete(appendSweepKey(nil, t.id, sweepErase, e.offset), nil)
		gone.offsets = append(gone.offsets, e.offset)
	}
	return done, nil
}

// sweepEntries deletes what is indexed of the event that the iterator is at, unless that was done
// before.
func (p *sweepStep) sweepEntries(at place, when int64, forget bool) (bytes int, err error) {
	value, err := p.events.ValueAndErr()
	if err != nil {
		return 0, err
	}
	if isOut, err := p.isTakenOut(at, value); isOut || err != nil {
		p.read += len(value)
		return len(value), err
	}
	return p.removeEvent(at, when, forget)
}

// removeEvent deletes what is indexed of the event that the iterator is at: its id, too, or
// IDsKept after at. It returns the bytes of the record.
func (p *sweepStep) removeEvent(at place, when int64, forget bool) (bytes int, err error) {
	value, err := p.events.ValueAndErr()
	if err != nil {
		return 0, err
	}
	p.read += len(value)
	if key := layout.Key(value); len(key) > 0 && p.s.hasKeys(at.topic) {
		_ = p.batch.Delete(appendKeyKey(nil, at.topic, string(key), at.offset), nil)
	}
	return len(value), p.takeOut(at, value, when, forget)
}

// takeOut likewise, except for the entry of its key.
func (p *sweepStep) takeOut(at place, record []byte, when int64, forget bool) error {
	id, isIndexed, err := p.unlink(at, record)
	switch {
	case err != nil:
		return err
	case isIndexed && forget:
		p.deleteID(id, at.topic)
	case isIndexed:
		p.keepID(at, when+store.IDsKept.Milliseconds(), id)
	}
	return nil
}

// locate finds where the sweep of a topic goes on. What was out of the indexes before Open,
// and has its records, is a piece.
func (p *sweepStep) locate(t *removal) error {
	if t.located {
		return nil
	}
	value, err := p.s.get(appendSweepKey(nil, t.id, sweepProgress, 0))
	if err != nil {
		return err
	}
	if value != nil {
		n := 0
		if t.from, n = binary.Uvarint(value); n <= 0 {
			return fmt.Errorf("the place of a sweep reads %x", value)
		}
	}
	bounds := numberBounds(tagEvent, t.id)
	first := uint64(0)
	if p.events.SeekGE(bounds.LowerBound) && string(p.events.Key()) < string(bounds.UpperBound) {
		first = eventOffset(p.events.Key())
	}
	if err := p.events.Error(); err != nil {
		return err
	}
	if first != 0 && first < t.from {
		t.piece = piece{start: first, begun: p.now, events: sweepKeys + 1}
		p.opened(t)
	}
	t.from = max(t.from, first)
	t.located = true
	return nil
}

func (p *sweepStep) opened(t *removal) {
	r := &p.s.sweeper.removals
	r.pieces = append(r.pieces, openPiece{t, t.piece.begun})
}

// sweepTrimmed takes events below the horizon out of the indexes, and deletes the records of a
// piece that is large enough, or has waited. It returns how many trims are done.
func (p *sweepStep) sweepTrimmed(t *removal, trims []trim) (done int, err error) {
	if len(trims) == 0 {
		return 0, nil
	}
	target := trims[len(trims)-1].horizon
	before, read := t.from, p.read
	valid := p.events.SeekGE(appendEventKey(nil, t.id, t.from))
	end := appendEventKey(nil, t.id, target)
	for at := 0; valid && string(p.events.Key()) < string(end) && p.hasRoom(); valid = p.events.Next() {
		offset := eventOffset(p.events.Key())
		if p.hasErased(t.id, offset) {
			t.from = offset + 1
			continue
		}
		for trims[at].horizon <= offset {
			at++
		}
		n, err := p.sweepEntries(place{t.id, offset}, trims[at].at, trims[at].forget)
		if err != nil {
			p.writePlace(t)
			return 0, err
		}
		if t.piece.begun == 0 {
			t.piece = piece{start: offset, begun: max(p.now, 1)}
			p.opened(t)
		}
		t.piece.events++
		t.piece.bytes += n
		t.from = offset + 1
	}
	if err := p.events.Error(); err != nil {
		p.writePlace(t)
		return 0, err
	}
	if !valid || string(p.events.Key()) >= string(end) {
		t.from = max(t.from, target)
	}
	t.read, t.passed = t.read*rememberStep+float64(p.read-read), t.passed*rememberStep+float64(t.from-before)
	isDue := t.piece.begun < 0 || t.piece.begun == 0 && t.from >= target
	if t.piece.bytes < p.s.sweepRange && !isDue {
		p.writePlace(t)
		return 0, nil
	}
	return p.deletePiece(t, trims)
}

// writePlace notes up to where the indexes have nothing of a topic.
func (p *sweepStep) writePlace(t *removal) {
	_ = p.batch.Set(appendSweepKey(nil, t.id, sweepProgress, 0), binary.AppendUvarint(nil, t.from), nil)
}

// deletePiece deletes the records of a piece, and the trims that are done with it. It returns
// how many these are.
func (p *sweepStep) deletePiece(t *removal, trims []trim) (done int, err error) {
	from, to := appendEventKey(nil, t.id, t.piece.start), appendEventKey(nil, t.id, t.from)
	switch {
	case t.piece.begun == 0:
	case t.piece.events > sweepKeys:
		_ = p.batch.DeleteRange(appendEventKey(nil, t.id, 0), to, nil)
	default:
		for valid := p.events.SeekGE(from); valid && string(p.events.Key()) < string(to); valid = p.events.Next() {
			_ = p.batch.Delete(p.events.Key(), nil)
		}
		if err := p.events.Error(); err != nil {
			p.writePlace(t)
			return 0, err
		}
	}
	t.piece = piece{}
	if err := p.sweepSegments(t.id, t.from); err != nil {
		p.writePlace(t)
		return 0, err
	}
	for ; done < len(trims) && trims[done].horizon <= t.from; done++ {
		_ = p.batch.Delete(appendSweepKey(nil, t.id, sweepTrim, trims[done].horizon), nil)
	}
	if done < len(trims) {
		p.writePlace(t)
		return done, nil
	}
	_ = p.batch.Delete(appendSweepKey(nil, t.id, sweepProgress, 0), nil)
	return done, nil
}

// erasedEvents are erased events of a topic whose records are gone.
type erasedEvents struct {
	id      uint32
	offsets []uint64
}

// hasErased reports whether the batch of the step deletes an event as one that was erased: the
// iterator still shows it.
func (p *sweepStep) hasErased(id uint32, offset uint64) bool {
	return slices.ContainsFunc(p.erased, func(e erasedEvents) bool { return e.id == id && slices.Contains(e.offsets, offset) })
}

// forgetErased has reads not look for erased events any more.
func (p *sweepStep) forgetErased() {
	for _, e := range p.erased {
		if len(e.offsets) > 0 {
			p.s.forgetErased(e)
		}
	}
}

func (s *Store) forgetErased(e erasedEvents) {
	s.committing.Lock()
	defer s.committing.Unlock()
	t := s.topics.numbered(e.id)
	// One that is being loaded may have them from before they were gone. One that cannot be
	// read goes on hiding what is not there.
	if t != nil && s.load(t) == nil {
		t.removed.Store(t.removed.Load().without(e.offsets))
	}
}

// loadRemovals reads at Open what is to be swept of the topics that are there.
func (s *Store) loadRemovals() (err error) {
	iter, err := s.tagged(tagSweep)
	if err != nil {
		return err
	}
	defer closeInto(iter, &err)
	for valid := iter.First(); valid; valid = iter.Next() {
		key, value := iter.Key(), iter.Value()
		if len(key) != 1+topicIDBytes+1+offsetBytes {
			return fmt.Errorf("the key %x names nothing that is to be swept", key)
		}
		id, kind := binary.BigEndian.Uint32(key[1:]), key[1+topicIDBytes]
		if s.topics.numbered(id) == nil || kind == sweepProgress {
			continue // it goes with the deleted topic; or it comes with a trim
		}
		at, forget, err := decodeSweepValue(value)
		switch {
		case err != nil:
			return fmt.Errorf("the row %x of the sweep: %w", key, err)
		case kind == sweepTrim:
			s.sweeper.removals.add(id, []trim{{keyTail(key), at, forget}}, nil)
		case kind == sweepErase:
			s.sweeper.removals.add(id, nil, []erasure{{keyTail(key), at, forget}})
		default:
			return fmt.Errorf("the key %x names nothing that is to be swept", key)
		}
	}
	return iter.Error()
}
