package pebble

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"

	"eventhub"
	"eventhub/store"

	pdb "github.com/cockroachdb/pebble/v2"
)

// topic is what the store keeps in memory of one topic.
//
// All names are read at Open; where a topic ends is read when it is first
// touched, so that a store with very many topics opens fast. The first touch by
// a commit comes before the commit writes, so whatever load finds in Pebble is
// published already.
type topic struct {
	id   uint32
	name string

	// head is the durable head, what reads are bounded by: Pebble shows a batch
	// before it is synced, the head moves after.
	head     atomic.Uint64
	headTime atomic.Int64 // the commit time of the head
	// removed says what reads do not show although it may be there; nil hides nothing.
	removed atomic.Pointer[removed]
	// voids are what the compaction has removed from segments.
	voids voids
	keys  keyIndex

	loading sync.Mutex
	loaded  atomic.Bool

	// Of the committer, once loaded. No offset up to last is given again; floor
	// is that promise as it is on disk; end is the last event's, and lastTime its commit time.
	last     uint64
	end      uint64
	lastTime int64
	floor    uint64
	ahead    uint64      // how many offsets were reserved the last time; 0 before the first
	removing *removed    // what removed is to be after the commit
	measured atomic.Bool // somebody asks how much the topic has: its segments are kept
	tally    segment     // what was appended since the last segment; first counts where there is any
	// touched is the serial of the last commit that appended here.
	touched uint64
}

// life is the number that store.TopicInfo has: that in the topic's keys, which is
// never given twice.
func (t *topic) life() uint64 { return uint64(t.id) }

func (t *topic) info() store.TopicInfo {
	info := store.TopicInfo{Name: t.name, Head: t.head.Load(), Horizon: t.removed.Load().from(), Life: t.life()}
	info.LastTime = t.headTime.Load() // the head first: its time comes before it
	marks := t.removed.Load().compaction()
	info.Compacted, info.Tombstones = marks.compacted, marks.tombstones
	info.Index = t.keys.status()
	return info
}

// raise moves the durable head up to offset, whose commit time is given. Of two commits that
// are synced together the later one may come first.
func (t *topic) raise(offset uint64, time int64) {
	raise(&t.headTime, time)
	raise(&t.head, offset)
}

// raise moves a value up that others may be moving up too.
func raise[T uint64 | int64](a interface {
	Load() T
	CompareAndSwap(before, after T) bool
}, to T) {
	for now := a.Load(); now < to && !a.CompareAndSwap(now, to); now = a.Load() {
	}
}

// topicTable holds the published topics. A topic enters it when the commit that
// created it is durable. The committer alone adds to it.
type topicTable struct {
	mu     sync.RWMutex
	byName map[string]*topic
	byID   map[uint32]*topic
	lives  store.Lives
}

func (tt *topicTable) get(name string) *topic {
	tt.mu.RLock()
	defer tt.mu.RUnlock()
	return tt.byName[name]
}

// numbered returns the topic of that number, or nil where none is published.
func (tt *topicTable) numbered(id uint32) *topic {
	tt.mu.RLock()
	defer tt.mu.RUnlock()
	return tt.byID[id]
}

func (tt *topicTable) publish(topics map[string]*topic, eras []store.Era) {
	tt.mu.Lock()
	defer tt.mu.Unlock()
	for _, t := range topics {
		tt.add(t)
		tt.lives.Newest = max(tt.lives.Newest, t.life())
	}
	tt.lives.Eras = eras
}

func (tt *topicTable) add(t *topic) {
	tt.byName[t.name] = t
	tt.byID[t.id] = t
}

func (tt *topicTable) remove(t *topic) {
	tt.mu.Lock()
	defer tt.mu.Unlock()
	delete(tt.byName, t.name)
	delete(tt.byID, t.id)
}

func (tt *topicTable) count() int {
	tt.mu.RLock()
	defer tt.mu.RUnlock()
	return len(tt.byName)
}

