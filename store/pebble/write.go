package pebble

import (
	"context"

	pdb "github.com/cockroachdb/pebble/v2"
)

// # Writes
//
// What changes a key of the database is in this file, and nowhere else in the package
// (TestWritesAreInOnePlace). There are three ways: the batch of a commit (apply, and applyStarted where
// its fsync is waited for later), what may be lost in a crash because it is done again (applyLater),
// and tables of the key index (ingest). A store that shares a journal makes entries of the batches of
// apply and applyLater, one after the other, which applyEntry applies, and does without the others: see
// journaled.go.

// apply hands the batch to Pebble; with sync it returns after the fsync. When it
// returns nil, nothing written so far has failed: Pebble's own nil does not say so.
// Store.committing is held.
func (s *Store) apply(batch *pdb.Batch, sync bool) error {
	if s.shared != nil {
		s.clock = max(s.clock, s.commit.now)
		return s.shared.write(s, batch, s.clock)
	}
	opts := pdb.NoSync
	if sync {
		opts = pdb.Sync
	}
	if batch.Empty() {
		if !sync || !s.unsynced {
			return nil
		}
		if err := batch.LogData(nil, opts); err != nil {
			return err
		}
	}
	if err := s.db.Apply(batch, opts); err != nil {
		return err
	}
	s.unsynced = !sync
	return s.faults.err()
}

// applyStarted is apply with sync, but for the wait: batch.SyncWait is the rest, or where the store
// shares a journal all but to append it (shared.complete).
func (s *Store) applyStarted(p *started) error {
	s.unsynced = false
	if s.shared == nil {
		return s.db.ApplyNoSyncWait(p.batch, pdb.Sync)
	}
	ids := &s.commit.given
	p.entry.batch, p.entry.isApplied = p.batch, false
	p.entry.ids.index, ids.index = ids.index, p.entry.ids.index
	p.entry.ids.first, ids.first = ids.first, p.entry.ids.first
	if ids.index == nil {
		ids.index = make(map[givenID]int)
	}
	s.clock = max(s.clock, s.commit.now)
	return s.shared.append(s, &p.entry, s.clock)
}

// applyLater hands a batch to Pebble that nobody waits for: it comes to the disk with what is
// synced after it, or is lost together with all that came after it. It needs no lock; an error
// breaks the store.
func (s *Store) applyLater(batch *pdb.Batch) error {
	var err error
	if s.shared != nil {
		err = s.shared.write(s, batch, 0)
	} else {
		err = s.db.Apply(batch, pdb.NoSync)
	}
	if err == nil {
		err = s.faults.err()
	}
	if err != nil {
		s.faults.fail(err)
		return s.faults.err()
	}
	return nil
}

// applyEntry hands an entry of the journal to Pebble, or the removal of what is about entries. It is
// durable with the next syncAll, or some time.
func (s *Store) applyEntry(batch *pdb.Batch) error {
	if err := s.db.Apply(batch, pdb.NoSync); err != nil {
		return err
	}
	return s.faults.err()
}

// syncAll makes durable what was applied before.
func (s *Store) syncAll() error {
	if err := s.db.LogData(nil, pdb.Sync); err != nil {
		return err
	}
	return s.faults.err()
}

// ingest has Pebble take tables that are on the disk. No store that shares a journal comes here:
// its tables would be on the disk before the entries that come before them are.
func (s *Store) ingest(paths []string) error {
	// An end of the context in the middle would be taken for a table that can not be read.
	return s.db.Ingest(context.Background(), paths)
}
