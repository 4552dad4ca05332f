package bus

import (
	"sync"
	"time"

	"eventhub/bus/internal/groupstate"
	"eventhub/store"
)

// roundEvents and roundBytes bound what one round of a turn reads.
const (
	roundEvents = 1024
	roundBytes  = 1 << 20
)

// fetchers are shared: a group needs one only while it has its turn.
var fetchers = sync.Pool{New: func() any { return new(fetcher) }}

// fetcher is what a round reads.
type fetcher struct {
	epoch   uint64
	letters []groupstate.Letter // entries to be dead-lettered
	due     []uint64            // offsets to be delivered again
	from    uint64              // fresh events from here on, up to limit; 0: none
	limit   int
	want    int         // how many of them members may have room for
	ahead   int         // how many more the group may read
	head    uint64      // nothing was known to be above when reading began
	horizon uint64      // of the topic, where the store was read for fresh events
	marks   store.Marks // likewise: what the tail cache has is not compacted

	removals uint64 // of the log, before reading began

	// What was read: of letters and of due the first ones, as roundBytes allowed,
	// and fresh events, in this order. A nil Record is gone from the log.
	items                []store.Item
	readLetters, readDue int
	bytes                int
	batch                store.Batch

	began  time.Time // the turn
	drift  int64     // of the clock, when it was handed out
	passes []bool    // what the filter says of the fresh events, one by one
}

func (f *fetcher) empty() bool { return len(f.letters) == 0 && len(f.due) == 0 && f.from == 0 }

// release lets the records go, and buffers that grew beyond what a round needs.
func (f *fetcher) release() {
	clear(f.items)
	clear(f.batch.Items)
	f.batch.Reset()
	if f.batch.Size() > 2*roundBytes {
		f.batch = store.Batch{}
	}
}

// sooner returns the earlier of two times; 0 is none.
func sooner(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// verdict is what a filter said of an event that was not taken then.
type verdict struct {
	offset uint64
	passes bool
}
