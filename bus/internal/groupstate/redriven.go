package groupstate

import (
	"encoding/binary"
	"maps"
	"math"
	"slices"
)

// Redriven events (redrive.go) wait in a list of their group, outside of its window:
// for the window they are done, and stay so, whatever becomes of them now. So they do
// not hold up the cursor and are no lag. In all else they are entries like others,
// found by their offset, which is in one of the two places: a seek to before one
// removes it from the list, because the window will have it again.
//
// The list outlives the process in a part for each event (PartRedriven). It is on
// disk before the event is delivered: an entry is listed while it is being written,
// and comes to life when its commit is done.

// Redriven is an event that was given back to the group.
type Redriven struct {
	Entry
	// mark is the id of the mark in admin.RedriveTopic: it distinguishes this redrive from
	// all others, and names the dead letter should it come to another one.
	mark string
	key  string
}

// Mark returns the id of the event that says who redrove it.
func (r *Redriven) Mark() string { return r.mark }

// MostRedriven bounds the list of a group.
const MostRedriven = 100_000

// MaxRedrives bounds entry.redriven; more are not counted.
const MaxRedrives = math.MaxUint8

// Redriven returns the redriven events in the order of their offsets.
func (p *Progress) Redriven() []*Redriven {
	if len(p.redriven) == 0 {
		return nil
	}
	list := slices.Collect(maps.Values(p.redriven))
	slices.SortFunc(list, func(a, b *Redriven) int {
		if a.offset < b.offset {
			return -1
		}
		return 1
	})
	return list
}

// Mark returns the id of the mark of an event on the list, "" where it is not there.
func (p *Progress) Mark(offset uint64) string {
	if r := p.redriven[offset]; r != nil {
		return r.mark
	}
	return ""
}

// Marks returns the marks of all events on the list, by offset; nil where there are none.
func (p *Progress) Marks() map[uint64]string {
	if len(p.redriven) == 0 {
		return nil
	}
	marks := make(map[uint64]string, len(p.redriven))
	for offset, r := range p.redriven {
		marks[offset] = r.mark
	}
	return marks
}

// list puts an event on the list.
func (p *Progress) list(r *Redriven) {
	if p.redriven == nil {
		p.redriven = make(map[uint64]*Redriven)
		p.moved, p.listed = make(map[uint64]bool), make(map[uint64]bool)
	}
	p.redriven[r.offset] = r
}

// List puts an event that is done on the list of redriven events, for the commit that is being
// built: it is delivered after ListCommitted. times is how often it was redriven, this time included,
// mark the id of the mark that says so.
func (g *Group) List(offset uint64, times int, mark, key string) *Redriven {
	r := &Redriven{Entry: Entry{offset: offset, redriven: uint8(min(times, MaxRedrives))}, mark: mark, key: key}
	g.progress.list(r)
	g.move(&r.Entry, wasListed)
	g.progress.moved[offset] = true
	return r
}

// ListCommitted says what became of the commit that has the events which were listed. Those that
// a seek took off the list come again by themselves.
func (g *Group) ListCommitted(list []*Redriven, done bool) {
	for _, r := range list {
		switch {
		case g.progress.redriven[r.offset] != r || r.state != RedriveInCommit:
		case done:
			g.revive(r)
		default:
			delete(g.progress.redriven, r.offset)
			g.counts[r.state]--
		}
	}
}

// Rewrite has all that the group knows written again, after a commit that was refused.
func (g *Group) Rewrite() {
	g.progress.rewrite(&g.window)
	g.host.Changed()
}

// revive has a listed entry delivered, when it may.
func (g *Group) revive(r *Redriven) {
	g.move(&r.Entry, wasRedriven)
	r.at = 0
	if g.keys.join([]byte(r.key), r.offset) {
		g.move(&r.Entry, hasToQueue)
		return
	}
	g.retries.push(timed{r.at, r.offset})
}

// reviveAll begins again with the list, as reset does with the window.
func (g *Group) reviveAll() {
	for _, r := range g.progress.Redriven() {
		if r.state == RedriveInCommit {
			g.counts[RedriveInCommit]++
			continue
		}
		g.revive(r)
	}
}

// keepAgain makes the list what is left of it by a seek that puts the cursor at to:
// the events above come again by themselves, those below begin again. before is what
// the group knew.
func (p *Progress) keepAgain(before *Progress, to uint64) {
	for offset, r := range before.redriven {
		if offset > to {
			continue
		}
		state := none
		if r.state == RedriveInCommit || r.state.InCommit() {
			state = RedriveInCommit // what the commit under way makes of it is not known
		}
		r.Entry = Entry{offset: offset, redriven: r.Entry.redriven, state: state}
		p.list(r)
		p.moved[offset] = true
	}
}

// encodeRedriven is the part of one redriven event: how often it was redriven and how
// many attempts it had, as varints, the mark after its length, and the key.
func encodeRedriven(r *Redriven) []byte {
	b := binary.AppendUvarint(nil, uint64(r.Entry.redriven))
	b = binary.AppendUvarint(b, uint64(r.attempts))
	b = binary.AppendUvarint(b, uint64(len(r.mark)))
	return append(append(b, r.mark...), r.key...)
}

func decodeRedriven(offset uint64, b []byte) (*Redriven, bool) {
	var numbers [3]uint64
	for i := range numbers {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			return nil, false
		}
		numbers[i], b = v, b[n:]
	}
	mark := numbers[2]
	if numbers[0] == 0 || numbers[0] > MaxRedrives || numbers[1] > math.MaxUint16 || mark > uint64(len(b)) {
		return nil, false
	}
	return &Redriven{
		Entry: Entry{offset: offset, redriven: uint8(numbers[0]), attempts: uint16(numbers[1])},
		mark:  string(b[:mark]), key: string(b[mark:]),
	}, true
}
