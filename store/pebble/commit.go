package pebble

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"eventhub/internal/eventid"
	"eventhub/internal/record/layout"
	"eventhub/store"

	pdb "github.com/cockroachdb/pebble/v2"
)

const (
	// maxCommitTime is the largest time that a record has room for.
	maxCommitTime = 9_999_999_999_999

	// How many offsets of a topic an unsynced commit reserves at once: reserveFirst the
	// first time since Open, then twice as many each time up to reserveAhead. So there is
	// one fsync in so many unsynced events, and a crash skips at most reserveFirst
	// offsets or about as many as were used since Open, and never more than reserveAhead.
	reserveFirst = 1 << 10
	reserveAhead = 1 << 16

	// A batch keeps its memory from commit to commit up to this size.
	batchStartBytes  = 64 << 10
	batchRetainBytes = 8 << 20
)

// commit is the working state of Commit, reused from one to the next.
//
// A commit runs in this order:
//
//  1. Look up the ids that callers gave, in one sorted pass, and the newest events of the
//     keys of which somebody expects something, in another one.
//  2. For each unit check everything that can refuse it; then, and only then,
//     write its parts to the batch. So a refused unit leaves nothing to undo. What became
//     of the units with numbers of producers is written after all of them.
//  3. Reserve offsets where the commit is unsynced, and numbers for delayed events.
//  4. Leave the group states that are being replaced to readers, shut the gates,
//     and apply the batch: write-ahead log, memtable, fsync.
//  5. Publish: topics, heads, groups, delayed events, patterns, settings and notes.
//
// Offsets and times move in the topics themselves in step 2: a commit that fails
// after that breaks the store, so there is nobody left to see them.
type commit struct {
	s      *Store
	batch  *pdb.Batch
	serial uint64
	now    int64 // epoch milliseconds

	created map[string]*topic // topics that this commit creates
	touched []*topic          // topics that it appends to
	latest  *topic            // the topic found last: events of one topic come in runs

	// groups as the units so far leave them, and as they were before.
	groups   map[groupKey]knownGroup
	replaced map[groupKey]knownGroup

	// parts of groups as the units so far change them.
	parts map[groupKey]partChanges

	changed  []*topic // topics of which it removes something
	indexes  []*topic // topics of which it changes the index
	removals []newRemoval
	segments []place // those that it has written, by their last offsets

	deletedEpoch uint64 // the highest of the groups that they delete

	// Of the unit that is being checked.
	unitGroups map[groupKey]knownGroup
	unitTopics []string

	given    givenIDs
	delayed  delayedIDs
	expected expected

	indexed   []indexedID // events whose ids are still to be written
	keyed     []indexed   // likewise, their keys
	producing []*producer // of whose units it has results to write
	// What was written, so that its gate has to be shut.
	delaysChanged, patternsChanged, settingsChanged, notesChanged bool
	producersChanged                                              bool // opened or removed
}

func (c *commit) init(s *Store) {
	*c = commit{
		s:          s,
		batch:      s.newBatch(),
		created:    make(map[string]*topic),
		groups:     make(map[groupKey]knownGroup),
		replaced:   make(map[groupKey]knownGroup),
		parts:      make(map[groupKey]partChanges),
		unitGroups: make(map[groupKey]knownGroup),
		given:      givenIDs{index: make(map[givenID]int), recent: recentIDs{most: windowMost}},
		delayed:    delayedIDs{index: make(map[givenID]int)},
		expected:   expected{index: make(map[keyName]int)},
	}
}

// Commit implements store.Log. A commit with sync and no units makes everything
// committed before durable.
func (s *Store) Commit(ctx context.Context, units []*store.Unit, sync bool) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	s.committing.Lock()
	defer s.committing.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	err := s.settle()
	if err == nil {
		err = s.faults.err()
	}
	if err == nil {
		if err = s.commit.run(units, sync); err != nil {
			s.faults.fail(err)
			err = s.faults.err()
		}
	}
	if err != nil {
		return fmt.Errorf("store/pebble: commit: %w", err)
	}
	return nil
}

func (c *commit) run(units []*store.Unit, sync bool) error {
	if err := c.build(units); err != nil {
		return err
	}
	return c.finish(sync)
}

