package postgres

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"eventhub/outbox"
	"eventhub/outbox/internal/columns"
)

// fields are the columns of a row as collect reads them.
const fields = `seq, id, topic, coalesce(key, ''), payload, coalesce(headers, ''), coalesce(tags, ''), coalesce(caused_by, ''),
	coalesce(sid, ''), ts, status, coalesce(claimed_by, ''), coalesce(lease_until, 0), coalesce(retry_at, 0), attempts,
	coalesce(last_err, ''), coalesce(sent_at, 0), coalesce(event_offset, 0)`

// numbered is a row with its place in the table.
type numbered struct {
	seq int64
	outbox.Row
}

// collect reads rows of fields, and closes them.
func collect(rows pgx.Rows) ([]numbered, error) {
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (numbered, error) {
		var n numbered
		var c columns.Columns
		var lease, retry, sent, offset int64
		err := row.Scan(&n.seq, &c.ID, &c.Topic, &c.Key, &c.Payload, &c.Headers, &c.Tags, &c.CausedBy, &c.SID, &c.TS,
			&n.Status, &n.ClaimedBy, &lease, &retry, &n.Attempts, &n.LastError, &sent, &offset)
		n.Event, n.Broken = c.Event()
		n.LeaseUntil, n.RetryAt, n.SentAt, n.Offset = at(lease), at(retry), at(sent), uint64(offset)
		return n, err
	})
}

func at(millis int64) time.Time {
	if millis == 0 {
		return time.Time{}
	}
	return time.UnixMilli(millis)
}

// text is what PostgreSQL can keep of a text.
func text(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

func plain(all []numbered) []outbox.Row {
	rows := make([]outbox.Row, len(all))
	for i, n := range all {
		rows[i] = n.Row
	}
	return rows
}

func (s *Store) change(ctx context.Context, what, query string, args ...any) (int, error) {
	tag, err := s.pool.Exec(ctx, query, args...)
	if err != nil {
		return 0, fmt.Errorf("outbox: %s: %w", what, err)
	}
	return int(tag.RowsAffected()), nil
}

// Forget implements [outbox.Table].
func (s *Store) Forget(ctx context.Context, before time.Time, most int) (int, error) {
	return s.change(ctx, "removing what was sent", `DELETE FROM eventhub_outbox WHERE seq = ANY (ARRAY
		(SELECT seq FROM eventhub_outbox WHERE status = 'sent' AND sent_at < $1 ORDER BY sent_at LIMIT $2))`, before.UnixMilli(), most)
}

// Counts implements [outbox.Table].
func (s *Store) Counts(ctx context.Context) (n outbox.Counts, err error) {
	// The oldest pending row is the first one: rows of about one time are not told apart.
	const count = `SELECT (SELECT count(*) FROM eventhub_outbox WHERE status = 'pending'),
		(SELECT count(*) FROM eventhub_outbox WHERE status = 'claimed'), (SELECT count(*) FROM eventhub_outbox WHERE status = 'error'),
		coalesce(least((SELECT ts FROM eventhub_outbox WHERE status = 'pending' ORDER BY seq LIMIT 1),
			(SELECT min(ts) FROM eventhub_outbox WHERE status = 'claimed')), 0)`
	var oldest int64
	if err := s.pool.QueryRow(ctx, count).Scan(&n.Pending, &n.Claimed, &n.Parked, &oldest); err != nil {
		return n, fmt.Errorf("outbox: counting rows: %w", err)
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
	names := make([]string, len(statuses))
	for i, status := range statuses {
		names[i] = string(status)
	}
	rows, err := s.pool.Query(ctx, `SELECT `+fields+` FROM eventhub_outbox WHERE seq > $1 AND status = ANY ($2) ORDER BY seq LIMIT $3`, from, names, limit)
	if err != nil {
		return nil, fmt.Errorf("outbox: reading rows: %w", err)
	}
	all, err := collect(rows)
	if err != nil {
		return nil, fmt.Errorf("outbox: reading rows: %w", err)
	}
	return plain(all), nil
}

// Show implements [outbox.Keeper].
func (s *Store) Show(ctx context.Context, id string) (outbox.Row, error) {
	n, err := s.find(ctx, id)
	return n.Row, err
}

func (s *Store) find(ctx context.Context, id string) (numbered, error) {
	rows, err := s.pool.Query(ctx, `SELECT `+fields+` FROM eventhub_outbox WHERE id = $1`, text(id))
	if err != nil {
		return numbered{}, fmt.Errorf("outbox: reading row %q: %w", id, err)
	}
	all, err := collect(rows)
	if err != nil {
		return numbered{}, fmt.Errorf("outbox: reading row %q: %w", id, err)
	}
	if len(all) == 0 {
		return numbered{}, outbox.UnknownRow(id)
	}
	return all[0], nil
}

// Retry implements [outbox.Keeper].
func (s *Store) Retry(ctx context.Context, ids ...string) (int, error) {
	const retry = `UPDATE eventhub_outbox SET status = 'pending', attempts = 0, retry_at = NULL WHERE status = 'error'`
	var n int
	var err error
	if len(ids) == 0 {
		n, err = s.change(ctx, "retrying parked rows", retry)
	} else {
		cleaned := make([]string, len(ids))
		for i, id := range ids {
			cleaned[i] = text(id)
		}
		n, err = s.change(ctx, "retrying parked rows", retry+` AND id = ANY ($1)`, cleaned)
	}
	if err == nil && n > 0 {
		_, err = s.change(ctx, "notifying drainers", `SELECT pg_notify('eventhub_outbox', '')`)
	}
	return n, err
}

// Purge implements [outbox.Keeper].
func (s *Store) Purge(ctx context.Context, status outbox.Status, before time.Time) (int, error) {
	if err := outbox.CheckPurge(status); err != nil {
		return 0, err
	}
	return s.change(ctx, "removing rows", `DELETE FROM eventhub_outbox WHERE status = $1 AND ts < $2`, string(status), before.UnixMilli())
}
