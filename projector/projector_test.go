package projector_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"eventhub"
	"eventhub/admin"
	"eventhub/client"
	"eventhub/hubtest"
	"eventhub/internal/pgtest"
	"eventhub/projector"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// bed is a hub with a database.
type bed struct {
	t   *testing.T
	hub *hubtest.Hub
	db  *sql.DB
	adm *client.Admin
	tab projector.Table
}

// each runs a test with each database, and a hub of its own.
func each(t *testing.T, test func(b *bed)) {
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
			t.Cleanup(func() { db.Close() })
			b := &bed{t: t, hub: hubtest.Start(t), db: db}
			b.adm, err = client.NewAdmin(b.hub.HTTPURL)
			if err != nil {
				t.Fatal(err)
			}
			b.tab, err = projector.NewTable("latest")
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(projector.Migrate(t.Context(), db), projector.Migrate(t.Context(), db), b.tab.Create(t.Context(), db)); err != nil {
				t.Fatal(err)
			}
			test(b)
		})
	}
}

func (b *bed) publish(events ...eventhub.Event) []eventhub.Receipt {
	b.t.Helper()
	receipts, err := b.hub.Client().Publish(b.t.Context(), events...)
	if err != nil {
		b.t.Fatal(err)
	}
	return receipts
}

func value(topic, key string, n int) eventhub.Event {
	return eventhub.Event{Topic: topic, Key: key, Payload: fmt.Append(nil, n)}
}

func tombstone(topic, key string) eventhub.Event {
	return eventhub.Event{Topic: topic, Key: key, Payload: []byte("null")}
}

// running is a projector that runs.
type running struct {
	b      *bed
	ended  chan error
	cancel context.CancelFunc
	moved  chan []eventhub.Place
}

// run starts a projector with clients of its own.
func (b *bed) run(p projector.Projection, o projector.Options) *running {
	b.t.Helper()
	c, err := client.Dial(b.t.Context(), b.hub.URL)
	if err != nil {
		b.t.Fatal(err)
	}
	r := &running{b: b, ended: make(chan error, 1), moved: make(chan []eventhub.Place, 10_000)}
	o.Applied = func(places []eventhub.Place) { r.moved <- slices.Clone(places) }
	pr, err := projector.New(b.db, c, b.adm, p, o)
	if err != nil {
		b.t.Fatal(err)
	}
	var ctx context.Context
	ctx, r.cancel = context.WithCancel(b.t.Context())
	go func() {
		err := pr.Run(ctx)
		c.Close()
		r.ended <- err
	}()
	b.t.Cleanup(r.cancel)
	return r
}

func (r *running) stop() {
	r.b.t.Helper()
	r.cancel()
	if err := <-r.ended; err != nil {
		r.b.t.Fatal(err)
	}
}

// until waits until the projection is at an offset of a topic.
func (r *running) until(topic string, offset uint64) {
	r.b.t.Helper()
	limit := time.After(time.Minute)
	for !r.b.isAt(topic, offset) {
		select {
		case <-r.moved:
		case err := <-r.ended:
			r.b.t.Fatalf("the projector has ended: %v", err)
		case <-limit:
			r.b.t.Fatalf("the projection does not come to offset %d of %s", offset, topic)
		}
	}
}

func (b *bed) isAt(topic string, offset uint64) bool {
	b.t.Helper()
	var at sql.NullInt64
	if err := b.db.QueryRowContext(b.t.Context(), `SELECT max(event_offset) FROM eventhub_projection_place WHERE topic = $1`, topic).Scan(&at); err != nil {
		b.t.Fatal(err)
	}
	return uint64(at.Int64) >= offset
}

// rows are the rows of the table, as "topic/key=payload".
func (b *bed) rows() []string {
	b.t.Helper()
	rows, err := b.db.QueryContext(b.t.Context(), `SELECT topic, key, payload FROM latest ORDER BY topic, key`)
	if err != nil {
		b.t.Fatal(err)
	}
	defer rows.Close()
	all := []string{}
	for rows.Next() {
		var topic, key, payload string
		if err := rows.Scan(&topic, &key, &payload); err != nil {
			b.t.Fatal(err)
		}
		all = append(all, topic+"/"+key+"="+payload)
	}
	if err := rows.Err(); err != nil {
		b.t.Fatal(err)
	}
	return all
}

