package groupstate

import (
	"iter"
	"sort"
)

// window holds the events of a group above its cursor that were read, in the
// order of their offsets, and derives the cursor from them: it is just below
// the first event that is not done, or below next where there is none. Offsets
// between entries are gaps in the log; nothing is there to be done.
//
// Entries are in blocks that never move, so that a pointer to one is good until
// it is settled, and a window that grows after one stuck event copies nothing. A
// full block in which all is done keeps the ranges of its offsets only: a million acked
// events above the cursor take a few kilobytes.
//
// Everything counts and costs by events: two that follow one another may be 2^50
// offsets apart.
//
// It is a plain data structure; the group's lock guards it.
type window struct {
	// blocks[0].entries[start] is the first that is not done; no blocks: none is.
	blocks []*block
	start  int
	acked  int     // events above the cursor that are done
	live   int     // events that are not
	next   uint64  // the next offset to read; above every entry's
	spare  []Entry // room for the next block
}

// A block has room for minBlock entries, and for twice as many as the one before
// it, up to maxBlock: most groups have little under way, and some very much.
const (
	minBlock = 16
	maxBlock = 512
)

// block holds some entries that follow one another.
type block struct {
	entries     []Entry // nil: all are done and forgotten
	ranges      []span  // the offsets of those that are forgotten, rising
	first, last uint64  // offsets
	done        int
}

// span is a range of offsets without a gap.
type span struct{ from, to uint64 }

// above returns how many offsets of a span are above offset.
func (s span) above(offset uint64) uint64 {
	if s.to <= offset {
		return 0
	}
	return s.to - max(s.from, offset+1) + 1
}

// reset forgets everything and puts the cursor at cursor.
func (w *window) reset(cursor uint64) { *w = window{next: cursor + 1} }

// oldest returns the first entry that is not done, or nil.
func (w *window) oldest() *Entry {
	if len(w.blocks) == 0 {
		return nil
	}
	return &w.blocks[0].entries[w.start]
}

// cursor returns the ack floor.
func (w *window) cursor() uint64 {
	if e := w.oldest(); e != nil {
		return e.offset - 1
	}
	return w.next - 1
}

// cursorAfterCommit returns what the cursor is once all that the commit under way
// settles is done.
func (w *window) cursorAfterCommit() uint64 {
	for e := range w.open() {
		if !e.state.InCommit() {
			return e.offset - 1
		}
	}
	return w.next - 1
}

// openFrom returns how many events at or above an offset are not done.
func (w *window) openFrom(offset uint64) uint64 {
	n := w.live
	for _, b := range w.blocks {
		if b.first >= offset {
			break
		}
		if b.last < offset && b.entries != nil {
			n -= len(b.entries) - b.done
			continue
		}
		for i := range b.entries[:b.search(offset)] {
			if b.entries[i].state != Done {
				n--
			}
		}
	}
	return uint64(n)
}

// ackedAbove returns how many events above the cursor and above offset are done.
func (w *window) ackedAbove(offset uint64) (n uint64) {
	for _, b := range w.blocks {
		switch {
		case b.last <= offset:
		case b.first > offset && b != w.blocks[0]:
			n += uint64(b.done)
		case b.entries == nil:
			for _, s := range b.ranges {
				n += s.above(offset)
			}
		default:
			for i := range b.entries {
				if e := &b.entries[i]; e.state == Done && e.offset > offset && (b != w.blocks[0] || i > w.start) {
					n++
				}
			}
		}
	}
	return n
}

// size returns how many events are between the cursor and the read position.
func (w *window) size() uint64 { return uint64(w.live + w.acked) }

// add appends an event that was read; its offset is at or above next.
func (w *window) add(offset uint64) *Entry {
	if offset < w.next {
		panic("groupstate: an event was read twice")
	}
	w.next = offset + 1
	w.live++
	n := len(w.blocks)
	if n == 0 || len(w.blocks[n-1].entries) == cap(w.blocks[n-1].entries) {
		if n > 1 {
			w.forget(w.blocks[n-1])
		}
		w.blocks = append(w.blocks, w.newBlock(offset))
		n++
	}
	b := w.blocks[n-1]
	b.last = offset
	b.entries = append(b.entries, Entry{offset: offset})
	return &b.entries[len(b.entries)-1]
}

