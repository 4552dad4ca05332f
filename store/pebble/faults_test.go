package pebble

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"eventhub/internal/bubble"
	"eventhub/internal/faultfs"
	"eventhub/store"

	pdb "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// failing makes operations fail from the moment it is switched on.
type failing struct {
	match func(errorfs.Op) bool
	on    atomic.Bool
	fired atomic.Int64
}

func (f *failing) MaybeError(op errorfs.Op) error {
	if !f.on.Load() || !f.match(op) {
		return nil
	}
	f.fired.Add(1)
	return errorfs.ErrInjected
}

func (f *failing) String() string { return "fail when switched on" }

func isWALWrite(op errorfs.Op) bool {
	return strings.HasSuffix(op.Path, ".log") && op.Kind == errorfs.OpFileWrite
}

// TestWriteError: after the first write or fsync that fails, no commit is
// acknowledged; reads go on; what was acknowledged is there on reopening.
func TestWriteError(t *testing.T) {
	for _, tt := range []struct {
		name  string
		match func(errorfs.Op) bool
	}{
		{"fsync of the log", isWALSync},
		{"write to the log", isWALWrite},
	} {
		t.Run(tt.name, func(t *testing.T) {
			mem := vfs.NewCrashableMem()
			fault := &failing{match: tt.match}
			fatal := make(chan error, 9)
			o := onMem(t, faultfs.Wrap(mem, fault))
			o.Fatal = func(cause error) { fatal <- cause }
			s := mustOpen(t, o)
			acked := mustCommit(t, s, true, given("t", "1"), given("t", "2"))

			fault.on.Store(true)
			units := func(id string) []*store.Unit {
				return []*store.Unit{{Appends: []store.Append{given("t", id), given("created", id)}}}
			}
			ctx := context.Background()
			if err := s.Commit(ctx, units("3"), true); !errors.Is(err, store.ErrBroken) || !errors.Is(err, errorfs.ErrInjected) {
				t.Errorf("Commit whose write fails: %v; want store.ErrBroken and the cause", err)
			}
			if fault.fired.Load() == 0 {
				t.Fatal("the fault never fired")
			}
			if cause := <-fatal; !errors.Is(cause, errorfs.ErrInjected) {
				t.Errorf("Fatal was called with %v; want the injected error", cause)
			}
			fault.on.Store(false)
			for _, sync := range []bool{true, false} {
				if err := s.Commit(ctx, units("4"), sync); !errors.Is(err, store.ErrBroken) {
					t.Errorf("later Commit, sync %v: %v; want store.ErrBroken", sync, err)
				}
			}
			if got := readAll(t, s, "t"); len(got) != 2 {
				t.Errorf("the broken store shows %d events; want the 2 acknowledged ones", len(got))
			}
			if topics, err := s.ListTopics(ctx, "", 9); err != nil || len(topics) != 1 {
				t.Errorf("the broken store shows topics %v, %v; want one", topics, err)
			}
			if len(fatal) > 0 {
				t.Errorf("Fatal was called again, with %v", <-fatal)
			}
			image := mem.CrashClone(vfs.CrashCloneCfg{})
			if err := s.Close(); !errors.Is(err, store.ErrBroken) || !errors.Is(err, errorfs.ErrInjected) {
				t.Errorf("close: %v; want store.ErrBroken and the injected error", err)
			}
			for _, fsys := range []vfs.FS{mem, image} {
				again := mustOpen(t, onMem(t, fsys))
				got := readAll(t, again, "t")
				if len(got) < 2 || !bytes.Equal(got[0].Record, acked[0].Record) || !bytes.Equal(got[1].Record, acked[1].Record) {
					t.Errorf("after reopening there are %d events; want the acknowledged ones and what else is on disk", len(got))
				}
				mustCommit(t, again, true, given("t", "5"))
				mustClose(t, again)
			}
		})
	}
}

// TestFatalIsLoggedFirst: the log has the cause before Fatal runs.
func TestFatalIsLoggedFirst(t *testing.T) {
	var log bytes.Buffer
	f := &faults{log: slog.New(slog.NewTextHandler(&log, nil)), fatal: func(error) {
		if !strings.Contains(log.String(), "disk gone") {
			t.Errorf("Fatal runs before the log has the cause: %s", log.String())
		}
	}}
	pebbleLog{f}.Fatalf("it failed: %v", errors.New("disk gone"))
	if f.err() == nil {
		t.Error("the store is not broken")
	}
}

