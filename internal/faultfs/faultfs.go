// Package faultfs puts faults into the file system below an embedded store, for tests. It
// is Pebble's errorfs, which hands out a file that is used again (ReuseForWrite) without
// its injector: no write and no fsync of a log that was one before would be seen.
package faultfs

import (
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

type faultFS struct {
	*errorfs.FS
	injector errorfs.Injector
}

// Wrap returns fsys with an injector that sees every operation, and fails those that it
// has an error for.
func Wrap(fsys vfs.FS, injector errorfs.Injector) vfs.FS {
	return faultFS{errorfs.Wrap(fsys, injector), injector}
}

func (f faultFS) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if err := f.injector.MaybeError(errorfs.Op{Kind: errorfs.OpReuseForWrite, Path: oldname}); err != nil {
		return nil, err
	}
	if err := f.Unwrap().Rename(oldname, newname); err != nil {
		return nil, err
	}
	return f.OpenReadWrite(newname, category)
}
