package pebble

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"eventhub/store"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// watchedFS is the file system that Pebble writes to. A failed operation on one of the
// store's files breaks the store, there and then, and Pebble gets no error.
// Pebble does not cope with the truth: it panics, or counts on the process to end and
// goes on with a list of tables in memory that is neither the old one nor the new one.
// What Pebble believes meanwhile is of no consequence: a Commit looks at the faults before
// it answers.
//
// Once the store is broken nothing in its directory changes any more, except what was
// already on its way. Compactions fail, and all else goes on in memory: so do flushes,
// for a commit may be waiting for room among the memtables, and would for ever.
//
// Tables are an exception, as a full disk is no end: Pebble writes one that failed
// again, and its log is kept until then. They are only slowed down after a failure. And a compaction
// leaves room for the logs: it may need more than there is, with what it replaces still there, and a
// log that can not grow breaks the store.
//
// What Pebble writes elsewhere, as it does for a checkpoint, is of no consequence to
// the store: there an error is an error, and no more. Only that of the fsync of a
// directory is kept from Pebble, which would panic, and returned to the checkpoint.
type watchedFS struct {
	vfs.FS
	dir    string // the store's
	faults *faults
	seal   *seal
	logs   *ownLogs
	spares *spareLogs
	space  func() (store.Space, error)
	memory *vfs.MemFS // what is made when the store is broken; names without directories
}

func watchFS(o Options, f *faults, s *seal) watchedFS {
	// As PathDir returns it for what is in it.
	dir := o.FS.PathDir(o.FS.PathJoin(o.Dir, "x"))
	return watchedFS{FS: o.FS, dir: dir, faults: f, seal: s, memory: vfs.NewMem(), space: o.Space,
		logs: &ownLogs{logs: make(map[string]*ownLog)}, spares: new(spareLogs)}
}

func (w watchedFS) isOwn(name string) bool { return w.FS.PathDir(name) == w.dir }

// isOwnLog reports whether a file is a write-ahead log of the store.
func (w watchedFS) isOwnLog(name string) bool { return isLog(name) && w.isOwn(name) }

// isVital reports whether a failure at a file breaks the store.
func (w watchedFS) isVital(name string) bool { return !isTable(name) && w.isOwn(name) }

// Unwrap lets Pebble find the file system below.
func (w watchedFS) Unwrap() vfs.FS { return w.FS }

func isTable(name string) bool {
	return strings.HasSuffix(name, ".sst") || strings.HasSuffix(name, ".blob")
}

func isLog(name string) bool { return strings.HasSuffix(name, ".log") }

func (w watchedFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if isTable(name) {
		w.faults.pause() // also where the store is broken, which Pebble's tries do not know
		if w.isCompaction(name, category) {
			w.faults.pauseForRoom()
			w.findLeast()
		}
	}
	if err := w.faults.err(); err != nil {
		return w.instead(err, name, category)
	}
	if w.isOwnLog(name) {
		if spare := w.spares.take(); spare != "" {
			return w.ReuseForWrite(spare, name, category)
		}
	}
	f, err := w.FS.Create(name, category)
	return w.watch(f, err, "create", name, category)
}

// ReuseForWrite makes a log of a spare one. Pebble does not call it.
func (w watchedFS) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if err := w.faults.err(); err != nil {
		return w.instead(err, newname, category)
	}
	if err := w.forget(oldname); err != nil {
		return w.instead(err, newname, category)
	}
	f, err := w.FS.ReuseForWrite(oldname, newname, category)
	return w.watch(f, err, "reuse", newname, category)
}

// categoryFlush is what Pebble says of the tables that it makes of memtables, and categoryCompaction of those that it
// makes of others.
const (
	categoryFlush      vfs.DiskWriteCategory = "pebble-memtable-flush"
	categoryCompaction vfs.DiskWriteCategory = "pebble-compaction"
)

// isCompaction reports whether a file is a table of the store that a compaction makes.
func (w watchedFS) isCompaction(name string, category vfs.DiskWriteCategory) bool {
	return category == categoryCompaction && w.isOwn(name)
}

// isFlush reports whether a file is a table of the store that a flush makes.
func (w watchedFS) isFlush(name string, category vfs.DiskWriteCategory) bool {
	return category == categoryFlush && w.isOwn(name)
}

// instead is what a file is that can not be made: err, or one in memory.
func (w watchedFS) instead(err error, name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if w.faults.err() == nil || !w.isVital(name) && !w.isFlush(name, category) {
		return nil, err
	}
	return w.memory.Create(w.FS.PathBase(name), category)
}

