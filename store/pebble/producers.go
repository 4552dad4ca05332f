package pebble

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"eventhub/store"

	pdb "github.com/cockroachdb/pebble/v2"
)

// # Producers
//
//	'u' name                             → number (8), epoch (8), opened at (8)
//	'j' number (8) first (8)             → what became of consecutive numbers, see results.go
//	'm' "producers"                      → the highest epoch (8)
//
// A commit writes one row of results for each producer that it has units of, or a few where these are
// many and unlike each other (mostEntries). The rows have the
// producer's number in the store, which is the epoch in which it was made, so that no row is of
// an earlier producer of the name.
//
// What is in memory of a producer is where it is, and no results: a number comes again where an
// answer was lost, which is seldom, and its row is read then. The last number that was used
// is not in a row of its own; it is the last one of the newest row of results.
//
// Rows whose numbers are past keeping go many at a time (forgetResults).
const (
	tagProducer = 'u'
	tagResults  = 'j'

	resultsKeyBytes    = 1 + 8 + 8
	producerValueBytes = 8 + 8 + 8
	// forgetEvery is how many numbers are used before results are forgotten again.
	forgetEvery = 1 << 10
)

// metaProducers holds the highest epoch of a producer, also of one that is gone.
var metaProducers = []byte{tagMeta, 'p', 'r', 'o', 'd', 'u', 'c', 'e', 'r', 's'}

// producers are all producers. Guarded by committing.
type producers struct {
	byName map[string]*producer
	epoch  uint64 // the highest that was given

	// lastRead is the row that was read last, of readOf, with the numbers before readTo. Rows do
	// not change.
	lastRead resultsRow
	readOf   *producer
	readTo   uint64
}

// producer is where a producer is, as the units so far leave it.
type producer struct {
	number, epoch uint64
	opened, used  int64
	last          uint64 // number that was used
	forgotten     uint64 // no row of results begins below this number

	pending results // of the commit that is being built; empty between commits
}

func appendProducerKey(dst []byte, name string) []byte {
	return append(append(dst, tagProducer), name...)
}

func appendResultsKey(dst []byte, number, first uint64) []byte {
	dst = binary.BigEndian.AppendUint64(append(dst, tagResults), number)
	return binary.BigEndian.AppendUint64(dst, first)
}

func resultsFirst(key []byte) uint64 { return binary.BigEndian.Uint64(key[1+8:]) }

// changeProducer opens or removes a producer. It says why not.
func (c *commit) changeProducer(ch *store.ProducerChange) (refusal, err error) {
	all := &c.s.producers
	p := all.byName[ch.Name]
	switch {
	case ch.Epoch == 0:
	case p == nil || p.epoch < ch.Epoch:
		return fmt.Errorf("producer %q with epoch %d: %w", ch.Name, ch.Epoch, store.ErrUnknownProducer), nil
	case p.epoch > ch.Epoch:
		return fmt.Errorf("producer %q has epoch %d, and not %d: %w", ch.Name, p.epoch, ch.Epoch, store.ErrFenced), nil
	}
	c.producersChanged = true
	if ch.Delete {
		return nil, c.deleteProducer(ch.Name, p)
	}
	all.epoch++
	if p == nil {
		p = &producer{number: all.epoch, forgotten: 1}
		all.byName[strings.Clone(ch.Name)] = p
	}
	p.epoch, p.opened, p.used = all.epoch, ch.At, max(p.used, ch.At)
	ch.NewEpoch, ch.Born, ch.Last = p.epoch, p.number, p.last
	op := c.batch.SetDeferred(1+len(ch.Name), producerValueBytes)
	appendProducerKey(op.Key[:0], ch.Name)
	appendProducerValue(op.Value[:0], p)
	op = c.batch.SetDeferred(len(metaProducers), 8)
	copy(op.Key, metaProducers)
	binary.BigEndian.PutUint64(op.Value, all.epoch)
	return nil, nil
}

func appendProducerValue(dst []byte, p *producer) []byte {
	dst = binary.BigEndian.AppendUint64(dst, p.number)
	dst = binary.BigEndian.AppendUint64(dst, p.epoch)
	return binary.BigEndian.AppendUint64(dst, uint64(p.opened))
}

