// Package store is the contract between the engine and whatever keeps its data.
// It says what a backend must guarantee, in roles of few methods, and imports
// only the domain. The suite in store/storetest turns each duty written here
// into a test; a backend is one that passes it.
//
// # Durability and visibility
//
// All writes go through Log.Commit, in one piece or in the two of Pipeline. A commit
// with sync is durable when it returns, and before that no read shows any part of it; a
// commit without sync is ordered before every later one. Within a topic offsets become
// visible in order: who has read offset n never later finds a smaller one that was not
// there.
//
// # Failure
//
// A unit that is refused (Unit.Err) touches no other unit. An error returned by
// Commit itself, other than the context's and ErrClosed, which come before
// anything is written, means that the outcome of all its units is unknown and
// the store is broken: every later Commit fails too, reads may go on, and the
// only way forward is to reopen it. The engine must not acknowledge anything
// then.
//
// # Lifetime
//
// Methods are safe for concurrent use. Reads never wait for a commit's fsync.
// After Close every method returns ErrClosed.
package store

import (
	"context"
	"errors"
	"time"

	"eventhub"
)

// Errors that callers branch on.
var (
	// ErrClosed is returned by every method after Close.
	ErrClosed = errors.New("store: closed")
	// ErrBroken is in the chain of every Commit's error after a failed one.
	ErrBroken = errors.New("store: broken by an earlier write error")
	// ErrNotFound is returned where one named thing was asked for.
	ErrNotFound = errors.New("store: not found")
	// ErrStaleEpoch refuses a unit whose group change carries an epoch lower
	// than the group's.
	ErrStaleEpoch = errors.New("store: stale epoch")
	// ErrExists refuses a unit that creates a group that is there.
	ErrExists = errors.New("store: exists")
	// ErrGone refuses a unit that names a life of a topic which is over.
	ErrGone = errors.New("store: the topic was deleted")
	// ErrNotDelayed refuses a unit that cancels a delayed event which is not there.
	ErrNotDelayed = errors.New("store: no such delayed event")
	// ErrUnsupported is returned for what a store can not do.
	ErrUnsupported = errors.New("store: not supported")
	// ErrTopicLimit refuses a unit that would create a topic too many.
	ErrTopicLimit = errors.New("store: too many topics")
	// ErrNotIndexed is returned by what reads the key index of a topic that has none, or
	// not all of it yet.
	ErrNotIndexed = errors.New("store: the keys of the topic are not indexed")
	// ErrCompacting refuses a unit that drops the key index which a pass of the compaction
	// is reading.
	ErrCompacting = errors.New("store: the topic is being compacted")
)

// Store is what the engine runs on.
type Store interface {
	Log
	Topics
	Groups
	Schedule
	Links
	Notes
	Producers
	Retention
	Indexes
	Maintenance

	// Capabilities never change while the store is open.
	Capabilities() Capabilities

	// Close makes everything committed durable, with or without sync, releases
	// what the store holds and returns when its goroutines have ended. Closing
	// twice is harmless.
	Close() error
}

// Capabilities say what a backend can not do, or does otherwise. The engine and
// the conformance suite look here and never at a backend's name.
type Capabilities struct {
	// Durability is what a synced commit means, as reported to clients: "sync"
	// (survives power loss), "replicated" (survives the loss of one machine of several), or "none"
	// (gone with the process).
	Durability string
	// AtomicUnits: a unit with several parts is applied at once or not at all,
	// across crashes.
	AtomicUnits bool
	// Persistent: what was committed is there when the store is opened again.
	Persistent bool
}

// The values of Capabilities.Durability.
const (
	DurabilitySync = "sync"
	// DurabilityReplicated: the loss of one machine of several; journal.Durability says more.
	DurabilityReplicated = "replicated"
	DurabilityNone       = "none"
)

