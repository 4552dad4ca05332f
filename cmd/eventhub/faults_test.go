package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"

	"eventhub/client"
	"eventhub/hub"
	"eventhub/internal/faultfs"
	"eventhub/internal/testsize"
	"eventhub/store"
	"eventhub/store/pebble"
)

var faultStride = testsize.Int("fault.stride", 6, 40, "TestEveryWriteError fails one write in so many")

const (
	// faultEnv makes this test binary a hub on whose disk the write of that number
	// fails.
	faultEnv = "EVENTHUB_TEST_FAULT"

	faultEvents  = 20
	faultPayload = 40 << 10 // some of them fill a memtable

	// panicked is how Go ends a process. Pebble does so where it can not go on, after
	// the hub's log has the cause.
	panicked = 2

	// What the hub on the failing disk says.
	sayFired = "the write failed:"
	sayLate  = "a commit was acknowledged after the store had broken"
)

// kthWrite fails the k-th operation that writes, once.
type kthWrite struct{ k, n atomic.Int64 }

func (f *kthWrite) MaybeError(op errorfs.Op) error {
	if op.Kind.ReadOrWrite() != errorfs.OpIsWrite || f.n.Add(1) != f.k.Load() {
		return nil
	}
	fmt.Fprintln(os.Stderr, sayFired, op.Kind, op.Path)
	return errorfs.ErrInjected
}

func (f *kthWrite) String() string { return "fail the k-th write" }

// suspicious is a store that says so when it acknowledges a commit after it broke.
type suspicious struct {
	store.Store
	broken atomic.Bool
}

func (s *suspicious) Commit(ctx context.Context, units []*store.Unit, sync bool) error {
	broken := s.broken.Load()
	err := s.Store.Commit(ctx, units, sync)
	if err == nil && broken {
		fmt.Fprintln(os.Stderr, sayLate)
	}
	return err
}

// runFaultyHub is serve on a failing disk. Its one argument is the directory.
func runFaultyHub() int {
	fault := &kthWrite{}
	k, err := strconv.ParseInt(os.Getenv(faultEnv), 10, 64)
	if err != nil {
		panic(err)
	}
	fault.k.Store(k)
	ctx, stop := untilSignal()
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	cfg := hub.Config{WSAddr: "127.0.0.1:0", HTTPAddr: "localhost:0", OpsAddr: "127.0.0.2:0", Logger: log}
	cfg.OpenStore = func(fatal func(error)) (store.Store, error) {
		s := &suspicious{}
		var err error
		s.Store, err = pebble.Open(pebble.Options{Dir: os.Args[1], FS: faultfs.Wrap(vfs.Default, fault), Logger: log,
			Fatal: func(cause error) {
				s.broken.Store(true)
				fatal(cause)
			}})
		if err != nil {
			return nil, err
		}
		return s, nil
	}
	err = runHub(ctx, cfg.WithDefaults(), func(ctx context.Context, _ *hub.Hub) error {
		<-ctx.Done()
		return nil
	})
	if err != nil {
		fmt.Fprintf(os.Stderr, "eventhub: %s\n", oneLine(err.Error()))
	}
	return exitCode(err)
}

// TestEveryWriteError fails every write and fsync of a hub's life in turn, each in
// a process of its own: those of the start, of commits, of the change to another
// log, of tables and of the stop. A hub whose store is broken says so, acknowledges
// nothing more and does not end with 0; one that can do without the write goes on. Whatever
// it was, the next hub on the directory starts, has every event that got its OK,
// and no group is ahead of its acks.
func TestEveryWriteError(t *testing.T) {
	first := 1 + rand.IntN(*faultStride)
	t.Logf("write %d and every %d-th after it", first, *faultStride)
	ends := make(map[int]int) // by exit code
	writes := 0
	for k := first; writes == 0; k += *faultStride {
		if !tryFault(t, k, ends) {
			writes = k - 1
		}
	}
	// What a hub can do without is little of it, and may lie between.
	for k := 1; k <= writes && (ends[exitFailed] == 0 || ends[exitDone] == 0); k++ {
		tryFault(t, k, ends)
	}
	t.Logf("at most %d writes: the failure of %d ended the hub, of %d with a panic; it went on after %d",
		writes, ends[exitFailed], ends[panicked], ends[exitDone])
	if ends[exitFailed] == 0 || ends[exitDone] == 0 {
		t.Error("the sweep met no error of each sort; it shows nothing")
	}
}

// tryFault has the k-th write of a hub fail and counts how it ends. false: there are
// not so many.
func tryFault(t *testing.T, k int, ends map[int]int) bool {
	life := liveWithFault(t, t.TempDir(), k)
	life.check(t)
	if t.Failed() {
		t.Fatalf("with write %d failing (%s)", k, life.fired)
	}
	if life.fired == "" {
		return false
	}
	ends[life.code]++
	return true
}