// finish is steps 3 to 5.
func (c *commit) finish(sync bool) error {
	sync = c.reserveDelays(c.reserve(sync || c.s.shared != nil))
	if len(c.indexes) > 0 {
		c.s.indexing.Lock()
		defer c.s.indexing.Unlock()
	}
	c.hide()
	if err := c.s.apply(c.batch, sync); err != nil {
		return err
	}
	c.publish()
	return nil
}

// build is steps 1 and 2: it fills the batch.
func (c *commit) build(units []*store.Unit) error {
	c.begin(units)
	if err := c.given.lookUp(c, units); err != nil {
		return err
	}
	if err := c.delayed.lookUp(c, units); err != nil {
		return err
	}
	if err := c.expected.lookUp(c, units); err != nil {
		return err
	}
	for _, u := range units {
		if err := c.add(u); err != nil {
			return err
		}
	}
	if err := c.writeResults(); err != nil {
		return err
	}
	c.writeIndexes()
	c.writeGroups()
	c.writeDeletedEpoch()
	if err := c.writeParts(); err != nil {
		return err
	}
	c.writeNextTopic()
	c.writeMarks()
	return c.voidSegments()
}

// add puts a unit into the batch, or refuses it.
func (c *commit) add(u *store.Unit) error {
	if u.Sequence != nil {
		if done, err := c.sequence(u); done || err != nil {
			return err
		}
		defer c.used(u)
		if u.Sequence.Refusal != nil {
			u.Err = store.ErrRefused
			return nil
		}
	}
	refusal, err := c.check(u)
	if err != nil {
		return err
	}
	if u.Err = refusal; refusal == nil {
		c.write(u)
	}
	return nil
}

func (c *commit) begin(units []*store.Unit) {
	c.batch.Reset()
	c.serial++
	c.now = min(max(c.s.options.Now().UnixMilli(), c.s.clock), maxCommitTime)
	clear(c.created)
	clear(c.groups)
	clear(c.replaced)
	clear(c.parts)
	clear(c.indexed)
	clear(c.keyed)
	c.indexed, c.keyed = c.indexed[:0], c.keyed[:0]
	c.touched = c.touched[:0]
	c.changed, c.removals, c.segments = c.changed[:0], nil, c.segments[:0]
	c.indexes = c.indexes[:0]
	c.latest = nil
	c.deletedEpoch = 0
	c.given.reset()
	c.delayed.reset()
	c.expected.reset()
	c.delaysChanged, c.patternsChanged, c.settingsChanged, c.notesChanged = false, false, false, false
	c.producersChanged = false
	for _, u := range units {
		u.Err, u.Created = nil, nil
		for i := range u.Appends {
			a := &u.Appends[i]
			if a.NewID {
				a.ID = ""
			}
			a.Offset, a.CommitTime, a.Duplicate = 0, 0, false
			c.expected.any = c.expected.any || !a.Expect.IsZero()
		}
		for i := range u.Delays {
			p := &u.Delays[i]
			p.Seq, p.Offset, p.Duplicate = 0, 0, false
		}
		if u.Sequence != nil {
			u.Sequence.Repeated, u.Sequence.First = false, nil
		}
	}
}

// topic returns the topic as the units so far leave it, or nil.
func (c *commit) topic(name string) (*topic, error) {
	if c.latest != nil && c.latest.name == name {
		return c.latest, nil
	}
	t := c.created[name]
	if t == nil {
		var err error
		if t, err = c.s.published(name); err != nil {
			return nil, err
		}
	}
	if t != nil {
		c.latest = t
	}
	return t, nil
}

// write puts the parts of a checked unit into the batch.
func (c *commit) write(u *store.Unit) {
	for _, name := range c.unitTopics {
		t := c.create(name)
		u.Created = append(u.Created, store.TopicLife{Topic: t.name, Life: t.life()})
	}
	for key, g := range c.unitGroups {
		c.groups[key] = g
	}
	for i := range u.Groups {
		ch := &u.Groups[i]
		c.noteParts(ch)
		if ch.Delete {
			c.deletedEpoch = max(c.deletedEpoch, ch.State.Epoch)
		}
	}
	for i := range u.Cancels {
		c.cancel(&u.Cancels[i])
	}
	for i := range u.Appends {
		c.append(&u.Appends[i])
	}
	for i := range u.Delays {
		c.delay(&u.Delays[i])
	}
	for i := range u.Patterns {
		c.changePattern(&u.Patterns[i])
	}
	for i := range u.Settings {
		c.changeSetting(&u.Settings[i])
	}
	for i := range u.Notes {
		c.changeNote(&u.Notes[i])
	}
	for i := range u.Topics {
		c.remove(&u.Topics[i])
	}
}

