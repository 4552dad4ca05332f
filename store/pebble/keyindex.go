package pebble

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"eventhub/internal/record/layout"
	"eventhub/store"

	pdb "github.com/cockroachdb/pebble/v2"
)

// # The key index of a topic
//
// Whether a topic has the key index is in its row ('t'): no, building, or ready. Where it is
// being built commits write the entries of what they append, and IndexKeys goes through the log
// from the horizon to where the topic ended when that began:
//
//	'b' topic id (4) → start, next (uvarints)    the events up to start are indexed here, those below
//	                                             next are
//
// A step reads a run of the log, sorts what it finds and writes that: many entries as tables, which
// Pebble takes as they are (keytables.go), few ones in small batches. Pebble shows batches in their
// order, so a commit waits for the batch in front of it; and a memtable finds the place of an entry
// fastest near the one before it. The last batch says where the next step begins. Entries that a
// crash has left beyond that are written again.
//
// An event that is removed meanwhile loses its entry like any other: the sweep and the steps
// exclude each other, so an event that a step finds is swept after the entry was written.
//
// To drop the index is one range deletion, in the batch of the commit that says so. No pass of
// the compaction is under way then, because one that has begun takes what has no entry for dead. What
// earlier passes did holds for the next index too: it is made of what they left.
//
// # Readers
//
// A reader looks at whether the index is ready before it opens its iterator and again after
// that. A commit that drops the index says so before Pebble shows its batch, and it says so with
// a number that no index of the topic has twice.
const tagKeys = 'b'

// indexSizes say how much IndexKeys does at once. Tests make them small.
type indexSizes struct {
	step   int           // bytes of the log that a step reads
	keys   int           // entries that it writes
	least  int           // events that it reads where somebody waits for its end
	memory int           // bytes that it sorts
	batch  int           // entries of a batch
	tables int           // entries from which on they are written as tables
	table  int           // bytes of the keys of a table
	looks  int           // events, or entries written as tables, after which a step pauses, and looks at whether it is still wanted
	held   time.Duration // pauses after which it reads on with another iterator
}

// A step has as many entries as its memory has room for: each step has all keys once more, and Pebble
// merges what the steps leave. One of this size takes some seconds, so it ends early where a sweep waits.
var keyIndexSizes = indexSizes{step: 1 << 30, keys: 4 << 20, least: 256 << 10, memory: 64 << 20, batch: 2 << 10, tables: 16 << 10, table: 64 << 20, looks: 4096, held: 5 * time.Second}

// What an entry and a key take while a step sorts them, besides the text of the key.
const (
	sortedEntryBytes = 8
	sortedKeyBytes   = 100
)

// keyIndex is what memory has of the index of a topic.
type keyIndex struct {
	// built is how far it is as the units so far leave it. Store.committing guards it.
	built store.IndexStatus
	// as is what reads show of it.
	as atomic.Uint32
	// ready names the index if it may be read, and is 0 otherwise; changes counts what began
	// and dropped one.
	ready, changes atomic.Uint64
}

func (k *keyIndex) status() store.IndexStatus { return store.IndexStatus(k.as.Load()) }

// load takes what the row of the topic says.
func (k *keyIndex) load(status store.IndexStatus) {
	k.built = status
	k.as.Store(uint32(status))
	if status == store.Indexed {
		k.ready.Store(k.changes.Add(1))
	}
}

// look is the first look, before an iterator is opened.
func (k *keyIndex) look() (index uint64, err error) {
	if index = k.ready.Load(); index == 0 {
		return 0, store.ErrNotIndexed
	}
	return index, nil
}

// again is the second look, after that.
func (k *keyIndex) again(index uint64) error {
	if k.ready.Load() != index {
		return store.ErrNotIndexed
	}
	return nil
}

// hide keeps readers from an index that a commit changes.
func (k *keyIndex) hide() {
	k.changes.Add(1)
	k.ready.Store(0)
}

// publish shows what a commit has made of it.
func (k *keyIndex) publish() { k.as.Store(uint32(k.built)) }

