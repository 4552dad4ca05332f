package pebble

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"

	"eventhub/internal/record/layout"
	"eventhub/store"

	pdb "github.com/cockroachdb/pebble/v2"
)

// # The state by key
//
// The entries of a key in the key index are next to each other with the newest first. So a
// key costs one seek to its newest event up to the offset, where it has newer ones, one look at
// that event, and one seek to the next key, however many events it has. Keys with few events
// are passed by steps, which cost a tenth of a seek.
//
// Both the index and the log are read as they were at one moment: the iterator over the log is a
// clone of the one over the index, made before the second look at what is removed. Otherwise
// compaction could remove an event in between for a newer one that the index did not have yet,
// and the key would have no value, or an older one.

const (
	// stateVisits is how many entries of the key index one call passes without adding an event.
	stateVisits = 4096
	// stateSteps is how many entries of a key are passed before a seek.
	stateSteps = 3
)

// State implements store.Log.
func (s *Store) State(ctx context.Context, q store.StateQuery, batch *store.Batch) (store.StatePage, error) {
	if err := s.enter(ctx); err != nil {
		return store.StatePage{}, err
	}
	defer s.leave()
	t, err := s.published(q.Topic)
	if t == nil || err != nil {
		batch.Horizon, batch.Compacted, batch.Tombstones = 0, 0, 0
		return store.StatePage{Done: true}, err
	}
	for before := len(batch.Items); ; {
		page, err := s.state(ctx, t, &q, batch)
		if err != nil {
			return store.StatePage{}, fmt.Errorf("store/pebble: state of topic %q after key %q: %w", q.Topic, q.After, err)
		}
		// The topic may have grown, and been compacted, since its head was looked at. Where it has
		// not grown, the mark counts events that are not durable yet, and neither is the mark:
		// Compact is called once it is.
		if q.At != 0 || page.At >= batch.Compacted || t.head.Load() == page.At {
			return page, nil
		}
		batch.Items = batch.Items[:before]
	}
}

// stateScan is one call of State.
type stateScan struct {
	topic  *topic
	view   view
	from   uint64 // the first offset that is kept
	at     uint64
	keys   *pdb.Iterator // over the key index
	log    *pdb.Iterator // over the log, as of the same moment
	batch  *store.Batch
	limit  int    // events that may still be added
	isNone bool   // nothing was added
	room   int    // bytes
	visits int    // that are left
	prefix []byte // of the entries of the key that was visited last
	added  []byte // of those of the key whose value was added last
	seek   []byte
	looked int // records that were read
}

func (s *Store) state(ctx context.Context, t *topic, q *store.StateQuery, batch *store.Batch) (page store.StatePage, err error) {
	c := stateScan{topic: t, view: t.look(), at: t.head.Load(), batch: batch, limit: q.Limit, isNone: true, room: q.MaxBytes, visits: stateVisits}
	if q.At != 0 {
		c.at = min(c.at, q.At)
	}
	lower, upper := stateBounds(t.id, q)
	index, err := t.keys.look()
	if err != nil {
		return page, err
	}
	s.stateHook(false)
	if c.keys, err = s.db.NewIterWithContext(ctx, &pdb.IterOptions{LowerBound: lower, UpperBound: upper}); err != nil {
		return page, err
	}
	defer closeInto(c.keys, &err)
	bounds := numberBounds(tagEvent, t.id)
	if c.log, err = c.keys.CloneWithContext(ctx, pdb.CloneOptions{IterOptions: &bounds}); err != nil {
		return page, err
	}
	defer closeInto(c.log, &err)
	if err := t.keys.again(index); err != nil {
		return page, err
	}
	c.from = c.view.again(t)
	s.stateHook(true)
	c.view.after.tell(batch)
	page = store.StatePage{At: c.at}
	if q.Keys != nil {
		err = c.readKeys(q, &page)
	} else {
		err = s.readState(&c, q.After != "", &page)
	}
	return page, err
}

func (s *Store) stateHook(isAfter bool) {
	if s.options.reading != nil {
		s.options.reading(isAfter)
	}
}

// stateBounds returns the bounds of the key index for a query.
func stateBounds(id uint32, q *store.StateQuery) (lower, upper []byte) {
	bounds := numberBounds(tagKey, id)
	lower, upper = bounds.LowerBound, bounds.UpperBound
	if q.Keys == nil && q.Prefix != "" {
		lower = appendEscapedKey(append([]byte{}, lower...), q.Prefix)
		upper = afterAll(lower)
	}
	if after := afterKey(appendKeyPrefix(nil, id, q.After)); q.After != "" && bytes.Compare(after, lower) > 0 {
		lower = after
	}
	if bytes.Compare(lower, upper) > 0 {
		lower = upper
	}
	return lower, upper
}

