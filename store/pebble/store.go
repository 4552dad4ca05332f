// Package pebble is the embedded store: topics, events and the state of groups in
// one Pebble database in one directory, for one process. hub opens it, bus writes
// and reads through the interfaces of package store, whose duties hold here;
// those of this package are:
//
//   - A commit is one Pebble batch in one fsync. What it refuses leaves nothing
//     in the batch.
//   - Pebble shows a batch to readers before its fsync is done. So every read is
//     bounded by what is published, which moves only after the fsync: the
//     durable head of each topic, the table of topics, and for groups the states
//     that a running commit replaces; delayed events, patterns, settings and notes have a gate, which is
//     shut while a commit changes them.
//   - Offsets are given out by the one committer and never twice, whatever a
//     crash takes away: see reserve.
//   - After a failed write or fsync no commit succeeds.
//   - What changes a key is in write.go. A store that shares a journal with others (OpenReplica, Lead)
//     writes nothing that the journal does not have, and has the same keys as they: see journaled.go.
package pebble

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"

	"eventhub/store"

	pdb "github.com/cockroachdb/pebble/v2"
)

// Store is an open store. It implements store.Store.
type Store struct {
	options Options
	db      *pdb.DB
	lock    *dirLock
	seal    *seal
	faults  *faults
	files   watchedFS

	life life

	topics topicTable
	groups groupTable
	// The gates of delayed events and of patterns.
	delays, patterns, settings, notes gate

	checkpointing sync.Mutex // serialises Checkpoint
	sweeper       sweeper
	// Of the compaction. Guarded by sweeper.stepping.
	whole   wholePass
	settled *settling // what Pebble has compacted last

	// indexing guards steps of IndexKeys against commits that change an index. It is taken
	// after committing.
	indexing sync.Mutex

	// committing serialises Commit and guards what follows.
	committing sync.Mutex
	commit     commit
	nextTopic  uint32
	// eras has that of this Open, if newEra says so.
	eras         []store.Era
	newEra       bool
	deletedNames map[string]uint64 // offsets given under the names of topics that are gone
	// Of the names that are gone and have no row no offset above baseFloor was given.
	baseFloor    uint64
	mostDeleted  int // rows
	sweepRange   int // bytes
	segmentBytes uint64
	compacting   compactSizes
	indexSizes   indexSizes
	keyTables    keyTables
	keySorter    *keySorter // of the index that is being built; guarded by sweeper.stepping
	recorder     recorder
	// lastDelay is the highest Seq that was given to a delayed event; no higher one than
	// delayFloor is given before that is on disk.
	lastDelay, delayFloor uint64
	goneDelayed           goneDelayed // guarded by the gate of delayed events
	// deletedEpoch is the highest of a group that was deleted. It moves after the fsync,
	// and is read by all.
	deletedEpoch atomic.Uint64
	producers    producers
	// unsynced: something was committed after the last fsync.
	unsynced bool
	// clock is the time of the last entry of the journal, below which no commit is; 0 where there
	// is no journal.
	clock int64

	shared *shared // nil in a store that has its directory alone

	// From where on Pebble stalls writes.
	mostMemory    uint64
	mostSublevels int
	mostMemTables int // for Ingest without a wait

	ids ids // of who holds committing; others have a fresh one
	// textIDs: ids that are UUIDs may be in the index as text.
	textIDs bool

	isWarming atomic.Bool   // the log is read ahead of a walk over a state
	spare     chan *started // Starts that were waited for, to be used again
}

var (
	_ store.Store    = (*Store)(nil)
	_ store.Pipeline = (*Store)(nil)
)

// Open opens the store in o.Dir and creates it if there is none. It fails with
// ErrLocked when the directory is open elsewhere, with ErrFormat when it is of
// another version or holds something else, with ErrReplicated when it shares a journal, and with
// ErrDamaged or an error of
// Pebble when it is not as it was left. Where the disk has no room for what it has to
// write it fails at once, and leaves what is stored as it is.
func Open(o Options) (*Store, error) {
	s, err := openDir(o, false)
	if err != nil {
		return nil, err
	}
	first := s.db.NewBatch()
	defer first.Close()
	if err = s.loadAll(first); err == nil {
		err = s.apply(first, true)
	}
	if err = errors.Join(err, s.faults.err()); err != nil {
		return nil, s.giveUp(err)
	}
	return s, nil
}