// Log is the role that writes everything and reads events.
type Log interface {
	// Commit applies the units in order and fills their results. With sync it
	// returns when all of it is durable, and whatever was committed before; with
	// no units it does that alone. Without sync, all of it is visible and
	// ordered before any later Commit. Offsets of a topic start at 1 and
	// increase strictly, over restarts and whatever was lost. The context is
	// looked at before the first write only.
	Commit(ctx context.Context, units []*Unit, sync bool) error

	// Read appends to batch the events of topic from offset from on, in order,
	// up to the durable head: at most limit of them, and at most maxBytes of
	// records, except that the first comes whatever its size. A topic that does
	// not exist has no events. The records belong to the batch and stay valid
	// until its Reset. Batch.Horizon is the horizon as of the read: of what is at or above
	// that, and from, nothing is left out but what compaction removed, at or below
	// Batch.Compacted; of what is below nothing is shown.
	Read(ctx context.Context, topic string, from uint64, limit, maxBytes int, batch *Batch) error

	// Head returns the highest offset that reads may show, 0 where there is
	// none: also in a topic whose offsets are used up to some place, but that never had an
	// event. The event at the head may have been removed. The head goes down with
	// DeleteTopic alone.
	Head(ctx context.Context, topic string) (uint64, error)

	// Find returns the offset of the event with that id, or ErrNotFound.
	Find(ctx context.Context, topic, id string) (uint64, error)

	// SeekTime returns the offset of the first event committed at or after ts
	// (epoch milliseconds), or head+1 when there is none yet.
	SeekTime(ctx context.Context, topic string, ts int64) (uint64, error)

	// Latest returns the newest event with that key at or below offset at
	// (0: the head), or ErrNotFound. The record belongs to the caller. ErrNotIndexed where
	// the topic is there and its index is not ready, or lacks what Read may still show: events
	// that Compact is about to remove.
	Latest(ctx context.Context, topic, key string, at uint64) (Item, error)

	// State appends to batch the newest event of each key at or below one offset, in byte
	// order of keys, without the keys whose newest event there has the payload null. The
	// records belong to the batch, whose Horizon and marks are as of the read, like Read's:
	// at an offset from Batch.Compacted on this is what all events that are kept say, and at
	// an earlier one values may be missing. A call does little: it may end before q.Limit,
	// with no event at all, where it had much to pass over; go on after StatePage.After then.
	// ErrNotIndexed as of Latest.
	State(ctx context.Context, q StateQuery, batch *Batch) (StatePage, error)

	// KeyEvents appends to batch the events with a key, the newest first: those below offset
	// before (0: all up to the head), at most limit of them, and at most maxBytes of records,
	// except that the first comes whatever its size. next is the before to go on with, 0 where
	// there are no more. The records belong to the batch, whose Horizon and marks are as of the
	// read, like State's, and a call does little, like State.
	KeyEvents(ctx context.Context, topic, key string, before uint64, limit, maxBytes int, batch *Batch) (next uint64, err error)
}

// StateQuery says which part of a topic's state is read.
type StateQuery struct {
	Topic string
	// Keys, where not nil, are the keys that are asked for, in byte order, each once; else
	// those that begin with Prefix are.
	Keys   []string
	Prefix string
	// After leaves out the keys up to this one. No key is empty.
	After string
	// At is the offset whose state it is. 0 is the head, and so is what is above it.
	At uint64
	// At most Limit events, 1 or more, and at most MaxBytes of records, except that the
	// first comes whatever its size.
	Limit, MaxBytes int
}

// StatePage says what a State has read.
type StatePage struct {
	// At is the offset whose state it is: of a query at the head, the head as it was, which
	// is not below Batch.Compacted. 0 where there is no such topic.
	At uint64
	// After is the last key that was looked at, where not all were; Done says that all were.
	After string
	Done  bool
}

// Pipeline is what a store has in addition to Store where a commit can be built while the one
// before waits for its fsync.
type Pipeline interface {
	// Start is the first half of a Commit with sync: it applies the units in order and
	// fills their results. The other half is wait, which returns when all of it is
	// durable, with what Commit would return. Until then no read shows any part of it
	// and nobody may be notified; the units must not change. wait is called exactly once,
	// on any goroutine, and in the order of the Starts; where Start returns an error
	// there is none. Between a Start and the end of its wait the caller calls nothing
	// else that writes, further Starts and Sweep excepted.
	Start(ctx context.Context, units []*Unit) (wait func() error, err error)
}

// Place says where an event is.
type Place = eventhub.Place

// Links is the role that finds events by what they say of others. Events that were
// appended without CausedBy or Correlation, as those of a store that is older than
// this role, are found by Places alone.
type Links interface {
	// Places returns where the events with that id are, in byte order of topics: at
	// most limit.
	Places(ctx context.Context, id string, limit int) ([]Place, error)

	// Effects returns where the events are that have the id in CausedBy, in the order
	// of topics and offsets, those after the place: at most limit.
	Effects(ctx context.Context, id string, after Place, limit int) ([]Place, error)

	// Correlated returns where the events with that Correlation are, like Effects.
	Correlated(ctx context.Context, correlation string, after Place, limit int) ([]Place, error)
}

