package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"eventhub/outbox"
	"eventhub/outbox/internal/columns"
)

// fields are the columns of a row as read takes them. SQLite keeps a value of any type in any column: a
// row with a time that is none must not prevent others from being read.
const fields = `seq, CAST(id AS TEXT), CAST(topic AS TEXT), CAST(coalesce(key, '') AS TEXT), CAST(payload AS TEXT),
	CAST(coalesce(headers, '') AS TEXT), CAST(coalesce(tags, '') AS TEXT), CAST(coalesce(caused_by, '') AS TEXT),
	CAST(coalesce(sid, '') AS TEXT), ` + addedAt + `, CAST(status AS TEXT), CAST(coalesce(claimed_by, '') AS TEXT),
	CAST(coalesce(lease_until, 0) AS INTEGER), CAST(coalesce(retry_at, 0) AS INTEGER), CAST(attempts AS INTEGER),
	CAST(coalesce(last_err, '') AS TEXT), CAST(coalesce(sent_at, 0) AS INTEGER), CAST(coalesce(event_offset, 0) AS INTEGER)`

// addedAt is ts where it is a number. The hub's time counts for others.
const addedAt = `CASE WHEN typeof(ts) IN ('integer', 'real') THEN CAST(ts AS INTEGER) ELSE 0 END`

type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// numbered is a row with its place in the table.
type numbered struct {
	seq int64
	outbox.Row
}

// read runs a query for fields.
func read(ctx context.Context, q querier, query string, args ...any) (all []numbered, err error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("outbox: reading rows: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var n numbered
		var c columns.Columns
		var lease, retry, sent int64
		if err := rows.Scan(&n.seq, &c.ID, &c.Topic, &c.Key, &c.Payload, &c.Headers, &c.Tags, &c.CausedBy, &c.SID, &c.TS,
			&n.Status, &n.ClaimedBy, &lease, &retry, &n.Attempts, &n.LastError, &sent, &n.Offset); err != nil {
			return nil, fmt.Errorf("outbox: reading a row: %w", err)
		}
		n.Event, n.Broken = c.Event()
		n.LeaseUntil, n.RetryAt, n.SentAt = at(lease), at(retry), at(sent)
		all = append(all, n)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("outbox: reading rows: %w", err)
	}
	return all, nil
}

func at(millis int64) time.Time {
	if millis == 0 {
		return time.Time{}
	}
	return time.UnixMilli(millis)
}

func plain(all []numbered) []outbox.Row {
	rows := make([]outbox.Row, len(all))
	for i, n := range all {
		rows[i] = n.Row
	}
	return rows
}

func claimRows(ctx context.Context, tx querier, c outbox.Claim, now int64) ([]outbox.Row, error) {
	free := freeKey
	if c.Order == outbox.ByTopic {
		free = freeTopic
	}
	all, err := read(ctx, tx, fmt.Sprintf(claim, free), now, c.Worker, now+c.Lease.Milliseconds(), c.Max)
	slices.SortFunc(all, func(a, b numbered) int { return cmp.Compare(a.seq, b.seq) })
	return plain(all), err
}

// Forget implements [outbox.Table].
func (s *Store) Forget(ctx context.Context, before time.Time, most int) (int, error) {
	return s.change(ctx, "removing what was sent", `DELETE FROM eventhub_outbox WHERE seq IN
		(SELECT seq FROM eventhub_outbox WHERE status = 'sent' AND sent_at < ? ORDER BY sent_at LIMIT ?)`, before.UnixMilli(), most)
}

func (s *Store) change(ctx context.Context, what, query string, args ...any) (int, error) {
	result, err := s.db.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, fmt.Errorf("outbox: %s: %w", what, err)
	}
	n, err := result.RowsAffected()
	return int(n), err
}

// Counts implements [outbox.Table].
func (s *Store) Counts(ctx context.Context) (n outbox.Counts, err error) {
	// The oldest pending row is the first one: rows of about one time are not told apart.
	const count = `SELECT (SELECT count(*) FROM eventhub_outbox WHERE status = 'pending'),
		(SELECT count(*) FROM eventhub_outbox WHERE status = 'claimed'), (SELECT count(*) FROM eventhub_outbox WHERE status = 'error'),
		(SELECT ` + addedAt + ` FROM eventhub_outbox WHERE status = 'pending' ORDER BY seq LIMIT 1),
		(SELECT min(` + addedAt + `) FROM eventhub_outbox WHERE status = 'claimed')`
	var pending, claimed sql.NullInt64
	if err := s.db.QueryRowContext(ctx, count).Scan(&n.Pending, &n.Claimed, &n.Parked, &pending, &claimed); err != nil {
		return n, fmt.Errorf("outbox: counting rows: %w", err)
	}
	oldest := pending.Int64
	if claimed.Valid && (!pending.Valid || claimed.Int64 < oldest) {
		oldest = claimed.Int64
	}
	n.Oldest = at(oldest)
	return n, nil
}

// List implements [outbox.Keeper].
func (s *Store) List(ctx context.Context, statuses []outbox.Status, after string, limit int) ([]outbox.Row, error) {
	var from int64
	if after != "" {
		n, err := s.find(ctx, after)
		if err != nil {
			return nil, err
		}
		from = n.seq
	}
	if len(statuses) == 0 {
		statuses = outbox.Statuses
	}
	args := []any{from}
	for _, status := range statuses {
		args = append(args, string(status))
	}
	all, err := read(ctx, s.db, `SELECT `+fields+` FROM eventhub_outbox WHERE seq > ? AND status IN (?`+
		strings.Repeat(", ?", len(statuses)-1)+`) ORDER BY seq LIMIT ?`, append(args, limit)...)
	return plain(all), err
}

// Show implements [outbox.Keeper].
func (s *Store) Show(ctx context.Context, id string) (outbox.Row, error) {
	n, err := s.find(ctx, id)
	return n.Row, err
}

func (s *Store) find(ctx context.Context, id string) (numbered, error) {
	all, err := read(ctx, s.db, `SELECT `+fields+` FROM eventhub_outbox WHERE id = ?`, id)
	if err == nil && len(all) == 0 {
		err = outbox.UnknownRow(id)
	}
	if err != nil {
		return numbered{}, err
	}
	return all[0], nil
}

// Retry implements [outbox.Keeper].
func (s *Store) Retry(ctx context.Context, ids ...string) (n int, err error) {
	const retry = `UPDATE eventhub_outbox SET status = 'pending', attempts = 0, retry_at = NULL WHERE status = 'error'`
	if len(ids) == 0 {
		return s.change(ctx, "retrying parked rows", retry)
	}
	err = s.write(ctx, func(tx Execer) error {
		for _, id := range ids {
			result, err := tx.ExecContext(ctx, retry+` AND id = ?`, id)
			if err != nil {
				return fmt.Errorf("outbox: retrying row %s: %w", id, err)
			}
			one, err := result.RowsAffected()
			if err != nil {
				return err
			}
			n += int(one)
		}
		return nil
	})
	return n, err
}

// Purge implements [outbox.Keeper].
func (s *Store) Purge(ctx context.Context, status outbox.Status, before time.Time) (int, error) {
	if err := outbox.CheckPurge(status); err != nil {
		return 0, err
	}
	return s.change(ctx, "removing rows", `DELETE FROM eventhub_outbox WHERE status = ? AND ts < ?`, string(status), before.UnixMilli())
}
