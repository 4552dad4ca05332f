package pebble

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"

	"eventhub/store"
	"eventhub/store/journal"

	pdb "github.com/cockroachdb/pebble/v2"
)

// # The beginning of a journal
//
// The first batch of a journal's first leader has what every store begins with: the secret of the
// ids, the first era, and the id of the founder. A replica without any entry takes that batch alone, so
// one that does not get the journal from its beginning notices.
//
// A hub that has a store already makes it a replica by Replicate, which gives it an id. That store
// leads first, and its first batch has that id for the founder: what the store had before is not in
// the journal, so no other member can begin with that batch. Members are made of a checkpoint then, whose
// position says where they go on.

var (
	// ErrApplied: the entry is not after the last one that the replica has.
	ErrApplied = errors.New("store/pebble: the entry was applied before")
	// ErrFounder: the journal does not begin with what this replica begins with. It is made of a
	// checkpoint of a member.
	ErrFounder = errors.New("store/pebble: the journal began with another store")
	// ErrLeads: the replica has become a store.
	ErrLeads = errors.New("store/pebble: the replica leads")
)

const (
	founderBytes = 16
	// A founder with this first byte had nothing before.
	foundedEmpty = 0
	foundedWhole = 1
)

// Replica is a store that follows a journal: it has what the entries up to its position say. It
// loads no tables, and answers no reads. One goroutine applies; all methods may be called at once.
type Replica struct {
	s *Store

	mu        sync.Mutex // of the state of the replica; shared.applying comes after it
	isFounded bool       // it has the first batch of the journal
	own       []byte     // the id under which it is to found a journal; nil where it had nothing before
	ended     error      // why nothing can be done any more
}

// OpenReplica opens the replica in o.Dir, and creates one without any entry where there is nothing. It
// fails as Open does, and with ErrAlone for a store that shares no journal.
func OpenReplica(o Options) (*Replica, error) {
	s, err := openDir(o, true)
	if err != nil {
		return nil, err
	}
	s.shared = new(shared)
	r := &Replica{s: s}
	err = s.shared.load(s)
	if err == nil {
		r.isFounded, err = s.has(metaFounder)
	}
	if err == nil {
		r.own, err = s.get(metaUnfounded)
	}
	if err = errors.Join(err, s.faults.err()); err != nil {
		return nil, s.giveUp(err)
	}
	return r, nil
}

// Position returns that of the last entry which was applied.
func (r *Replica) Position() journal.Position { return r.s.shared.at() }

// Apply applies the batch of a leader, or none where repr is empty, and notes its position. It does
// not sync. An entry that is not after the one before is refused with ErrApplied, and one that
// is no batch with pdb.ErrInvalidBatch; any other error breaks the replica.
func (r *Replica) Apply(repr []byte, at journal.Position) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.usable()
	if err == nil {
		err = r.apply(repr, at)
	}
	if err != nil {
		return fmt.Errorf("store/pebble: apply the entry at place %d of the journal: %w", at.Seq, err)
	}
	return nil
}

func (r *Replica) apply(repr []byte, at journal.Position) error {
	s, j := r.s, r.s.shared
	j.applying.Lock()
	defer j.applying.Unlock()
	switch last := j.at(); {
	case at.Seq <= last.Seq:
		return fmt.Errorf("%w: the replica is at place %d", ErrApplied, last.Seq)
	case at.Epoch < last.Epoch:
		return fmt.Errorf("%w: its epoch is %d, and the one before has %d", journal.ErrDiverged, at.Epoch, last.Epoch)
	}
	batch := s.commit.batch // which has no other use before the replica leads, and keeps what it has grown to
	defer batch.Reset()
	founds := false
	if len(repr) > 0 {
		var entry pdb.Batch // of no database: it is not looked through
		if err := entry.SetRepr(repr); err != nil {
			return err
		}
		if err := batch.Apply(&entry, nil); err != nil {
			return err
		}
		if founds = !r.isFounded; founds {
			if err := r.checkFounder(batch); err != nil {
				return err
			}
		}
	}
	if err := j.apply(s, batch, at); err != nil {
		s.faults.fail(err)
		return s.faults.err()
	}
	r.isFounded = r.isFounded || founds
	return nil
}