func (b *bed) want(rows ...string) {
	b.t.Helper()
	if diff := cmp.Diff(append([]string{}, rows...), b.rows()); diff != "" {
		b.t.Fatalf("the table (-want +got):\n%s", diff)
	}
}

func last(receipts []eventhub.Receipt) uint64 { return receipts[len(receipts)-1].Offset }

func TestTable(t *testing.T) {
	each(t, func(b *bed) {
		b.publish(value("stock.a", "lamp", 1), value("stock.a", "chair", 2), value("stock.b", "lamp", 3), eventhub.Event{Topic: "stock.a", Payload: []byte("0")})
		at := last(b.publish(value("stock.a", "lamp", 4), tombstone("stock.a", "chair")))
		b.publish(value("other", "lamp", 9))
		p := b.tab.Projection("stock", "stock.*")
		r := b.run(p, projector.Options{})
		r.until("stock.a", at)
		r.until("stock.b", 1) // topics have no order among each other
		b.want("stock.a/lamp=4", "stock.b/lamp=3")
		at = last(b.publish(value("stock.c", "bed", 5))) // a topic that was not there
		r.until("stock.c", at)
		b.want("stock.a/lamp=4", "stock.b/lamp=3", "stock.c/bed=5")
		r.stop()
		// What comes while nobody runs is applied by the next one.
		at = last(b.publish(value("stock.c", "bed", 6), value("stock.d", "bed", 7)))
		r = b.run(p, projector.Options{Batch: 1})
		r.until("stock.d", at)
		r.until("stock.c", 2)
		b.want("stock.a/lamp=4", "stock.b/lamp=3", "stock.c/bed=6", "stock.d/bed=7")
		r.stop()
	})
}

// TestKeysThatNoTextHolds: an event whose key PostgreSQL cannot store is passed over, and holds up nothing.
func TestKeysThatNoTextHolds(t *testing.T) {
	each(t, func(b *bed) {
		b.publish(value("t", "a\x00b", 1), tombstone("t", "\x00"))
		at := last(b.publish(value("t", "a", 2)))
		r := b.run(b.tab.Projection("p", "t"), projector.Options{})
		r.until("t", at)
		b.publish(value("t", "\x00", 3))
		r.until("t", last(b.publish(value("t", "b", 4))))
		r.stop()
		if rows := b.rows(); len(rows) != 2 {
			t.Errorf("the table has %q", rows)
		}
	})
}

// TestOnce: a projection that counts has each event once, whatever fails.
func TestOnce(t *testing.T) {
	each(t, func(b *bed) {
		if _, err := b.db.ExecContext(t.Context(), `CREATE TABLE sums (n integer NOT NULL)`); err != nil {
			t.Fatal(err)
		}
		calls, failed := 0, make(map[uint64]bool)
		p := projector.Projection{
			Name: "sum", Topics: []string{"t"},
			Reset: func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, `DELETE FROM sums`)
				if err == nil {
					_, err = tx.ExecContext(ctx, `INSERT INTO sums VALUES (0)`)
				}
				return err
			},
			Apply: func(ctx context.Context, tx *sql.Tx, e *eventhub.Event) error {
				if _, err := tx.ExecContext(ctx, `UPDATE sums SET n = n + 1`); err != nil {
					return err
				}
				if calls++; e.Offset%7 == 0 && !failed[e.Offset] {
					failed[e.Offset] = true
					return errors.New("the work of this one fails")
				}
				return nil
			},
		}
		const events = 40
		b.publish(value("t", "", 0))
		r := b.run(p, projector.Options{Batch: 3})
		var at uint64
		for n := 1; n < events; n++ {
			at = last(b.publish(value("t", "", n)))
			if n%10 == 0 {
				r.stop()
				r = b.run(p, projector.Options{Batch: 3})
			}
		}
		r.until("t", at)
		r.stop()
		var n int
		if err := b.db.QueryRowContext(t.Context(), `SELECT n FROM sums`).Scan(&n); err != nil || n != events || calls <= events {
			t.Errorf("%d of %d events are in the sum, %v; %d calls", n, events, err, calls)
		}
	})
}

