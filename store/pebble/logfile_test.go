package pebble

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
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

// reuses notes which logs are used again.
type reuses struct {
	mu    sync.Mutex
	names []string
}

func (r *reuses) MaybeError(op errorfs.Op) error {
	if op.Kind == errorfs.OpReuseForWrite {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.names = append(r.names, op.Path)
	}
	return nil
}

func (r *reuses) String() string { return "note what is used again" }

func (r *reuses) seen() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.names)
}

// TestSpareLogs: however many logs were written, those that are there are the one that is
// written and the few that are to be used again, also after a burst in which no memtable was
// flushed. Logs that fill slowly are not kept. What a crash leaves of them is no log of the next store, and is not used by it; a
// store that is closed has none.
func TestSpareLogs(t *testing.T) { bubble.Test(t, testSpareLogs) }

func testSpareLogs(t *testing.T) {
	const size, burst = 20 << 10, 25 // so much fills some memtables
	mem := vfs.NewCrashableMem()
	var used reuses
	hold := &tableHold{}
	o := onMem(t, faultfs.Wrap(faultfs.Wrap(mem, hold), &used))
	o.tune = func(p *pdb.Options) {
		small(p)
		p.DisableAutomaticCompactions = true // sizes are compared
		p.L0StopWritesThreshold = 1000
	}
	s := mustOpen(t, o)
	n := 0
	fill := func() {
		t.Helper()
		for range burst {
			id := fmt.Sprint(n)
			mustCommit(t, s, true, store.Append{Topic: "t", ID: id, Record: newRecord("t", id, size)})
			n++
		}
	}
	logs := func() (names []string) {
		t.Helper()
		if _, err := s.flush(context.Background()); err != nil {
			t.Fatal(err)
		}
		s.db.TestOnlyWaitForCleaning()
		all, err := mem.List("data")
		if err != nil {
			t.Fatal(err)
		}
		return slices.DeleteFunc(all, func(name string) bool { return !isLog(name) })
	}
	stall := func() { // several logs become obsolete at once
		t.Helper()
		release := make(chan struct{})
		hold.release.Store(&release)
		for !s.isStalled() {
			id := fmt.Sprint(n)
			mustCommit(t, s, true, store.Append{Topic: "t", ID: id, Record: newRecord("t", id, size)})
			n++
		}
		hold.release.Store(nil)
		close(release)
	}
	for round := range 3 {
		if round%2 == 1 {
			stall()
		}
		fill()
		if names := logs(); len(names) > 1+mostSpareLogs {
			t.Errorf("in round %d there are the logs %q; want the one that is written and %d others", round, names, mostSpareLogs)
		}
	}
	if len(used.seen()) == 0 {
		t.Error("no log was used again")
	}
	before, err := s.Size()
	if err != nil {
		t.Fatal(err)
	}
	spare := s.files.spareBytes()
	if err := s.files.dropSpares(); err != nil {
		t.Fatal(err)
	}
	if after, err := s.Size(); err != nil || spare == 0 || before-after != spare {
		t.Errorf("the store has %d bytes, and %d without %d of spare logs, %v", before, after, spare, err)
	}
	stall()
	if names := logs(); len(names) != 1+mostSpareLogs {
		t.Errorf("there are the logs %q; want the one that is written and %d others", names, mostSpareLogs)
	}
	time.Sleep(spareWithin + time.Second)
	if names := logs(); len(names) != 1 {
		t.Errorf("after a log that took long there are the logs %q; want one", names)
	}
	fill()
	logs() // there are spare ones again

	image := afterPowerLoss(mem)
	old, err := image.List("data")
	if err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	left, err := mem.List("data")
	if err != nil {
		t.Fatal(err)
	}
	if left = slices.DeleteFunc(left, func(name string) bool { return !isLog(name) }); len(left) > 1 {
		t.Errorf("the closed store has the logs %q; want one", left)
	}

	used = reuses{}
	mem = image
	s = mustOpen(t, onMem(t, faultfs.Wrap(image, &used)))
	if got := readAll(t, s, "t"); len(got) != n {
		t.Errorf("after the crash %d events are there; want %d", len(got), n)
	}
	fill()
	if names := logs(); len(names) > 1+mostSpareLogs {
		t.Errorf("after the crash there are the logs %q", names)
	}
	for _, name := range used.seen() {
		if slices.Contains(old, image.PathBase(name)) {
			t.Errorf("the log %s of the earlier process is used again", name)
		}
	}
	mustClose(t, s)
}

