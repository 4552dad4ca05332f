package pebble

import (
	"bytes"
	"context"
	"slices"
	"sync"

	pdb "github.com/cockroachdb/pebble/v2"
)

// # A cold log
//
// The newest events of the keys lie all over the log, so after a start each of them costs a block that
// is read and decompressed. Where the first records of a page show that, the blocks of the others
// are read ahead, in their order on the disk and by several goroutines. A page that follows another one
// is part of a walk over all keys: the blocks of the pages after it are read too, by one goroutine of
// the store that the page does not wait for. Nothing else comes of it: what is not read ahead, or in
// vain, is read when its turn comes.

const (
	// coldLook is after how many records of a page it is decided whether the log is cold.
	coldLook = 8
	// mostWarm is how many records are read ahead, and warmers by how many goroutines, which wait for the disk most of the time.
	mostWarm = 1000
	warmers  = 8
	// A walk is read ahead for walkParts times walkKeys keys, and until walkBytes were read for it: what
	// is much more would not stay in the cache.
	walkParts = 4
	walkKeys  = 16000
	walkBytes = 64 << 20
	walkLook  = 64 // records between two looks at that
)

// warm reads the blocks ahead that the rest of the page needs, if some of its beginning were not in
// the cache. The iterators stay where they are.
func (c *stateScan) warm() {
	if missed, _ := c.missed(); missed == 0 {
		return
	}
	keys, err := c.keys.Clone(pdb.CloneOptions{})
	if err != nil {
		return
	}
	next := stateScan{keys: keys, at: c.at}
	keys.SeekGE(c.keys.Key())
	offsets := next.ahead(min(c.limit, mostWarm))
	_ = keys.Close() // its errors are those of the reads, which are made again
	each := (len(offsets) + warmers - 1) / warmers
	var all sync.WaitGroup
	for part := range slices.Chunk(offsets, max(1, each)) {
		log, err := c.log.Clone(pdb.CloneOptions{})
		if err != nil {
			break
		}
		all.Go(func() {
			other := stateScan{topic: c.topic, log: log}
			for _, offset := range part {
				if _, err := other.record(offset); err != nil {
					break
				}
			}
			_ = log.Close() // likewise
		})
	}
	all.Wait()
}

// missed returns how many bytes the iterators have read that were not in the cache, and how many in all.
func (c *stateScan) missed() (missed, all uint64) {
	for _, i := range []*pdb.Iterator{c.keys, c.log} {
		stats := i.Stats().InternalStats
		missed += stats.BlockBytes - stats.BlockBytesInCache
		all += stats.BlockBytes
	}
	return missed, all
}

// warmWalk reads ahead what the pages after this one need, in the background, if a quarter of its beginning was not in
// the cache, and nobody does so. Close waits for its end: for a record, or the keys of a part.
func (s *Store) warmWalk(c *stateScan) {
	if missed, all := c.missed(); missed < all/4 || missed == 0 || !s.isWarming.CompareAndSwap(false, true) {
		return
	}
	walk := stateScan{topic: c.topic, at: c.at}
	var keysErr, logErr error
	walk.keys, keysErr = c.keys.Clone(pdb.CloneOptions{})
	walk.log, logErr = c.log.Clone(pdb.CloneOptions{})
	end := func() {
		if keysErr == nil {
			_ = walk.keys.Close() // likewise
		}
		if logErr == nil {
			_ = walk.log.Close()
		}
		s.isWarming.Store(false)
	}
	if keysErr != nil || logErr != nil || !walk.keys.SeekGE(c.keys.Key()) || s.enter(context.Background()) != nil {
		end()
		return
	}
	go func() {
		defer s.leave()
		defer end()
		for range walkParts {
			offsets := walk.ahead(walkKeys)
			for _, offset := range offsets {
				if _, err := walk.record(offset); err != nil || s.life.running.Load() < 0 {
					return
				}
				if walk.looked%walkLook == 0 {
					if missed, _ := walk.missed(); missed > walkBytes {
						return
					}
				}
			}
			if len(offsets) == 0 {
				return
			}
		}
	}()
}

// ahead moves the iterator over the keys that are next, and returns the offsets of their newest events, at
// most so many, in the order of the log.
func (c *stateScan) ahead(most int) (offsets []uint64) {
	for valid := c.keys.Valid(); valid && len(offsets) < most; valid = c.next() {
		entry := c.keys.Key()
		c.prefix = append(c.prefix[:0], entry[:len(entry)-offsetBytes]...)
		for valid && keyOffset(c.keys.Key()) > c.at && bytes.HasPrefix(c.keys.Key(), c.prefix) {
			valid = c.keys.Next()
		}
		if !valid {
			break
		}
		if bytes.HasPrefix(c.keys.Key(), c.prefix) {
			offsets = append(offsets, keyOffset(c.keys.Key()))
		}
	}
	slices.Sort(offsets)
	return offsets
}
