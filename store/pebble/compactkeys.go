package pebble

import (
	"bytes"

	pdb "github.com/cockroachdb/pebble/v2"
)

// # The key index in a pass as a whole
//
// The entries of a key are next to each other with the newest first. So one scan says of each
// which is the newest up to the mark, and that the older ones go. A stretch of the index that
// is mostly dead goes by one range deletion, and what is kept of it is written again in the
// same batch; of another one the dead go entry by entry. Few large range deletions, because
// every iterator over the index meets each of them.
//
// Commits add entries to the index meanwhile, and the range deletion would take them. So from
// before the scan on they are recorded, and written again too: the batch is applied under
// the lock of the commits, so none is missing.
//
// Reads show what is dead until the next stage has come to it. Who looks for all events of a key reads the log
// meanwhile (thinned).
//
// After this stage an event up to the mark that has a key, and is not hidden, is dead where it
// has no entry. Entries of events that are hidden stay: the sweep takes them.

// thinned returns up to which offset the key index lacks events that reads still show: those that a pass as a
// whole has taken out of it, and not yet out of the log. 0 where there are none.
func (s *Store) thinned(t *topic) (upTo uint64, err error) {
	pass, _, err := s.loadCompaction(t.id)
	if err != nil || pass.stage != stageKeys && pass.stage != stageLog {
		return 0, err
	}
	return pass.target.compacted, nil
}

// recorder has the entries that commits add to a part of the key index. Store.committing
// guards it.
type recorder struct {
	on   bool
	from []byte
	to   []byte
	keys [][]byte
}

// record begins to record what is added between two bounds.
func (s *Store) record(bounds pdb.IterOptions) error {
	s.committing.Lock()
	defer s.committing.Unlock()
	s.recorder = recorder{on: true, from: bounds.LowerBound, to: bounds.UpperBound}
	return s.settle() // what was built before
}

func (s *Store) stopRecording() {
	s.committing.Lock()
	defer s.committing.Unlock()
	s.recorder = recorder{}
}

func (r *recorder) add(key []byte) {
	if r.on && bytes.Compare(key, r.from) >= 0 && bytes.Compare(key, r.to) < 0 {
		r.keys = append(r.keys, bytes.Clone(key))
	}
}

// stretch is a part of the keys that goes by a range deletion, except for what is written again.
type stretch struct {
	from, to []byte // no stretch where to is nil
	keep     []kept
	// Of a stretch of the log: its offsets, and how much is kept of them.
	segment segment
}

type kept struct{ key, value []byte }

// write puts it into a batch.
func (s *stretch) write(batch *pdb.Batch) {
	_ = batch.DeleteRange(s.from, s.to, nil) // a batch takes what fits in memory
	for _, k := range s.keep {
		_ = batch.Set(k.key, k.value, nil)
	}
}

// writeRecorded writes again what commits have added to it.
func (s *stretch) writeRecorded(batch *pdb.Batch, r *recorder) {
	for _, key := range r.keys {
		if bytes.Compare(key, s.from) >= 0 && bytes.Compare(key, s.to) < 0 {
			_ = batch.Set(key, nil, nil)
		}
	}
}

// compactKeys is one step of it.
func (p *compactionStep) compactKeys() error {
	bounds := numberBounds(tagKey, p.topic.id)
	if p.at == nil {
		p.at = bounds.LowerBound
	}
	k := keyStretch{compactionStep: p}
	valid := p.keys.SeekGE(p.at)
	if valid {
		if err := k.resume(bytes.Clone(p.keys.Key())); err != nil {
			return err
		}
		valid = p.keys.SeekGE(p.at)
	}
	for read := 0; valid && read < p.s.compacting.entries && k.hasRoom(); read++ {
		k.visit(p.keys.Key())
		valid = p.keys.Next()
	}
	if err := p.keys.Error(); err != nil {
		return err
	}
	end := bounds.UpperBound
	if valid {
		end = bytes.Clone(p.keys.Key())
	}
	if p.at = k.finish(end); bytes.Equal(p.at, bounds.UpperBound) {
		p.stage, p.next, p.piece, p.at = stageLog, 1, 1, nil
	}
	return nil
}

// keyStretch is a stretch of the key index that is being read.
type keyStretch struct {
	*compactionStep
	prefix []byte // of the entries of the key that is being read
	seen   bool   // the newest one of them up to the mark was read

	dead  int
	first [][]byte // those of the dead that a step deletes one by one
	rest  []byte   // the next one, where there are more
	kept  int
	keep  []kept // those of the kept that a step writes again
}

// resume goes on at an entry, of whose key a step before may have read the newest one.
func (k *keyStretch) resume(at []byte) error {
	k.prefix = at[:len(at)-offsetBytes]
	newest, err := k.newestOf(k.prefix, k.target.compacted)
	k.seen = newest > keyOffset(at)
	return err
}

// hasRoom reports whether one more entry may be read: the dead can still go one by one, or the
// stretch be written again.
func (k *keyStretch) hasRoom() bool {
	return k.dead < k.s.compacting.points || k.kept < k.s.compacting.kept && k.isMostlyDead()
}

func (k *keyStretch) isMostlyDead() bool { return k.dead >= mostlyDead*k.kept }

func (k *keyStretch) visit(key []byte) {
	if prefix := key[:len(key)-offsetBytes]; !bytes.Equal(prefix, k.prefix) {
		k.prefix, k.seen = append(k.prefix[:0], prefix...), false
	}
	isDead := false
	if offset := keyOffset(key); offset <= k.target.compacted && !k.removed.hides(offset) {
		isDead, k.seen = k.seen, true
	}
	switch {
	case !isDead:
		if k.kept++; k.kept <= k.s.compacting.kept {
			k.keep = append(k.keep, kept{key: bytes.Clone(key)})
		}
		return
	case k.dead < k.s.compacting.points:
		k.first = append(k.first, bytes.Clone(key))
	case k.rest == nil:
		k.rest = bytes.Clone(key)
	}
	k.dead++
}

// finish writes what becomes of what was read, up to a key, and returns where to go on.
func (k *keyStretch) finish(end []byte) []byte {
	if k.dead >= k.s.compacting.rewrite && k.isMostlyDead() && k.kept == len(k.keep) {
		k.rewrite = stretch{from: k.at, to: end, keep: k.keep}
		k.ranged += uint64(k.dead)
		return end
	}
	for _, key := range k.first {
		_ = k.batch.Delete(key, nil) // a batch takes what fits in memory
	}
	if k.rest != nil {
		return k.rest
	}
	return end
}
