package bus

import (
	"sort"

	"eventhub"
)

// entryState is where an event of the window stands.
type entryState uint8

const (
	waiting  entryState = iota // to be delivered (again), at entry.at or later
	behind                     // held back behind an earlier event of its key
	leased                     // held by entry.member until entry.at
	burying                    // to be dead-lettered
	interred                   // its dead letter is in the commit under way
	done                       // acked, but the cursor is not there yet
)

// entry is one event between the cursor and the read position of a group.
type entry struct {
	offset uint64
	serial uint64 // of the last lease; 0 before the first
	at     int64  // epoch ms: the lease's deadline, or when it may go out again
	since  int64  // epoch ms: start of the last lease
	// committed is the event's commit time in epoch ms, known from the first
	// lease on.
	committed int64
	member    *member // who holds or last held it
	id        string  // known from the first lease on
	line      *line   // of its key, where the group has lines
	attempts  uint16
	state     entryState
}

// window holds the events of a group above its cursor that were read, in the
// order of their offsets, and derives the cursor from them: it stands just
// below the first event that is not done, or below next where there is none.
// Offsets between entries are gaps in the log; nothing is there to be done.
//
// It is a plain data structure; the group's lock guards it.
type window struct {
	entries []entry
	start   int    // entries[:start] are done and forgotten
	acked   int    // entries of entries[start:] that are done
	next    uint64 // the next offset to read; above every entry's
}

// reset forgets everything and puts the cursor at cursor.
func (w *window) reset(cursor uint64) { *w = window{next: cursor + 1} }

// cursor returns the ack floor.
func (w *window) cursor() uint64 {
	if w.start == len(w.entries) {
		return w.next - 1
	}
	return w.entries[w.start].offset - 1
}

// cursorAfterBurial returns what the cursor is once all interred entries are
// done.
func (w *window) cursorAfterBurial() uint64 {
	for i := w.start; i < len(w.entries); i++ {
		if e := &w.entries[i]; e.state != done && e.state != interred {
			return e.offset - 1
		}
	}
	return w.next - 1
}

// lag returns how many offsets up to head are not done.
func (w *window) lag(head uint64) uint64 {
	if cursor := w.cursor(); head > cursor+uint64(w.acked) {
		return head - cursor - uint64(w.acked)
	}
	return 0
}

// span returns how many offsets lie between the cursor and the read position.
func (w *window) span() uint64 { return w.next - 1 - w.cursor() }

// add appends an event that was read; its offset is at or above next.
func (w *window) add(offset uint64) *entry {
	if offset < w.next {
		panic("bus: an event was read twice")
	}
	if w.start > 0 && len(w.entries) == cap(w.entries) && w.start >= len(w.entries)/2 {
		w.entries = shift(w.entries, w.start)
		w.start = 0
	}
	w.entries = append(w.entries, entry{offset: offset})
	w.next = offset + 1
	return &w.entries[len(w.entries)-1]
}

// skipTo moves the read position over offsets where the log has nothing.
func (w *window) skipTo(next uint64) { w.next = max(w.next, next) }

// find returns the entry at offset, or nil. The pointer is valid until the
// next add, settle or reset.
func (w *window) find(offset uint64) *entry {
	i := w.index(offset)
	if i == len(w.entries) || w.entries[i].offset != offset {
		return nil
	}
	return &w.entries[i]
}

// index returns the place of the first entry at or above offset.
func (w *window) index(offset uint64) int {
	live := w.entries[w.start:]
	return w.start + sort.Search(len(live), func(i int) bool { return live[i].offset >= offset })
}

// settle marks an entry done and reports whether the cursor moved.
func (w *window) settle(e *entry) (moved bool) {
	*e = entry{offset: e.offset, state: done}
	w.acked++
	before := w.start
	for w.start < len(w.entries) && w.entries[w.start].state == done {
		w.start++
		w.acked--
	}
	if w.start == len(w.entries) {
		w.entries, w.start = w.entries[:0], 0
		return true
	}
	return w.start != before
}

// each calls f for every entry that is not done; f must not add or settle.
func (w *window) each(f func(*entry)) {
	for i := w.start; i < len(w.entries); i++ {
		if w.entries[i].state != done {
			f(&w.entries[i])
		}
	}
}

// timed is an appointment of one entry: the end of a lease or the time of a
// retry. It is void when the entry has moved on, which serial and at tell.
type timed struct {
	at     int64
	offset uint64
	serial uint64
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
