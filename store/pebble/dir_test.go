package pebble

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"eventhub/internal/faultfs"
	"eventhub/internal/testsize"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

func onDisk(t testing.TB, dir string) Options {
	return Options{Dir: dir, Now: fixedTime, Logger: quiet, Fatal: func(cause error) { t.Errorf("Fatal(%v)", cause) }}
}

// wantError fails the test unless err wraps target, if there is one, and its
// text has all the parts.
func wantError(t *testing.T, err, target error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	if target != nil && !errors.Is(err, target) {
		t.Errorf("error %v; want %v in its chain", err, target)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not say %q", err, part)
		}
	}
}

func listDir(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestOpenCreatesDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "there")
	s := mustOpen(t, onDisk(t, dir))
	acked := mustCommit(t, s, true, given("t", "1"))
	mustClose(t, s)
	info, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o700 {
		t.Errorf("the directory's mode is %v; want 0700", info.Mode().Perm())
	}
	s = mustOpen(t, onDisk(t, dir))
	defer mustClose(t, s)
	if got := readAll(t, s, "t"); len(got) != 1 || !bytes.Equal(got[0].Record, acked[0].Record) {
		t.Errorf("after reopening there is %v", got)
	}
}

func TestOpenLocked(t *testing.T) {
	for _, tt := range []struct {
		name    string
		options Options
	}{
		{"on disk", onDisk(t, t.TempDir())},
		{"in memory", onMem(t, vfs.NewMem())},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := mustOpen(t, tt.options)
			_, err := Open(tt.options)
			wantError(t, err, ErrLocked, tt.options.Dir, "another eventhub")
			mustClose(t, s)
			mustClose(t, mustOpen(t, tt.options))
		})
	}
}

// TestOpenLockedByProcess: a store that another process has.
func TestOpenLockedByProcess(t *testing.T) {
	if isChild() {
		_, err := Open(onDisk(t, os.Getenv("DIR")))
		wantError(t, err, ErrLocked, os.Getenv("DIR"), "another eventhub")
		return
	}
	dir := t.TempDir()
	s := mustOpen(t, onDisk(t, dir))
	defer mustClose(t, s)
	t.Setenv("DIR", dir)
	if output, code := inChild(t); code != 0 {
		t.Errorf("the child ended with %d:\n%s", code, output)
	}
}

// TestOpenLockedByOtherPath: a directory has one store, whatever path leads to it. The
// locks of the file system are of no help: they are the process's, and closing a second
// descriptor of the file gives up the first one's.
func TestOpenLockedByOtherPath(t *testing.T) {
	if isChild() {
		_, err := Open(onDisk(t, os.Getenv("DIR")))
		wantError(t, err, ErrLocked, os.Getenv("DIR"), "another eventhub")
		return
	}
	top := t.TempDir()
	dir, link := filepath.Join(top, "data"), filepath.Join(top, "link")
	s := mustOpen(t, onDisk(t, dir))
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	t.Chdir(top)
	others := []string{link, "data", dir + "/", filepath.Join(top, ".") + "/link/../data"}
	for _, other := range others {
		second, err := Open(onDisk(t, other))
		if err == nil {
			t.Errorf("%s opened a second time as %s", dir, other)
			mustClose(t, second)
			continue
		}
		wantError(t, err, ErrLocked, other)
	}
	t.Setenv("DIR", dir)
	if output, code := inChild(t); code != 0 {
		t.Errorf("the child ended with %d:\n%s", code, output)
	}
	mustClose(t, s)
	for _, other := range others {
		mustClose(t, mustOpen(t, onDisk(t, other)))
	}
}

// TestOpenWithoutLocks: a file system that has no locks is distinguished from a lock that
// somebody holds.
func TestOpenWithoutLocks(t *testing.T) {
	for _, tt := range []struct {
		cause  error
		locked bool
	}{
		{syscall.EAGAIN, true},
		{syscall.EACCES, true},
		{syscall.ENOLCK, false},
		{syscall.EOPNOTSUPP, false},
		{syscall.EIO, false},
	} {
		fault := errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind == errorfs.OpLock {
				return tt.cause
			}
			return nil
		})
		_, err := Open(onMem(t, faultfs.Wrap(vfs.NewMem(), fault)))
		wantError(t, err, tt.cause, " data")
		if errors.Is(err, ErrLocked) != tt.locked {
			t.Errorf("%v is reported as %q", tt.cause, err)
		}
	}
}

