package crashtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"eventhub"
	"eventhub/client"
)

const (
	// roleEnv makes this test binary one of the programs around a database.
	roleEnv = "EVENTHUB_CRASHTEST_ROLE"

	topic = "counter.changed"
	keys  = 6
)

// books is a service's database with a count for each key: what the service, a consumer and a
// projector do in it, and what the test reads.
type books interface {
	// prepare makes what is not the outbox.
	prepare(ctx context.Context) error
	// change counts some keys up and adds what it has counted to the outbox. errChanged is a
	// change that was rolled back.
	change(ctx context.Context, r *rand.Rand) error
	// consumer returns the handler that has the effect of each event.
	consumer() eventhub.Handler
	// projects reports whether there are projectors for this database; project is one.
	projects() bool
	project(ctx context.Context, hub, http string) error
	// committed, effects and projected have the count of each key that is above zero.
	committed(ctx context.Context) (map[string]int, error)
	effects(ctx context.Context) (map[string]int, error)
	projected(ctx context.Context) (map[string]int, error)
	close()
}

func newBooks(url string) (books, error) {
	if strings.HasPrefix(url, "mongodb:") {
		return newMongoBooks(url)
	}
	return newSQLBooks(url)
}

func openBooks(t *testing.T, url string) books {
	t.Helper()
	db, err := newBooks(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.close)
	return db
}

// play is the life of one program, until it is killed or stopped.
func play(role string, args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	db, err := newBooks(args[0])
	if err == nil {
		defer db.close()
		switch role {
		case "service":
			var seed uint64
			if seed, err = strconv.ParseUint(args[1], 10, 64); err == nil {
				err = serve(ctx, db, rand.New(rand.NewPCG(seed, uint64(os.Getpid()))))
			}
		case "consumer":
			err = forever(ctx, role, func() error { return consume(ctx, db, args[1]) })
		case "projector":
			err = forever(ctx, role, func() error { return db.project(ctx, args[1], args[2]) })
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
func serve(ctx context.Context, db books, r *rand.Rand) error {
	for ctx.Err() == nil {
		err := db.change(ctx, r)
		switch {
		case err == nil:
			fmt.Println("committed")
		case errors.Is(err, errChanged):
		case errors.Is(err, errMuchPending):
			time.Sleep(10 * time.Millisecond)
		case ctx.Err() == nil:
			fmt.Println("again:", err)
			time.Sleep(10 * time.Millisecond)
		}
	}
	return nil
}

// consume counts the events of each key, once each, whatever dies in between.
func consume(ctx context.Context, db books, hub string) error {
	c, err := client.Dial(ctx, hub)
	if err != nil {
		return err
	}
	defer c.Close()
	opts := eventhub.GroupOptions{
		Topic: topic, Group: "effects", Start: eventhub.Earliest, MaxAttempts: 1000, AckTimeout: 2 * time.Second,
		Backoff: eventhub.Backoff{Min: 10 * time.Millisecond, Max: 50 * time.Millisecond},
	}
	return eventhub.Consume(ctx, c, opts, db.consumer())
}

// errChanged ends a change that was rolled back.
var errChanged = errors.New("rolled back")

// eventOf is the event that a key has reached a number.
func eventOf(key, n int) eventhub.Event {
	return eventhub.Event{Topic: topic, Key: fmt.Sprint("k", key), Payload: fmt.Appendf(nil, `{"n":%d}`, n)}
}
