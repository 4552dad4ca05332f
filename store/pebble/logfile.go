package pebble

import (
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A log gets its blocks ahead of what is written to it, in pieces that double with it
// from logPieceLeast to logPieceMost, and gives back at its end what it did not need.
// Pebble would allocate a tenth more than the largest memtable for each, and keep it:
// 70 MiB for a log of some kilobytes.
//
// A log that is obsolete is used again, as blocks that were written once are synced a
// third faster than new ones. Pebble keeps up to five such logs. They give way where the
// disk has little room: the next log is a new file then, and the old one is removed.
const (
	logPieceLeast = 256 << 10
	logPieceMost  = 4 << 20
)

// logFile is a log of the store that is being written.
type logFile struct {
	vfs.File
	written   *atomic.Int64 // bytes so far
	allocated int64         // up to where there are blocks
	given     bool          // of them some are ahead of the file's end
}

// newLogFile wraps a log that has just been made, or is used again.
func newLogFile(f vfs.File, written *atomic.Int64) *logFile {
	l := &logFile{File: f, written: written}
	if info, err := f.Stat(); err == nil {
		l.allocated = info.Size()
	}
	return l
}

func (l *logFile) Write(p []byte) (int, error) {
	l.allocate(l.written.Load() + int64(len(p)))
	n, err := l.File.Write(p)
	l.written.Add(int64(n))
	return n, err
}

// allocate sees to blocks up to end. It is of no consequence where it fails: the write
// that follows reports the error.
func (l *logFile) allocate(end int64) {
	if end <= l.allocated || l.File.Fd() == vfs.InvalidFd {
		return
	}
	piece := min(max(l.allocated, logPieceLeast), logPieceMost)
	length := (end - l.allocated + piece - 1) / piece * piece
	if l.File.Preallocate(l.allocated, length) == nil {
		l.given = true
	}
	l.allocated += length
}

// Preallocate is what Pebble would have; see above.
func (l *logFile) Preallocate(_, _ int64) error { return nil }

func (l *logFile) Close() error {
	if info, err := l.File.Stat(); l.given && err == nil && info.Size() < l.allocated {
		cutBlocks(l.File.Fd(), info.Size()) // what fails leaves blocks until the log is removed
	}
	return l.File.Close()
}

// logSizes are how many bytes were written to each log of the store.
type logSizes struct {
	mu      sync.Mutex
	written map[string]*atomic.Int64
}

func (l *logSizes) begin(name string) *atomic.Int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.written[name] = new(atomic.Int64)
	return l.written[name]
}

// of returns nil for a file that is no log, or one of an earlier process.
func (l *logSizes) of(name string) *atomic.Int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.written[name]
}

func (l *logSizes) forget(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.written, name)
}
