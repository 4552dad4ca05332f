package pebble

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	pdb "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// A log gets its blocks ahead of what is written to it, in pieces that double with it
// from logPieceLeast to logPieceMost, and gives back at its end what it did not need.
// Pebble would allocate a tenth more than the largest memtable for each, and keep it:
// 70 MiB for a log of some kilobytes. The blocks count as the file's at once and are zero: a sync
// that has no new size to write takes less time (BenchmarkLogSync). So after a crash a log has up to
// logPieceMost zeros at its end, which are the end of a log as what a log used again has there is.
//
// A log that is obsolete is used again, as blocks that were written once are synced faster
// than new ones. Pebble would keep one more than there may be memtables, whatever the load,
// and each keeps the size of the largest log that it ever was; so it keeps none
// (recyclesNone), and what it removes is held back here (spareLogs).
const (
	logPieceLeast = 256 << 10
	logPieceMost  = 4 << 20

	// mostSpareLogs is how many logs wait to be used again. A flush may make several obsolete
	// at once; a third is used too seldom for what it takes of the disk.
	mostSpareLogs = 2

	// spareWithin is how soon after its beginning a log is obsolete that is kept. Where logs
	// fill more slowly it makes no difference, and the directory is smaller without.
	spareWithin = 10 * time.Second
)

// recyclesNone makes Pebble remove a log when it is obsolete. Pebble asks for the method of
// needsContents alone; Clean and String are those of the DeleteCleaner, which is less deep.
type recyclesNone struct {
	pdb.DeleteCleaner
	needsContents
}

type needsContents struct{ pdb.ArchiveCleaner }

// spareLogs are logs that Pebble has removed, and which are still there under their names, as
// after a crash before the removal: the next Open removes them. The seal knows them until they
// are used.
type spareLogs struct {
	mu    sync.Mutex
	names []string // the oldest first
}

// keep reports whether there is room for one more.
func (s *spareLogs) keep(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.names) == mostSpareLogs {
		return false
	}
	s.names = append(s.names, name)
	return true
}

// take returns "" where there is none.
func (s *spareLogs) take() (name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.names) > 0 {
		name, s.names = s.names[0], s.names[1:]
	}
	return name
}

func (s *spareLogs) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.names)
}

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
	if addBlocks(l.File.Fd(), l.allocated, length) == nil {
		l.given = true
	}
	l.allocated += length
}

// Preallocate is what Pebble would have; see above.
func (l *logFile) Preallocate(_, _ int64) error { return nil }

func (l *logFile) Close() error {
	if written := l.written.Load(); l.given && written < l.allocated {
		cutBlocks(l.File.Fd(), written) // what fails leaves blocks until the log is removed
	}
	return l.File.Close()
}

// ownLogs are the logs that this store has begun.
type ownLogs struct {
	mu   sync.Mutex
	logs map[string]*ownLog
}

type ownLog struct {
	begun   time.Time
	written atomic.Int64 // bytes
}

func (l *ownLogs) begin(name string) *ownLog {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.logs[name] = &ownLog{begun: time.Now()}
	return l.logs[name]
}

// of returns nil for a file that is no log, or one of an earlier process.
func (l *ownLogs) of(name string) *ownLog {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.logs[name]
}

func (l *ownLogs) forget(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.logs, name)
}
