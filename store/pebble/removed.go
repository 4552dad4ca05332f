package pebble

import (
	"encoding/binary"
	"fmt"
	"slices"

	"eventhub/store"

	pdb "github.com/cockroachdb/pebble/v2"
)

// # Removed events
//
// A commit that removes events writes the topic's marks and, for the sweep, what there is to
// be removed; the events themselves stay where they are, and so do their index entries. Reads
// show none of them from the moment in which the commit is durable. So nothing of it is seen
// before its fsync, although Pebble shows the batch.
//
// The marks have the topic's last offset and its commit time, because after a sweep the log
// may not: no offset is given again, and times do not decrease.
//
//	'w' topic id (4) 't' horizon (8) → at (8), forget (1)   all below it
//	'w' topic id (4) 'x' offset (8)  → at (8), forget (1)   one event
//
// at is when it was removed, in epoch milliseconds, and forget is 1 where the ids go with the
// events. A row goes when what it names is gone.
//
// # Readers
//
// Whoever reads the log looks at what is removed before it opens its iterator and again after
// that (view). What the sweep removes is hidden since before, so the second look has it, unless
// the sweep has been there already and it is hidden no more; then the first look has it.

const (
	sweepTrim  = 't'
	sweepErase = 'x'
)

// removed is never changed. nil hides nothing.
type removed struct {
	horizon         uint64   // the first offset that is kept
	erased          []uint64 // the offsets above it, in order, whose events are to be swept
	compactionMarks          // these hide nothing
}

// from returns the first offset that is kept.
func (r *removed) from() uint64 {
	if r == nil {
		return 1
	}
	return r.horizon
}

// tell says in a batch what a read does not show.
func (r *removed) tell(batch *store.Batch) {
	marks := r.compaction()
	batch.Horizon, batch.Compacted, batch.Tombstones = r.from(), marks.compacted, marks.tombstones
}

// compaction returns the marks of the compaction.
func (r *removed) compaction() compactionMarks {
	if r == nil {
		return compactionMarks{}
	}
	return r.compactionMarks
}

// hides reports whether no read shows the event at an offset.
func (r *removed) hides(offset uint64) bool {
	if r == nil || offset < r.horizon {
		return r != nil
	}
	_, isErased := slices.BinarySearch(r.erased, offset)
	return isErased
}

// with returns what is removed after a change as well.
func (r *removed) with(horizon uint64, erase []uint64) *removed {
	next := removed{horizon: max(r.from(), horizon), compactionMarks: r.compaction()}
	if r != nil {
		next.erased = r.erased
	}
	if len(erase) > 0 {
		next.erased = slices.Compact(slices.Sorted(slices.Values(slices.Concat(next.erased, erase))))
	}
	first, _ := slices.BinarySearch(next.erased, next.horizon)
	next.erased = next.erased[first:]
	return &next
}

// without returns what is removed when the events at some offsets are gone.
func (r *removed) without(erased []uint64) *removed {
	if r == nil {
		return nil
	}
	gone := slices.Sorted(slices.Values(erased))
	next := removed{horizon: r.horizon, compactionMarks: r.compactionMarks, erased: make([]uint64, 0, len(r.erased))}
	for _, offset := range r.erased {
		if _, is := slices.BinarySearch(gone, offset); !is {
			next.erased = append(next.erased, offset)
		}
	}
	return &next
}

// view is what one read must not show: what was removed before its iterator was opened, and
// after.
type view struct{ before, after *removed }

// look is the first look, before the iterator is opened.
func (t *topic) look() view { return view{before: t.removed.Load()} }

// again is the second look, after that. It returns the first offset that is kept.
func (v *view) again(t *topic) (from uint64) {
	v.after = t.removed.Load()
	return v.after.from()
}

func (v *view) hides(offset uint64) bool { return v.after.hides(offset) || v.before.hides(offset) }

// marks are the row of a topic.
type marks struct {
	horizon  uint64
	last     uint64
	lastTime int64
	compactionMarks
}

func appendMarksKey(dst []byte, id uint32) []byte {
	return binary.BigEndian.AppendUint32(append(dst, tagMarks), id)
}

func (m marks) append(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, m.horizon)
	dst = binary.AppendUvarint(dst, m.last)
	dst = binary.AppendUvarint(dst, uint64(m.lastTime))
	dst = binary.AppendUvarint(dst, m.compacted)
	return binary.AppendUvarint(dst, m.tombstones)
}

// decodeMarks passes what comes after the numbers that it knows.
func decodeMarks(v []byte) (m marks, err error) {
	var numbers [5]uint64
	rest := v
	for i := range numbers {
		n := 0
		if numbers[i], n = binary.Uvarint(rest); n <= 0 {
			return m, fmt.Errorf("the marks of a topic read %x", v)
		}
		rest = rest[n:]
	}
	return marks{numbers[0], numbers[1], int64(numbers[2]), compactionMarks{numbers[3], numbers[4]}}, nil
}

