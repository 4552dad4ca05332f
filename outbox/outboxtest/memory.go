package outboxtest

import (
	"context"
	"slices"
	"sync"
	"time"

	"eventhub"
	"eventhub/outbox"
	"eventhub/outbox/internal/columns"
)

// Memory is an outbox in memory, written to be read: it is what the suite compares tables
// with, and what drainers are tested with. Its methods are safe for concurrent use.
type Memory struct {
	mu     sync.Mutex
	rows   []*memoryRow // by place; nil for one that was removed
	absent bool         // there is no table
	newer  bool         // it is of a version to come
	now    func() time.Time
	// Fail, where not nil, is called before each Turn, whose error it returns.
	Fail func() error
}

type memoryRow struct {
	outbox.Row
	visible bool // its transaction is committed
}

var _ outbox.Store = (*Memory)(nil)

// NewMemory returns an empty outbox with a clock.
func NewMemory(now func() time.Time) *Memory { return &Memory{now: now} }

// Begin takes places for events in a transaction, which end commits or rolls back.
func (m *Memory) Begin(events ...eventhub.Event) (ids []string, end func(commit bool), err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var added []*memoryRow
	for i, e := range events {
		c, err := columns.Of(e, m.now())
		if err != nil {
			return nil, nil, eventhub.AtIndex(err, "", i)
		}
		added = append(added, m.row(c))
		ids = append(ids, c.ID)
	}
	from := len(m.rows)
	m.rows = append(m.rows, added...)
	return ids, func(commit bool) {
		m.mu.Lock()
		defer m.mu.Unlock()
		for i, r := range added {
			if r.visible = commit; !commit {
				m.rows[from+i] = nil
			}
		}
	}, nil
}

func (m *Memory) row(c columns.Columns) *memoryRow {
	r := &memoryRow{Row: outbox.Row{Status: outbox.Pending}}
	r.Event, r.Broken = c.Event()
	return r
}

// Add adds events in a transaction of their own.
func (m *Memory) Add(events ...eventhub.Event) ([]string, error) {
	ids, end, err := m.Begin(events...)
	if err == nil {
		end(true)
	}
	return ids, err
}

// Insert adds a row as another program writes it.
func (m *Memory) Insert(r Raw) {
	m.mu.Lock()
	defer m.mu.Unlock()
	row := m.row(columns.Columns{ID: r.ID, Topic: r.Topic, Key: r.Key, Payload: r.Payload, Headers: r.Headers, TS: m.now().UnixMilli()})
	row.visible = true
	m.rows = append(m.rows, row)
}

// Migrate implements [outbox.Migrator].
func (m *Memory) Migrate(context.Context) error { return m.Check(context.Background()) }

// Check implements [outbox.Table].
func (m *Memory) Check(context.Context) error {
	if m.absent {
		return outbox.ErrNoTable
	}
	if m.newer {
		return outbox.CheckVersion(2, 1)
	}
	return nil
}

// each calls f for the rows that are there, in their order.
func (m *Memory) each(f func(*memoryRow)) {
	for _, r := range m.rows {
		if r != nil && r.visible {
			f(r)
		}
	}
}

func (m *Memory) find(id string) (found *memoryRow) {
	m.each(func(r *memoryRow) {
		if r.Event.ID == id {
			found = r
		}
	})
	return found
}

// Turn implements [outbox.Table].
func (m *Memory) Turn(_ context.Context, settled []outbox.Outcome, c outbox.Claim) ([]outbox.Row, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.Fail != nil {
		if err := m.Fail(); err != nil {
			return nil, err
		}
	}
	now := m.now()
	for _, o := range settled {
		m.settle(o, c.Worker, now)
	}
	m.each(func(r *memoryRow) {
		if r.Status == outbox.Claimed && !r.LeaseUntil.After(now) {
			r.unclaim(outbox.Pending)
		}
	})
	type lane struct{ topic, key string }
	laneOf := func(r *memoryRow) lane {
		if c.Order == outbox.ByTopic {
			return lane{topic: r.Event.Topic}
		}
		return lane{r.Event.Topic, r.Event.Key}
	}
	held := make(map[lane]bool)
	m.each(func(r *memoryRow) {
		if r.Status == outbox.Claimed || r.Status == outbox.Pending && r.RetryAt.After(now) {
			held[laneOf(r)] = true
		}
	})
	var rows []outbox.Row
	m.each(func(r *memoryRow) {
		unordered := c.Order == outbox.ByKey && r.Event.Key == ""
		if len(rows) >= c.Max || r.Status != outbox.Pending || r.RetryAt.After(now) || !unordered && held[laneOf(r)] {
			return
		}
		r.Status, r.ClaimedBy, r.LeaseUntil, r.RetryAt = outbox.Claimed, c.Worker, now.Add(c.Lease), time.Time{}
		r.Attempts++
		rows = append(rows, r.Row)
	})
	return rows, nil
}