func (w watchedFS) Remove(name string) error {
	if err := w.faults.err(); err != nil {
		return err
	}
	// One of an earlier process is not for reuse: what it has may be of another format.
	if own := w.logs.of(name); own != nil && w.isOwnLog(name) && !w.isLow() {
		if time.Since(own.begun) > spareWithin {
			return errors.Join(w.dropSpares(), w.remove(name))
		}
		if w.spares.keep(name) {
			return nil
		}
	}
	return w.remove(name)
}

func (w watchedFS) remove(name string) error {
	if err := w.forget(name); err != nil {
		return err
	}
	return w.FS.Remove(name)
}

// isLow reports whether the disk is nearly full.
func (w watchedFS) isLow() bool {
	space, err := w.space()
	return err == nil && space.IsLow()
}

// dropSpares removes the spare logs.
func (w watchedFS) dropSpares() error {
	for {
		name := w.spares.take()
		if name == "" {
			return nil
		}
		if err := w.remove(name); err != nil {
			return err
		}
	}
}

// spareBytes is what they take of the disk.
func (w watchedFS) spareBytes() (bytes uint64) {
	for _, name := range w.spares.all() {
		if info, err := w.FS.Stat(name); err == nil { // it may be in use again
			bytes += uint64(info.Size())
		}
	}
	return bytes
}

// forget is called before a file goes away. An error breaks the store.
func (w watchedFS) forget(name string) error {
	w.logs.forget(name)
	if !w.isOwn(name) {
		return nil
	}
	err := w.seal.forget(w.FS.PathBase(name))
	if err != nil {
		w.faults.fail(err)
	}
	return err
}

// MkdirAll makes directories for their owner alone, as makeDir does: what a
// checkpoint holds is what the store holds.
func (w watchedFS) MkdirAll(dir string, _ os.FileMode) error { return w.FS.MkdirAll(dir, 0o700) }

// Link gives a table that was made beside Pebble the name that it has there (keytables.go). Where it
// fails Pebble makes a copy, or fails.
func (w watchedFS) Link(oldname, newname string) error {
	if err := w.faults.err(); err != nil && w.isOwn(newname) {
		return err
	}
	return w.FS.Link(oldname, newname)
}

// Open limits a log that this store writes to what it has written so far. Who opens
// it is a checkpoint, which copies it while it grows. In a file that was a log before
// old bytes come after the new ones; a copy that meets some of them and then, a
// moment later, newer bytes after them, is a log with a hole in it. What is copied
// here is a log as a crash may leave it.
func (w watchedFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	if w.faults.err() != nil && w.isOwn(name) {
		if f, err := w.memory.Open(w.FS.PathBase(name), opts...); err == nil {
			return f, nil
		}
	}
	f, err := w.FS.Open(name, opts...)
	if own := w.logs.of(name); err == nil && own != nil {
		return &limitedFile{File: f, left: own.written.Load()}, nil
	}
	return f, err
}

// Rename is done in memory where the store is broken, for what was made there, and else
// not at all; one that fails breaks the store. With an error, Pebble's Open would end
// half way, and leave a compaction that panics.
func (w watchedFS) Rename(oldname, newname string) error {
	err := w.faults.err()
	if err == nil {
		if err = w.FS.Rename(oldname, newname); err == nil || !w.isVital(newname) {
			return err
		}
		w.faults.report(err, "rename", newname)
	}
	if !w.isVital(newname) {
		return err
	}
	_ = w.memory.Rename(w.FS.PathBase(oldname), w.FS.PathBase(newname))
	return nil
}

func (w watchedFS) OpenDir(name string) (vfs.File, error) {
	f, err := w.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	if w.FS.PathDir(w.FS.PathJoin(name, "x")) == w.dir {
		return &watchedFile{File: f, name: name, faults: w.faults, vital: true}, nil
	}
	return &copyDirectory{f, name, w.faults}, nil
}

// copyDirectory is a directory that is not the store's.
type copyDirectory struct {
	vfs.File
	name   string
	faults *faults
}

func (d *copyDirectory) Sync() error {
	if err := d.File.Sync(); err != nil {
		err = fmt.Errorf("sync %s: %w", d.name, err)
		d.faults.elsewhere.CompareAndSwap(nil, &err)
	}
	return nil
}

