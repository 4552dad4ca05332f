package backup

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// WithCopy calls read with a copy of the store in dir, which read may open and change,
// and removes the copy. The files of a backup are held against their checksums first. The
// copy is made next to dir and shares with it what never changes; no hub may run on dir
// meanwhile. Errors of read speak of dir where they have the copy's name. A *PlaceError
// says that dir is no store.
func WithCopy(dir string, read func(temp string) error) (err error) {
	if _, err := os.Stat(filepath.Join(dir, formatFile)); err != nil {
		return &PlaceError{fmt.Errorf("%s is no store: %w", dir, err)}
	}
	if err := notInUse(filepath.Join(dir, "LOCK")); err != nil {
		return err
	}
	sums, err := readSums(dir)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close() // it is only read
	if err := checkSums(root, sums); err != nil {
		return err
	}
	temp, err := placeForCopy(dir)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = &copyError{err, temp, dir}
		}
		err = errors.Join(err, os.RemoveAll(temp))
	}()
	if err := shareTree(dir, temp); err != nil {
		return err
	}
	return read(temp)
}

// copyError is what is wrong with a copy, in words about the directory that was named.
type copyError struct {
	error
	copied, named string
}

func (e *copyError) Error() string { return strings.ReplaceAll(e.error.Error(), e.copied, e.named) }
func (e *copyError) Unwrap() error { return e.error }

// placeForCopy makes a directory next to dir, or next to what dir is a link to: so the copy
// can have tables in common with it. Where it can not, the directory is among other
// temporary files.
func placeForCopy(dir string) (string, error) {
	if target, err := filepath.EvalSymlinks(dir); err == nil {
		dir = target
	}
	temp, err := os.MkdirTemp(filepath.Dir(dir), "."+filepath.Base(dir)+"-*")
	if err != nil {
		temp, err = os.MkdirTemp("", "eventhub-verify-*")
	}
	return filepath.Clean(temp), err
}

// shareTree copies a store. Its tables are written once and never changed, so the copy
// may have them in common with it; whatever else is there, a store that is opened may
// write to. from may be a link.
func shareTree(from, to string) error {
	return filepath.WalkDir(from+string(filepath.Separator), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, name)
		switch {
		case d.IsDir() && name == "scratch": // of a hub that sends backups
			return fs.SkipDir
		case d.IsDir():
			return os.MkdirAll(target, 0o700)
		case !d.Type().IsRegular() || name == "LOCK":
			return nil
		case filepath.Ext(name) == ".sst" && os.Link(path, target) == nil:
			return nil
		}
		return copyFile(path, target)
	})
}

func copyFile(from, to string) error {
	r, err := os.Open(from)
	if err != nil {
		return err
	}
	defer r.Close() // it is only read
	w, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, r)
	return errors.Join(err, w.Close())
}
