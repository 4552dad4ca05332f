package crashtest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"eventhub"
	"eventhub/client"
	"eventhub/inbox"
	"eventhub/outbox/postgres"
	"eventhub/outbox/sqlite"
	"eventhub/projector"
)

// sqlBooks are the books in SQLite or PostgreSQL: the counts are a table of their own, which
// is changed in the transaction that adds to the outbox.
type sqlBooks struct {
	*sql.DB
	postgres bool
}

func newSQLBooks(url string) (*sqlBooks, error) {
	driver, name := "pgx", url
	if path, ok := strings.CutPrefix(url, "sqlite:"); ok {
		driver, name = "sqlite", "file:"+path+"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(wal)"
	}
	db, err := sql.Open(driver, name)
	return &sqlBooks{db, driver == "pgx"}, err
}

func (b *sqlBooks) close() { b.Close() }

func (b *sqlBooks) prepare(ctx context.Context) error {
	queries := []string{
		`CREATE TABLE counters (key integer PRIMARY KEY, n integer NOT NULL)`,
		`CREATE TABLE effects (key text PRIMARY KEY, n integer NOT NULL)`,
	}
	for key := range keys {
		queries = append(queries,
			fmt.Sprintf(`INSERT INTO counters (key, n) VALUES (%d, 0)`, key),
			fmt.Sprintf(`INSERT INTO effects (key, n) VALUES ('k%d', 0)`, key))
	}
	for _, query := range queries {
		if _, err := b.ExecContext(ctx, query); err != nil {
			return err
		}
	}
	table, err := projector.NewTable("latest")
	if err != nil {
		return err
	}
	return errors.Join(inbox.New(b).Migrate(ctx), projector.Migrate(ctx, b.DB), table.Create(ctx, b.DB))
}

func (b *sqlBooks) change(ctx context.Context, r *rand.Rand) (err error) {
	tx, err := b.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = tx.Rollback()
		}
	}()
	// The keys of one transaction are locked in one order, so that two do not wait for each other.
	for key := r.IntN(keys); key < keys; key += 1 + r.IntN(keys) {
		var n int
		if err := tx.QueryRowContext(ctx, `UPDATE counters SET n = n + 1 WHERE key = $1 RETURNING n`, key).Scan(&n); err != nil {
			return err
		}
		if err := b.add(ctx, tx, eventOf(key, n)); err != nil {
			return err
		}
	}
	if r.IntN(5) == 0 {
		return errChanged
	}
	return tx.Commit()
}

// add adds an event to the outbox.
func (b *sqlBooks) add(ctx context.Context, tx *sql.Tx, e eventhub.Event) error {
	var err error
	if b.postgres {
		_, err = postgres.AddSQL(ctx, tx, e)
	} else {
		_, err = sqlite.Add(ctx, tx, e)
	}
	return err
}

func (b *sqlBooks) consumer() eventhub.Handler {
	return inbox.New(b).Handle("effects", func(ctx context.Context, tx *sql.Tx, d eventhub.Delivery) error {
		_, err := tx.ExecContext(ctx, `UPDATE effects SET n = n + 1 WHERE key = $1`, string(d.Record.Key()))
		return err
	})
}

func (b *sqlBooks) projects() bool { return true }

// project keeps the newest event of each key.
func (b *sqlBooks) project(ctx context.Context, hub, http string) error {
	table, err := projector.NewTable("latest")
	if err != nil {
		return err
	}
	c, err := client.Dial(ctx, hub)
	if err != nil {
		return err
	}
	defer c.Close()
	a, err := client.NewAdmin(http)
	if err != nil {
		return err
	}
	defer a.Close()
	p, err := projector.New(b.DB, c, a, table.Projection("latest", topic), projector.Options{})
	if err != nil {
		return err
	}
	return p.Run(ctx)
}

func (b *sqlBooks) committed(ctx context.Context) (map[string]int, error) {
	return b.numbers(ctx, `SELECT 'k' || key, n FROM counters WHERE n > 0`)
}

func (b *sqlBooks) effects(ctx context.Context) (map[string]int, error) {
	return b.numbers(ctx, `SELECT key, n FROM effects WHERE n > 0`)
}

func (b *sqlBooks) projected(ctx context.Context) (map[string]int, error) {
	return b.numbers(ctx, `SELECT key, CAST(replace(replace(payload, '{"n":', ''), '}', '') AS integer) FROM latest`)
}

// numbers are the rows of a query for a key and a number.
func (b *sqlBooks) numbers(ctx context.Context, query string) (map[string]int, error) {
	rows, err := b.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	all := make(map[string]int)
	for rows.Next() {
		var key string
		var n int
		if err := rows.Scan(&key, &n); err != nil {
			return nil, err
		}
		all[key] = n
	}
	return all, rows.Err()
}
