package memory

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"eventhub/store"
)

// producer remembers the units of its newest numbers, whole.
type producer struct {
	epoch, last  uint64
	born         uint64
	opened, used int64
	results      map[uint64]*result
}

// result is what became of a unit: its error, its refusal, or its parts.
type result struct {
	err     error
	refusal []byte
	appends []store.Append
	delays  []store.Delay
}

func checkProducer(ch *store.ProducerChange) {
	if n := len(ch.Name); n == 0 || n > store.MaxProducerName {
		misuse("producer %.48q: the name has %d bytes; 1 to %d are allowed", ch.Name, n, store.MaxProducerName)
	}
}

func checkSequence(u *store.Unit) {
	q := u.Sequence
	if n := len(q.Refusal); q.Refusal != nil && (n == 0 || n > store.MaxRefusal) {
		misuse("number %d of producer %q: the refusal has %d bytes; 1 to %d are allowed", q.Number, q.Producer, n, store.MaxRefusal)
	}
	if len(u.Groups)+len(u.Cancels)+len(u.Patterns)+len(u.Settings)+len(u.Notes)+len(u.Topics) > 0 || u.Producer != nil {
		misuse("number %d of producer %q: the unit has other parts than appends and delays", q.Number, q.Producer)
	}
	if len(u.Appends)+len(u.Delays) == 0 && q.Refusal == nil {
		misuse("number %d of producer %q: the unit has no parts", q.Number, q.Producer)
	}
}

// changeProducer says why the change is refused, or makes it.
func (s *Store) changeProducer(ch *store.ProducerChange) error {
	p := s.producers[ch.Name]
	if ch.Epoch != 0 {
		if p == nil || p.epoch < ch.Epoch {
			return fmt.Errorf("producer %q: %w", ch.Name, store.ErrUnknownProducer)
		}
		if p.epoch > ch.Epoch {
			return fmt.Errorf("producer %q: %w", ch.Name, store.ErrFenced)
		}
	}
	if ch.Delete {
		delete(s.producers, ch.Name)
		return nil
	}
	if p == nil {
		p = &producer{born: s.producerEpoch + 1, results: make(map[uint64]*result)}
		s.producers[strings.Clone(ch.Name)] = p
	}
	s.producerEpoch++
	p.epoch, p.opened = s.producerEpoch, ch.At
	ch.NewEpoch, ch.Born, ch.Last = p.epoch, p.born, p.last
	return nil
}

// sequence reports whether there is nothing more to do for a unit: it has its results, or is refused.
func (s *Store) sequence(u *store.Unit) (done bool) {
	q := u.Sequence
	p := s.producers[q.Producer]
	switch {
	case p == nil:
		u.Err = fmt.Errorf("producer %q: %w", q.Producer, store.ErrUnknownProducer)
		return true
	case p.epoch != q.Epoch:
		u.Err = fmt.Errorf("producer %q: %w", q.Producer, store.ErrFenced)
		return true
	case q.Number == p.last+1:
		return false
	}
	r := p.results[q.Number]
	if r == nil {
		u.Err = &store.SequenceError{Number: q.Number, Next: p.last + 1}
		return true
	}
	q.Repeated = true
	isRefusal := q.Refusal != nil
	if !r.give(u) {
		if isRefusal && r.err == nil {
			q.First = r.parts()
			return true
		}
		u.Err = &store.SequenceError{Number: q.Number, Next: p.last + 1, Other: true}
	}
	return true
}

// give gives a unit the results, and reports whether they can be its.
func (r *result) give(u *store.Unit) bool {
	u.Sequence.Refusal = slices.Clone(r.refusal)
	var conflict *store.ConflictError
	switch {
	case errors.As(r.err, &conflict):
		if conflict.Append >= len(u.Appends) {
			return false
		}
		u.Err = &store.ConflictError{Append: conflict.Append, Expect: u.Appends[conflict.Append].Expect, Present: conflict.Present}
		return true
	case r.err != nil:
		u.Err = r.err
		return true
	case len(r.appends) != len(u.Appends) || len(r.delays) != len(u.Delays):
		return false
	}
	for i := range r.appends {
		if r.appends[i].NewID != u.Appends[i].NewID {
			return false
		}
	}
	for i := range r.appends {
		was, a := &r.appends[i], &u.Appends[i]
		a.Offset, a.CommitTime, a.Duplicate = was.Offset, was.CommitTime, true
		if a.NewID {
			a.ID = was.ID
		}
	}
	for i := range r.delays {
		was, d := &r.delays[i], &u.Delays[i]
		d.ID, d.At, d.Seq, d.Offset, d.Duplicate = was.ID, was.At, was.Seq, was.Offset, true
	}
	return true
}

// parts returns what is known of the parts of a unit that was applied.
func (r *result) parts() *store.FirstParts {
	p := &store.FirstParts{}
	for _, a := range r.appends {
		first := store.Append{NewID: a.NewID, Offset: a.Offset, CommitTime: a.CommitTime, Duplicate: true}
		if a.NewID {
			first.ID = a.ID
		}
		p.Appends = append(p.Appends, first)
	}
	for _, d := range r.delays {
		p.Delays = append(p.Delays, store.Delay{ID: d.ID, At: d.At, Seq: d.Seq, Offset: d.Offset, Duplicate: true})
	}
	return p
}

// used notes what became of a unit with the next number of its producer.
func (s *Store) used(u *store.Unit, now int64) {
	q := u.Sequence
	p := s.producers[q.Producer]
	p.last++
	p.used = now
	r := &result{err: u.Err, refusal: slices.Clone(q.Refusal)}
	if r.err == nil {
		r.appends, r.delays = slices.Clone(u.Appends), slices.Clone(u.Delays)
		for i := range r.appends {
			r.appends[i].Record = nil
		}
		for i := range r.delays {
			r.delays[i].Record = nil
		}
	}
	p.results[q.Number] = r
	delete(p.results, q.Number-store.SequencesKept) // wraps where there is none
}

// ListProducers implements store.Producers.
func (s *Store) ListProducers(ctx context.Context) ([]store.ProducerInfo, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.mu.RUnlock()
	var list []store.ProducerInfo
	for _, name := range slices.Sorted(maps.Keys(s.producers)) {
		p := s.producers[name]
		list = append(list, store.ProducerInfo{Name: name, Epoch: p.epoch, Last: p.last, Used: max(p.opened, p.used)})
	}
	return list, nil
}
