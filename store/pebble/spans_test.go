package pebble

import (
	"context"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestTablesOfOneSort: no table has both records and entries of an index.
func TestTablesOfOneSort(t *testing.T) {
	s := mustOpen(t, onMem(t, vfs.NewMem()))
	defer mustClose(t, s)
	for _, id := range idsAlike {
		mustCommit(t, s, true, given("t", id))
	}
	if done, err := s.flush(context.Background()); !done || err != nil {
		t.Fatalf("flush: %v, %v", done, err)
	}
	levels, err := s.db.SSTables()
	if err != nil {
		t.Fatal(err)
	}
	sorts := make(map[byte]bool)
	for _, table := range slices.Concat(levels...) {
		from, to := table.Smallest.UserKey[0], table.Largest.UserKey[0]
		if sorts[from] = true; from != to && (slices.Contains(spanEnds, from) || slices.Contains(spanEnds, to)) {
			t.Errorf("a table has keys from %q to %q", from, to)
		}
	}
	if !sorts[tagEvent] || !sorts[tagID] {
		t.Errorf("the tables begin with %v: none with a record, or none with an id", sorts)
	}
}