func decodeProducerValue(v []byte) (p *producer, err error) {
	if len(v) != producerValueBytes {
		return nil, fmt.Errorf("a producer has %d bytes; want %d", len(v), producerValueBytes)
	}
	p = &producer{
		number: binary.BigEndian.Uint64(v), epoch: binary.BigEndian.Uint64(v[8:]), opened: int64(binary.BigEndian.Uint64(v[16:])), forgotten: 1,
	}
	if p.number == 0 || p.epoch < p.number {
		return nil, fmt.Errorf("a producer has the number %d and the epoch %d", p.number, p.epoch)
	}
	return p, nil
}

// deleteProducer removes a producer, nil for none, with its results. Those of units before, in
// this commit, have no row yet.
func (c *commit) deleteProducer(name string, p *producer) error {
	if p == nil {
		return nil
	}
	delete(c.s.producers.byName, name)
	p.pending = results{}
	if err := c.batch.Delete(appendProducerKey(nil, name), nil); err != nil {
		return err
	}
	// Thousands of rows by one deletion: nobody reads this range again, and many producers may be
	// removed at once.
	return c.batch.DeleteRange(appendResultsKey(nil, p.number, 0), appendResultsKey(nil, p.number+1, 0), nil)
}

// deleteResults removes the rows of results that begin below a number.
func (c *commit) deleteResults(p *producer, below uint64) (err error) {
	iter, err := c.s.db.NewIter(&pdb.IterOptions{LowerBound: appendResultsKey(nil, p.number, p.forgotten), UpperBound: appendResultsKey(nil, p.number, below)})
	if err != nil {
		return err
	}
	defer closeInto(iter, &err)
	for valid := iter.First(); valid; valid = iter.Next() {
		if err := c.batch.Delete(iter.Key(), nil); err != nil {
			return err
		}
	}
	return iter.Error()
}

// sequence looks at the number of a unit. It reports whether there is nothing more to do: the
// unit has its results then, or is refused.
func (c *commit) sequence(u *store.Unit) (done bool, err error) {
	q := u.Sequence
	p := c.s.producers.byName[q.Producer]
	switch {
	case p == nil:
		u.Err = fmt.Errorf("producer %q: %w", q.Producer, store.ErrUnknownProducer)
	case q.Epoch != p.epoch:
		u.Err = fmt.Errorf("producer %q has epoch %d, and not %d: %w", q.Producer, p.epoch, q.Epoch, store.ErrFenced)
	case q.Number == p.last+1:
		return false, nil
	case q.Number > p.last || q.Number == 0 || q.Number+store.SequencesKept <= p.last:
		u.Err = &store.SequenceError{Number: q.Number, Next: p.last + 1}
	default:
		q.Repeated = true
		return true, c.repeat(u, p)
	}
	return true, nil
}

// repeat gives a unit the results of the first one with its number.
func (c *commit) repeat(u *store.Unit, p *producer) error {
	row, ok := p.pending.find(u.Sequence.Number)
	if !ok {
		var err error
		if row, err = c.s.producers.read(c.s, p, u.Sequence.Number); err != nil {
			return err
		}
	}
	r, err := findResult(row.row, u.Sequence.Number-row.first)
	if err != nil {
		return fmt.Errorf("results of producer %q from %d on: %w", u.Sequence.Producer, row.first, err)
	}
	if !r.fits(u) {
		if u.Sequence.Refusal != nil && r.conflict == nil {
			u.Sequence.Refusal, u.Sequence.First = nil, r.parts(&c.s.ids)
			return nil
		}
		u.Err = &store.SequenceError{Number: u.Sequence.Number, Next: p.last + 1, Other: true}
		return nil
	}
	return r.fill(u, &c.s.ids)
}

// read is readResults, with the row that was read last: numbers come again in their order.
func (all *producers) read(s *Store, p *producer, number uint64) (resultsRow, error) {
	if r := &all.lastRead; all.readOf == p && number >= r.first && number < all.readTo {
		return *r, nil
	}
	row, first, err := s.readResults(p, number)
	if err != nil {
		return resultsRow{}, err
	}
	n, _, err := countResults(row)
	if err != nil {
		return resultsRow{}, fmt.Errorf("results from %d on: %w", first, err)
	}
	all.readOf, all.readTo, all.lastRead = p, first+n, resultsRow{first, row}
	return all.lastRead, nil
}

// errNoResults is that of a number whose results are to be there.
var errNoResults = errors.New("there are none")

