// Package sqlite is the outbox in an SQLite database. It works with any driver of
// database/sql; the project's own programs use modernc.org/sqlite.
//
// A claim and what goes with it is one transaction that begins with the write lock of the
// database (BEGIN IMMEDIATE), so claims come one after another, and a claim sees every row
// that was committed before it. A database that is read only when it has to be: a look at
// an empty outbox takes no lock. Set busy_timeout in the address of the database, so that a
// service and its drainers wait for each other.
package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	_ "embed" // the schema
	"errors"
	"fmt"
	"time"

	"eventhub"
	"eventhub/outbox"
	"eventhub/outbox/internal/columns"
)

// Version is the version of the table.
const Version = 1

// Schema makes the table, for migration tools. Every statement in it is idempotent.
//
//go:embed schema.sql
var Schema string

// Store is an outbox in one database. Its methods are safe for concurrent use.
type Store struct {
	db *sql.DB
	// Now is the clock for leases and times of rows; New sets it to time.Now. All drainers
	// of a file are on one machine.
	Now func() time.Time
}

var _ outbox.Store = (*Store)(nil)

// New returns the outbox of a database. It does not use the database yet.
func New(db *sql.DB) *Store { return &Store{db: db, Now: time.Now} }

// Execer runs a statement: a *sql.Tx, above all, or a *sql.Conn with a transaction of the
// caller's own.
type Execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Add adds events to the outbox within the transaction tx of the caller, and returns their
// ids. They are published after the transaction is committed, and never if it is rolled
// back. An event that a hub would refuse is refused here, with the error of the hub and its
// index among the events; nothing of the call is added then.
func Add(ctx context.Context, tx Execer, events ...eventhub.Event) ([]string, error) {
	now := time.Now()
	rows := make([]columns.Columns, len(events))
	ids := make([]string, len(events))
	for i, e := range events {
		c, err := columns.Of(e, now)
		if err != nil {
			return nil, eventhub.AtIndex(err, "", i)
		}
		rows[i], ids[i] = c, c.ID
	}
	for _, c := range rows {
		_, err := tx.ExecContext(ctx, `INSERT INTO eventhub_outbox (id, topic, key, payload, headers, tags, caused_by, sid, ts)
			VALUES (?, ?, nullif(?, ''), ?, nullif(?, ''), nullif(?, ''), nullif(?, ''), nullif(?, ''), ?)`,
			c.ID, c.Topic, c.Key, c.Payload, c.Headers, c.Tags, c.CausedBy, c.SID, c.TS)
		if err != nil {
			return nil, fmt.Errorf("outbox: adding event %s: %w", c.ID, err)
		}
	}
	return ids, nil
}

// Migrate makes the table where it is not there.
func (s *Store) Migrate(ctx context.Context) error {
	return s.write(ctx, func(tx Execer) error {
		if _, err := tx.ExecContext(ctx, Schema); err != nil {
			return fmt.Errorf("outbox: making the table: %w", err)
		}
		return check(ctx, tx.(querier))
	})
}

// Check implements [outbox.Table].
func (s *Store) Check(ctx context.Context) error { return check(ctx, s.db) }

func check(ctx context.Context, q querier) error {
	var tables int
	var version sql.NullInt64
	const has = `SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name IN ('eventhub_outbox', 'eventhub_outbox_version')`
	if err := q.QueryRowContext(ctx, has).Scan(&tables); err != nil {
		return fmt.Errorf("outbox: reading the database: %w", err)
	}
	if tables < 2 {
		return outbox.ErrNoTable
	}
	if err := q.QueryRowContext(ctx, `SELECT max(version) FROM eventhub_outbox_version`).Scan(&version); err != nil {
		return fmt.Errorf("outbox: reading the version of the table: %w", err)
	}
	if !version.Valid { // whoever made it did not come to the end of the schema
		return outbox.ErrNoTable
	}
	return outbox.CheckVersion(int(version.Int64), Version)
}

// write runs f in a transaction that has the write lock from its start.
func (s *Store) write(ctx context.Context, f func(tx Execer) error) (err error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("outbox: connecting: %w", err)
	}
	defer func() { err = errors.Join(err, ignoreDone(conn.Close())) }()
	if _, err := conn.ExecContext(ctx, `BEGIN IMMEDIATE`); err != nil {
		return fmt.Errorf("outbox: locking the database for a write: %w", err)
	}
	if err := f(conn); err != nil {
		// The context may be what ended it; the connection must not go back with a transaction.
		if _, rollback := conn.ExecContext(context.WithoutCancel(ctx), `ROLLBACK`); rollback != nil {
			_ = conn.Raw(func(any) error { return driver.ErrBadConn }) // so that the pool closes it
		}
		return err
	}
	if _, err := conn.ExecContext(context.WithoutCancel(ctx), `COMMIT`); err != nil {
		_, _ = conn.ExecContext(context.WithoutCancel(ctx), `ROLLBACK`)
		return fmt.Errorf("outbox: committing: %w", err)
	}
	return nil
}

