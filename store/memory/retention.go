package memory

import (
	"context"
	"fmt"
	"slices"

	"eventhub/internal/record/layout"
	"eventhub/store"
)

// goneID is the id of an event that was removed.
type goneID struct {
	offset uint64
	until  int64 // when it is forgotten, in epoch milliseconds
}

// checkTopics refuses changes of topics that are not there.
func (s *Store) checkTopics(changes []store.TopicChange) error {
	for i := range changes {
		ch := &changes[i]
		if t := s.topics[ch.Topic]; t == nil || ch.Life != 0 && t.life != ch.Life {
			return fmt.Errorf("life %d of topic %q: %w", ch.Life, ch.Topic, store.ErrGone)
		}
	}
	return nil
}

// remove does what a TopicChange says.
func (s *Store) remove(ch *store.TopicChange, now int64) {
	t := s.topics[ch.Topic]
	t.changeIndex(ch.Index)
	if horizon := min(ch.Horizon, t.last()+1); horizon > t.horizon {
		t.horizon = horizon
		n := t.from(horizon)
		for _, item := range t.events[:n] {
			s.forgetEvent(ch.Topic, t, item, ch.ForgetIDs, now)
		}
		t.events = slices.Clone(t.events[n:])
	}
	t.compacted = max(t.compacted, min(ch.Compacted, t.last()))
	t.tombstones = max(t.tombstones, min(ch.Tombstones, t.compacted))
	for _, offset := range ch.Erase {
		if i := t.from(offset); i < len(t.events) && t.events[i].Offset == offset {
			s.forgetEvent(ch.Topic, t, t.events[i], ch.ForgetIDs, now)
			t.events = slices.Delete(slices.Clone(t.events), i, i+1)
		}
	}
}

// Compact implements store.Retention: all at once.
func (s *Store) Compact(ctx context.Context, topic string) (u store.Usage, done bool, err error) {
	if err := ctx.Err(); err != nil {
		return u, false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return u, false, store.ErrClosed
	}
	t := s.topics[topic]
	if t == nil {
		return u, true, nil
	}
	if err := t.indexed(topic); err != nil {
		return u, false, err
	}
	now := s.now().UnixMilli()
	t.events = slices.DeleteFunc(slices.Clone(t.events), func(item store.Item) bool {
		if !t.isSuperseded(item) {
			return false
		}
		u.Events++
		u.Bytes += uint64(len(item.Record))
		s.forgetEvent(topic, t, item, false, now)
		return true
	})
	return u, true, nil
}

// isSuperseded reports whether an event is one that compaction removes. Of one key they come
// in the order of their offsets, and each goes from the list of the key's.
func (t *topic) isSuperseded(item store.Item) bool {
	key, ok := t.keyOf[item.Offset]
	if !ok || item.Offset > t.compacted {
		return false
	}
	newer := slices.ContainsFunc(t.keys[key], func(offset uint64) bool { return offset > item.Offset && offset <= t.compacted })
	return newer || item.Offset <= t.tombstones && layout.IsTombstone(item.Record)
}

// forgetEvent removes an event from all indexes. Ids that the store made are not remembered.
func (s *Store) forgetEvent(topic string, t *topic, item store.Item, forgetID bool, now int64) {
	s.bytes -= uint64(len(item.Record))
	id := string(item.Record.ID())
	delete(t.ids, id)
	if !forgetID && !t.made[item.Offset] {
		t.gone[id] = goneID{offset: item.Offset, until: now + store.IDsKept.Milliseconds()}
	}
	delete(t.made, item.Offset)
	if key := t.keyOf[item.Offset]; key != "" {
		delete(t.keyOf, item.Offset)
		offsets := slices.DeleteFunc(t.keys[key], func(offset uint64) bool { return offset == item.Offset })
		if t.keys[key] = offsets; len(offsets) == 0 {
			delete(t.keys, key)
		}
	}
	at := store.Place{Topic: topic, Offset: item.Offset}
	for _, l := range []links{s.effects, s.correlated} {
		l.forget(func(p store.Place) bool { return p == at })
	}
}

// removed returns where the event with an id was that was removed, if it is remembered.
func (t *topic) removed(id string, now int64) (offset uint64, ok bool) {
	g, ok := t.gone[id]
	if ok && g.until <= now {
		delete(t.gone, id)
		return 0, false
	}
	return g.offset, ok
}

// Measure implements store.Retention.
func (s *Store) Measure(ctx context.Context, topic string, from uint64, until store.Usage) (u store.Usage, next uint64, done bool, err error) {
	if err := s.enter(ctx); err != nil {
		return u, 0, false, err
	}
	defer s.mu.RUnlock()
	t := s.topics[topic]
	if t == nil {
		return u, from, true, nil
	}
	next = max(from, t.horizon)
	for _, item := range t.events[t.from(next):] {
		if until.Events > 0 && u.Events >= until.Events || until.Bytes > 0 && u.Bytes >= until.Bytes {
			return u, next, true, nil
		}
		u.Events++
		u.Bytes += uint64(len(item.Record))
		next = item.Offset + 1
	}
	return u, next, true, nil
}

func checkTopicChange(ch *store.TopicChange) {
	if ch.Topic == "" {
		misuse("change of a topic: its name is empty")
	}
	if ch.Index > store.DropIndex {
		misuse("change of topic %q: it does %d to the index", ch.Topic, ch.Index)
	}
	if len(ch.Erase) > store.MaxErase {
		misuse("change of topic %q: %d events are to be erased; at most %d are allowed", ch.Topic, len(ch.Erase), store.MaxErase)
	}
}
