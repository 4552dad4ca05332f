// Package memory keeps everything in memory: for tests, and for hubs that may
// forget. It is the strictest backend. Where another one could only store what
// it is given, it checks that its caller keeps the duties that package store
// names, and panics with the offending value when it does not: an engine that
// passes its tests here does not depend on a backend's patience.
//
// It copies what it takes and what it gives. A commit is applied under one lock,
// so it is seen as a whole or not at all, and its Commit never breaks.
package memory

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"eventhub"
	"eventhub/internal/record/layout"
	"eventhub/store"
)

// Options open a store.
type Options struct {
	// Now is the clock that commit times come from; nil means time.Now.
	Now func() time.Time
	// MaxTopics bounds the number of topics; 0 means no bound.
	MaxTopics int
}

// Store is an open store. It implements store.Store.
type Store struct {
	now       func() time.Time
	maxTopics int

	mu     sync.RWMutex
	closed bool
	topics map[string]*topic
	// deletedNames has the last offset given under the names of topics that are gone; under
	// those that it does not have, none above baseFloor was given.
	deletedNames map[string]uint64
	baseFloor    uint64
	lives        uint64 // given so far
	eras         []store.Era
	deleted      uint64 // the highest epoch of a group that was deleted
	bytes        uint64 // of all records, those of delayed events too

	delays    []*delay // by At, then Seq
	lastDelay uint64   // the highest Seq given
	patterns  map[patternName]json.RawMessage
	settings  map[string]json.RawMessage // of topics, by name or pattern
	notes     map[string][]byte          // by name
	producers map[string]*producer       // by name
	// producerEpoch is the highest epoch of a producer.
	producerEpoch uint64

	effects, correlated links
}

var _ store.Store = (*Store)(nil)

// topic holds its events in the order of their offsets, which may have gaps where
// events came with an offset to keep, or were removed.
type topic struct {
	events []store.Item
	ids    map[string]uint64
	made   map[uint64]bool     // offsets whose ids the store made
	gone   map[string]goneID   // ids of events that were removed
	keys   map[string][]uint64 // offsets, rising
	keyOf  map[uint64]string   // the other way
	groups map[string]*group
	delays map[string]*delay // by id
	life   uint64
	floor  uint64 // of an earlier topic of that name

	head     uint64 // of the last event, also of one that was removed
	lastTime int64  // likewise
	horizon  uint64 // the first offset that is kept

	compacted, tombstones uint64

	index store.IndexStatus
	// Of an index that is being built: up to where it has to go, and what is next.
	indexTo, indexNext uint64
}

// group is a group's header and its parts.
type group struct {
	state store.GroupState
	parts map[partName][]byte
}

type partName struct {
	kind   byte
	offset uint64
}

func (t *topic) info(name string) store.TopicInfo {
	return store.TopicInfo{Name: name, Head: t.head, Horizon: t.horizon, Compacted: t.compacted, Tombstones: t.tombstones, LastTime: t.lastTime, Index: t.index, Life: t.life}
}

// last returns the highest offset given under the topic's name.
func (t *topic) last() uint64 { return max(t.head, t.floor) }

// from returns the index of the first event at or above offset.
func (t *topic) from(offset uint64) int {
	if len(t.events) > 0 && offset >= t.events[0].Offset {
		i := offset - t.events[0].Offset
		if i < uint64(len(t.events)) && t.events[i].Offset == offset {
			return int(i) // there are no gaps before it, as in nearly all topics
		}
	}
	i, _ := slices.BinarySearchFunc(t.events, offset, func(item store.Item, offset uint64) int {
		return cmp.Compare(item.Offset, offset)
	})
	return i
}

// at returns the event at an offset that has one.
func (t *topic) at(offset uint64) eventhub.Record { return t.events[t.from(offset)].Record }

// Open returns an empty store.
func Open(o Options) *Store {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Store{now: o.Now, maxTopics: o.MaxTopics, eras: []store.Era{{ID: max(rand.Uint64(), 1), First: 1}}, topics: make(map[string]*topic), deletedNames: make(map[string]uint64),
		patterns: make(map[patternName]json.RawMessage), settings: make(map[string]json.RawMessage), notes: make(map[string][]byte), producers: make(map[string]*producer), producerEpoch: rand.Uint64N(1 << 40), effects: make(links), correlated: make(links)}
}

// Capabilities implements store.Store.
func (s *Store) Capabilities() store.Capabilities {
	return store.Capabilities{Durability: store.DurabilityNone, AtomicUnits: true}
}

// Close implements store.Store. What was stored is gone.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.topics, s.delays, s.patterns, s.settings, s.notes = nil, nil, nil, nil, nil
	s.effects, s.correlated = nil, nil
	return nil
}

// Lives implements store.Topics.
func (s *Store) Lives(ctx context.Context) (store.Lives, error) {
	if err := s.enter(ctx); err != nil {
		return store.Lives{}, err
	}
	defer s.mu.RUnlock()
	return store.Lives{Newest: s.lives, Eras: s.eras}, nil
}