// loadTopics reads all topics' names at Open, and the number of the next one.
func (s *Store) loadTopics(first *pdb.Batch) (err error) {
	s.topics.byName, s.topics.byID = make(map[string]*topic), make(map[uint32]*topic)
	if s.nextTopic, err = s.readNextTopic(); err != nil {
		return err
	}
	if err := s.loadEras(first); err != nil {
		return err
	}
	s.topics.lives = store.Lives{Newest: uint64(s.nextTopic) - 1, Eras: s.eras}
	iter, err := s.db.NewIter(&pdb.IterOptions{LowerBound: []byte{tagTopic}, UpperBound: []byte{tagTopic + 1}})
	if err != nil {
		return err
	}
	defer closeInto(iter, &err)
	for valid := iter.First(); valid; valid = iter.Next() {
		name := string(iter.Key()[1:])
		id, floor, index, err := decodeTopicValue(iter.Value())
		if err != nil {
			return fmt.Errorf("topic %q: %w", name, err)
		}
		if id >= s.nextTopic {
			return fmt.Errorf("topic %q has number %d; the next one would be %d", name, id, s.nextTopic)
		}
		t := &topic{id: id, name: name, floor: floor}
		t.keys.load(index)
		s.topics.add(t)
	}
	return iter.Error()
}

func (s *Store) readNextTopic() (uint32, error) {
	value, err := s.get(metaNextTopic)
	if value == nil || err != nil {
		return 1, err
	}
	if len(value) != topicIDBytes {
		return 0, fmt.Errorf("the number of the next topic reads %x", value)
	}
	return binary.BigEndian.Uint32(value), nil
}

// published returns the topic, loaded, or nil where there is none.
func (s *Store) published(name string) (*topic, error) {
	t := s.topics.get(name)
	if t == nil {
		return nil, nil
	}
	return t, s.load(t)
}

// load finds where the topic ends. Nobody waits here for a commit's fsync.
func (s *Store) load(t *topic) (err error) {
	if t.loaded.Load() {
		return nil
	}
	t.loading.Lock()
	defer t.loading.Unlock()
	if t.loaded.Load() {
		return nil
	}
	if err := s.findEnd(t); err != nil {
		return fmt.Errorf("store/pebble: find the end of topic %q: %w", t.name, err)
	}
	t.loaded.Store(true)
	return nil
}

func (s *Store) findEnd(t *topic) (err error) {
	m, err := s.loadMarks(t)
	if err != nil {
		return err
	}
	head, time := m.last, m.lastTime
	iter, err := s.events(t, m.last, eventhub.MaxOffset)
	if err != nil {
		return err
	}
	defer closeInto(iter, &err)
	if iter.Last() {
		record, err := iter.ValueAndErr()
		if err != nil {
			return err
		}
		head, time = eventOffset(iter.Key()), eventhub.Record(record).CommitTime()
	}
	if err := iter.Error(); err != nil {
		return err
	}
	t.end, t.lastTime, t.last = head, time, max(head, t.floor)
	t.headTime.Store(time)
	t.head.Store(head)
	return nil
}

// ListTopics implements store.Topics.
func (s *Store) ListTopics(ctx context.Context, after string, limit int) (topics []store.TopicInfo, err error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	iter, err := s.db.NewIter(&pdb.IterOptions{
		LowerBound: append(appendTopicKey(nil, after), 0),
		UpperBound: []byte{tagTopic + 1},
	})
	if err != nil {
		return nil, fmt.Errorf("store/pebble: list topics after %q: %w", after, err)
	}
	defer closeInto(iter, &err)
	for valid := iter.First(); valid && len(topics) < limit; valid = iter.Next() {
		t, err := s.published(string(iter.Key()[1:]))
		if err != nil {
			return nil, err
		}
		if t != nil {
			topics = append(topics, t.info())
		}
	}
	if err := iter.Error(); err != nil {
		return nil, fmt.Errorf("store/pebble: list topics after %q: %w", after, err)
	}
	return topics, nil
}

// Lives implements store.Topics.
func (s *Store) Lives(ctx context.Context) (store.Lives, error) {
	if err := s.enter(ctx); err != nil {
		return store.Lives{}, err
	}
	defer s.leave()
	s.topics.mu.RLock()
	defer s.topics.mu.RUnlock()
	return s.topics.lives, nil
}

// Topic implements store.Topics.
func (s *Store) Topic(ctx context.Context, name string) (store.TopicInfo, error) {
	if err := s.enter(ctx); err != nil {
		return store.TopicInfo{}, err
	}
	defer s.leave()
	t, err := s.published(name)
	if err != nil {
		return store.TopicInfo{}, err
	}
	if t == nil {
		return store.TopicInfo{}, fmt.Errorf("topic %q: %w", name, store.ErrNotFound)
	}
	return t.info(), nil
}
