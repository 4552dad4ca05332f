package pebble

import (
	"context"
	"testing"

	"eventhub/store"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestDropLeavesNothing: an index that is dropped leaves no entry, of units before the drop in its commit either, and
// those of the next index stay.
func TestDropLeavesNothing(t *testing.T) {
	s := mustOpen(t, onMem(t, vfs.NewMem()))
	defer mustClose(t, s)
	mustCommit(t, s, true, keyedEvent("e1", "a", `1`))
	mustIndex(t, s, "t")
	change := func(ch store.IndexChange) *store.Unit {
		return &store.Unit{Topics: []store.TopicChange{{Topic: "t", Index: ch}}}
	}
	commit := func(units ...*store.Unit) {
		t.Helper()
		if err := s.Commit(context.Background(), units, true); err != nil {
			t.Fatal(err)
		}
	}
	event := func(id string) *store.Unit {
		return &store.Unit{Appends: []store.Append{keyedEvent(id, "b", `1`)}}
	}
	commit(event("e2"), change(store.DropIndex), event("e3"))
	if got := keysOf(t, s, tagKey, tagKeys); got != 0 {
		t.Errorf("%d keys of the index are left", got)
	}
	commit(event("e4"), change(store.StartIndex), event("e5"), change(store.DropIndex), event("e6"), change(store.StartIndex), event("e7"))
	if got := keysOf(t, s, tagKey); got != 1 {
		t.Errorf("%d entries; want the one after the last start", got)
	}
	mustIndex(t, s, "t")
	checkIndexes(t, s)
	if got := keysOf(t, s, tagKeys); got != 0 {
		t.Errorf("%d rows of an index that is ready", got)
	}
}
