package pebble

import (
	"bytes"
	"runtime"
	"slices"
	"sync"

	pdb "github.com/cockroachdb/pebble/v2"
)

// # A cold log
//
// The newest events of the keys lie all over the log, so after a start each of them costs a block that
// is read and decompressed. Where the first records of a page show that, the blocks of the others
// are read ahead, in their order on the disk and by several goroutines. Nothing else comes of it: what
// is not read ahead, or in vain, is read when its turn comes.

const (
	// coldLook is after how many records of a page it is decided whether the log is cold.
	coldLook = 8
	// mostWarm is how many records are read ahead, and mostWarmers by how many goroutines.
	mostWarm    = 1000
	mostWarmers = 4
)

// warm reads the blocks ahead that the rest of the page needs, if those of its beginning were not in
// the cache. The iterators stay where they are.
func (c *stateScan) warm() {
	stats := c.log.Stats().InternalStats
	if stats.BlockBytesInCache >= stats.BlockBytes/2 {
		return
	}
	offsets := c.ahead(min(c.limit, mostWarm))
	slices.Sort(offsets)
	n := min(mostWarmers, runtime.GOMAXPROCS(0))
	each := (len(offsets) + n - 1) / n
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
			_ = log.Close() // its errors are those of the reads, which are made again
		})
	}
	all.Wait()
}

// ahead returns the offsets of the newest events of the next keys, at most so many.
func (c *stateScan) ahead(most int) (offsets []uint64) {
	keys, err := c.keys.Clone(pdb.CloneOptions{})
	if err != nil {
		return nil
	}
	defer keys.Close() // likewise
	next := stateScan{keys: keys}
	for valid := keys.SeekGE(c.keys.Key()); valid && len(offsets) < most; valid = next.next() {
		entry := keys.Key()
		next.prefix = append(next.prefix[:0], entry[:len(entry)-offsetBytes]...)
		for valid && keyOffset(keys.Key()) > c.at && bytes.HasPrefix(keys.Key(), next.prefix) {
			valid = keys.Next()
		}
		if !valid {
			break
		}
		if bytes.HasPrefix(keys.Key(), next.prefix) {
			offsets = append(offsets, keyOffset(keys.Key()))
		}
	}
	return offsets
}
