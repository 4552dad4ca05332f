package pebble

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"

	"eventhub/store/journal"

	pdb "github.com/cockroachdb/pebble/v2"
)

// # A store that shares a journal
//
// Several members have the same store, and one of them leads. Each batch of the leader is an entry
// of the journal first; it is applied once the journal has answered, and the followers apply the
// same bytes (Replica). The batch has the entry's position with it, so whatever a crash leaves of a
// directory is what the journal says up to some position, and following completes it. So nothing is
// synced here, and nothing undone.
//
// Every batch, what the sweep, the compaction and the building of an index write too: all members
// have the same keys and values at the same position. If each member did this work for itself,
// then
//
//   - an id that one has forgotten may be given again there, and another one, whose sweep comes
//     later, would delete the entry of the new event;
//   - what one has compacted away, another one would still have when the event that replaced it is
//     erased, and show it again;
//   - a pass of the compaction that one has left half done would go on over an index that was
//     dropped and built again by others;
//   - a member that follows for a year would have to do it without the tables that the work needs,
//     or keep all that was ever removed.
//
// Local is only what changes no key: flushes, the compactions of Pebble, its files.
//
//	'm' "position" → place, epoch, chain (8 each)   of the last entry that is in here; local
//	'm' "clock"    → epoch milliseconds (8)         the time of the last commit
//	'm' "founder"  → id (16)                        of the store that the journal began with
//	'm' "unfound"  → id (16)                        that a store has which is to begin one; local

var (
	metaPosition  = []byte{tagMeta, 'p', 'o', 's', 'i', 't', 'i', 'o', 'n'}
	metaClock     = []byte{tagMeta, 'c', 'l', 'o', 'c', 'k'}
	metaFounder   = []byte{tagMeta, 'f', 'o', 'u', 'n', 'd', 'e', 'r'}
	metaUnfounded = []byte{tagMeta, 'u', 'n', 'f', 'o', 'u', 'n', 'd'}
)

const positionBytes = 3 * 8

// Writer appends entries to the journal that a store shares.
type Writer interface {
	// Append appends an entry with the time of its commit. wait returns its position once the
	// journal has it durably. An error of wait is final: the store appends nothing after it. Whether
	// the journal has the entry is unknown then, except that it never will with an error that has
	// journal.ErrFenced in its chain. data is not to be used after wait.
	Append(data []byte, ms int64) (wait func() (journal.Position, error))
}

// shared is what a store has that shares a journal. mu has one entry after the other: they are
// applied in the order in which they were appended.
type shared struct {
	mu     sync.Mutex
	writer Writer // nil while the store follows
	ms     int64  // of the last entry

	// last is the position of what was applied. It moves with mu held, which may take as long as the
	// journal does, and is read without.
	last atomic.Pointer[journal.Position]
}

// at returns the position of what was applied.
func (j *shared) at() (at journal.Position) {
	if last := j.last.Load(); last != nil {
		at = *last
	}
	return at
}

// write makes a batch an entry, and applies it when the journal has it. An error breaks the store
// before anything else can be appended: what comes next depends on whether the entry is there.
func (j *shared) write(s *Store, batch *pdb.Batch, ms int64) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	err := s.faults.err()
	if err != nil || batch.Empty() {
		return err
	}
	if ms > j.ms {
		j.ms = ms
		_ = batch.Set(metaClock, binary.BigEndian.AppendUint64(nil, uint64(ms)), nil) // a batch takes what fits in memory
	}
	at, err := j.writer.Append(batch.Repr(), j.ms)()
	if err != nil {
		err = fmt.Errorf("append to the journal: %w", err)
	} else {
		err = j.apply(s, batch, at)
	}
	if err != nil {
		s.faults.fail(err)
		return s.faults.err()
	}
	return nil
}

// apply applies an entry together with its position. mu is held.
func (j *shared) apply(s *Store, batch *pdb.Batch, at journal.Position) error {
	if last := j.at(); at.Seq <= last.Seq || at.Epoch < last.Epoch {
		return fmt.Errorf("%w: place %d of epoch %d comes after place %d of epoch %d", journal.ErrDiverged, at.Seq, at.Epoch, last.Seq, last.Epoch)
	}
	_ = batch.Set(metaPosition, appendPosition(nil, at), nil)
	if err := s.applyEntry(batch); err != nil {
		return err
	}
	j.last.Store(&at)
	return nil
}

// sync makes durable what was applied, and returns the position that is.
func (j *shared) sync(s *Store) (journal.Position, error) {
	at := j.at()
	if err := s.syncAll(); err != nil {
		s.faults.fail(err)
		return journal.Position{}, s.faults.err()
	}
	return at, nil
}

func appendPosition(dst []byte, at journal.Position) []byte {
	for _, n := range []uint64{at.Seq, at.Epoch, at.Chain} {
		dst = binary.BigEndian.AppendUint64(dst, n)
	}
	return dst
}

// load reads the position and the time of the last entry.
func (j *shared) load(s *Store) error {
	value, err := s.get(metaPosition)
	if err != nil {
		return err
	}
	if value != nil {
		if len(value) != positionBytes {
			return fmt.Errorf("the position in the journal reads %x", value)
		}
		j.last.Store(&journal.Position{Seq: binary.BigEndian.Uint64(value), Epoch: binary.BigEndian.Uint64(value[8:]), Chain: binary.BigEndian.Uint64(value[16:])})
	}
	return nil
}

// loadClock reads the time of the last commit.
func (s *Store) loadClock() error {
	value, err := s.get(metaClock)
	if value == nil || err != nil {
		return err
	}
	if len(value) != 8 {
		return fmt.Errorf("the time of the last commit reads %x", value)
	}
	s.clock = int64(binary.BigEndian.Uint64(value))
	s.shared.ms = s.clock
	return nil
}
