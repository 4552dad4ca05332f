package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"eventhub"
	"eventhub/outbox"
)

// The time is that of the database, unless one is given. It is in epoch milliseconds.
const now = `coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)`

const (
	hasWork = `SELECT EXISTS (SELECT 1 FROM eventhub_outbox WHERE status = 'pending' AND (retry_at IS NULL OR retry_at <= ` + now + `))
		OR EXISTS (SELECT 1 FROM eventhub_outbox WHERE status = 'claimed' AND (lease_until IS NULL OR lease_until <= ` + now + `))`

	// The lock is of the table, wherever the search path has found it.
	lock = `SELECT pg_advisory_xact_lock('eventhub_outbox'::regclass::oid::integer, 1)`

	settleSent = `UPDATE eventhub_outbox o SET status = 'sent', sent_at = ` + now + `, event_offset = d.at, claimed_by = NULL,
			lease_until = NULL, retry_at = NULL, last_err = NULL
		FROM unnest($2::text[], $3::bigint[]) AS d (id, at) WHERE o.id = d.id AND o.status IN ('pending', 'claimed')`

	settleParked = `UPDATE eventhub_outbox o SET status = 'error', last_err = d.why, claimed_by = NULL, lease_until = NULL
		FROM unnest($2::text[], $3::text[]) AS d (id, why) WHERE o.id = d.id AND o.status = 'claimed' AND o.claimed_by = $1`

	settlePending = `UPDATE eventhub_outbox o SET status = 'pending', last_err = nullif(d.why, ''), retry_at = nullif(d.retry, 0),
			attempts = attempts - d.unused, claimed_by = NULL, lease_until = NULL
		FROM unnest($2::text[], $3::text[], $4::bigint[], $5::integer[]) AS d (id, why, retry, unused)
		WHERE o.id = d.id AND o.status = 'claimed' AND o.claimed_by = $1`

	requeue = `UPDATE eventhub_outbox SET status = 'pending', claimed_by = NULL, lease_until = NULL
		WHERE status = 'claimed' AND (lease_until IS NULL OR lease_until <= ` + now + `)`

	// The subqueries read the partial indexes of the few rows that are claimed or wait.
	claim = `UPDATE eventhub_outbox SET status = 'claimed', claimed_by = $2, lease_until = ` + now + ` + $3, retry_at = NULL, attempts = attempts + 1
		WHERE seq = ANY (ARRAY (SELECT seq FROM (SELECT seq, topic, key FROM eventhub_outbox
				WHERE status = 'pending' AND (retry_at IS NULL OR retry_at <= ` + now + `) ORDER BY seq LIMIT ` + window + `) o
			WHERE %s ORDER BY seq LIMIT $4))
		RETURNING ` + fields

	// A claim looks at so many rows that are due. Of more that are held up it takes none that stand after
	// them, until somebody has settled what holds them up: a look at millions of them, again and again,
	// would cost more.
	window = `20000`

	freeKey = `(key IS NULL OR key = '' OR
		NOT EXISTS (SELECT 1 FROM eventhub_outbox c WHERE c.status = 'claimed' AND c.topic = o.topic AND c.key = o.key) AND
		NOT EXISTS (SELECT 1 FROM eventhub_outbox w WHERE w.topic = o.topic AND w.key = o.key AND w.retry_at IS NOT NULL AND w.retry_at > ` + now + `))`

	freeTopic = `NOT EXISTS (SELECT 1 FROM eventhub_outbox c WHERE c.status = 'claimed' AND c.topic = o.topic) AND
		NOT EXISTS (SELECT 1 FROM eventhub_outbox w WHERE w.topic = o.topic AND w.retry_at IS NOT NULL AND w.retry_at > ` + now + `)`
)

var (
	claimByKey   = fmt.Sprintf(claim, freeKey)
	claimByTopic = fmt.Sprintf(claim, freeTopic)
)

// time returns the clock as the statements take it.
func (s *Store) time() *int64 {
	if s.Now == nil {
		return nil
	}
	at := s.Now().UnixMilli()
	return &at
}

// Turn implements [outbox.Table].
func (s *Store) Turn(ctx context.Context, settled []outbox.Outcome, c outbox.Claim) ([]outbox.Row, error) {
	at := s.time()
	if len(settled) == 0 {
		var any bool
		if err := s.pool.QueryRow(ctx, hasWork, at).Scan(&any); err != nil {
			return nil, fmt.Errorf("outbox: looking for rows: %w", err)
		}
		if !any {
			return nil, nil
		}
	}
	b := &pgx.Batch{}
	b.Queue(lock)
	for len(settled) > 0 {
		n := distinct(settled)
		queueSettled(b, settled[:n], c.Worker, at)
		settled = settled[n:]
	}
	b.Queue(requeue, at)
	claims := claimByKey
	if c.Order == outbox.ByTopic {
		claims = claimByTopic
	}
	if c.Max > 0 {
		b.Queue(claims, at, c.Worker, c.Lease.Milliseconds(), c.Max)
	}
	results := s.pool.SendBatch(ctx, b)
	rows, err := readTurn(results, b.Len(), c.Max > 0)
	// Close says whether the transaction is committed.
	if err = errors.Join(err, results.Close()); err != nil {
		return nil, fmt.Errorf("outbox: settling and claiming: %w", err)
	}
	return rows, nil
}

func readTurn(results pgx.BatchResults, statements int, claims bool) ([]outbox.Row, error) {
	if claims {
		statements--
	}
	for range statements {
		if _, err := results.Exec(); err != nil {
			return nil, err
		}
	}
	if !claims {
		return nil, nil
	}
	rows, err := results.Query()
	if err != nil {
		return nil, err
	}
	all, err := collect(rows)
	slices.SortFunc(all, func(a, b numbered) int { return cmp.Compare(a.seq, b.seq) })
	return plain(all), err
}

// distinct returns how many outcomes at the beginning are of a row each. A row may have several, where its lease
// has run out and the same worker has claimed it again; they count in their order, which one statement does not know.
func distinct(settled []outbox.Outcome) int {
	seen := make(map[string]struct{}, len(settled))
	for i := range settled {
		if _, again := seen[settled[i].ID]; again {
			return i
		}
		seen[settled[i].ID] = struct{}{}
	}
	return len(settled)
}

// queueSettled adds a statement for each kind of outcome that there is. Each is of a row of its own.
func queueSettled(b *pgx.Batch, settled []outbox.Outcome, worker string, at *int64) {
	var sent, parked, pending struct {
		ids, errs []string
		numbers   []int64
		unused    []int32
	}
	for _, o := range settled {
		switch o.Status {
		case outbox.Sent:
			sent.ids, sent.numbers = append(sent.ids, o.ID), append(sent.numbers, int64(o.Offset))
		case outbox.Parked:
			parked.ids, parked.errs = append(parked.ids, o.ID), append(parked.errs, text(o.Error))
		default:
			unused := int32(0)
			if o.Unused {
				unused = 1
			}
			pending.ids, pending.errs = append(pending.ids, o.ID), append(pending.errs, text(o.Error))
			pending.numbers, pending.unused = append(pending.numbers, eventhub.Millis(o.RetryAt)), append(pending.unused, unused)
		}
	}
	if len(sent.ids) > 0 {
		b.Queue(settleSent, at, sent.ids, sent.numbers)
	}
	if len(parked.ids) > 0 {
		b.Queue(settleParked, worker, parked.ids, parked.errs)
	}
	if len(pending.ids) > 0 {
		b.Queue(settlePending, worker, pending.ids, pending.errs, pending.numbers, pending.unused)
	}
}