// faultedLife is what is known of one hub on a failing disk.
type faultedLife struct {
	dir    string
	fired  string // the operation that failed
	log    string
	code   int
	offset map[string]uint64 // of events that got their OK
	acked  uint64            // events acked, from the first on
}

var firedLine = regexp.MustCompile(regexp.QuoteMeta(sayFired) + " (.*)")

// liveWithFault runs a hub until it ends by itself or has done its work and is
// stopped.
func liveWithFault(t *testing.T, dir string, k int) *faultedLife {
	t.Helper()
	cmd := exec.Command(os.Args[0], dir)
	cmd.Env = cleanEnv(fmt.Sprintf("%s=%d", faultEnv, k))
	p := launch(t, cmd)
	life := &faultedLife{dir: dir, offset: make(map[string]uint64)}
	if p.serves() {
		life.work(t, p)
		select {
		case <-p.ended:
		default:
			_ = p.cmd.Process.Signal(os.Interrupt) // it may be ending
		}
	}
	life.code = p.exitCode()
	life.log = p.logged()
	if m := firedLine.FindStringSubmatch(life.log); m != nil {
		life.fired = m[1]
	}
	return life
}

// work publishes one event after the other and acks them, as long as the hub
// lives.
func (l *faultedLife) work(t *testing.T, p *hubProcess) {
	nc, _, _, err := ws.Dial(context.Background(), "ws://"+p.ws+"/")
	if err != nil {
		return
	}
	defer nc.Close()
	c := &conn{t, nc}
	payload := strings.Repeat("x", faultPayload)
	say := func(v any) bool {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return wsutil.WriteClientText(c, b) == nil
	}
	if !say(map[string]any{"op": "AUTH", "corr": "auth"}) ||
		!say(map[string]any{"op": "SUBSCRIBE", "topic": "t", "group": "g", "opts": map[string]any{"from": "earliest"}}) {
		return
	}
	for sent := 0; ; {
		f, err := c.next()
		if err != nil || f.Op == "ERR" {
			return
		}
		switch {
		case f.Op == "EVENT":
			l.acked = max(l.acked, f.Event.Offset)
			if !say(map[string]any{"op": "ACK", "topic": "t", "group": "g", "id": f.Event.ID}) {
				return
			}
			continue
		case f.Corr == "auth":
			continue
		case f.Corr != "":
			l.offset[f.Corr] = f.Offset
		}
		if sent == faultEvents {
			return
		}
		sent++
		id := fmt.Sprint("e-", sent)
		if !say(map[string]any{"op": "PUBLISH", "topic": "t", "payload": payload, "corr": id, "opts": map[string]any{"id": id}}) {
			return
		}
	}
}

// check looks at how the hub ended and at what it left.
func (l *faultedLife) check(t *testing.T) {
	t.Helper()
	broken := strings.Contains(l.log, "store broken by a write error")
	named := strings.Contains(lastLine(l.log), "injected error")
	switch l.code {
	case exitDone:
		if broken || len(l.offset) != faultEvents {
			t.Errorf("%d of %d events got their OK; the store was broken: %v:\n%s", len(l.offset), faultEvents, broken, l.log)
		}
	case panicked:
		named = broken
		fallthrough
	case exitFailed:
		if l.fired == "" || !named {
			t.Errorf("the hub ended with %d and does not say why:\n%s", l.code, l.log)
		}
	default:
		t.Errorf("the hub ended with %d:\n%s", l.code, l.log)
	}
	if strings.Contains(l.log, sayLate) {
		t.Errorf("%s:\n%s", sayLate, l.log)
	}
	next := startHub(t, "--store", l.dir)
	adm, err := client.NewAdmin("http://" + next.http)
	if err != nil {
		t.Fatal(err)
	}
	defer adm.Close()
	ctx, cancel := context.WithTimeout(context.Background(), watchdog)
	defer cancel()
	for id, offset := range l.offset {
		if e, err := adm.Event(ctx, "t", id); err != nil || e.Offset != offset {
			t.Errorf("%s got its OK at %d; the next hub has it at %d, %v", id, offset, e.Offset, err)
		}
	}
	if len(l.offset) > 0 {
		if g, err := adm.Group(ctx, "t", "g"); err != nil || g.Cursor > l.acked {
			t.Errorf("acked was up to %d; the next hub has the group at %d, %v", l.acked, g.Cursor, err)
		}
	}
	if code := next.stop(); code != exitDone || strings.Contains(next.logged(), "level=ERROR") {
		t.Errorf("the next hub ended with %d:\n%s", code, next.logged())
	}
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndex(s, "\n")+1:]
}
