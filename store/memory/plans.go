package memory

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"eventhub/store"
)

// maxPlanTime is the last At that a plan may have, in epoch milliseconds.
const maxPlanTime = 9_999_999_999_999

// plan is a plan; what it holds is never changed.
type plan store.Planned

func (p *plan) compare(at int64, seq uint64) int {
	return cmp.Or(cmp.Compare(p.At, at), cmp.Compare(p.Seq, seq))
}

// place returns where in s.plans the first plan at or after (at, seq) is.
func (s *Store) place(at int64, seq uint64) int {
	i, _ := slices.BinarySearchFunc(s.plans, seq, func(p *plan, seq uint64) int { return p.compare(at, seq) })
	return i
}

// planned returns the plan of that id, or nil.
func (s *Store) planned(topic, id string) *plan {
	if t := s.topics[topic]; t != nil {
		return t.plans[id]
	}
	return nil
}

// checkUnplans refuses those of a plan that is not there, or not any more.
func (s *Store) checkUnplans(unplans []store.Unplan) error {
	for i, up := range unplans {
		p := s.planned(up.Topic, up.ID)
		if p == nil || up.Seq != 0 && up.Seq != p.Seq || slices.ContainsFunc(unplans[:i], up.SameID) {
			return fmt.Errorf("id %q in topic %q, number %d: %w", up.ID, up.Topic, up.Seq, store.ErrNoPlan)
		}
	}
	return nil
}

func (s *Store) unplan(up store.Unplan) {
	p := s.planned(up.Topic, up.ID)
	delete(s.topics[up.Topic].plans, up.ID)
	s.bytes -= uint64(len(p.Record))
	if i := s.place(p.At, p.Seq); i == 0 {
		// A mover takes them from the front.
		s.plans[0] = nil
		s.plans = s.plans[1:]
	} else {
		s.plans = slices.Delete(s.plans, i, i+1)
	}
}

func (s *Store) plan(p *store.Plan) {
	t := s.topic(p.Topic)
	offset, isEvent := t.ids[p.ID]
	first := t.plans[p.ID]
	if p.FreshID && (isEvent || first != nil) {
		misuse("plan in topic %q: fresh id %q is there already, as an event: %v", p.Topic, p.ID, isEvent)
	}
	switch {
	case isEvent:
		p.Offset, p.Duplicate = offset, true
		return
	case first != nil:
		p.Seq, p.At, p.Duplicate = first.Seq, first.At, true
		return
	}
	s.lastPlan++
	p.Seq = s.lastPlan
	added := &plan{
		Topic: strings.Clone(p.Topic), ID: strings.Clone(p.ID), Key: strings.Clone(p.Key),
		At: p.At, Seq: p.Seq, Record: slices.Clone(p.Record),
	}
	t.plans[added.ID] = added
	s.plans = slices.Insert(s.plans, s.place(p.At, p.Seq), added)
	s.bytes += uint64(len(p.Record))
}

// Planned implements store.Schedule.
func (s *Store) Planned(ctx context.Context, afterAt int64, afterSeq uint64, until int64, limit, maxBytes int) ([]store.Planned, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.mu.RUnlock()
	var list []store.Planned
	for _, p := range s.plans[s.place(afterAt, afterSeq):] {
		if p.compare(afterAt, afterSeq) == 0 {
			continue
		}
		if p.At > until || len(list) >= limit {
			break
		}
		if maxBytes -= len(p.Record); len(list) > 0 && maxBytes < 0 {
			break
		}
		list = append(list, p.copied())
	}
	return list, nil
}

func (p *plan) copied() store.Planned {
	c := store.Planned(*p)
	c.Record = slices.Clone(p.Record)
	return c
}

// FindPlan implements store.Schedule.
func (s *Store) FindPlan(ctx context.Context, topic, id string) (store.Planned, error) {
	if err := s.enter(ctx); err != nil {
		return store.Planned{}, err
	}
	defer s.mu.RUnlock()
	p := s.planned(topic, id)
	if p == nil {
		return store.Planned{}, fmt.Errorf("plan of id %q in topic %q: %w", id, topic, store.ErrNotFound)
	}
	return p.copied(), nil
}

type patternName struct{ group, pattern string }

func (s *Store) changePattern(ch *store.PatternChange) {
	name := patternName{ch.Group, ch.Pattern}
	if ch.Delete {
		delete(s.patterns, name)
		return
	}
	name = patternName{strings.Clone(ch.Group), strings.Clone(ch.Pattern)}
	s.patterns[name] = slices.Clone(ch.Value)
}

// ListPatterns implements store.Groups.
func (s *Store) ListPatterns(ctx context.Context) ([]store.PatternInfo, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.mu.RUnlock()
	var list []store.PatternInfo
	for name, value := range s.patterns {
		list = append(list, store.PatternInfo{Group: name.group, Pattern: name.pattern, Value: slices.Clone(value)})
	}
	slices.SortFunc(list, func(a, b store.PatternInfo) int {
		return cmp.Or(strings.Compare(a.Group, b.Group), strings.Compare(a.Pattern, b.Pattern))
	})
	return list, nil
}

func checkPlan(p *store.Plan) {
	checkRecord("plan", p.Topic, p.ID, p.Record)
	if p.At < 0 || p.At > maxPlanTime {
		misuse("plan in topic %q of id %q: it is due at %d; 0 to %d are allowed", p.Topic, p.ID, p.At, maxPlanTime)
	}
}

func checkPattern(ch *store.PatternChange) {
	if ch.Group == "" || ch.Pattern == "" {
		misuse("pattern %q of group %q: a name is empty", ch.Pattern, ch.Group)
	}
	if len(ch.Value) > 0 && !json.Valid(ch.Value) {
		misuse("pattern %q of group %q: the value %q is not JSON", ch.Pattern, ch.Group, ch.Value)
	}
}
