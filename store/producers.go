package store

import (
	"context"
	"errors"
	"fmt"
)

// A producer numbers its units 1, 2, 3 and so on, and the store applies the unit of each number
// once: who does not know what became of a unit commits it again with its number, and gets the
// results of the first. What the store remembers of a number is written with the unit, in one
// atomic step. Whoever opens a producer takes it over: what still comes with an epoch before
// that is refused.

// Errors of units with a Sequence or a ProducerChange.
var (
	// ErrUnknownProducer refuses a unit of a producer that is not there.
	ErrUnknownProducer = errors.New("store: unknown producer")
	// ErrRefused is the Err of a unit with a Sequence.Refusal.
	ErrRefused = errors.New("store: refused by the engine")
	// ErrFenced refuses a unit of a producer that was opened again meanwhile.
	ErrFenced = errors.New("store: the producer was opened by another")
)

// SequencesKept is of how many numbers of a producer, the newest, the results are remembered at
// least.
const SequencesKept = 4096

// The bounds, in bytes, of a producer's name and of Sequence.Refusal.
const (
	MaxProducerName = 1 << 10
	MaxRefusal      = 1 << 10
)

// Sequence makes a unit that of a number of a producer. The unit has Appends and Delays, and
// nothing else but perhaps a Refusal.
//
// The number after the last one that was used is applied like any unit, and is used then, also
// where the unit is refused. A number that was used before changes nothing: the unit gets the
// results of the first, with Duplicate in each of its parts, or its Err. No other number is taken:
// the unit is refused with a SequenceError and uses none. ErrUnknownProducer and ErrFenced
// use none either.
type Sequence struct {
	Producer string
	// Epoch is that of the ProducerChange which opened the producer. The unit is refused with
	// ErrFenced where the producer has another one.
	Epoch  uint64
	Number uint64 // from 1
	// Refusal, where not nil, says why the engine refuses the unit: 1 to MaxRefusal bytes, which
	// are kept. Of a number that is new the parts of the unit, if it has any, are not applied, and
	// Err is ErrRefused. Of one that was used before it has no effect; it is a result, that of
	// the first unit, with the same Err.
	Refusal []byte

	// Repeated is a result: the number was used before.
	Repeated bool
	// First is a result of a unit with a Refusal whose number was used, and applied, before: what the
	// first unit's parts had, where this one has not the same parts to take them. Of the appends
	// NewID, Offset, CommitTime, Duplicate and the ids that the store made are known, of the delays
	// all results.
	First *FirstParts
}

// FirstParts are parts of which the results are known, and not the topics.
type FirstParts struct {
	Appends []Append
	Delays  []Delay
}

// SequenceError refuses a unit whose number is not the next one of its producer, nor one that is
// remembered.
type SequenceError struct {
	Number uint64
	Next   uint64 // the number that the producer's next unit has
	// Other says that the number is remembered, and that the unit has other parts than the first.
	Other bool
}

func (e *SequenceError) Error() string {
	switch {
	case e.Other:
		return fmt.Sprintf("store: the number %d was used for another unit", e.Number)
	case e.Number < e.Next:
		return fmt.Sprintf("store: the number %d was used, and what became of it is forgotten; %d is next", e.Number, e.Next)
	}
	return fmt.Sprintf("store: the number is %d; %d is next", e.Number, e.Next)
}

// ProducerChange opens a producer or removes it. A unit has nothing else then.
type ProducerChange struct {
	Name string // 1 to MaxProducerName bytes, whichever they are
	// Epoch, where not 0, is the one that the producer has to have. Else the unit is refused: with
	// ErrFenced where the producer has a higher one, with ErrUnknownProducer where it has a lower
	// one, or is not there.
	Epoch uint64
	// Delete removes the producer. Without an Epoch it is no error where there is none.
	Delete bool
	// At is when the producer is opened, in epoch milliseconds, for ProducerInfo.Used.
	At int64

	// Results of one that opens: the producer's new epoch, above all that any producer of the
	// store has had; the epoch in which it was made, so that a producer that was forgotten
	// and made again can be distinguished; and the last number that was used. The first epoch
	// of a store is random, up to 2^40, so that two stores seldom have the same.
	NewEpoch, Born, Last uint64
}

// ProducerInfo is one row of ListProducers.
type ProducerInfo struct {
	Name        string
	Epoch, Last uint64
	// Used is when the producer was opened, or when its last number was used if the store
	// has written that down, in epoch milliseconds.
	Used int64
}

// Producers is the role that knows which producers there are.
type Producers interface {
	// ListProducers returns all producers, in byte order of names. It may wait for the commit
	// under way: it is called when the engine starts.
	ListProducers(ctx context.Context) ([]ProducerInfo, error)
}
