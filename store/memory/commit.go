package memory

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"eventhub/internal/eventid"
	"eventhub/internal/record/layout"
	"eventhub/store"
)

// Commit implements store.Log. It panics where a unit breaks a duty of callers:
// then it has touched nothing, except for a delayed event whose fresh id was there, which
// is found when its unit is applied.
func (s *Store) Commit(ctx context.Context, units []*store.Unit, _ bool) error {
	for _, u := range units {
		checkUnit(u)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return store.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	now := s.now().UnixMilli()
	for _, u := range units {
		for i := range u.Appends {
			a := &u.Appends[i]
			a.Offset, a.CommitTime, a.Duplicate = 0, 0, false
		}
		for i := range u.Delays {
			p := &u.Delays[i]
			p.Seq, p.Offset, p.Duplicate = 0, 0, false
		}
		u.Created, u.Err = nil, nil
		s.add(u, now)
	}
	return nil
}

// add applies a unit, or refuses it.
func (s *Store) add(u *store.Unit, now int64) {
	if u.Producer != nil {
		u.Err = s.changeProducer(u.Producer)
		return
	}
	if u.Sequence != nil {
		u.Sequence.Repeated, u.Sequence.First = false, nil
		if s.sequence(u) {
			return
		}
		defer s.used(u, now)
		if u.Sequence.Refusal != nil {
			u.Err = store.ErrRefused
			return
		}
	}
	if u.Err = s.check(u); u.Err == nil {
		s.apply(u, now)
	}
}

type groupKey struct{ topic, group string }

// check says why the unit is refused, or nil. Within a unit too, later changes
// of a group see earlier ones.
func (s *Store) check(u *store.Unit) error {
	created := make(map[string]bool)
	changed := make(map[groupKey]*store.GroupChange)
	for i := range u.Groups {
		ch := &u.Groups[i]
		key := groupKey{ch.Topic, ch.Group}
		var epoch uint64
		exists := false
		t := s.topics[ch.Topic]
		if ch.Life != 0 && (t == nil || t.life != ch.Life) {
			return fmt.Errorf("life %d of topic %q: %w", ch.Life, ch.Topic, store.ErrGone)
		}
		if t == nil {
			created[ch.Topic] = true
		}
		if earlier := changed[key]; earlier != nil {
			epoch, exists = earlier.State.Epoch, !earlier.Delete
		} else if t != nil {
			var g *group
			if g, exists = t.groups[ch.Group]; exists {
				epoch = g.state.Epoch
			}
		}
		if !exists {
			epoch = 0
		}
		if err := checkGroup(ch, epoch, exists); err != nil {
			return fmt.Errorf("group %q of topic %q: %w", ch.Group, ch.Topic, err)
		}
		changed[key] = ch
	}
	if err := s.checkCancels(u.Cancels); err != nil {
		return err
	}
	if err := s.checkTopics(u.Topics); err != nil {
		return err
	}
	if err := s.checkExpected(u.Appends); err != nil {
		return err
	}
	for i := range u.Appends {
		if name := u.Appends[i].Topic; s.topics[name] == nil {
			created[name] = true
		}
	}
	for i := range u.Delays {
		if name := u.Delays[i].Topic; s.topics[name] == nil {
			created[name] = true
		}
	}
	if n := len(s.topics) + len(created); s.maxTopics > 0 && len(created) > 0 && n > s.maxTopics {
		return fmt.Errorf("%d topics, %d are allowed: %w", n, s.maxTopics, store.ErrTopicLimit)
	}
	return nil
}

func checkGroup(ch *store.GroupChange, epoch uint64, exists bool) error {
	switch {
	case ch.Create && exists:
		return store.ErrExists
	case !ch.Create && !exists:
		return fmt.Errorf("it does not exist: %w", store.ErrStaleEpoch)
	case ch.State.Epoch < epoch:
		return fmt.Errorf("epoch %d, the stored one is %d: %w", ch.State.Epoch, epoch, store.ErrStaleEpoch)
	}
	return nil
}

func (s *Store) apply(u *store.Unit, now int64) {
	known := s.lives
	defer func() { u.Created = s.createdSince(known, u) }()
	for i := range u.Groups {
		ch := &u.Groups[i]
		s.topic(ch.Topic).change(ch)
		if ch.Delete {
			s.deleted = max(s.deleted, ch.State.Epoch)
		}
	}
	for _, up := range u.Cancels {
		s.cancel(up)
	}
	for i := range u.Appends {
		a := &u.Appends[i]
		s.topic(a.Topic).append(a, now)
		if !a.Duplicate {
			s.bytes += uint64(len(a.Record))
			s.link(a)
		}
	}
	for i := range u.Delays {
		s.delay(&u.Delays[i], now)
	}
	for i := range u.Patterns {
		s.changePattern(&u.Patterns[i])
	}
	for i := range u.Settings {
		s.changeSetting(&u.Settings[i])
	}
	for i := range u.Notes {
		s.changeNote(&u.Notes[i])
	}
	for i := range u.Topics {
		s.remove(&u.Topics[i], now)
	}
}

// createdSince returns those topics of a unit that were created when there had been so
// many lives.
func (s *Store) createdSince(lives uint64, u *store.Unit) (created []store.TopicLife) {
	if s.lives == lives {
		return nil
	}
	note := func(topic string) {
		b := store.TopicLife{Topic: topic, Life: s.topics[topic].life}
		if b.Life > lives && !slices.Contains(created, b) {
			created = append(created, b)
		}
	}
	for i := range u.Groups {
		note(u.Groups[i].Topic)
	}
	for i := range u.Appends {
		note(u.Appends[i].Topic)
	}
	for i := range u.Delays {
		note(u.Delays[i].Topic)
	}
	return created
}

// topic returns the topic and creates it if need be.
func (s *Store) topic(name string) *topic {
	t := s.topics[name]
	if t == nil {
		s.lives++
		t = &topic{
			life:   s.lives,
			ids:    make(map[string]uint64),
			made:   make(map[uint64]bool),
			gone:   make(map[string]goneID),
			keys:   make(map[string][]uint64),
			keyOf:  make(map[uint64]string),
			groups: make(map[string]*group),
			delays: make(map[string]*delay),
			floor:  max(s.deletedNames[name], s.baseFloor),

			horizon: 1,
		}
		delete(s.deletedNames, name)
		s.topics[strings.Clone(name)] = t
	}
	return t
}

func (t *topic) change(ch *store.GroupChange) {
	if ch.Delete {
		delete(t.groups, ch.Group)
		return
	}
	g := t.groups[ch.Group]
	if g == nil {
		g = &group{parts: make(map[partName][]byte)}
		t.groups[strings.Clone(ch.Group)] = g
	}
	g.state = cloneState(ch.State)
	if ch.Reset {
		clear(g.parts)
	}
	for _, p := range ch.Parts {
		name := partName{p.Kind, p.Offset}
		if len(p.Value) == 0 {
			delete(g.parts, name)
		} else {
			g.parts[name] = slices.Clone(p.Value)
		}
	}
}

func (t *topic) append(a *store.Append, now int64) {
	if a.NewID {
		a.ID = eventid.New()
		layout.SetID(a.Record, a.ID)
	}
	if first, ok := t.ids[a.ID]; ok {
		a.Offset, a.CommitTime, a.Duplicate = first, t.at(first).CommitTime(), true
		return
	}
	if first, ok := t.removed(a.ID, now); ok {
		a.Offset, a.Duplicate = first, true
		return
	}
	last, offset := t.lastTime, t.last()+1
	time := max(now, last)
	switch {
	case a.KeepTime == 0:
	case a.KeepTime >= last && a.KeepTime <= now:
		time = a.KeepTime
	default:
		a.Record = layout.WithTS(a.Record, a.KeepTime)
	}
	layout.SetCommitTime(a.Record, time)
	if a.KeepOffset <= store.MaxKeepOffset {
		offset = max(offset, a.KeepOffset)
	}
	a.Offset, a.CommitTime = offset, time
	t.head, t.lastTime = offset, time
	if a.NewID {
		t.made[offset] = true
	}
	t.events = append(t.events, store.Item{Offset: a.Offset, Record: slices.Clone(a.Record)})
	t.ids[strings.Clone(a.ID)] = a.Offset
	if a.Key != "" {
		key := strings.Clone(a.Key)
		t.keys[key] = append(t.keys[key], a.Offset)
		t.keyOf[a.Offset] = key
	}
}
