package bus

import (
	"slices"
)

// idIndex finds, by id, the members M that have it: their group has an event of that id
// that is not done and was leased to the subscription last. An id is of one topic, so
// there may be several. It is empty where the subscription has one topic for ever.
type idIndex[M comparable] struct {
	one  map[string]M   // nil: nothing is noted
	more map[string][]M // the others, of the few ids that several have
}

func (x *idIndex[M]) len() int { return len(x.one) + len(x.more) }

func (x *idIndex[M]) add(id string, m M) {
	if x.one == nil {
		return
	}
	switch first, ok := x.one[id]; {
	case !ok:
		x.one[id] = m
	case first != m && !slices.Contains(x.more[id], m):
		if x.more == nil {
			x.more = make(map[string][]M)
		}
		x.more[id] = append(x.more[id], m)
	}
}

func (x *idIndex[M]) remove(id string, m M) {
	rest := x.more[id]
	switch i := slices.Index(rest, m); {
	case i >= 0:
		rest = slices.Delete(rest, i, i+1)
	case x.one[id] != m:
		return
	case len(rest) == 0:
		delete(x.one, id)
		return
	default:
		x.one[id], rest = rest[0], rest[1:]
	}
	if x.more[id] = rest; len(rest) == 0 {
		delete(x.more, id)
	}
}

// removeAll takes a member out.
func (x *idIndex[M]) removeAll(m M) {
	for id, first := range x.one {
		if first == m || len(x.more) > 0 {
			x.remove(id, m)
		}
	}
}
