package groupstate

import (
	"encoding/binary"
	"math"
	"slices"

	"eventhub/store"
)

// Events of a topic can be removed before a group is done with them: those below the horizon
// that it had not read, and single ones that were delivered, or are about to be. The
// group notes such ranges of offsets as gaps, which whoever reads is notified of.
//
//   - The lowest gap that nobody was notified of goes with the next first delivery of an event,
//     its carrier, and with the later ones of that until it is acked or given up. Then the gap
//     is forgotten, with the write that makes its carrier done.
//   - A carrier that is removed itself leaves its gap to another.
//   - Gaps do not overlap. Those that touch are one, as long as nobody may know them: what a
//     carrier was delivered with does not change, and nor does what was read from the store, since
//     the process may have ended before it had written who the carrier is.
//   - Gaps are on disk before the next delivery (GapsPending), and the carrier soon after it:
//     a repeat after the end of the process has the same range.
//   - A seek forgets all gaps.
//
// All are in one part of the group's state (PartGaps).

const (
	// maxGaps bounds the gaps without a carrier, and those that have one: of more, the nearest
	// of the former become one, and the latter wait until a carrier is done.
	maxGaps = 64
)

// gap is a range of removed offsets: those above after and below first.
type gap struct {
	after, first uint64
	marks        store.Marks // of a notice
	carrier      uint64      // the offset of the event that it goes with; 0: none yet
	given        bool        // the carrier was delivered with it
	kept         bool        // it may have been said: by a carrier that was removed, or before the start
}

// isOpen reports whether nobody may know the gap, so that it may be joined to another.
func (g *gap) isOpen() bool { return g.carrier == 0 && !g.kept }

// gaps are the gaps of a group, rising, or its notices (passed.go).
type gaps struct {
	list    []gap
	changed bool // since the last write
	stored  bool // the store has a part
}

// add notes that the offsets above after and below first are gone, as far as they are not in a
// gap already, and returns how many these are.
func (x *gaps) add(after, first uint64) (offsets uint64) {
	var list []gap
	piece := func(end uint64) {
		if after+1 < end {
			list = append(list, gap{after: after, first: end})
			offsets += end - after - 1
		}
	}
	for _, known := range x.list {
		if after+1 < first && known.first > after+1 {
			piece(min(known.after+1, first))
			after = max(after, known.first-1)
		}
		list = append(list, known)
	}
	piece(first)
	if offsets > 0 {
		x.list, x.changed = list, true
		x.join()
	}
	return offsets
}

// join makes one of gaps without a carrier that touch, and of the nearest of too many.
func (x *gaps) join() {
	joined, free := x.list[:0], 0
	for _, g := range x.list {
		if n := len(joined); n > 0 && joined[n-1].isOpen() && g.isOpen() && g.after < joined[n-1].first {
			joined[n-1].first = g.first
			continue
		}
		if joined = append(joined, g); g.isOpen() {
			free++
		}
	}
	x.list = joined
	for ; free > maxGaps; free-- {
		nearest := -1
		for i := range x.list[1:] {
			a, b := &x.list[i], &x.list[i+1]
			if a.isOpen() && b.isOpen() && (nearest < 0 || b.after-a.first < x.list[nearest+1].after-x.list[nearest].first) {
				nearest = i
			}
		}
		if nearest < 0 {
			return
		}
		x.list[nearest].first = x.list[nearest+1].first
		x.list = slices.Delete(x.list, nearest+1, nearest+2)
	}
}

// of returns the gap that goes with an event, or nil.
func (x *gaps) of(carrier uint64) *gap {
	for i := range x.list {
		if x.list[i].carrier == carrier {
			return &x.list[i]
		}
	}
	return nil
}

// each calls add for each that a write has. isDone reports whether a carrier is done by the write.
func (x *gaps) each(isDone func(carrier uint64) bool, add func(g gap)) {
	for _, g := range x.list {
		if !g.given {
			g.carrier = 0
		}
		if g.carrier == 0 || !isDone(g.carrier) {
			add(g)
		}
	}
}

