package pebble

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Errors of Open that callers branch on.
var (
	// ErrLocked: another process, or another store of this one, has the
	// directory open.
	ErrLocked = errors.New("store/pebble: directory is locked")
	// ErrFormat: the directory is no store of a version that this program reads.
	ErrFormat = errors.New("store/pebble: format not supported")
	// ErrReplicated: the store shares a journal with others. It is opened as a replica, or made
	// one for itself by Detach.
	ErrReplicated = errors.New("store/pebble: the store is a replica")
	// ErrAlone: the store shares no journal. It is made a replica by Replicate.
	ErrAlone = errors.New("store/pebble: the store is no replica")
)

// Layout is the version of the keys, of which entries of a journal are made.
const Layout = formatVersion

// formatVersion is the version of the layout in keys.go. The file FORMAT, one
// line, says which it is before Pebble sees the directory.
//
// Open makes the present one of all earlier ones: format 1 has an index of all ids,
// formats 1 and 2 have a seal only where they were closed, and none up to format 3 has lost
// an event of a topic that is there: a program of those takes an id whose event was removed for
// damage, and gives the offsets of removed events again. Up to format 4 all topics have the key index. Up to
// format 5 ids that are UUIDs are in their index as text.
const (
	formatVersion = 6
	sealedVersion = 3 // from which on there is always a seal
	firstVersion  = 1
	noFormat      = 0
	formatFile    = "FORMAT"
	tempSuffix    = ".tmp" // of a file that is being written
	formatPrefix  = "eventhub-pebble "
	formatReplica = " replica" // after the version; a program that knows no replicas refuses it
	lockFile      = "LOCK"
)

var formatLine = formatPrefix + strconv.Itoa(formatVersion) + "\n"

// dirFormat is what FORMAT says: noFormat where there is none.
type dirFormat struct {
	version    int
	replicated bool // the store shares a journal
}

// lockDir makes the directory ready for Pebble, locks it and begins to keep its seal. A
// directory that holds something else, or not all of a store, is refused before anything
// is written to it: a mistyped path must not become a store, nor a newer store be touched
// by an older program, nor what a damaged one still has be deleted.
func lockDir(fsys vfs.FS, dir string, f *faults, replicated bool) (*dirLock, *seal, error) {
	if err := makeDir(fsys, dir); err != nil {
		return nil, nil, fmt.Errorf("store/pebble: directory %s can not be created: %w", dir, err)
	}
	if err := expectDir(fsys, dir, replicated); err != nil {
		return nil, nil, err
	}
	lock, err := takeLock(fsys, dir)
	if err != nil {
		return nil, nil, err
	}
	kept, err := takeOver(fsys, dir, f, replicated)
	if err != nil {
		return nil, nil, errors.Join(err, lock.Close())
	}
	return lock, kept, nil
}

// takeOver checks the store in the locked directory, or makes it one. It looks again,
// since before the lock another process may have been about to do so. FORMAT comes after
// SEAL, since it promises that one is there.
func takeOver(fsys vfs.FS, dir string, f *faults, replicated bool) (*seal, error) {
	if err := expectDir(fsys, dir, replicated); err != nil {
		return nil, err
	}
	format, err := inspectDir(fsys, dir)
	if err != nil {
		return nil, err
	}
	version := format.version
	s, err := checkDir(fsys, dir, version, f.log)
	if err != nil {
		return nil, err
	}
	kept, err := keepSeal(fsys, dir, s, f)
	if err == nil && version != formatVersion {
		if err = putFormat(fsys, dir, replicated); err != nil {
			err = errors.Join(err, kept.stop(false, false))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("store/pebble: directory %s is not writable: %w", dir, err)
	}
	if version == noFormat {
		f.log.Info("a new store", "dir", dir)
	}
	return kept, nil
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

// inspectDir returns the format of the store in dir, noFormat where there is none yet: in
// an empty directory.
func inspectDir(fsys vfs.FS, dir string) (format dirFormat, err error) {
	names, err := fsys.List(dir)
	if err != nil {
		return format, fmt.Errorf("store/pebble: directory %s can not be read: %w", dir, err)
	}
	if slices.Contains(names, formatFile) {
		return readFormat(fsys, dir)
	}
	for _, name := range names {
		switch name {
		case lockFile, sealFile, sealFile + tempSuffix, formatFile + tempSuffix: // an Open that was cut short
		case "lost+found": // the root of a file system
		default:
			hint := ""
			if slices.Contains(names, sealFile) || slices.ContainsFunc(names, isManifest) {
				hint = "; its file " + formatFile + " is missing: a copy of a store that is not whole"
			}
			return format, fmt.Errorf("%w: directory %s is no eventhub store, and not empty: it has %q%s", ErrFormat, dir, name, hint)
		}
	}
	return format, nil
}

func readFormat(fsys vfs.FS, dir string) (format dirFormat, err error) {
	content, err := readStart(fsys, fsys.PathJoin(dir, formatFile), 4<<10)
	if err != nil {
		return format, fmt.Errorf("store/pebble: directory %s can not be read: %w", dir, err)
	}
	text, ok := strings.CutPrefix(string(content), formatPrefix)
	text, format.replicated = strings.CutSuffix(strings.TrimSuffix(text, "\n"), formatReplica)
	format.version, err = strconv.Atoi(text)
	if !ok || err != nil {
		return dirFormat{}, fmt.Errorf("%w: %s in %s reads %q", ErrFormat, formatFile, dir, content)
	}
	if format.version < firstVersion || format.version > formatVersion {
		return dirFormat{}, fmt.Errorf("%w: %s has format %d; this program reads formats %d to %d", ErrFormat, dir, format.version, firstVersion, formatVersion)
	}
	return format, nil
}

// expectDir refuses a directory whose store shares a journal where that is not expected, and the
// other way round.
func expectDir(fsys vfs.FS, dir string, replicated bool) error {
	format, err := inspectDir(fsys, dir)
	switch {
	case err != nil || format.version == noFormat || format.replicated == replicated:
		return err
	case replicated:
		return fmt.Errorf("%w: %s has a store of one hub", ErrAlone, dir)
	default:
		return fmt.Errorf("%w: %s follows a journal", ErrReplicated, dir)
	}
}

func putFormat(fsys vfs.FS, dir string, replicated bool) error {
	line := formatLine
	if replicated {
		line = strings.TrimSuffix(line, "\n") + formatReplica + "\n"
	}
	return replaceFile(fsys, dir, formatFile, []byte(line))
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

// readStart reads the beginning of a file.
func readStart(fsys vfs.FS, path string, most int64) ([]byte, error) {
	f, err := fsys.Open(path)
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(io.LimitReader(f, most))
	return content, errors.Join(err, f.Close())
}