// checkFounder refuses what is not the first batch of the journal that the replica may follow.
func (r *Replica) checkFounder(batch *pdb.Batch) error {
	for entries := batch.Reader(); ; {
		kind, key, value, ok, err := entries.Next()
		if err != nil {
			return err
		}
		if !ok {
			return fmt.Errorf("%w: the entry is not its first one, and this replica has none", ErrFounder)
		}
		if kind != pdb.InternalKeyKindSet || !bytes.Equal(key, metaFounder) {
			continue
		}
		isOwn := bytes.Equal(value, r.own)
		if !isOwn && (r.own != nil || len(value) == 0 || value[0] != foundedEmpty) {
			return fmt.Errorf("%w: its founder is %x", ErrFounder, value)
		}
		return nil
	}
}

// usable returns why nothing can be done.
func (r *Replica) usable() error {
	if r.ended != nil {
		return r.ended
	}
	return r.s.faults.err()
}

// Sync makes durable what was applied, and returns the position up to which that is. Entries are
// applied meanwhile.
func (r *Replica) Sync() (journal.Position, error) {
	r.mu.Lock()
	err := r.usable()
	r.mu.Unlock()
	if err != nil {
		return journal.Position{}, fmt.Errorf("store/pebble: sync the replica: %w", err)
	}
	return r.s.SyncPosition(context.Background())
}

// Checkpoint is that of store.Maintenance. The copy is a replica, which goes on at its position.
func (r *Replica) Checkpoint(ctx context.Context, dir string) error { return r.s.Checkpoint(ctx, dir) }

// Size and Space are those of store.Maintenance.
func (r *Replica) Size() (uint64, error) { return r.s.Size() }

// Space is that of store.Maintenance.
func (r *Replica) Space() (store.Space, error) { return r.s.Space() }

// Close closes the replica. One that leads is closed as a store.
func (r *Replica) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended != nil {
		return nil
	}
	r.ended = store.ErrClosed
	return r.s.Close()
}

// Lead makes the replica a store that writes through w: each batch is an entry that is appended, and
// applied when the journal has it. The replica has to have all entries of the journal, and w has to be
// the only one that appends; the entry that says so, and those that are no batches, need not be
// applied. From here on the replica is of no use, also where Lead fails.
//
// The store's methods wait for w; Close waits for them. An error of w breaks the store, as a failed
// fsync does: Options.Fatal gets it, with journal.ErrFenced in the chain where it was that. The store
// may then be closed, and the directory opened as a replica again. The commit times are never below that of
// the last entry, whatever the clock says.
func (r *Replica) Lead(w Writer) (*Store, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.usable(); err != nil {
		return nil, fmt.Errorf("store/pebble: lead: %w", err)
	}
	r.ended = ErrLeads
	s := r.s
	s.shared.writer = w
	first := s.db.NewBatch()
	defer first.Close()
	err := s.loadClock()
	if err == nil {
		err = s.loadAll(first)
	}
	if err == nil {
		s.commit.now = max(s.now(), s.clock)
		r.found(first)
		err = s.apply(first, true)
	}
	if err = errors.Join(err, s.faults.err()); err != nil {
		return nil, s.giveUp(err)
	}
	return s, nil
}

// IsFounded reports whether the replica has the first batch of its journal, or comes of a copy that has it.
func (r *Replica) IsFounded() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.isFounded
}

// Founds reports whether the replica has a store that is in no journal yet, and so is to found one.
func (r *Replica) Founds() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.own != nil && !r.isFounded
}

