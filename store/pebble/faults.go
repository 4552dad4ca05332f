package pebble

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"eventhub/store"

	pdb "github.com/cockroachdb/pebble/v2"
)

// faults remembers the first write error. A write or an fsync that failed can
// not be tried again: the kernel may have discarded the pages and reports the
// loss once. So the first error breaks the store for good, before anyone else
// hears of it, and every Commit looks here after Pebble said that all went well.
//
// They are seen in the file system itself (watchedFS), since Pebble answers some with
// a panic that nothing can catch, those of unsynced writes with nothing until the
// next sync, and others with its logger's Fatalf, which it does not expect to return.
// What it finds wrong with itself goes there too.
type faults struct {
	log   *slog.Logger
	fatal func(error)
	first atomic.Pointer[error]
	// elsewhere is the first failed fsync of a directory of the checkpoint under way.
	elsewhere atomic.Pointer[error]

	// A flush or a compaction that fails, as on a full disk, is tried again:
	// nothing is lost, its log is kept. background has room for one token that
	// reports it; pausing makes the next try wait, since Pebble's would follow
	// at once, for as long as the disk is full.
	background chan struct{}
	pausing    atomic.Bool
	// cramped: a compaction has ended for want of room. The next one waits.
	cramped atomic.Bool
	// compactions are under way, and leave so many bytes of the disk free; begins: that is to be found.
	room        sync.Mutex
	compactions int
	begins      bool
	least       uint64
	// over has room for one token that reports a flush or a compaction that has ended.
	over chan struct{}
	// opening: Pebble moves what the logs hold into tables, and does not come back
	// before it has. A failure breaks the store then, which has promised nothing yet.
	opening atomic.Bool
	closing chan struct{} // ends the pauses
}

// openingJob is the number that Pebble gives to what an Open removes.
const openingJob = 1

// retryPause is the time from one try of a failing flush to the next.
const retryPause = time.Second

// roomPause is that to the next compaction after one that had to leave room: it may write as much again for nothing.
const roomPause = 15 * time.Second

func newFaults(o Options) *faults {
	return &faults{log: o.Logger, fatal: o.Fatal, background: make(chan struct{}, 1), over: make(chan struct{}, 1), closing: make(chan struct{})}
}

// listener hears what Pebble does not return. A damaged table fails the reads
// that need it and goes to the log; it does not end the process, which would
// end the reads of all others.
func (f *faults) listener(s *seal) *pdb.EventListener {
	return &pdb.EventListener{
		// It comes after the marker, and before what the manifest makes obsolete goes.
		ManifestCreated: func(info pdb.ManifestCreateInfo) {
			if info.Err == nil {
				s.setCurrent(fmt.Sprintf("MANIFEST-%s", info.FileNum))
			}
		},
		TableDeleted: func(info pdb.TableDeleteInfo) {
			if info.JobID == openingJob && info.Err == nil {
				f.log.Info("a table that nothing names is removed", "path", info.Path)
			}
		},
		DataCorruption: func(info pdb.DataCorruptionInfo) {
			f.log.Error("damaged data", "path", info.Path, "err", info.Details)
		},
		BackgroundError: func(err error) {
			f.log.Error("flush or compaction failed; it is tried again", "err", err)
			f.pausing.Store(true)
			leaveToken(f.background)
		},
		FlushEnd:        func(pdb.FlushInfo) { leaveToken(f.over) },
		CompactionBegin: func(pdb.CompactionInfo) { f.compacts(1) },
		CompactionEnd: func(pdb.CompactionInfo) {
			f.compacts(-1)
			leaveToken(f.over)
		},
	}
}

// leaveToken and takeToken are of channels that have room for one.
func leaveToken(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func takeToken(c <-chan struct{}) {
	select {
	case <-c:
	default:
	}
}

// pause is called where a flush or a compaction starts to write, with none of
// Pebble's locks held.
func (f *faults) pause() {
	if !f.pausing.Swap(false) {
		return
	}
	select {
	case <-time.After(retryPause):
	case <-f.closing:
	}
}

// compacts says that a compaction begins, or has ended.
func (f *faults) compacts(n int) {
	f.room.Lock()
	defer f.room.Unlock()
	f.compactions += n
	f.begins = f.begins || n > 0 && f.compactions == 1
}

// pauseForRoom is pause for a compaction that follows on one that had to leave room. Flushes go on
// meanwhile, and so do deletions of whole tables.
func (f *faults) pauseForRoom() {
	if !f.cramped.Swap(false) {
		return
	}
	select {
	case <-time.After(roomPause):
	case <-f.closing:
	}
}

// fail breaks the store. The first call logs the cause and calls Options.Fatal,
// which by default does not return.
func (f *faults) fail(cause error) {
	if f.first.CompareAndSwap(nil, &cause) {
		f.log.Error("store broken by a write error", "err", cause)
		f.fatal(cause)
	}
}

// flushFailed hears of a failed write of a table that a flush makes.
func (f *faults) flushFailed(err error, op, name string) {
	if f.opening.Load() {
		cause := fmt.Errorf("what the logs hold can not be moved into tables: %s %s: %w", op, name, err)
		f.first.CompareAndSwap(nil, &cause)
	}
}

// err returns nil, or what every Commit says from the first failure on.
func (f *faults) err() error {
	cause := f.first.Load()
	if cause == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", store.ErrBroken, *cause)
}

// pebbleLog is what Pebble logs to. Its talk about flushes and compactions goes
// to the debug level; Fatalf breaks the store.
type pebbleLog struct{ *faults }

func (l pebbleLog) Infof(format string, args ...any) {
	if l.log.Enabled(context.Background(), slog.LevelDebug) {
		l.log.Debug("pebble", "msg", fmt.Sprintf(format, args...))
	}
}

func (l pebbleLog) Errorf(format string, args ...any) {
	l.log.Error("pebble", "msg", fmt.Sprintf(format, args...))
}

func (l pebbleLog) Fatalf(format string, args ...any) {
	e := &fatalError{text: fmt.Sprintf(format, args...)}
	for _, arg := range args {
		if cause, ok := arg.(error); ok {
			e.cause = cause
		}
	}
	l.fail(e)
}

// fatalError is what Pebble said, with the error it spoke of in its chain.
type fatalError struct {
	text  string
	cause error
}

func (e *fatalError) Error() string { return e.text }
func (e *fatalError) Unwrap() error { return e.cause }
