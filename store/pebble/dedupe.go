package pebble

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"eventhub"
	"eventhub/store"

	pdb "github.com/cockroachdb/pebble/v2"
)

// givenIDs are the ids of one commit that may be in the store already: those
// that callers gave. All that recentIDs does not know to be new are looked up before the first unit is staged, in key
// order, with one iterator whose bloom filters answer for an id that is new.
// Pebble's plain Get would not do: it leaves out the filters of the lowest level,
// where nearly all of the index is.
type givenIDs struct {
	index   map[givenID]int // into first
	first   []firstEvent
	pending []idLookup
	key     []byte
	recent  recentIDs
	noting  bool // an id of this commit was noted: no other window may be begun
}

type givenID struct{ topic, id string }

// firstEvent is where the first event with an id is; offset 0 for nowhere yet.
type firstEvent struct {
	offset uint64
	time   int64
	named  place // where the id says that it is
	form   idForm
	unit   int // the last unit whose expectations were checked that has the id
}

type idLookup struct {
	topic *topic
	form  idForm
	first int
}

func (g *givenIDs) reset() {
	clear(g.index)
	clear(g.pending)
	g.first, g.pending, g.noting = g.first[:0], g.pending[:0], false
}

// find returns the entry of an id that was given, or nil.
func (g *givenIDs) find(topic, id string) *firstEvent {
	if len(g.index) == 0 {
		return nil
	}
	at, ok := g.index[givenID{topic, id}]
	if !ok {
		return nil
	}
	return &g.first[at]
}

// lookUp collects the given ids of units and finds those that are in the store.
func (g *givenIDs) lookUp(c *commit, units []*store.Unit) error {
	for _, u := range units {
		for i := range u.Appends {
			if a := &u.Appends[i]; !a.NewID {
				if err := g.add(c, a.Topic, a.ID); err != nil {
					return err
				}
			}
		}
		for i := range u.Delays {
			if p := &u.Delays[i]; !p.FreshID {
				if err := g.add(c, p.Topic, p.ID); err != nil {
					return err
				}
			}
		}
	}
	if len(g.pending) == 0 {
		return nil
	}
	slices.SortFunc(g.pending, func(a, b idLookup) int {
		return cmp.Or(compareForms(&a.form, &b.form), cmp.Compare(a.topic.id, b.topic.id))
	})
	return g.seek(c.s)
}

func (g *givenIDs) add(c *commit, topic, id string) error {
	key := givenID{topic, id}
	if _, ok := g.index[key]; ok {
		return nil
	}
	t, err := c.topic(topic)
	if err != nil {
		return err
	}
	first := firstEvent{form: formOf(id)}
	first.named, _ = c.s.ids.placeOf(&first.form)
	if c.s.shared != nil {
		if e := c.s.shared.find(key); e != nil {
			first.offset, first.time = e.offset, e.time
			g.index[key] = len(g.first)
			g.first = append(g.first, first)
			return nil
		}
	}
	isNew, err := g.note(c, &first.form)
	if err != nil {
		return err
	}
	if t != nil && (!isNew || first.named.topic == t.id) { // an id of the store's own has no entry
		g.pending = append(g.pending, idLookup{topic: t, form: first.form, first: len(g.first)})
	}
	g.index[key] = len(g.first)
	g.first = append(g.first, first)
	return nil
}

// note notes an id that this commit may write, and reports whether the index is known not to have it.
func (g *givenIDs) note(c *commit, f *idForm) (isNew bool, err error) {
	if f.version != uuidVersion {
		return false, nil
	}
	if !g.noting && g.recent.isOver(c.now) {
		if err := c.s.settle(); err != nil {
			return false, err
		}
		if err := g.recent.begin(c.s, c.now); err != nil {
			return false, fmt.Errorf("find the newest ids: %w", err)
		}
	}
	g.noting = true
	return g.recent.note(f), nil
}

func (g *givenIDs) seek(s *Store) (err error) {
	iter, err := s.db.NewIter(&pdb.IterOptions{
		LowerBound:   []byte{tagID},
		UpperBound:   []byte{tagID + 1},
		UseL6Filters: true,
	})
	if err != nil {
		return fmt.Errorf("look up ids: %w", err)
	}
	defer closeInto(iter, &err)
	for _, l := range g.pending {
		if err := g.seekOne(s, iter, &l); err != nil {
			return fmt.Errorf("look up id %q in topic %q: %w", l.form.text, l.topic.name, err)
		}
	}
	return nil
}

func (g *givenIDs) seekOne(s *Store, iter *pdb.Iterator, l *idLookup) error {
	first := &g.first[l.first]
	if first.named.topic == l.topic.id && first.named.offset != 0 && !l.topic.removed.Load().hides(first.named.offset) {
		time, ok, err := s.holds(first.named, l.form.text)
		if ok {
			first.offset, first.time = first.named.offset, time
		}
		if ok || err != nil {
			return err
		}
	}
	offset, err := s.seekID(iter, &l.form, l.topic.id, &g.key)
	if offset == 0 || err != nil {
		return err
	}
	if first.time, err = s.commitTime(l.topic, offset); err != nil {
		return err
	}
	first.offset = offset
	return nil
}

// commitTime returns the commit time of one event, 0 of one that was removed: its id is
// remembered for a while.
func (s *Store) commitTime(t *topic, offset uint64) (int64, error) {
	if t.removed.Load().hides(offset) {
		return 0, nil
	}
	record, closer, err := s.db.Get(appendEventKey(nil, t.id, offset))
	if errors.Is(err, pdb.ErrNotFound) {
		return 0, nil // erased, and swept
	}
	if err != nil {
		return 0, fmt.Errorf("offset %d: %w", offset, err)
	}
	return eventhub.Record(record).CommitTime(), closer.Close()
}
