package pebble

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"eventhub/internal/faultfs"
	"eventhub/store"

	pdb "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

const copyDir = "copies/copy"

// large commits one event of about that size.
func large(t testing.TB, s *Store, id string, size int) {
	t.Helper()
	a := given("t", id)
	a.Record = newRecord("t", id, size)
	mustCommit(t, s, true, a)
}

// openCopy opens a copy and returns the number of its events, which are checked.
func openCopy(t *testing.T, fsys vfs.FS) int {
	t.Helper()
	o := onMem(t, fsys)
	o.Dir = copyDir
	n := 0
	for range 2 { // as it was copied, and as it was closed
		s := mustOpen(t, o)
		n = len(readAll(t, s, "t"))
		checkIndexes(t, s)
		mustClose(t, s)
	}
	return n
}

// TestCheckpointOfAGrowingLog: the log that is copied is one that was used before.
// When the copy is past what was written, and into the old bytes, the log grows by
// synced commits far beyond that place.
func TestCheckpointOfAGrowingLog(t *testing.T) {
	const before, during = 10, 100
	var s *Store
	var copying atomic.Bool
	reads := make(map[string]int)
	grow := errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind != errorfs.OpFileRead || !isLog(op.Path) || !strings.HasPrefix(op.Path, "data/") || !copying.Load() {
			return nil
		}
		if reads[op.Path]++; reads[op.Path] == 5 { // of 32 KiB each
			for i := range during {
				large(t, s, fmt.Sprint(op.Path, i), 5<<10)
			}
		}
		return nil
	})
	mem := vfs.NewMem()
	o := onMem(t, faultfs.Wrap(mem, grow))
	o.tune = func(p *pdb.Options) {
		small(p)
		p.MemTableSize = 2 << 20
	}
	s = mustOpen(t, o)
	n := 0
	for round := range 8 { // logs are used again by now
		for i := range 100 {
			large(t, s, fmt.Sprint(round, "-", i), 10<<10)
			n++
		}
		if err := s.db.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	for i := range before {
		large(t, s, fmt.Sprint("before-", i), 5<<10)
		n++
	}
	copying.Store(true)
	if err := s.Checkpoint(context.Background(), copyDir); err != nil {
		t.Fatal(err)
	}
	copying.Store(false)
	mustClose(t, s)
	if got := openCopy(t, mem); got != n {
		t.Errorf("the copy has %d events; %d were acknowledged when it began", got, n)
	}
	if len(reads) == 0 {
		t.Error("no log was copied; this shows nothing")
	}
}

// TestCheckpointWriteErrors fails each write of a checkpoint in turn: it says so,
// leaves nothing, and the store has nothing to do with it.
func TestCheckpointWriteErrors(t *testing.T) {
	fault := &copyFault{}
	mem := vfs.NewMem()
	s := mustOpen(t, onMem(t, faultfs.Wrap(mem, fault)))
	failed := 0
	for k := int64(1); ; k++ {
		large(t, s, fmt.Sprint(k), 20<<10)
		fault.n.Store(0)
		fault.k.Store(k)
		err := s.Checkpoint(context.Background(), copyDir)
		reached := fault.n.Load() >= k
		fault.k.Store(0)
		if !reached {
			if err != nil {
				t.Fatalf("write %d was not reached, and yet: %v", k, err)
			}
			break
		}
		// Pebble takes no notice of files that can not be closed: their content is there. A table
		// that can not be linked is copied.
		if err == nil {
			if kind := fault.fired.Load().Kind; kind != errorfs.OpFileClose && kind != errorfs.OpLink {
				t.Errorf("a fault in write %d, %+v, was not reported", k, fault.fired.Load())
			}
			if n := openCopy(t, mem); n < int(k) {
				t.Errorf("a fault in write %d: the copy has %d of %d events", k, n, k)
			}
			if err := mem.RemoveAll(copyDir); err != nil {
				t.Fatal(err)
			}
			continue
		}
		failed++
		if _, statErr := mem.Stat(copyDir); !errors.Is(err, errorfs.ErrInjected) || !errors.Is(statErr, fs.ErrNotExist) {
			t.Errorf("a fault in write %d: %v; what is left of the copy: %v", k, err, statErr)
		}
	}
	if failed < 10 {
		t.Errorf("only %d writes failed", failed)
	}
	n := len(readAll(t, s, "t"))
	mustClose(t, s)
	if got := openCopy(t, mem); got != n {
		t.Errorf("the copy has %d events; the store has %d", got, n)
	}
}

// copyFault fails the k-th write outside of the store's directory; 0: none.
type copyFault struct {
	k, n  atomic.Int64
	fired atomic.Pointer[errorfs.Op]
}

func (f *copyFault) MaybeError(op errorfs.Op) error {
	k := f.k.Load()
	if k == 0 || op.Kind.ReadOrWrite() != errorfs.OpIsWrite || op.Kind == errorfs.OpRemoveAll ||
		strings.HasPrefix(op.Path, "data") && op.Kind != errorfs.OpLink || f.n.Add(1) != k {
		return nil
	}
	f.fired.Store(&op)
	return errorfs.ErrInjected
}

func (f *copyFault) String() string { return "fail the k-th write of a checkpoint" }