// addDone appends the events at all offsets from next up to last, which are done.
func (w *window) addDone(last uint64) {
	b := &block{first: w.next, last: last, done: int(last - w.next + 1), ranges: []span{{w.next, last}}}
	w.blocks = append(w.blocks, b)
	w.acked += b.done
	w.next = last + 1
	if len(w.blocks) == 1 {
		w.advance()
	}
}

func (w *window) newBlock(first uint64) *block {
	room := minBlock
	if n := len(w.blocks); n > 0 {
		room = maxBlock
		if before := cap(w.blocks[n-1].entries); before > 0 {
			room = min(2*before, maxBlock)
		}
	}
	entries := w.spare
	w.spare = nil
	if cap(entries) < room {
		entries = make([]Entry, 0, room)
	}
	return &block{first: first, entries: entries}
}

// forget releases the entries of a block in which all is done.
func (w *window) forget(b *block) {
	if b.entries != nil && b.done == len(b.entries) {
		b.ranges = rangesOf(b.entries)
		w.keep(b.entries)
		b.entries = nil
	}
}

// rangesOf returns the offsets of entries as ranges.
func rangesOf(entries []Entry) []span {
	n := 1
	for i := range entries[1:] {
		if entries[i+1].offset != entries[i].offset+1 {
			n++
		}
	}
	ranges := make([]span, 0, n)
	for i := range entries {
		if offset := entries[i].offset; i > 0 && ranges[len(ranges)-1].to+1 == offset {
			ranges[len(ranges)-1].to = offset
		} else {
			ranges = append(ranges, span{offset, offset})
		}
	}
	return ranges
}

// keep puts room for entries aside for the next block.
func (w *window) keep(entries []Entry) {
	clear(entries)
	w.spare = entries[:0]
}

// skipTo moves the read position over offsets where the log has nothing.
func (w *window) skipTo(next uint64) { w.next = max(w.next, next) }

// find returns the entry at offset, or nil where there is none, or where it is
// done and forgotten. The pointer is good until the entry is settled.
func (w *window) find(offset uint64) *Entry {
	b := w.blockOf(offset)
	if b == nil {
		return nil
	}
	i := b.search(offset)
	if i == len(b.entries) || b.entries[i].offset != offset {
		return nil
	}
	return &b.entries[i]
}

// search returns the index of the first entry at or above offset.
func (b *block) search(offset uint64) int {
	return sort.Search(len(b.entries), func(i int) bool { return b.entries[i].offset >= offset })
}

// reaching returns the index of the first block that reaches offset.
func (w *window) reaching(offset uint64) int {
	return sort.Search(len(w.blocks), func(i int) bool { return w.blocks[i].last >= offset })
}

// blockOf returns the block that an offset falls into, or nil.
func (w *window) blockOf(offset uint64) *block {
	i := w.reaching(offset)
	if i == len(w.blocks) || w.blocks[i].first > offset {
		return nil
	}
	return w.blocks[i]
}

// settle marks an entry done and reports whether the cursor moved.
func (w *window) settle(e *Entry) (moved bool) {
	first := e == w.oldest()
	b := w.blockOf(e.offset)
	*e = Entry{offset: e.offset, state: Done}
	b.done++
	w.acked++
	w.live--
	if !first {
		if len(b.entries) == cap(b.entries) && b != w.blocks[0] {
			w.forget(b)
		}
		return false
	}
	w.advance()
	return true
}

// advance moves the start to the first entry that is not done.
func (w *window) advance() {
	for len(w.blocks) > 0 {
		b := w.blocks[0]
		if b.entries == nil {
			w.acked -= b.done
		}
		for w.start < len(b.entries) && b.entries[w.start].state == Done {
			w.start++
			w.acked--
		}
		if w.start < len(b.entries) {
			return
		}
		// All of it is done. The last block goes too, full or not.
		w.start = 0
		if b.entries != nil {
			w.keep(b.entries)
		}
		w.blocks[0] = nil
		w.blocks = w.blocks[1:]
	}
	w.blocks = nil
}

// open yields the entries that are not done, in order; nothing may be added or
// settled in the meantime.
func (w *window) open() iter.Seq[*Entry] {
	return func(yield func(*Entry) bool) {
		for _, b := range w.blocks {
			for i := range b.entries {
				if e := &b.entries[i]; e.state != Done && !yield(e) {
					return
				}
			}
		}
	}
}
