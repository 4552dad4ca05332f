package pebble

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// # A replica that is replaced
//
// A member that is too far behind gets a copy of another one in place of its own. The copy is in a directory
// below that of the replica, so that it is on the same file system, and is moved up. The file REPLACE says
// how far that is, so that it is gone on with after a crash:
//
//	"clear PATH"   what the directory has is removed, but for the copy
//	"move PATH"    the files of the copy are moved up, FORMAT last
//
// Until FORMAT is there again no program takes the directory for a store.

// replaceFileName is in a directory that is being replaced.
const replaceFileName = "REPLACE"

const (
	replaceClear = "clear"
	replaceMove  = "move"
)

// backupSums is a file of a backup that is none of the store: the checksums of the others.
const backupSums = "backup.sha256"

// dropBackupSums removes the checksums from a directory whose store is open: the files are others from here on,
// and who holds them against the list takes the store for a damaged one.
func dropBackupSums(fsys vfs.FS, dir string) error {
	if err := fsys.Remove(fsys.PathJoin(dir, backupSums)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("store/pebble: remove the checksums of the backup: %w", err)
	}
	return nil
}

// ErrOtherCluster: the copy is not of the journal that the replica has followed.
var ErrOtherCluster = errors.New("store/pebble: the copy is of another cluster")

// Replace replaces the replica in o.Dir, which may have nothing yet, by the copy in the directory o.Dir/below, a
// path with slashes. Nobody has either of them open. A copy that is of another cluster, or not ahead of
// the replica, is refused, and nothing was changed then; the replica that is replaced has to be one that has
// followed a journal. After another error, or a crash, FinishReplace goes on.
func Replace(o Options, below string) error {
	o = o.withDefaults()
	o.Dir = filepath.Clean(o.Dir)
	if err := checkCopy(o, o.FS.PathJoin(o.Dir, below)); err != nil {
		return fmt.Errorf("store/pebble: replace %s: %w", o.Dir, err)
	}
	err := syncPath(o.FS, o.Dir, below)
	if err == nil {
		err = putReplace(o.FS, o.Dir, replaceClear, below)
	}
	if err == nil {
		err = FinishReplace(o)
	}
	if err != nil {
		return fmt.Errorf("store/pebble: replace %s: %w", o.Dir, err)
	}
	return nil
}

// checkCopy opens both.
func checkCopy(o Options, from string) error {
	c := o
	c.Dir = from
	position, founder, err := lookInside(c)
	if err != nil {
		return fmt.Errorf("the copy: %w", err)
	}
	holds, err := Look(o)
	switch {
	case err != nil || holds == HoldsNothing:
		return err
	case holds == HoldsStore:
		return fmt.Errorf("%w: %s", ErrAlone, o.Dir)
	}
	own, ownFounder, err := lookInside(o)
	switch {
	case err != nil:
		return err
	case ownFounder != nil && !bytes.Equal(founder, ownFounder):
		return ErrOtherCluster
	case position <= own:
		return fmt.Errorf("the copy is at place %d, and the replica at %d", position, own)
	}
	return nil
}

// lookInside returns the place and the founder of the replica in o.Dir. One that is to found a journal is refused.
func lookInside(o Options) (place uint64, founder []byte, err error) {
	r, err := OpenReplica(o)
	if err != nil {
		return 0, nil, err
	}
	if r.Founds() {
		return 0, nil, errors.Join(fmt.Errorf("%w: %s has a store of its own", ErrFounder, o.Dir), r.Close())
	}
	founder, err = r.s.get(metaFounder)
	return r.Position().Seq, founder, errors.Join(err, r.Close())
}

// syncPath makes durable that there is a path below a directory.
func syncPath(fsys vfs.FS, dir, below string) error {
	for name := range strings.SplitSeq(below, "/") {
		if err := syncDir(fsys, dir); err != nil {
			return err
		}
		dir = fsys.PathJoin(dir, name)
	}
	return syncDir(fsys, dir)
}

func putReplace(fsys vfs.FS, dir, phase, from string) error {
	return replaceFile(fsys, dir, replaceFileName, []byte(phase+" "+from+"\n"))
}

// FinishReplace goes on with a Replace that was cut short, and does nothing where there was none.
func FinishReplace(o Options) error {
	o = o.withDefaults()
	fsys, dir := o.FS, filepath.Clean(o.Dir)
	if _, err := fsys.Stat(fsys.PathJoin(dir, replaceFileName)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	lock, err := takeLock(fsys, dir)
	if err != nil {
		return err
	}
	err = finishReplace(fsys, dir)
	return errors.Join(err, lock.Close())
}

func finishReplace(fsys vfs.FS, dir string) error {
	content, err := readStart(fsys, fsys.PathJoin(dir, replaceFileName), 4<<10)
	if err != nil {
		return err
	}
	phase, below, ok := strings.Cut(strings.TrimSuffix(string(content), "\n"), " ")
	from := fsys.PathJoin(dir, below)
	if !ok || below == "" || phase != replaceClear && phase != replaceMove {
		return fmt.Errorf("%s in %s reads %q", replaceFileName, dir, content)
	}
	if phase == replaceClear {
		if err := clearDir(fsys, dir, below); err != nil {
			return err
		}
		if err := putReplace(fsys, dir, replaceMove, below); err != nil {
			return err
		}
	}
	if err := moveUp(fsys, dir, from); err != nil {
		return err
	}
	if err := fsys.RemoveAll(from); err != nil {
		return err
	}
	if err := fsys.Remove(fsys.PathJoin(dir, replaceFileName)); err != nil {
		return err
	}
	return syncDir(fsys, dir)
}

// clearDir removes the store in a directory, FORMAT first.
func clearDir(fsys vfs.FS, dir, below string) error {
	names, err := fsys.List(dir)
	if err != nil {
		return err
	}
	top, _, _ := strings.Cut(below, "/") // which leads to the copy
	keep := []string{replaceFileName, lockFile, "lost+found", top}
	if at := slices.Index(names, formatFile); at >= 0 {
		if err := errors.Join(fsys.Remove(fsys.PathJoin(dir, formatFile)), syncDir(fsys, dir)); err != nil {
			return err
		}
		names = slices.Delete(names, at, at+1)
	}
	for _, name := range names {
		if slices.Contains(keep, name) {
			continue
		}
		if err := fsys.RemoveAll(fsys.PathJoin(dir, name)); err != nil {
			return err
		}
	}
	return syncDir(fsys, dir)
}

// moveUp moves the files of the copy, FORMAT last. Those that are not there any more were moved before.
func moveUp(fsys vfs.FS, dir, from string) error {
	names, err := fsys.List(from)
	if errors.Is(err, fs.ErrNotExist) { // it is removed when all is moved
		_, err = fsys.Stat(fsys.PathJoin(dir, formatFile))
	}
	if err != nil {
		return err
	}
	for _, last := range []bool{false, true} {
		for _, name := range names {
			if (name == formatFile) != last || name == lockFile || name == backupSums {
				continue
			}
			if err := fsys.Rename(fsys.PathJoin(from, name), fsys.PathJoin(dir, name)); err != nil {
				return err
			}
		}
		if err := syncDir(fsys, dir); err != nil {
			return err
		}
	}
	return nil
}