// Topics is the role that knows which topics there are.
type Topics interface {
	// ListTopics returns up to limit topics with names after the given one, in
	// byte order.
	ListTopics(ctx context.Context, after string, limit int) ([]TopicInfo, error)

	// Topic returns one topic, or ErrNotFound.
	Topic(ctx context.Context, name string) (TopicInfo, error)

	// ListSettings returns the settings of topics, in byte order of names. It may wait for
	// the commit under way.
	ListSettings(ctx context.Context) ([]SettingInfo, error)

	// Lives says which lives of topics there have been. A topic that a read shows, or
	// has shown before the call, is not above Newest; one that none has shown yet is.
	Lives(ctx context.Context) (Lives, error)

	// DeleteTopic removes a topic with its events, groups and delayed events, or returns
	// ErrNotFound. It is durable when it returns; an error other than ErrNotFound and
	// those of a Commit that come before anything is written breaks the store, as a
	// failed Commit does. It is called by whoever commits, and not during a Commit.
	// Offsets that were given under the name are not given again. A topic that is created
	// under the name later is another life, which has nothing of this one. A store may
	// keep the offsets of very many names in common: new topics then begin above them.
	DeleteTopic(ctx context.Context, name string) error
}

// TopicInfo describes one topic.
type TopicInfo struct {
	Name string
	Head uint64
	// Horizon is the first offset that is kept: 1 where nothing was removed from below.
	Horizon uint64
	// Compacted and Tombstones are the marks of TopicChange; 0 where there are none.
	Compacted, Tombstones uint64
	// LastTime is the highest commit time of its events, also of those that were removed;
	// 0 where there never was one.
	LastTime int64
	// Index is how far its key index is.
	Index IndexStatus
	// Life is the number of this life of the topic, from 1 to 2^53-1. Of two lives in one
	// store, of whatever topics, the later one has the higher number. Reads go by the
	// name; who asks for the life after a read, and finds the one that he asked for
	// before it, has read of that life and of all that it had then.
	Life uint64
}

// Lives says which lives of topics there have been.
type Lives struct {
	// Newest is the number of the newest one, also of a topic that is gone; 0 before the
	// first.
	Newest uint64
	// Eras has the oldest first, and at least one. It must not be changed. Of very many
	// the oldest are left out.
	Eras []Era
}

// Era is a stretch of lives that a store gave while it was open once: from First up to
// the First of the era after it. A store that lost lives in a crash, and a copy of a
// store, give the same numbers again, and do it in another era. So an era and a number
// up to which it came name the same lives in every store that has the era, as far as they
// are below the First of the next one there.
type Era struct {
	ID    uint64 // random, not 0: of no other era, in whatever store
	First uint64
}

// Groups is the role that reads the durable state of groups.
type Groups interface {
	// Group returns one group's state, or ErrNotFound.
	Group(ctx context.Context, topic, group string) (GroupState, error)

	// GroupParts returns the parts of a group, ordered by kind, then by offset;
	// none where there is no such group. It may wait for the commit under way: it
	// is called when a group is loaded, not on the path of events.
	GroupParts(ctx context.Context, topic, group string) ([]GroupPart, error)

	// ListGroups returns the groups of a topic, ordered by name.
	ListGroups(ctx context.Context, topic string) ([]GroupInfo, error)

	// DeletedEpoch returns the highest epoch that a GroupChange with Delete had, of
	// whatever group, 0 where there was none. It never goes down. Groups that went with
	// their topic do not count.
	DeletedEpoch(ctx context.Context) (uint64, error)

	// ListPatterns returns the patterns of all groups, ordered by group, then by
	// pattern. It may wait for the commit under way.
	ListPatterns(ctx context.Context) ([]PatternInfo, error)
}

// Notes is the role that reads the engine's own rows.
type Notes interface {
	// ListNotes returns all notes, in byte order of names. It may wait for the commit under
	// way: it is called when the engine starts.
	ListNotes(ctx context.Context) ([]NoteInfo, error)
}

// Schedule is the role that reads the delayed events. Its methods may wait for the commit
// under way.
type Schedule interface {
	// Delayed returns delayed events in the order of At, then Seq: those after the place
	// (afterAt, afterSeq), with At up to until. At most limit of them, and at most
	// maxBytes of records, except that the first comes whatever its size. The
	// records belong to the caller.
	Delayed(ctx context.Context, afterAt int64, afterSeq uint64, until int64, limit, maxBytes int) ([]Delayed, error)

	// FindDelayed returns the delayed event of that id, or ErrNotFound.
	FindDelayed(ctx context.Context, topic, id string) (Delayed, error)
}

