// Package crashtest kills the programs at a database's edge, again and again: the service
// that writes, the drainers of its outbox, the hub, the database, and those who consume.
package crashtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"eventhub"
	"eventhub/inbox"
	"eventhub/internal/pgtest"
	"eventhub/internal/testsize"
	"eventhub/projector"
)

var (
	kills     = testsize.Int("crash.kills", 20, 8, "how often a program is killed")
	fixedSeed = testsize.Int("crash.seed", 0, 0, "what is random; 0 draws one")
)

// TestKilled: whatever dies, each row that was committed is in the log once, no row that was
// rolled back is, and the rows of a key are there in the order in which they were made. A
// consumer with an inbox has the effect of each event once, and the table of a projector has
// the newest event of each key.
func TestKilled(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) {
		killed(t, &edge{url: "sqlite:" + filepath.Join(t.TempDir(), "service.db")})
	})
	t.Run("postgres", func(t *testing.T) {
		server := pgtest.Start(t)
		killed(t, &edge{url: server.Database(t), killDatabase: func() error { server.Kill(); return server.Run() }})
	})
}

// edge is a database with the programs around it.
type edge struct {
	url          string
	killDatabase func() error

	db       *database
	hub      string // its address
	programs map[string]*process
	commits  atomic.Int64
	moved    chan struct{} // has a token when there were more commits
}

func killed(t *testing.T, e *edge) {
	seed := uint64(*fixedSeed)
	if seed == 0 {
		seed = rand.Uint64() >> 1
	}
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	e.setUp(t, seed)
	killed := make(map[string]int)
	for range *kills {
		e.awaitCommits(t, int64(1+r.IntN(150)))
		victims := slices.Sorted(maps.Keys(e.programs))
		if e.killDatabase != nil {
			victims = append(victims, "database")
		}
		victim := victims[r.IntN(len(victims))]
		killed[victim]++
		if victim == "database" {
			if err := e.killDatabase(); err != nil {
				t.Fatal(err)
			}
			continue
		}
		e.programs[victim].kill()
		e.programs[victim].run()
	}
	e.settle(t)
	e.compare(t)
	t.Logf("killed %v, %d transactions", killed, e.commits.Load())
}

func (e *edge) setUp(t *testing.T, seed uint64) {
	e.command(t, "outbox", "migrate", "--from", e.url)
	db, err := openDatabase(e.url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	e.db = db
	e.exec(t, `CREATE TABLE counters (key integer PRIMARY KEY, n integer NOT NULL)`)
	e.exec(t, `CREATE TABLE effects (key text PRIMARY KEY, n integer NOT NULL)`)
	for key := range keys {
		e.exec(t, `INSERT INTO counters (key, n) VALUES ($1, 0)`, key)
		e.exec(t, `INSERT INTO effects (key, n) VALUES ($1, 0)`, fmt.Sprint("k", key))
	}
	table, err := projector.NewTable("latest")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(inbox.New(db).Migrate(t.Context()), projector.Migrate(t.Context(), db.DB), table.Create(t.Context(), db.DB)); err != nil {
		t.Fatal(err)
	}
	ports, store := freePorts(t, 3), t.TempDir()
	e.hub = "ws://" + ports[0]
	e.programs = make(map[string]*process)
	e.moved = make(chan struct{}, 1)
	e.programs["hub"] = start(t, "hub", "hub is up", nil, func() *exec.Cmd {
		return program("serve", "--store", store, "--ws", ports[0], "--http", ports[1], "--ops", ports[2])
	})
	e.programs["service"] = start(t, "service", "", e.seen, func() *exec.Cmd {
		return e.role("service", fmt.Sprint(seed))
	})
	e.programs["consumer"] = start(t, "consumer", "", nil, func() *exec.Cmd { return e.role("consumer", e.hub) })
	e.programs["projector"] = start(t, "projector", "", nil, func() *exec.Cmd { return e.role("projector", e.hub, "http://"+ports[1]) })
	for _, name := range []string{"drainer 1", "drainer 2"} {
		e.programs[name] = start(t, name, "", nil, func() *exec.Cmd {
			return program("outbox", "drain", "--from", e.url, "--lease", "2s", "--batch", "20", "--url", e.hub)
		})
	}
}

// program is the real one.
func program(args ...string) *exec.Cmd {
	cmd := exec.Command(binary, args...)
	cmd.Env = environment()
	return cmd
}

// role is this test binary as one of the other programs.
func (e *edge) role(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], append([]string{e.url}, args...)...)
	cmd.Env = environment(roleEnv + "=" + name)
	return cmd
}

