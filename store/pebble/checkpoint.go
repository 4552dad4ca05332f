package pebble

import (
	"context"
	"errors"
	"fmt"

	pdb "github.com/cockroachdb/pebble/v2"
)

// Checkpoint implements store.Maintenance. Tables are linked into dir where it is on
// the store's file system, so that a copy takes little room there at first, and shares
// damage of the disk with the store; elsewhere they are copied. Of the log it copies
// what was written when it came to it (watchedFS.Open). The file FORMAT comes last: a
// copy that a crash cut short is none, and Open refuses it.
func (s *Store) Checkpoint(ctx context.Context, dir string) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	err := s.faults.err()
	if err == nil {
		err = s.checkpoint(dir)
	}
	if err != nil {
		return fmt.Errorf("store/pebble: checkpoint: %w", err)
	}
	return nil
}

func (s *Store) checkpoint(dir string) error {
	s.checkpointing.Lock()
	defer s.checkpointing.Unlock()
	s.faults.elsewhere.Store(nil)
	fsys := s.options.FS
	// The flush makes durable what was committed without sync.
	if err := s.db.Checkpoint(dir, pdb.WithFlushedWAL()); err != nil {
		return err
	}
	// Pebble's nil does not say that nothing failed.
	err := s.faults.err()
	if cause := s.faults.elsewhere.Load(); err == nil && cause != nil {
		err = *cause
	}
	if err == nil {
		err = sealCopy(fsys, dir)
	}
	if err == nil {
		err = putFormat(fsys, dir, s.shared != nil)
	}
	if err != nil {
		return errors.Join(err, fsys.RemoveAll(dir))
	}
	return nil
}
