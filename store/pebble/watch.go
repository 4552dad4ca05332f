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
		w.faults.pause()
	}
	f, err := w.FS.Create(name, category)
	return w.watchLog(f, err, "create", name)
}

func (w watchedFS) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := w.FS.ReuseForWrite(oldname, newname, category)
	return w.watchLog(f, err, "reuse", newname)
}

func (w watchedFS) OpenDir(name string) (vfs.File, error) {
	f, err := w.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return &watchedFile{File: f, name: name, faults: w.faults}, nil
}

func (w watchedFS) watchLog(f vfs.File, err error, op, name string) (vfs.File, error) {
	if !isLog(name) {
		return f, err
	}
	if err != nil {
		w.faults.report(err, op, name)
		return nil, err
	}
	return &watchedFile{File: f, name: name, faults: w.faults}, nil
}

// watchedFile is a log file or a directory.
type watchedFile struct {
	vfs.File
	name   string
	faults *faults
}

func (f *watchedFile) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	return n, f.faults.report(err, "write", f.name)
}

func (f *watchedFile) Sync() error {
	return f.faults.report(f.File.Sync(), "sync", f.name)
}

func (f *watchedFile) SyncData() error {
	return f.faults.report(f.File.SyncData(), "sync", f.name)
}

func (f *watchedFile) Close() error {
	return f.faults.report(f.File.Close(), "close", f.name)
}

// report breaks the store where err is not nil, and returns err.
func (f *faults) report(err error, op, name string) error {
	if err != nil {
		f.fail(fmt.Errorf("%s %s: %w", op, name, err))
	}
	return err
}
