// Package journal is the durable truth of a hub that several machines share: one sequence of
// entries on an engine that replicates them (JetStream, MongoDB). Each commit of the active hub
// is one entry, and a standby that follows the entries has the same store.
//
// It has two halves. Journal is what an engine does: it appends bytes at a place, reads a place, and
// hands out what comes. Log is the same for all engines: what an entry says of itself (Header),
// the chain that ties each entry to the one before it, entries that are too large for one place,
// and the settling of an append whose answer was lost.
//
// # Invariants
//
//   - A place is written once. An append names the place before it, and succeeds only where that
//     is the last one. So of two writers one is fenced, and what a writer appended is in its order.
//   - A writer sends one append at a time. The number of a place says nothing about who took it:
//     of appends for the places 6 and 7 that are both under way when another hub takes 6, the first would be
//     refused, and the second find its place free and the place before it taken. It would be
//     in the journal, among the entries of the other hub.
//   - Nothing is concluded from absence: a place that reads as empty may be filled by an append
//     that is still under way. An append is repeated with the same expectation until its place is
//     taken: by itself, which its bytes show, or by another's, and then the writer is fenced.
//   - Each entry has the hash of the entry before it. Engines have lost entries that they had
//     acknowledged; a follower that meets another chain, a lower epoch, bytes of somebody else, or
//     a journal that ends before its own position stops, and writes nothing over.
//   - A writer has an epoch, which its first entry (KindLead) begins. An entry of an epoch comes
//     after all of the lower ones.
//
// # Who calls it
//
// The hub: a standby follows a Log and gives its entries to a replica (store/pebble); a hub that
// takes over leads it, and its store writes through the Leader. Package journaltest holds what
// every engine has to show; package memory is the engine of the tests, and the strictest.
package journal

import (
	"context"
	"errors"
	"fmt"
	"time"
)

var (
	// ErrConflict is the answer to an append whose place is taken, or whose place before is not
	// the last one. It says nothing about who took it.
	ErrConflict = errors.New("the place in the journal is taken")
	// ErrFull is a definite refusal: the engine has no room, or takes no more at present. Nothing
	// was appended, and the append may be repeated.
	ErrFull = errors.New("the journal is full")
	// ErrTooLarge is a definite refusal: the entry is larger than Limits.EntryBytes, or the data
	// larger than MaxData.
	ErrTooLarge = errors.New("the entry is too large for the journal")
	// ErrTrimmed: the place is below what the journal still has.
	ErrTrimmed = errors.New("the journal is trimmed beyond that place")
	// ErrAbsent: nothing is at that place. An append that is under way may still fill it.
	ErrAbsent = errors.New("the journal has nothing at that place")
	// ErrHole: nothing is at that place, and the journal has others before and after it. Either it has lost
	// the entry, or who answers has not got it yet.
	ErrHole = errors.New("the journal has entries before and after that place, and none at it")
	// ErrFenced: another hub leads. What was not settled is not in the journal, and never will be.
	ErrFenced = errors.New("another hub leads the journal")
	// ErrUnknown: the writer has ended, and what it waited for may be in the journal, or come into
	// it later.
	ErrUnknown = errors.New("it is not known whether the entry is in the journal")
	// ErrOvertaken comes with ErrUnknown: another hub leads, and what this one has appended last may be in the
	// journal.
	ErrOvertaken = errors.New("another hub has written after it")
	// ErrBehind: the journal has entries that the hub has not followed yet.
	ErrBehind = errors.New("the journal goes on after that position")
	// ErrDiverged: the journal is not the one that was followed so far.
	ErrDiverged = errors.New("the journal has diverged from what this hub has")
	// ErrForeign: the bytes are no entry of a hub, or are damaged.
	ErrForeign = errors.New("the bytes are no entry of a hub's journal")
	// ErrAway: the engine is not reached, or not ready yet, when the journal is opened. It may be later.
	ErrAway = errors.New("the journal is not reached")
	// ErrMissing: the engine has no journal of that name.
	ErrMissing = errors.New("the journal is not there")
	// ErrClosed: the journal or the leader was closed.
	ErrClosed = errors.New("the journal is closed")
)