// openDir opens the database in the directory, and loads nothing of it.
func openDir(o Options, replicated bool) (*Store, error) {
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("store/pebble: options: %w", err)
	}
	o = o.withDefaults()
	f := newFaults(o)
	lock, kept, err := lockDir(o.FS, o.Dir, f, replicated)
	if err != nil {
		return nil, err
	}
	files := watchFS(o, f, kept)
	p := o.pebbleOptions(files, lock)
	f.opening.Store(true)
	db, err := pdb.Open(o.Dir, p)
	f.opening.Store(false)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("store/pebble: open %s: %w", o.Dir, err), kept.stop(false, false), lock.Close())
	}
	s := &Store{options: o, db: db, lock: lock, seal: kept, faults: f, files: files,
		life: life{idle: make(chan struct{}, 1)}, spare: make(chan *started, spareStarts),
		mostMemory: uint64(p.MemTableStopWritesThreshold) * p.MemTableSize, mostSublevels: p.L0StopWritesThreshold, mostMemTables: p.MemTableStopWritesThreshold,
		keyTables:    keyTables{options: tableOptions(p)},
		mostDeleted:  max(mostDeleted, o.MaxTopics),
		sweepRange:   sweepRange,
		segmentBytes: segmentBytes,
		compacting:   compactionSizes,
		indexSizes:   keyIndexSizes}
	s.indexSizes.memory = min(s.indexSizes.memory, o.Memory/memTableShares)
	s.commit.init(s)
	if err = dropBackupSums(o.FS, o.Dir); err != nil {
		return nil, s.giveUp(err)
	}
	// Pebble begins the log of a new database, and of one whose format it has
	// just raised, in the old format, in which damage looks like the log's end.
	// Nothing may be written to that one: the flush begins another at once.
	if _, err = db.AsyncFlush(); err != nil {
		return nil, s.giveUp(err)
	}
	return s, nil
}

// loadAll reads what memory has of the database. first gets what a store without it has to begin with.
func (s *Store) loadAll(first *pdb.Batch) error {
	return errors.Join(s.loadTopics(first), s.loadDeleted(), s.loadGarbage(), s.loadRemovals(), s.loadOutdated(), s.loadDelayFloor(),
		s.loadDeletedEpoch(), s.loadIDs(first), s.loadIDForms(first), s.loadProducers(), s.dropKeyTables())
}

// giveUp closes what openDir has opened.
func (s *Store) giveUp(cause error) error {
	s.life.end()
	return errors.Join(fmt.Errorf("store/pebble: open %s: %w", s.options.Dir, cause), s.closeBatches(), s.db.Close(), s.seal.stop(false, false), s.lock.Close())
}

// Capabilities implements store.Store.
func (s *Store) Capabilities() store.Capabilities {
	durability := store.DurabilitySync
	if s.shared != nil {
		durability = store.DurabilityReplicated
	}
	return store.Capabilities{Durability: durability, AtomicUnits: true, Persistent: true}
}

// Size implements store.Maintenance: tables, logs and what else Pebble has on
// disk.
func (s *Store) Size() (uint64, error) {
	if err := s.enter(context.Background()); err != nil {
		return 0, err
	}
	defer s.leave()
	return s.db.Metrics().DiskSpaceUsage() + s.files.spareBytes(), nil
}

// Space implements store.Maintenance.
func (s *Store) Space() (store.Space, error) {
	if err := s.enter(context.Background()); err != nil {
		return store.Space{}, err
	}
	defer s.leave()
	return s.options.Space()
}

// Shrink implements store.Maintenance. The flush begins another log, and the one before is
// not kept where room is low. It is a burst of commits that makes room low, so flushes may be
// under way, and Shrink waits for them; it does less where one fails.
func (s *Store) Shrink(ctx context.Context) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	err := errors.Join(s.files.dropSpares(), s.faults.err())
	if err == nil && s.awaitRoom(ctx) {
		_, err = s.flush(ctx)
	}
	if err != nil {
		return fmt.Errorf("store/pebble: shrink: %w", err)
	}
	return nil
}

