package pebble

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"time"

	"eventhub/store"

	pdb "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Options open a store.
type Options struct {
	// Dir is the store's directory; it is created, its parents too, when it is
	// not there.
	Dir string
	// FS is the file system that Dir is on; nil means the disk.
	FS vfs.FS
	// Now is the clock that commit times come from; nil means time.Now.
	Now func() time.Time
	// MaxTopics bounds the number of topics; 0 means no bound.
	MaxTopics int
	// Memory is how many bytes memtables and cached blocks may take together; 0 means 256 MiB. Less than 4 MiB
	// count as 4 MiB.
	Memory int
	// Logger gets what Pebble says: its talk at the debug level, its errors at
	// the error level. nil means slog.Default().
	Logger *slog.Logger
	// Fatal is called once, with the cause, when the first write or fsync fails,
	// or a read that a Commit needs: the store is broken, and the process has to
	// end and open it again. It runs inside what failed, on any goroutine, so it
	// must not call the store. nil means os.Exit(1). Where it returns instead, nothing
	// in Dir changes any more, every Commit fails with store.ErrBroken, and so does
	// Close; reads go on.
	Fatal func(cause error)
	// Space says how much room Dir's file system has; nil means that FS is asked.
	// Tests fill a disk with it.
	Space func() (store.Space, error)

	// tune adjusts Pebble; tests make it small.
	tune func(*pdb.Options)
	// sweeping looks at what a step of the sweep, or of the compaction, writes.
	sweeping func(*pdb.Batch)
	// opened is called when a step of the sweep, of the compaction or of an index has opened its iterators.
	opened func()
	// reading is called while a state is read: before its moment, and after it.
	reading func(isAfter bool)
}

func (o Options) withDefaults() Options {
	if o.FS == nil {
		o.FS = privateFS{vfs.Default}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Memory == 0 {
		o.Memory = mostMemory
	}
	o.Memory = max(leastMemory, o.Memory)
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Fatal == nil {
		o.Fatal = func(error) { os.Exit(1) }
	}
	if o.Space == nil {
		o.Space = func() (store.Space, error) { return diskSpace(o.FS, o.Dir) }
	}
	return o
}

// diskSpace is the zero Space where the file system has no bound that it knows,
// as one in memory.
func diskSpace(fsys vfs.FS, dir string) (store.Space, error) {
	usage, err := fsys.GetDiskUsage(dir)
	if errors.Is(err, vfs.ErrUnsupported) {
		return store.Space{}, nil
	}
	if err != nil {
		return store.Space{}, fmt.Errorf("store/pebble: room on the disk of %s: %w", dir, err)
	}
	return store.Space{Free: usage.AvailBytes, Total: usage.TotalBytes}, nil
}

func (o Options) validate() error {
	var errs []error
	if o.Dir == "" {
		errs = append(errs, errors.New("the option Dir is empty"))
	}
	if o.MaxTopics < 0 {
		errs = append(errs, errors.New("the option MaxTopics is negative"))
	}
	return errors.Join(errs...)
}

// formatMajorVersion is Pebble's on-disk format. From FormatWALSyncChunks on the
// write-ahead log carries how far it was synced, so that a damaged log is distinguished
// from one that a crash cut short: it is refused, not silently truncated. Raising
// it is a one-way migration that Pebble does by itself at Open.
const formatMajorVersion = pdb.FormatValueSeparation

// Sizes for some 500,000 events of 256 B a second. Memtables start at 256 KiB
// and double, the cache fills with what is read: an idle store pays for neither.
// Pebble takes the memtables' memory out of the cache, so the cache has to be
// larger than all of them, or each look-up of an id reads its filter from disk.
const (
	mostMemory     = 256 << 20 // of the cache, with the memtables
	leastMemory    = 4 << 20
	memTableQueue  = 3                 // memtables in memory before commits wait for a flush
	memTableShares = memTableQueue + 1 // of the memory: what the queue leaves is for blocks
	blockBytes     = 16 << 10
	indexBytes     = 256 << 10
	fileBytes      = 8 << 20 // in L0; doubled at each level below
	baseLevelBytes = 256 << 20
	bloomBits      = 10 // bits a key: one look-up in a hundred reads for nothing

	// Readers of the log seek into every L0 sublevel, so compactions start
	// early; commits wait late, since a burst may outrun compactions for a while.
	l0Compact = 4
	l0Stop    = 64

	mostCompactions = 4 // under way, and one for every two processors

	// How long a range deletion, which only a sweep writes, stays in memory at most:
	// the disk has room again when it is in a table.
	rangeFlush = 5 * time.Second
)

// pebbleOptions says how Pebble is run. The write-ahead log is always on.
func (o Options) pebbleOptions(w watchedFS, lock *dirLock) *pdb.Options {
	compactions := max(1, min(mostCompactions, runtime.NumCPU()/2, runtime.GOMAXPROCS(0)/2))
	p := &pdb.Options{
		FS:                          &w, // a pointer, because Pebble compares file systems
		Cleaner:                     recyclesNone{},
		Lock:                        lock.pebble,
		Logger:                      pebbleLog{w.faults},
		FormatMajorVersion:          formatMajorVersion,
		MemTableSize:                uint64(o.Memory / memTableShares),
		MemTableStopWritesThreshold: memTableQueue,
		CacheSize:                   int64(o.Memory),
		L0CompactionThreshold:       l0Compact,
		L0StopWritesThreshold:       l0Stop,
		LBaseMaxBytes:               baseLevelBytes,
		FlushDelayDeleteRange:       rangeFlush,
		CompactionConcurrencyRange:  func() (int, int) { return 1, compactions },
		EventListener:               w.faults.listener(w.seal),
	}
	// A large range deletion, which only a sweep writes, takes what it covers out of tables
	// that it covers in part, and without waiting for a compaction that rewrites them: under
	// a cap of 1 GiB there was else as much dead as alive (docs/sizing.md).
	p.Experimental.EnableDeleteOnlyCompactionExcises = func() bool { return true }
	p.Experimental.SpanPolicyFunc = spanPolicy
	p.TargetFileSizes[0] = fileBytes
	p.ApplyCompressionSettings(compression)
	for i := range p.Levels {
		p.Levels[i].BlockSize = blockBytes
		p.Levels[i].IndexBlockSize = indexBytes
		p.Levels[i].FilterPolicy = bloom.FilterPolicy(bloomBits)
	}
	if o.tune != nil {
		o.tune(p)
	}
	return p
}

// worthwhile is by how many percent records have to shrink to be compressed by a flush. What repeats in
// records around random payloads of 256 B makes 26 of them, JSON that programs write 50 to 80.
const worthwhile = 40

// compression has a flush compress what shrinks well, of which it tries one block in ten, and leave the rest
// as it is: the processor time is wanted for what made the flush. Records may stay as they are then,
// for Pebble moves their tables below L0 without reading them. What is merged is compressed.
func compression() pdb.DBCompressionSettings {
	settings := pdb.DBCompressionFastest
	flushed := *settings.Levels[0]
	flushed.OtherBlocks = pdb.DBCompressionNone.Levels[0].DataBlocks
	flushed.AdaptiveReductionCutoffPercent = worthwhile
	settings.Levels[0] = &flushed
	return settings
}
