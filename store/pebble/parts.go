package pebble

import (
	"bytes"
	"context"
	"fmt"

	"eventhub/store"

	pdb "github.com/cockroachdb/pebble/v2"
)

// partChanges is what a commit does to the parts of one group: first all that
// are stored go, where removeStored is set, then the parts of changes are written one
// change after the other. In a batch the later write of a key counts.
type partChanges struct {
	removeStored bool
	changes      []*store.GroupChange
}

// noteParts adds a change of a unit that is not refused.
func (c *commit) noteParts(ch *store.GroupChange) {
	removeStored := ch.Delete || ch.Reset
	if !removeStored && len(ch.Parts) == 0 {
		return
	}
	key := groupKey{ch.Topic, ch.Group}
	p := c.parts[key]
	if removeStored {
		p = partChanges{removeStored: true}
	}
	if len(ch.Parts) > 0 {
		p.changes = append(p.changes, ch)
	}
	c.parts[key] = p
}

// writeGroups writes each changed group once, as the last unit left it.
func (c *commit) writeGroups() {
	for key, g := range c.groups {
		t := c.changedTopic(key)
		if !g.exists {
			op := c.batch.DeleteDeferred(1 + topicIDBytes + len(key.group))
			appendGroupKey(op.Key[:0], t.id, key.group)
			continue
		}
		value := appendGroupValue(nil, &g.state)
		op := c.batch.SetDeferred(1+topicIDBytes+len(key.group), len(value))
		appendGroupKey(op.Key[:0], t.id, key.group)
		copy(op.Value, value)
	}
}

func (c *commit) writeParts() error {
	for key, p := range c.parts {
		t := c.changedTopic(key)
		if p.removeStored {
			if err := c.deleteParts(t, key.group); err != nil {
				return fmt.Errorf("delete the parts of group %q of topic %q: %w", key.group, key.topic, err)
			}
		}
		for _, ch := range p.changes {
			for i := range ch.Parts {
				c.writePart(t, key.group, &ch.Parts[i])
			}
		}
	}
	return nil
}

func (c *commit) writePart(t *topic, group string, p *store.GroupPart) {
	keyBytes := 1 + topicIDBytes + len(group) + 1 + partTailBytes
	if len(p.Value) == 0 {
		op := c.batch.DeleteDeferred(keyBytes)
		appendPartKey(op.Key[:0], t.id, group, p.Kind, p.Offset)
		return
	}
	op := c.batch.SetDeferred(keyBytes, len(p.Value))
	appendPartKey(op.Key[:0], t.id, group, p.Kind, p.Offset)
	copy(op.Value, p.Value)
}

// deleteParts removes the parts that are stored. The committer alone writes, so
// what Pebble has is what all earlier commits left.
func (c *commit) deleteParts(t *topic, group string) (err error) {
	iter, err := c.s.parts(t, group)
	if err != nil {
		return err
	}
	defer closeInto(iter, &err)
	for valid := iter.First(); valid; valid = iter.Next() {
		op := c.batch.DeleteDeferred(len(iter.Key()))
		copy(op.Key, iter.Key())
	}
	return iter.Error()
}

// changedTopic returns the topic of a group that a unit changed.
func (c *commit) changedTopic(key groupKey) *topic {
	if t := c.created[key.topic]; t != nil {
		return t
	}
	return c.s.topics.get(key.topic)
}

// parts returns an iterator over the parts of a group.
func (s *Store) parts(t *topic, group string) (*pdb.Iterator, error) {
	return s.db.NewIter(&pdb.IterOptions{
		LowerBound: appendPartPrefix(nil, t.id, group, 0),
		UpperBound: appendPartPrefix(nil, t.id, group, 1),
	})
}

// GroupParts implements store.Groups.
func (s *Store) GroupParts(ctx context.Context, topic, group string) (parts []store.GroupPart, err error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	iter, err := s.partView(topic, group)
	if iter == nil || err != nil {
		return nil, err
	}
	defer closeInto(iter, &err)
	for valid := iter.First(); valid; valid = iter.Next() {
		kind, offset, err := partName(iter.Key(), group)
		var value []byte
		if err == nil {
			value, err = iter.ValueAndErr()
		}
		if err != nil {
			return nil, fmt.Errorf("store/pebble: read the parts of group %q of topic %q: %w", group, topic, err)
		}
		parts = append(parts, store.GroupPart{Kind: kind, Offset: offset, Value: bytes.Clone(value)})
	}
	if err := iter.Error(); err != nil {
		return nil, fmt.Errorf("store/pebble: read the parts of group %q of topic %q: %w", group, topic, err)
	}
	return parts, nil
}

// partView returns an iterator over parts that are all durable, or nil where
// there is no such topic. A header's earlier state is in the groupTable while a
// commit changes it; for parts that would be too much to keep, so here the table
// only says that a commit is under way which may change them, and the view is
// taken when it is done. It is never done where it failed: what it left in
// Pebble may not be shown.
func (s *Store) partView(topic, group string) (*pdb.Iterator, error) {
	key := groupKey{topic, group}
	iter, changing, err := s.quietParts(key)
	if changing {
		s.committing.Lock()
		iter, changing, err = s.quietParts(key)
		s.committing.Unlock()
	}
	if changing {
		err = s.faults.err()
	}
	if err != nil {
		return nil, fmt.Errorf("store/pebble: read the parts of group %q of topic %q: %w", group, topic, err)
	}
	return iter, nil
}

// quietParts returns the iterator, unless the group is changing.
func (s *Store) quietParts(key groupKey) (iter *pdb.Iterator, changing bool, err error) {
	s.groups.mu.RLock()
	defer s.groups.mu.RUnlock()
	if _, changing = s.groups.replaced[key]; changing {
		return nil, true, nil
	}
	if t := s.topics.get(key.topic); t != nil {
		iter, err = s.parts(t, key.group)
	}
	return iter, false, err
}
