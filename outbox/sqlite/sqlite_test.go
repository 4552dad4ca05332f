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
	"eventhub/outbox"
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
			for name, value := range map[string]string{"id": r.ID, "key": r.Key, "headers": r.Headers, "status": r.Status} {
				if value != "" {
					into, values, args = into+", "+name, values+", ?", append(args, value)
				}
			}
			return exec(fmt.Sprintf(`INSERT INTO eventhub_outbox (%s) VALUES (%s)`, into, values), args...)
		},
		SetNow:     func(now time.Time) { s.Now = func() time.Time { return now } },
		SetVersion: func(v int) error { return exec(`UPDATE eventhub_outbox_version SET version = ?`, v) },
		Unfinish:   func() error { return exec(`DELETE FROM eventhub_outbox_version`) },
		Drop: func() error {
			return errors.Join(exec(`DROP TABLE IF EXISTS eventhub_outbox`), exec(`DROP TABLE IF EXISTS eventhub_outbox_version`))
		},
	}
}

// TestOddRows: SQLite keeps a value of any type in any column. No such row prevents another one
// from being read, and none is claimed for ever.
func TestOddRows(t *testing.T) {
	db, s := open(t, "wal")
	for _, query := range []string{
		`INSERT INTO eventhub_outbox (id, topic, payload) VALUES ('good', 't', '1')`,
		`INSERT INTO eventhub_outbox (id, topic, payload, ts) VALUES ('real', 't', '1', 1764155555123.456)`,
		`INSERT INTO eventhub_outbox (id, topic, payload, ts) VALUES ('text', 't', '1', '2026-11-26 11:00:00')`,
		`INSERT INTO eventhub_outbox (id, topic, payload, attempts) VALUES ('attempts', 't', 1, 'many')`,
		`INSERT INTO eventhub_outbox (id, topic, payload, key) VALUES ('blob', 't', x'31', 7)`,
		`INSERT INTO eventhub_outbox (id, topic, payload, status) VALUES ('claimed', 't', '1', 'claimed')`,
		`INSERT INTO eventhub_outbox (id, topic, payload) VALUES ('', 't', '1')`,
	} {
		if _, err := db.ExecContext(t.Context(), query); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Counts(t.Context()); err != nil {
		t.Error(err)
	}
	rows, err := s.Turn(t.Context(), nil, outbox.Claim{Max: 100, Lease: time.Minute, Worker: "w", Order: outbox.ByKey})
	if err != nil || len(rows) != 7 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	times := map[string]int64{"real": 1764155555123, "text": 0}
	for _, r := range rows {
		if (r.Broken != nil) != (r.Event.ID == "") {
			t.Errorf("row %q: broken is %v", r.Event.ID, r.Broken)
		}
		if want, ok := times[r.Event.ID]; ok && r.Event.TS != want {
			t.Errorf("row %q has the time %d, want %d", r.Event.ID, r.Event.TS, want)
		}
	}
}
