package store

import (
	"encoding/json"
	"fmt"
	"time"

	"eventhub"
)

// Unit is one client's atomic step: its parts are applied together or not at
// all. Cancels come before Appends, and these before Delays, so that a move is a
// Cancel and an Append, and an id that a unit both appends and delays is an event. Topics
// come last. Commit fills the result fields of the unit and of its parts.
type Unit struct {
	Appends  []Append
	Groups   []GroupChange
	Delays   []Delay
	Cancels  []Cancel
	Patterns []PatternChange
	Settings []SettingChange
	Notes    []NoteChange
	Topics   []TopicChange

	// Sequence, where not nil, has a producer's number for the unit.
	Sequence *Sequence
	Producer *ProducerChange

	// Err, when Commit has returned nil, says why this unit alone was refused:
	// ErrStaleEpoch, ErrExists, ErrGone, ErrNotDelayed, ErrCompacting, ErrTopicLimit,
	// ErrUnknownProducer, ErrFenced (wrapped), ErrRefused, a ConflictError, a NotIndexedError, a SequenceError,
	// or nil.
	// The other results of a refused unit are zero, but for Sequence.Repeated.
	Err error
	// Created are the topics that this unit has created, by whatever part of it: each
	// life of a topic is in the Created of exactly one unit.
	Created []TopicLife
}

// TopicLife names one life of a topic. Life is as in TopicInfo.
type TopicLife struct {
	Topic string
	Life  uint64
}

// Append adds one event to a topic, which is created if it does not exist.
type Append struct {
	Topic string
	// ID is the event's id, as in Record. The same (topic, id) again is no
	// error: nothing is added, and the result has the first one's offset.
	ID string
	// NewID asks the store for an id that was never used before, in any store, and
	// that nobody can guess: a UUIDv7. ID is a result then, and Record, which has
	// layout.IDRoom for its id, gets it in place. Whoever comes with it
	// later gets the offset of this event.
	NewID bool
	// Key, where not empty, makes the event part of the state by key.
	Key string
	// Expect, where it asks for something, has to hold, or the unit is refused with a
	// ConflictError: as the units before this one leave the topic, those of commits that are
	// not durable yet included. The other parts of the unit do not count. A duplicate
	// expects nothing.
	//   - Of the key: the offset of its newest event, of which a tombstone is one, that was
	//     not removed; 0 where there is none. It is what Latest would find.
	//     The unit is refused with a NotIndexedError where the topic is there, and its key index is
	//     not ready.
	//   - Of the topic: what its Head will be; 0 where it is not there.
	Expect eventhub.Expect
	// CausedBy are the ids by which Links finds the event; the same one twice counts
	// once. Correlation likewise: at most eventhub.MaxCorrelationBytes and no 0x00,
	// empty for none.
	CausedBy    []string
	Correlation string
	// Record is the event. Commit writes the commit time, and a new id, into it in
	// place and does not keep it; it must not change while Commit runs.
	Record eventhub.Record

	// Of an event that comes from elsewhere: the offset and the commit time to keep. An
	// offset that is not above the topic's last one, or above MaxKeepOffset, and a time
	// before the last one or ahead of the clock, are not kept: the event gets them
	// as any other does. 0 asks for nothing. Where KeepTime is not kept and was the ts
	// of the record too, Record is replaced by one that has it as the publisher's ts,
	// see eventhub.Record.WithTS.
	KeepOffset uint64
	KeepTime   int64

	// Results. CommitTime is in epoch milliseconds and does not decrease within
	// a topic; for a duplicate it is the first one's, or 0 where that event was removed
	// (TopicChange).
	Offset     uint64
	CommitTime int64
	Duplicate  bool
}

// ConflictError refuses a unit because what one of its appends expects does not hold.
type ConflictError struct {
	Append  int             // its index in Unit.Appends
	Expect  eventhub.Expect // what it expects
	Present uint64          // what the offset is
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("store: append %d expects %s %d; it is %d", e.Append, e.Expect, e.Expect.Offset, e.Present)
}

// Delay keeps one event for later. Its topic is created if it does not exist. A delayed
// event is not in the log: no read of that shows it, its time of commit is not known, and
// an Append of its id is an ordinary one, which leaves the delayed event.
type Delay struct {
	Topic string
	// ID is the event's id. Where the topic has a delayed event of that id, or an event,
	// nothing is added, and the result is about that one.
	ID      string
	FreshID bool // promises that the id was never used before
	Key     string
	// At is when the event is due, in epoch milliseconds, from 0 to 9999999999999.
	At     int64
	Record eventhub.Record // not changed; Commit does not keep it

	// Results. Seq is greater than that of all earlier delayed events, over restarts and
	// whatever was lost. Of a duplicate, Seq and At are the first delayed event's, or, where
	// the topic has an event of that id, Offset is the event's and Seq is 0.
	Seq       uint64
	Duplicate bool
	Offset    uint64
}

// Cancel removes a delayed event. The unit is refused with ErrNotDelayed where there is
// none of that id in the topic, or, with a Seq, where that one is another: an event of the
// id may be delayed again after that. Seq 0 is whichever delayed event has the id.
type Cancel struct {
	Topic, ID string
	Seq       uint64
}

// SameID reports whether both mean a delayed event of the same id.
func (c Cancel) SameID(other Cancel) bool { return c.Topic == other.Topic && c.ID == other.ID }

// Delayed is a delayed event as it is read.
type Delayed struct {
	Topic, ID, Key string
	At             int64
	Seq            uint64
	Record         eventhub.Record
}