// TestLogLevels: an operator sees Pebble's errors and none of its talk.
func TestLogLevels(t *testing.T) {
	var log bytes.Buffer
	o := onMem(t, vfs.NewMem())
	o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	s := mustOpen(t, o)
	for i := range 200 {
		mustCommit(t, s, true, store.Append{Topic: "t", ID: fmt.Sprint(i), Record: newRecord("t", fmt.Sprint(i), 4000)})
	}
	mustClose(t, s)
	if got := log.String(); !strings.Contains(got, "a new store") || strings.Count(got, "\n") != 1 {
		t.Errorf("a new store logs:\n%s", got)
	}
	log.Reset()
	mustClose(t, mustOpen(t, o))
	if log.Len() > 0 {
		t.Errorf("a healthy store logs at the info level or above:\n%s", log.String())
	}
	pebbleLog{&faults{log: o.Logger}}.Errorf("background error: %s", "x")
	if !strings.Contains(log.String(), "level=ERROR") {
		t.Errorf("an error of Pebble is logged as %q", log.String())
	}
}

// TestBrokenWhileStalled: a commit that waits for room among the memtables, while none
// of them can be written, ends when the store breaks, and so does Close; reads go on.
func TestBrokenWhileStalled(t *testing.T) {
	fault := &failing{match: func(op errorfs.Op) bool { return isTable(op.Path) && op.Kind == errorfs.OpFileWrite }}
	o := onMem(t, faultfs.Wrap(vfs.NewMem(), fault))
	o.Fatal = func(error) {}
	stalled := make(chan struct{}, 9)
	o.tune = func(p *pdb.Options) {
		small(p)
		p.EventListener.WriteStallBegin = func(pdb.WriteStallBeginInfo) { stalled <- struct{}{} }
	}
	s := mustOpen(t, o)
	fault.on.Store(true)
	acked := make(chan int, 1)
	go func() {
		n := 0
		for ; ; n++ {
			id := fmt.Sprint(n)
			u := &store.Unit{Appends: []store.Append{{Topic: "t", ID: id, Record: newRecord("t", id, 10_000)}}}
			if err := s.Commit(context.Background(), []*store.Unit{u}, true); err != nil {
				if !errors.Is(err, store.ErrBroken) {
					t.Errorf("Commit %d: %v; want store.ErrBroken", n, err)
				}
				break
			}
		}
		acked <- n
	}()
	<-stalled
	s.faults.fail(errors.New("broken elsewhere"))
	n := <-acked
	if got := readAll(t, s, "t"); len(got) != n {
		t.Errorf("%d events are shown; %d were acknowledged", len(got), n)
	}
	wantError(t, s.Close(), store.ErrBroken)
}

// TestFullDisk: where tables can not be written, commits go on as long as there
// is memory, the tries to write one do not follow each other at once, and a
// Close does not wait for the disk. All is there afterwards.
func TestFullDisk(t *testing.T) {
	t.Run("with room in memory", func(t *testing.T) { testFullDisk(t, 40) })
	// So that Pebble would have the next write wait.
	t.Run("with none left", func(t *testing.T) { testFullDisk(t, 95) })
}

func testFullDisk(t *testing.T, n int) {
	bubble.Test(t, func(t *testing.T) {
		mem := vfs.NewMem()
		const most = 100 // tries before this test takes it for a busy loop
		fault := &failing{}
		fault.match = func(op errorfs.Op) bool {
			return isTable(op.Path) && op.Kind == errorfs.OpFileWrite && fault.fired.Load() < most
		}
		s := mustOpen(t, onMem(t, faultfs.Wrap(mem, fault)))
		fault.on.Store(true)
		for i := range n {
			mustCommit(t, s, true, store.Append{Topic: "t", ID: fmt.Sprint(i), Record: newRecord("t", fmt.Sprint(i), 10_000)})
		}
		time.Sleep(10 * retryPause)
		if tries := fault.fired.Load(); tries < 2 || tries == most {
			t.Errorf("%d tries to write a table in %v", tries, 10*retryPause)
		}
		start := time.Now()
		mustClose(t, s)
		if took := time.Since(start); took > 5*retryPause {
			t.Errorf("Close took %v", took)
		}
		if fault.fired.Load() == most {
			t.Error("Close waited until tables could be written")
		}
		fault.on.Store(false)
		s = mustOpen(t, onMem(t, mem))
		if got := len(readAll(t, s, "t")); got != n {
			t.Errorf("%d events are there; want %d", got, n)
		}
		mustClose(t, s)
	})
}
