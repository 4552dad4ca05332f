package bus

import (
	"encoding/binary"
	"iter"
	"maps"
	"math"
	"slices"
)

// Redriven events (redrive.go) wait in a list of their group, outside of its window:
// for the window they are done, and stay so, whatever becomes of them now. So they do
// not hold up the cursor and are no lag. In all else they are entries like others,
// found by their offset, which stands in one of the two places: a seek to before one
// takes it off the list, for the window will have it again.
//
// The list outlives the process in a part for each event (partRedriven). It is on
// disk before the event is delivered: an entry is listed while it is being written,
// and comes to life when its commit is done.

// redriven is an event that was given back to the group.
type redriven struct {
	entry
	// mark is the id of the mark in admin.RedriveTopic: it tells this redrive from
	// all others, and names the dead letter should it come to another one.
	mark string
	key  string
}

// mostRedriven bounds the list of a group.
const mostRedriven = 100_000

// maxRedrives bounds entry.redriven; more are not counted.
const maxRedrives = math.MaxUint8

// find returns the entry at offset that is not done, or one that is and is not yet
// forgotten, or nil.
func (g *group) find(offset uint64) *entry {
	if r := g.progress.redriven[offset]; r != nil {
		return &r.entry
	}
	return g.window.find(offset)
}

// open yields all entries that are not done: those of the window, then those that
// were redriven, both in order. None may be added or settled meanwhile.
func (g *group) open() iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		for e := range g.window.open() {
			if !yield(e) {
				return
			}
		}
		for _, r := range g.progress.again() {
			if !yield(&r.entry) {
				return
			}
		}
	}
}

// again returns the redriven events in the order of their offsets.
func (p *progress) again() []*redriven {
	if len(p.redriven) == 0 {
		return nil
	}
	list := slices.Collect(maps.Values(p.redriven))
	slices.SortFunc(list, func(a, b *redriven) int {
		if a.offset < b.offset {
			return -1
		}
		return 1
	})
	return list
}

// list puts an event on the list.
func (p *progress) list(r *redriven) {
	if p.redriven == nil {
		p.redriven = make(map[uint64]*redriven)
		p.moved, p.listed = make(map[uint64]bool), make(map[uint64]bool)
	}
	p.redriven[r.offset] = r
}

// revive has a listed entry delivered, when it may. g.mu is held.
func (g *group) revive(r *redriven) {
	r.state, r.at = waiting, 0
	if g.keyQueues.join([]byte(r.key), r.offset) {
		r.state = behind
		g.behind++
		return
	}
	g.waits++
	g.retries.push(timed{r.at, r.offset})
}

// reviveAll begins anew with the list, as restart does with the window.
func (g *group) reviveAll() {
	for _, r := range g.progress.again() {
		if r.state != redriveInCommit {
			g.revive(r)
		}
	}
}

// keepAgain makes the list what is left of it by a seek that puts the cursor at to:
// the events above come again by themselves, those below begin anew. before is what
// the group knew.
func (p *progress) keepAgain(before *progress, to uint64) {
	for offset, r := range before.redriven {
		if offset > to {
			continue
		}
		state := waiting
		if r.state == redriveInCommit || r.state.inCommit() {
			state = redriveInCommit // what the commit under way makes of it is not known
		}
		r.entry = entry{offset: offset, redriven: r.entry.redriven, state: state}
		p.list(r)
		p.moved[offset] = true
	}
}

// outcome ends what a commit has decided of redriven entries whose group was moved
// while it was under way. g.mu is held.
func (x *groupStep) outcome(done bool) {
	for _, offset := range x.offsets {
		r := x.group.progress.redriven[offset]
		switch {
		case r == nil || r.state != redriveInCommit:
		case done:
			if x.call == nil {
				x.group.tell(offset, gaveUpDead)
			}
			x.group.finish(&r.entry)
		default:
			x.group.progress.moved[offset] = true
			x.group.revive(r)
		}
	}
}

// encodeRedriven is the part of one redriven event: how often it was redriven and how
// many attempts it had, as varints, the mark behind its length, and the key.
func encodeRedriven(r *redriven) []byte {
	b := binary.AppendUvarint(nil, uint64(r.entry.redriven))
	b = binary.AppendUvarint(b, uint64(r.attempts))
	b = binary.AppendUvarint(b, uint64(len(r.mark)))
	return append(append(b, r.mark...), r.key...)
}

func decodeRedriven(offset uint64, b []byte) (*redriven, bool) {
	var numbers [3]uint64
	for i := range numbers {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			return nil, false
		}
		numbers[i], b = v, b[n:]
	}
	mark := numbers[2]
	if numbers[0] == 0 || numbers[0] > maxRedrives || numbers[1] > math.MaxUint16 || mark > uint64(len(b)) {
		return nil, false
	}
	return &redriven{
		entry: entry{offset: offset, redriven: uint8(numbers[0]), attempts: uint16(numbers[1])},
		mark:  string(b[:mark]), key: string(b[mark:]),
	}, true
}
