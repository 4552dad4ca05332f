package pebble

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync/atomic"

	"eventhub/store"

	pdb "github.com/cockroachdb/pebble/v2"
)

// # Segments
//
// A segment says how much is in a stretch of a topic's log, so that Measure need not read it:
//
//	'n' topic id (4) last offset (8) → first offset, events, bytes of their records (uvarints)
//
// Once a topic was measured the committer counts what it appends to it and writes a segment, in
// the same batch, for each segmentBytes of it; not before, because a table that has both
// events and segments overlaps the tables of other events, and is rewritten with these where it
// would only be moved. What the committer has counted is lost with the process: Measure reads
// what no segment has, and writes segments for it, except for the end of the log.
//
// Segments have what is below the horizon, too: of one with the horizon inside Measure reads
// the rest. No two have the same event. Those below the horizon go with the records. One that has an event which is erased is
// deleted by the commit that does so, and Measure makes it again. So is one of which the
// compaction removes an event.

const tagSegment = 'n'

const (
	segmentBytes = 4 << 20 // of records, in a segment
	// What one Measure does at most.
	measureBytes    = 16 << 20 // of records that it reads
	measureSegments = 1 << 16
)

// segment is a stretch of a log.
type segment struct {
	first, last uint64
	store.Usage
}

func appendSegmentKey(dst []byte, id uint32, last uint64) []byte {
	dst = binary.BigEndian.AppendUint32(append(dst, tagSegment), id)
	return binary.BigEndian.AppendUint64(dst, last)
}

func (g *segment) append(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, g.first)
	dst = binary.AppendUvarint(dst, g.Events)
	return binary.AppendUvarint(dst, g.Bytes)
}

func decodeSegment(key, value []byte) (g segment, err error) {
	g.last = keyTail(key)
	rest := value
	for _, number := range []*uint64{&g.first, &g.Events, &g.Bytes} {
		n := 0
		if *number, n = binary.Uvarint(rest); n <= 0 {
			return g, fmt.Errorf("the segment up to offset %d reads %x", g.last, value)
		}
		rest = rest[n:]
	}
	if len(rest) > 0 || g.first > g.last {
		return g, fmt.Errorf("the segment up to offset %d reads %x", g.last, value)
	}
	return g, nil
}

// count counts an event that is appended at the topic's end.
func (c *commit) count(t *topic, bytes int) {
	if !t.measured.Load() {
		return
	}
	g := &t.tally
	if g.Events == 0 {
		g.first = t.end
	}
	g.Events++
	if g.Bytes += uint64(bytes); g.Bytes < c.s.segmentBytes {
		return
	}
	g.last = t.end
	_ = c.batch.Set(appendSegmentKey(nil, t.id, g.last), g.append(nil), nil) // a batch takes what fits in memory
	c.segments = append(c.segments, place{t.id, g.last})
	*g = segment{}
}

// voidSegments deletes the segments that have events which the commit erases.
func (c *commit) voidSegments() error {
	for _, r := range c.removals {
		if len(r.erased) == 0 {
			continue
		}
		for _, at := range c.segments { // of this commit: the database does not have them yet
			if at.topic == r.id {
				_ = c.batch.Delete(appendSegmentKey(nil, r.id, at.offset), nil)
			}
		}
		offsets := make([]uint64, 0, len(r.erased))
		for _, e := range r.erased {
			offsets = append(offsets, e.offset)
		}
		if err := c.s.voidSegments(c.batch, r.id, offsets); err != nil {
			return err
		}
	}
	return nil
}

// voidSegments deletes the stored segments that have events at some offsets, which rise.
func (s *Store) voidSegments(batch *pdb.Batch, id uint32, offsets []uint64) (err error) {
	bounds := numberBounds(tagSegment, id)
	iter, err := s.db.NewIter(&bounds)
	if err != nil {
		return fmt.Errorf("delete segments: %w", err)
	}
	defer closeInto(iter, &err)
	for len(offsets) > 0 && iter.SeekGE(appendSegmentKey(nil, id, offsets[0])) {
		_ = batch.Delete(iter.Key(), nil) // a batch takes what fits in memory
		last := keyTail(iter.Key())
		for len(offsets) > 0 && offsets[0] <= last {
			offsets = offsets[1:]
		}
	}
	return iter.Error()
}

