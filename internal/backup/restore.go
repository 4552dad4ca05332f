package backup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Restore makes a store of a backup in dir, which is empty or does not exist, and returns
// how many files it has. Each file is held against the checksum of the backup's list.
// When Restore returns, the store is on disk; where it fails, dir is as it was. A
// *PlaceError says that from is no backup, or that dir can not take one.
func Restore(from, dir string) (files int, err error) {
	sums, err := readSums(from)
	if err != nil {
		return 0, err
	}
	if len(sums) == 0 {
		return 0, &PlaceError{fmt.Errorf("%s is no backup: it has no %s, or an empty one", from, sumsFile)}
	}
	source, err := os.OpenRoot(from)
	if err != nil {
		return 0, err
	}
	defer source.Close() // it is only read
	there, err := isEmptyDir(dir)
	if err != nil {
		return 0, &PlaceError{err}
	}
	if there {
		return len(sums), restoreInto(dir, source, sums)
	}
	return len(sums), restoreAs(dir, source, sums)
}

// isEmptyDir reports whether dir is there. A directory that is not empty is an error, as
// is a link to nothing, which could be meant for a disk that is not mounted.
func isEmptyDir(dir string) (there bool, err error) {
	left, err := os.ReadDir(dir)
	switch {
	case err == nil && len(left) > 0 && left[0].Name() != "lost+found":
		return true, fmt.Errorf("%s is not empty: it has %q", dir, left[0].Name())
	case err == nil && len(left) > 1:
		return true, fmt.Errorf("%s is not empty: it has %q", dir, left[1].Name())
	case err == nil:
		return true, nil
	case !errors.Is(err, os.ErrNotExist):
		return false, err
	}
	if target, err := os.Readlink(dir); err == nil {
		return false, fmt.Errorf("%s is a link to %s, which is not there", dir, target)
	}
	return false, nil
}

// restoreAs makes dir, which gets its name when all of it is on disk.
func restoreAs(dir string, from *os.Root, sums []fileSum) error {
	return makeDir(dir, func(temp string) error { return copyAll(from, temp, sums) })
}

// restoreInto fills a directory that is there: it may be a mount point, or named by a
// link, and can not be replaced. What makes it a store comes last, so a restore that was
// cut short is not taken for one.
func restoreInto(dir string, from *os.Root, sums []fileSum) (err error) {
	temp, err := os.MkdirTemp(dir, ".restore-*")
	if err != nil {
		return err
	}
	var moved []string
	defer func() {
		if err == nil {
			return
		}
		for _, name := range moved {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, name)))
		}
		err = errors.Join(err, os.RemoveAll(temp))
	}()
	if err := copyAll(from, temp, sums); err != nil {
		return err
	}
	entries, err := os.ReadDir(temp)
	if err != nil {
		return err
	}
	for _, last := range []bool{false, true} {
		for _, e := range entries {
			if (e.Name() == formatFile) != last {
				continue
			}
			if err := os.Rename(filepath.Join(temp, e.Name()), filepath.Join(dir, e.Name())); err != nil {
				return err
			}
			moved = append(moved, e.Name())
		}
		if err := SyncDir(dir); err != nil {
			return err
		}
	}
	if err := os.Remove(temp); err != nil {
		return err
	}
	return SyncDir(dir)
}

// copyAll copies the files of a backup into a directory, to the disk.
func copyAll(from *os.Root, dir string, sums []fileSum) error {
	to, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer to.Close()
	for _, s := range sums {
		if err := s.copy(from, to); err != nil {
			return err
		}
	}
	return syncTree(dir)
}