// hasKeys reports whether events of a topic may have entries.
func (s *Store) hasKeys(id uint32) bool {
	t := s.topics.numbered(id)
	return t == nil || t.keys.status() != store.NotIndexed
}

// mayDrop refuses a unit that drops an index in the middle of a pass of the compaction.
func (c *commit) mayDrop(t *topic) (refusal, err error) {
	pass, _, err := c.s.loadCompaction(t.id)
	if err == nil && pass.next != 0 {
		refusal = fmt.Errorf("topic %q: %w", t.name, store.ErrCompacting)
	}
	return refusal, err
}

// changeIndex does what a TopicChange says of the index.
func (c *commit) changeIndex(t *topic, ch store.IndexChange) {
	k := &t.keys
	switch {
	case ch == store.StartIndex && k.built == store.NotIndexed:
		k.built = store.Indexing
		_ = c.batch.Set(appendIndexKey(nil, t.id), indexRow{start: t.last, next: t.pending().from()}.append(nil), nil) // a batch takes what fits in memory
	case ch == store.DropIndex && k.built != store.NotIndexed:
		k.built = store.NotIndexed
		c.keyed = slices.DeleteFunc(c.keyed, func(e indexed) bool { return e.topic == t.id })
		bounds := numberBounds(tagKey, t.id)
		_ = c.batch.DeleteRange(bounds.LowerBound, bounds.UpperBound, nil)
		_ = c.batch.Delete(appendIndexKey(nil, t.id), nil)
	default:
		return
	}
	if !slices.Contains(c.indexes, t) {
		c.indexes = append(c.indexes, t)
	}
	c.writeTopic(t)
}

func appendIndexKey(dst []byte, id uint32) []byte {
	return binary.BigEndian.AppendUint32(append(dst, tagKeys), id)
}

// indexRow says how far an index is that is being built.
type indexRow struct{ start, next uint64 }

func (r indexRow) append(dst []byte) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(dst, r.start), r.next)
}

func (s *Store) loadIndexRow(id uint32) (r indexRow, err error) {
	row, err := s.get(appendIndexKey(nil, id))
	if err != nil {
		return r, err
	}
	start, n := binary.Uvarint(row)
	next, m := binary.Uvarint(row[max(n, 0):])
	if n <= 0 || m <= 0 {
		return r, fmt.Errorf("the row of an index that is being built reads %x", row)
	}
	return indexRow{start, next}, nil
}

// progress says how far it is in a topic that begins at a horizon.
func (r indexRow) progress(horizon uint64) store.IndexProgress {
	from := min(max(horizon, 1), r.start+1)
	return store.IndexProgress{Done: max(r.next, from) - from, Total: r.start + 1 - from}
}

// IndexKeys implements store.Indexes.
func (s *Store) IndexKeys(ctx context.Context, topic string, pause store.Pause) (p store.IndexProgress, done bool, err error) {
	if err := s.enter(ctx); err != nil {
		return p, false, err
	}
	defer s.leave()
	if p, done, err = s.indexSome(ctx, topic, pause); err != nil {
		return p, false, fmt.Errorf("store/pebble: index the keys of topic %q: %w", topic, err)
	}
	return p, done, nil
}

// indexSome is one step.
func (s *Store) indexSome(ctx context.Context, topic string, pause store.Pause) (p store.IndexProgress, done bool, err error) {
	s.sweeper.stepping.Lock()
	defer s.sweeper.stepping.Unlock()
	t, err := s.published(topic)
	if t == nil || err != nil || t.keys.status() != store.Indexing {
		return p, true, err
	}
	if err := s.faults.err(); err != nil {
		return p, false, err
	}
	if s.keySorter == nil {
		s.keySorter = &keySorter{keys: make(map[string]int32)}
	}
	run := indexRun{s: s, topic: t, changes: t.keys.changes.Load(), isOpen: true, pause: pause, keySorter: s.keySorter}
	run.reset()
	if run.row, err = s.loadIndexRow(t.id); err != nil {
		return p, false, err
	}
	if err = run.read(ctx); err == nil {
		err = run.write(ctx)
	}
	if err == nil && run.isOpen && run.row.next > run.row.start {
		done, err = true, run.finish()
	}
	if done = done || !run.isOpen; done {
		s.keySorter = nil
	}
	return run.row.progress(t.removed.Load().from()), done, err
}

