package inbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"eventhub"
	"eventhub/hubtest"
	"eventhub/inbox"
	"eventhub/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// each runs a test with the inbox of each database.
func each(t *testing.T, test func(t *testing.T, db *sql.DB, i *inbox.Inbox)) {
	for driver, url := range map[string]func(t *testing.T) string{
		"sqlite": func(t *testing.T) string {
			return "file:" + filepath.Join(t.TempDir(), "service.db") + "?_txlock=immediate&_pragma=busy_timeout(20000)&_pragma=journal_mode(wal)&_pragma=synchronous(off)"
		},
		"pgx": func(t *testing.T) string { return pgtest.Shared(t) },
	} {
		t.Run(driver, func(t *testing.T) {
			db, err := sql.Open(driver, url(t))
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			i := inbox.New(db)
			if err := i.Check(t.Context()); err == nil {
				t.Error("there is a table already")
			}
			for range 2 {
				if err := i.Migrate(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			exec(t, db, `CREATE TABLE effects (key text PRIMARY KEY, n integer NOT NULL)`)
			test(t, db, i)
		})
	}
}

func exec(t *testing.T, db *sql.DB, query string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), query, args...); err != nil {
		t.Fatal(err)
	}
}

func count(t *testing.T, db *sql.DB, query string) (n int) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func event(topic, id string) *eventhub.Event { return &eventhub.Event{Topic: topic, ID: id} }

// once records an event in a transaction of its own, which is committed or not.
func once(t *testing.T, db *sql.DB, i *inbox.Inbox, group string, e *eventhub.Event, commit bool) bool {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	first, err := i.Once(t.Context(), tx, group, e)
	if err != nil {
		t.Fatal(err)
	}
	if commit {
		err = tx.Commit()
	} else {
		err = tx.Rollback()
	}
	if err != nil {
		t.Fatal(err)
	}
	return first
}

func TestOnce(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB, i *inbox.Inbox) {
		for n, c := range []struct {
			group, topic, id string
			commit, want     bool
		}{
			{"g", "t", "1", false, true}, // rolled back
			{"g", "t", "1", true, true},
			{"g", "t", "1", true, false},
			{"g", "t", "2", true, true},
			{"g", "u", "1", true, true},
			{"h", "t", "1", true, true},
			{"h", "t", "1", true, false},
		} {
			if first := once(t, db, i, c.group, event(c.topic, c.id), c.commit); first != c.want {
				t.Errorf("step %d: first is %v", n, first)
			}
		}
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback()
		for _, bad := range []*eventhub.Event{event("t", ""), event("", "1")} {
			if _, err := i.Once(t.Context(), tx, "g", bad); eventhub.ErrorCode(err) != eventhub.CodeBadRequest {
				t.Errorf("%v: %v", bad, err)
			}
		}
		if _, err := i.Once(t.Context(), tx, "no group!", event("t", "1")); err == nil {
			t.Error("a group with a bad name is taken")
		}
	})
}

// Of transactions that are open at a time the effect of one is committed, also where the
// first of them is rolled back.
func TestOnceTogether(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB, i *inbox.Inbox) {
		const events, workers = 20, 5
		for n := range events {
			exec(t, db, `INSERT INTO effects (key, n) VALUES ($1, 0)`, fmt.Sprint(n))
		}
		failed := make(chan error)
		for w := range workers {
			go func() {
				for n := range events {
					if err := apply(db, i, n, (w+n)%workers != 0); err != nil {
						failed <- err
						return
					}
				}
				failed <- nil
			}()
		}
		for range workers {
			if err := <-failed; err != nil {
				t.Fatal(err)
			}
		}
		if n := count(t, db, `SELECT count(*) FROM effects WHERE n = 1`); n != events {
			t.Errorf("%d of %d effects are there once", n, events)
		}
	})
}

// apply has the effect of an event, or changes its mind.
func apply(db *sql.DB, i *inbox.Inbox, n int, commit bool) error {
	ctx := context.Background()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // nothing after a commit
	first, err := i.Once(ctx, tx, "g", event("t", fmt.Sprint(n)))
	if err != nil {
		return err
	}
	if first {
		if _, err := tx.ExecContext(ctx, `UPDATE effects SET n = n + 1 WHERE key = $1`, fmt.Sprint(n)); err != nil {
			return err
		}
	}
	if !commit {
		return nil
	}
	return tx.Commit()
}

func TestTrim(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB, i *inbox.Inbox) {
		now := time.Now()
		i.Now = func() time.Time { return now.Add(-time.Hour) }
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for n := range 2001 { // in several pieces
			if _, err := i.Once(t.Context(), tx, "g", event("t", fmt.Sprint(n))); err != nil {
				t.Fatal(err)
			}
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		i.Now = func() time.Time { return now }
		once(t, db, i, "g", event("t", "young"), true)
		for _, want := range []int{0, 2001, 0} {
			if n, err := i.Trim(t.Context(), map[bool]time.Duration{true: 2 * time.Hour, false: time.Minute}[want == 0]); n != want || err != nil {
				t.Errorf("%d records, %v; want %d", n, err, want)
			}
		}
		if once(t, db, i, "g", event("t", "young"), true) {
			t.Error("a young record was removed")
		}
	})
}

func TestVersion(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB, i *inbox.Inbox) {
		exec(t, db, `UPDATE eventhub_inbox_version SET version = 7`)
		if err := i.Migrate(t.Context()); eventhub.ErrorCode(err) != eventhub.CodeConflict {
			t.Errorf("a newer table: %v", err)
		}
	})
}

// TestHandle: with a hub that delivers again after each failure, in the effect, at the commit
// and after it, each event has its effect once.
func TestHandle(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB, i *inbox.Inbox) {
		h := hubtest.Start(t)
		c := h.Client()
		const events = 10
		exec(t, db, `INSERT INTO effects (key, n) VALUES ('all', 0)`)
		for n := range events {
			if _, err := c.Publish(t.Context(), eventhub.Event{Topic: "t", Payload: fmt.Append(nil, n)}); err != nil {
				t.Fatal(err)
			}
		}
		effects, calls := 0, 0
		handle := i.Handle("g", func(ctx context.Context, tx *sql.Tx, d eventhub.Delivery) error {
			effects++
			if _, err := tx.ExecContext(ctx, `UPDATE effects SET n = n + 1 WHERE key = 'all'`); err != nil {
				return err
			}
			if effects%3 == 0 {
				return eventhub.RetryAfter(time.Millisecond, errors.New("the effect fails"))
			}
			return nil
		})
		again := func(ctx context.Context, d eventhub.Delivery) error {
			if err := handle(ctx, d); err != nil {
				return err
			}
			if calls++; calls%4 == 0 {
				return eventhub.RetryAfter(time.Millisecond, errors.New("the ack is lost"))
			}
			return nil
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- eventhub.Consume(ctx, c, eventhub.GroupOptions{Topic: "t", Group: "g", Start: eventhub.Earliest, MaxAttempts: 100, Concurrency: 1}, again)
		}()
		h.WaitFor("t", "g")
		stop()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		if n := count(t, db, `SELECT n FROM effects`); n != events || effects <= events || calls <= events {
			t.Errorf("%d effects of %d events, after %d tries and %d deliveries", n, events, effects, calls)
		}
	})
}