// TestSpareLogsOnFailingDisk: whichever write of the seal fails while spare logs are removed, Close
// and Shrink say that the store is broken; a log that cannot be removed is no failure of Close.
func TestSpareLogsOnFailingDisk(t *testing.T) {
	closing := func(s *Store) error { return s.Close() }
	shrinking := func(s *Store) error {
		err := s.Shrink(context.Background())
		if broken := s.faults.err() != nil; err != nil && broken != errors.Is(err, store.ErrBroken) {
			t.Errorf("Shrink of a store that is broken, %v: %v", broken, err)
		}
		return s.Close()
	}
	// end ends a store with spare logs, whose k-th operation of a kind fails from then on.
	end := func(k int64, match func(errorfs.Op) bool, how func(*Store) error) (met bool, err error) {
		var armed atomic.Bool
		var seen atomic.Int64
		fault := errorfs.InjectorFunc(func(op errorfs.Op) error {
			if armed.Load() && match(op) && seen.Add(1) == k {
				return errorfs.ErrInjected
			}
			return nil
		})
		o := onMem(t, faultfs.Wrap(vfs.NewMem(), fault))
		o.Fatal = func(error) {}
		s := mustOpen(t, o)
		for n := 0; s.files.spareBytes() == 0; n++ {
			id := fmt.Sprint(n)
			mustCommit(t, s, true, store.Append{Topic: "t", ID: id, Record: newRecord("t", id, 20<<10)})
		}
		armed.Store(true)
		err = how(s)
		if broken := s.faults.err() != nil; broken != errors.Is(err, store.ErrBroken) {
			t.Errorf("operation %d of its kind fails; Close of a store that is broken, %v: %v", k, broken, err)
		}
		return seen.Load() >= k, err
	}
	isSeal := func(op errorfs.Op) bool {
		return strings.HasSuffix(op.Path, sealFile) && (op.Kind == errorfs.OpFileWriteAt || op.Kind == errorfs.OpFileSyncData)
	}
	for _, how := range []func(*Store) error{closing, shrinking} {
		k := int64(1)
		for met := true; met; k++ {
			met, _ = end(k, isSeal, how) // an error is looked at there
		}
		if k < 4 {
			t.Errorf("%d writes of the seal failed; want some", k-2)
		}
	}
	isRemoval := func(op errorfs.Op) bool { return op.Kind == errorfs.OpRemove && isLog(op.Path) }
	if met, err := end(1, isRemoval, closing); !met || err != nil {
		t.Errorf("a log cannot be removed: %v, %v; want true and no error", met, err)
	}
}

// BenchmarkLogSync is a small write to a log and its sync, on the disk of temporary files: with blocks and size ahead, as
// logs are written; with blocks ahead alone, as Pebble's are; and with neither.
func BenchmarkLogSync(b *testing.B) {
	const ahead = 64 << 20
	for name, open := range map[string]func(vfs.File) vfs.File{
		"ahead":  func(f vfs.File) vfs.File { return newLogFile(f, new(atomic.Int64)) },
		"blocks": func(f vfs.File) vfs.File { _ = f.Preallocate(0, ahead); return f },
		"none":   func(f vfs.File) vfs.File { return f },
	} {
		b.Run(name, func(b *testing.B) {
			file, err := vfs.Default.Create(filepath.Join(b.TempDir(), "000001.log"), vfs.WriteCategoryUnspecified)
			if err != nil {
				b.Fatal(err)
			}
			f := open(file)
			text := make([]byte, 400)
			for b.Loop() {
				if _, err := f.Write(text); err != nil {
					b.Fatal(err)
				}
				if err := f.SyncData(); err != nil {
					b.Fatal(err)
				}
			}
			if err := f.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// TestLogHasItsSize: a log that was closed has the size of what was written to it, whatever it had ahead, and before that
// zeros at its end, also where it was used before.
func TestLogHasItsSize(t *testing.T) {
	path := filepath.Join(t.TempDir(), "000001.log")
	if runtime.GOOS != "linux" {
		t.Log("nothing is allocated ahead here")
	}
	for _, reuse := range []bool{false, true} {
		file, err := vfs.Default.Create(path, vfs.WriteCategoryUnspecified)
		if reuse {
			file, err = vfs.Default.ReuseForWrite(path, path+".new", vfs.WriteCategoryUnspecified)
			path += ".new"
		}
		if err != nil {
			t.Fatal(err)
		}
		f := newLogFile(file, new(atomic.Int64))
		text := bytes.Repeat([]byte("x"), 300<<10)
		for range 3 {
			if _, err := f.Write(text); err != nil {
				t.Fatal(err)
			}
		}
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if ahead := bytes.Trim(bytes.TrimLeft(content, "x"), "\x00"); runtime.GOOS == "linux" && (len(content) <= 3*len(text) || len(ahead) != 0) {
			t.Errorf("a log of %d bytes that is written has %d, and among these after its end %.20q", 3*len(text), len(content), ahead)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.Size() != int64(3*len(text)) {
			t.Errorf("a log of %d bytes that is closed has %v, %v", 3*len(text), info.Size(), err)
		}
		if err := os.Truncate(path, 100<<10); err != nil { // shorter than it becomes
			t.Fatal(err)
		}
	}
}
