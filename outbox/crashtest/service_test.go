package crashtest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"eventhub"
	"eventhub/client"
	"eventhub/inbox"
	"eventhub/outbox/postgres"
	"eventhub/outbox/sqlite"
	"eventhub/projector"
)

const (
	// roleEnv makes this test binary one of the programs around a database.
	roleEnv = "EVENTHUB_CRASHTEST_ROLE"

	topic = "counter.changed"
	keys  = 6
)

// database is how a service uses the database that it has.
type database struct {
	*sql.DB
	postgres bool
}

func openDatabase(url string) (*database, error) {
	driver, name := "pgx", url
	if path, ok := strings.CutPrefix(url, "sqlite:"); ok {
		driver, name = "sqlite", "file:"+path+"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(wal)"
	}
	db, err := sql.Open(driver, name)
	return &database{db, driver == "pgx"}, err
}

// add adds an event to the outbox.
func (d *database) add(ctx context.Context, tx *sql.Tx, e eventhub.Event) error {
	var err error
	if d.postgres {
		_, err = postgres.AddSQL(ctx, tx, e)
	} else {
		_, err = sqlite.Add(ctx, tx, e)
	}
	return err
}

// play is the life of one program, until it is killed or stopped.
func play(role string, args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	db, err := openDatabase(args[0])
	if err == nil {
		defer db.Close()
		switch role {
		case "service":
			var seed uint64
			if seed, err = strconv.ParseUint(args[1], 10, 64); err == nil {
				err = serve(ctx, db, rand.New(rand.NewPCG(seed, uint64(os.Getpid()))))
			}
		case "consumer":
			err = forever(ctx, role, func() error { return consume(ctx, db, args[1]) })
		case "projector":
			err = forever(ctx, role, func() error { return project(ctx, db, args[1], args[2]) })
		default:
			err = fmt.Errorf("there is no role %q", role)
		}
	}
	if err != nil && ctx.Err() == nil {
		fmt.Println(role, "failed:", err)
		return 1
	}
	return 0
}

// forever plays a role again when it has ended with an error, as what supervises a service
// does.
func forever(ctx context.Context, role string, play func() error) error {
	for ctx.Err() == nil {
		if err := play(); err != nil && ctx.Err() == nil {
			fmt.Println(role, "again:", err)
			time.Sleep(50 * time.Millisecond)
		}
	}
	return nil
}

// serve counts keys up, and adds what it has counted to the outbox in the same transaction.
// Some transactions are rolled back at their end, as if something had gone wrong; with a
// database that is away it tries again.
func serve(ctx context.Context, db *database, r *rand.Rand) error {
	for ctx.Err() == nil {
		err := change(ctx, db, r)
		switch {
		case err == nil:
			fmt.Println("committed")
		case errors.Is(err, errChanged):
		case ctx.Err() == nil:
			fmt.Println("again:", err)
			time.Sleep(10 * time.Millisecond)
		}
	}
	return nil
}

// consume counts the events of each key, once each, whatever dies in between.
func consume(ctx context.Context, db *database, hub string) error {
	c, err := client.Dial(ctx, hub)
	if err != nil {
		return err
	}
	defer c.Close()
	effect := inbox.New(db).Handle("effects", func(ctx context.Context, tx *sql.Tx, d eventhub.Delivery) error {
		_, err := tx.ExecContext(ctx, `UPDATE effects SET n = n + 1 WHERE key = $1`, string(d.Record.Key()))
		return err
	})
	opts := eventhub.GroupOptions{
		Topic: topic, Group: "effects", Start: eventhub.Earliest, MaxAttempts: 1000, AckTimeout: 2 * time.Second,
		Backoff: eventhub.Backoff{Min: 10 * time.Millisecond, Max: 50 * time.Millisecond},
	}
	return eventhub.Consume(ctx, c, opts, effect)
}

// project keeps the newest event of each key.
func project(ctx context.Context, db *database, hub, http string) error {
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
	p, err := projector.New(db.DB, c, a, table.Projection("latest", topic), projector.Options{})
	if err != nil {
		return err
	}
	return p.Run(ctx)
}

// errChanged ends a transaction that changes its mind.
var errChanged = errors.New("rolled back")

func change(ctx context.Context, db *database, r *rand.Rand) (err error) {
	tx, err := db.BeginTx(ctx, nil)
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
		e := eventhub.Event{Topic: topic, Key: fmt.Sprint("k", key), Payload: fmt.Appendf(nil, `{"n":%d}`, n)}
		if err := db.add(ctx, tx, e); err != nil {
			return err
		}
	}
	if r.IntN(5) == 0 {
		return errChanged
	}
	return tx.Commit()
}
