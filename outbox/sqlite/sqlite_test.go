package sqlite

import (
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
	_ "modernc.org/sqlite"

	"eventhub"
	"eventhub/outbox/outboxtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, mode string) (*sql.DB, *Store) {
	t.Helper()
	name := "file:" + filepath.Join(t.TempDir(), "service.db") + "?_pragma=busy_timeout(10000)&_pragma=synchronous(off)&_pragma=journal_mode(" + mode + ")"
	db, err := sql.Open("sqlite", name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	s := New(db)
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return db, s
}

func TestConformance(t *testing.T) {
	for _, mode := range []string{"wal", "delete"} {
		t.Run(mode, func(t *testing.T) {
			outboxtest.Run(t, func(t *testing.T) *outboxtest.Place { return place(t, mode) })
		})
	}
}

func place(t *testing.T, mode string) *outboxtest.Place {
	db, s := open(t, mode)
	begin := func(events ...eventhub.Event) ([]string, func(bool) error, error) {
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			return nil, nil, err
		}
		ids, err := Add(t.Context(), tx, events...)
		if err != nil {
			return nil, nil, errors.Join(err, tx.Rollback())
		}
		return ids, func(commit bool) error {
			if commit {
				return tx.Commit()
			}
			return tx.Rollback()
		}, nil
	}
	exec := func(query string, args ...any) error {
		_, err := db.ExecContext(t.Context(), query, args...)
		return err
	}
	return &outboxtest.Place{
		Store: s,
		Begin: begin,
		Add: func(events ...eventhub.Event) ([]string, error) {
			ids, end, err := begin(events...)
			if err != nil {
				return nil, err
			}
			return ids, end(true)
		},
		Insert: func(r outboxtest.Raw) error {
			into, values, args := "topic, payload", "?, ?", []any{r.Topic, r.Payload}
			for name, value := range map[string]string{"id": r.ID, "key": r.Key, "headers": r.Headers} {
				if value != "" {
					into, values, args = into+", "+name, values+", ?", append(args, value)
				}
			}
			return exec(fmt.Sprintf(`INSERT INTO eventhub_outbox (%s) VALUES (%s)`, into, values), args...)
		},
		SetNow:     func(now time.Time) { s.Now = func() time.Time { return now } },
		SetVersion: func(v int) error { return exec(`UPDATE eventhub_outbox_version SET version = ?`, v) },
		Drop: func() error {
			return errors.Join(exec(`DROP TABLE IF EXISTS eventhub_outbox`), exec(`DROP TABLE IF EXISTS eventhub_outbox_version`))
		},
	}
}
