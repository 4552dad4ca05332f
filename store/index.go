package store

import (
	"context"
	"fmt"
)

// The key index of a topic says which events have a key. It is what Latest, State and Compact
// read, and every event with a key pays for it, so a topic has it where somebody wants it. A
// new topic has none.

// IndexStatus says how far the key index of a topic is.
type IndexStatus uint8

// What the index of a topic can be.
const (
	NotIndexed IndexStatus = iota // there is none
	Indexing                      // what is appended gets into it, what was there before not all
	Indexed                       // it is ready
)

func (s IndexStatus) String() string {
	switch s {
	case NotIndexed:
		return "none"
	case Indexing:
		return "building"
	}
	return "ready"
}

// NotIndexedError refuses a unit that expects something of a key in a topic whose index is not
// ready. ErrNotIndexed is in its chain.
type NotIndexedError struct{ Topic string }

func (e *NotIndexedError) Error() string {
	return fmt.Sprintf("topic %q, of a key of which something is expected: %v", e.Topic, ErrNotIndexed)
}

// Unwrap returns ErrNotIndexed.
func (e *NotIndexedError) Unwrap() error { return ErrNotIndexed }

// IndexChange is what a TopicChange does to the key index.
type IndexChange uint8

const (
	// KeepIndex leaves it as it is.
	KeepIndex IndexChange = iota
	// StartIndex begins it, unless it is there: what is appended by later units gets into it, and
	// IndexKeys adds what was appended before.
	StartIndex
	// DropIndex removes it, ready or not. The unit may be refused with ErrCompacting where
	// Compact has begun a pass: call Compact until it is done, and drop the index then.
	DropIndex
)

// Pause is called by a step between its parts, while nothing waits for the step, so that others get on, and is told how far the
// step has read. It ends with ctx, and reports whether the step is to read no more, and only write what it has.
type Pause func(ctx context.Context, p IndexProgress) (end bool)

// Indexes is the role that builds the key index of topics.
type Indexes interface {
	// IndexKeys adds some of the events that were there before StartIndex, whose commit must be
	// durable, and says how far it is, and whether the index is ready now; for a topic whose index
	// is not being built there is nothing to do, and done is true. A call takes some seconds at most, and what pause takes, which it
	// calls every few milliseconds where nothing waits for the step; nil for no pauses. It may
	// be called during Commits and Starts, which do not wait for it. After a crash it goes on
	// about where it was: the index of a topic may be Indexing again that was Indexed. An
	// error is of what could not be read, or has ErrBroken.
	IndexKeys(ctx context.Context, topic string, pause Pause) (p IndexProgress, done bool, err error)

	// TopicsIndexed returns the names of the topics whose index has that status, in byte order.
	TopicsIndexed(ctx context.Context, status IndexStatus) ([]string, error)
}

// IndexProgress says through how many offsets of how many IndexKeys has gone. Events that were
// removed meanwhile count in neither.
type IndexProgress struct{ Done, Total uint64 }
