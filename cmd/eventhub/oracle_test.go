package main

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"eventhub/internal/testsize"
)

var (
	oracleOKs    = testsize.Int("oracle.oks", 20_000, 4_000, "how many requests of TestOracle are answered with OK")
	oracleRounds = testsize.Int("oracle.rounds", 8, 3, "how often TestOracle ends the hub, one way or the other")
)

const (
	oracleWorkers = 4
	// smallDisk is hardly more than what a hub wants to have free for publishing.
	smallDisk = "size=700m"
	// ballast leaves less than that.
	ballast = 480 << 20
)

// TestOracle lets workers do all that a client can do with the real hub, which is killed,
// frozen, stopped and, on a small disk, filled up. It knows what must be there: what got
// its OK is in the log once, under its offset, with its payload, or is scheduled; what was
// refused, cancelled or deleted is nowhere; batches are whole; no offset of a name is
// given twice, over all of its lives; an ack with an event that got its OK holds, and
// its event is there; everything was delivered and nothing given up.
func TestOracle(t *testing.T) {
	t.Run("disk", func(t *testing.T) { runOracle(t, t.TempDir(), "") })
	t.Run("small disk", func(t *testing.T) {
		dir := t.TempDir()
		if err := syscall.Mount("none", dir, "tmpfs", 0, smallDisk); err != nil {
			t.Logf("a small file system cannot be made here (%v): the store lies on the machine's disk, which is not filled", err)
			runOracle(t, dir, "")
			return
		}
		t.Cleanup(func() {
			if err := syscall.Unmount(dir, 0); err != nil {
				t.Errorf("unmount %s: %v", dir, err)
			}
		})
		runOracle(t, filepath.Join(dir, "store"), filepath.Join(dir, "ballast"))
	})
}

func runOracle(t *testing.T, dir, full string) {
	seed := drawSeed(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	var counts oracleCounts
	var workers []*oracleWorker
	var members []*oracleMember
	for n := range oracleWorkers {
		w := newOracleWorker(n, seed, &counts)
		workers, members = append(workers, w), append(members, newOracleMember(w, seed))
	}
	var filled int
	for round := range *oracleRounds {
		hub := startHub(t, "--store", dir)
		for _, w := range workers {
			w.reconcile(t, hub, false)
		}
		if t.Failed() {
			return
		}
		isFull := full != "" && round%4 == 2
		if isFull {
			if err := os.WriteFile(full, make([]byte, ballast), 0o600); err != nil {
				t.Fatal(err)
			}
			filled++
		}
		oracleRound(t, hub, rng, &counts, workers, members, isFull)
		if isFull {
			if err := os.Remove(full); err != nil {
				t.Fatal(err)
			}
		}
	}
	hub := startHub(t, "--store", dir)
	for _, w := range workers {
		w.reconcile(t, hub, false)
	}
	for _, m := range members {
		m.finish(t, hub)
		hub = startHub(t, "--store", dir)
	}
	for i, w := range workers {
		w.reconcile(t, hub, true)
		members[i].check(t, hub.admin(t))
	}
	if code := hub.stop(); code != exitDone {
		t.Errorf("exit code %d after SIGTERM:\n%s", code, hub.logged())
	}
	t.Logf("%d OKs, %d refusals and %d lost answers in %d rounds, %d of them with a full disk",
		counts.oks.Load(), counts.refused.Load(), counts.unknown.Load(), *oracleRounds, filled)
	if full != "" && counts.refused.Load() == 0 {
		t.Error("nothing was refused; the disk was never full")
	}
}

// oracleRound is the life of one hub, to its end.
func oracleRound(t *testing.T, hub *hubProcess, rng *rand.Rand, counts *oracleCounts, workers []*oracleWorker, members []*oracleMember, isFull bool) {
	target := counts.oks.Load() + int64(*oracleOKs / *oracleRounds / 2)
	if isFull {
		target = counts.refused.Load() + 400
	}
	var reached sync.Once
	var over atomic.Bool
	enough := make(chan struct{})
	isOver := func() bool {
		count := &counts.oks
		if isFull {
			count = &counts.refused
		}
		if count.Load() >= target {
			reached.Do(func() { close(enough) })
		}
		return over.Load()
	}
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() { workers[i].run(t, hub, isOver) })
		wg.Go(func() { members[i].follow(t, hub) })
	}
	ended := make(chan struct{})
	go func() { wg.Wait(); close(ended) }()
	select {
	case <-enough:
	case <-hub.ended:
		t.Errorf("the hub ended by itself:\n%s", hub.logged())
	case <-ended: // a worker failed
	}
	switch rng.IntN(4) {
	case 0: // stopped in order
		if code := hub.stop(); code != exitDone {
			t.Errorf("exit code %d after SIGTERM:\n%s", code, hub.logged())
		}
	case 1: // frozen, and killed as it goes on
		for _, s := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGCONT} {
			if err := hub.cmd.Process.Signal(s); err != nil {
				t.Error(err)
			}
			<-time.After(time.Duration(rng.IntN(50)) * time.Millisecond) // the fault's length
		}
		hub.kill()
	default:
		hub.kill()
	}
	over.Store(true)
	wg.Wait()
}