func (c *commit) create(name string) *topic {
	c.beginEra()
	t := &topic{id: c.s.nextTopic, name: strings.Clone(name)}
	t.loaded.Store(true)
	floor, ok := c.s.deletedNames[name]
	if ok {
		_ = c.batch.Delete(appendDeletedKey(nil, name), nil)
	}
	t.last = max(floor, c.s.baseFloor)
	t.floor = t.last
	c.s.nextTopic++
	c.created[t.name] = t
	c.writeTopic(t)
	return t
}

func (c *commit) append(a *store.Append) {
	t := c.latest
	if t == nil || t.name != a.Topic {
		t, _ = c.topic(a.Topic) // found and loaded by check
	}
	var first *firstEvent
	if !a.NewID {
		first = c.given.find(a.Topic, a.ID)
	}
	if first != nil && first.offset != 0 {
		a.Offset, a.CommitTime, a.Duplicate = first.offset, first.time, true
		if t.pending().hides(a.Offset) {
			a.CommitTime = 0
		}
		return
	}
	if t.touched != c.serial {
		t.touched = c.serial
		c.touched = append(c.touched, t)
	}
	switch {
	case a.KeepTime == 0:
		t.lastTime = max(t.lastTime, c.now)
	case a.KeepTime >= t.lastTime && a.KeepTime <= c.now:
		t.lastTime = a.KeepTime
	default:
		t.lastTime = max(t.lastTime, c.now)
		a.Record = layout.WithTS(a.Record, a.KeepTime)
	}
	t.last++
	if a.KeepOffset <= store.MaxKeepOffset {
		t.last = max(t.last, a.KeepOffset)
	}
	t.end = t.last
	a.Offset, a.CommitTime = t.last, t.lastTime
	if first != nil {
		first.offset, first.time = a.Offset, a.CommitTime
	}
	layout.SetCommitTime(a.Record, a.CommitTime)
	at := place{t.id, a.Offset}
	switch {
	case a.NewID && c.makeID(at, a):
		f := formOf(a.ID)
		c.given.recent.note(&f)
		c.indexed = append(c.indexed, indexedID{f, at})
	case !a.NewID && first.named != at:
		c.indexed = append(c.indexed, indexedID{first.form, at})
	}
	c.writeEvent(t, a)
	c.count(t, len(a.Record))
}

// makeID reports whether the id has to be indexed: the id does not name the place.
func (c *commit) makeID(at place, a *store.Append) (isIndexed bool) {
	if a.ID = c.s.ids.make(at, a.CommitTime); a.ID == "" {
		a.ID, isIndexed = eventid.New(), true
	}
	layout.SetID(a.Record, a.ID)
	return isIndexed
}

// writeEvent writes straight into the batch's memory, which avoids a copy of
// each key and record.
func (c *commit) writeEvent(t *topic, a *store.Append) {
	op := c.batch.SetDeferred(eventKeyBytes, len(a.Record))
	appendEventKey(op.Key[:0], t.id, a.Offset)
	copy(op.Value, a.Record)

	if a.Key != "" && t.keys.built != store.NotIndexed {
		c.keyed = append(c.keyed, indexed{a.Key, t.id, a.Offset})
		if c.expected.any {
			c.expected.note(a)
		}
	}
	for _, id := range a.CausedBy {
		c.writeLink(tagEffect, id, t, a.Offset)
	}
	if a.Correlation != "" {
		c.writeLink(tagCorrelated, a.Correlation, t, a.Offset)
	}
}

// indexedID is an event whose id is to be written.
type indexedID struct {
	form idForm
	at   place
}

// indexed is an event whose key is to be written.
type indexed struct {
	text   string
	topic  uint32
	offset uint64
}