// Size implements store.Maintenance: the bytes of the records.
func (s *Store) Size() (uint64, error) {
	if err := s.enter(context.Background()); err != nil {
		return 0, err
	}
	defer s.mu.RUnlock()
	return s.bytes, nil
}

// Space implements store.Maintenance: no file system bounds what is in memory.
func (s *Store) Space() (store.Space, error) {
	if err := s.enter(context.Background()); err != nil {
		return store.Space{}, err
	}
	s.mu.RUnlock()
	return store.Space{}, nil
}

// Shrink implements store.Maintenance: there is nothing to give back.
func (s *Store) Shrink(ctx context.Context) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	s.mu.RUnlock()
	return nil
}

// enter begins a read; every nil needs an RUnlock.
func (s *Store) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.RLock()
	if s.closed {
		s.mu.RUnlock()
		return store.ErrClosed
	}
	return nil
}

// Read implements store.Log.
func (s *Store) Read(ctx context.Context, topic string, from uint64, limit, maxBytes int, batch *store.Batch) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.mu.RUnlock()
	t := s.topics[topic]
	if t == nil {
		batch.Horizon, batch.Compacted, batch.Tombstones = 0, 0, 0
		return nil
	}
	batch.Horizon, batch.Compacted, batch.Tombstones = t.horizon, t.compacted, t.tombstones
	for n, item := range t.events[t.from(from):] {
		if n >= limit {
			break
		}
		if maxBytes -= len(item.Record); n > 0 && maxBytes < 0 {
			break
		}
		batch.Add(item.Offset, item.Record)
	}
	return nil
}

// Head implements store.Log.
func (s *Store) Head(ctx context.Context, topic string) (uint64, error) {
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.mu.RUnlock()
	if t := s.topics[topic]; t != nil {
		return t.head, nil
	}
	return 0, nil
}

// Find implements store.Log.
func (s *Store) Find(ctx context.Context, topic, id string) (uint64, error) {
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.mu.RUnlock()
	if t := s.topics[topic]; t != nil {
		if offset, ok := t.ids[id]; ok {
			return offset, nil
		}
	}
	return 0, fmt.Errorf("id %q in topic %q: %w", id, topic, store.ErrNotFound)
}

// SeekTime implements store.Log.
func (s *Store) SeekTime(ctx context.Context, topic string, ts int64) (uint64, error) {
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.mu.RUnlock()
	t := s.topics[topic]
	if t == nil {
		return 1, nil
	}
	before, _ := slices.BinarySearchFunc(t.events, ts, func(item store.Item, ts int64) int {
		if item.Record.CommitTime() < ts {
			return -1
		}
		return 1
	})
	if before < len(t.events) {
		return t.events[before].Offset, nil
	}
	return t.head + 1, nil
}

// Latest implements store.Log.
func (s *Store) Latest(ctx context.Context, topic, key string, at uint64) (store.Item, error) {
	if err := s.enter(ctx); err != nil {
		return store.Item{}, err
	}
	defer s.mu.RUnlock()
	if t := s.topics[topic]; t != nil {
		if err := t.indexed(topic); err != nil {
			return store.Item{}, err
		}
		offsets := t.keys[key]
		n := len(offsets)
		if at != 0 && at < t.head {
			n, _ = slices.BinarySearch(offsets, at+1)
		}
		if n > 0 {
			offset := offsets[n-1]
			return store.Item{Offset: offset, Record: slices.Clone(t.at(offset))}, nil
		}
	}
	return store.Item{}, fmt.Errorf("key %q in topic %q: %w", key, topic, store.ErrNotFound)
}

// ListTopics implements store.Topics.
func (s *Store) ListTopics(ctx context.Context, after string, limit int) ([]store.TopicInfo, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.mu.RUnlock()
	var list []store.TopicInfo
	for name, t := range s.topics {
		if name > after {
			list = append(list, t.info(name))
		}
	}
	slices.SortFunc(list, func(a, b store.TopicInfo) int { return strings.Compare(a.Name, b.Name) })
	return list[:min(len(list), max(limit, 0))], nil
}

// Topic implements store.Topics.
func (s *Store) Topic(ctx context.Context, name string) (store.TopicInfo, error) {
	if err := s.enter(ctx); err != nil {
		return store.TopicInfo{}, err
	}
	defer s.mu.RUnlock()
	if t := s.topics[name]; t != nil {
		return t.info(name), nil
	}
	return store.TopicInfo{}, fmt.Errorf("topic %q: %w", name, store.ErrNotFound)
}

// Group implements store.Groups.
func (s *Store) Group(ctx context.Context, topic, group string) (store.GroupState, error) {
	if err := s.enter(ctx); err != nil {
		return store.GroupState{}, err
	}
	defer s.mu.RUnlock()
	if t := s.topics[topic]; t != nil {
		if g := t.groups[group]; g != nil {
			return cloneState(g.state), nil
		}
	}
	return store.GroupState{}, fmt.Errorf("group %q of topic %q: %w", group, topic, store.ErrNotFound)
}

