// Package backup owns the files of a backup: a directory with the files of a store, and
// the list of their checksums. It makes one of the tar that a hub sends (Receive), a
// store of one (Restore), and a copy of a store or a backup that can be opened and
// changed (WithCopy). What the files of a store hold is the store's affair.
//
// Invariants:
//   - A directory has its name when all of it is on disk and agrees with the checksums,
//     and not before. What fails leaves nothing, and changes no directory that was there.
//   - Nothing is written outside of the directory, whatever names a tar or a list has.
//   - The list has the checksum of each other file and of itself, so a file that is
//     missing or damaged is found, and so is a list that was cut short.
//   - A store or a backup that is read is not changed.
//
// cmd/eventhub calls it for its commands backup, restore and verify. It knows neither
// hub nor client: what is sent and what is read of a copy are functions of the caller's.
package backup

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// formatFile is what makes a directory a store.
const formatFile = "FORMAT"

// PlaceError says that a directory that the caller named is not what the call needs.
// Nothing was written.
type PlaceError struct{ Err error }

func (e *PlaceError) Error() string { return e.Err.Error() }
func (e *PlaceError) Unwrap() error { return e.Err }

// Receive makes the backup dir of the tar that send writes, and returns how many files
// of a store it has. When Receive returns, all of it is on disk; where it fails there is
// no dir. A *PlaceError says that dir is there already, before send is called. The error
// is that of send where send failed first.
func Receive(dir string, send func(io.Writer) error) (files int, err error) {
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		return 0, &PlaceError{errors.Join(fmt.Errorf("%s is there already; a backup makes its directory", dir), err)}
	}
	err = makeDir(dir, func(temp string) error {
		sums, err := receive(temp, send)
		if err != nil {
			return err
		}
		files = len(sums)
		return seal(temp, sums)
	})
	return files, err
}

// receive unpacks what send writes.
func receive(dir string, send func(io.Writer) error) (sums []fileSum, err error) {
	r, w := io.Pipe()
	unpacked := make(chan error, 1)
	go func() {
		var err error
		sums, err = unpackTar(dir, r)
		r.CloseWithError(err) // ends the sender, where it goes on
		unpacked <- err
	}()
	err = send(w)
	w.CloseWithError(err)
	// Where both fail, the one that broke first has broken the other.
	if unpackErr := <-unpacked; err == nil {
		err = unpackErr
	}
	return sums, err
}

// makeDir makes dir: fill fills a directory next to it, which gets its name when that is
// done.
func makeDir(dir string, fill func(temp string) error) (err error) {
	temp, err := os.MkdirTemp(filepath.Dir(dir), "."+filepath.Base(dir)+"-*")
	if of, ok := errors.AsType[*fs.PathError](err); ok { // of a name that nobody has given
		return fmt.Errorf("%s: %w", dir, of.Err)
	}
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(temp))
		}
	}()
	if err := fill(temp); err != nil {
		return err
	}
	if err := os.Rename(temp, dir); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(dir))
}

// syncTree makes the names in dir, and below it, durable.
func syncTree(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			err = SyncDir(path)
		}
		return err
	})
}

// SyncDir makes the names in a directory durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