// View makes the replica a store that is only read: a write of it fails, and breaks it. From here on the
// replica is of no use.
func (r *Replica) View() (*Store, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.usable(); err != nil {
		return nil, fmt.Errorf("store/pebble: view: %w", err)
	}
	r.ended = ErrLeads
	s := r.s
	s.shared.writer = noWriter{}
	first := s.db.NewBatch() // what a leader would write first
	defer first.Close()
	err := s.loadClock()
	if err == nil {
		err = s.loadAll(first)
	}
	if err = errors.Join(err, s.faults.err()); err != nil {
		return nil, s.giveUp(err)
	}
	return s, nil
}

// noWriter is that of a store that is only read.
type noWriter struct{}

func (noWriter) Position() journal.Position { return journal.Position{} }

func (noWriter) Append([]byte, int64) func() (journal.Position, error) {
	return func() (journal.Position, error) {
		return journal.Position{}, fmt.Errorf("the store is open to be read: %w", journal.ErrClosed)
	}
}

// found adds to the first batch of a journal whose it is.
func (r *Replica) found(first *pdb.Batch) {
	if r.isFounded {
		return
	}
	founder := r.own
	if founder == nil {
		founder = newFounder(foundedEmpty)
	}
	_ = first.Set(metaFounder, founder, nil) // a batch takes what fits in memory
	_ = first.Delete(metaUnfounded, nil)
}

func newFounder(kind byte) []byte {
	id := make([]byte, founderBytes)
	rand.Read(id) // never fails: crypto/rand ends the program instead
	id[0] = kind
	return id
}

// Position returns that of the last entry in a store that leads; the zero value in one that shares no
// journal. Entries that are no batches count when the position is synced next.
func (s *Store) Position() journal.Position {
	if s.shared == nil {
		return journal.Position{}
	}
	return s.shared.at()
}

// SyncPosition is Replica.Sync in a store that leads.
func (s *Store) SyncPosition(ctx context.Context) (journal.Position, error) {
	if err := s.enter(ctx); err != nil {
		return journal.Position{}, err
	}
	defer s.leave()
	if s.shared == nil {
		return journal.Position{}, ErrAlone
	}
	at, err := s.shared.sync(s)
	if err != nil {
		return at, fmt.Errorf("store/pebble: sync the replica: %w", err)
	}
	return at, nil
}

// Replicate makes the store in o.Dir, which shares no journal, a replica that is to found one: it is
// at no position, and applies only what it has written itself. The file FORMAT comes last.
func Replicate(o Options) error {
	return convert(o, false, func(batch *pdb.Batch) {
		_ = batch.Delete(metaPosition, nil) // a batch takes what fits in memory
		_ = batch.Delete(metaFounder, nil)
		_ = batch.Delete(metaClock, nil)
		_ = batch.Set(metaUnfounded, newFounder(foundedWhole), nil)
	})
}

// Detach makes the replica in o.Dir a store that shares no journal. It has what was applied. Ids of
// events that it makes may be those of other members (see ids.go).
func Detach(o Options) error {
	return convert(o, true, func(batch *pdb.Batch) {
		for _, key := range [][]byte{metaPosition, metaFounder, metaClock, metaUnfounded} {
			_ = batch.Delete(key, nil) // a batch takes what fits in memory
		}
	})
}

// convert changes what a store is. What Detach removes goes after FORMAT says so, and what
// Replicate writes comes before: what FORMAT says is true at any time.
func convert(o Options, replicated bool, change func(*pdb.Batch)) (err error) {
	s, err := openDir(o, replicated)
	if err != nil {
		return err
	}
	defer closeInto(s, &err)
	batch := s.db.NewBatch()
	defer batch.Close()
	change(batch)
	rows := func() error {
		if err := s.applyEntry(batch); err != nil {
			return err
		}
		return s.syncAll()
	}
	format := func() error { return putFormat(s.options.FS, s.options.Dir, !replicated) }
	steps := []func() error{rows, format}
	if replicated {
		slices.Reverse(steps)
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("store/pebble: convert %s: %w", o.Dir, err)
		}
	}
	return nil
}
