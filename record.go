package eventhub

import (
	"encoding/json"
	"fmt"

	"eventhub/internal/record/layout"
)

// Record is an event as it is stored: its JSON object without the offset, which is not
// known when the event is encoded. It is encoded once; the store, the deliveries, replay
// and export all have the same bytes. A Record is read-only.
//
// Its methods read single fields without decoding the rest. For bytes that do not start as
// a record does they return zero values.
type Record []byte

// CommitTime returns the commit time in epoch milliseconds.
func (r Record) CommitTime() int64 { return layout.CommitTime(r) }

// ID returns the event's id as a part of the record.
func (r Record) ID() []byte { return layout.ID(r) }

// Key returns the event's key, or nil if it has none. It may be a part of the record.
func (r Record) Key() []byte { return layout.Key(r) }

// IsTombstone reports whether the payload is null: with a key, the event ends the key's value.
func (r Record) IsTombstone() bool { return layout.IsTombstone(r) }

// AppendJSON appends the whole event, offset first, as one JSON object.
func (r Record) AppendJSON(dst []byte, offset uint64) []byte {
	return layout.AppendJSON(dst, r, offset)
}

// Event decodes the record.
func (r Record) Event(offset uint64) (Event, error) {
	var e Event
	if err := json.Unmarshal(r, &e); err != nil {
		return Event{}, fmt.Errorf("eventhub: decode the record at offset %d: %w", offset, err)
	}
	e.Offset = offset
	return e, nil
}
