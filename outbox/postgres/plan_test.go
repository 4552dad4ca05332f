package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"eventhub/internal/testsize"
	"eventhub/outbox"
)

// node is a part of a plan of PostgreSQL, as EXPLAIN (FORMAT JSON) has it.
type node struct {
	Type   string  `json:"Node Type"`
	Index  string  `json:"Index Name"`
	Table  string  `json:"Relation Name"`
	Rows   float64 `json:"Actual Rows"`
	Loops  float64 `json:"Actual Loops"`
	Filter float64 `json:"Rows Removed by Filter"`
	Hit    int     `json:"Shared Hit Blocks"`
	Read   int     `json:"Shared Read Blocks"`
	Plans  []node  `json:"Plans"`
}

// walk calls f for the node and all below it.
func (n *node) walk(f func(*node)) {
	f(n)
	for i := range n.Plans {
		n.Plans[i].walk(f)
	}
}

// explain runs the claim of 100 rows in a transaction that is rolled back, and returns its
// plan with what it has read.
func explain(t *testing.T, pool *pgxpool.Pool, query string) node {
	t.Helper()
	ctx := context.Background()
	tx, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx)
	var text []byte
	err = tx.QueryRow(ctx, `EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) `+query, (*int64)(nil), "w", 30_000, 100).Scan(&text)
	if err != nil {
		t.Fatal(err)
	}
	var plans []struct{ Plan node }
	if err := json.Unmarshal(text, &plans); err != nil {
		t.Fatal(err)
	}
	if testing.Verbose() {
		t.Logf("%s", text)
	}
	return plans[0].Plan
}

// looked returns how many rows of the table the search for rows to claim has looked at, and
// how many blocks all of the statement has read. A scan of a table that is not small fails
// the test.
func looked(t *testing.T, plan node, small bool) (rows float64, blocks int) {
	t.Helper()
	indexes := make(map[string]bool)
	plan.walk(func(n *node) {
		if n.Type == "Seq Scan" && !small {
			t.Errorf("the claim reads the whole table")
		}
		if n.Table != "" && n.Type != "ModifyTable" {
			rows += n.Loops * (n.Rows + n.Filter)
			indexes[n.Index] = true
		}
	})
	if !indexes["eventhub_outbox_pending"] {
		t.Errorf("the claim does not use the index of pending rows, but %v", indexes)
	}
	return rows, plan.Hit + plan.Read
}

// fill adds rows with many keys, of which some are claimed and some wait.
func fill(t *testing.T, pool *pgxpool.Pool, pending, claimed, waiting int) {
	t.Helper()
	for _, query := range []string{
		fmt.Sprintf(`INSERT INTO eventhub_outbox (topic, key, payload, status, claimed_by, lease_until)
			SELECT 't', 'c' || n, '1', 'claimed', 'other', 9999999999999 FROM generate_series(1, %d) n`, claimed),
		fmt.Sprintf(`INSERT INTO eventhub_outbox (topic, key, payload, retry_at)
			SELECT 't', 'w' || n, '1', 9999999999999 FROM generate_series(1, %d) n`, waiting),
		fmt.Sprintf(`INSERT INTO eventhub_outbox (topic, key, payload)
			SELECT 't', 'k' || n %% 5000, '{"n":' || n || '}' FROM generate_series(1, %d) n`, pending),
		`VACUUM ANALYZE eventhub_outbox`,
	} {
		if _, err := pool.Exec(context.Background(), query); err != nil {
			t.Fatal(err)
		}
	}
}

// claimPending is how many rows are pending in TestClaimIsFlat.
var claimPending = testsize.Int("claim.pending", 100_000, 20_000, "pending rows of TestClaimIsFlat")

// TestClaimIsFlat: what a claim reads does not depend on how many rows are pending.
func TestClaimIsFlat(t *testing.T) {
	const few = 1_000
	many := *claimPending
	for name, query := range map[string]string{"by key": claimByKey, "by topic": claimByTopic} {
		t.Run(name, func(t *testing.T) {
			var rows [2]float64
			var blocks [2]int
			for i, pending := range []int{few, many} {
				pool, _ := open(t)
				claimed, waiting := 300, 100
				if strings.HasSuffix(t.Name(), "topic") {
					claimed, waiting = 0, 0 // one of the topic would hold all of it
				}
				fill(t, pool, pending, claimed, waiting)
				rows[i], blocks[i] = looked(t, explain(t, pool, query), pending == few)
				t.Logf("%d pending: %v rows looked at, %d blocks", pending, rows[i], blocks[i])
			}
			if rows[1] > 1.2*rows[0] || blocks[1] > blocks[0]+blocks[0]/5+100 {
				t.Errorf("with %d pending rows a claim looks at %v rows and %d blocks, with %d at %v and %d",
					few, rows[0], blocks[0], many, rows[1], blocks[1])
			}
		})
	}
}

// TestClaimAfterManyRows: rows that went through leave little that a claim has to pass over,
// once the database has cleaned up.
func TestClaimAfterManyRows(t *testing.T) {
	pool, s := open(t)
	n := testsize.Of(20_000, 3_000)
	fill(t, pool, n, 0, 0)
	var settled []outbox.Outcome
	for range n / 1000 {
		rows, err := s.Turn(t.Context(), settled, outbox.Claim{Max: 1000, Lease: time.Minute, Worker: "w", Order: outbox.ByKey})
		if err != nil || len(rows) != 1000 {
			t.Fatalf("%d rows, %v", len(rows), err)
		}
		settled = settled[:0]
		for _, r := range rows {
			settled = append(settled, outbox.Outcome{ID: r.Event.ID, Status: outbox.Sent, Offset: 1})
		}
	}
	if _, err := s.Turn(t.Context(), settled, outbox.Claim{Worker: "w", Order: outbox.ByKey}); err != nil {
		t.Fatal(err)
	}
	fill(t, pool, 1000, 0, 0) // with a VACUUM
	rows, blocks := looked(t, explain(t, pool, claimByKey), false)
	if rows > 1000 || blocks > 3000 {
		t.Errorf("after %d rows a claim looks at %v rows and %d blocks", n, rows, blocks)
	}
}

// TestClaimOfHeldRows: rows that one row holds up do not make a look for others cost what all
// of them would.
func TestClaimOfHeldRows(t *testing.T) {
	pool, s := open(t)
	for _, query := range []string{
		`INSERT INTO eventhub_outbox (topic, key, payload, status, claimed_by, lease_until) VALUES ('t', 'hot', '1', 'claimed', 'other', 9999999999999)`,
		`INSERT INTO eventhub_outbox (topic, key, payload) SELECT 't', 'hot', '1' FROM generate_series(1, 40000)`,
		`VACUUM ANALYZE eventhub_outbox`,
	} {
		if _, err := pool.Exec(t.Context(), query); err != nil {
			t.Fatal(err)
		}
	}
	if rows, _ := looked(t, explain(t, pool, claimByKey), false); rows > 25_000 {
		t.Errorf("a claim that finds nothing looks at %v rows", rows)
	}
	rows, err := s.Turn(t.Context(), nil, outbox.Claim{Max: 10, Lease: time.Minute, Worker: "w", Order: outbox.ByKey})
	if err != nil || len(rows) != 0 {
		t.Errorf("%d rows of a key that is held, %v", len(rows), err)
	}
}