func TestOpenNotWritable(t *testing.T) {
	denied := &fs.PathError{Op: "open", Path: "x", Err: syscall.EACCES}
	for _, tt := range []struct {
		name string
		kind errorfs.OpKind
	}{
		{"no directory can be made", errorfs.OpMkdirAll},
		{"no lock file can be made", errorfs.OpLock},
		{"no file can be made", errorfs.OpCreate},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fault := errorfs.InjectorFunc(func(op errorfs.Op) error {
				if op.Kind == tt.kind {
					return denied
				}
				return nil
			})
			mem := vfs.NewMem()
			_, err := Open(onMem(t, faultfs.Wrap(mem, fault)))
			wantError(t, err, fs.ErrPermission, "directory data")
			mustClose(t, mustOpen(t, onMem(t, mem))) // and the lock is free
		})
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(onDisk(t, file))
	wantError(t, err, nil, file)
}

// TestOpenForeignDirectory: what is no store is left alone.
func TestOpenForeignDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "thesis.txt"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(onDisk(t, dir))
	wantError(t, err, ErrFormat, dir, "thesis.txt")
	if got := listDir(t, dir); !slices.Equal(got, []string{"thesis.txt"}) {
		t.Errorf("the directory has %q afterwards", got)
	}
}

func TestOpenOtherFormat(t *testing.T) {
	for _, tt := range []struct {
		content string
		want    []string
	}{
		{"eventhub-pebble 7\n", []string{"format 7", "formats 1 to 6"}},
		{"eventhub-pebble 0\n", []string{"format 0", "formats 1 to 6"}},
		{"eventhub-pebble\n", []string{`"eventhub-pebble\n"`}},
		{"eventhub-pebble one\n", []string{`"eventhub-pebble one\n"`}},
		{"", []string{`""`}},
	} {
		dir := t.TempDir()
		mustClose(t, mustOpen(t, onDisk(t, dir)))
		if err := os.WriteFile(filepath.Join(dir, formatFile), []byte(tt.content), 0o600); err != nil {
			t.Fatal(err)
		}
		before := listDir(t, dir)
		_, err := Open(onDisk(t, dir))
		wantError(t, err, ErrFormat, append(tt.want, dir)...)
		if got := listDir(t, dir); !slices.Equal(got, before) {
			t.Errorf("the directory had %q and has %q", before, got)
		}
	}
}

// TestOpenFreshFileSystem: the root of a new file system is an empty directory.
func TestOpenFreshFileSystem(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "lost+found"), 0o700); err != nil {
		t.Fatal(err)
	}
	mustClose(t, mustOpen(t, onDisk(t, dir)))
}

func TestOptionsAreChecked(t *testing.T) {
	_, err := Open(Options{MaxTopics: -1})
	wantError(t, err, nil, "Dir", "MaxTopics")
}

// TestCrashDuringCreation takes an image before every single operation on the
// disk while a store is created and used for the first time: each opens, and has
// what was acknowledged.
func TestCrashDuringCreation(t *testing.T) {
	const dir = "deep/down/data"
	mem := vfs.NewCrashableMem()
	rng := rand.New(rand.NewPCG(1, 2))
	var mu sync.Mutex // Pebble writes from several goroutines
	acked, checked := 0, 0
	var writes atomic.Int64
	check := func(percent int) {
		mu.Lock()
		defer mu.Unlock()
		image := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
		o := onMem(t, image)
		o.Dir = dir
		s, err := Open(o)
		if err != nil {
			t.Errorf("image %d of %d %% does not open: %v", checked, percent, err)
			return
		}
		if got := len(readAll(t, s, "t")); got < acked {
			t.Errorf("image %d of %d %% has %d events; %d were acknowledged", checked, percent, got, acked)
		}
		mustCommit(t, s, true, given("t", "new"))
		mustClose(t, s)
		checked++
	}
	images := errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			percents := []int{0, 50, 100}
			if n := writes.Add(1) % 3; testsize.Small() {
				percents = percents[n : n+1]
			}
			for _, percent := range percents {
				check(percent)
			}
		}
		return nil
	})
	o := onMem(t, faultfs.Wrap(mem, images))
	o.Dir = dir
	s := mustOpen(t, o)
	for i := range 3 {
		mustCommit(t, s, true, given("t", fmt.Sprint(i)))
		mu.Lock()
		acked++
		mu.Unlock()
	}
	mustClose(t, s)
	if checked < 30 {
		t.Errorf("only %d images were taken", checked)
	}
}
