package ops

import "eventhub/internal/measure"

// otherLabel stands for all topics, or groups, without a series of their own. A
// topic may have that name: it then counts among the others.
const otherLabel = "_other"

// capped bounds the series of things that are counted by name. The first limit
// names that it sees keep a row of their own for as long as the process lives,
// whether they are busy or gone; all others together are one row.
//
// A counter of that row must never go back, or a monitor would take it for a
// restart and count everything in it again. But its parts can: a group is
// deleted, or made again and counts from zero. So the rows of the others are kept
// as they were last seen, and what is missing next time, or has gone back, is
// added to gone:
//
//	row of the others = gone + the others as they are now
//
// It is not safe for concurrent use.
type capped[K comparable, R any] struct {
	limit int
	kind  rowKind[K, R]

	kept map[K]bool
	rest map[K]R // the others, as last seen
	gone *R      // what others counted that are no more; nil before there was any other
}

// rowKind says what capped has to know of a row.
type rowKind[K comparable, R any] struct {
	other K
	key   func(*R) K
	empty func() *R         // the row of the others, at zero
	count func(sum, row *R) // adds what only grows
	state func(sum, row *R) // adds what holds at the moment
	fell  func(row, before *R) bool
}

func newCapped[K comparable, R any](limit int, kind rowKind[K, R]) *capped[K, R] {
	return &capped[K, R]{limit: limit, kind: kind, kept: make(map[K]bool)}
}

// fold returns the rows to show for these; no two have the same name.
func (c *capped[K, R]) fold(rows []R) []R {
	shown := make([]R, 0, min(len(rows), c.limit)+1)
	others := make(map[K]R)
	for i := range rows {
		row := &rows[i]
		key := c.kind.key(row)
		if !c.kept[key] && len(c.kept) < c.limit && key != c.kind.other {
			c.kept[key] = true
		}
		if c.kept[key] {
			shown = append(shown, *row)
		} else {
			others[key] = *row
		}
	}
	if len(others) == 0 && c.gone == nil {
		return shown
	}
	return append(shown, *c.sum(others))
}

// sum is the row of the others.
func (c *capped[K, R]) sum(others map[K]R) *R {
	if c.gone == nil {
		c.gone = c.kind.empty()
	}
	for key, before := range c.rest {
		if row, ok := others[key]; !ok || c.kind.fell(&row, &before) {
			c.kind.count(c.gone, &before)
		}
	}
	c.rest = others
	sum := c.kind.empty()
	c.kind.count(sum, c.gone)
	for _, row := range others {
		c.kind.count(sum, &row)
		c.kind.state(sum, &row)
	}
	return sum
}

var topicKind = rowKind[string, measure.Topic]{
	other: otherLabel,
	key:   func(t *measure.Topic) string { return t.Topic },
	empty: func() *measure.Topic { return &measure.Topic{Topic: otherLabel} },
	count: func(sum, t *measure.Topic) {
		sum.Events += t.Events
		sum.Bytes += t.Bytes
		sum.Duplicates += t.Duplicates
		sum.Removed += t.Removed
		sum.RemovedBytes += t.RemovedBytes
		sum.Compacted += t.Compacted
		sum.CompactedBytes += t.CompactedBytes
		sum.GroupsEnded += t.GroupsEnded
	},
	state: func(_, _ *measure.Topic) {},
	fell: func(t, before *measure.Topic) bool {
		return t.Events < before.Events || t.Bytes < before.Bytes || t.Duplicates < before.Duplicates ||
			t.Removed < before.Removed || t.RemovedBytes < before.RemovedBytes ||
			t.Compacted < before.Compacted || t.CompactedBytes < before.CompactedBytes || t.GroupsEnded < before.GroupsEnded
	},
}

type groupName struct{ topic, group string }

// groupRow is one group, or all others together. What an alert asks of a group and not
// of the others has a sum of its own: of two groups one may be paused, and the other
// stand still.
type groupRow struct {
	measure.Group
	paused                  int    // groups
	deliverable, unattended uint64 // events
}

func rowOf(g *measure.Group) groupRow {
	row := groupRow{Group: *g}
	if g.Paused {
		row.paused = 1
	} else if g.Members > 0 {
		row.deliverable = g.Lag
	}
	if g.Members == 0 {
		row.unattended = g.Lag
	}
	return row
}

var groupKind = rowKind[groupName, groupRow]{
	other: groupName{otherLabel, otherLabel},
	key:   func(g *groupRow) groupName { return groupName{g.Topic, g.Group.Group} },
	empty: func() *groupRow { return &groupRow{Group: measure.NewGroup(otherLabel, otherLabel)} },
	count: func(sum, g *groupRow) { sum.Add(&g.Group) },
	state: func(sum, g *groupRow) {
		sum.Lag += g.Lag
		sum.Waiting += g.Waiting
		sum.Held += g.Held
		sum.paused += g.paused
		sum.deliverable += g.deliverable
		sum.unattended += g.unattended
		sum.Members += g.Members
		sum.OpenLetters += g.OpenLetters
		sum.Redriven += g.Redriven
		for transport, n := range g.InFlight {
			sum.InFlight[transport] += n
		}
	},
	// A group that was made again starts all of these at zero.
	fell: func(g, before *groupRow) bool {
		return g.Delivered < before.Delivered || g.Redelivered < before.Redelivered || g.Acked < before.Acked ||
			g.Nacked < before.Nacked || g.Expired < before.Expired || g.DeadLettered < before.DeadLettered ||
			g.Gaps < before.Gaps || g.GapOffsets < before.GapOffsets ||
			g.Poll.Count() < before.Poll.Count() || g.Handler.Count() < before.Handler.Count() ||
			g.Latency.Count() < before.Latency.Count()
	},
}
