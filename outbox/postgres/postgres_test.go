package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	"eventhub"
	"eventhub/internal/pgtest"
	"eventhub/outbox/outboxtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func open(t testing.TB) (*pgxpool.Pool, *Store) {
	t.Helper()
	config, err := pgxpool.ParseConfig(pgtest.Shared(t))
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 60 // as many transactions may be open in a test
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s := New(pool)
	t.Cleanup(s.Close)
	if err := s.Migrate(context.Background()); err != nil {
		t.Fatal(err)
	}
	return pool, s
}

func TestConformance(t *testing.T) { outboxtest.Run(t, place) }

func place(t *testing.T) *outboxtest.Place {
	pool, s := open(t)
	ctx := context.Background()
	begin := func(events ...eventhub.Event) ([]string, func(bool) error, error) {
		tx, err := pool.Begin(ctx)
		if err != nil {
			return nil, nil, err
		}
		ids, err := Add(ctx, tx, events...)
		if err != nil {
			return nil, nil, errors.Join(err, tx.Rollback(ctx))
		}
		return ids, func(commit bool) error {
			if commit {
				return tx.Commit(ctx)
			}
			return tx.Rollback(ctx)
		}, nil
	}
	exec := func(query string, args ...any) error {
		_, err := pool.Exec(ctx, query, args...)
		return err
	}
	return &outboxtest.Place{
		Store:      s,
		Begin:      begin,
		Concurrent: true,
		Add: func(events ...eventhub.Event) ([]string, error) {
			ids, end, err := begin(events...)
			if err != nil {
				return nil, err
			}
			return ids, end(true)
		},
		Insert: func(r outboxtest.Raw) error {
			into, values, args := "topic, payload", "$1, $2", []any{r.Topic, r.Payload}
			for name, value := range map[string]string{"id": r.ID, "key": r.Key, "headers": r.Headers, "status": r.Status} {
				if value != "" {
					args = append(args, value)
					into, values = into+", "+name, fmt.Sprintf("%s, $%d", values, len(args))
				}
			}
			return exec(fmt.Sprintf(`INSERT INTO eventhub_outbox (%s) VALUES (%s)`, into, values), args...)
		},
		SetNow:     func(now time.Time) { s.Now = func() time.Time { return now } },
		SetVersion: func(v int) error { return exec(`UPDATE eventhub_outbox_version SET version = $1`, v) },
		Unfinish:   func() error { return exec(`DELETE FROM eventhub_outbox_version`) },
		Drop: func() error {
			return exec(`DROP TABLE IF EXISTS eventhub_outbox; DROP TABLE IF EXISTS eventhub_outbox_version`)
		},
	}
}

func TestAddSQL(t *testing.T) {
	pool, s := open(t)
	db, err := sql.Open("pgx", pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, commit := range []bool{false, true} {
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		var events []eventhub.Event
		for i := range 2500 { // several statements
			events = append(events, eventhub.Event{Topic: "t", Payload: fmt.Append(nil, i)})
		}
		if _, err := AddSQL(t.Context(), tx, events...); err != nil {
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
		n, err := s.Counts(t.Context())
		if want := map[bool]int{true: 2500}[commit]; err != nil || n.Pending != want {
			t.Errorf("%d rows, %v; want %d", n.Pending, err, want)
		}
	}
	rows, err := s.List(t.Context(), nil, "", 2500)
	if err != nil || len(rows) != 2500 || string(rows[2499].Event.Payload) != "2499" {
		t.Errorf("%d rows, %v", len(rows), err)
	}
}

// Several programs make the table at the same time.
func TestMigrateTogether(t *testing.T) {
	pool, err := pgxpool.New(t.Context(), pgtest.Shared(t))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	failed := make(chan error)
	for range 8 {
		go func() { failed <- New(pool).Migrate(context.Background()) }()
	}
	for range 8 {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
}

// A wait ends when a row is there, also when it came between two waits, and is as long as
// asked for where none comes.
func TestWait(t *testing.T) {
	pool, s := open(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	woken := func() {
		t.Helper()
		if err := s.Wait(ctx, time.Hour); err != nil || ctx.Err() != nil {
			t.Fatalf("nothing has woken the wait: %v", err)
		}
	}
	add := func() {
		t.Helper()
		if err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			_, err := Add(ctx, tx, eventhub.Event{Topic: "t", Payload: []byte("1")})
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	woken() // the first one begins to listen
	add()
	woken()
	if err := s.Wait(ctx, time.Millisecond); err != nil {
		t.Errorf("a wait for nothing: %v", err)
	}
	add()
	woken()
	// The connection is lost: a wait ends, for what came since is not notified. The next one
	// makes another connection, and then it notices again.
	if _, err := pool.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'`); err != nil {
		t.Fatal(err)
	}
	woken()
	woken()
	add()
	woken()
}

// Each wait has a place: one that is stopped while another one listens ends at once.
func TestWaitTogether(t *testing.T) {
	_, s := open(t)
	if err := s.Wait(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 3)
	for range 3 {
		go func() { ended <- s.Wait(ctx, time.Hour) }()
	}
	cancel()
	for range 3 {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("a wait that was stopped: %v", err)
		}
	}
}
