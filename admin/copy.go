package admin

import (
	"context"

	"eventhub"
)

// Importer takes back what was exported. Its methods are safe for concurrent use.
type Importer interface {
	// Import appends events as they were: id, ts and all other fields are kept, and so
	// are the commit time unless it is before that of the topic's newest event, and
	// Offset if it is above that event's. So events that come in order into a hub that
	// has none of them are the same there, byte for byte. Events that the hub already
	// has are not added again (Receipt.Duplicate). All are added in one atomic step, or
	// none. Topics of the hub's own are allowed; Delay and DeliverAt are not.
	Import(ctx context.Context, events ...eventhub.Event) ([]eventhub.Receipt, error)
}

// Backuper copies what the hub keeps. Its methods are safe for concurrent use.
type Backuper interface {
	// Backup writes a copy of the store, as it is at a moment during the call, into
	// dir, which must not exist. It has everything that was acknowledged before the
	// call, and can be opened as a store. Publishing goes on meanwhile.
	// CodeUnsupportedOp if the store cannot be copied.
	Backup(ctx context.Context, dir string) error
}
