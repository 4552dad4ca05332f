package pebble

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	pdb "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Errors of Open that callers branch on.
var (
	// ErrLocked: another process, or another store of this one, has the
	// directory open.
	ErrLocked = errors.New("store/pebble: directory is locked")
	// ErrFormat: the directory is no store of a version that this program reads.
	ErrFormat = errors.New("store/pebble: format not supported")
)

// formatVersion is the version of the layout in keys.go. The file FORMAT, one
// line, tells it before Pebble gets to see the directory.
const (
	formatVersion = 2
	formerVersion = 1 // where all ids are indexed; Open makes it the present one
	formatFile    = "FORMAT"
	tempSuffix    = ".tmp" // of a file that is being written
	formatPrefix  = "eventhub-pebble "
	lockFile      = "LOCK"
)

var formatLine = formatPrefix + strconv.Itoa(formatVersion) + "\n"

// lockDir makes the directory ready for Pebble and locks it. A directory that
// holds something else is refused before anything is written to it: a mistyped
// path must not become a store, nor a newer store be touched by an older
// program.
func lockDir(fsys vfs.FS, dir string) (*pdb.Lock, error) {
	if err := makeDir(fsys, dir); err != nil {
		return nil, fmt.Errorf("store/pebble: directory %s can not be created: %w", dir, err)
	}
	if _, err := inspectDir(fsys, dir); err != nil {
		return nil, err
	}
	lock, err := pdb.LockDirectory(dir, fsys)
	if err != nil {
		// The lock file itself could not be written, or its lock is taken.
		if pathErr := (*fs.PathError)(nil); errors.As(err, &pathErr) {
			return nil, fmt.Errorf("store/pebble: directory %s is not writable: %w", dir, err)
		}
		return nil, fmt.Errorf("%w: another eventhub holds %s: %w", ErrLocked, dir, err)
	}
	if err = writeFormat(fsys, dir); err == nil {
		err = raiseFormat(fsys, dir)
	}
	if err == nil {
		err = breakSeal(fsys, dir)
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

// makeDir creates dir and the parents that are missing, and syncs each directory
// that got an entry: a synced commit is worth nothing in a directory that a
// power loss takes away.
func makeDir(fsys vfs.FS, dir string) error {
	var changed []string
	for at := dir; ; at = fsys.PathDir(at) {
		if _, err := fsys.Stat(at); err == nil {
			break
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		parent := fsys.PathDir(at)
		if parent == at {
			break
		}
		changed = append(changed, parent)
	}
	if err := fsys.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, parent := range changed {
		if err := syncDir(fsys, parent); err != nil {
			return err
		}
	}
	return nil
}

func syncDir(fsys vfs.FS, dir string) error {
	d, err := fsys.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// inspectDir reports whether dir is a store that this program reads; an empty
// directory is none yet, and no error.
func inspectDir(fsys vfs.FS, dir string) (isStore bool, err error) {
	names, err := fsys.List(dir)
	if err != nil {
		return false, fmt.Errorf("store/pebble: directory %s can not be read: %w", dir, err)
	}
	if slices.Contains(names, formatFile) {
		return true, checkFormat(fsys, dir)
	}
	for _, name := range names {
		switch name {
		case lockFile, formatFile + tempSuffix: // an Open that was cut short
		case "lost+found": // the root of a file system
		default:
			return false, fmt.Errorf("%w: directory %s is no eventhub store, and not empty: it has %q", ErrFormat, dir, name)
		}
	}
	return false, nil
}

func checkFormat(fsys vfs.FS, dir string) error {
	content, err := readSmall(fsys, fsys.PathJoin(dir, formatFile))
	if err != nil {
		return fmt.Errorf("store/pebble: directory %s can not be read: %w", dir, err)
	}
	text, ok := strings.CutPrefix(string(content), formatPrefix)
	version, err := strconv.Atoi(strings.TrimSuffix(text, "\n"))
	if !ok || err != nil {
		return fmt.Errorf("%w: %s in %s reads %q", ErrFormat, formatFile, dir, content)
	}
	if version != formatVersion && version != formerVersion {
		return fmt.Errorf("%w: %s has format %d; this program reads format %d", ErrFormat, dir, version, formatVersion)
	}
	return nil
}

// raiseFormat keeps older programs away from what they would not find: events whose ids
// are not indexed.
func raiseFormat(fsys vfs.FS, dir string) error {
	content, err := readSmall(fsys, fsys.PathJoin(dir, formatFile))
	if err == nil && string(content) != formatLine {
		err = putFormat(fsys, dir)
	}
	if err != nil {
		return fmt.Errorf("store/pebble: directory %s can not be made one of format %d: %w", dir, formatVersion, err)
	}
	return nil
}

// writeFormat makes the locked directory a store, unless it is one. It looks
// again, since before the lock another process may have been about to do so.
func writeFormat(fsys vfs.FS, dir string) error {
	isStore, err := inspectDir(fsys, dir)
	if isStore || err != nil {
		return err
	}
	if err := putFormat(fsys, dir); err != nil {
		return fmt.Errorf("store/pebble: directory %s is not writable: %w", dir, err)
	}
	return nil
}

func putFormat(fsys vfs.FS, dir string) error {
	return replaceFile(fsys, dir, formatFile, []byte(formatLine))
}

// replaceFile writes a file that is there whole or not at all, whenever the
// power goes.
func replaceFile(fsys vfs.FS, dir, name string, content []byte) error {
	temp := fsys.PathJoin(dir, name+tempSuffix)
	f, err := fsys.Create(temp, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := fsys.Rename(temp, fsys.PathJoin(dir, name)); err != nil {
		return err
	}
	return syncDir(fsys, dir)
}

// readSmall reads a file of which a few kilobytes are of interest.
func readSmall(fsys vfs.FS, path string) ([]byte, error) {
	f, err := fsys.Open(path)
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(io.LimitReader(f, 4<<10))
	return content, errors.Join(err, f.Close())
}
