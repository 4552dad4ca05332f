package pebble

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"

	"eventhub/internal/record/layout"
	"eventhub/store"

	pdb "github.com/cockroachdb/pebble/v2"
)

// # Compaction
//
// The marks of a topic say up to which offset it keeps only the newest event of each key. A
// pass goes from the marks that the pass before reached to those that there are when it
// begins. It reads the log in between, once. Of an event with a key it asks the key index for
// the newest one up to the mark: if that is another one, the event goes. If it is the event
// itself, the newest one up to the mark before goes, of which there is at most one, because
// that pass left no other. So the work of a pass is that of the new events, whatever is below.
//
// After that it reads the log up to the mark of the tombstones: those that are the newest of
// their key go too. All that they hide has gone before, in an earlier batch or in the same one.
//
// What is done is written in the batch of each step, so nothing is read twice, after a crash
// either:
//
//	'v' topic id (4) → done: compacted, tombstones; the marks of the pass under way; 0 or 1 for
//	                   its second half; the next offset of it, 0 for none (uvarints)
const tagCompaction = 'v'

// compactStep is how many bytes of the log a step reads.
const compactStep = 256 << 10

// compaction is how far the compaction of a topic is. sweeper.stepping guards it.
type compaction struct {
	done, target compactionMarks
	half         uint64
	next         uint64
}

type compactionMarks struct{ compacted, tombstones uint64 }

func appendCompactionKey(dst []byte, id uint32) []byte {
	return binary.BigEndian.AppendUint32(append(dst, tagCompaction), id)
}

// numbers are what the row has.
func (c *compaction) numbers() [6]*uint64 {
	return [6]*uint64{&c.done.compacted, &c.done.tombstones, &c.target.compacted, &c.target.tombstones, &c.half, &c.next}
}

func (s *Store) loadCompaction(t *topic) (c compaction, err error) {
	value, err := s.get(appendCompactionKey(nil, t.id))
	if value == nil || err != nil {
		return c, err
	}
	rest := value
	for _, n := range c.numbers() {
		size := 0
		if *n, size = binary.Uvarint(rest); size <= 0 {
			return c, fmt.Errorf("the row of the compaction reads %x", value)
		}
		rest = rest[size:]
	}
	return c, nil
}

// Compact implements store.Retention.
func (s *Store) Compact(ctx context.Context, topic string) (u store.Usage, done bool, err error) {
	if err := s.enter(ctx); err != nil {
		return u, false, err
	}
	defer s.leave()
	// It and the sweep write the same things.
	s.sweeper.stepping.Lock()
	defer s.sweeper.stepping.Unlock()
	t, err := s.published(topic)
	if t == nil || err != nil {
		return u, true, err
	}
	if err := s.faults.err(); err != nil {
		return u, false, fmt.Errorf("store/pebble: compact topic %q: %w", topic, err)
	}
	batch := s.db.NewBatch()
	defer batch.Close()
	p := &sweepStep{s: s, batch: batch, ids: s.ids.fresh(), now: s.now()}
	u, done, err = p.compact(t)
	if err != nil {
		return store.Usage{}, false, fmt.Errorf("store/pebble: compact topic %q: %w", topic, err)
	}
	if batch.Empty() {
		return u, done, nil
	}
	if err = s.applyRemoval(batch, t, p.compacted); err == nil {
		err = s.faults.err()
	}
	if err != nil {
		s.faults.fail(err)
		return store.Usage{}, false, fmt.Errorf("store/pebble: compact topic %q: %w", topic, s.faults.err())
	}
	p.applied()
	return u, done, nil
}

// compact is one step.
func (p *sweepStep) compact(t *topic) (u store.Usage, done bool, err error) {
	removed := t.removed.Load()
	marks := removed.compaction()
	c, err := p.s.loadCompaction(t)
	if err != nil {
		return u, false, err
	}
	if c.next == 0 {
		if c.done == marks {
			return u, true, nil
		}
		c.target, c.half, c.next = marks, 0, c.done.compacted+1
	}
	pass := compactionStep{sweepStep: p, topic: t, removed: removed, compaction: c}
	if err = pass.run(); err != nil {
		return u, false, err
	}
	p.flushLater()
	c = pass.compaction
	var value []byte
	for _, n := range c.numbers() {
		value = binary.AppendUvarint(value, *n)
	}
	_ = p.batch.Set(appendCompactionKey(nil, t.id), value, nil) // a batch takes what fits in memory
	return pass.usage, c.next == 0 && c.done == marks, nil
}

// compactionStep is one step under way.
type compactionStep struct {
	*sweepStep
	compaction
	topic   *topic
	removed *removed
	keys    *pdb.Iterator // over the key index of the topic
	scan    *pdb.Iterator // over its log
	elders  *pdb.Iterator // likewise
	usage   store.Usage
}

// run does what there is room for of the pass.
func (p *compactionStep) run() (err error) {
	bounds := numberBounds(tagKey, p.topic.id)
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
	for p.next != 0 {
		whole, err := p.walk()
		if !whole || err != nil {
			return err
		}
	}
	return nil
}

// walk goes on in the half under way, and reports whether it has come to its end; then
// the other half is next, or none.
func (p *compactionStep) walk() (whole bool, err error) {
	upTo, visit := p.target.compacted, p.supersede
	if p.half == 1 {
		upTo, visit = p.target.tombstones, p.bury
	}
	from := max(p.next, p.removed.from())
	for valid := p.scan.SeekGE(appendEventKey(nil, p.topic.id, from)); valid; valid = p.scan.Next() {
		offset := eventOffset(p.scan.Key())
		if offset > upTo {
			break
		}
		if p.read >= p.s.compactStep || p.batch.Count() >= sweepKeys {
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
	if p.half == 0 {
		p.half, p.next = 1, p.done.tombstones+1
		return true, nil
	}
	p.done, p.half, p.next = p.target, 0, 0
	return true, nil
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
	return p.remove(offset)
}

// remove removes the event that p.events is at.
func (p *compactionStep) remove(offset uint64) error {
	size, err := p.removeEvent(place{p.topic.id, offset}, p.now, false)
	if err != nil {
		return err
	}
	_ = p.batch.Delete(appendEventKey(nil, p.topic.id, offset), nil)
	p.compacted = append(p.compacted, offset)
	p.usage.Events++
	p.usage.Bytes += uint64(size)
	return nil
}

// newest returns the offset of the newest event of a key up to an offset that reads show, 0
// where there is none.
func (p *compactionStep) newest(key string, upTo uint64) (uint64, error) {
	if upTo == 0 {
		return 0, nil
	}
	first := appendKeyKey(nil, p.topic.id, key, upTo)
	prefix := first[:len(first)-offsetBytes]
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
