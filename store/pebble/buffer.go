package pebble

import "github.com/cockroachdb/pebble/v2/vfs"

// tableBuffer is how much of a table is written at once. Pebble hands over what it has
// in pieces of a few kilobytes: three system calls for each block, which cost more than
// what they copy.
const tableBuffer = 256 << 10

// bufferedFile is a file that is written from its beginning to its end, in large pieces.
// What was written is in the file once it is synced or closed; once a write has failed,
// none of these succeeds any more, for then a part is missing.
type bufferedFile struct {
	vfs.File
	buf    []byte
	failed error
}

// newBufferedFile begins with no buffer, which grows with the file: most tables of a small store have a few kilobytes.
func newBufferedFile(f vfs.File) *bufferedFile { return &bufferedFile{File: f} }

func (f *bufferedFile) Write(p []byte) (int, error) {
	if f.failed != nil || len(f.buf)+len(p) > tableBuffer {
		if err := f.flush(); err != nil {
			return 0, err
		}
	}
	if len(p) >= tableBuffer {
		n, err := f.File.Write(p)
		f.failed = err
		return n, err
	}
	f.buf = append(f.buf, p...)
	return len(p), nil
}

func (f *bufferedFile) flush() error {
	if f.failed != nil || len(f.buf) == 0 {
		return f.failed
	}
	_, f.failed = f.File.Write(f.buf)
	f.buf = f.buf[:0]
	return f.failed
}

func (f *bufferedFile) Sync() error {
	if err := f.flush(); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f *bufferedFile) SyncData() error {
	if err := f.flush(); err != nil {
		return err
	}
	return f.File.SyncData()
}

func (f *bufferedFile) SyncTo(length int64) (fullSync bool, err error) {
	if err := f.flush(); err != nil {
		return false, err
	}
	return f.File.SyncTo(length)
}

func (f *bufferedFile) Close() error {
	err := f.flush()
	if closeErr := f.File.Close(); err == nil {
		err = closeErr
	}
	return err
}