// recount voids what is counted of the events that a step of the compaction removes. What it
// writes again it has counted.
func (p *compactionStep) recount() error {
	t, g := p.topic, p.rewrite.segment
	if len(p.gone) == 0 && g.last == 0 {
		return nil
	}
	if len(p.gone) > 0 {
		slices.Sort(p.gone)
		if err := p.s.voidSegments(p.batch, t.id, p.gone); err != nil {
			return err
		}
		t.void(p.gone[0], p.gone[len(p.gone)-1])
	}
	if g.last == 0 {
		return nil
	}
	t.void(g.first, g.last)
	if err := p.s.voidStretch(p.batch, t.id, g.first, g.last); err != nil {
		return err
	}
	if t.measured.Load() && t.removing == nil && t.removed.Load() == p.removed {
		_ = p.batch.Set(appendSegmentKey(nil, t.id, g.last), g.append(nil), nil) // a batch takes what fits in memory
	}
	return nil
}

// voids are the latest stretches of a log from which the compaction has removed something.
// Store.committing guards them; the count may be read without it.
type voids struct {
	count  atomic.Uint64 // of all that there were
	latest [32]segment
}

// void notes that something of a stretch was removed.
func (t *topic) void(first, last uint64) {
	if last >= t.tally.first {
		t.tally = segment{}
	}
	n := t.voids.count.Load()
	t.voids.latest[n%uint64(len(t.voids.latest))] = segment{first: first, last: last}
	t.voids.count.Store(n + 1)
}

// since reports whether something of a stretch was removed since there were so many.
func (v *voids) since(n uint64, g *segment) bool {
	count := v.count.Load()
	if count-n > uint64(len(v.latest)) {
		return true
	}
	for ; n < count; n++ {
		if gone := v.latest[n%uint64(len(v.latest))]; gone.first <= g.last && g.first <= gone.last {
			return true
		}
	}
	return false
}

// voidStretch deletes the stored segments that have something of a stretch.
func (s *Store) voidStretch(batch *pdb.Batch, id uint32, first, last uint64) (err error) {
	bounds := numberBounds(tagSegment, id)
	iter, err := s.db.NewIter(&bounds)
	if err != nil {
		return fmt.Errorf("delete segments: %w", err)
	}
	defer closeInto(iter, &err)
	for valid := iter.SeekGE(appendSegmentKey(nil, id, first)); valid; valid = iter.Next() {
		value, err := iter.ValueAndErr()
		if err != nil {
			return err
		}
		if g, err := decodeSegment(iter.Key(), value); err != nil || g.first > last {
			return err
		}
		_ = batch.Delete(iter.Key(), nil)
	}
	return iter.Error()
}

// sweepSegments deletes the segments that end below an offset.
func (p *sweepStep) sweepSegments(id uint32, below uint64) (err error) {
	bounds := numberBounds(tagSegment, id)
	bounds.UpperBound = appendSegmentKey(nil, id, below)
	iter, err := p.s.db.NewIter(&bounds)
	if err != nil {
		return err
	}
	defer closeInto(iter, &err)
	for valid := iter.First(); valid; valid = iter.Next() {
		_ = p.batch.Delete(iter.Key(), nil)
	}
	return iter.Error()
}

// keepSegments writes segments that Measure has made, unless something of the topic was trimmed or
// erased meanwhile, or something of the segment compacted, or the committer counts there itself, or has a segment there
// by now, it or another Measure: no two of them have the same event.
func (s *Store) keepSegments(m *measurement) (err error) {
	t, made := m.topic, m.made
	if len(made) == 0 {
		return nil
	}
	s.committing.Lock()
	defer s.committing.Unlock()
	if err := s.settle(); err != nil {
		return err
	}
	if t.removed.Load() != m.view.after || s.faults.err() != nil || s.topics.numbered(t.id) != t {
		return nil
	}
	bounds := numberBounds(tagSegment, t.id)
	stored, err := s.db.NewIter(&bounds)
	if err != nil {
		return fmt.Errorf("keep segments: %w", err)
	}
	defer closeInto(stored, &err)
	batch := s.db.NewBatch()
	defer batch.Close()
	for i := range made {
		g := &made[i]
		if t.tally.Events > 0 && g.last >= t.tally.first || t.voids.since(m.voids, g) {
			continue
		}
		isCounted, err := overlaps(stored, t.id, g)
		if err != nil {
			return err
		}
		if !isCounted {
			_ = batch.Set(appendSegmentKey(nil, t.id, g.last), g.append(nil), nil) // a batch takes what fits in memory
		}
	}
	return s.applyLater(batch)
}

// overlaps reports whether a stored segment of a topic has something of another one.
func overlaps(stored *pdb.Iterator, id uint32, g *segment) (bool, error) {
	if !stored.SeekGE(appendSegmentKey(nil, id, g.first)) {
		return false, stored.Error()
	}
	value, err := stored.ValueAndErr()
	if err != nil {
		return false, err
	}
	next, err := decodeSegment(stored.Key(), value)
	return err == nil && next.first <= g.last, err
}