// GroupParts implements store.Groups.
func (s *Store) GroupParts(ctx context.Context, topic, group string) ([]store.GroupPart, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.mu.RUnlock()
	t := s.topics[topic]
	if t == nil || t.groups[group] == nil {
		return nil, nil
	}
	var parts []store.GroupPart
	for name, value := range t.groups[group].parts {
		parts = append(parts, store.GroupPart{Kind: name.kind, Offset: name.offset, Value: slices.Clone(value)})
	}
	slices.SortFunc(parts, func(a, b store.GroupPart) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Offset, b.Offset))
	})
	return parts, nil
}

// ListGroups implements store.Groups.
func (s *Store) ListGroups(ctx context.Context, topic string) ([]store.GroupInfo, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.mu.RUnlock()
	t := s.topics[topic]
	if t == nil {
		return nil, nil
	}
	var list []store.GroupInfo
	for name, g := range t.groups {
		list = append(list, store.GroupInfo{Group: name, State: cloneState(g.state)})
	}
	slices.SortFunc(list, func(a, b store.GroupInfo) int { return strings.Compare(a.Group, b.Group) })
	return list, nil
}

// DeletedEpoch implements store.Groups.
func (s *Store) DeletedEpoch(ctx context.Context) (uint64, error) {
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.mu.RUnlock()
	return s.deleted, nil
}

func cloneState(s store.GroupState) store.GroupState {
	s.Settings = slices.Clone(s.Settings)
	return s
}

// checkUnit panics where the caller breaks a duty.
func checkUnit(u *store.Unit) {
	for i := range u.Appends {
		checkAppend(&u.Appends[i])
		checkExpect(&u.Appends[i])
	}
	for i := range u.Groups {
		checkChange(&u.Groups[i])
	}
	for i := range u.Delays {
		checkDelay(&u.Delays[i])
	}
	for _, up := range u.Cancels {
		if up.Topic == "" || up.ID == "" {
			misuse("cancel of id %q in topic %q: a name is empty", up.ID, up.Topic)
		}
	}
	for i := range u.Patterns {
		checkPattern(&u.Patterns[i])
	}
	for i := range u.Settings {
		checkSetting(&u.Settings[i])
	}
	for i := range u.Notes {
		checkNote(&u.Notes[i])
	}
	for i := range u.Topics {
		checkTopicChange(&u.Topics[i])
	}
	if u.Sequence != nil {
		checkSequence(u)
	}
	if u.Producer != nil {
		checkProducer(u.Producer)
	}
}

func checkChange(ch *store.GroupChange) {
	if ch.Topic == "" || ch.Group == "" {
		misuse("change of group %q in topic %q: a name is empty", ch.Group, ch.Topic)
	}
	if ch.Delete && (ch.Create || ch.Reset || len(ch.Parts) > 0) {
		misuse("change of group %q in topic %q: Delete, and Create %v, Reset %v, %d parts",
			ch.Group, ch.Topic, ch.Create, ch.Reset, len(ch.Parts))
	}
	if len(ch.State.Settings) > 0 && !json.Valid(ch.State.Settings) {
		misuse("change of group %q in topic %q: settings %q are not JSON", ch.Group, ch.Topic, ch.State.Settings)
	}
	seen := make(map[partName]bool, len(ch.Parts))
	for _, p := range ch.Parts {
		name := partName{p.Kind, p.Offset}
		if seen[name] {
			misuse("change of group %q in topic %q: part %d of kind %d is in it twice", ch.Group, ch.Topic, p.Offset, p.Kind)
		}
		seen[name] = true
		if len(p.Value) > store.MaxPartBytes {
			misuse("change of group %q in topic %q: part %d of kind %d has %d bytes", ch.Group, ch.Topic, p.Offset, p.Kind, len(p.Value))
		}
	}
}

func checkAppend(a *store.Append) {
	id := a.ID
	if a.NewID {
		if id = string(a.Record.ID()); len(id) != len(layout.IDRoom) {
			misuse("append to topic %q: the record has no room for an id: %.60q", a.Topic, a.Record)
		}
	}
	checkRecord("append", a.Topic, id, a.Record)
	checkLinks(a)
}

// checkRecord is about an event, which what it is part of names.
func checkRecord(what, topic, id string, r eventhub.Record) {
	if topic == "" {
		misuse("%s of id %q: the topic is empty", what, id)
	}
	if id == "" {
		misuse("%s to topic %q: the id is empty", what, topic)
	}
	if in := r.ID(); !bytes.Equal(in, []byte(id)) {
		misuse("%s to topic %q: the id is %q, in the record it is %q: %.60q", what, topic, id, in, r)
	}
	if !json.Valid(r) {
		misuse("%s to topic %q of id %q: the record is not JSON: %.60q", what, topic, id, r)
	}
}

func misuse(format string, args ...any) {
	panic("store/memory: misuse: " + fmt.Sprintf(format, args...))
}
