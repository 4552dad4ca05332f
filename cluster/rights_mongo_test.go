package cluster

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.mongodb.org/mongo-driver/v2/bson"

	"eventhub/internal/mongotest"
	"eventhub/internal/pgtest"
)

var projectionErrors = regexp.MustCompile(`(?m)^eventhub_projection_errors_total [1-9]`)

// TestDocumentsWithoutRights: the database refuses to write documents, and goes on to take the journal. The hub serves as ever and
// says that the documents are not written; when they may be written again they are what the log is. FerretDB has
// one user for all, so it is PostgreSQL below it that refuses, by triggers on the tables of the documents.
func TestDocumentsWithoutRights(t *testing.T) {
	t.Parallel()
	below := pgtest.Start(t).Database(t)
	ferret, err := mongotest.StartOver(t.TempDir(), below)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ferret.Kill() })
	server := &mongoServer{Server: ferret, database: "eventhub_test_" + bson.NewObjectID().Hex(), before: "mongodb://"}
	server.target = strings.Trim(strings.TrimPrefix(ferret.URI, "mongodb://"), "/")
	hubs := startHubs(t, 1, leaseOnMongo, func(int) string { return server.url(nil) })
	h := (&rig{t: t, hubs: hubs}).active(nil)
	c := http.Client{Timeout: within}
	defer c.CloseIdleConnections()
	publish := func(from, to int) {
		t.Helper()
		for n := from; n < to; n++ {
			if code, _ := publishOnce(&c, h, fmt.Sprintf(`"%d"`, n)); code != "ok" {
				t.Fatalf("publish %d was answered %q", n, code)
			}
		}
	}
	publish(0, 10)
	awaitSame(t, h, server.db(t))

	pg, err := pgx.Connect(context.Background(), below)
	if err != nil {
		t.Fatal(err)
	}
	defer pg.Close(context.Background())
	tables := documentTables(t, pg, server.database)
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := pg.Exec(context.Background(), fmt.Sprintf(sql, args...)); err != nil {
			t.Fatal(err)
		}
	}
	exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE insufficient_privilege; END $$`)
	for _, table := range tables {
		exec(`CREATE TRIGGER refused BEFORE INSERT OR UPDATE OR DELETE ON %s EXECUTE FUNCTION refuse()`, table)
	}
	publish(10, 30)
	for end := time.Now().Add(within); !projectionErrors.MatchString(h.metrics()); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("eventhub_projection_errors_total does not move:\n%s", h.logged())
		}
	}
	publish(30, 40)
	if status, text := h.ready(); status != http.StatusOK {
		t.Errorf("/readyz meanwhile: %d %s", status, text)
	}
	if log := h.logged(); strings.Count(log, "cannot write the projections") != 1 {
		t.Error("the log does not say it once")
	}
	if got, err := documentsOf(context.Background(), server.db(t)); err != nil || len(got) != 10 {
		t.Errorf("%d documents meanwhile, %v; want the 10 of before", len(got), err)
	}
	for _, table := range tables {
		exec(`DROP TRIGGER refused ON %s`, table)
	}
	publish(40, 50)
	awaitSame(t, h, server.db(t))
}

// documentTables returns the tables in which FerretDB has the documents beside the journal.
func documentTables(t *testing.T, pg *pgx.Conn, database string) (tables []string) {
	t.Helper()
	rows, err := pg.Query(context.Background(), `SELECT tablename FROM pg_tables WHERE schemaname = $1`, database)
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasPrefix(name, "events_") || strings.HasPrefix(name, "cursors_") || strings.HasPrefix(name, "eventhub_projection_") {
			tables = append(tables, pgx.Identifier{database, name}.Sanitize())
		}
	}
	if len(tables) != 3 {
		t.Fatalf("the documents are in %d tables of %q; want 3", len(tables), names)
	}
	return tables
}
