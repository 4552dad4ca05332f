package eventhub

import (
	"context"
	"time"
)

// Producers are forgotten some time after their last connection has gone.
const (
	// DefaultProducerKept is that time.
	DefaultProducerKept = 15 * time.Minute
	// DefaultMaxProducers is how many producers a hub knows at most; the one that has been gone for longest is
	// forgotten for another.
	DefaultMaxProducers = 10_000
	// ProducerWindow is how many of the newest numbers of a producer the hub remembers, and so
	// how many publications without an answer a producer may have.
	ProducerWindow = 4096
)

// ValidateProducer checks the id of a producer, which is as that of an event is. The error has
// CodeBadRequest.
func ValidateProducer(id string) error {
	if err := checkID("producer.id", id); err != nil {
		return Errorf(CodeBadRequest, "%s", AsError(err).Message)
	}
	return nil
}

// Producer numbers publications, so that one whose answer was lost is published again under its
// number, and is in the log once. OpenProducer returns it. It must not be changed, and may be
// used by several goroutines; the order of the numbers is their concern.
type Producer struct {
	ID string
	// Epoch is higher than that of whoever opened the producer before, whose publications are
	// refused with CodeFenced from then on.
	Epoch uint64
	// Born is the epoch in which the producer was made: another one where the hub had
	// forgotten it.
	Born uint64
	// Last is the number that was used last when the producer was opened; 0 for a new one.
	Last uint64
	// Name is what the engine calls the producer; ids belong to principals.
	Name string
}

// ProducerOptions say which producer is opened.
type ProducerOptions struct {
	// Owner is the principal; the same ID of another one is another producer.
	Owner string
	// ID is a name, or random; as the id of an event is.
	ID string
	// Epoch, where not 0, is the one that the caller had: the producer is opened only if nobody else
	// has opened it since (CodeFenced), and the hub knows it still (CodeUnknownProducer).
	Epoch uint64
}

// Producers opens producers. Its methods are safe for concurrent use.
type Producers interface {
	// OpenProducer opens a producer, which is new where the hub does not know it, and takes it
	// over from whoever has it. What is returned is durable. CodeOverloaded: the hub has as many
	// producers as it may, and all of them are in use. It returns nil for whoever may publish
	// nothing.
	OpenProducer(ctx context.Context, o ProducerOptions) (*Producer, error)
	// LeaveProducer says that nobody uses the producer any more by what OpenProducer has
	// returned. It is called once for each.
	LeaveProducer(p *Producer)
}

// DelaysPast reports whether an event is delayed also where its time is over: what has a number and
// comes again then is what it was at first. With WaitFor no event is delayed.
func (p *Publication) DelaysPast() bool { return p.Producer != nil && len(p.WaitFor) == 0 }

// Refuse refuses a publication before the engine gets it. One with a number goes on to the
// engine, which uses the number up, so Refuse returns nil for it; else it returns err.
func (p *Publication) Refuse(err error) error {
	if p.Producer == nil || err == nil {
		return err
	}
	p.Refused = err
	return nil
}