// writeIndexes writes the ids and keys of all events after their records and in order:
// a memtable finds the place of an entry fastest near the one before it.
func (c *commit) writeIndexes() {
	slices.SortFunc(c.indexed, func(a, b indexedID) int { return compareForms(&a.form, &b.form) })
	var value [binary.MaxVarintLen64]byte
	for i := range c.indexed {
		e := &c.indexed[i]
		n := binary.PutUvarint(value[:], e.at.offset)
		op := c.batch.SetDeferred(e.form.keyBytes(), n)
		e.form.append(op.Key[:0], e.at.topic)
		copy(op.Value, value[:n])
	}
	slices.SortFunc(c.keyed, func(a, b indexed) int {
		return cmp.Or(cmp.Compare(a.topic, b.topic), strings.Compare(a.text, b.text), cmp.Compare(b.offset, a.offset))
	})
	for _, e := range c.keyed {
		op := c.batch.SetDeferred(1+topicIDBytes+len(e.text)+strings.Count(e.text, "\x00")+2+offsetBytes, 0)
		appendKeyKey(op.Key[:0], e.topic, e.text, e.offset)
		c.s.recorder.add(op.Key)
	}
}

func (c *commit) writeLink(tag byte, name string, t *topic, offset uint64) {
	op := c.batch.SetDeferred(1+len(name)+1+linkTailBytes, 0)
	appendLinkKey(op.Key[:0], tag, name, t.id, offset)
}

func (c *commit) writeTopic(t *topic) {
	op := c.batch.SetDeferred(1+len(t.name), topicValBytes)
	appendTopicKey(op.Key[:0], t.name)
	appendTopicValue(op.Value[:0], t.id, t.floor, t.keys.built)
}

func (c *commit) writeNextTopic() {
	if len(c.created) == 0 {
		return
	}
	op := c.batch.SetDeferred(len(metaNextTopic), topicIDBytes)
	copy(op.Key, metaNextTopic)
	binary.BigEndian.PutUint32(op.Value, c.s.nextTopic)
}

// reserve keeps the promise that an offset is never given twice where a crash
// may take events away that readers have seen: those of unsynced commits. Their
// offsets have to be at or below the topic's floor on disk. Where they are not,
// the floor moves well above them in this same batch, and the commit is synced
// before anyone sees it. After a crash the topic goes on above its floor.
func (c *commit) reserve(sync bool) bool {
	if sync {
		return true
	}
	for _, t := range c.touched {
		if t.last > t.floor {
			t.ahead = min(max(2*t.ahead, reserveFirst), reserveAhead)
			t.floor = t.last + t.ahead
			c.writeTopic(t)
			sync = true
		}
	}
	return sync
}

// lowerFloors gives back at Close what is reserved and not used: when all is
// durable the log itself says which offsets were given.
func (s *Store) lowerFloors() error {
	c := &s.commit
	c.batch.Reset()
	for _, t := range s.topics.byName {
		if t.loaded.Load() && t.floor > t.last {
			t.floor = t.last
			c.writeTopic(t)
		}
	}
	if c.batch.Empty() || s.faults.err() != nil {
		return nil
	}
	return s.apply(c.batch, true)
}

// hide keeps readers from what the batch changes until publish.
func (c *commit) hide() {
	for _, t := range c.indexes {
		t.keys.hide()
	}
	c.s.groups.hide(c.replaced)
	if c.delaysChanged {
		c.s.delays.set(true)
	}
	if c.patternsChanged {
		c.s.patterns.set(true)
	}
	if c.settingsChanged {
		c.s.settings.set(true)
	}
	if c.notesChanged {
		c.s.notes.set(true)
	}
}

func (c *commit) publish() {
	for _, t := range c.indexes {
		t.keys.publish() // before the sweep gets what is removed
	}
	for _, t := range c.touched {
		t.raise(t.last, t.lastTime)
	}
	for _, t := range c.changed {
		t.removed.Store(t.removing)
		t.removing = nil
	}
	for _, r := range c.removals {
		c.s.sweeper.removals.add(r.id, r.trims, r.erased)
	}
	if len(c.created) > 0 {
		for name := range c.created {
			delete(c.s.deletedNames, name)
		}
		c.s.topics.publish(c.created, c.s.eras)
	}
	c.s.groups.publish()
	c.s.deletedEpoch.Store(max(c.s.deletedEpoch.Load(), c.deletedEpoch))
	if c.delaysChanged {
		c.s.delays.set(false)
	}
	if c.patternsChanged {
		c.s.patterns.set(false)
	}
	if c.settingsChanged {
		c.s.settings.set(false)
	}
	if c.notesChanged {
		c.s.notes.set(false)
	}
}