// TestTakenOver: one that begins ends the one before, whose transactions fail.
func TestTakenOver(t *testing.T) {
	each(t, func(b *bed) {
		at := last(b.publish(value("t", "a", 1)))
		p := b.tab.Projection("p", "t")
		first := b.run(p, projector.Options{})
		first.until("t", at)
		second := b.run(p, projector.Options{})
		for epoch := int64(0); epoch < 2; { // it has begun
			if err := b.db.QueryRowContext(t.Context(), `SELECT epoch FROM eventhub_projection`).Scan(&epoch); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
		at = last(b.publish(value("t", "a", 2)))
		second.until("t", at)
		if err := <-first.ended; !errors.Is(err, projector.ErrTakenOver) {
			t.Errorf("the first has ended with %v", err)
		}
		b.want("t/a=2")
		second.stop()
	})
}

// TestTopicAgain: a topic that is deleted goes on above its offsets when it is made anew:
// what was applied stays until the projection is made again.
func TestTopicAgain(t *testing.T) {
	each(t, func(b *bed) {
		p := b.tab.Projection("p", "t", "u")
		b.publish(value("u", "x", 1))
		at := last(b.publish(value("t", "a", 1), value("t", "b", 2)))
		r := b.run(p, projector.Options{})
		r.until("t", at)
		r.stop()
		if err := b.adm.DeleteTopic(t.Context(), "t"); err != nil {
			t.Fatal(err)
		}
		at = last(b.publish(value("t", "b", 3), value("t", "c", 4)))
		r = b.run(p, projector.Options{})
		r.until("t", at)
		b.want("t/a=1", "t/b=3", "t/c=4", "u/x=1")
		r.stop()
		r = b.run(p, projector.Options{Rebuild: true})
		<-r.moved
		b.want("t/b=3", "t/c=4", "u/x=1")
		r.stop()
	})
}

// TestAnotherHub: a hub that does not have what was seen, as after a restore, has the
// projection made again.
func TestAnotherHub(t *testing.T) {
	each(t, func(b *bed) {
		p := b.tab.Projection("p", "t")
		at := last(b.publish(value("t", "a", 1), value("t", "b", 2), value("t", "c", 3)))
		r := b.run(p, projector.Options{})
		r.until("t", at)
		r.stop()
		b.hub = hubtest.Start(t)
		var err error
		if b.adm, err = client.NewAdmin(b.hub.HTTPURL); err != nil {
			t.Fatal(err)
		}
		b.publish(value("t", "a", 7))
		r = b.run(p, projector.Options{})
		for !slices.Equal(b.rows(), []string{"t/a=7"}) {
			<-r.moved
		}
		r.until("t", last(b.publish(value("t", "d", 8))))
		b.want("t/a=7", "t/d=8")
		r.stop()
	})
}

// TestGaps: events that were removed before they were read.
func TestGaps(t *testing.T) {
	each(t, func(b *bed) {
		p := b.tab.Projection("p", "t")
		at := last(b.publish(value("t", "a", 1), value("t", "b", 2)))
		r := b.run(p, projector.Options{})
		r.until("t", at)
		r.stop()
		b.publish(value("t", "a", 3), value("t", "b", 4))
		at = last(b.publish(value("t", "c", 5), value("t", "a", 6)))
		if _, err := b.adm.Trim(t.Context(), "t", admin.TrimQuery{Before: 5}, true); err != nil {
			t.Fatal(err)
		}
		r = b.run(p, projector.Options{})
		r.until("t", at)
		b.want("t/a=6", "t/c=5") // b may have had a newer value than 2
		r.stop()
		// One that does not say what to do about gaps is made again.
		p.OnGap = nil
		b.publish(value("t", "d", 7), value("t", "d", 8))
		at = last(b.publish(value("t", "e", 9)))
		if _, err := b.adm.Trim(t.Context(), "t", admin.TrimQuery{Before: at}, true); err != nil {
			t.Fatal(err)
		}
		r = b.run(p, projector.Options{})
		r.until("t", at)
		b.want("t/e=9")
		r.stop()
	})
}

// TestRebuild: nobody sees a table that is not whole.
func TestRebuild(t *testing.T) {
	each(t, func(b *bed) {
		p := b.tab.Projection("p", "t")
		var at uint64
		for n := range 20 {
			at = last(b.publish(value("t", fmt.Sprint("k", n), n)))
		}
		r := b.run(p, projector.Options{})
		r.until("t", at)
		r.stop()
		if _, err := b.db.ExecContext(t.Context(), `UPDATE latest SET payload = 'wrong'`); err != nil {
			t.Fatal(err)
		}
		seen := make(chan int, 100)
		apply := p.Apply
		p.Apply = func(ctx context.Context, tx *sql.Tx, e *eventhub.Event) error {
			var n int
			if err := b.db.QueryRowContext(ctx, `SELECT count(*) FROM latest`).Scan(&n); err != nil {
				return err
			}
			seen <- n
			return apply(ctx, tx, e)
		}
		r = b.run(p, projector.Options{Rebuild: true})
		<-r.moved
		for range 20 {
			if n := <-seen; n != 20 {
				t.Errorf("a reader has seen %d rows", n)
			}
		}
		for _, row := range b.rows() {
			if strings.Contains(row, "wrong") {
				t.Errorf("there is %s", row)
			}
		}
		r.stop()
	})
}

// TestCodesOfApply: an error of Apply is tried again, whatever code is in it: that is of something
// else than the hub of the projector.
func TestCodesOfApply(t *testing.T) {
	each(t, func(b *bed) {
		if _, err := b.db.ExecContext(t.Context(), `CREATE TABLE marks (id text NOT NULL)`); err != nil {
			t.Fatal(err)
		}
		for i, code := range []eventhub.Code{eventhub.CodeUnknownID, eventhub.CodeForbidden, eventhub.CodeBadRequest} {
			topic := fmt.Sprint("t", i)
			p := b.tab.Projection(topic, topic)
			apply, left := p.Apply, 2
			p.Apply = func(ctx context.Context, tx *sql.Tx, e *eventhub.Event) error {
				if err := apply(ctx, tx, e); err != nil {
					return err
				}
				if _, err := tx.ExecContext(ctx, `INSERT INTO marks VALUES ($1)`, e.ID); err != nil {
					return err
				}
				if e.Key == "b" && left > 0 {
					left--
					return fmt.Errorf("looking something up: %w", eventhub.Errorf(code, "elsewhere"))
				}
				return nil
			}
			at := last(b.publish(value(topic, "a", 1), value(topic, "b", 2)))
			r := b.run(p, projector.Options{})
			r.until(topic, at)
			r.stop()
			if left != 0 {
				t.Errorf("%s: it was not tried again", code)
			}
			var marks int
			if err := b.db.QueryRowContext(t.Context(), `SELECT count(*) FROM marks`).Scan(&marks); err != nil || marks != 2*(i+1) {
				t.Errorf("%s: %d events were applied, %v; want %d", code, marks, err, 2*(i+1))
			}
			b.want(topic+"/a=1", topic+"/b=2") // of those before nothing is left: it is one table
		}
	})
}

func TestRefusals(t *testing.T) {
	if _, err := projector.NewTable("drop table x"); eventhub.ErrorCode(err) != eventhub.CodeBadRequest {
		t.Errorf("a bad table: %v", err)
	}
	tab, _ := projector.NewTable("x")
	for _, p := range []projector.Projection{
		tab.Projection("", "t"), tab.Projection("p"), tab.Projection("p", "no topic!"), {Name: "p", Topics: []string{"t"}},
		tab.Projection(strings.Repeat("p", 129), "t"), tab.Projection("p", make([]string, eventhub.MaxPatterns+1)...),
	} {
		if _, err := projector.New(nil, nil, nil, p, projector.Options{}); err == nil || eventhub.ErrorCode(err) == eventhub.CodeInternal {
			t.Errorf("%+v: %v", p, err)
		}
	}
	each(t, func(b *bed) {
		p := b.tab.Projection("p", "t")
		bad := errors.New("this event is wrong")
		p.Apply = func(context.Context, *sql.Tx, *eventhub.Event) error { return eventhub.Terminal(bad) }
		b.publish(value("t", "a", 1))
		if err := <-b.run(p, projector.Options{}).ended; !errors.Is(err, bad) {
			t.Errorf("a terminal error: %v", err)
		}
		if _, err := b.db.ExecContext(t.Context(), `UPDATE eventhub_projection_version SET version = 9`); err != nil {
			t.Fatal(err)
		}
		if err := <-b.run(p, projector.Options{}).ended; eventhub.ErrorCode(err) != eventhub.CodeConflict {
			t.Errorf("tables of another version: %v", err)
		}
	})
}
