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

// maxDelayTime is the last At that a delayed event may have, in epoch milliseconds.
const maxDelayTime = 9_999_999_999_999

// delay is a delayed event; what it holds is never changed.
type delay store.Delayed

func (p *delay) compare(at int64, seq uint64) int {
	return cmp.Or(cmp.Compare(p.At, at), cmp.Compare(p.Seq, seq))
}

// place returns where in s.delays the first delayed event at or after (at, seq) is.
func (s *Store) place(at int64, seq uint64) int {
	i, _ := slices.BinarySearchFunc(s.delays, seq, func(p *delay, seq uint64) int { return p.compare(at, seq) })
	return i
}

// delayed returns the delayed event of that id, or nil.
func (s *Store) delayed(topic, id string) *delay {
	if t := s.topics[topic]; t != nil {
		return t.delays[id]
	}
	return nil
}

// checkCancels refuses those of a delayed event that is not there, or not any more.
func (s *Store) checkCancels(cancels []store.Cancel) error {
	for i, up := range cancels {
		p := s.delayed(up.Topic, up.ID)
		if p == nil || up.Seq != 0 && up.Seq != p.Seq || slices.ContainsFunc(cancels[:i], up.SameID) {
			return fmt.Errorf("id %q in topic %q, number %d: %w", up.ID, up.Topic, up.Seq, store.ErrNotDelayed)
		}
	}
	return nil
}

func (s *Store) cancel(up store.Cancel) {
	p := s.delayed(up.Topic, up.ID)
	delete(s.topics[up.Topic].delays, up.ID)
	s.bytes -= uint64(len(p.Record))
	if i := s.place(p.At, p.Seq); i == 0 {
		// A mover takes them from the front.
		s.delays[0] = nil
		s.delays = s.delays[1:]
	} else {
		s.delays = slices.Delete(s.delays, i, i+1)
	}
}

func (s *Store) delay(p *store.Delay, now int64) {
	t := s.topic(p.Topic)
	offset, isEvent := t.ids[p.ID]
	if !isEvent {
		offset, isEvent = t.removed(p.ID, now)
	}
	first := t.delays[p.ID]
	if p.FreshID && (isEvent || first != nil) {
		misuse("delayed event in topic %q: fresh id %q is there already, as an event: %v", p.Topic, p.ID, isEvent)
	}
	switch {
	case isEvent:
		p.Offset, p.Duplicate = offset, true
		return
	case first != nil:
		p.Seq, p.At, p.Duplicate = first.Seq, first.At, true
		return
	}
	s.lastDelay++
	p.Seq = s.lastDelay
	added := &delay{
		Topic: strings.Clone(p.Topic), ID: strings.Clone(p.ID), Key: strings.Clone(p.Key),
		At: p.At, Seq: p.Seq, Record: slices.Clone(p.Record),
	}
	t.delays[added.ID] = added
	s.delays = slices.Insert(s.delays, s.place(p.At, p.Seq), added)
	s.bytes += uint64(len(p.Record))
}

// Delayed implements store.Schedule.
func (s *Store) Delayed(ctx context.Context, afterAt int64, afterSeq uint64, until int64, limit, maxBytes int) ([]store.Delayed, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.mu.RUnlock()
	var list []store.Delayed
	for _, p := range s.delays[s.place(afterAt, afterSeq):] {
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

func (p *delay) copied() store.Delayed {
	c := store.Delayed(*p)
	c.Record = slices.Clone(p.Record)
	return c
}

// FindDelayed implements store.Schedule.
func (s *Store) FindDelayed(ctx context.Context, topic, id string) (store.Delayed, error) {
	if err := s.enter(ctx); err != nil {
		return store.Delayed{}, err
	}
	defer s.mu.RUnlock()
	p := s.delayed(topic, id)
	if p == nil {
		return store.Delayed{}, fmt.Errorf("delayed event of id %q in topic %q: %w", id, topic, store.ErrNotFound)
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

func checkDelay(p *store.Delay) {
	checkRecord("delayed event", p.Topic, p.ID, p.Record)
	if p.At < 0 || p.At > maxDelayTime {
		misuse("delayed event in topic %q of id %q: it is due at %d; 0 to %d are allowed", p.Topic, p.ID, p.At, maxDelayTime)
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
