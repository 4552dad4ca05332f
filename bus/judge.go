package bus

import (
	"time"

	"eventhub/bus/internal/judge"
	"eventhub/internal/filter"
	"eventhub/store"
)

// Filters decide about events in the turns of groups and tails, and under no lock: the
// evaluation of an expression may take some 50 ms for one event, and the committer,
// publishers and members wait for the locks of groups and tails. What a filter says of an
// event never changes, so nothing that happens meanwhile makes it wrong.

// judge lets the group's filter decide about the fresh events that were read, until one
// more passes than there may be room for, and forgets those after it. It reports whether
// the turn has taken its time. g.mu is not held.
func (g *group) judge(f *fetcher) (spent bool) {
	f.passes = f.passes[:0]
	fresh := f.items[f.readLetters+f.readDue:]
	known := g.verdicts
	passed := 0
	for i, item := range fresh {
		for len(known) > 0 && known[0].offset < item.Offset {
			known = known[1:]
		}
		passes := false
		if len(known) > 0 && known[0].offset == item.Offset {
			passes = known[0].passes
		} else {
			v := g.bus.filters.Judge(g.filter, item.Record, item.Offset)
			passes = v == filter.Passes
			g.tell(v, item.Offset)
			spent = g.Evaluates && time.Since(f.began) >= judge.TurnTime
		}
		f.passes = append(f.passes, passes)
		if passes {
			passed++
		}
		if passed > f.want || spent {
			f.items = f.items[:f.readLetters+f.readDue+i+1]
			break
		}
	}
	return spent
}

// keepVerdicts keeps what was decided about fresh events that were not taken: they are
// read again when there is room for them.
func (g *group) keepVerdicts(fresh []store.Item, taken int) {
	g.verdicts = g.verdicts[:0]
	for i, passes := range g.fetch.passes[taken:] {
		g.verdicts = append(g.verdicts, verdict{fresh[taken+i].Offset, passes})
	}
}

// tell says once of a group in a topic that its filter costs too much on an event, and once of a group that it cannot be
// evaluated on one: it is so in all events where a member is written wrong, and in some where it is not.
func (g *group) tell(v filter.Verdict, offset uint64) {
	switch {
	case v == filter.CostsTooMuch && !g.told.costs:
		g.told.costs = true
		g.bus.log.Warn("a filter costs too much on an event, which counts as done; metrics count these",
			"topic", g.log.Topic(), "group", g.name, "offset", offset)
	case v == filter.Fails && !g.told.fails:
		g.told.fails = true
		if g.bus.filters.IsFirst(g.name) {
			g.bus.log.Info("a filter cannot be evaluated on an event, which counts as done; metrics count these",
				"topic", g.log.Topic(), "group", g.name, "offset", offset)
		}
	}
}
