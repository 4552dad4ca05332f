package pebble

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"eventhub/store"
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
	// Append appends an entry with the time of its commit, after those before, which may be under
	// way. wait returns its position once the journal has it durably. An error of wait is final: all
	// that was appended after it fails, and the store appends nothing more. Whether
	// the journal has the entry is unknown then, except that it never will with an error that has
	// journal.ErrFenced in its chain. data is not to be used after wait.
	Append(data []byte, ms int64) (wait func() (journal.Position, error))
	// Position returns that of the last entry that is known to be in the journal, also of one that has no
	// batch and that another has appended.
	Position() journal.Position
}

// shared is what a store has that shares a journal. Entries are applied in the order in which they
// were appended.
type shared struct {
	mu     sync.Mutex
	writer Writer   // nil while the store follows
	ms     int64    // of the last entry
	flying []*entry // appended and not applied yet, the oldest first

	// applying is held by whoever applies, which may take as long as the journal does. mu comes after it.
	applying turn
	last     atomic.Pointer[journal.Position] // of what was applied; moves with applying held
}

// entry is one that was appended.
type entry struct {
	batch *pdb.Batch
	wait  func() (journal.Position, error)
	// ids are those that were given in a Start: until it is applied they are not in the index.
	ids       startedIDs
	isApplied bool // guarded by shared.applying
}

// startedIDs say where the events with the ids of a Start are.
type startedIDs struct {
	index map[givenID]int // into first
	first []firstEvent
}

// at returns the position of what was applied.
func (j *shared) at() (at journal.Position) {
	if last := j.last.Load(); last != nil {
		at = *last
	}
	return at
}

// write makes a batch an entry, and applies it when the journal has it.
func (j *shared) write(s *Store, batch *pdb.Batch, ms int64) error {
	if batch.Empty() {
		return s.faults.err()
	}
	e := &entry{batch: batch}
	if err := j.append(s, e, ms); err != nil {
		return err
	}
	return j.complete(s, e)
}

// append appends an entry.
func (j *shared) append(s *Store, e *entry, ms int64) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := s.faults.err(); err != nil {
		return err
	}
	if ms > j.ms {
		j.ms = ms
		_ = e.batch.Set(metaClock, binary.BigEndian.AppendUint64(nil, uint64(ms)), nil) // a batch takes what fits in memory
	}
	e.wait = j.writer.Append(e.batch.Repr(), j.ms)
	j.flying = append(j.flying, e)
	return nil
}

// complete waits for an entry and those before it, and applies them. An error breaks the store;
// those after it fail as well.
func (j *shared) complete(s *Store, e *entry) error {
	j.applying.Lock()
	defer j.applying.Unlock()
	for !e.isApplied {
		if err := s.faults.err(); err != nil {
			return err
		}
		j.mu.Lock()
		oldest := j.flying[0]
		j.mu.Unlock()
		at, err := oldest.wait()
		if err != nil {
			err = overtaken(fmt.Errorf("append to the journal: %w", err))
		} else {
			err = j.apply(s, oldest.batch, at)
		}
		if err != nil {
			s.faults.fail(err)
			return s.faults.err()
		}
		oldest.isApplied = true
		j.mu.Lock()
		j.flying = slices.Delete(j.flying, 0, 1)
		j.mu.Unlock()
	}
	return nil
}

// succeeded is why a store that another hub has succeeded does nothing any more.
type succeeded struct{ error }

func (e succeeded) Unwrap() error { return e.error }

// Is reports whether it is store.ErrSucceeded.
func (succeeded) Is(target error) bool { return target == store.ErrSucceeded }

// overtaken marks an error of the journal which says that another hub leads it.
func overtaken(err error) error {
	if errors.Is(err, journal.ErrFenced) || errors.Is(err, journal.ErrOvertaken) {
		return succeeded{err}
	}
	return err
}

// newest returns the entry that was appended last; nil where all are applied.
func (j *shared) newest() *entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.flying) == 0 {
		return nil
	}
	return j.flying[len(j.flying)-1]
}

// find returns where the event with a given id is that a Start has, which is not applied yet; nil for
// nowhere. It is asked before the index: what is applied meanwhile is there.
func (j *shared) find(id givenID) *firstEvent {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range slices.Backward(j.flying) {
		if at, ok := e.ids.index[id]; ok && e.ids.first[at].offset != 0 {
			return &e.ids.first[at]
		}
	}
	return nil
}

// settle has all that was started in the database, for what is to read it there. Store.committing is
// held, so nothing is started meanwhile.
func (s *Store) settle() error {
	if s.shared == nil {
		return nil
	}
	if e := s.shared.newest(); e != nil {
		return s.shared.complete(s, e)
	}
	return nil
}

// canOverlap reports whether units can be built while earlier ones are not in the database: they
// append, expect nothing, and no producer's number comes again.
func (s *Store) canOverlap(units []*store.Unit) bool {
	for _, u := range units {
		if u.Producer != nil || len(u.Groups)+len(u.Cancels)+len(u.Delays)+len(u.Patterns)+len(u.Settings)+len(u.Notes)+len(u.Topics) > 0 {
			return false
		}
		if q := u.Sequence; q != nil {
			if p := s.producers.byName[q.Producer]; p != nil && q.Number <= p.last {
				return false
			}
		}
		if slices.ContainsFunc(u.Appends, func(a store.Append) bool { return !a.Expect.IsZero() }) {
			return false
		}
	}
	return true
}

// apply applies an entry together with its position. applying is held.
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

// pass notes the position of entries that have no batch and come after all that was appended: the store has what the
// journal has up to there. Without that a journal to which nothing else comes could never be trimmed. Where
// something waits for the journal it does nothing.
func (j *shared) pass(s *Store) error {
	if !j.applying.TryLock() {
		return nil
	}
	defer j.applying.Unlock()
	j.mu.Lock()
	var at journal.Position
	if j.writer != nil && len(j.flying) == 0 {
		at = j.writer.Position()
	}
	j.mu.Unlock()
	if at.Seq <= j.at().Seq {
		return nil
	}
	batch := s.db.NewBatch()
	defer batch.Close()
	return j.apply(s, batch, at)
}

// sync makes durable what was applied, and returns the position that is.
func (j *shared) sync(s *Store) (journal.Position, error) {
	err := j.pass(s)
	at := j.at()
	if err == nil {
		err = s.syncAll()
	}
	if err != nil {
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
