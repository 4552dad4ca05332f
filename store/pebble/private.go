package pebble

import (
	"errors"
	"io"
	"os"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// ownerOnly is the mode of every file of a store: events are nobody else's to read,
// whatever the umask of the process.
const ownerOnly os.FileMode = 0o600

// privateFS is the disk, on which new files are for their owner alone. Directories are
// made so by makeDir and watchedFS.
type privateFS struct{ vfs.FS }

// Unwrap lets Pebble find the file system below.
func (p privateFS) Unwrap() vfs.FS { return p.FS }

func (p privateFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := p.FS.Create(name, category)
	return p.restrict(name, f, err)
}

func (p privateFS) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := p.FS.OpenReadWrite(name, category, opts...)
	return p.restrict(name, f, err)
}

func (p privateFS) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := p.FS.ReuseForWrite(oldname, newname, category)
	return p.restrict(newname, f, err)
}

func (p privateFS) restrict(name string, f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(name, ownerOnly); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Lock makes the lock's file where there is none.
func (p privateFS) Lock(name string) (io.Closer, error) {
	lock, err := p.FS.Lock(name)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(name, ownerOnly); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}
