package groupstate

import (
	"encoding/binary"
	"slices"

	"eventhub/store"
)

// Compaction that has gone past a group removes events which it has not read, and nobody can say
// which these were. The group notes how far that goes as a notice: a gap without offsets, at
// its cursor, and the marks. It has a carrier like a gap, and what is
// said of these holds for it. An event may carry both a gap and a notice.
//
// The marks that a group knows are those of its start and of its notices: each higher one
// makes another notice where it is above what the group has read. They are in a part of
// their own (PartMarks), which an earlier version of the hub does not look at. It is
// written at the start of a group, a seek, and with each notice.

// Passed says that the log, of which what comes next was read, was compacted up to marks.
func (g *Group) Passed(m store.Marks) {
	p, place := &g.progress, g.window.next-1
	said := m.Above(place, p.knows)
	if said == (store.Marks{}) || p.allAcked(place+1, said.Compacted) {
		return
	}
	// From the cursor on, where the group reads again after a restart: what it has read up to
	// now may be gone then.
	p.knows = p.knows.Max(said)
	p.notice(gapAt(g.window.cursor(), said))
	g.gapsAdded++
	g.host.Changed()
}

// begin notes what a start says.
func (p *Progress) begin(m Missing) {
	p.knows = m.Knows.Max(m.Marks)
	p.notices.changed = p.knows != (store.Marks{})
	if m.Marks != (store.Marks{}) {
		p.notice(gapAt(max(m.First, 1)-1, m.Marks))
	}
}

func gapAt(place uint64, m store.Marks) gap { return gap{after: place, first: place + 1, marks: m} }

// notice adds a notice. Those that nobody may know are one.
func (p *Progress) notice(n gap) {
	x := &p.notices
	at, _ := slices.BinarySearchFunc(x.list, n, func(a, b gap) int {
		if a.after <= b.after {
			return -1
		}
		return 1
	})
	x.list, x.changed = slices.Insert(x.list, at, n), true
	p.joinGaps()
}

// joinGaps joins what nobody may know.
func (p *Progress) joinGaps() {
	p.gaps.join()
	first := -1
	for i := 0; i < len(p.notices.list); i++ {
		switch g := &p.notices.list[i]; {
		case !g.isOpen():
		case first < 0:
			first = i
		default:
			p.notices.list[first].marks = p.notices.list[first].marks.Max(g.marks)
			p.notices.list = slices.Delete(p.notices.list, i, i+1)
			i--
		}
	}
}

// bothGaps returns the gaps and the notices.
func (p *Progress) bothGaps() [2]*gaps { return [2]*gaps{&p.gaps, &p.notices} }

func (p *Progress) hasGaps() bool { return len(p.gaps.list)+len(p.notices.list) > 0 }

// encodeMarks returns the part of the notices, empty where there is nothing to say.
func (p *Progress) encodeMarks(isDone func(carrier uint64) bool) (b []byte) {
	if p.knows == (store.Marks{}) {
		return nil
	}
	b = binary.AppendUvarint(b, p.knows.Compacted)
	b = binary.AppendUvarint(b, p.knows.Tombstones)
	p.notices.each(isDone, func(g gap) {
		for _, n := range [...]uint64{g.after, g.marks.Compacted, g.marks.Tombstones, g.carrier} {
			b = binary.AppendUvarint(b, n)
		}
	})
	return b
}

// decodeMarks is the other way. It reports whether the bytes are what encodeMarks makes.
func (p *Progress) decodeMarks(b []byte) bool {
	p.notices.stored = len(b) > 0
	read := func(into ...*uint64) bool {
		for _, n := range into {
			size := 0
			if *n, size = binary.Uvarint(b); size <= 0 {
				return false
			}
			b = b[size:]
		}
		return true
	}
	if !read(&p.knows.Compacted, &p.knows.Tombstones) {
		return false
	}
	for len(b) > 0 {
		var g gap
		if !read(&g.after, &g.marks.Compacted, &g.marks.Tombstones, &g.carrier) {
			return false
		}
		g.first, g.given, g.kept = g.after+1, g.carrier != 0, true
		p.notices.list = append(p.notices.list, g)
	}
	return true
}
