package store

import "eventhub"

// Batch receives events from Log.Read and reuses its memory from one read to
// the next. The zero value is ready. It is not safe for concurrent use.
type Batch struct {
	Items []Item
	// Horizon is the first offset that the topic of the last read keeps, as of that read; 0
	// where there is no such topic.
	Horizon uint64
	// Compacted and Tombstones are the marks of the topic (TopicChange), as of the last read: what
	// compaction removed before it is at or below them. 0 where there are none.
	Compacted, Tombstones uint64

	arena []byte
}

// arenaChunk is how much a batch takes at once for the bytes of records.
const arenaChunk = 64 << 10

// Reset forgets the items and takes their memory back: records read before are
// no longer valid.
func (b *Batch) Reset() {
	b.Items = b.Items[:0]
	b.Horizon, b.Compacted, b.Tombstones = 0, 0, 0
	b.arena = b.arena[:0]
}

// Grow makes room for so many bytes of records, which the batch then reuses as a
// whole. The batch is empty: it was just Reset, or never used.
func (b *Batch) Grow(bytes int) {
	if cap(b.arena) < bytes {
		b.arena = make([]byte, 0, bytes)
	}
}

// Add appends one event, copying the record.
func (b *Batch) Add(offset uint64, record []byte) {
	if cap(b.arena)-len(b.arena) < len(record) {
		// The full chunk stays alive through the records that point into it.
		b.arena = make([]byte, 0, max(arenaChunk, len(record)))
	}
	start := len(b.arena)
	b.arena = append(b.arena, record...)
	b.Items = append(b.Items, Item{Offset: offset, Record: eventhub.Record(b.arena[start:len(b.arena):len(b.arena)])})
}

// Size returns how many bytes the batch keeps for the next read.
func (b *Batch) Size() int { return cap(b.arena) }
