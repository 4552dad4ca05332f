package pebble

import (
	"context"
	"errors"
	"fmt"

	"eventhub/store"

	pdb "github.com/cockroachdb/pebble/v2"
)

// A Start whose units do nothing but append to topics that are there leaves one thing
// to be done after the fsync, to move the heads of these topics. So the next one can
// be built and applied meanwhile, in a batch of its own. Pebble orders the two in its
// log: where the later one is durable the earlier one is. Any other Start is a Commit.
//
// In a store that shares a journal a Start is appended, and applied when the journal has it: in its
// wait, or before, where somebody needs it in the database (settle). What the next one looks up
// meanwhile is the ids that were given, which the entries have that are not applied (shared.find).
// Units that look up more than that wait for the entries (canOverlap), and so does a new window of
// recent ids.

// spareStarts is how many Starts and their batches are kept for others.
const spareStarts = 4

// started is a Start between its halves.
type started struct {
	s     *Store
	batch *pdb.Batch
	heads []newHead
	entry entry // of the journal, where the store shares one
}

// newHead is what a topic's head is to become.
type newHead struct {
	topic  *topic
	offset uint64
	time   int64
}

// Start implements store.Pipeline.
func (s *Store) Start(ctx context.Context, units []*store.Unit) (wait func() error, err error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer func() {
		if wait == nil { // else wait leaves
			s.leave()
		}
	}()
	s.committing.Lock()
	defer s.committing.Unlock()
	p, err := s.start(units)
	if err != nil {
		s.faults.fail(err)
		err = fmt.Errorf("store/pebble: commit: %w", s.faults.err())
	}
	switch {
	case err != nil:
		return nil, err
	case p == nil:
		// All is done; but what it found to be there, as the first of a duplicate, may
		// be of a Start before, whose fsync has failed meanwhile.
		return func() error { defer s.leave(); return s.broken() }, nil
	}
	return p.wait, nil
}

// broken returns what a Commit says once the store is.
func (s *Store) broken() error {
	if err := s.faults.err(); err != nil {
		return fmt.Errorf("store/pebble: commit: %w", err)
	}
	return nil
}

// start returns nil where all is done.
func (s *Store) start(units []*store.Unit) (*started, error) {
	if err := s.faults.err(); err != nil {
		return nil, err
	}
	if s.shared != nil && !s.canOverlap(units) {
		if err := s.settle(); err != nil {
			return nil, err
		}
	}
	c := &s.commit
	if err := c.build(units); err != nil {
		return nil, err
	}
	if !c.appendsOnly() {
		return nil, c.finish(true)
	}
	p := s.takeSpare()
	p.batch, c.batch = c.batch, p.batch
	for _, t := range c.touched {
		p.heads = append(p.heads, newHead{t, t.last, t.lastTime})
	}
	if err := s.applyStarted(p); err != nil {
		return nil, err
	}
	return p, nil
}

// appendsOnly reports whether the batch has events of topics that are there, and
// nothing else.
func (c *commit) appendsOnly() bool {
	return !c.batch.Empty() && len(c.created) == 0 && len(c.groups) == 0 && len(c.parts) == 0 && len(c.changed) == 0 && len(c.indexes) == 0 &&
		!c.delaysChanged && !c.patternsChanged && !c.settingsChanged && !c.notesChanged && !c.producersChanged
}

// wait is the second half.
func (p *started) wait() error {
	s := p.s
	defer s.leave()
	if s.shared != nil {
		_ = s.shared.complete(s, &p.entry) // the store is broken then
	} else if err := p.batch.SyncWait(); err != nil {
		s.faults.fail(err)
	}
	if err := s.broken(); err != nil {
		return err
	}
	for _, h := range p.heads {
		h.topic.raise(h.offset, h.time)
	}
	clear(p.heads)
	p.heads = p.heads[:0]
	p.batch.Reset()
	select {
	case s.spare <- p:
		return nil
	default:
		return p.batch.Close()
	}
}

func (s *Store) takeSpare() *started {
	select {
	case p := <-s.spare:
		return p
	default:
		return &started{s: s, batch: s.newBatch()}
	}
}

func (s *Store) newBatch() *pdb.Batch {
	return s.db.NewBatch(pdb.WithInitialSizeBytes(batchStartBytes), pdb.WithMaxRetainedSizeBytes(batchRetainBytes))
}

// closeBatches lets go of all batches; nothing is being committed.
func (s *Store) closeBatches() error {
	close(s.spare)
	err := s.commit.batch.Close()
	for p := range s.spare {
		err = errors.Join(err, p.batch.Close())
	}
	return err
}