// encode returns the part of the gaps.
func (x *gaps) encode(isDone func(carrier uint64) bool) (b []byte) {
	x.each(isDone, func(g gap) {
		b = binary.AppendUvarint(b, g.after)
		b = binary.AppendUvarint(b, g.first-g.after)
		b = binary.AppendUvarint(b, g.carrier)
	})
	return b
}

// decodeGaps is the other way. It reports whether the bytes are what encode makes.
func decodeGaps(b []byte) (x gaps, ok bool) {
	x.stored = len(b) > 0
	for at := uint64(0); len(b) > 0; {
		var numbers [3]uint64
		for i := range numbers {
			v, n := binary.Uvarint(b)
			if n <= 0 {
				return x, false
			}
			numbers[i], b = v, b[n:]
		}
		g := gap{after: numbers[0], first: numbers[0] + numbers[1], carrier: numbers[2], given: numbers[2] != 0, kept: true}
		if g.first <= g.after+1 || g.after+1 < at {
			return x, false
		}
		at = g.first
		x.list = append(x.list, g)
	}
	return x, true
}

// Missing is what a start asks for and was removed: the events above After and below First, and
// of those from First on what the compaction up to Marks did not leave, where these are not 0.
// Knows are the marks of the topic at the start.
type Missing struct {
	After, First uint64
	Marks, Knows store.Marks
}

// Begin returns the parts of a new group: none where it misses nothing and the topic has no marks.
func Begin(m Missing) (parts []store.GroupPart) {
	x := newProgress()
	undone := func(uint64) bool { return false }
	if x.gaps.add(m.After, m.First) > 0 {
		parts = append(parts, store.GroupPart{Kind: PartGaps, Value: x.gaps.encode(undone)})
	}
	if x.begin(m); x.knows != (store.Marks{}) {
		parts = append(parts, store.GroupPart{Kind: PartMarks, Value: x.encodeMarks(undone)})
	}
	return parts
}

// Overtaken says that what is to be read next, up to below a horizon, was removed.
func (g *Group) Overtaken(horizon uint64) {
	next := g.window.next
	if horizon <= next {
		return
	}
	g.window.skipTo(horizon)
	for _, r := range g.progress.restored {
		if r.from < horizon {
			g.progress.markRange(r.from, min(r.to, horizon-1))
		}
	}
	g.loseUnread(next, horizon)
	g.progress.pass(next, horizon)
}

// Missed says that the log has nothing between the read position and an offset. Of what was
// delivered before the process was started, and was not done, it had something.
func (g *Group) Missed(offset uint64) {
	p := &g.progress
	if len(p.restored)+len(p.early) == 0 {
		return
	}
	for i := 0; i < len(p.restored) && p.restored[i].from < offset; {
		r := &p.restored[i]
		from, first := max(r.from, g.window.next), min(r.to+1, offset)
		if r.standing < withAttempts || from >= first {
			i++
			continue
		}
		if r.from = first; r.from > r.to {
			p.restored = slices.Delete(p.restored, i, i+1)
		}
		p.markRange(from, first-1)
		g.loseUnread(from, first)
	}
	for ; len(p.early) > 0 && p.early[0] < offset; p.early = p.early[1:] {
		if from := p.early[0]; from >= g.window.next && p.history[from] != nil && !g.IsListed(from) {
			g.loseUnread(from, from+1)
		}
	}
}

// loseUnread notes that the offsets from from on and below first, which were not read, are gone,
// except for those that were acked before the start: nobody misses these.
func (g *Group) loseUnread(from, first uint64) {
	for offset := range g.progress.history {
		if offset >= from && offset < first && !g.IsListed(offset) {
			g.progress.forget(offset)
		}
	}
	after := from - 1
	for _, r := range g.progress.restored[g.progress.ahead(from):] {
		if r.from >= first {
			break
		}
		if r.standing == acked {
			g.lose(after, r.from)
			after = r.to
		}
	}
	g.lose(after, first)
}

// Gone settles an event that the log has no longer.
func (g *Group) Gone(e *Entry, now int64) bool {
	offset := e.offset
	if !g.settle(e, wasRemoved, Removed, now) {
		return false
	}
	g.lose(offset-1, offset+1)
	return true
}