// TestCheckpointCutShort takes an image before every operation on the disk while a
// checkpoint is made: there is a copy that is whole, or none that opens.
func TestCheckpointCutShort(t *testing.T) {
	mem := vfs.NewCrashableMem()
	rng := rand.New(rand.NewPCG(3, 4))
	var watching atomic.Bool
	const events = 5
	whole, none := 0, 0
	look := func() {
		o := onMem(t, mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rng}))
		o.Dir = copyDir
		if _, err := o.FS.Stat(copyDir + "/" + formatFile); errors.Is(err, fs.ErrNotExist) {
			none++
			if names, err := o.FS.List(copyDir); err == nil && len(names) > 0 {
				_, err := Open(o)
				wantError(t, err, ErrFormat, copyDir)
			}
			return
		}
		whole++
		s := mustOpen(t, o)
		if n := len(readAll(t, s, "t")); n != events {
			t.Errorf("a copy that opens has %d events; want %d", n, events)
		}
		mustClose(t, s)
	}
	images := errorfs.InjectorFunc(func(op errorfs.Op) error {
		if watching.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			watching.Store(false)
			look()
			watching.Store(true)
		}
		return nil
	})
	s := mustOpen(t, onMem(t, faultfs.Wrap(mem, images)))
	for i := range events {
		large(t, s, fmt.Sprint(i), 20<<10)
	}
	watching.Store(true)
	if err := s.Checkpoint(context.Background(), copyDir); err != nil {
		t.Fatal(err)
	}
	watching.Store(false)
	look() // it is durable when Checkpoint has returned
	mustClose(t, s)
	if whole == 0 || none < 20 {
		t.Errorf("%d images have a copy, %d have none; this shows nothing", whole, none)
	}
}

// TestCheckpointOnDisk: the copy is its owner's alone, and opens without the
// store.
func TestCheckpointOnDisk(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, onDisk(t, filepath.Join(dir, "store")))
	acked := mustCommit(t, s, true, given("t", "1"))
	copied := filepath.Join(dir, "deep", "copy")
	if err := s.Checkpoint(context.Background(), copied); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	if err := os.RemoveAll(filepath.Join(dir, "store")); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{copied, filepath.Dir(copied)} {
		if info, err := os.Stat(d); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("the mode of %s is %v, %v; want 0700", d, info.Mode().Perm(), err)
		}
	}
	if names := listDir(t, copied); !slices.Contains(names, sealFile) || !slices.Contains(names, formatFile) {
		t.Errorf("the copy has %q", names)
	}
	s = mustOpen(t, onDisk(t, copied))
	if got := readAll(t, s, "t"); len(got) != 1 || string(got[0].Record) != string(acked[0].Record) {
		t.Errorf("the copy has %v", got)
	}
	mustClose(t, s)
}

// TestChecksumsOfABackup: a store in the directory of a backup removes the list of its checksums, which do not hold any more
// of what runs there. One that is not opened stays a backup.
func TestChecksumsOfABackup(t *testing.T) {
	mem := vfs.NewMem()
	s := mustOpen(t, onMem(t, mem))
	mustCommit(t, s, true, given("t", "1"))
	if err := s.Checkpoint(context.Background(), copyDir); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	list := mem.PathJoin(copyDir, backupSums)
	f, err := mem.Create(list, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	o := onMem(t, mem)
	o.Dir = copyDir
	if r, err := OpenReplica(o); err == nil {
		t.Fatalf("a replica of the copy of another store: %v", r)
	}
	if _, err := mem.Stat(list); err != nil {
		t.Errorf("after an opening that was refused: %v", err)
	}
	mustClose(t, mustOpen(t, o))
	if _, err := mem.Stat(list); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the store was opened, and there is a list: %v", err)
	}
}

// TestCheckpointOfABrokenStore makes none: nobody knows what is durable.
func TestCheckpointOfABrokenStore(t *testing.T) {
	fault := &failing{match: isWALSync}
	mem := vfs.NewMem()
	o := onMem(t, faultfs.Wrap(mem, fault))
	o.Fatal = func(error) {}
	s := mustOpen(t, o)
	fault.on.Store(true)
	_ = s.Commit(context.Background(), []*store.Unit{{Appends: []store.Append{given("t", "1")}}}, true)
	fault.on.Store(false)
	wantError(t, s.Checkpoint(context.Background(), copyDir), store.ErrBroken)
	if _, err := mem.Stat(copyDir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("there is a copy: %v", err)
	}
	_ = s.Close()
}

// TestDamagedLinks: a key of the links that has no place in it is reported.
func TestDamagedLinks(t *testing.T) {
	for _, tag := range []byte{tagEffect, tagCorrelated, tagID} {
		s := mustOpen(t, onMem(t, vfs.NewMem()))
		mustCommit(t, s, true, given("t", "1"))
		key := append(appendLinkPrefix(nil, tag, "x", 0), 1, 2, 3)
		if err := s.db.Set(key, nil, nil); err != nil {
			t.Fatal(err)
		}
		ctx, none := context.Background(), store.Place{}
		var err error
		switch tag {
		case tagEffect:
			_, err = s.Effects(ctx, "x", none, 9)
		case tagCorrelated:
			_, err = s.Correlated(ctx, "x", none, 9)
		case tagID:
			_, err = s.Places(ctx, "x", 9)
		}
		wantError(t, err, nil, `"x"`, "has 3 bytes")
		mustClose(t, s)
	}
}
