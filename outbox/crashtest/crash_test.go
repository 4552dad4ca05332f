// Package crashtest kills the programs at a database's edge, again and again: the service
// that writes, the drainers of its outbox, the hub, the database, and those who consume.
package crashtest

import (
	"context"
	"encoding/json"
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
	"eventhub/internal/mongotest"
	"eventhub/internal/pgtest"
	"eventhub/internal/testsize"
)

var (
	kills     = testsize.Int("crash.kills", 20, 8, "how often a program is killed")
	fixedSeed = testsize.Int("crash.seed", 0, 0, "what is random; 0 draws one")
)

// TestKilled: whatever dies, each row that was committed is in the log once, no row that was
// rolled back is, and the rows of a key are there in the order in which they were made. A
// consumer with an inbox has the effect of each event once, and the table of a projector has
// the newest event of each key. MongoDB stands for FerretDB, which has no transactions: what
// is committed there is a row by itself, effects may be applied again, and there is no
// projector.
func TestKilled(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) {
		killed(t, &edge{url: "sqlite:" + filepath.Join(t.TempDir(), "service.db"), kills: *kills, commitsBetween: 150, lease: "2s", batch: "20"})
	})
	t.Run("postgres", func(t *testing.T) {
		server := pgtest.Start(t)
		killed(t, &edge{url: server.Database(t), killDatabase: func() error { server.Kill(); return server.Run() }, kills: *kills, commitsBetween: 150, lease: "2s", batch: "20"})
	})
	t.Run("mongodb", func(t *testing.T) {
		server, err := mongotest.Start(t.TempDir()) // FerretDB, also where other tests have a real server
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(server.Kill)
		// FerretDB reads all rows for each claim, so there are fewer rows and rounds.
		killed(t, &edge{url: server.URI + "service", killDatabase: func() error { server.Kill(); return server.Restart() }, kills: max(4, *kills/5), commitsBetween: 20, lease: "6s", batch: "5"})
	})
}

// edge is a database with the programs around it.
type edge struct {
	url          string
	killDatabase func() error
	kills        int
	// Of the drainers: a lease is longer than the slowest publish of a batch with its outcome.
	lease, batch   string
	commitsBetween int // two kills, at most

	db       books
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
	for range e.kills {
		e.awaitCommits(t, int64(1+r.IntN(e.commitsBetween)))
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
	e.db = openBooks(t, e.url)
	if err := e.db.prepare(t.Context()); err != nil {
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
	if e.db.projects() {
		e.programs["projector"] = start(t, "projector", "", nil, func() *exec.Cmd { return e.role("projector", e.hub, "http://"+ports[1]) })
	}
	for _, name := range []string{"drainer 1", "drainer 2"} {
		e.programs[name] = start(t, name, "", nil, func() *exec.Cmd {
			return program("outbox", "drain", "--from", e.url, "--lease", e.lease, "--batch", e.batch, "--url", e.hub)
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
			for name, p := range e.programs {
				t.Logf("%s:\n%s", name, p.log())
			}
			t.Fatal("the service does nothing")
		}
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

// compare compares the log with what the service has committed.
func (e *edge) compare(t *testing.T) {
	want, err := e.db.committed(t.Context())
	if err != nil {
		t.Fatal(err)
	}
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
	e.await(t, "consumer", want, e.db.effects)
	if e.db.projects() {
		e.await(t, "projector", want, e.db.projected)
	}
	t.Logf("%d events", total)
}

// await waits until the database has what a program has to bring it.
func (e *edge) await(t *testing.T, who string, want map[string]int, read func(context.Context) (map[string]int, error)) {
	t.Helper()
	for limit := time.Now().Add(watchdog); ; time.Sleep(20 * time.Millisecond) {
		got, err := read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if maps.Equal(want, got) {
			return
		}
		for key, n := range got {
			if n > want[key] {
				t.Fatalf("%s: key %s has %d, and there are %d", who, key, n, want[key])
			}
		}
		if time.Now().After(limit) {
			t.Errorf("%s: %v; want %v\n%s", who, got, want, e.programs[who].log())
			return
		}
	}
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
