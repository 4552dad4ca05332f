package pebble

import (
	pdb "github.com/cockroachdb/pebble/v2"
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
