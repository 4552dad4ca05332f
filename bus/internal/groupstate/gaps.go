package groupstate

import (
	"encoding/binary"
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
	carrier      uint64 // the offset of the event that it goes with; 0: none yet
	given        bool   // the carrier was delivered with it
	kept         bool   // it may have been said: by a carrier that was removed, or before the start
}

// isOpen reports whether nobody may know the gap, so that it may be joined to another.
func (g *gap) isOpen() bool { return g.carrier == 0 && !g.kept }

// gaps are the gaps of a group, rising.
type gaps struct {
	list    []gap
	changed bool // since the last write
	stored  bool // the store has a part
}

// add notes that the offsets above after and below first are gone, as far as they are not in a
// gap already, and returns how many these are. It leaves out stretches that isDone says the group
// has done.
func (x *gaps) add(after, first uint64, isDone func(from, to uint64) bool) (offsets uint64) {
	var list []gap
	piece := func(end uint64) {
		if after+1 < end && !isDone(after+1, end-1) {
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

// encode returns the part. isDone reports whether a carrier is done by the write.
func (x *gaps) encode(isDone func(carrier uint64) bool) (b []byte) {
	for _, g := range x.list {
		if !g.given {
			g.carrier = 0
		}
		if g.carrier != 0 && isDone(g.carrier) {
			continue
		}
		b = binary.AppendUvarint(b, g.after)
		b = binary.AppendUvarint(b, g.first-g.after)
		b = binary.AppendUvarint(b, g.carrier)
	}
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

// Begin returns the parts of a new group whose start asks for what was removed: the events above
// after and below first. There are none where nothing is between.
func Begin(after, first uint64) []store.GroupPart {
	var x gaps
	if x.add(after, first, nothingDone) == 0 {
		return nil
	}
	return []store.GroupPart{{Kind: PartGaps, Value: x.encode(func(uint64) bool { return false })}}
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
		if r.standing <= withAttempts || from >= first {
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

// loseUnread notes that the offsets from from on and below first, which were not read, are gone.
func (g *Group) loseUnread(from, first uint64) {
	for offset := range g.progress.history {
		if offset >= from && offset < first && !g.IsListed(offset) {
			g.progress.forget(offset)
		}
	}
	g.loseAll(from-1, first, g.progress.allAcked)
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

// lose notes a gap.
func (g *Group) lose(after, first uint64) { g.loseAll(after, first, nothingDone) }

func nothingDone(_, _ uint64) bool { return false }

func (g *Group) loseAll(after, first uint64, isDone func(from, to uint64) bool) {
	if n := g.progress.gaps.add(after, first, isDone); n > 0 {
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

// Gap returns the range of removed offsets that goes with the delivery of an event: those above
// after and below first; ok is false where none does.
func (g *Group) Gap(e *Entry) (after, first uint64, ok bool) {
	if len(g.progress.gaps.list) == 0 {
		return 0, 0, false
	}
	x := g.progress.gaps.of(e.offset)
	if x == nil {
		return 0, 0, false
	}
	return x.after, x.first, true
}

// carry has an event that is being delivered take the lowest gap that is free, where it has none
// and this is its first delivery.
func (g *Group) carry(e *Entry, first bool) {
	g.releaseGaps()
	x := &g.progress.gaps
	if !first || x.of(e.offset) != nil {
		return
	}
	var free *gap
	carried := 0
	for i := range x.list {
		if x.list[i].carrier != 0 {
			carried++
		} else if free == nil {
			free = &x.list[i]
		}
	}
	if free != nil && carried < maxGaps {
		free.carrier = e.offset
	}
}

// releaseGaps takes gaps from carriers that nobody will be given any more: they were removed.
func (g *Group) releaseGaps() {
	x := &g.progress.gaps
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
	x.join()
}

func (x *gaps) release(g *gap) {
	x.changed = x.changed || g.given
	g.carrier, g.given, g.kept = 0, false, g.kept || g.given
}

// gapGiven notes whether the delivery of an event was made.
func (g *Group) gapGiven(e *Entry, made bool) {
	switch x := g.progress.gaps.of(e.offset); {
	case x == nil || x.given:
	case made:
		x.given, g.progress.gaps.changed = true, true
		g.host.Changed()
	default:
		g.progress.gaps.release(x)
		g.progress.gaps.join()
	}
}

// endGap forgets the gap of an event that is done, or takes it back.
func (g *Group) endGap(offset uint64, how Ending) {
	x := &g.progress.gaps
	i := slices.IndexFunc(x.list, func(g gap) bool { return g.carrier == offset })
	switch {
	case i < 0:
	case how == Passed || how == Removed:
		x.release(&x.list[i])
		x.join()
	default:
		x.list, x.changed = slices.Delete(x.list, i, i+1), true
	}
}
