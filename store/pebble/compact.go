package pebble

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"eventhub/internal/record/layout"
	"eventhub/store"

	pdb "github.com/cockroachdb/pebble/v2"
)

// # Compaction
//
// The marks of a topic say up to which offset it keeps only the newest event of each key. A
// pass goes from the marks that the pass before reached to those that there are when it
// begins, in one of two ways:
//
//   - Event by event, where the new events are few compared with what the key index has. The
//     log in between is read, once. Of an event with a key the key index is asked for
//     the newest one up to the mark: if that is another one, the event goes. If it is the event
//     itself, the newest one up to the mark before goes, of which there is at most one, because
//     that pass left no other. So the work of a pass is that of the new events, whatever is below.
//     After that the log is read up to the mark of the tombstones: those that are the newest of
//     their key go too. All that they hide has gone before, in an earlier batch or in the same one.
//   - As a whole, where they are not (compactkeys.go, compactlog.go): the key index is read from
//     one end to the other, and then the log. What is mostly dead goes by range, and what is kept of it is
//     written again.
//
// What is done is written in the batch of each step, so nothing is done twice, after a crash
// either:
//
//	'v' topic id (4) → done: compacted, tombstones; the marks of the pass under way; its stage;
//	                   the next offset of that, 0 where no pass is under way; the piece, see
//	                   compactlog.go; how many keys there are up to the mark; how many entries
//	                   of the key index went by range (uvarints); the place in the key
//	                   index, or the runs, see compactroom.go
const tagCompaction = 'v'

// The stages of a pass: first and second half, event by event, and those of a pass as a whole.
const (
	stageSupersede = iota
	stageBury
	stageKeys
	stageLog
	stageSettle
)

// compactSizes say when the compaction does what. Tests make them small.
type compactSizes struct {
	step   int    // bytes of the log that a step reads
	points int    // entries that a step deletes one by one
	whole  uint64 // new events of which a pass may be done as a whole
	// Of a pass as a whole.
	entries int    // of the key index that a step reads
	kept    int    // entries that a step writes again
	bytes   int    // and bytes of them
	piece   int    // bytes of dead records that go together
	least   int    // what goes by range: bytes of dead records
	rewrite int    // and dead entries of the key index
	window  uint64 // offsets of which one bit each is held in memory
	// From how much on that went by range Pebble gives back its room: bytes of a run, and entries
	// of the key index.
	settle, settleKeys uint64
}

var compactionSizes = compactSizes{
	step: 1 << 20, points: 2 << 10, whole: 64 << 10,
	entries: 256 << 10, kept: 4 << 10, bytes: 1 << 20, piece: sweepRange, least: 4 << 20, rewrite: 16 << 10, window: 64 << 20,
	settle: 64 << 20, settleKeys: 256 << 10,
}

// mostlyDead is how many dead events there are for each that is kept in what goes by range.
const mostlyDead = 4

// compaction is how far the compaction of a topic is. sweeper.stepping guards it.
type compaction struct {
	done, target compactionMarks
	stage        uint64
	next         uint64
	piece        uint64
	live         uint64
	ranged       uint64
	at           []byte
	runs         []run
}

type compactionMarks struct{ compacted, tombstones uint64 }

func appendCompactionKey(dst []byte, id uint32) []byte {
	return binary.BigEndian.AppendUint32(append(dst, tagCompaction), id)
}

// numbers are what the row begins with.
func (c *compaction) numbers() [9]*uint64 {
	return [9]*uint64{&c.done.compacted, &c.done.tombstones, &c.target.compacted, &c.target.tombstones, &c.stage, &c.next, &c.piece, &c.live, &c.ranged}
}

func (c *compaction) append(dst []byte) []byte {
	for _, n := range c.numbers() {
		dst = binary.AppendUvarint(dst, *n)
	}
	return c.appendRuns(append(dst, c.at...))
}

func (s *Store) loadCompaction(id uint32) (c compaction, row []byte, err error) {
	row, err = s.get(appendCompactionKey(nil, id))
	if row == nil || err != nil {
		return c, nil, err
	}
	rest := row
	for _, n := range c.numbers() {
		size := 0
		if *n, size = binary.Uvarint(rest); size <= 0 {
			return c, nil, fmt.Errorf("the row of the compaction reads %x", row)
		}
		rest = rest[size:]
	}
	if c.stage == stageKeys {
		c.at = rest
		return c, row, nil
	}
	return c, row, c.decodeRuns(rest)
}

