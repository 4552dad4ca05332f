package pebble

import (
	"bytes"
	"fmt"
	"slices"

	"eventhub/internal/record/layout"
)

// # The log in a pass as a whole
//
// After the key index was compacted it says which events are kept: those up to the mark that
// have an entry. One bit for each offset of a window of the log is set where there is one;
// this needs a scan of the index, which is small by now.
//
// Then the log is read once. A dead event is taken out of the other indexes at once. Its record
// goes with the others of the piece: once there is enough of it the piece goes by one range
// deletion, and the records that are kept of it are written again in the same batch. A piece that
// is not mostly dead, or small, goes record by record.
//
// The row has the piece: its first offset, where the next one is that of the stage. Of
// what is in it the dead events are out of the indexes, so the sweep, which meets them where they are
// removed meanwhile, leaves them to the piece (isTakenOut). This holds for one
// that is erased before the piece comes to it, too: it has no entry, so nobody else takes it out.

// wholePass is what a pass as a whole has in memory. It is made again where it is lost.
type wholePass struct {
	topic    uint32
	from, to uint64 // the window; none where to is 0
	bits     []uint64
	scanned  []byte // the next entry of the key index to be looked at; nil when all were
	live     uint64 // entries so far

	knows bool // the piece
	logPiece
}

// logPiece is what was read of the piece.
type logPiece struct {
	dead, deadBytes int
	kept            []uint64
	keptBytes       int

	closing bool
	each    int  // bytes of a dead record, about
	isWorth bool // Pebble is to write once more what is kept
}

// close has the dead records deleted in the next steps.
func (l *logPiece) close() {
	l.closing, l.each, l.isWorth = true, l.deadBytes/max(l.dead, 1), l.deadBytes >= l.keptBytes/2
}

func (w *wholePass) has(offset uint64) bool {
	at := offset - w.from
	return w.bits[at/64]&(1<<(at%64)) != 0
}

// compactLog is one step of it.
func (p *compactionStep) compactLog() error {
	w := &p.s.whole
	switch {
	case w.topic != p.topic.id || w.to == 0:
		return p.openWindow()
	case w.scanned != nil:
		return p.scanWindow()
	case !w.knows:
		return p.knowPiece()
	case !w.closing:
		return p.readPiece()
	}
	return p.closePiece()
}

// openWindow begins a window at the first event of the piece.
func (p *compactionStep) openWindow() error {
	from := p.piece
	if p.piece == p.next {
		valid := p.scan.SeekGE(appendEventKey(nil, p.topic.id, max(p.next, p.removed.from())))
		if err := p.scan.Error(); err != nil {
			return err
		}
		if !valid {
			p.s.whole = wholePass{}
			p.settle()
			return nil
		}
		from = eventOffset(p.scan.Key()) // there is none in between
	}
	to := min(max(from+p.s.compacting.window, p.next), p.target.compacted+1)
	p.s.whole = wholePass{
		topic: p.topic.id, from: from, to: to, bits: make([]uint64, (to-from+63)/64),
		scanned: numberBounds(tagKey, p.topic.id).LowerBound, knows: p.piece == p.next,
	}
	return nil
}

// scanWindow goes on setting the bits.
func (p *compactionStep) scanWindow() error {
	w := &p.s.whole
	valid := p.keys.SeekGE(w.scanned)
	for n := 0; valid && n < p.s.compacting.entries; n++ {
		if offset := keyOffset(p.keys.Key()); offset <= p.target.compacted {
			w.live++
			if offset >= w.from && offset < w.to {
				at := offset - w.from
				w.bits[at/64] |= 1 << (at % 64)
			}
		}
		valid = p.keys.Next()
	}
	w.scanned = nil
	if valid {
		w.scanned = bytes.Clone(p.keys.Key())
	} else {
		p.live = w.live
	}
	return p.keys.Error()
}

// knowPiece reads again what a piece keeps that was begun before the store was opened.
func (p *compactionStep) knowPiece() error {
	w := &p.s.whole
	for valid := p.scan.SeekGE(appendEventKey(nil, p.topic.id, p.piece)); valid; valid = p.scan.Next() {
		offset := eventOffset(p.scan.Key())
		if offset >= p.next {
			break
		}
		record, err := p.scan.ValueAndErr()
		if err != nil {
			return err
		}
		if p.isDead(offset, record) {
			w.drop(len(record))
		} else {
			w.keep(offset, len(record))
		}
	}
	w.knows = true
	return p.scan.Error()
}

// isDead reports whether an event of the window is one that is not kept. A tombstone that goes
// has an entry, and no other event of its key. One without an entry is dead if it was erased, too:
// the sweep takes it for one that was taken out.
func (p *compactionStep) isDead(offset uint64, record []byte) bool {
	return len(layout.Key(record)) > 0 && !p.s.whole.has(offset)
}

func (l *logPiece) drop(bytes int) {
	l.dead++
	l.deadBytes += bytes
}

func (l *logPiece) keep(offset uint64, bytes int) {
	l.kept = append(l.kept, offset)
	l.keptBytes += bytes
}

// readPiece reads on in the log, and takes dead events out of the indexes.
func (p *compactionStep) readPiece() error {
	w, sizes := &p.s.whole, &p.s.compacting
	if horizon := p.removed.from(); horizon > p.next {
		w.close() // what is below it is the sweep's
		return nil
	}
	p.events = p.scan
	for valid := p.scan.SeekGE(appendEventKey(nil, p.topic.id, p.next)); valid; valid = p.scan.Next() {
		offset := eventOffset(p.scan.Key())
		if offset >= w.to {
			break
		}
		if !p.hasRoom() {
			if w.isFull(sizes) {
				w.close()
			}
			return nil
		}
		if err := p.readEvent(offset); err != nil {
			return err
		}
		p.next = offset + 1
	}
	p.next = w.to
	w.close()
	return p.scan.Error()
}