func (m *Memory) settle(o outbox.Outcome, worker string, now time.Time) {
	r := m.find(o.ID)
	if r == nil {
		return
	}
	mine := r.Status == outbox.Claimed && r.ClaimedBy == worker
	switch {
	case o.Status == outbox.Sent && (r.Status == outbox.Pending || r.Status == outbox.Claimed):
		r.unclaim(outbox.Sent)
		r.SentAt, r.Offset, r.LastError, r.RetryAt = now, o.Offset, "", time.Time{}
	case o.Status == outbox.Parked && mine:
		r.unclaim(outbox.Parked)
		r.LastError = o.Error
	case o.Status == outbox.Pending && mine:
		r.unclaim(outbox.Pending)
		r.LastError, r.RetryAt = o.Error, o.RetryAt
		if o.Unused {
			r.Attempts--
		}
	}
}

func (r *memoryRow) unclaim(status outbox.Status) {
	r.Status, r.ClaimedBy, r.LeaseUntil = status, "", time.Time{}
}

// remove removes up to most rows that match, and returns how many.
func (m *Memory) remove(most int, match func(*memoryRow) bool) (n int) {
	for i, r := range m.rows {
		if r != nil && r.visible && n < most && match(r) {
			m.rows[i] = nil
			n++
		}
	}
	return n
}

// Forget implements [outbox.Table]. Rows are sent in any order here: the oldest are those
// that stand first.
func (m *Memory) Forget(_ context.Context, before time.Time, most int) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.remove(most, func(r *memoryRow) bool { return r.Status == outbox.Sent && r.SentAt.Before(before) }), nil
}

// Counts implements [outbox.Table].
func (m *Memory) Counts(context.Context) (n outbox.Counts, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	oldest := func(r *memoryRow) {
		if at := r.Event.Time(); n.Oldest.IsZero() || at.Before(n.Oldest) {
			n.Oldest = at
		}
	}
	m.each(func(r *memoryRow) {
		switch r.Status {
		case outbox.Pending:
			n.Pending++
			oldest(r)
		case outbox.Claimed:
			n.Claimed++
			oldest(r)
		case outbox.Parked:
			n.Parked++
		}
	})
	return n, nil
}

// List implements [outbox.Keeper].
func (m *Memory) List(_ context.Context, statuses []outbox.Status, after string, limit int) (rows []outbox.Row, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if after != "" && m.find(after) == nil {
		return nil, outbox.UnknownRow(after)
	}
	passed := after == ""
	m.each(func(r *memoryRow) {
		if passed && len(rows) < limit && (len(statuses) == 0 || slices.Contains(statuses, r.Status)) {
			rows = append(rows, r.Row)
		}
		passed = passed || r.Event.ID == after
	})
	return rows, nil
}

// Show implements [outbox.Keeper].
func (m *Memory) Show(_ context.Context, id string) (outbox.Row, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.find(id); r != nil {
		return r.Row, nil
	}
	return outbox.Row{}, outbox.UnknownRow(id)
}

// Retry implements [outbox.Keeper].
func (m *Memory) Retry(_ context.Context, ids ...string) (n int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.each(func(r *memoryRow) {
		if r.Status == outbox.Parked && (len(ids) == 0 || slices.Contains(ids, r.Event.ID)) {
			r.Status, r.Attempts, r.RetryAt = outbox.Pending, 0, time.Time{}
			n++
		}
	})
	return n, nil
}

// Purge implements [outbox.Keeper].
func (m *Memory) Purge(_ context.Context, status outbox.Status, before time.Time) (int, error) {
	if err := outbox.CheckPurge(status); err != nil {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.remove(len(m.rows), func(r *memoryRow) bool { return r.Status == status && r.Event.Time().Before(before) }), nil
}
