// Package inbox remembers in a service's own database which events have had their effect,
// so that an event which is delivered again has it once. A hub delivers an event again when
// an ack was lost, a lease ran out or somebody redrives it; the record of the event and its
// effect are in one transaction, so both are there after it or neither is.
//
// The tables of SQLite and PostgreSQL are the same, and so are the statements; package
// inbox/mongo is for MongoDB.
//
// # What holds
//
//   - Of all deliveries of an event to a group, the effect of one is committed.
//   - An event is told by its topic and its id. An event that is published again under
//     another id is another one.
//   - Of two transactions with one event at a time, the second waits for the first. It is
//     the first itself where that one is rolled back.
//   - A record is removed by its age, by [Inbox.Trim]. It has to be kept for as long as its
//     event may be delivered again. That is not told by the cursor of the group: events that
//     are redriven or replayed lie below it.
package inbox

import (
	"context"
	"database/sql"
	_ "embed" // the schema
	"fmt"
	"time"

	"eventhub"
)

// Version is the version of the table.
const Version = 1

// DefaultKeep is for how long [Inbox.Trim] is mostly asked to keep records: longer than a
// dead letter waits for somebody to look at it.
const DefaultKeep = 30 * 24 * time.Hour

// trimAtOnce is how many records one transaction of Trim removes, so that others do not
// wait for it.
const trimAtOnce = 1000

// Schema makes the table in SQLite and PostgreSQL, for migration tools. Every statement in
// it is idempotent.
//
//go:embed schema.sql
var Schema string

// Tx is a transaction of the caller: a *sql.Tx, or a *sql.Conn with one.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// DB is a database: a *sql.DB.
type DB interface {
	Tx
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Inbox is the records in one database. Its methods are safe for concurrent use.
type Inbox struct {
	db DB
	// Now is the clock for the age of records; New sets it to time.Now.
	Now func() time.Time
}

// New returns the inbox of a database of SQLite or PostgreSQL. It does not use the database
// yet.
func New(db DB) *Inbox { return &Inbox{db: db, Now: time.Now} }

// record is understood by both databases. Times are epoch milliseconds.
const record = `INSERT INTO eventhub_inbox (group_name, topic, event_id, seen_at) VALUES ($1, $2, $3, $4)
	ON CONFLICT (group_name, topic, event_id) DO NOTHING`

// Once records in the transaction tx that a group has an event, and reports whether it is
// the first to do so. The caller makes the effect in the same transaction where first is
// true, commits, and acks in both cases.
func (i *Inbox) Once(ctx context.Context, tx Tx, group string, e *eventhub.Event) (first bool, err error) {
	return i.once(ctx, tx, group, e.Topic, e.ID)
}

func (i *Inbox) once(ctx context.Context, tx Tx, group, topic, id string) (first bool, err error) {
	if err := eventhub.ValidateGroup(group); err != nil {
		return false, err
	}
	if topic == "" || id == "" { // these would make different events the same
		return false, eventhub.Errorf(eventhub.CodeBadRequest, "the inbox needs an event with a topic and an id; this one has topic %q and id %q", topic, id)
	}
	result, err := tx.ExecContext(ctx, record, group, topic, id, i.Now().UnixMilli())
	if err != nil {
		return false, fmt.Errorf("inbox: recording event %s of topic %s: %w", id, topic, err)
	}
	n, err := result.RowsAffected()
	return n == 1, err
}

// Handle returns a handler for [eventhub.Consume] that makes an effect once for each event:
// it begins a transaction, records the event, calls effect unless the event was recorded
// before, and commits. The event is acked after the commit. An error of effect rolls the
// transaction back and is that of the handler; [eventhub.Terminal] and [eventhub.RetryAfter]
// work as in any handler.
//
// In SQLite transactions that read before they write can fail with SQLITE_BUSY, unless they
// begin with the write lock: _txlock=immediate in the address, with modernc.org/sqlite.
func (i *Inbox) Handle(group string, effect func(ctx context.Context, tx *sql.Tx, d eventhub.Delivery) error) eventhub.Handler {
	return func(ctx context.Context, d eventhub.Delivery) (err error) {
		tx, err := i.db.BeginTx(ctx, nil)
		if err != nil {
			return fmt.Errorf("inbox: beginning a transaction: %w", err)
		}
		defer tx.Rollback() // also after a panic; nothing after a commit
		first, err := i.once(ctx, tx, group, d.Topic, d.ID())
		if err != nil {
			return err
		}
		if first {
			if err := effect(ctx, tx, d); err != nil {
				return err
			}
		}
		if err := tx.Commit(); err != nil {
			return fmt.Errorf("inbox: committing: %w", err)
		}
		return nil
	}
}

// Migrate makes the table where it is not there.
func (i *Inbox) Migrate(ctx context.Context) error {
	if _, err := i.db.ExecContext(ctx, Schema); err != nil {
		return fmt.Errorf("inbox: making the table: %w", err)
	}
	return i.Check(ctx)
}

// Check returns an error where the table is not there, or is of another version.
func (i *Inbox) Check(ctx context.Context) error {
	var version int
	if err := i.db.QueryRowContext(ctx, `SELECT coalesce(max(version), 0) FROM eventhub_inbox_version`).Scan(&version); err != nil {
		return fmt.Errorf("inbox: reading the version of the table; Migrate makes it: %w", err)
	}
	if version != Version {
		return eventhub.Errorf(eventhub.CodeConflict, "the inbox is of version %d; this program needs %d", version, Version)
	}
	return nil
}

// Trim removes records that are older than keep, in pieces, and returns how many. Call it
// from time to time, such as once an hour; [DefaultKeep] is a good age.
func (i *Inbox) Trim(ctx context.Context, keep time.Duration) (total int, err error) {
	before := i.Now().Add(-keep).UnixMilli()
	for {
		result, err := i.db.ExecContext(ctx, `DELETE FROM eventhub_inbox WHERE (group_name, topic, event_id) IN
			(SELECT group_name, topic, event_id FROM eventhub_inbox WHERE seen_at < $1 ORDER BY seen_at LIMIT $2)`, before, trimAtOnce)
		if err != nil {
			return total, fmt.Errorf("inbox: removing records: %w", err)
		}
		n, err := result.RowsAffected()
		total += int(n)
		if err != nil || n < trimAtOnce {
			return total, err
		}
	}
}