// afterAll returns what comes after all keys with a prefix, which has a byte that is not 0xff.
func afterAll(prefix []byte) []byte {
	end := len(prefix)
	for prefix[end-1] == 0xff {
		end--
	}
	after := append([]byte{}, prefix[:end]...)
	after[end-1]++
	return after
}

// afterKey appends to the prefix of a key's entries what makes it come after all of them: no
// event is at offset 0.
func afterKey(prefix []byte) []byte { return binary.BigEndian.AppendUint64(prefix, math.MaxUint64) }

// readState reads all keys in the bounds, which begin after another page in a walk.
func (s *Store) readState(c *stateScan, isWalk bool, page *store.StatePage) error {
	for valid := c.keys.First(); valid; valid = c.next() {
		if c.looked == coldLook {
			if isWalk {
				s.warmWalk(c)
			}
			c.warm()
		}
		isFull, err := c.visit()
		switch {
		case err != nil:
			return err
		case isFull:
			page.After = stateKey(c.added)
			return nil
		case c.isOver():
			page.After = stateKey(c.prefix)
			return nil
		}
	}
	page.Done = true
	return c.keys.Error()
}

// readKeys reads the keys of a list.
func (c *stateScan) readKeys(q *store.StateQuery, page *store.StatePage) error {
	for _, key := range q.Keys {
		if key <= q.After {
			continue
		}
		if c.isOver() {
			return nil
		}
		c.seek = appendKeyKey(c.seek[:0], c.topic.id, key, c.at)
		prefix := c.seek[:len(c.seek)-offsetBytes]
		if c.keys.SeekGE(c.seek) && bytes.HasPrefix(c.keys.Key(), prefix) {
			if isFull, err := c.visit(); isFull || err != nil {
				return err
			}
		}
		c.visits--
		page.After = key
	}
	page.After, page.Done = "", true
	return c.keys.Error()
}

// isOver reports whether the call has done enough.
func (c *stateScan) isOver() bool { return c.limit <= 0 || c.visits <= 0 }

// visit adds the value of the key at whose newest entry the iterator is, if it has one. isFull
// says that the value had no room.
func (c *stateScan) visit() (isFull bool, err error) {
	entry := c.keys.Key()
	c.prefix = append(c.prefix[:0], entry[:len(entry)-offsetBytes]...)
	valid := true
	if keyOffset(entry) > c.at {
		c.seek = binary.BigEndian.AppendUint64(append(c.seek[:0], c.prefix...), ^c.at)
		valid = c.keys.SeekGE(c.seek)
	}
	for ; valid && bytes.HasPrefix(c.keys.Key(), c.prefix); valid = c.keys.Next() {
		c.visits--
		offset := keyOffset(c.keys.Key())
		if offset < c.from {
			return false, nil
		}
		if c.view.hides(offset) {
			continue
		}
		record, err := c.record(offset)
		switch {
		case err != nil:
			return false, err
		case record == nil:
			continue // it was removed and swept
		case layout.IsTombstone(record):
			return false, nil
		}
		if c.room -= len(record); c.room < 0 && !c.isNone {
			return true, nil
		}
		c.batch.Add(offset, record)
		c.limit, c.isNone = c.limit-1, false
		c.added = append(c.added[:0], c.prefix...)
		return false, nil
	}
	return false, c.keys.Error()
}

// record returns the event at an offset, nil for none. It is valid until the next call.
func (c *stateScan) record(offset uint64) ([]byte, error) {
	c.looked++
	var key [eventKeyBytes]byte
	if !c.log.SeekGE(appendEventKey(key[:0], c.topic.id, offset)) {
		return nil, c.log.Error()
	}
	if eventOffset(c.log.Key()) != offset {
		return nil, nil
	}
	return c.log.ValueAndErr()
}

// next moves the iterator to the newest entry of the next key.
func (c *stateScan) next() bool {
	for range stateSteps {
		if !c.keys.Valid() {
			return false
		}
		if !bytes.HasPrefix(c.keys.Key(), c.prefix) {
			return true
		}
		c.keys.Next()
	}
	if !c.keys.Valid() || !bytes.HasPrefix(c.keys.Key(), c.prefix) {
		return c.keys.Valid()
	}
	c.seek = afterKey(append(c.seek[:0], c.prefix...))
	return c.keys.SeekGE(c.seek)
}

// stateKey returns the key whose entries have a prefix.
func stateKey(prefix []byte) string {
	escaped := prefix[1+topicIDBytes : len(prefix)-len(keyEnd)]
	return string(bytes.ReplaceAll(escaped, []byte{0, 0xff}, []byte{0}))
}
