// Package outbox publishes events that a service has written to its own database. The
// service adds a row in the transaction that makes its change; a [Drainer] beside it, in
// the same program or in another one, publishes the rows. A change that is committed is
// published, also when the service, the drainer, the database or the hub dies in between;
// a change that is rolled back is not.
//
// # Who calls it
//
// A service calls Add of one of the tables: package outbox/sqlite, outbox/postgres or
// outbox/mongo. Programs in other languages insert the row themselves; docs/databases.md
// has the columns. The command "eventhub outbox" and "eventhub serve --outbox" run a
// Drainer over the same tables.
//
// # What holds
//
//   - A row is published under its own id, so a row that was published and not marked, as
//     the drainer died in between, is a duplicate that the hub knows. The hub knows an id
//     for as long as it has the event, and some minutes after (docs/retention.md).
//   - Rows of one key of one topic are published in the order in which the table has them,
//     by any number of drainers: while a row is claimed, nobody claims another one of its
//     key. Among rows that become visible together, the order is that in which they were
//     inserted; a transaction that waits for a lock before it inserts is therefore after
//     the one that held the lock. A parked row does not hold its key up.
//   - A row leaves the pending ones only when the hub has answered: sent with the offset
//     that the hub gave, or parked with the reason, where the hub refuses the row for good.
//     What is about the hub, as that it is away, leaves the row pending.
//   - A claim has a lease. The claim of a drainer that died ends with it.
//
// The protocol of claims is that of the project's first outbox design: claim by lease, mark
// sent, requeue what ran out; the transactional outbox is described at
// https://microservices.io/patterns/data/transactional-outbox.html.
package outbox

import (
	"context"
	"time"

	"eventhub"
)

// Status is what has become of a row.
type Status string

// The statuses of a row.
const (
	Pending Status = "pending" // nobody has it
	Claimed Status = "claimed" // a drainer has it until its lease runs out
	Sent    Status = "sent"    // the hub has it
	Parked  Status = "error"   // the hub refuses it for good; it waits for an operator
)

// Statuses are all of them, in the order in which a row may go through them.
var Statuses = []Status{Pending, Claimed, Sent, Parked}

// Row is one row of an outbox.
type Row struct {
	// Event is what the row says: ID, Topic, Key, SID, Headers, Tags, CausedBy and
	// Payload. TS is when the row was added, by the clock of whoever added it.
	Event eventhub.Event
	// Broken says what of the row is no event, such as headers that are not a JSON
	// object of texts; nil for others. A Drainer parks such a row.
	Broken error

	Status     Status
	ClaimedBy  string    // of a claimed row: the drainer that has it
	LeaseUntil time.Time // of a claimed row
	RetryAt    time.Time // of a pending row: not to be claimed before; zero for at once
	Attempts   int       // how often it was claimed
	LastError  string    // why it is parked, or was not sent last time
	SentAt     time.Time // of a sent row
	Offset     uint64    // of a sent row: where the event is in its topic
}

// Order says which rows are published one after another.
type Order string

// The orders. All drainers of one table need the same.
const (
	ByKey   Order = "key"   // those of one key of one topic; rows without a key in any order
	ByTopic Order = "topic" // those of one topic
)

// Claim asks for rows.
type Claim struct {
	Max    int // rows; 0 only settles
	Lease  time.Duration
	Worker string // who claims: one name a drainer
	Order  Order
}

// Outcome is what has become of a row that was claimed. Status is Sent, Parked, or Pending
// for a row that is given back.
type Outcome struct {
	ID      string
	Status  Status
	Offset  uint64    // with Sent
	Error   string    // with Parked and Pending
	RetryAt time.Time // with Pending: not before; zero for at once
	// Unused is set with Pending where the row was never tried, so that this claim does
	// not count as an attempt.
	Unused bool
}

// Table is what a [Drainer] needs of an outbox. Its methods are safe for concurrent use by
// any number of processes. outboxtest is the suite that every one passes.
type Table interface {
	// Check returns an error where there is no table, or one of another version; its text
	// says what to do.
	Check(ctx context.Context) error

	// Turn settles rows, makes rows pending again whose lease has run out, and claims up
	// to c.Max rows that are due, in the order of the table. After an error each of the
	// three may or may not be done, and the same outcomes can be given again.
	//
	// An outcome for a row that is sent already changes nothing, nor does one of a row
	// that is parked or not there. Parked and Pending count only while c.Worker has the
	// row; Sent counts whoever has it, since the event is in the hub. Of one row there may be several
	// outcomes, which count in their order.
	//
	// A row is not claimed while another one of its key, or with ByTopic of its topic, is
	// claimed already or waits for its RetryAt. Several rows of one key may be in one answer.
	// A table may look at the first 20,000 rows that are due, and no further.
	Turn(ctx context.Context, settled []Outcome, c Claim) ([]Row, error)

	// Forget removes up to most rows that were sent before a time, oldest first, and
	// returns how many it has removed.
	Forget(ctx context.Context, before time.Time, most int) (int, error)

	// Counts says how many rows there are. It may cost as much as a look at all pending
	// rows.
	Counts(ctx context.Context) (Counts, error)
}

// Counts are the rows of an outbox.
type Counts struct {
	Pending, Claimed, Parked int
	// Oldest is when the oldest row that is pending or claimed was added; zero where there
	// is none.
	Oldest time.Time
}

// Waiter is implemented by tables that notice new rows by themselves.
type Waiter interface {
	// Wait returns when there may be rows to claim, at the latest after atMost, or when
	// ctx ends. It may return early.
	Wait(ctx context.Context, atMost time.Duration) error
}

// Keeper is what an operator needs of an outbox. Its methods are safe for concurrent use.
type Keeper interface {
	// List returns up to limit rows with one of the statuses (none: all), in the order of
	// the table, after the row with the id after (empty: from the start). The error has
	// eventhub.CodeUnknownID where there is no such row.
	List(ctx context.Context, statuses []Status, after string, limit int) ([]Row, error)
	// Show returns one row; the error has eventhub.CodeUnknownID where there is none.
	Show(ctx context.Context, id string) (Row, error)
	// Retry makes parked rows pending again, with no attempts, and returns how many: those
	// with the ids, or all where there are none.
	Retry(ctx context.Context, ids ...string) (int, error)
	// Purge removes rows with a status, Sent or Parked, that were added before a time, and
	// returns how many.
	Purge(ctx context.Context, status Status, before time.Time) (int, error)
	// Counts is as that of Table.
	Counts(ctx context.Context) (Counts, error)
}

// Migrator makes and changes the table. Migrate is idempotent, and brings a table of an
// older version to the present one; a newer one is an error.
type Migrator interface {
	Migrate(ctx context.Context) error
}

// Store is all that the command line does with an outbox.
type Store interface {
	Table
	Keeper
	Migrator
}
