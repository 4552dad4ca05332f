package idle

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"eventhub/store"
)

// Ended says of a group that was ended when that was, and where the group was.
type Ended struct {
	TS     int64  `json:"ts"` // epoch milliseconds
	Cursor uint64 `json:"cursor"`
	Epoch  uint64 `json:"epoch"`
	Life   uint64 `json:"life"` // of its topic
	IdleMS int64  `json:"idle_ms"`
}

// endings are the groups that were ended and not made again.
type endings struct {
	groups map[Group]Ended
	order  []Group // by TS
}

func (s *endings) init(groups map[Group]Ended) {
	s.groups, s.order = groups, slices.Collect(maps.Keys(groups))
	slices.SortFunc(s.order, func(a, b Group) int { return s.compare(a, b, groups[b]) })
}

// compare says whether a group comes before g, of which e is kept.
func (s *endings) compare(other, g Group, e Ended) int {
	return cmp.Or(cmp.Compare(s.groups[other].TS, e.TS), cmp.Compare(other.Topic, g.Topic), cmp.Compare(other.Name, g.Name))
}

func (s *endings) at(g Group, e Ended) int {
	at, _ := slices.BinarySearchFunc(s.order, g, func(other, g Group) int { return s.compare(other, g, e) })
	return at
}

// add adds a group that is not there.
func (s *endings) add(g Group, e Ended) {
	s.remove(g)
	g = Group{strings.Clone(g.Topic), strings.Clone(g.Name)}
	s.order = slices.Insert(s.order, s.at(g, e), g)
	s.groups[g] = e
}

// remove removes a group, and returns the name of its note.
func (s *endings) remove(g Group) string {
	if e, ok := s.groups[g]; ok {
		at := s.at(g, e)
		s.order = slices.Delete(s.order, at, at+1)
		delete(s.groups, g)
	}
	return g.row(endedPrefix)
}

// of returns the groups of a topic.
func (s *endings) of(topic string) (list []Group) {
	for g := range s.groups {
		if g.Topic == topic {
			list = append(list, g)
		}
	}
	return list
}

// stale removes the groups that are kept no longer, and returns the names of their notes.
func (s *endings) stale(now time.Time) (names []string) {
	n := max(len(s.order)-MaxEnded, 0)
	for n < len(s.order) && s.groups[s.order[n]].TS < now.Add(-EndedKept).UnixMilli() {
		n++
	}
	for _, g := range s.order[:n] {
		delete(s.groups, g)
		names = append(names, g.row(endedPrefix))
	}
	s.order = slices.Delete(s.order, 0, n)
	return names
}

// isKept reports whether it is still said that a group was ended, in that life of its topic.
func (e *Ended) isKept(life uint64, now time.Time) bool {
	return e.Life == life && e.TS >= now.Add(-EndedKept).UnixMilli()
}

// Ended returns the groups of a topic, in that life of it, that were ended and are not there again.
func (r *Runtime) Ended(topic string, life uint64) map[string]Ended {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make(map[string]Ended)
	for _, g := range r.ended.of(topic) {
		if e := r.ended.groups[g]; e.isKept(life, r.opts.Wall()) {
			list[g.Name] = e
		}
	}
	return list
}

// Return is what the unit that makes a group again has to do and to say.
type Return struct {
	Ended
	// Told: its caller is to be told. It is not where the topic is another one by now.
	Told  bool
	Group Group
}

// Returning returns what is kept of a group that was ended and is to be made in that life of its
// topic; ok is false where there is nothing.
func (r *Runtime) Returning(g Group, life uint64) (back Return, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e, ok := r.ended.groups[g]
	return Return{e, ok && e.isKept(life, r.opts.Wall()), g}, ok
}

// Change is what the unit has.
func (b *Return) Change() store.NoteChange {
	return store.NoteChange{Name: b.Group.row(endedPrefix), Delete: true}
}

// Returned says that the unit is durable. The group may have been ended once more since.
func (r *Runtime) Returned(b Return) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended.groups[b.Group] == b.Ended {
		name := r.ended.remove(b.Group)
		delete(r.rows.values, name)
		delete(r.rows.unwritten, name)
	}
}
