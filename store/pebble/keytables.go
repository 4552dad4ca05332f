package pebble

import (
	"context"
	"errors"
	"fmt"
	"strings"

	pdb "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/objstorage/objstorageprovider"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// # Tables of the key index
//
// Entries that go through a log and a memtable are written three times before they lie below L0, and
// their tables overlap each other and the records. So a step with many entries makes the tables
// itself, and Pebble takes all of them in one step (Ingest): it links them under names of its own,
// and names them in its manifest, or in a log of their own where a memtable has entries between
// theirs. They are on the disk when Ingest returns, so the row that says where the next step begins
// never comes before them.
//
// Until then they have names that Pebble does not know. They end as those of its own tables do, so
// a full disk is the end of the step and not of the store (watchedFS). A step that fails removes
// them, and Open what a crash has left: a name more of a table that is in use, or one that nobody
// uses.
//
// A commit that changes the index waits for Ingest, as it does for a batch (Store.indexing). Other
// commits wait as long as Pebble begins another log, or writes its manifest: some milliseconds. Ingest
// would have them wait for a flush where memtables are waiting for one already, and more tables
// in L0 bring the moment nearer from which on commits wait for a compaction. Then a step writes batches,
// and always in a store that shares a journal.

// keyTables is what makes tables of the key index. Store.sweeper.stepping guards it.
type keyTables struct {
	options sstable.WriterOptions
	made    uint64 // since Open
}

const keyTablePrefix = "keys-"

func isKeyTable(name string) bool { return strings.HasPrefix(name, keyTablePrefix) && isTable(name) }

// tableOptions says how tables are written that Pebble opens with p.
func tableOptions(p *pdb.Options) sstable.WriterOptions {
	const level = 5 // they are compressed there
	p = p.Clone()
	p.EnsureDefaults()
	return p.MakeWriterOptions(level, p.FormatMajorVersion.MaxTableFormat())
}

// takesTables reports whether Pebble takes tables without a wait.
func (s *Store) takesTables() bool {
	if s.shared != nil {
		return false
	}
	m := s.db.Metrics()
	return int(m.MemTable.Count) < s.mostMemTables && int(m.Levels[0].Sublevels) < s.mostSublevels/2
}

// writeTables writes the entries as tables, unless a commit has changed the index.
func (r *indexRun) writeTables(ctx context.Context) (err error) {
	w := tableWriter{s: r.s}
	defer func() { err = errors.Join(err, w.remove()) }()
	written := 0
	for key := range r.sorted() {
		if err := w.add(key); err != nil {
			return err
		}
		if written++; written%r.s.indexSizes.looks == 0 {
			if err := r.breathe(ctx, r.row.next); err != nil {
				return err
			}
		}
	}
	if err := w.finish(); err != nil {
		return err
	}
	return r.ingest(&w)
}

// ingest has Pebble take the tables.
func (r *indexRun) ingest(w *tableWriter) error {
	s := r.s
	if s.options.sweeping != nil {
		s.options.sweeping(nil)
	}
	s.indexing.Lock()
	defer s.indexing.Unlock()
	if r.look(); !r.isOpen {
		return nil
	}
	err := s.ingest(w.paths)
	if broken := s.faults.err(); broken != nil {
		return broken // what Pebble says of it is of no consequence
	}
	if err != nil {
		return fmt.Errorf("ingest %d tables: %w", len(w.paths), err)
	}
	w.paths = nil
	return nil
}

// tableWriter makes tables of keys that come in order.
type tableWriter struct {
	s     *Store
	paths []string        // that were made and not ingested
	table *sstable.Writer // the last of them, while it is being written
	bytes int             // of its keys
}

func (w *tableWriter) add(key []byte) (err error) {
	if w.table == nil {
		err = w.begin()
	}
	if err == nil {
		err = w.table.Set(key, nil)
	}
	if err != nil {
		return err
	}
	if w.bytes += len(key); w.bytes >= w.s.indexSizes.table {
		return w.finish()
	}
	return nil
}

func (w *tableWriter) begin() error {
	tables, dir := &w.s.keyTables, w.s.options.Dir
	tables.made++
	path := w.s.files.PathJoin(dir, fmt.Sprintf("%s%d.sst", keyTablePrefix, tables.made))
	f, err := w.s.files.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	w.paths = append(w.paths, path)
	w.table, w.bytes = sstable.NewWriter(objstorageprovider.NewFileWritable(f), tables.options), 0
	return nil
}

// finish ends a table, which is on the disk then.
func (w *tableWriter) finish() error {
	if w.table == nil {
		return nil
	}
	table := w.table
	w.table = nil
	return table.Close()
}

// remove removes the tables that were not ingested. Of a broken store they stay until the next Open.
func (w *tableWriter) remove() (err error) {
	if w.table != nil {
		_ = w.finish() // it goes
	}
	for _, path := range w.paths {
		if w.s.faults.err() != nil {
			break
		}
		err = errors.Join(err, w.s.files.Remove(path))
	}
	w.paths = nil
	return err
}

// dropKeyTables removes what a crash has left.
func (s *Store) dropKeyTables() error {
	names, err := s.files.List(s.options.Dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if isKeyTable(name) {
			if err := s.files.Remove(s.files.PathJoin(s.options.Dir, name)); err != nil {
				return err
			}
		}
	}
	return nil
}