// Close implements store.Store.
func (s *Store) Close() error {
	s.life.closing.Lock()
	defer s.life.closing.Unlock()
	if !s.life.end() {
		return nil
	}
	close(s.faults.closing)
	var err error
	flushed := false
	if !s.isStalled() {
		if s.shared == nil { // else none is above what was given
			err = s.lowerFloors()
		}
		var flushErr error
		flushed, flushErr = s.flush(context.Background())
		err = errors.Join(err, flushErr)
	}
	err = errors.Join(err, s.closeBatches(), s.db.Close(), s.faults.err())
	if err == nil {
		_ = s.files.dropSpares() // what stays goes at the next Open
		err = s.faults.err()
	}
	if err = errors.Join(err, s.seal.stop(err == nil, flushed), s.lock.Close()); err != nil {
		return fmt.Errorf("store/pebble: close: %w", err)
	}
	return nil
}

// isStalled reports whether Pebble would have a write wait for a flush or a compaction,
// which on a full disk is for ever. The log has all that Close would write.
func (s *Store) isStalled() bool {
	m := s.db.Metrics()
	return m.MemTable.Size >= s.mostMemory || int(m.Levels[0].Sublevels) >= s.mostSublevels
}

// awaitRoom waits until the store is not stalled. It reports false where that cannot be
// awaited: a flush or a compaction has failed, or ctx is done.
func (s *Store) awaitRoom(ctx context.Context) bool {
	takeToken(s.faults.background) // an old one
	for s.isStalled() {
		select {
		case <-s.faults.over:
		case <-s.faults.background:
			return false
		case <-ctx.Done():
			return false
		}
	}
	return ctx.Err() == nil
}

// flush moves what is in memory into tables, which carry checksums to their last
// byte and need no replay. Where that fails, as on a full disk, the log has all
// of it, and Pebble would try for ever; done is false.
func (s *Store) flush(ctx context.Context) (done bool, err error) {
	if s.faults.err() != nil {
		return false, nil
	}
	takeToken(s.faults.background) // an old one
	flushed, err := s.db.AsyncFlush()
	if err != nil {
		return false, err
	}
	select {
	case <-flushed:
		return s.faults.err() == nil, nil
	case <-s.faults.background:
	case <-ctx.Done():
	}
	return false, nil
}

// enter begins a method; every nil needs a leave.
func (s *Store) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.life.running.Add(1) < 0 {
		s.leave()
		return store.ErrClosed
	}
	return nil
}

func (s *Store) leave() {
	if s.life.running.Add(-1) == ended {
		select {
		case s.life.idle <- struct{}{}:
		default:
		}
	}
}

// life counts the methods that run, so that Close can wait for them. It is no lock: while
// Close waits for the wait of a Start, whoever has to call that wait may call another
// method before, and gets ErrClosed.
type life struct {
	running atomic.Int64  // methods, and ended once Close was called
	idle    chan struct{} // gets a token when the last one has left after Close
	closing sync.Mutex    // of Close
}

const ended = math.MinInt64

// end lets no method begin any more and waits for those that run. It reports false where
// that was done before.
func (l *life) end() bool {
	if l.running.Load() < 0 {
		return false
	}
	if l.running.Add(ended) != ended {
		<-l.idle
	}
	return true
}

// get returns a copy of the value under key, or nil where there is none.
func (s *Store) get(key []byte) ([]byte, error) {
	value, closer, err := s.db.Get(key)
	if errors.Is(err, pdb.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	// Not nil even where it is empty.
	value = append([]byte{}, value...)
	return value, closer.Close()
}

// has reports whether there is something under key.
func (s *Store) has(key []byte) (bool, error) {
	_, closer, err := s.db.Get(key)
	if errors.Is(err, pdb.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, closer.Close()
}

// closeInto closes c and makes its error the function's, unless that has one.
func closeInto(c io.Closer, err *error) {
	if closeErr := c.Close(); *err == nil {
		*err = closeErr
	}
}