// Compact implements store.Retention.
func (s *Store) Compact(ctx context.Context, topic string) (u store.Usage, done bool, err error) {
	if err := s.enter(ctx); err != nil {
		return u, false, err
	}
	defer s.leave()
	p := &compactionStep{}
	if done, err = s.compactSome(topic, p); err == nil && p.settling != nil {
		err = s.giveBack(ctx, p.settling)
	}
	if err != nil {
		return u, false, fmt.Errorf("store/pebble: compact topic %q: %w", topic, err)
	}
	return p.usage, done, nil
}

// compactSome is one step, and reports whether it was the last one.
func (s *Store) compactSome(topic string, p *compactionStep) (done bool, err error) {
	// It and the sweep write the same things.
	s.sweeper.stepping.Lock()
	defer s.sweeper.stepping.Unlock()
	if p.topic, err = s.published(topic); p.topic == nil || err != nil {
		return true, err
	}
	if err := s.faults.err(); err != nil {
		return false, err
	}
	if p.index, err = p.topic.keys.look(); err != nil {
		return false, err
	}
	batch := s.db.NewBatch()
	defer batch.Close()
	defer s.stopRecording()
	p.sweepStep = &sweepStep{s: s, batch: batch, ids: s.ids.fresh(), now: s.now()}
	if done, err = p.compact(); err != nil {
		s.whole = wholePass{} // it is ahead of what is written
		return false, err
	}
	if batch.Empty() {
		return done, nil
	}
	if s.options.sweeping != nil {
		s.options.sweeping(batch)
	}
	if err = p.apply(); err == nil {
		err = s.faults.err()
	}
	if errors.Is(err, store.ErrNotIndexed) {
		s.whole = wholePass{} // likewise
		return false, err
	}
	if err != nil {
		s.faults.fail(err)
		return false, s.faults.err()
	}
	p.applied()
	return done, nil
}

// apply applies the batch, which deletes events that no horizon and no erasure hides, and
// voids what is counted of them. It waits for the commit under way; no commit waits for long.
func (p *compactionStep) apply() error {
	s := p.s
	s.committing.Lock()
	defer s.committing.Unlock()
	if err := s.settle(); err != nil {
		return err
	}
	if err := p.topic.keys.again(p.index); err != nil {
		return err // what was found in it counts no more
	}
	p.rewrite.writeRecorded(p.batch, &s.recorder)
	if err := p.recount(); err != nil {
		return err
	}
	return s.applyLater(p.batch)
}

// compactionStep is one step under way.
type compactionStep struct {
	*sweepStep
	compaction
	topic   *topic
	index   uint64 // the key index that it reads
	removed *removed
	keys    *pdb.Iterator // over the key index of the topic
	scan    *pdb.Iterator // over its log
	elders  *pdb.Iterator // likewise
	usage   store.Usage

	gone    []uint64 // offsets of events whose records go one by one
	rewrite stretch  // what is written again

	settling *settling // what Pebble is to compact after the step
}

// compact does what there is room for of a pass.
func (p *compactionStep) compact() (done bool, err error) {
	p.removed = p.topic.removed.Load()
	marks := p.removed.compaction()
	var row []byte
	if p.compaction, row, err = p.s.loadCompaction(p.topic.id); err != nil {
		return false, err
	}
	if p.next == 0 {
		if p.done == marks {
			return true, nil
		}
		p.begin(marks)
	}
	if err = p.run(); err != nil {
		return false, err
	}
	p.flushLater()
	if p.rewrite.to != nil {
		p.rewrite.write(p.batch)
	}
	if now := p.compaction.append(nil); !bytes.Equal(now, row) {
		_ = p.batch.Set(appendCompactionKey(nil, p.topic.id), now, nil) // a batch takes what fits in memory
	}
	return p.next == 0 && p.done == marks, nil
}

// begin begins a pass. The work of one as a whole is that of the key index and of the log,
// and so at most twice that of the new events: as much of both may be older.
func (p *compactionStep) begin(marks compactionMarks) {
	added, index := marks.compacted-p.done.compacted, p.live+p.topic.head.Load()-p.done.compacted
	p.target, p.stage, p.next = marks, stageSupersede, p.done.compacted+1
	if added >= p.s.compacting.whole && 2*added >= index {
		p.stage, p.next = stageKeys, 1
	}
}

func (p *compactionStep) run() (err error) {
	bounds := numberBounds(tagKey, p.topic.id)
	if p.stage == stageKeys {
		if err := p.s.record(bounds); err != nil { // before the iterator
			return err
		}
	}
	if p.keys, err = p.s.db.NewIter(&bounds); err != nil {
		return err
	}
	defer closeInto(p.keys, &err)
	for _, iter := range []**pdb.Iterator{&p.scan, &p.elders} {
		if *iter, err = p.s.events(p.topic, 0, p.target.compacted); err != nil {
			return err
		}
		defer closeInto(*iter, &err)
	}
	p.s.openedHook()
	switch p.stage {
	case stageKeys:
		return p.compactKeys()
	case stageLog:
		return p.compactLog()
	case stageSettle:
		p.settleNext()
		return nil
	}
	for p.next != 0 {
		whole, err := p.walk()
		if !whole || err != nil {
			return err
		}
	}
	return nil
}

