package pebble

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"eventhub/store"

	pdb "github.com/cockroachdb/pebble/v2"
)

// planPlace is where a plan is in the order of plans; seq 0 for nowhere.
type planPlace struct {
	at  int64
	seq uint64
}

// plannedIDs are the ids of one commit that may have a plan in the store: those
// that callers gave to Plans, and all of Unplans. Like givenIDs they are looked
// up before the first unit is staged, in key order, with one iterator; then they
// follow what the units do.
type plannedIDs struct {
	index   map[givenID]int // into places
	places  []planPlace
	pending []lookup
	key     []byte
}

func (p *plannedIDs) reset() {
	clear(p.index)
	clear(p.pending)
	p.places, p.pending = p.places[:0], p.pending[:0]
}

// find returns the entry of an id, or nil where nobody but fresh Plans has it.
func (p *plannedIDs) find(topic, id string) *planPlace {
	if len(p.index) == 0 {
		return nil
	}
	at, ok := p.index[givenID{topic, id}]
	if !ok {
		return nil
	}
	return &p.places[at]
}

// lookUp collects the ids of units and finds the plans that are in the store.
func (p *plannedIDs) lookUp(c *commit, units []*store.Unit) error {
	for _, u := range units {
		for i := range u.Plans {
			if pl := &u.Plans[i]; !pl.FreshID {
				if err := p.add(c, pl.Topic, pl.ID); err != nil {
					return err
				}
			}
		}
		for i := range u.Unplans {
			if err := p.add(c, u.Unplans[i].Topic, u.Unplans[i].ID); err != nil {
				return err
			}
		}
	}
	if len(p.pending) == 0 {
		return nil
	}
	slices.SortFunc(p.pending, func(a, b lookup) int {
		return cmp.Or(cmp.Compare(a.topic.id, b.topic.id), cmp.Compare(a.id, b.id))
	})
	return p.seek(c.s)
}

func (p *plannedIDs) add(c *commit, topic, id string) error {
	key := givenID{topic, id}
	if _, ok := p.index[key]; ok {
		return nil
	}
	t, err := c.topic(topic)
	if err != nil {
		return err
	}
	if t != nil {
		p.pending = append(p.pending, lookup{topic: t, id: id, first: len(p.places)})
	}
	p.index[key] = len(p.places)
	p.places = append(p.places, planPlace{})
	return nil
}

func (p *plannedIDs) seek(s *Store) (err error) {
	iter, err := s.db.NewIter(&pdb.IterOptions{
		LowerBound:   []byte{tagPlanID},
		UpperBound:   []byte{tagPlanID + 1},
		UseL6Filters: true,
	})
	if err != nil {
		return fmt.Errorf("look up plans: %w", err)
	}
	defer closeInto(iter, &err)
	for _, l := range p.pending {
		p.key = appendPlanIDKey(p.key[:0], l.topic.id, l.id)
		if !iter.SeekPrefixGE(p.key) {
			if err := iter.Error(); err != nil { // now, as the next seek forgets it
				return fmt.Errorf("look up the plan of id %q in topic %q: %w", l.id, l.topic.name, err)
			}
			continue
		}
		if !bytes.Equal(iter.Key(), p.key) {
			continue
		}
		if p.places[l.first], err = decodePlanPlace(iter.Value()); err != nil {
			return fmt.Errorf("look up the plan of id %q in topic %q: %w", l.id, l.topic.name, err)
		}
	}
	return nil
}

// checkUnplans refuses those of a plan that is not there, or not any more.
func (c *commit) checkUnplans(unplans []store.Unplan) error {
	for i, up := range unplans {
		seq := c.planned.find(up.Topic, up.ID).seq
		if seq == 0 || up.Seq != 0 && up.Seq != seq || slices.ContainsFunc(unplans[:i], up.SameID) {
			return fmt.Errorf("id %q in topic %q, number %d: %w", up.ID, up.Topic, up.Seq, store.ErrNoPlan)
		}
	}
	return nil
}

func (c *commit) unplan(up *store.Unplan) {
	t, _ := c.topic(up.Topic) // found by lookUp, or created before its plan
	place := c.planned.find(up.Topic, up.ID)
	op := c.batch.DeleteDeferred(planKeyBytes)
	appendPlanKey(op.Key[:0], place.at, place.seq)
	op = c.batch.DeleteDeferred(1 + topicIDBytes + len(up.ID))
	appendPlanIDKey(op.Key[:0], t.id, up.ID)
	*place = planPlace{}
	c.plansChanged = true
}

func (c *commit) plan(p *store.Plan) {
	t, _ := c.topic(p.Topic) // found and loaded by check
	event, first := c.given.find(p.Topic, p.ID), c.planned.find(p.Topic, p.ID)
	switch {
	case event != nil && event.offset != 0:
		p.Offset, p.Duplicate = event.offset, true
		return
	case first != nil && first.seq != 0:
		p.At, p.Seq, p.Duplicate = first.at, first.seq, true
		return
	}
	c.s.lastPlan++
	p.Seq = c.s.lastPlan
	if first != nil {
		*first = planPlace{at: p.At, seq: p.Seq}
	}
	c.plansChanged = true
	op := c.batch.SetDeferred(planKeyBytes, textBytes(p.Topic)+textBytes(p.Key)+len(p.Record))
	appendPlanKey(op.Key[:0], p.At, p.Seq)
	value := appendText(appendText(op.Value[:0], p.Topic), p.Key)
	copy(op.Value[len(value):], p.Record)
	op = c.batch.SetDeferred(1+topicIDBytes+len(p.ID), planPlaceBytes)
	appendPlanIDKey(op.Key[:0], t.id, p.ID)
	appendPlanPlace(op.Value[:0], p.At, p.Seq)
}

func (c *commit) changePattern(ch *store.PatternChange) {
	c.patternsChanged = true
	size := 1 + len(ch.Group) + 1 + len(ch.Pattern)
	if ch.Delete {
		op := c.batch.DeleteDeferred(size)
		appendPatternKey(op.Key[:0], ch.Group, ch.Pattern)
		return
	}
	op := c.batch.SetDeferred(size, len(ch.Value))
	appendPatternKey(op.Key[:0], ch.Group, ch.Pattern)
	copy(op.Value, ch.Value)
}

// reservePlans keeps the promise that the Seq of a plan is never given again,
// whatever a crash takes away. It is that of reserve, with one floor for all
// plans; a commit that stays below the floor writes nothing for it. At Open the
// count goes on at the floor, so a restart skips up to reserveAhead of them.
func (c *commit) reservePlans(sync bool) bool {
	s := c.s
	if s.lastPlan <= s.planFloor {
		return sync
	}
	s.planFloor = s.lastPlan + reserveAhead
	op := c.batch.SetDeferred(len(metaPlanFloor), offsetBytes)
	copy(op.Key, metaPlanFloor)
	binary.BigEndian.PutUint64(op.Value, s.planFloor)
	return true
}

// loadPlanFloor reads at Open up to which Seq plans were given.
func (s *Store) loadPlanFloor() error {
	value, err := s.get(metaPlanFloor)
	if value == nil || err != nil {
		return err
	}
	if len(value) != offsetBytes {
		return fmt.Errorf("the floor of plans reads %x", value)
	}
	s.planFloor = binary.BigEndian.Uint64(value)
	s.lastPlan = s.planFloor
	return nil
}
