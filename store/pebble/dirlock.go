package pebble

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"syscall"

	pdb "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// dirLock keeps a directory for one store. The lock of Pebble's file keeps other processes
// away. It does not keep away this one, whose lock it is, whatever path leads to the file;
// and the process loses it as soon as it closes any other descriptor of that file. So the
// process claims the directory first.
type dirLock struct {
	pebble  *pdb.Lock
	claimed os.FileInfo
}

// openDirs are the directories on disk that stores of this process have open.
var openDirs struct {
	mu  sync.Mutex
	all []os.FileInfo
}

// takeLock locks a directory that is there.
func takeLock(fsys vfs.FS, dir string) (*dirLock, error) {
	claimed, err := claimDir(fsys, dir)
	if err != nil {
		return nil, err
	}
	lock, err := pdb.LockDirectory(dir, fsys)
	if err != nil {
		return nil, errors.Join(lockError(dir, err), (&dirLock{claimed: claimed}).Close())
	}
	return &dirLock{lock, claimed}, nil
}

// claimDir returns nil for a directory that is not on disk: file systems in memory are
// distinguished by nothing but their own locks, which hold within the process.
func claimDir(fsys vfs.FS, dir string) (os.FileInfo, error) {
	if vfs.Root(fsys) != vfs.Default {
		return nil, nil
	}
	info, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("store/pebble: directory %s can not be read: %w", dir, err)
	}
	openDirs.mu.Lock()
	defer openDirs.mu.Unlock()
	if slices.ContainsFunc(openDirs.all, func(other os.FileInfo) bool { return os.SameFile(info, other) }) {
		return nil, fmt.Errorf("%w: another eventhub holds %s: a store of this process", ErrLocked, dir)
	}
	openDirs.all = append(openDirs.all, info)
	return info, nil
}

// lockError says why a lock was not given.
func lockError(dir string, err error) error {
	if pathErr := (*fs.PathError)(nil); errors.As(err, &pathErr) { // of the file itself
		return fmt.Errorf("store/pebble: directory %s is not writable: %w", dir, err)
	}
	if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EACCES) {
		return fmt.Errorf("%w: another eventhub holds %s: %w", ErrLocked, dir, err)
	}
	return fmt.Errorf("store/pebble: the file system of %s gives no lock, without which two programs may write there: %w", dir, err)
}

// Close gives the directory free, to other processes first.
func (l *dirLock) Close() (err error) {
	if l.pebble != nil {
		err = l.pebble.Close()
	}
	openDirs.mu.Lock()
	defer openDirs.mu.Unlock()
	openDirs.all = slices.DeleteFunc(openDirs.all, func(other os.FileInfo) bool { return other == l.claimed })
	return err
}