func ignoreDone(err error) error {
	if errors.Is(err, sql.ErrConnDone) {
		return nil
	}
	return err
}

const (
	settleSent = `UPDATE eventhub_outbox SET status = 'sent', sent_at = ?, event_offset = ?, claimed_by = NULL,
		lease_until = NULL, retry_at = NULL, last_err = NULL WHERE id = ? AND status IN ('pending', 'claimed')`
	settleParked = `UPDATE eventhub_outbox SET status = 'error', last_err = ?, claimed_by = NULL, lease_until = NULL
		WHERE id = ? AND status = 'claimed' AND claimed_by = ?`
	settlePending = `UPDATE eventhub_outbox SET status = 'pending', last_err = nullif(?, ''), retry_at = nullif(?, 0),
		attempts = attempts - ?, claimed_by = NULL, lease_until = NULL WHERE id = ? AND status = 'claimed' AND claimed_by = ?`
	requeue = `UPDATE eventhub_outbox SET status = 'pending', claimed_by = NULL, lease_until = NULL
		WHERE status = 'claimed' AND (lease_until IS NULL OR lease_until <= ?)`
	// Of a partial index the subqueries read the few rows that are claimed or wait.
	claim = `UPDATE eventhub_outbox SET status = 'claimed', claimed_by = ?2, lease_until = ?3, retry_at = NULL, attempts = attempts + 1
		WHERE seq IN (SELECT seq FROM (SELECT seq, topic, key FROM eventhub_outbox
				WHERE status = 'pending' AND (retry_at IS NULL OR retry_at <= ?1) ORDER BY seq LIMIT ` + window + `) o
			WHERE %s ORDER BY seq LIMIT ?4)
		RETURNING ` + fields

	// A claim looks at so many rows that are due. Of more that are held up it takes none that stand after
	// them, until somebody has settled what holds them up: a look at millions of them, again and again,
	// would cost more.
	window  = `20000`
	freeKey = `(key IS NULL OR key = '' OR
		NOT EXISTS (SELECT 1 FROM eventhub_outbox c WHERE c.status = 'claimed' AND c.topic = o.topic AND c.key = o.key) AND
		NOT EXISTS (SELECT 1 FROM eventhub_outbox w WHERE w.topic = o.topic AND w.key = o.key AND w.retry_at > ?1))`
	freeTopic = `NOT EXISTS (SELECT 1 FROM eventhub_outbox c WHERE c.status = 'claimed' AND c.topic = o.topic) AND
		NOT EXISTS (SELECT 1 FROM eventhub_outbox w WHERE w.topic = o.topic AND w.retry_at IS NOT NULL AND w.retry_at > ?1)`
)

// Turn implements [outbox.Table].
func (s *Store) Turn(ctx context.Context, settled []outbox.Outcome, c outbox.Claim) (rows []outbox.Row, err error) {
	now := s.Now().UnixMilli()
	if len(settled) == 0 {
		if any, err := s.hasWork(ctx, now); err != nil || !any {
			return nil, err
		}
	}
	err = s.write(ctx, func(tx Execer) error {
		for _, o := range settled {
			if err := settle(ctx, tx, o, c.Worker, now); err != nil {
				return err
			}
		}
		if _, err := tx.ExecContext(ctx, requeue, now); err != nil {
			return fmt.Errorf("outbox: giving back what ran out: %w", err)
		}
		if c.Max <= 0 {
			return nil
		}
		rows, err = claimRows(ctx, tx.(querier), c, now)
		return err
	})
	if err != nil {
		return nil, err
	}
	return rows, nil
}

// hasWork reports whether a row is due or a lease has run out, without the lock.
func (s *Store) hasWork(ctx context.Context, now int64) (any bool, err error) {
	const has = `SELECT EXISTS (SELECT 1 FROM eventhub_outbox WHERE status = 'pending' AND (retry_at IS NULL OR retry_at <= ?1))
		OR EXISTS (SELECT 1 FROM eventhub_outbox WHERE status = 'claimed' AND (lease_until IS NULL OR lease_until <= ?1))`
	if err := s.db.QueryRowContext(ctx, has, now).Scan(&any); err != nil {
		return false, fmt.Errorf("outbox: looking for rows: %w", err)
	}
	return any, nil
}

func settle(ctx context.Context, tx Execer, o outbox.Outcome, worker string, now int64) (err error) {
	switch o.Status {
	case outbox.Sent:
		_, err = tx.ExecContext(ctx, settleSent, now, int64(o.Offset), o.ID)
	case outbox.Parked:
		_, err = tx.ExecContext(ctx, settleParked, o.Error, o.ID, worker)
	default:
		unused := 0
		if o.Unused {
			unused = 1
		}
		_, err = tx.ExecContext(ctx, settlePending, o.Error, eventhub.Millis(o.RetryAt), unused, o.ID, worker)
	}
	if err != nil {
		return fmt.Errorf("outbox: settling row %s: %w", o.ID, err)
	}
	return nil
}
