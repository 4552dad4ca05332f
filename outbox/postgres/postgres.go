// Package postgres is the outbox in a PostgreSQL database.
//
// # Order
//
// Claims on one table come one after another: each takes an advisory lock in its
// transaction before it looks. A claim therefore sees every row that others have claimed,
// and takes rows in the order of seq whose key nobody has. Rows are found by their status
// and not by a position that moves on, so a transaction that is committed late, with a
// smaller seq than rows that are sent already, is not passed over; its rows come after
// those that were committed before it, which is the order of the commits. There is no SKIP
// LOCKED: it would pass over an earlier row of a key and take a later one.
//
// # Cost
//
// One turn of a drainer, which settles and claims, is one round trip: the statements are
// sent together and are one transaction, so a drainer that is stopped in the middle holds
// no lock. A look at an empty outbox writes nothing and takes no lock. New rows wake
// drainers by NOTIFY.
package postgres

import (
	"context"
	"database/sql"
	_ "embed" // the schema
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"eventhub"
	"eventhub/outbox"
	"eventhub/outbox/internal/columns"
)

// Version is the version of the table.
const Version = 1

// Schema makes the table, for migration tools. Every statement in it is idempotent. The
// table is in the first schema of the search path.
//
//go:embed schema.sql
var Schema string

// Store is an outbox in one database. Its methods are safe for concurrent use.
type Store struct {
	pool *pgxpool.Pool
	ear  *ear
	// Now is the clock for leases; nil, as New leaves it, for that of the database, which
	// all drainers share.
	Now func() time.Time
}

var (
	_ outbox.Store  = (*Store)(nil)
	_ outbox.Waiter = (*Store)(nil)
)

// New returns the outbox of a database. It does not use the database yet. The store has a
// connection of its own beside the pool once Wait was called; Close gives it up.
func New(pool *pgxpool.Pool) *Store { return &Store{pool: pool, ear: newEar(pool)} }

// Close ends the store's own connection, and not the pool.
func (s *Store) Close() { s.ear.close() }

// SQLExecer runs a statement with package database/sql: a *sql.Tx, above all.
type SQLExecer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Execer runs a statement with package pgx: a pgx.Tx, above all.
type Execer interface {
	Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error)
}

// Add adds events to the outbox within the transaction tx of the caller, and returns their
// ids. They are published after the transaction is committed, and never if it is rolled
// back. An event that a hub would refuse is refused here, with the error of the hub and its
// index among the events; nothing of the call is added then.
func Add(ctx context.Context, tx Execer, events ...eventhub.Event) ([]string, error) {
	return insert(events, func(query string, args ...any) error {
		_, err := tx.Exec(ctx, query, args...)
		return err
	})
}

// AddSQL is Add for a transaction of package database/sql.
func AddSQL(ctx context.Context, tx SQLExecer, events ...eventhub.Event) ([]string, error) {
	return insert(events, func(query string, args ...any) error {
		_, err := tx.ExecContext(ctx, query, args...)
		return err
	})
}

// insertMost bounds the rows of one statement: a statement has at most 65,535 values.
const insertMost = 1000

const insertValues = 9 // a row

func insert(events []eventhub.Event, exec func(query string, args ...any) error) ([]string, error) {
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
	for len(rows) > 0 {
		n := min(len(rows), insertMost)
		query := make([]byte, 0, 200+n*80)
		query = append(query, `INSERT INTO eventhub_outbox (id, topic, key, payload, headers, tags, caused_by, sid, ts) VALUES `...)
		args := make([]any, 0, n*insertValues)
		for i, c := range rows[:n] {
			if i > 0 {
				query = append(query, ", "...)
			}
			a := i * insertValues
			query = fmt.Appendf(query, "($%d, $%d, nullif($%d, ''), $%d, nullif($%d, ''), nullif($%d, ''), nullif($%d, ''), nullif($%d, ''), $%d::bigint)",
				a+1, a+2, a+3, a+4, a+5, a+6, a+7, a+8, a+9)
			args = append(args, c.ID, c.Topic, c.Key, c.Payload, c.Headers, c.Tags, c.CausedBy, c.SID, c.TS)
		}
		if err := exec(string(query), args...); err != nil {
			return nil, fmt.Errorf("outbox: adding %d events from %s on: %w", n, rows[0].ID, err)
		}
		rows = rows[n:]
	}
	return ids, nil
}

// Migrate makes the table where it is not there. Several programs may call it at a time.
func (s *Store) Migrate(ctx context.Context) error {
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		// CREATE … IF NOT EXISTS of two transactions at a time can fail.
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, migrateLock); err != nil {
			return fmt.Errorf("outbox: locking: %w", err)
		}
		err := check(ctx, tx)
		if err == nil || err != outbox.ErrNoTable {
			return err // it is there, or it is one that must be left alone
		}
		if _, err := tx.Exec(ctx, Schema); err != nil {
			return fmt.Errorf("outbox: making the table: %w", err)
		}
		return check(ctx, tx)
	})
}

// migrateLock is the advisory lock of Migrate: "eventhub" in ASCII.
const migrateLock int64 = 0x6576656e74687562

// Check implements [outbox.Table].
func (s *Store) Check(ctx context.Context) error { return check(ctx, s.pool) }

func check(ctx context.Context, q interface {
	QueryRow(ctx context.Context, query string, args ...any) pgx.Row
}) error {
	var there bool
	var version *int
	const has = `SELECT to_regclass('eventhub_outbox') IS NOT NULL AND to_regclass('eventhub_outbox_version') IS NOT NULL`
	if err := q.QueryRow(ctx, has).Scan(&there); err != nil {
		return fmt.Errorf("outbox: reading the database: %w", err)
	}
	if !there {
		return outbox.ErrNoTable
	}
	if err := q.QueryRow(ctx, `SELECT max(version) FROM eventhub_outbox_version`).Scan(&version); err != nil {
		return fmt.Errorf("outbox: reading the version of the table: %w", err)
	}
	if version == nil { // whoever made it did not come to the end of the schema
		return outbox.ErrNoTable
	}
	return outbox.CheckVersion(*version, Version)
}