// readResults reads the row of results that has a number, and the first number of the row.
func (s *Store) readResults(p *producer, number uint64) (row []byte, first uint64, err error) {
	iter, err := s.db.NewIter(&pdb.IterOptions{LowerBound: appendResultsKey(nil, p.number, 0), UpperBound: appendResultsKey(nil, p.number, number+1)})
	if err != nil {
		return nil, 0, err
	}
	defer closeInto(iter, &err)
	if !iter.Last() {
		return nil, 0, errors.Join(iter.Error(), errNoResults)
	}
	value, err := iter.ValueAndErr()
	return bytes.Clone(value), resultsFirst(iter.Key()), err
}

// used notes what became of a unit with the next number of its producer: it was applied, or
// refused.
func (c *commit) used(u *store.Unit) {
	p := c.s.producers.byName[u.Sequence.Producer]
	if p.pending.isEmpty() {
		c.producing = append(c.producing, p)
	}
	p.last++
	p.used = max(p.used, c.now)
	p.pending.add(p.last, u, c.topicID)
}

// topicID returns the number of a topic that an applied unit names.
func (c *commit) topicID(name string) uint32 {
	t, _ := c.topic(name) // found by check, or created by write
	return t.id
}

// writeResults writes the rows of results of the commit.
func (c *commit) writeResults() error {
	for _, p := range c.producing {
		if p.pending.isEmpty() {
			continue // the producer was removed
		}
		for _, full := range append(p.pending.full, resultsRow{p.pending.first, p.pending.row}) {
			op := c.batch.SetDeferred(resultsKeyBytes, len(full.row))
			appendResultsKey(op.Key[:0], p.number, full.first)
			copy(op.Value, full.row)
		}
		p.pending = results{} // a producer keeps no memory for them
		if p.last < p.forgotten+store.SequencesKept+forgetEvery {
			continue
		}
		if err := c.forgetResults(p); err != nil {
			return err
		}
	}
	clear(c.producing)
	c.producing = c.producing[:0]
	return nil
}

// forgetResults removes the rows of results none of whose numbers is to be kept. The one that
// has the first number to keep stays.
func (c *commit) forgetResults(p *producer) error {
	_, first, err := c.s.readResults(p, p.last-store.SequencesKept)
	if errors.Is(err, errNoResults) {
		return nil // all of them are of this commit
	}
	if err == nil {
		err = c.deleteResults(p, first)
	}
	p.forgotten = first
	return err
}

// loadProducers reads all producers, and where each of them is.
func (s *Store) loadProducers() (err error) {
	all := &s.producers
	all.byName = make(map[string]*producer)
	value, err := s.get(metaProducers)
	if err != nil {
		return err
	}
	switch len(value) {
	case 0:
		all.epoch = rand.Uint64N(1 << 40)
	case 8:
		all.epoch = binary.BigEndian.Uint64(value)
	default:
		return fmt.Errorf("the highest epoch of producers has %d bytes; want 8", len(value))
	}
	iter, err := s.tagged(tagProducer)
	if err != nil {
		return err
	}
	defer closeInto(iter, &err)
	for valid := iter.First(); valid; valid = iter.Next() {
		value, err := iter.ValueAndErr()
		if err != nil {
			return err
		}
		p, err := decodeProducerValue(value)
		if err == nil && p.epoch > all.epoch {
			err = fmt.Errorf("it has the epoch %d, and the highest is %d", p.epoch, all.epoch)
		}
		if err == nil {
			err = s.findLast(p)
		}
		if err != nil {
			return fmt.Errorf("producer %q: %w", iter.Key()[1:], err)
		}
		all.byName[string(iter.Key()[1:])] = p
	}
	return iter.Error()
}

// findLast reads the last number that a producer has used out of its newest results.
func (s *Store) findLast(p *producer) error {
	row, first, err := s.readResults(p, 1<<64-2)
	if errors.Is(err, errNoResults) {
		p.used = p.opened
		return nil
	}
	if err != nil {
		return err
	}
	n, ms, err := countResults(row)
	if err != nil {
		return fmt.Errorf("results from %d on: %w", first, err)
	}
	p.last, p.used = first+n-1, max(p.opened, ms)
	return nil
}

// ListProducers implements store.Producers.
func (s *Store) ListProducers(ctx context.Context) ([]store.ProducerInfo, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	s.committing.Lock()
	defer s.committing.Unlock()
	var list []store.ProducerInfo
	for _, name := range slices.Sorted(maps.Keys(s.producers.byName)) {
		p := s.producers.byName[name]
		list = append(list, store.ProducerInfo{Name: name, Epoch: p.epoch, Last: p.last, Used: p.used})
	}
	return list, nil
}