// Retention is the role that knows how much is stored.
type Retention interface {
	// Measure counts the events of a topic from offset from on, which is taken for the
	// horizon where it is below it: up to the head, or until it has counted until.Events
	// events or until.Bytes bytes or more (0: no such bound). next is the offset after the
	// last one that it has counted, and so of what may be removed to get rid of so much. It
	// may end before that, with done false, where it had much to read: go on at next then.
	// With a bound it may count somewhat more than is needed, at most an event or a
	// thousandth. A topic that is not there has no events. It may wait for the commit under
	// way.
	Measure(ctx context.Context, topic string, from uint64, until Usage) (u Usage, next uint64, done bool, err error)

	// Compact removes some of what TopicChange.Compacted and Tombstones leave over, and says
	// how much, and whether that was all up to these marks, whose commit must be durable. It
	// works on what came above the marks before, once. A call does little, or waits until the store has given room back, or
	// ctx is done. It may be called during Commits and Starts, which do not wait for it. An error
	// is of what could not be read or given back, or has ErrBroken; ErrNotIndexed where the
	// index of the topic is not ready.
	Compact(ctx context.Context, topic string) (u Usage, done bool, err error)
}

// Usage is an amount of events: how many, and the bytes of their records.
type Usage struct{ Events, Bytes uint64 }

// Maintenance is the role that looks after the store itself.
type Maintenance interface {
	// Size returns the bytes that the store takes: on disk, or in memory where
	// it keeps nothing else. It may be an estimate, and is cheap enough to be
	// asked every second.
	Size() (bytes uint64, err error)

	// Checkpoint writes a copy of the store into dir, which must not exist: what was
	// durable when it was called, and perhaps some of what became so meanwhile, each
	// unit whole. A store of the same kind can be opened on it. Commits go on. The copy
	// is durable when Checkpoint returns, and where it fails nothing is left of it; that
	// breaks no store. fs.ErrExist is in the chain where dir exists. A store that is not
	// Persistent has ErrUnsupported.
	Checkpoint(ctx context.Context, dir string) error

	// Sweep removes some of what deleted topics and removed events have left, which nobody
	// finds any more, and says what it leaves. Sweep may be called during Commits and Starts,
	// which do not wait for it, and does little at once. An error is of what could not be
	// read, which is left until the store is opened again, or has ErrBroken; what else there
	// is to remove is in Left as well.
	Sweep(ctx context.Context) (Left, error)

	// Space returns how much room the place of the store has; the zero Space
	// where that is no matter. It is cheap enough to be asked ten times a second.
	Space() (Space, error)

	// Shrink gives back what room the store holds beyond what is stored, as far as it
	// can; nothing that is stored changes. It is called when Space has become low, not
	// during another Shrink, and may be called during Commits and Starts.
	Shrink(ctx context.Context) error
}

// Left is what a Sweep leaves to be removed later. It may be too much, not too little.
type Left struct {
	// Again is after how long there is something that can be removed: 0 is now, negative is
	// not before something more is removed. Ids that are still remembered (IDsKept), and few
	// events, which a store removes together with later ones, have to wait for a while.
	Again time.Duration
	// Bytes is about how many bytes of records can be removed now, or as many as are as much work.
	Bytes uint64
}

// Nothing is where a Sweep leaves nothing.
var Nothing = Left{Again: -1}

// More reports whether something can be removed now.
func (l Left) More() bool { return l.Again == 0 }

// Space is the room of a file system, in bytes; the zero Space is one without bound.
type Space struct{ Free, Total uint64 }

const (
	// MinFree is how many bytes have to be free, however large the disk is.
	MinFree      = 256 << 20
	minFreeShare = 5 // percent
)

// Least is how much room has to be free for events to be taken, so that acks and
// the store's own work find room when events do not any more, and so do dead letters
// until it is scarce: 5 % of all, and at least 256 MiB.
func (s Space) Least() uint64 { return max(MinFree, s.Total/100*minFreeShare) }

// IsLow reports whether less than that is free.
func (s Space) IsLow() bool { return s.Total > 0 && s.Free < s.Least() }

// IsScarce reports whether so little is free that dead letters, which may be as many and as large as
// events, or a copy of the store would take the room of acks, and that of the next start: less than MinFree.
func (s Space) IsScarce() bool { return s.Total > 0 && s.Free < MinFree }

// GroupInfo is one row of ListGroups.
type GroupInfo struct {
	Group string
	State GroupState
}

// Item is one event at its place.
type Item = eventhub.Item