func (e *edge) seen(line string) {
	if line != "committed" {
		return
	}
	e.commits.Add(1)
	select {
	case e.moved <- struct{}{}:
	default:
	}
}

// awaitCommits waits until the service has committed n transactions more.
func (e *edge) awaitCommits(t *testing.T, n int64) {
	t.Helper()
	limit := time.After(watchdog)
	for until := e.commits.Load() + n; e.commits.Load() < until; {
		select {
		case <-e.moved:
		case <-limit:
			t.Fatalf("the service does nothing:\n%s", e.programs["service"].log())
		}
	}
}

func (e *edge) exec(t *testing.T, query string, args ...any) {
	t.Helper()
	if _, err := e.db.ExecContext(t.Context(), query, args...); err != nil {
		t.Fatal(err)
	}
}

// command runs a command to its end.
func (e *edge) command(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), watchdog)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = environment()
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("eventhub %s: %v\n%s%s", strings.Join(args, " "), err, out, said.String())
	}
	return string(out)
}

// settle ends the service, and has the drainers finish.
func (e *edge) settle(t *testing.T) {
	e.programs["service"].stop()
	for _, name := range []string{"drainer 1", "drainer 2"} {
		e.programs[name].stop()
	}
	e.command(t, "outbox", "drain", "--from", e.url, "--url", e.hub, "--until-empty")
	if rows := e.command(t, "outbox", "ls", "--from", e.url, "--status", "error", "-o", "ndjson"); strings.TrimSpace(rows) != "" {
		t.Errorf("rows were parked:\n%s", rows)
	}
}

// compare compares the log with the counters, which are in the transactions of the rows.
func (e *edge) compare(t *testing.T) {
	want := e.counters(t)
	got := make(map[string]int)
	total := 0
	for event := range e.events(t) {
		var p struct{ N int }
		if err := json.Unmarshal(event.Payload, &p); err != nil {
			t.Fatal(err)
		}
		if got[event.Key]++; p.N != got[event.Key] {
			t.Fatalf("at offset %d key %s has %d; %d is next", event.Offset, event.Key, p.N, got[event.Key])
		}
		total++
	}
	if !maps.Equal(want, got) {
		t.Errorf("the log has %v, the database %v", got, want)
	}
	if total == 0 {
		t.Error("nothing was done")
	}
	e.await(t, "effects", want, `SELECT key, n FROM effects WHERE n > 0`)
	newest := `SELECT key, CAST(replace(replace(payload, '{"n":', ''), '}', '') AS integer) FROM latest`
	e.await(t, "projector", want, newest)
	t.Logf("%d events", total)
}

// await waits until a table has what it has to have.
func (e *edge) await(t *testing.T, who string, want map[string]int, query string) {
	t.Helper()
	limit := time.Now().Add(watchdog)
	got := e.numbers(t, query)
	for !maps.Equal(want, got) && time.Now().Before(limit) {
		for key, n := range got {
			if n > want[key] {
				t.Fatalf("%s: key %s has %d, and there are %d", who, key, n, want[key])
			}
		}
		time.Sleep(20 * time.Millisecond)
		got = e.numbers(t, query)
	}
	if !maps.Equal(want, got) {
		t.Errorf("%s: %v; want %v", who, got, want)
		for _, name := range []string{"consumer", "projector"} {
			t.Logf("%s:\n%s", name, e.programs[name].log())
		}
	}
}

func (e *edge) counters(t *testing.T) map[string]int {
	t.Helper()
	return e.numbers(t, `SELECT 'k' || key, n FROM counters WHERE n > 0`)
}

// numbers are the rows of a query for a key and a number.
func (e *edge) numbers(t *testing.T, query string) map[string]int {
	t.Helper()
	rows, err := e.db.QueryContext(t.Context(), query)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	all := make(map[string]int)
	for rows.Next() {
		var key string
		var n int
		if err := rows.Scan(&key, &n); err != nil {
			t.Fatal(err)
		}
		all[key] = n
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// events are those of the topic, from its start to its end.
func (e *edge) events(t *testing.T) func(yield func(eventhub.Event) bool) {
	out := e.command(t, "sub", topic, "--from", "earliest", "--until-caught-up", "-o", "json", "--url", e.hub)
	return func(yield func(eventhub.Event) bool) {
		for line := range strings.Lines(out) {
			var event eventhub.Event
			if err := json.Unmarshal([]byte(line), &event); err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			if !yield(event) {
				return
			}
		}
	}
}