// PatternChange writes that a group has a pattern, or removes it. Writing one
// that is there replaces its value.
type PatternChange struct {
	Group, Pattern string
	Delete         bool
	Value          json.RawMessage // the engine's
}

// PatternInfo is one row of ListPatterns.
type PatternInfo struct {
	Group, Pattern string
	Value          json.RawMessage
}

// SettingChange writes the settings of the topics with a name, which may be a pattern, or
// removes them. Writing those that are there replaces their value. No topic is created by
// it, and the deletion of a topic leaves them.
type SettingChange struct {
	Name   string
	Delete bool
	Value  json.RawMessage // the engine's
}

// SettingInfo is one row of ListSettings.
type SettingInfo struct {
	Name  string
	Value json.RawMessage
}

// NoteChange writes a small row that the engine keeps for itself, or removes it. Writing one
// that is there replaces its value. No topic is created by it, and the deletion of a topic
// leaves it.
type NoteChange struct {
	// Name is 1 to MaxNoteName bytes, whichever they are.
	Name   string
	Delete bool
	Value  []byte // what it means is the engine's
}

// MaxNoteName is how long the name of a note may be.
const MaxNoteName = 1 << 10

// NoteInfo is one row of ListNotes.
type NoteInfo struct {
	Name  string
	Value []byte
}

// GroupChange writes the durable state of one group in one topic. Units of one
// Commit are applied in order, so later changes see earlier ones.
//
// The change is refused with ErrStaleEpoch when State.Epoch is below the
// stored epoch, and when the group does not exist, for then it was deleted
// without the writer's knowledge; unless Create is set, which makes the group, and
// the topic if need be. The engine gives a new group an epoch above those of
// earlier groups of that name (Groups.DeletedEpoch), so that late writes of theirs are
// refused and their dead letters can be distinguished.
type GroupChange struct {
	Topic, Group string
	// Life, where not 0, is that of the topic which the writer knows: the unit is
	// refused with ErrGone where the topic has another one, or is not there.
	Life uint64
	// Create refuses the unit with ErrExists when the group is there.
	Create bool
	// Delete removes the group. Nothing of it stays except that no later
	// Groups.DeletedEpoch is below State.Epoch. State.Epoch counts as in any change, the
	// rest of State does not. Delete does not go together with Create, Reset or Parts.
	Delete bool
	State  GroupState

	// Reset removes all parts of the group, before Parts are written.
	Reset bool
	// Parts are written together with State; one with an empty Value is removed. A
	// part is at most once in a change.
	Parts []GroupPart
}

// IDsKept is for how long the store remembers the id of an event that was removed, unless
// TopicChange.ForgetIDs says otherwise: the same id again is a duplicate. After that time
// it may be another event. Ids that the store made are not remembered: nobody had them
// before their event was there.
const IDsKept = 10 * time.Minute

// TopicChange removes events of a topic: those below a horizon, or single ones; or it changes
// whether the topic has the key index. From then
// on no read shows them, but their offsets are not given again, the head stays where it is
// and no later event gets an earlier commit time. It says nothing of room: Maintenance.Sweep
// gives that back. A unit with a change of a topic that is not there is refused with ErrGone.
type TopicChange struct {
	Topic string
	// Life is as in GroupChange.
	Life uint64
	// Horizon is the first offset that is kept. The horizon only goes up: one that is not
	// above the present one changes nothing, and one that is more than one above the last
	// offset given counts as that.
	Horizon uint64
	// Compacted is the offset up to which the topic keeps only the newest event of each key,
	// and the events without one: of the others, those at or below it, nothing is left once
	// Retention.Compact is done, and until then any of them may be gone. It only goes up; more
	// than the last offset given counts as that.
	Compacted uint64
	// Tombstones is the offset up to which an event with a key and the payload null is not
	// kept either, where it is the newest of its key up to Compacted. It only goes up; more
	// than Compacted counts as that.
	Tombstones uint64
	// Erase are the offsets of events that are removed. No event at one is no error. At most
	// MaxErase.
	Erase []uint64
	// ForgetIDs: the ids of what is removed are forgotten when it is swept, and not IDsKept
	// later.
	ForgetIDs bool
	// Index starts or drops the key index.
	Index IndexChange
}

// Removes reports whether a change removes anything, or may.
func (c *TopicChange) Removes() bool {
	return c.Horizon != 0 || c.Compacted != 0 || c.Tombstones != 0 || len(c.Erase) > 0
}

// MaxErase is how many events one TopicChange erases at most.
const MaxErase = 1000

// GroupPart is a piece of a group's state that is written by itself, because all
// of them together would be too much for every change. What it means is the
// engine's; Kind and Offset name it.
type GroupPart struct {
	Kind   byte
	Offset uint64
	Value  []byte // at most MaxPartBytes
}

// MaxKeepOffset is the largest offset that an append may ask for: it leaves a topic half
// of all offsets, so that one event from elsewhere does not use them up.
const MaxKeepOffset = eventhub.MaxOffset / 2

// MaxPartBytes is the most that one part of a group holds.
const MaxPartBytes = 64 << 10

// GroupState is the durable header of a group in a topic. Its meaning is the
// engine's; the store compares Epoch and keeps the rest.
type GroupState struct {
	Epoch  uint64 `json:"epoch"`
	Cursor uint64 `json:"cursor"`
	// Paused groups are not delivered to.
	Paused bool `json:"paused,omitempty"`
	// Settings are fixed at creation, as the engine encodes them.
	Settings json.RawMessage `json:"settings,omitempty"`
}
