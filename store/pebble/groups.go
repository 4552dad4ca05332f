package pebble

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"

	"eventhub/store"

	pdb "github.com/cockroachdb/pebble/v2"
)

// groupKey names a group.
type groupKey struct{ topic, group string }

// knownGroup is a group's state, or that there is none.
type knownGroup struct {
	state  store.GroupState
	exists bool
}

// groupTable lets readers of group headers see only what is synced. Before a commit
// hands its batch to Pebble it leaves here what its changes replace; a reader
// takes that instead of what Pebble says; when the batch is durable the table is
// emptied. A reader holds mu from the look at the table until it has its view of
// Pebble, so it has both from before the batch or both from after it.
type groupTable struct {
	mu       sync.RWMutex
	replaced map[groupKey]knownGroup
}

func (gt *groupTable) hide(replaced map[groupKey]knownGroup) {
	gt.mu.Lock()
	defer gt.mu.Unlock()
	gt.replaced = replaced
}

func (gt *groupTable) publish() { gt.hide(nil) }

// Group implements store.Groups.
func (s *Store) Group(ctx context.Context, topic, group string) (store.GroupState, error) {
	if err := s.enter(ctx); err != nil {
		return store.GroupState{}, err
	}
	defer s.leave()
	s.groups.mu.RLock()
	defer s.groups.mu.RUnlock()
	g, replaced := s.groups.replaced[groupKey{topic, group}]
	if !replaced {
		var err error
		if g, err = s.storedGroup(topic, group); err != nil {
			return store.GroupState{}, err
		}
	}
	if !g.exists {
		return store.GroupState{}, fmt.Errorf("group %q of topic %q: %w", group, topic, store.ErrNotFound)
	}
	g.state.Settings = slices.Clone(g.state.Settings)
	return g.state, nil
}

// storedGroup returns what Pebble has.
func (s *Store) storedGroup(topic, group string) (knownGroup, error) {
	t := s.topics.get(topic)
	if t == nil {
		return knownGroup{}, nil
	}
	value, err := s.get(appendGroupKey(nil, t.id, group))
	if value == nil && err == nil {
		return knownGroup{}, nil
	}
	var state store.GroupState
	if err == nil {
		state, err = decodeGroupValue(value)
	}
	if err != nil {
		return knownGroup{}, fmt.Errorf("store/pebble: read group %q of topic %q: %w", group, topic, err)
	}
	return knownGroup{state: state, exists: true}, nil
}

// ListGroups implements store.Groups.
func (s *Store) ListGroups(ctx context.Context, topic string) (groups []store.GroupInfo, err error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	t := s.topics.get(topic)
	if t == nil {
		return nil, nil
	}
	iter, replaced, err := s.groupView(t)
	if err != nil {
		return nil, fmt.Errorf("store/pebble: list the groups of topic %q: %w", topic, err)
	}
	defer closeInto(iter, &err)
	for valid := iter.First(); valid; valid = iter.Next() {
		name := groupName(iter.Key())
		g, ok := replaced[name]
		if !ok {
			state, err := decodeGroupValue(iter.Value())
			if err != nil {
				return nil, fmt.Errorf("store/pebble: read group %q of topic %q: %w", name, topic, err)
			}
			g = knownGroup{state: state, exists: true}
		}
		if g.exists {
			groups = append(groups, store.GroupInfo{Group: name, State: g.state})
		}
	}
	if err := iter.Error(); err != nil {
		return nil, fmt.Errorf("store/pebble: list the groups of topic %q: %w", topic, err)
	}
	return groups, nil
}

// DeletedEpoch implements store.Groups.
func (s *Store) DeletedEpoch(ctx context.Context) (uint64, error) {
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.leave()
	return s.deletedEpoch.Load(), nil
}

// writeDeletedEpoch writes the epoch of deletions in the commit where it is the highest.
func (c *commit) writeDeletedEpoch() {
	if c.deletedEpoch <= c.s.deletedEpoch.Load() {
		return
	}
	op := c.batch.SetDeferred(len(metaEpoch), epochBytes)
	copy(op.Key, metaEpoch)
	binary.BigEndian.PutUint64(op.Value, c.deletedEpoch)
}

// loadDeletedEpoch reads it at Open.
func (s *Store) loadDeletedEpoch() error {
	value, err := s.get(metaEpoch)
	if value == nil || err != nil {
		return err
	}
	if len(value) != epochBytes {
		return fmt.Errorf("the epoch of deleted groups reads %x", value)
	}
	s.deletedEpoch.Store(binary.BigEndian.Uint64(value))
	return nil
}

// groupView returns an iterator over the group headers of t and, from the same
// moment, what the running commit replaces of them.
func (s *Store) groupView(t *topic) (*pdb.Iterator, map[string]knownGroup, error) {
	s.groups.mu.RLock()
	defer s.groups.mu.RUnlock()
	var replaced map[string]knownGroup
	for key, g := range s.groups.replaced {
		if key.topic != t.name {
			continue
		}
		if replaced == nil {
			replaced = make(map[string]knownGroup)
		}
		g.state.Settings = slices.Clone(g.state.Settings)
		replaced[key.group] = g
	}
	iter, err := s.db.NewIter(&pdb.IterOptions{
		LowerBound: appendGroupPrefix(nil, t.id),
		UpperBound: appendGroupPrefix(nil, t.id+1),
	})
	return iter, replaced, err
}