func appendSweepKey(dst []byte, id uint32, kind byte, offset uint64) []byte {
	dst = append(binary.BigEndian.AppendUint32(append(dst, tagSweep), id), kind)
	return binary.BigEndian.AppendUint64(dst, offset)
}

func appendSweepValue(dst []byte, at int64, forget bool) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(at))
	if forget {
		return append(dst, 1)
	}
	return append(dst, 0)
}

func decodeSweepValue(v []byte) (at int64, forget bool, err error) {
	if len(v) != 8+1 || v[8] > 1 {
		return 0, false, fmt.Errorf("it reads %x", v)
	}
	return int64(binary.BigEndian.Uint64(v)), v[8] == 1, nil
}

// loadMarks reads the marks of a topic, and which of its events are erased and not swept. A
// topic of which nothing was removed has none.
func (s *Store) loadMarks(t *topic) (m marks, err error) {
	value, err := s.get(appendMarksKey(nil, t.id))
	if value == nil || err != nil {
		return m, err
	}
	if m, err = decodeMarks(value); err != nil {
		return m, err
	}
	var erased []uint64
	iter, err := s.db.NewIter(&pdb.IterOptions{
		LowerBound: appendSweepKey(nil, t.id, sweepErase, 0), UpperBound: appendSweepKey(nil, t.id, sweepErase+1, 0)})
	if err != nil {
		return m, err
	}
	defer closeInto(iter, &err)
	for valid := iter.First(); valid; valid = iter.Next() {
		erased = append(erased, keyTail(iter.Key()))
	}
	r := (*removed)(nil).with(m.horizon, erased)
	r.compactionMarks = m.compactionMarks
	t.removed.Store(r)
	return m, iter.Error()
}

// keyTail reads the offset at the end of a key.
func keyTail(key []byte) uint64 { return binary.BigEndian.Uint64(key[len(key)-offsetBytes:]) }

// checkRemovals refuses changes of topics that are not there.
func (c *commit) checkRemovals(changes []store.TopicChange) (refusal, err error) {
	for i := range changes {
		ch := &changes[i]
		t, err := c.topic(ch.Topic)
		if err != nil || t == nil || ch.Life != 0 && t.life() != ch.Life {
			return fmt.Errorf("life %d of topic %q: %w", ch.Life, ch.Topic, store.ErrGone), err
		}
		if ch.Index == store.DropIndex {
			if refusal, err := c.mayDrop(t); refusal != nil || err != nil {
				return refusal, err
			}
		}
	}
	return nil, nil
}

// pending is what is removed as the units so far leave it.
func (t *topic) pending() *removed {
	if t.removing != nil {
		return t.removing
	}
	return t.removed.Load()
}

// remove does what a change says, in memory and as rows for the sweep.
func (c *commit) remove(ch *store.TopicChange) {
	t, _ := c.topic(ch.Topic) // found and loaded by check
	c.changeIndex(t, ch.Index)
	if !ch.Removes() {
		return
	}
	before := t.pending()
	horizon := min(ch.Horizon, t.last+1)
	if t.removing == nil {
		c.changed = append(c.changed, t)
	}
	erase := slices.DeleteFunc(slices.Compact(slices.Sorted(slices.Values(ch.Erase))), func(offset uint64) bool {
		return offset > t.last || before.hides(offset)
	})
	t.removing = before.with(horizon, erase)
	t.removing.compacted = max(t.removing.compacted, min(ch.Compacted, t.last))
	t.removing.tombstones = max(t.removing.tombstones, min(ch.Tombstones, t.removing.compacted))
	value := appendSweepValue(nil, c.now, ch.ForgetIDs)
	if horizon > before.from() {
		_ = c.batch.Set(appendSweepKey(nil, t.id, sweepTrim, horizon), value, nil) // a batch takes what fits in memory
		c.removals = append(c.removals, newRemoval{id: t.id, trims: []trim{{horizon, c.now, ch.ForgetIDs}}})
	}
	if len(erase) == 0 {
		return
	}
	r := newRemoval{id: t.id, erased: make([]erasure, 0, len(erase))}
	for _, offset := range erase {
		_ = c.batch.Set(appendSweepKey(nil, t.id, sweepErase, offset), value, nil)
		r.erased = append(r.erased, erasure{offset, c.now, ch.ForgetIDs})
	}
	c.removals = append(c.removals, r)
	if erase[len(erase)-1] >= t.tally.first {
		t.tally = segment{}
	}
}

// newRemoval is what there is for the sweep once the commit is published.
type newRemoval struct {
	id     uint32
	trims  []trim
	erased []erasure
}

// writeMarks writes those of the topics of which the commit removes something.
func (c *commit) writeMarks() {
	for _, t := range c.changed {
		m := marks{t.removing.from(), t.end, t.lastTime, t.removing.compactionMarks}
		_ = c.batch.Set(appendMarksKey(nil, t.id), m.append(nil), nil)
	}
}
