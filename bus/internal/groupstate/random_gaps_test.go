package groupstate

import (
	"cmp"
	"math"
	"slices"

	"eventhub/store"

	"pgregory.net/rapid"
)

// What the world removes. The model has one number for each offset: what the group owes to say
// of it.

const (
	notGone  = 0
	untold   = 1
	byRepeat = 2       // and the offset of the event that it goes with
	kept     = 1 << 32 // and a number: from before a start, when it may have been said
)

// gaps returns the runs of offsets with the same number, as gaps.
func (m *model) gaps() (list []gap) {
	for offset := uint64(1); offset < uint64(len(m.gone)); offset++ {
		v := m.gone[offset]
		if v == notGone {
			continue
		}
		if n := len(list); n > 0 && list[n-1].first == offset && m.gone[offset-1] == v {
			list[n-1].first++
			continue
		}
		list = append(list, gap{after: offset - 1, first: offset + 1})
		if v >= kept {
			list[len(list)-1].kept = true
		} else if v >= byRepeat {
			list[len(list)-1].carrier, list[len(list)-1].given = v-byRepeat, true
		}
	}
	return list
}

func sameGap(a, b gap) bool {
	return a.after == b.after && a.first == b.first && a.carrier == b.carrier && a.marks == b.marks
}

// lose notes the offsets from from to to as gone, which is to be said.
func (m *model) lose(from, to uint64) (n uint64) {
	for offset := from; offset <= to; offset++ {
		if m.mark(offset, notGone, untold) {
			n++
		}
	}
	return n
}

func (m *model) mark(offset, is, becomes uint64) bool {
	for uint64(len(m.gone)) <= offset {
		m.gone = append(m.gone, notGone)
	}
	if m.gone[offset] != is {
		return false
	}
	m.gone[offset] = becomes
	return true
}

// replace has all offsets with a number have another one.
func (m *model) replace(is, becomes uint64) {
	for offset := range m.gone {
		m.mark(uint64(offset), is, becomes)
	}
}

// releaseGap takes a gap back from an event.
func (m *model) releaseGap(carrier uint64) {
	m.released++
	m.replace(byRepeat+carrier, kept+m.released)
	for i := range m.notices {
		if n := &m.notices[i]; n.carrier == carrier && n.given {
			n.carrier, n.given, n.kept = 0, false, true
		}
	}
}

// releaseGaps takes gaps back from events that nobody will be given any more.
func (m *model) releaseGaps() {
	for _, g := range append(m.gaps(), m.notices...) {
		if g.given && g.carrier < m.next && m.find(g.carrier) == nil {
			m.releaseGap(g.carrier)
		}
	}
}

// gapOf returns the gap and the notice that a delivery goes with, which a first one takes; the
// zero gap is none.
func (m *model) gapOf(e *modelEvent, isFirst bool) (g, notice gap) {
	m.releaseGaps()
	for _, g := range append(m.gaps(), m.notices...) {
		isFirst = isFirst && !(g.given && g.carrier == e.offset)
	}
	of := func(all []gap, upTo uint64) gap {
		for _, g := range all {
			if g.given && g.carrier == e.offset {
				return g
			}
		}
		for _, g := range all {
			if isFirst && !g.given {
				if g.after <= upTo {
					return g
				}
				break
			}
		}
		return gap{}
	}
	upTo := uint64(math.MaxUint64)
	if notice = of(m.notices, upTo); notice.first != 0 {
		upTo = notice.after
	}
	return of(m.gaps(), upTo), notice
}

// saidWith returns what a delivery says of both.
func saidWith(g, notice gap) (after, first uint64, passed store.Marks) {
	if g.first == 0 {
		g = notice
	}
	if passed = notice.marks; passed.Compacted < g.first {
		passed.Compacted = 0
	}
	if passed.Tombstones < g.first {
		passed.Tombstones = 0
	}
	return g.after, g.first, passed
}

// endGaps forgets what went with an event that is done.
func (m *model) endGaps(carrier uint64) {
	m.replace(byRepeat+carrier, notGone)
	m.notices = slices.DeleteFunc(m.notices, func(n gap) bool { return n.given && n.carrier == carrier })
}

// owe notes a notice: what nobody may know is one.
func (m *model) owe(place uint64, marks store.Marks) {
	for i := range m.notices {
		if n := &m.notices[i]; !n.given && !n.kept {
			n.after, n.first = min(n.after, place), min(n.first, place+1)
			n.marks = store.Marks{Compacted: max(n.marks.Compacted, marks.Compacted), Tombstones: max(n.marks.Tombstones, marks.Tombstones)}
			return
		}
	}
	m.notices = append(m.notices, gap{after: place, first: place + 1, marks: marks})
	slices.SortStableFunc(m.notices, func(a, b gap) int { return cmp.Compare(a.after, b.after) })
}

// compact moves the marks up and removes some events below them.
func (w *world) compact() {
	if w.head == 0 || w.calm || rapid.IntRange(0, 2).Draw(w.t, "really") == 0 {
		return
	}
	near := w.next - 1 + uint64(rapid.IntRange(0, 3).Draw(w.t, "near"))
	w.marks.Compacted = max(w.marks.Compacted, min(near, w.head))
	if rapid.Bool().Draw(w.t, "ends") {
		w.marks.Tombstones = uint64(rapid.IntRange(int(w.marks.Tombstones), int(w.marks.Compacted)).Draw(w.t, "tombstones"))
	}
	for offset := range w.sortedLog() {
		if offset <= w.marks.Compacted && rapid.IntRange(0, 3).Draw(w.t, "keeps") == 0 {
			w.log[offset].erased = true
		}
	}
}