// lose notes a gap, which may be empty.
func (g *Group) lose(after, first uint64) {
	if n := g.progress.gaps.add(after, first); n > 0 {
		g.gapsAdded++
		g.lost += n
		g.host.Changed()
	}
}

// GapsPending reports whether there is a gap that is to be written before the next delivery.
func (g *Group) GapsPending() bool { return g.gapsAdded > g.gapsDurable }

// GapsAdded returns how many gaps were noted so far, and how many offsets they have.
func (g *Group) GapsAdded() (gaps, offsets uint64) { return g.gapsAdded, g.lost }

// GapsDurable says that a write has succeeded that was built when so many gaps were noted.
func (g *Group) GapsDurable(added uint64) { g.gapsDurable = max(g.gapsDurable, added) }

// Gap returns what goes with the delivery of an event: the removed offsets above after and below
// first, and the marks of a compaction that was there before the group, 0 for none. ok is false
// where nothing does.
func (g *Group) Gap(e *Entry) (after, first uint64, passed store.Marks, ok bool) {
	if !g.progress.hasGaps() {
		return 0, 0, store.Marks{}, false
	}
	x, n := g.progress.gaps.of(e.offset), g.progress.notices.of(e.offset)
	switch {
	case x == nil && n == nil:
		return 0, 0, store.Marks{}, false
	case n == nil:
		return x.after, x.first, store.Marks{}, true
	case x == nil:
		x = n
	}
	return x.after, x.first, n.marks.From(x.first), true
}

// carry has an event that is being delivered for the first time take the lowest notice and the
// lowest gap that are free, where it has none. What comes with a notice begins below it: the
// notice is of all that is after the gap.
func (g *Group) carry(e *Entry, first bool) {
	g.releaseGaps()
	p := &g.progress
	if !first || p.gaps.of(e.offset) != nil || p.notices.of(e.offset) != nil {
		return
	}
	p.notices.take(e.offset, math.MaxUint64)
	upTo := uint64(math.MaxUint64)
	if n := p.notices.of(e.offset); n != nil {
		upTo = n.after
	}
	p.gaps.take(e.offset, upTo)
}

// take gives an event the lowest one that is free, where that begins at most at upTo.
func (x *gaps) take(carrier, upTo uint64) {
	var free *gap
	carried := 0
	for i := range x.list {
		if x.list[i].carrier != 0 {
			carried++
		} else if free == nil {
			free = &x.list[i]
		}
	}
	if free != nil && carried < maxGaps && free.after <= upTo {
		free.carrier = carrier
	}
}

// releaseGaps takes gaps from carriers that nobody will be given any more: they were removed.
func (g *Group) releaseGaps() {
	for _, x := range g.progress.bothGaps() {
		for i := range x.list {
			c := x.list[i].carrier
			if c == 0 || c >= g.window.next {
				continue
			}
			if e := g.Find(c); e == nil || e.state == Done {
				x.release(&x.list[i])
				g.host.Changed()
			}
		}
	}
	g.progress.joinGaps()
}

func (x *gaps) release(g *gap) {
	x.changed = x.changed || g.given
	g.carrier, g.given, g.kept = 0, false, g.kept || g.given
}

// gapGiven notes whether the delivery of an event was made.
func (g *Group) gapGiven(e *Entry, made bool) {
	for _, list := range g.progress.bothGaps() {
		switch x := list.of(e.offset); {
		case x == nil || x.given:
		case made:
			x.given, list.changed = true, true
			g.host.Changed()
		default:
			list.release(x)
			g.progress.joinGaps()
		}
	}
}

// endGap forgets the gap of an event that is done, or takes it back.
func (g *Group) endGap(offset uint64, how Ending) {
	for _, x := range g.progress.bothGaps() {
		i := slices.IndexFunc(x.list, func(g gap) bool { return g.carrier == offset })
		switch {
		case i < 0:
		case how == Passed || how == Removed:
			x.release(&x.list[i])
			g.progress.joinGaps()
		default:
			x.list, x.changed = slices.Delete(x.list, i, i+1), true
		}
	}
}
