package groupstate

import (
	"slices"

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
	return a.after == b.after && a.first == b.first && a.carrier == b.carrier
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
}

// releaseGaps takes gaps back from events that nobody will be given any more.
func (m *model) releaseGaps() {
	for _, g := range m.gaps() {
		if g.given && g.carrier < m.next && m.find(g.carrier) == nil {
			m.releaseGap(g.carrier)
		}
	}
}

// gapOf returns the gap that a delivery goes with, which a first one takes.
func (m *model) gapOf(e *modelEvent, isFirst bool) (gap, bool) {
	m.releaseGaps()
	all := m.gaps()
	if i := slices.IndexFunc(all, func(g gap) bool { return g.given && g.carrier == e.offset }); i >= 0 {
		return all[i], true
	}
	i := slices.IndexFunc(all, func(g gap) bool { return !g.given })
	if i < 0 || !isFirst {
		return gap{}, false
	}
	return all[i], true
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
	for from := w.next; from < w.horizon; from++ { // stretches of which nothing is in a gap
		to, allDone := from, true
		for ; to < w.horizon && (uint64(len(w.gone)) <= to || w.gone[to] == notGone); to++ {
			allDone = allDone && w.done[to]
		}
		if !allDone {
			w.lost += w.lose(from, to-1)
		}
		from = to
	}
	w.passed(w.horizon)
	w.next = w.horizon
}

// passed forgets what was done before the start, and is gone, up to below an offset.
func (w *world) passed(to uint64) {
	for offset := range w.done {
		if offset >= w.next && offset < to {
			delete(w.done, offset)
		}
	}
}

// misses notes that the log has nothing up to an offset, and so not what was delivered before the
// start.
func (w *world) misses(to uint64) {
	for offset := range w.log {
		if offset >= w.next && offset < to && !w.done[offset] && (w.unread[offset] > 0 || w.list[offset] == nil && w.history[offset] != nil) {
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
	if _, lost := w.g.GapsAdded(); lost != w.lost {
		w.fail("%d offsets were lost; want %d", lost, w.lost)
	}
}
