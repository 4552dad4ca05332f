package pebble

import (
	pdb "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// # Tables of one sort of keys
//
// A flush has records at the end of one log, ids and keys of them all over their indexes. Were
// they in one table, as they are in one memtable, that table would overlap with all that comes
// later of the log, and the records in it would be merged with the index again and again. So a
// table ends where one of these sorts does. That costs an idle store nothing: a flush writes no
// table of a sort of which it has no key.
var spanEnds = []byte{tagEffect, tagEffect + 1, tagEvent, tagEvent + 1, tagID, tagID + 1, tagKey, tagKey + 1, tagCorrelated, tagCorrelated + 1}

// spanPolicy says where the table that begins with a key has to end. It does not say how tables
// are written.
func spanPolicy(start []byte) (pdb.SpanPolicy, []byte, error) {
	for i := range spanEnds {
		if len(start) > 0 && start[0] < spanEnds[i] {
			return pdb.SpanPolicy{}, spanEnds[i : i+1], nil
		}
	}
	return pdb.SpanPolicy{}, nil, nil
}

// # Merges of one sort of keys
//
// Tables of an index overlap each other, those of records do not. Pebble merges the first once there
// are l0Compact of them over each other, and then would take all tables of L0 along that lie
// between two of the level below, which are the records of the last seconds: every record would be
// read, compressed and written again for the sake of some kilobytes of others. It does so only
// where all of it together is no larger than 25 tables, and than half of the room on the disk for each
// compaction that may be under way. So Pebble is given as little room as makes it take along nothing larger than
// takenAlong bytes, or a few times as much where fewer compactions may be under way. What has to be in a compaction is
// in it, whatever it takes. Records go to the level below by themselves, without being written, where
// nothing is there that they overlap with.
const takenAlong = 256 << 10

// GetDiskUsage says how much room Pebble may expect for its compactions, and nothing else asks for.
func (w watchedFS) GetDiskUsage(path string) (vfs.DiskUsage, error) {
	room := uint64(2 * mostCompactions * takenAlong)
	if usage, err := w.FS.GetDiskUsage(path); err == nil {
		room = min(room, usage.AvailBytes)
	}
	return vfs.DiskUsage{AvailBytes: room, TotalBytes: room}, nil
}
