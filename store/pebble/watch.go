package pebble

import (
	"fmt"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// watchedFS is the file system that Pebble writes to. It reports a failed write
// where it happens: any operation that writes to the write-ahead log, and any
// fsync of a directory. Tables are not watched, only slowed down after a failure:
// Pebble writes a table that failed anew, and its log is kept until then.
//
// Once the store is broken nothing but the write-ahead log changes on disk any
// more. Pebble would go on: after an fsync of the manifest that failed it flushes
// the same memtable again, and what a manifest that names both tables holds can not
// be compacted by anybody. The log may go on: no commit succeeds, and without a log
// to change over to Pebble panics.
type watchedFS struct {
	vfs.FS
	faults *faults
}

// Unwrap lets Pebble find the file system below.
func (w watchedFS) Unwrap() vfs.FS { return w.FS }

func isTable(name string) bool { return strings.HasSuffix(name, ".sst") }

func isLog(name string) bool { return strings.HasSuffix(name, ".log") }

func (w watchedFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if isTable(name) {
		w.faults.pause() // also where the store is broken, which Pebble's tries do not know
	}
	if err := w.faults.err(); err != nil && !isLog(name) {
		return nil, err
	}
	f, err := w.FS.Create(name, category)
	return w.watch(f, err, "create", name)
}

func (w watchedFS) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if err := w.faults.err(); err != nil && !isLog(newname) {
		return nil, err
	}
	f, err := w.FS.ReuseForWrite(oldname, newname, category)
	return w.watch(f, err, "reuse", newname)
}

func (w watchedFS) Remove(name string) error {
	if err := w.faults.err(); err != nil {
		return err
	}
	return w.FS.Remove(name)
}

func (w watchedFS) Rename(oldname, newname string) error {
	if err := w.faults.err(); err != nil {
		return err
	}
	return w.FS.Rename(oldname, newname)
}

func (w watchedFS) OpenDir(name string) (vfs.File, error) {
	f, err := w.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return &watchedFile{File: f, name: name, faults: w.faults, vital: true}, nil
}

func (w watchedFS) watch(f vfs.File, err error, op, name string) (vfs.File, error) {
	vital := isLog(name)
	if err != nil {
		if vital {
			w.faults.report(err, op, name)
		}
		return nil, err
	}
	return &watchedFile{File: f, name: name, faults: w.faults, vital: vital}, nil
}

// watchedFile is a file that is written, or a directory.
type watchedFile struct {
	vfs.File
	name   string
	faults *faults
	vital  bool // an error breaks the store
}

func (f *watchedFile) Write(p []byte) (int, error) {
	if err := f.faults.err(); err != nil && !f.vital {
		return 0, err
	}
	n, err := f.File.Write(p)
	return n, f.seen(err, "write")
}

func (f *watchedFile) Sync() error {
	if err := f.faults.err(); err != nil && !f.vital {
		return err
	}
	return f.seen(f.File.Sync(), "sync")
}

func (f *watchedFile) SyncData() error {
	if err := f.faults.err(); err != nil && !f.vital {
		return err
	}
	return f.seen(f.File.SyncData(), "sync")
}

func (f *watchedFile) SyncTo(length int64) (fullSync bool, err error) {
	if err := f.faults.err(); err != nil && !f.vital {
		return false, err
	}
	fullSync, err = f.File.SyncTo(length)
	return fullSync, f.seen(err, "sync")
}

func (f *watchedFile) Close() error { return f.seen(f.File.Close(), "close") }

func (f *watchedFile) seen(err error, op string) error {
	if !f.vital {
		return err
	}
	return f.faults.report(err, op, f.name)
}

// report breaks the store where err is not nil, and returns err.
func (f *faults) report(err error, op, name string) error {
	if err != nil {
		f.fail(fmt.Errorf("%s %s: %w", op, name, err))
	}
	return err
}