func (p *compactionStep) readEvent(offset uint64) error {
	w := &p.s.whole
	record, err := p.scan.ValueAndErr()
	if err != nil {
		return err
	}
	p.read += len(record)
	isDead := p.isDead(offset, record)
	if !isDead && offset <= p.target.tombstones && layout.IsTombstone(record) && !p.removed.hides(offset) {
		if key := layout.Key(record); len(key) > 0 {
			_ = p.batch.Delete(appendKeyKey(nil, p.topic.id, string(key), offset), nil) // a batch takes what fits in memory
			p.live -= min(p.live, 1)
			isDead = true
		}
	}
	if !isDead {
		w.keep(offset, len(record))
		return nil
	}
	w.drop(len(record))
	if !p.removed.hides(offset) { // an erased one was counted by who erased it
		p.count(len(record))
	}
	return p.takeOut(place{p.topic.id, offset}, record, p.now, false)
}

// isFull reports whether the piece is to be closed: it is large enough, or not worth a range.
func (l *logPiece) isFull(sizes *compactSizes) bool {
	return l.deadBytes >= sizes.piece || len(l.kept) >= sizes.kept || l.keptBytes >= sizes.bytes ||
		l.dead >= sizes.points && !l.isMostlyDead()
}

func (l *logPiece) isMostlyDead() bool { return l.dead >= mostlyDead*len(l.kept) }

// closePiece deletes the dead records of the piece, or as many as a step deletes one by one.
func (p *compactionStep) closePiece() error {
	w, sizes := &p.s.whole, &p.s.compacting
	switch {
	case w.dead == 0:
	case w.deadBytes >= sizes.least && w.isMostlyDead():
		if err := p.rewritePiece(); err != nil {
			return err
		}
	default:
		if whole, err := p.deletePoints(); !whole || err != nil {
			return err
		}
	}
	p.next = max(p.next, p.removed.from())
	p.piece = p.next
	if w.logPiece = (logPiece{}); p.next >= w.to {
		*w = wholePass{}
	}
	return nil
}

// rewritePiece has the piece go by range.
func (p *compactionStep) rewritePiece() error {
	w := &p.s.whole
	g := segment{first: p.piece, last: p.next - 1}
	p.rewrite = stretch{from: appendEventKey(nil, p.topic.id, p.piece), to: appendEventKey(nil, p.topic.id, p.next)}
	for _, offset := range w.kept {
		key := appendEventKey(nil, p.topic.id, offset)
		if !p.scan.SeekGE(key) {
			break
		}
		if !bytes.Equal(p.scan.Key(), key) {
			continue // the sweep has removed it meanwhile
		}
		record, err := p.scan.ValueAndErr()
		if err != nil {
			return err
		}
		p.rewrite.keep = append(p.rewrite.keep, kept{key, bytes.Clone(record)})
		if !p.removed.hides(offset) {
			g.Events++
			g.Bytes += uint64(len(record))
		}
	}
	p.rewrite.segment = g
	p.noteRun(p.next, w.deadBytes)
	return p.scan.Error()
}

// deletePoints deletes dead records one by one, and reports whether these were all of the piece.
func (p *compactionStep) deletePoints() (whole bool, err error) {
	w := &p.s.whole
	for valid := p.scan.SeekGE(appendEventKey(nil, p.topic.id, p.piece)); valid; valid = p.scan.Next() {
		offset := eventOffset(p.scan.Key())
		if offset >= p.next {
			break
		}
		if len(p.gone) >= p.s.compacting.points {
			p.noteRun(offset, len(p.gone)*w.each)
			p.piece = offset
			w.dead -= len(p.gone)
			return false, nil
		}
		if _, isKept := slices.BinarySearch(w.kept, offset); isKept {
			continue
		}
		_ = p.batch.Delete(p.scan.Key(), nil) // a batch takes what fits in memory
		p.gone = append(p.gone, offset)
	}
	p.noteRun(p.next, len(p.gone)*w.each)
	return true, p.scan.Error()
}

// isTakenOut reports whether the compaction has taken an event out of the indexes, and has its
// record still to delete.
func (p *sweepStep) isTakenOut(at place, record []byte) (bool, error) {
	pass, err := p.passOver(at.topic)
	if err != nil {
		return false, err
	}
	key := layout.Key(record)
	if !pass.hasInPiece(at.offset) || len(key) == 0 {
		return false, nil
	}
	isIndexed, err := p.s.has(appendKeyKey(nil, at.topic, string(key), at.offset))
	if err != nil {
		return false, fmt.Errorf("the entry of the key at offset %d: %w", at.offset, err)
	}
	return !isIndexed, nil
}

// passOver returns how far the compaction of a topic is.
func (p *sweepStep) passOver(topic uint32) (*compaction, error) {
	if p.pass == nil || p.passOf != topic {
		c, _, err := p.s.loadCompaction(topic)
		if err != nil {
			return nil, err
		}
		p.pass, p.passOf = &c, topic
	}
	return p.pass, nil
}

// hasInPiece reports whether an event is in the piece of a pass: if it is dead, its record is still to be deleted.
func (c *compaction) hasInPiece(offset uint64) bool {
	return c.stage == stageLog && offset >= c.piece && offset < c.next
}