// indexRun is a step under way.
type indexRun struct {
	s       *Store
	topic   *topic
	changes uint64 // of the index, when it began
	row     indexRow
	isOpen  bool // the index was not changed since it began
	isDone  bool // nothing is left but to say so
	isEnded bool // it is to read no more
	pause   store.Pause
	paused  time.Duration
	*keySorter
}

// breathe is called after each part of a step, which has read up to an offset.
func (r *indexRun) breathe(ctx context.Context, next uint64) error {
	if r.pause != nil && !r.s.sweeper.stepping.isAwaited() {
		began := time.Now()
		r.isEnded = r.pause(ctx, indexRow{r.row.start, next}.progress(r.topic.removed.Load().from())) || r.isEnded
		r.paused += time.Since(began)
	}
	return ctx.Err()
}

// keySorter sorts entries. A step leaves it to the next one, because most of the work is to make it.
type keySorter struct {
	from    uint64           // the first offset
	keys    map[string]int32 // the key of each list
	lists   []keyList
	entries []indexEntry
	memory  int // bytes of all three, about
}

func (k *keySorter) reset() {
	clear(k.keys)
	clear(k.lists)
	k.lists, k.entries, k.memory = k.lists[:0], k.entries[:0], 0
}

// keyList are the entries of a key: where the newest one is.
type keyList struct {
	key  string
	last int32
}

// indexEntry is an entry of the index: its offset, as counted from the first one of the step, and where
// the next older one of its key is, -1 for none.
type indexEntry struct {
	offset uint32
	before int32
}

// read reads on in the log.
func (r *indexRun) read(ctx context.Context) (err error) {
	gone := r.topic.removed.Load() // what is removed from here on is swept after the step
	from := max(r.row.next, gone.from())
	if r.row.next = r.row.start + 1; from > r.row.start {
		return nil
	}
	events, err := r.s.events(r.topic, from, r.row.start)
	if err != nil {
		return err
	}
	defer func() {
		if events != nil {
			closeInto(events, &err)
		}
	}()
	r.s.openedHook()
	read, sizes := 0, &r.s.indexSizes
	r.from = from
	seen, held := 0, r.paused
	for valid := events.First(); valid; valid = events.Next() {
		offset := eventOffset(events.Key())
		if read >= sizes.step || len(r.entries) >= sizes.keys || r.memory >= sizes.memory || offset-from > math.MaxUint32 ||
			seen >= sizes.least && (r.isEnded || r.s.sweeper.stepping.isAwaited()) {
			r.row.next = offset
			break
		}
		if seen++; seen%sizes.looks == 0 {
			if err := r.breathe(ctx, offset); err != nil {
				return err
			}
			if r.paused-held >= sizes.held {
				held = r.paused
				if events, err = r.again(events, offset); err != nil {
					return err
				}
				if !events.First() {
					break
				}
				offset = eventOffset(events.Key())
			}
		}
		if gone.hides(offset) {
			continue
		}
		record, err := events.ValueAndErr()
		if err != nil {
			return err
		}
		read += len(record)
		if key := layout.Key(record); len(key) > 0 {
			r.add(key, offset)
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	slices.SortFunc(r.lists, func(a, b keyList) int { return strings.Compare(a.key, b.key) })
	return events.Error()
}

// again goes on with another iterator from an offset on. What Pebble replaces on the disk, and the memtables that it has written, stay
// as long as an iterator is open that is older.
func (r *indexRun) again(events *pdb.Iterator, from uint64) (*pdb.Iterator, error) {
	if err := errors.Join(events.Error(), events.Close()); err != nil {
		return nil, err
	}
	return r.s.events(r.topic, from, r.row.start)
}

// add adds an entry, which is newer than those before.
func (k *keySorter) add(key []byte, offset uint64) {
	e := indexEntry{uint32(offset - k.from), -1}
	i, ok := k.keys[string(key)]
	if ok {
		e.before = k.lists[i].last
		k.lists[i].last = int32(len(k.entries))
	} else {
		text := string(key)
		k.memory += sortedKeyBytes + len(text)
		k.keys[text] = int32(len(k.lists))
		k.lists = append(k.lists, keyList{text, int32(len(k.entries))})
	}
	k.entries = append(k.entries, e)
	k.memory += sortedEntryBytes
}

// sorted gives the keys of the entries in the order of the index. Each is valid until the next one.
func (r *indexRun) sorted() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		var key []byte
		for _, list := range r.lists {
			key = appendKeyPrefix(key[:0], r.topic.id, list.key)
			prefix := len(key)
			for at := list.last; at >= 0; at = r.entries[at].before {
				key = binary.BigEndian.AppendUint64(key[:prefix], ^(r.from + uint64(r.entries[at].offset)))
				if !yield(key) {
					return
				}
			}
		}
	}
}

