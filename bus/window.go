package bus

import (
	"iter"
	"sort"

	"eventhub"
)

// entryState is where an event of the window stands.
type entryState uint8

const (
	waiting         entryState = iota // to be delivered (again), at entry.at or later
	behind                            // held back behind an earlier event of its key
	leased                            // held by entry.member until entry.at
	ackPending                        // to be acked together with what entry.member publishes
	ackInCommit                       // … and that is in the commit under way
	letterPending                     // to be dead-lettered
	letterInCommit                    // its dead letter is in the commit under way
	redriveInCommit                   // redriven, and that is in the commit under way
	done                              // acked, but the cursor is not there yet
)

// taken reports whether an entry of that state takes its member's room.
func (s entryState) taken() bool { return s == leased || s == ackPending || s == ackInCommit }

// inCommit reports whether an entry of that state is done if the commit under way
// does what it is to do.
func (s entryState) inCommit() bool { return s == ackInCommit || s == letterInCommit }

// entry is one event between the cursor and the read position of a group. There may
// be a million: it fills a line of the processor's cache, and no more.
type entry struct {
	offset uint64
	serial uint64  // of the last lease; 0 before the first
	at     int64   // by the bus's clock: the lease's deadline, or when it may go out again
	since  int64   // by the bus's clock: start of the last lease
	member *member // who holds or last held it
	id     string  // known from the first lease on
	// age is how old the event was when it was leased, in ms; up to 49 days.
	age      uint32
	attempts uint16
	state    entryState
	redriven uint8 // how often, where it lies in the list of these and not in the window
}

// window holds the events of a group above its cursor that were read, in the
// order of their offsets, and derives the cursor from them: it stands just below
// the first event that is not done, or below next where there is none. Offsets
// between entries are gaps in the log; nothing is there to be done.
//
// Entries lie in blocks that never move, so that a pointer to one is good until
// it is settled, and a window that grows behind one stuck event copies nothing. A
// full block of which all is done keeps the ranges of its offsets only: a million acked
// events above the cursor take a few kilobytes.
//
// Everything counts and costs by events: two that follow one another may lie 2^50
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
	spare  []entry // room for the next block
}

// A block has room for minBlock entries, and for twice as many as the one before
// it, up to maxBlock: most groups have little under way, and some very much.
const (
	minBlock = 16
	maxBlock = 512
)

// block holds some entries that follow one another.
type block struct {
	entries     []entry // nil: all are done and forgotten
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
func (w *window) oldest() *entry {
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
		if !e.state.inCommit() {
			return e.offset - 1
		}
	}
	return w.next - 1
}

// lag returns how many events up to head are not done. Of what was not read yet
// nothing is known but the offsets, so there gaps count.
func (w *window) lag(head uint64) uint64 {
	lag := uint64(w.live)
	if head >= w.next {
		lag += head - w.next + 1
	}
	return lag
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
				if e := &b.entries[i]; e.state == done && e.offset > offset && (b != w.blocks[0] || i > w.start) {
					n++
				}
			}
		}
	}
	return n
}

// size returns how many events lie between the cursor and the read position.
func (w *window) size() uint64 { return uint64(w.live + w.acked) }

// add appends an event that was read; its offset is at or above next.
func (w *window) add(offset uint64) *entry {
	if offset < w.next {
		panic("bus: an event was read twice")
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
	b.entries = append(b.entries, entry{offset: offset})
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
		entries = make([]entry, 0, room)
	}
	return &block{first: first, entries: entries}
}

// forget lets go of the entries of a block in which all is done.
func (w *window) forget(b *block) {
	if b.entries != nil && b.done == len(b.entries) {
		b.ranges = rangesOf(b.entries)
		w.keep(b.entries)
		b.entries = nil
	}
}

// rangesOf returns the offsets of entries as ranges.
func rangesOf(entries []entry) []span {
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
func (w *window) keep(entries []entry) {
	clear(entries)
	w.spare = entries[:0]
}

// skipTo moves the read position over offsets where the log has nothing.
func (w *window) skipTo(next uint64) { w.next = max(w.next, next) }

// find returns the entry at offset, or nil where there is none, or where it is
// done and forgotten. The pointer is good until the entry is settled.
func (w *window) find(offset uint64) *entry {
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
func (w *window) settle(e *entry) (moved bool) {
	first := e == w.oldest()
	b := w.blockOf(e.offset)
	*e = entry{offset: e.offset, state: done}
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
		for w.start < len(b.entries) && b.entries[w.start].state == done {
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
// settled meanwhile.
func (w *window) open() iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		for _, b := range w.blocks {
			for i := range b.entries {
				if e := &b.entries[i]; e.state != done && !yield(e) {
					return
				}
			}
		}
	}
}

// timed is an appointment of one entry: the end of a lease or the time of a
// retry. It is void when the entry has another one or none: its state and at tell.
type timed struct {
	at     int64
	offset uint64
}

// appointments is a binary heap by (at, offset). Void ones stay inside until
// they surface or until they are the larger part.
type appointments []timed

func (a appointments) less(i, j int) bool {
	return a[i].at < a[j].at || a[i].at == a[j].at && a[i].offset < a[j].offset
}

func (a *appointments) push(t timed) {
	*a = append(*a, t)
	h := *a
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if !h.less(i, up) {
			break
		}
		h[i], h[up] = h[up], h[i]
		i = up
	}
}

func (a *appointments) pop() {
	h := *a
	last := len(h) - 1
	h[0] = h[last]
	*a = h[:last]
	a.sink(0)
}

func (a appointments) sink(i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(a); child++ {
			if a.less(child, least) {
				least = child
			}
		}
		if least == i {
			return
		}
		a[i], a[least] = a[least], a[i]
		i = least
	}
}

// compact drops what is void once that is most of the heap, so that a heap of
// n live appointments never holds more than about 2n.
func (a *appointments) compact(live int, valid func(timed) bool) {
	if len(*a) < 1024 || len(*a) < 2*live {
		return
	}
	kept := (*a)[:0]
	for _, t := range *a {
		if valid(t) {
			kept = append(kept, t)
		}
	}
	*a = kept
	for i := len(kept)/2 - 1; i >= 0; i-- {
		a.sink(i)
	}
}

// lease returns the token of the entry's last lease.
func (e *entry) lease(runtime uint64) eventhub.Lease {
	return eventhub.Lease{Runtime: runtime, Offset: e.offset, Serial: e.serial}
}