// FencedError is an ErrFenced that says who leads.
type FencedError struct {
	Hub   string
	Epoch uint64
}

func (e *FencedError) Error() string {
	return fmt.Sprintf("%v: hub %q in epoch %d has written there", ErrFenced, e.Hub, e.Epoch)
}

// Unwrap returns ErrFenced.
func (e *FencedError) Unwrap() error { return ErrFenced }

// Journal is one sequence of places on an engine, from 1 on without holes, of which the lowest
// may be trimmed. All methods may be called at once; any other error than those above says that the
// outcome is unknown, or that the engine does not answer.
type Journal interface {
	// Last returns the last place that is taken, 0 where none was ever. It asks who leads the
	// engine; a former leader that does not know yet may say less than there is.
	Last(ctx context.Context) (uint64, error)
	// Append appends an entry at the place after a place: nil where it is durable at after+1,
	// ErrConflict, ErrFull or ErrTooLarge where it was refused. Any other error says nothing about
	// the outcome: the append may be carried out later, even twice, which then is a conflict. The
	// entry is not changed and not kept.
	Append(ctx context.Context, after uint64, entry []byte) error
	// Read returns the entry at a place, as whoever leads the engine has it: ErrAbsent,
	// ErrTrimmed, ErrHole. The bytes are the caller's.
	Read(ctx context.Context, at uint64) ([]byte, error)
	// Follow calls visit with each entry after a place, in order and without a hole, as they
	// come, until ctx is done or visit fails, whose error it returns. ErrTrimmed where the next
	// place is gone. It goes on by itself over a lost connection, and visits only what is
	// durable. The bytes are the visitor's.
	Follow(ctx context.Context, after uint64, visit func(at uint64, entry []byte) error) error
	// Trim removes the entries up to a place, but never the last one: it shows who wrote last.
	Trim(ctx context.Context, upTo uint64) error
	// Announce says how a member is doing, and returns what all had last said of themselves before, this
	// one too, by ID. A member without an ID says nothing, and asks.
	Announce(ctx context.Context, m Member) ([]Member, error)
	// Now returns what the engine's clock says, by which Member.Seen is. It writes nothing.
	Now(ctx context.Context) (time.Time, error)
	// Limits returns what the engine allows, and how much room it has.
	Limits(ctx context.Context) (Limits, error)
	// Close ends all calls with ErrClosed, and waits for no append.
	Close() error
}

// Durability says what an answered append survives.
type Durability string

const (
	// DurabilityReplicated: the loss of a minority of the engine's machines.
	DurabilityReplicated Durability = "replicated"
	// DurabilitySync: also the loss of power of all of them, as the operator asserts, or as the engine
	// promises for each answer.
	DurabilitySync Durability = "sync"
)

// Limits are what an engine allows.
type Limits struct {
	// EntryBytes is how large an entry may be. A Log divides what is larger.
	EntryBytes int
	Durability Durability
	// Used and Most are the bytes that the journal has and may have; Most is 0 where it has no limit.
	Used, Most uint64
	// First is the lowest place that it still has, or that the next entry gets.
	First uint64
}

// Member is a hub that has a copy of the store.
type Member struct {
	ID     string    `json:"id"`
	URLs   []string  `json:"urls"`             // where clients and other members reach it
	Active bool      `json:"active,omitempty"` // it led when it said so
	Synced uint64    `json:"synced"`           // it has all entries up to this place, fsynced
	Layout uint32    `json:"layout"`           // the highest layout of entries that it reads
	Seen   time.Time `json:"seen"`             // when it said so, by the engine's clock
	Run    string    `json:"run,omitempty"`    // of the process: two that have one ID differ in it
	// Released: somebody has said in its place that it does not come back. Nobody waits for it until it
	// says something itself.
	Released bool `json:"released,omitempty"`
}

// Position is where a copy of the store stands in the journal. The zero value is before
// everything.
type Position struct {
	Seq   uint64 // the place of the last entry that the copy has
	Epoch uint64 // its epoch
	Chain uint64 // its hash, which the next entry has in its header
}