func (w watchedFS) watch(f vfs.File, err error, op, name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if err != nil {
		if w.isVital(name) {
			w.faults.report(err, op, name)
		} else if w.isFlush(name, category) {
			w.faults.flushFailed(err, op, name)
		}
		return w.instead(err, name, category)
	}
	if isTable(name) {
		f = newBufferedFile(f)
	}
	if w.isCompaction(name, category) {
		f = &compactedFile{File: f, fs: w}
	}
	if w.isOwnLog(name) {
		f = newLogFile(f, &w.logs.begin(name).written)
	}
	if w.isOwn(name) {
		f = w.seal.watch(f, w.FS.PathBase(name))
	}
	return &watchedFile{File: f, name: name, faults: w.faults, vital: w.isVital(name), flush: w.isFlush(name, category)}, nil
}

const (
	// leftForLogs is how much room a compaction leaves: that of the log of a memtable, which goes when the memtable
	// is flushed. Where less than twice that is free when it begins it leaves half, for it may be one that gives room back.
	leftForLogs = mostMemory / memTableShares
	// lookEach is after how many bytes a compaction looks whether that is so.
	lookEach = 1 << 20
)

// findLeast finds how much room the compaction leaves that makes its first table now.
func (w watchedFS) findLeast() {
	space, err := w.space()
	f := w.faults
	f.room.Lock()
	defer f.room.Unlock()
	if !f.begins { // others have taken their part of what was free
		return
	}
	f.begins, f.least = false, 0
	if err == nil && space.Total > 0 {
		f.least = min(leftForLogs, space.Free/2)
	}
}

// leavesRoom returns why a compaction has to end, with ENOSPC, or nil.
func (w watchedFS) leavesRoom() error {
	space, err := w.space()
	f := w.faults
	f.room.Lock()
	defer f.room.Unlock()
	if err != nil || space.Total == 0 || space.Free >= f.least {
		return nil
	}
	f.cramped.Store(true)
	return fmt.Errorf("a compaction leaves the last %d MiB to the logs: %w", f.least>>20, syscall.ENOSPC)
}

// compactedFile is a table that a compaction makes.
type compactedFile struct {
	vfs.File
	fs   watchedFS
	next int // bytes until it looks
}

func (f *compactedFile) Write(p []byte) (int, error) {
	if f.next -= len(p); f.next < 0 {
		f.next = lookEach
		if err := f.fs.leavesRoom(); err != nil {
			return 0, err
		}
	}
	return f.File.Write(p)
}

// limitedFile lets the first bytes of a file be read, in order.
type limitedFile struct {
	vfs.File
	left int64
}

func (f *limitedFile) Read(p []byte) (int, error) {
	if f.left <= 0 {
		return 0, io.EOF
	}
	n, err := f.File.Read(p[:min(int64(len(p)), f.left)])
	f.left -= int64(n)
	return n, err
}

// watchedFile is a file that is written, or a directory.
type watchedFile struct {
	vfs.File
	name   string
	faults *faults
	vital  bool // an error breaks the store, and is not Pebble's to know
	flush  bool // a table that a flush makes
}

func (f *watchedFile) Write(p []byte) (int, error) {
	if f.faults.err() != nil {
		return len(p), f.refused()
	}
	n, err := f.File.Write(p)
	if err != nil && f.vital {
		n = len(p)
	}
	return n, f.seen(err, "write")
}

func (f *watchedFile) Preallocate(offset, length int64) error {
	if f.faults.err() != nil {
		return f.refused()
	}
	return f.File.Preallocate(offset, length) // of no consequence where it fails
}

func (f *watchedFile) Sync() error {
	if f.faults.err() != nil {
		return f.refused()
	}
	return f.seen(f.File.Sync(), "sync")
}

func (f *watchedFile) SyncData() error {
	if f.faults.err() != nil {
		return f.refused()
	}
	return f.seen(f.File.SyncData(), "sync")
}

func (f *watchedFile) SyncTo(length int64) (fullSync bool, err error) {
	if f.faults.err() != nil {
		return false, f.refused()
	}
	fullSync, err = f.File.SyncTo(length)
	return fullSync, f.seen(err, "sync")
}

func (f *watchedFile) Close() error { return f.seen(f.File.Close(), "close") }

// refused is what Pebble gets for an operation that is not done, as the store is
// broken.
func (f *watchedFile) refused() error {
	if f.vital {
		return nil
	}
	return f.faults.err()
}

// seen is what Pebble gets for an operation that ended with err.
func (f *watchedFile) seen(err error, op string) error {
	switch {
	case err == nil:
	case f.vital:
		f.faults.report(err, op, f.name)
		return nil
	case f.flush:
		f.faults.flushFailed(err, op, f.name)
	}
	return err
}

// report breaks the store.
func (f *faults) report(err error, op, name string) {
	f.fail(fmt.Errorf("%s %s: %w", op, name, err))
}
