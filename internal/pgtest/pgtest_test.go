package pgtest_test

import (
	"context"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"

	"eventhub/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func exec(t *testing.T, url, query string, args ...any) (n int) {
	t.Helper()
	ctx := context.Background()
	c, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(ctx)
	if err := c.QueryRow(ctx, query, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// What is committed is there after a kill, and databases have nothing of each other.
func TestKill(t *testing.T) {
	s := pgtest.Start(t)
	url, other := s.Database(t), s.Database(t)
	exec(t, url, `WITH made AS (SELECT 1) SELECT count(*) FROM made`)
	ctx := context.Background()
	c, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(ctx)
	if _, err := c.Exec(ctx, `CREATE TABLE t (n int); INSERT INTO t VALUES (7)`); err != nil {
		t.Fatal(err)
	}
	s.Kill()
	if _, err := c.Exec(ctx, `SELECT 1`); err == nil {
		t.Error("a server that was killed answers")
	}
	if err := s.Run(); err != nil {
		t.Fatal(err)
	}
	if n := exec(t, url, `SELECT n FROM t`); n != 7 {
		t.Errorf("after the kill there is %d", n)
	}
	if n := exec(t, other, `SELECT count(*) FROM information_schema.tables WHERE table_schema = 'public'`); n != 0 {
		t.Errorf("the other database has %d tables", n)
	}
}

func TestShared(t *testing.T) {
	if a, b := pgtest.Shared(t), pgtest.Shared(t); a == b {
		t.Errorf("two databases are %s", a)
	}
}