// write writes the entries in the order of the index, and after the last of them where the next step
// begins.
func (r *indexRun) write(ctx context.Context) (err error) {
	if len(r.entries) >= r.s.indexSizes.tables && r.s.takesTables() {
		err = r.writeTables(ctx)
	} else {
		err = r.writeBatches(ctx)
	}
	if err != nil || !r.isOpen {
		return err
	}
	batch := r.s.db.NewBatch()
	defer batch.Close()
	_ = batch.Set(appendIndexKey(nil, r.topic.id), r.row.append(nil), nil) // a batch takes what fits in memory
	return r.apply(batch)
}

func (r *indexRun) writeBatches(ctx context.Context) error {
	batch := r.s.db.NewBatch()
	defer batch.Close()
	for key := range r.sorted() {
		copy(batch.SetDeferred(len(key), 0).Key, key) // a batch takes what fits in memory
		if int(batch.Count()) < r.s.indexSizes.batch {
			continue
		}
		if err := r.apply(batch); err != nil || !r.isOpen {
			return err
		}
		if err := r.breathe(ctx, r.row.next); err != nil {
			return err
		}
		batch.Reset()
	}
	if batch.Empty() {
		return nil
	}
	return r.apply(batch)
}

// apply applies a batch, unless a commit has changed the index.
func (r *indexRun) apply(batch *pdb.Batch) error {
	s := r.s
	if s.options.sweeping != nil && !r.isDone {
		s.options.sweeping(batch)
	}
	s.indexing.Lock()
	defer s.indexing.Unlock()
	if r.look(); !r.isOpen {
		return nil
	}
	return s.applyLater(batch)
}

// look looks at whether a commit has changed the index. Store.indexing is held.
func (r *indexRun) look() {
	r.isOpen = r.topic.keys.changes.Load() == r.changes && r.s.topics.get(r.topic.name) == r.topic
}

// finish says that the index is ready.
func (r *indexRun) finish() error {
	s, t := r.s, r.topic
	r.isDone = true
	s.committing.Lock()
	defer s.committing.Unlock()
	batch := s.db.NewBatch()
	defer batch.Close()
	_ = batch.Set(appendTopicKey(nil, t.name), appendTopicValue(nil, t.id, t.floor, store.Indexed), nil) // a batch takes what fits in memory
	_ = batch.Delete(appendIndexKey(nil, t.id), nil)
	if err := r.apply(batch); err != nil || !r.isOpen {
		return err
	}
	t.keys.built = store.Indexed
	t.keys.ready.Store(t.keys.changes.Add(1))
	t.keys.publish()
	return nil
}

// TopicsIndexed implements store.Indexes.
func (s *Store) TopicsIndexed(ctx context.Context, status store.IndexStatus) ([]string, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	return s.topics.indexed(status), nil
}

func (tt *topicTable) indexed(status store.IndexStatus) (names []string) {
	tt.mu.RLock()
	defer tt.mu.RUnlock()
	for name, t := range tt.byName {
		if t.keys.status() == status {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