// mustPend says that a notice, which has just been noted, is to be written before a delivery.
func (w *world) mustPend() {
	if !w.g.GapsPending() {
		w.fail("a notice need not be written")
	}
}

// passedBy has the group find how far the log that it reads was compacted.
func (w *world) passedBy() {
	w.g.Passed(w.marks)
	place, said := w.next-1, w.marks
	if said.Tombstones <= place || said.Tombstones <= w.knows.Tombstones {
		said.Tombstones = 0
	}
	if said.Compacted <= place || said.Compacted <= w.knows.Compacted {
		said.Compacted = said.Tombstones
	}
	if said.Compacted == 0 {
		return
	}
	for offset := w.next; offset <= said.Compacted; offset++ {
		if !w.done[offset] {
			w.knows = store.Marks{Compacted: max(w.knows.Compacted, said.Compacted), Tombstones: max(w.knows.Tombstones, said.Tombstones)}
			w.owe(w.cursor(false), said)
			w.mustPend()
			return
		}
	}
}

// trim removes what is below an offset.
func (w *world) trim() {
	if rapid.IntRange(0, 2).Draw(w.t, "really") == 0 || w.calm {
		return
	}
	low := max(w.horizon, 1)
	if w.head+1 <= low {
		return
	}
	// Mostly near to what was read.
	to := low + uint64(rapid.IntRange(0, int(w.head+1-low)).Draw(w.t, "horizon"))
	if near := w.next + uint64(rapid.IntRange(0, 2).Draw(w.t, "near")); rapid.Bool().Draw(w.t, "nearly") {
		to = min(max(near, low), w.head+1)
	}
	w.horizon = to
}

// erase removes one event.
func (w *world) erase() {
	if len(w.log) == 0 {
		return
	}
	var offsets []uint64
	for offset := range w.sortedLog() {
		offsets = append(offsets, offset)
	}
	w.log[rapid.SampledFrom(offsets).Draw(w.t, "erase")].erased = true
}

// isGone reports whether an event was removed.
func (w *world) isGone(offset uint64) bool { return offset < w.horizon || w.log[offset].erased }

// overtaken has the group find that what it would read next is gone.
func (w *world) overtaken() {
	w.g.Overtaken(w.horizon)
	if w.horizon <= w.next {
		return
	}
	for offset := range w.history {
		if offset >= w.next && w.list[offset] == nil && offset < w.horizon {
			delete(w.history, offset)
		}
	}
	for offset := range w.unread {
		if offset < w.horizon {
			delete(w.unread, offset)
		}
	}
	for offset := w.next; offset < w.horizon; offset++ {
		if !w.done[offset] {
			w.lost += w.lose(offset, offset)
		}
	}
	w.passed(w.horizon)
	w.next = w.horizon
}

// passed notes that what was done before the start, and is gone, was not found up to below an offset.
func (w *world) passed(to uint64) {
	for offset := range w.done {
		if offset >= w.next && offset < to {
			delete(w.done, offset)
			w.holes[offset] = true
		}
	}
}

// misses notes that the log has nothing up to an offset, and so not what was delivered before the
// start.
func (w *world) misses(to uint64) {
	for offset := range w.log {
		if _, given := w.unread[offset]; offset >= w.next && offset < to && !w.done[offset] && (given || w.list[offset] == nil && w.history[offset] != nil) {
			delete(w.unread, offset)
			if w.list[offset] == nil {
				delete(w.history, offset)
			}
			w.lost += w.lose(offset, offset)
		}
	}
}

// settleGone says that an event is gone that is to be delivered, or dead-lettered.
func (w *world) settleGone(e *modelEvent, entry *Entry) {
	if !w.g.Gone(entry, w.now) {
		w.fail("%d cannot be gone", e.offset)
	}
	w.expect(settledEvent{offset: e.offset, how: Removed})
	w.finish(e)
	w.releaseGap(e.offset)
	w.lost += w.lose(e.offset, e.offset)
}

// mayDeliver makes the gaps durable, which deliveries wait for; false: a commit is in the way.
func (w *world) mayDeliver() bool {
	if !w.g.GapsPending() {
		return true
	}
	if w.commit != nil && !w.calm {
		return false
	}
	for w.commit != nil {
		w.endCommit()
	}
	added, _ := w.g.GapsAdded()
	w.dirty = false
	w.wrote = w.durable()
	w.flush()
	w.g.GapsDurable(added)
	if w.g.GapsPending() {
		w.fail("gaps are still to be written")
	}
	return true
}

func (w *world) checkGaps() {
	w.g.releaseGaps()
	w.releaseGaps()
	if got, want := w.g.progress.gaps.list, w.gaps(); !slices.EqualFunc(got, want, sameGap) {
		w.fail("the gaps are %+v; want %+v", got, want)
	}
	if got, want := w.g.progress.notices.list, w.notices; !slices.EqualFunc(got, want, sameGap) || w.g.progress.knows != w.knows {
		w.fail("the notices are %+v with %+v; want %+v with %+v", got, w.g.progress.knows, want, w.knows)
	}
	if _, lost := w.g.GapsAdded(); lost != w.lost {
		w.fail("%d offsets were lost; want %d", lost, w.lost)
	}
}
