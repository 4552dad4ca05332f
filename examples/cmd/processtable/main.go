// Command processtable keeps the states of processes, which the demo publishes to
// process.state, as a table in an SQLite file, for everything that can read one:
//
//	sqlite3 processes.db 'SELECT name, pid, status FROM processes ORDER BY name'
//
// It goes on where it was when it is started again. Package projector does the work.
package main

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"os"

	_ "modernc.org/sqlite" // the driver

	"eventhub"
	"eventhub/client"
	"eventhub/examples/cmd/internal/remote"
	"eventhub/internal/demo/process"
	"eventhub/projector"
)

const table = `CREATE TABLE IF NOT EXISTS processes (
	id TEXT PRIMARY KEY, host TEXT NOT NULL, name TEXT NOT NULL, pid INTEGER NOT NULL,
	cpu_pct REAL NOT NULL, mem_mb REAL NOT NULL, status TEXT NOT NULL, last_seen TEXT NOT NULL)`

func main() {
	var file, http string
	program := remote.Program{
		Name: "processtable",
		Does: "keeps the states of " + process.StateTopic + " as table processes in an SQLite file",
		Flags: func(flags *flag.FlagSet) {
			flags.StringVar(&file, "file", "processes.db", "the `file` of the table")
			flags.StringVar(&http, "http", cmp.Or(os.Getenv("EVENTHUB_HTTP"), "http://127.0.0.1:8081"), "the hub's HTTP `address`, also in EVENTHUB_HTTP")
		},
		Work: func(ctx context.Context, c *client.Client, log *slog.Logger) error {
			return keep(ctx, c, http, file, log)
		},
	}
	program.Main()
}

func keep(ctx context.Context, c *client.Client, http, file string, log *slog.Logger) error {
	db, err := sql.Open("sqlite", "file:"+file+"?_txlock=immediate&_pragma=busy_timeout(5000)&_pragma=journal_mode(wal)")
	if err != nil {
		return err
	}
	defer db.Close()
	if err := projector.Migrate(ctx, db); err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, table); err != nil {
		return fmt.Errorf("making the table: %w", err)
	}
	past, err := client.NewAdmin(http)
	if err != nil {
		return err
	}
	defer past.Close()
	processes := projector.Projection{Name: "processes", Topics: []string{process.StateTopic}, Apply: apply, Reset: reset}
	p, err := projector.New(db, c, past, processes, projector.Options{Log: log})
	if err != nil {
		return err
	}
	return p.Run(ctx)
}

func apply(ctx context.Context, tx *sql.Tx, e *eventhub.Event) error {
	if string(e.Payload) == "null" {
		_, err := tx.ExecContext(ctx, `DELETE FROM processes WHERE id = ?`, e.Key)
		return err
	}
	var s process.State
	if err := json.Unmarshal(e.Payload, &s); err != nil {
		return eventhub.Terminal(fmt.Errorf("the state of %s: %w", e.Key, err))
	}
	_, err := tx.ExecContext(ctx, `INSERT OR REPLACE INTO processes (id, host, name, pid, cpu_pct, mem_mb, status, last_seen)
		VALUES (?, ?, ?, ?, ?, ?, ?, strftime('%Y-%m-%d %H:%M:%S', ? / 1000, 'unixepoch'))`,
		e.Key, s.Host, s.Name, s.PID, s.CPU, s.Mem, string(s.Status), s.LastSeenTS)
	return err
}

func reset(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, `DELETE FROM processes`)
	return err
}