// end ends a pass.
func (p *compactionStep) end() {
	p.done, p.stage, p.next, p.piece, p.ranged, p.at, p.runs = p.target, stageSupersede, 0, 0, 0, nil, nil
}

// walk goes on in the half under way, and reports whether it has come to its end; then
// the other half is next, or none.
func (p *compactionStep) walk() (whole bool, err error) {
	upTo, visit := p.target.compacted, p.supersede
	if p.stage == stageBury {
		upTo, visit = p.target.tombstones, p.bury
	}
	from := max(p.next, p.removed.from())
	for valid := p.scan.SeekGE(appendEventKey(nil, p.topic.id, from)); valid; valid = p.scan.Next() {
		offset := eventOffset(p.scan.Key())
		if offset > upTo {
			break
		}
		if !p.hasRoom() {
			p.next = offset
			return false, nil
		}
		if p.removed.hides(offset) {
			continue
		}
		record, err := p.scan.ValueAndErr()
		if err != nil {
			return false, err
		}
		p.read += len(record)
		if key := layout.Key(record); len(key) > 0 {
			if err := visit(offset, string(key), record); err != nil {
				return false, err
			}
		}
	}
	if err := p.scan.Error(); err != nil {
		return false, err
	}
	if p.stage == stageSupersede {
		p.stage, p.next = stageBury, p.done.tombstones+1
		return true, nil
	}
	p.end()
	return true, nil
}

func (p *compactionStep) hasRoom() bool {
	return p.read < p.s.compacting.step && int(p.batch.Count()) < p.s.compacting.points
}

// supersede removes the event if there is a newer one of its key, and else the one before
// which an earlier pass has left.
func (p *compactionStep) supersede(offset uint64, key string, _ []byte) error {
	newest, err := p.newest(key, p.target.compacted)
	if err != nil {
		return err
	}
	if newest != offset {
		p.events = p.scan
		return p.remove(offset)
	}
	elder, err := p.newest(key, p.done.compacted)
	if elder == 0 || err != nil {
		p.live++
		return err
	}
	if !p.elders.SeekGE(appendEventKey(nil, p.topic.id, elder)) || eventOffset(p.elders.Key()) != elder {
		return p.elders.Error() // the key index has what the log does not: nothing is there to be removed
	}
	p.events = p.elders
	return p.remove(elder)
}

// bury removes a tombstone that is the newest of its key.
func (p *compactionStep) bury(offset uint64, key string, record []byte) error {
	if !layout.IsTombstone(record) {
		return nil
	}
	newest, err := p.newest(key, p.target.compacted)
	if newest != offset || err != nil {
		return err
	}
	p.events = p.scan
	p.live -= min(p.live, 1)
	return p.remove(offset)
}

// remove removes the event that p.events is at.
func (p *compactionStep) remove(offset uint64) error {
	size, err := p.removeEvent(place{p.topic.id, offset}, p.now, false)
	if err != nil {
		return err
	}
	_ = p.batch.Delete(appendEventKey(nil, p.topic.id, offset), nil)
	p.gone = append(p.gone, offset)
	p.count(size)
	return nil
}

// count counts a removed event.
func (p *compactionStep) count(bytes int) {
	p.usage.Events++
	p.usage.Bytes += uint64(bytes)
}

// newest returns the offset of the newest event of a key up to an offset that reads show, 0
// where there is none.
func (p *compactionStep) newest(key string, upTo uint64) (uint64, error) {
	if upTo == 0 {
		return 0, nil
	}
	return p.newestOf(appendKeyPrefix(nil, p.topic.id, key), upTo)
}

// newestOf likewise, with what the entries of the key begin with.
func (p *compactionStep) newestOf(prefix []byte, upTo uint64) (uint64, error) {
	first := binary.BigEndian.AppendUint64(slices.Clip(prefix), ^upTo)
	for valid := p.keys.SeekGE(first); valid && bytes.HasPrefix(p.keys.Key(), prefix); valid = p.keys.Next() {
		offset := keyOffset(p.keys.Key())
		if offset < p.removed.from() {
			break
		}
		if !p.removed.hides(offset) {
			return offset, nil
		}
	}
	return 0, p.keys.Error()
}
